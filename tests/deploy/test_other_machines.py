"""The exported C on machines of 32 bits and of the other byte order, under qemu."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_fixed import rule
from test_runtime import BINARY, REAL, build, images

from binep.deploy import c_program
from binep.deploy.export import store
from binep.deploy.fixed import FixedNetwork
from binep.deploy.learning import FixedLearner, FixedRule, learnt
from binep.deploy.runtime import Runtime

MACHINES = {
    "32-bit ARM": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
    "big-endian s390x": ("s390x-linux-gnu-gcc", "qemu-s390x"),
}
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-ffp-contract=off", "-static"]


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> tuple[str, str]:
    compiler, emulator = MACHINES[request.param]
    for program in (compiler, emulator):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    return compiler, emulator


def run(machine: tuple[str, str], folder: Path, *words: str) -> str:
    compiler, emulator = machine
    sources = sorted(path.name for path in folder.glob("*.c"))
    subprocess.run([compiler, *STRICT, "-o", "binep", *sources], cwd=folder, check=True)
    command = [emulator, "./binep", "vectors.bin", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stdout[-200:] + done.stderr
    return done.stdout


CASES = {
    "bits": BINARY["two conv"],
    "bits without states": BINARY["bits, conv"],
    "real": REAL["dense"],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_predicts_there_what_it_does_here(case: tuple, machine, tmp_path: Path):
    recipe, network = build(*case)
    stored, x = store(network, recipe), images(recipe, 8).numpy()
    c_program.write(stored, tmp_path, x, np.arange(8))
    lines = run(machine, tmp_path).splitlines()
    assert lines[-1] == "8 vectors, 0 differ"
    predicted = [int(line.split()[1]) for line in lines[:-1]]
    assert np.array_equal(predicted, Runtime(stored).predict(x))


@pytest.mark.parametrize("case", [BINARY["dense"], BINARY["bits"]], ids=["bits", "without states"])
def test_it_learns_there_what_it_does_here(case: tuple, machine, tmp_path: Path):
    recipe, network = build(*case)
    stored, x = store(network, recipe), images(recipe, 20).numpy()
    learning, labels = FixedRule(rule()), np.arange(20) % 10
    c_program.write(stored, tmp_path, x, labels, learning=learning)
    run(machine, tmp_path, "learn", "learnt.bin")
    learner = FixedLearner(FixedNetwork(stored), learning)
    for image, label in zip(x, labels, strict=True):
        learner.learn(image, int(label))
    assert learner.flips > 0 and (tmp_path / "learnt.bin").read_bytes() == learnt(learner)
