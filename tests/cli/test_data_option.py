"""Commands that compare and time recipes take data of one's own, like those that train."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own") / "measurements.csv"
    draw = np.random.default_rng(0).normal(size=(200, 6))
    rows = np.c_[draw, (draw[:, 0] > 0).astype(int)]
    np.savetxt(path, rows, delimiter=",", header="a,b,c,d,e,f,label", comments="")
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["choose", "digits-1fc-w", "--variant", "learning.beta=0.5", "--epochs", "1"], "as it is"),
        (["bench", "digits-1fc-w", "--batches", "2", "--device", "cpu"], "digits-1fc-w"),
    ],
)
def test_data_of_ones_own_are_compared_and_timed_on(words: list[str], said: str, table: Path):
    command = [sys.executable, "-m", "binep", *words, "--data", table.name]
    command += ["--set", "network.dense=[8]", "--set", "training.batch_size=16"]
    done = subprocess.run(command, cwd=table.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_a_sweep_over_sizes_has_data_of_its_own(table: Path):
    command = [sys.executable, "-m", "binep", "bench", "--sweep", "--data", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "binep: --data and --set with --sweep: allowed is one or the other\n"
