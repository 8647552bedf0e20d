"""Trials anywhere: what failed is told, what was cut off goes on, what is finished stays."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from binep import BinepError
from binep.cli import app
from binep.training import runs
from binep.training.trials import Options, Trial, missing, place
from binep.training.trials.executor import loads
from binep.training.trials.local import Local, slots
from conftest import small_recipe

CPU = Options(device="cpu", engine="reference")


def trials(out: Path, count: int, *overrides: str) -> list[Trial]:
    recipe = small_recipe("digits-1fc-w", *overrides)
    return [Trial(recipe, seed, out, None, CPU) for seed in range(count)]


def test_a_trial_survives_being_written(tmp_path):
    (trial,) = trials(tmp_path, 1)
    assert loads(trial.dumps()) == trial


def test_processes_train_what_this_one_would(tmp_path):
    for outcome in place("here").run(trials(tmp_path / "here", 1)):
        assert outcome.finished
    found = list(Local(at_once=2).run(trials(tmp_path / "local", 2)))
    assert sorted(outcome.trial.seed for outcome in found) == [0, 1]
    assert all(outcome.finished for outcome in found)
    one = runs.open_run(tmp_path / "here" / "digits-1fc-w-seed0")
    two = next(outcome.run for outcome in found if outcome.trial.seed == 0)
    for key in ("train_error", "test_error", "flips", "loss"):
        assert [line[key] for line in one.metrics] == [line[key] for line in two.metrics]


def test_a_trial_that_fails_is_told_and_does_not_stop_the_others(tmp_path):
    good, bad = trials(tmp_path, 2)
    (tmp_path / bad.label).write_text("a file where its folder should be")
    found = {outcome.trial.seed: outcome for outcome in Local(at_once=1).run([bad, good])}
    assert found[good.seed].finished
    assert not found[bad.seed].finished
    assert bad.label in str(found[bad.seed].failure)


def test_finished_trials_are_not_missing_and_longer_ones_are(tmp_path):
    (trial,) = trials(tmp_path, 1)
    assert missing([trial]) == [trial]
    trial.train()
    assert missing([trial]) == []
    (longer,) = trials(tmp_path, 1, "training.epochs=3")
    (other,) = trials(tmp_path, 1, "learning.beta=0.7")
    assert missing([longer, other]) == [longer, other]


def wait_for(condition, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def lines_of(trial: Trial) -> int:
    path = trial.folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.is_file() else 0


def workers() -> list[int]:
    """The processes of this one that train a trial."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"trials.worker" in path.joinpath("cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_trial_whose_process_is_killed_goes_on_and_one_that_is_stopped_saves(tmp_path):
    (trial,) = trials(tmp_path, 1, "training.epochs=400", "training.batch_size=700")
    found = []

    def train() -> None:
        found.extend(iterator)

    iterator: Iterator = Local(at_once=1).run([trial])
    thread = threading.Thread(target=train)
    thread.start()
    wait_for(lambda: lines_of(trial) >= 2)
    (first,) = workers()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: runs.open_run(trial.folder).record["starts"] == 2)
    wait_for(lambda: workers() not in ([], [first]))
    (second,) = workers()
    os.kill(second, signal.SIGTERM)
    thread.join(60)
    (outcome,) = found
    assert not outcome.finished and outcome.failure is None
    assert runs.open_run(trial.folder).record["status"] == "interrupted"


def test_seeds_are_trained_by_processes_and_finished_ones_left_alone(tmp_path):
    words = ["digits-1fc-w", "--epochs", "1", "--set", "network.dense=[8]", "--out", str(tmp_path)]
    elsewhere = ["--seeds", "2", "--on", "local", "--at-once", "1", "--json"]
    result = CliRunner().invoke(app, ["train", *words, *elsewhere])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [run["finished"] for run in found] == [True, True]
    again = CliRunner().invoke(app, ["train", *words, *elsewhere, "--continue"])
    assert again.exit_code == 0, again.output
    starts = [runs.open_run(run["run"]).record["starts"] for run in json.loads(again.stdout)]
    assert starts == [1, 1]


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr("binep.training.trials.local.cores", lambda: [0, 1, 2, 3, 4])
    three = slots(3, "cpu")
    assert [room["BINEP_CORES"] for room in three] == ["0,3", "1,4", "2"]
    assert [room["OMP_NUM_THREADS"] for room in three] == ["2", "2", "1"]
    assert len(slots(None, "cpu")) == 5
    assert slots(6, "cpu")[5]["BINEP_CORES"] == "0"


def test_places_and_numbers_that_are_not_allowed_are_named():
    with pytest.raises(BinepError, match="unknown place to run trials 'cloud'"):
        place("cloud")
    with pytest.raises(BinepError, match="at_once=0"):
        place("local", at_once=0)


@pytest.mark.slow
def test_submitit_runs_them_in_an_array(tmp_path):
    pytest.importorskip("submitit", reason="pip install 'binep[slurm]'")
    executor = place("slurm", folder=tmp_path, slurm={"cluster": "local"})
    found = list(executor.run(trials(tmp_path, 2, "training.epochs=1")))
    assert [outcome.finished for outcome in found] == [True, True]
    assert json.loads((found[0].trial.folder / "record.json").read_text())["status"] == "finished"
    assert list((tmp_path / ".slurm").glob("*_result.pkl"))


def test_a_missing_slurm_is_told_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="pip install 'binep[slurm]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinepError, match="--on slurm: "):
        list(place("slurm", folder=tmp_path).run(trials(tmp_path, 1)))


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_finishes_all_though_a_worker_is_killed(tmp_path):
    ray = pytest.importorskip("ray", reason="pip install 'binep[ray]'")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    found = []
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        six = trials(tmp_path, 6, "training.epochs=6", "training.batch_size=50")
        thread = threading.Thread(target=lambda: found.extend(place("ray").run(six)))
        thread.start()
        wait_for(lambda: any(lines_of(trial) >= 2 for trial in six), 240)
        os.kill(ray_worker(), signal.SIGKILL)
        thread.join(400)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert sorted(outcome.trial.seed for outcome in found) == list(range(6))
    assert [outcome.failure for outcome in found] == [None] * 6
    assert all(outcome.finished for outcome in found)
    assert sum(outcome.run.record["starts"] for outcome in found) >= 7


def ray_worker() -> int:
    """A process of Ray that runs a trial: the parent of one that trains."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"trials.worker" in path.joinpath("cmdline").read_bytes():
                parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                if b"ray::" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    return parent
        except OSError:
            continue
    raise AssertionError("no worker of Ray trains a trial")
