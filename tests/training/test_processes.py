"""One training in several processes: with bits the same weights, momenta and metrics as in one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from binep import BinepError
from binep.engines.exchange import sizes
from binep.engines.processes import ALONE
from binep.training import recipe as recipes
from binep.training import run_folder, runs
from conftest import small_recipe

HERE = Path(__file__).parent
TIMES = {"seconds", "test_seconds"}
Job = dict[str, Any]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(count: int, words: list[str], **env: str) -> list[subprocess.Popen[str]]:
    """Start a program in several processes, as torchrun would, but sooner."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{HERE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    return [
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **common, **env, "RANK": str(n), "LOCAL_RANK": str(n)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(count)
    ]


def train_in(count: int, jobs: list[Job]) -> None:
    for process in start(count, [str(HERE / "one_of_many.py"), json.dumps(jobs)]):
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said


def learnt(folder: Path) -> dict[str, torch.Tensor]:
    """All that the newest checkpoint of the only run in a folder holds."""
    (run,) = run_folder.find_runs(folder)
    return safetensors.torch.load_file(sorted(run.glob("checkpoint-*.safetensors"))[-1])


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = run_folder.read_metrics(run_folder.find_runs(folder)[0])
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def assert_same_end(one: Path, other: Path) -> None:
    first, second = learnt(one), learnt(other)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert metrics(one) == metrics(other)


def record(folder: Path) -> dict[str, Any]:
    return runs.open_run(folder).record


