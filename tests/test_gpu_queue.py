"""benchmarks/gpu_queue.py: trainings that go on from machine to machine, no epoch twice."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from binep.errors import BinepError
from binep.studies.evidence import open_evidence
from binep.training import checkpoints, provenance, runs
from conftest import SMALL

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import gpu_queue
from gpu_queue import Training

CHANGES = [*SMALL["digits-1fc-w"], "training.batch_size=200"]  # eight mini-batches an epoch
QUEUE = [Training("digits-1fc-w", seed, 2, 60.0, "a test", 2, CHANGES) for seed in (0, 1, 2)]
HERE = {"device": "cpu", "engine": "reference", "offline": True}


def after(batches: int) -> Callable[[], bool]:
    """A clock that says after so many mini-batches that the time is over."""
    count = itertools.count()
    return lambda: next(count) > batches


def lease(home: Path, machine: Path, over: Callable[[], bool]) -> None:
    """Pack what is next, train it on a fresh machine, keep what comes back."""
    work = gpu_queue.next_trainings(QUEUE, home, home / "evidence", 1e9)
    parts = gpu_queue.pack(work, home, machine / "came", "abc")
    arrived, commit = gpu_queue.keep(parts, machine / "home")
    gpu_queue.train(arrived, machine / "home", over, **HERE)
    parts = gpu_queue.pack(arrived, machine / "home", machine / "out", commit)
    gpu_queue.keep(parts, home, home / "evidence")


def timeless(lines: list[dict]) -> list[dict]:
    return [line | {"seconds": 0, "test_seconds": 0} for line in lines]


def test_trainings_stopped_and_carried_on_elsewhere_have_the_same_bits(tmp_path: Path):
    home = tmp_path / "home"
    lease(home, tmp_path / "a", after(7))
    assert [each.kept(home) for each in QUEUE] == [0, 0, 0]  # within the first epoch, two at once
    lease(home, tmp_path / "b", after(25))
    assert sum(each.kept(home) for each in QUEUE) in (2, 3, 4)
    lease(home, tmp_path / "c", lambda: False)
    for each in QUEUE:
        straight = runs.train(each.load(), seed=each.seed, out=tmp_path / "straight", **HERE)
        carried = runs.open_run(home / each.name)
        assert timeless(carried.metrics) == timeless(straight.metrics)
        (ours, _), (theirs, _) = (
            checkpoints.load(run.folder, warn=print) or pytest.fail("no checkpoint")
            for run in (carried, straight)
        )
        assert all(ours[name].equal(theirs[name]) for name in theirs)
        assert each.published(home / "evidence") == each.epochs
    assert "next: nothing; all: 0.0 h" in gpu_queue.tell(QUEUE, home, home / "evidence")


def test_what_fits_the_time_is_next_and_counts_what_was_trained(tmp_path: Path):
    first, second, _ = QUEUE
    assert gpu_queue.next_trainings(QUEUE, tmp_path, tmp_path, 119) == [first]
    assert gpu_queue.next_trainings(QUEUE, tmp_path, tmp_path, 121) == [first, second]
    gpu_queue.train([first], tmp_path, lambda: False, **HERE)
    assert gpu_queue.next_trainings(QUEUE, tmp_path, tmp_path, 119) == [second]


def test_what_comes_back_does_not_replace_what_has_got_further(tmp_path: Path):
    first = QUEUE[0]
    gpu_queue.train([first], tmp_path / "short", after(9), **HERE)
    gpu_queue.train([first], tmp_path / "home", lambda: False, **HERE)
    parts = gpu_queue.pack([first], tmp_path / "short", tmp_path / "out", None)
    gpu_queue.keep(parts, tmp_path / "home")
    assert first.kept(tmp_path / "home") == 2


def test_a_record_that_names_no_commit_is_given_the_packed_one_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda: None)  # a machine without the repository
    first = QUEUE[0]
    gpu_queue.train([first], tmp_path / "machine", lambda: False, **HERE)
    parts = gpu_queue.pack([first], tmp_path / "machine", tmp_path / "out", "abc")
    gpu_queue.keep(parts, tmp_path / "home", tmp_path / "evidence")
    (run,) = open_evidence(tmp_path / "evidence").runs_of(first.load())
    assert run.record["commit"] == "abc" and run.record["commit_filled_in"] is True


def test_parts_that_are_missing_or_damaged_are_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(gpu_queue, "PART", 2000)
    gpu_queue.train(QUEUE[:1], tmp_path / "machine", after(3), **HERE)
    parts = gpu_queue.pack(QUEUE[:1], tmp_path / "machine", tmp_path / "out", None)
    with pytest.raises(BinepError, match="allowed are all parts"):
        gpu_queue.keep(parts[:-1], tmp_path / "home")
    parts[1].write_bytes(bytes(2000))
    with pytest.raises(BinepError, match="damaged"):
        gpu_queue.keep(parts, tmp_path / "home")
    assert not list((tmp_path / "home").glob("**/record.json"))


def test_the_list_that_ships_names_recipes_that_ship():
    for each in gpu_queue.read_list(Path(gpu_queue.__file__).with_suffix(".toml")):
        assert each.load().training.epochs == each.epochs