# Mini-batches of 200 and a last one of 38: parts of different sizes. The reference has one sample
# too few in its last mini-batch, so that a process of four is idle.
BITS = [
    {"recipe": "digits-conv-wa", "options": {"engine": "packed"}},
    {"recipe": "digits-conv-wa", "options": {"engine": "reference"}, "overrides": [
        "training.epochs=1", "training.batch_size=359", "network.learn_scale=true",
        "optimizer.lr_scale=1e-4", "data.crop=1",
    ]},
]  # fmt: skip
REAL = {"recipe": "digits-1fc-w", "overrides": ["training.epochs=1", "training.batch_size=72"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Runs by number of processes, and by which of the jobs; `halves` in one and two by turns."""
    pytest.importorskip("numba")
    root = tmp_path_factory.mktemp("processes")
    real = [{**REAL, "options": {"engine": engine}} for engine in ("reference", "delta")]
    jobs = [*BITS, *real]

    def placed(count: int) -> list[Job]:
        return [
            {**job, "small": True, "out": str(root / f"{count}" / f"{n}")}
            for n, job in enumerate(jobs)
        ]

    for job in placed(1):
        recipe = small_recipe(job["recipe"], *job.get("overrides", []))
        runs.train(recipe, out=job["out"], **job["options"])
    stopped = {**BITS[0], "small": True, "out": str(root / "halves"), "stop_after": 4}
    train_in(2, [*placed(2), stopped])
    options = {"engine": "packed", "resume": True}
    runs.train(small_recipe(BITS[0]["recipe"]), out=root / "halves", **options)
    return root


@pytest.mark.parametrize("job", range(len(BITS)))
def test_two_processes_have_the_bits_of_one(job, trained):
    assert_same_end(trained / "2" / str(job), trained / "1" / str(job))


def test_a_run_stopped_in_two_processes_goes_on_in_one(trained):
    assert record(trained / "halves")["starts"] == 2
    assert [part["processes"] for part in record(trained / "halves")["before"]] == [2]
    assert_same_end(trained / "halves", trained / "1" / "0")


@pytest.mark.parametrize("job", [2, 3])
def test_real_activations_agree_to_rounding_after_twenty_steps(job, trained):
    one, two = learnt(trained / "1" / str(job)), learnt(trained / "2" / str(job))
    for name, expected in one.items():
        if name.startswith("momentum"):
            # Contrasts of some hundred samples in float32, added up in another order.
            torch.testing.assert_close(two[name], expected, rtol=1e-3, atol=1e-8)
        if name.endswith("bits"):
            assert torch.equal(two[name], expected)
        if name.endswith("bias"):
            torch.testing.assert_close(two[name], expected, rtol=1e-4, atol=1e-6)


def test_a_record_says_how_many_processes_and_bytes(trained):
    found = record(trained / "2" / "0")
    assert found["processes"] == 2
    assert found["exchanged"]["steps"] == 16
    counted = sum(found["exchanged"]["received"].values()) / 16
    assert found["exchanged"]["bytes_per_step"] == pytest.approx(counted, abs=1)
    synapses = sum(signs.numel() * 8 for name, signs in learnt(trained / "2" / "0").items()
                   if name.endswith("bits"))  # fmt: skip
    assert counted < 4 * synapses  # of float32, which a ring of two receives once
    assert "exchanged" not in record(trained / "1" / "0")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["digits-1fc-wa", "digits-conv-wa"])
def test_one_two_and_four_processes_have_the_same_bits_after_an_epoch(recipe, tmp_path):
    pytest.importorskip("numba")
    chosen = recipes.load(recipe, ["training.epochs=1"])
    runs.train(chosen, out=tmp_path / "1")
    for count in (2, 4):
        out = str(tmp_path / str(count))
        train_in(count, [{"recipe": recipe, "overrides": ["training.epochs=1"], "out": out}])
        assert_same_end(tmp_path / str(count), tmp_path / "1")


# --- processes that hang or die -----------------------------------------------------------------


def wait_for_epochs(folder: Path, epochs: int, seconds: float = 120) -> None:
    """Until a run has come so far."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (folder / "metrics.jsonl").is_file() and len(run_folder.read_metrics(folder)) >= epochs:
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder}: {epochs} epochs took longer than {seconds} s")


def test_a_process_that_hangs_ends_the_training_with_its_name(tmp_path):
    words = ["-m", "binep", "train", "digits-1fc-w", "--epochs", "1000", "--out", str(tmp_path)]
    first, second = start(2, words, BINEP_PATIENCE="2")
    try:
        wait_for_epochs(tmp_path / "digits-1fc-w-seed0", 1)
        second.send_signal(signal.SIGSTOP)
        _, said = first.communicate(timeout=60)
    finally:
        second.kill()
        first.kill()
    assert first.returncode == 1
    assert said.count("\n") == 1
    assert "process 1 of 2 has not answered for 2 s: it hangs" in said


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_training_with_its_name(tmp_path):
    words = ["-m", "binep", "train", "digits-1fc-w", "--epochs", "1000", "--out", str(tmp_path)]
    first, second = start(2, words)
    try:
        wait_for_epochs(tmp_path / "digits-1fc-w-seed0", 1)
        second.kill()
        _, said = first.communicate(timeout=60)
    finally:
        second.kill()
        first.kill()
    assert first.returncode == 1
    assert "process 1 of 2 has ended" in said


def test_sigterm_saves_in_all_processes_and_tells_by_the_exit_code(tmp_path):
    words = ["-m", "binep", "train", "digits-1fc-w", "--epochs", "1000", "--out", str(tmp_path)]
    processes = start(2, words)
    folder = tmp_path / "digits-1fc-w-seed0"
    wait_for_epochs(folder, 1)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [143, 143], said
    assert runs.open_run(folder).record["status"] == "interrupted"
    assert "stopped and saved" in said[0][0]
    assert said[1][0] == ""


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
def test_a_killed_process_is_started_again_and_the_run_ends_as_without(attempt, tmp_path):
    pytest.importorskip("numba")
    chosen = recipes.load("digits-1fc-wa", ["training.epochs=3"])
    runs.train(chosen, out=tmp_path / "straight")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words += ["--max-restarts=1", "-m", "binep", "train", "digits-1fc-wa", "--epochs", "3"]
    words += ["--out", str(tmp_path / "killed"), "--checkpoint-every", "0.5"]
    job = subprocess.Popen(
        [sys.executable, *words], env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    folder = tmp_path / "killed" / "digits-1fc-wa-seed0"
    wait_for_epochs(folder, 1)
    time.sleep(0.2 * attempt)
    workers = children(job.pid)
    assert len(workers) == 2
    os.kill(workers[attempt % 2], signal.SIGKILL)
    _, said = job.communicate(timeout=300)
    assert job.returncode == 0, said
    assert record(tmp_path / "killed")["starts"] == 2
    assert_same_end(tmp_path / "killed", tmp_path / "straight")


def children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return sorted(int(number) for number in found)


# --- parts and formats --------------------------------------------------------------------------


def test_alone_a_part_is_all_of_it():
    x, labels = torch.zeros(5, 3), torch.arange(5)
    part = ALONE.part(x, labels)
    assert part.whole is None
    assert part.x is x
    assert part.batch == 5


def test_the_smallest_format_is_chosen_by_what_processes_hold():
    def smallest(largest: list[int], filled: list[int]) -> str:
        found = sizes(10_000, largest, filled)
        return min(found, key=found.__getitem__)

    assert smallest([1, 1], [100, 90]) == "list"
    assert smallest([1, 1], [5000, 90]) == "ternary"
    assert smallest([2, 1], [5000, 90]) == "bytes"
    assert smallest([64, 64], [10_000, 10_000]) == "float32"
    # What is gathered from fifteen others costs more than what is added up on the way.
    assert smallest([1] * 4, [5000] * 4) == "ternary"
    assert smallest([1] * 16, [5000] * 16) == "bytes"


def test_a_misspelt_patience_is_told():
    with pytest.raises(BinepError, match="BINEP_PATIENCE"):
        from binep.training.launch import patience

        patience({"BINEP_PATIENCE": "soon"})
