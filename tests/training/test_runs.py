"""Runs on disk: complete records, exact resume, damaged checkpoints, no half-written file."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binep import data, files
from binep.errors import BinepError
from binep.training import checkpoints, run_folder, runs
from binep.training import recipe as recipes
from binep.training.progress import Watcher
from binep.training.signals import listening
from binep.training.trainer import Trainer
from conftest import small_recipe

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("heard")


class StopAfter(Watcher):
    """Presses Ctrl-C after so many mini-batches, or sends another signal."""

    def __init__(self, batches: int, number: int = signal.SIGINT) -> None:
        self.left, self.number = batches, number

    def batch(self, trainer: Trainer) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


class Listener(Watcher):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def final_bits(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoints.load(folder, warn=pytest.fail)
    assert found is not None
    return found[0]


def without_times(lines):
    return [{k: v for k, v in line.items() if not k.endswith("seconds")} for line in lines]


def assert_same_end(one: runs.Run, other: runs.Run) -> None:
    a, b = final_bits(one.folder), final_bits(other.folder)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert without_times(one.metrics) == without_times(other.metrics)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> runs.Run:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("straight")
    return runs.train(small_recipe("digits-conv-wa"), seed=3, out=out)


def test_a_run_is_complete_on_disk(straight: runs.Run):
    assert straight.finished and straight.folder.name == "digits-conv-wa-seed3"
    assert straight.recipe == small_recipe("digits-conv-wa")
    assert [line["epoch"] for line in straight.metrics] == [1, 2]
    record = straight.record
    assert record["seed"] == 3 and record["status"] == "finished" and record["starts"] == 1
    assert record["engine"] == "packed" and record["precision"]
    assert record["torch"] == torch.__version__ and record["device"] == "cpu"
    assert record["seconds"] > 0
    assert not list(straight.folder.glob("*.part"))
    assert len(list(straight.folder.glob("checkpoint-*.json"))) == 2


def test_weights_are_stored_as_bits(straight: runs.Run):
    tensors = final_bits(straight.folder)
    net = straight.network("cpu")
    for n, coupling in enumerate(net.couplings):
        assert tensors[f"couplings.{n}.bits"].numel() == -(-coupling.signs.numel() // 8)
        assert set(coupling.signs.unique().tolist()) == {-1, 1}


def test_the_trained_network_can_be_measured_again(straight: runs.Run):
    tally = straight.evaluate("test", device="cpu")
    assert tally.samples == 360
    assert tally.error("average") == straight.metrics[-1]["test_error"]["average"]


@pytest.mark.parametrize("batches", [1, 5, 8, 9, 15])
def test_ctrl_c_and_resume_end_where_an_uninterrupted_run_does(batches, straight, tmp_path):
    recipe = small_recipe("digits-conv-wa")
    stopped = runs.train(recipe, seed=3, out=tmp_path, watcher=StopAfter(batches))
    assert not stopped.finished and stopped.record["status"] == "interrupted"
    resumed = runs.train(recipe, seed=3, out=tmp_path, resume=True)
    assert resumed.record["starts"] == 2
    assert_same_end(resumed, straight)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_who_asks_a_run_to_stop_is_told_by_its_exit_code(name, code, tmp_path):
    recipe = small_recipe("digits-1fc-w")
    handler = signal.getsignal(getattr(signal, name))
    run = runs.train(recipe, out=tmp_path, watcher=StopAfter(2, getattr(signal, name)))
    assert (run.finished, run.exit_code) == (False, code)
    assert (run.record["status"], run.record["signal"]) == ("interrupted", name)
    assert signal.getsignal(getattr(signal, name)) is handler
    found = checkpoints.load(run.folder, warn=pytest.fail)
    assert found is not None and found[1]["position"] == 400
    run = runs.train(recipe, out=tmp_path, resume=True)
    assert (run.exit_code, run.record["status"]) == (0, "finished") and "signal" not in run.record


def test_sigusr1_saves_and_the_run_goes_on_to_the_same_end(straight, tmp_path):
    saved: list[str] = []

    class Looker(StopAfter):
        def batch(self, trainer: Trainer) -> None:
            saved.extend(path.name for path in tmp_path.glob("*/checkpoint-*.json"))
            super().batch(trainer)

    run = runs.train(straight.recipe, seed=3, out=tmp_path, watcher=Looker(2, signal.SIGUSR1))
    assert "checkpoint-000000-00000400.json" in saved
    assert run.finished
    assert_same_end(run, straight)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        watcher = StopAfter(2, signal.SIGHUP)
        assert runs.train(small_recipe("digits-1fc-w"), out=tmp_path, watcher=watcher).finished
    finally:
        signal.signal(signal.SIGHUP, before)


def test_every_training_of_a_process_hears_of_a_signal(tmp_path):
    watchers = [StopAfter(3, signal.SIGTERM), Watcher()]
    recipe = small_recipe("digits-1fc-w", "training.epochs=1000")
    stopped = runs.train_side_by_side(recipe, [0, 1], out=tmp_path, watchers=watchers)
    assert [run.exit_code for run in stopped] == [143, 143]


def test_a_training_that_begins_after_a_signal_was_stopped_by_it_too():
    with listening() as first:
        first.hear(signal.SIGTERM)
        with listening(first.stop) as second, listening() as other:
            assert second.stop.is_set() and second.signal == signal.SIGTERM
            assert not other.stop.is_set() and other.signal is None


def test_checkpoints_within_an_epoch_change_nothing(straight, tmp_path):
    recipe = small_recipe("digits-conv-wa")
    often = runs.train(recipe, seed=3, out=tmp_path, checkpoint_seconds=0.0)
    assert_same_end(often, straight)


def test_a_finished_run_goes_on_for_more_epochs(straight, tmp_path):
    short = runs.train(small_recipe("digits-conv-wa", "training.epochs=1"), seed=3, out=tmp_path)
    assert short.finished
    longer = runs.train(small_recipe("digits-conv-wa"), seed=3, out=tmp_path, resume=True)
    assert_same_end(longer, straight)


def test_learnt_scales_real_weights_and_schedules_resume_too(tmp_path):
    for n, overrides in enumerate(
        (
            ["network.learn_scale=true", "optimizer.lr_scale=1e-4", "schedule.gamma.every=1",
             "schedule.gamma.factor=0.5"],
            ["network.weights=real", "optimizer.lr_weight=0.1"],
            ["learning.method=bptt"],
            ["data.flip=true", "data.crop=1", "learning.sign=centered"],
        )
    ):  # fmt: skip
        recipe = small_recipe("digits-1fc-w", *overrides)
        whole = runs.train(recipe, out=tmp_path / f"{n} whole")
        runs.train(recipe, out=tmp_path / f"{n}", watcher=StopAfter(11))
        resumed = runs.train(recipe, out=tmp_path / f"{n}", resume=True)
        assert_same_end(resumed, whole)


def copy_of(run: runs.Run, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for path in run.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_noticed(suffix, where, bit, straight, tmp_path_factory):
    folder = copy_of(straight, tmp_path_factory.mktemp("bits") / "run")
    newest, older = sorted(folder.glob(f"checkpoint-*{suffix}"), reverse=True)
    blob = bytearray(newest.read_bytes())
    blob[int(where * len(blob))] ^= 1 << bit
    newest.write_bytes(blob)
    warnings: list[str] = []
    found = checkpoints.load(folder, warnings.append)
    assert found is not None and found[1]["epoch"] == 1
    assert len(warnings) == 1
    assert newest.stem in warnings[0] and older.stem in warnings[0]


@pytest.mark.parametrize("damage", ["truncate", "empty", "remove"])
def test_the_checkpoint_before_a_damaged_one_leads_to_the_same_end(damage, straight, tmp_path):
    folder = copy_of(straight, tmp_path / straight.folder.name)
    newest = max(folder.glob("checkpoint-*.safetensors"))
    if damage == "remove":
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes()[:-1] if damage == "truncate" else b"")
    watcher = Listener()
    again = runs.train(
        small_recipe("digits-conv-wa"), seed=3, out=tmp_path, resume=True, watcher=watcher
    )
    assert newest.stem in watcher.said[0]
    assert_same_end(again, straight)


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(straight, tmp_path):
    folder = copy_of(straight, tmp_path / straight.folder.name)
    for path in folder.glob("checkpoint-*.safetensors"):
        path.write_bytes(b"not a checkpoint")
    with pytest.raises(BinepError, match=r"no checkpoint is whole.*000002.*000001"):
        runs.train(small_recipe("digits-conv-wa"), seed=3, out=tmp_path, resume=True)


def test_a_checkpoint_cut_off_while_being_written_does_not_exist(straight, tmp_path, monkeypatch):
    """At every single write of a checkpoint: the one before stays, nothing half-written is left."""
    recipe = small_recipe("digits-conv-wa")
    trainer = runs.build_trainer(recipe, data.load("digits"), 3, CPU)
    trainer.epoch()
    folder = tmp_path / "run"
    folder.mkdir()
    checkpoints.save(folder, trainer)
    trainer.epoch()
    for call in range(2):
        calls = iter(range(10))
        replace = Path.replace

        def power_cut(self, target, *, call=call, calls=calls, replace=replace):
            if next(calls) == call:
                raise KeyboardInterrupt
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", power_cut)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(folder, trainer)
        monkeypatch.undo()
        found = checkpoints.load(folder, warn=pytest.fail)
        assert found is not None and found[1]["epoch"] == 1
        assert not list(folder.glob(f"*{files.TEMPORARY}"))


def test_lines_of_epochs_that_no_checkpoint_has_seen_are_dropped(straight, tmp_path):
    folder = copy_of(straight, tmp_path / straight.folder.name)
    for path in folder.glob("checkpoint-000002*"):
        path.unlink()
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 3, "cut off')
    again = runs.train(small_recipe("digits-conv-wa"), seed=3, out=tmp_path, resume=True)
    assert_same_end(again, straight)


def test_existing_runs_are_not_overwritten(straight):
    with pytest.raises(BinepError, match="already holds a run.*--resume"):
        runs.train(small_recipe("digits-conv-wa"), seed=3, out=straight.folder.parent)


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    folder = tmp_path / "digits-conv-wa-seed3"
    folder.mkdir()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import pathlib, time; from binep.files import claimed\n"
            f"with claimed(pathlib.Path({str(folder)!r})):\n print('mine', flush=True)\n"
            f" time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mine\n"
        with pytest.raises(BinepError, match="seed3 is in use by another process$"):
            runs.train(small_recipe("digits-conv-wa"), seed=3, out=tmp_path)
        assert not list(folder.iterdir())
    finally:
        holder.kill()
        holder.communicate()
    # Its claim ended with it.
    assert runs.train(small_recipe("digits-conv-wa"), seed=3, out=tmp_path).finished


def test_a_run_cannot_go_on_with_another_recipe(straight):
    other = small_recipe("digits-conv-wa", "learning.beta=0.5", "training.epochs=9")
    with pytest.raises(BinepError, match=r"another recipe: learning\.beta was 2\.0, now 0\.5$"):
        runs.train(other, seed=3, out=straight.folder.parent, resume=True)


LATE = ["schedule.tau.after=1", "schedule.tau.over=1", "schedule.tau.final=4.0"]


def test_a_branch_ends_where_a_run_of_its_recipe_does(tmp_path):
    """It takes over an epoch of a recipe whose rates were the same, then goes its own way."""
    recipe = replace(small_recipe("digits-conv-wa", *LATE, "training.epochs=3"), name="late")
    whole = runs.train(recipe, seed=3, out=tmp_path / "whole")
    trunk = runs.train(
        small_recipe("digits-conv-wa", "training.epochs=1"), seed=3, out=tmp_path / "trunk"
    )
    before = {path.name: path.read_bytes() for path in trunk.folder.iterdir()}
    options = {"seed": 3, "out": tmp_path / "branch", "branch": trunk.folder}
    stopped = runs.train(recipe, **options, watcher=StopAfter(3))
    # Once there, it goes on by itself.
    resumed = runs.train(recipe, **options, resume=True)
    assert_same_end(resumed, whole)
    origin = {"recipe": "digits-conv-wa", "epochs": 1}
    assert stopped.record["branched_from"] == resumed.record["branched_from"] == origin
    assert resumed.record["recipe"] == "late" and resumed.recipe == recipe
    assert {path.name: path.read_bytes() for path in trunk.folder.iterdir()} == before


@pytest.mark.parametrize(
    ("changed", "seed", "reason"),
    [
        (["learning.beta=0.5"], 3, r"another recipe: learning\.beta was 2\.0, now 0\.5$"),
        # The second epoch of the trunk would have had another tau.
        (
            LATE,
            3,
            r"another recipe: schedule\.tau\.after was 0, now 1; .*final was 1\.0, now 4\.0$",
        ),
        (["training.epochs=1"], 3, "2 epochs already: allowed are at least as many, not 1"),
        ([], 4, "its seed is 3, not 4"),
    ],
)
def test_a_branch_must_have_been_the_same_so_far(changed, seed, reason, straight, tmp_path):
    recipe = replace(small_recipe("digits-conv-wa", *changed), name="other")
    with pytest.raises(BinepError, match=reason):
        runs.train(recipe, seed=seed, out=tmp_path, branch=straight.folder)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_being_trained_or_has_no_checkpoint_has_no_branches(straight, tmp_path):
    recipe = replace(small_recipe("digits-conv-wa", "training.epochs=3"), name="other")
    options = {"seed": 3, "out": tmp_path / "out", "branch": straight.folder}
    with files.claimed(straight.folder), pytest.raises(BinepError, match="is in use by another"):
        runs.train(recipe, **options)
    bare = tmp_path / "bare"
    shutil.copytree(straight.folder, bare, ignore=shutil.ignore_patterns("checkpoint-*"))
    with pytest.raises(BinepError, match="bare has no checkpoint yet"):
        runs.train(recipe, **(options | {"branch": bare}))
    # Nothing that is there stands in the way of another try.
    assert runs.train(recipe, **options).finished


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
    ],
)
def test_what_the_disk_refuses_is_told_in_one_line(number, reason, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    path = tmp_path / "file"
    path.write_text("before")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(BinepError, match=f"cannot write {path}: .*{reason}"):
        files.write_whole(path, "after")
    with pytest.raises(BinepError, match=reason):
        files.append_line(path, "more")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_that_are_not_runs_are_refused(tmp_path):
    with pytest.raises(BinepError, match="is not a run"):
        runs.open_run(tmp_path)
    with pytest.raises(BinepError, match="is not a run"):
        runs.open_run(tmp_path / "nowhere")


def test_a_folder_of_runs_needs_a_choice(straight, tmp_path):
    for name in ("a", "b"):
        copy_of(straight, tmp_path / name)
    assert [path.name for path in run_folder.find_runs(tmp_path)] == ["a", "b"]
    with pytest.raises(BinepError, match="holds 2 runs, name one of them: a, b"):
        runs.open_run(tmp_path)
    assert runs.open_run(straight.folder.parent).folder == straight.folder


def test_damaged_records_are_named(straight, tmp_path):
    folder = copy_of(straight, tmp_path / "run")
    for text, reason in (("{", "not readable"), ("[]", "allowed is what binep train writes")):
        (folder / "record.json").write_text(text)
        with pytest.raises(BinepError, match=rf"record\.json: {reason}"):
            runs.open_run(folder)


def test_a_lost_line_of_metrics_is_told_and_not_trained_past(straight, tmp_path):
    folder = copy_of(straight, tmp_path / straight.folder.name)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:1]) + lines[1][:50])
    longer = small_recipe("digits-conv-wa", "training.epochs=3")
    with pytest.raises(BinepError, match="holds 1 epochs, the checkpoint is after 2"):
        runs.train(longer, seed=3, out=tmp_path, resume=True)


def test_a_record_keeps_where_each_epoch_was_trained(straight, tmp_path):
    folder = copy_of(straight, tmp_path / straight.folder.name)
    elsewhere = {**straight.record, "torch": "1.0", "device_name": "another"}
    text = json.dumps(elsewhere)
    (folder / "record.json").write_text(text)
    runs.train(small_recipe("digits-conv-wa"), seed=3, out=tmp_path, resume=True)
    assert (folder / "record.json").read_text() == text  # no epoch was left

    longer = small_recipe("digits-conv-wa", "training.epochs=3")
    record = runs.train(longer, seed=3, out=tmp_path, resume=True).record
    assert record["torch"] == torch.__version__ and record["starts"] == 2
    (before,) = record["before"]
    assert before["epochs"] == 2 and before["torch"] == "1.0"
    assert before["device_name"] == "another" and before["engine"] == "packed"
    assert "before" not in straight.record


@pytest.mark.parametrize(
    ("name", "engine", "overrides", "torch_threads"),
    [
        ("digits-1fc-w", "delta", ["network.dense=[24]"], 1),  # so small that one thread is better
        ("digits-1fc-w", "delta", ["network.dense=[600]"], 2),
        ("digits-1fc-w", "reference", ["network.dense=[600]"], 2),
        ("digits-1fc-wa", "packed", [], 1),  # all threads are the kernels'
    ],
)
def test_a_record_says_how_many_threads_were_used(
    name, engine, overrides, torch_threads, on_threads, tmp_path, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    on_threads(2)
    short = ["training.epochs=1", "training.batch_size=200", "learning.free_steps=1"]
    recipe = recipes.load(name, [*short, *overrides])
    record = runs.train(recipe, out=tmp_path, engine=engine, device="cpu").record
    assert record["threads"] == torch_threads
    kernels = {"delta": torch_threads, "packed": 2, "reference": None}
    assert record.get("kernel_threads") == kernels[engine]


def test_damaged_metrics_are_named(straight, tmp_path):
    folder = copy_of(straight, tmp_path / "run")
    whole = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(b"\xff\xfe\n" + whole)
    with pytest.raises(BinepError, match=r"metrics\.jsonl: line 1 is damaged"):
        runs.open_run(folder)
    (folder / "metrics.jsonl").write_bytes(whole + b"\xff\xfe")
    assert runs.open_run(folder).metrics == straight.metrics


def test_a_run_cannot_go_on_to_fewer_epochs(straight, tmp_path):
    folder = copy_of(straight, tmp_path / straight.folder.name)
    shorter = replace(straight.recipe, training=replace(straight.recipe.training, epochs=1))
    with pytest.raises(BinepError, match="trained for 2 epochs already"):
        runs.train(shorter, seed=3, out=tmp_path, resume=True)
    assert runs.open_run(folder).recipe == straight.recipe


def test_training_works_outside_the_main_thread(tmp_path):
    found = []
    recipe = small_recipe("digits-1fc-w", "training.epochs=1")
    thread = threading.Thread(target=lambda: found.append(runs.train(recipe, out=tmp_path)))
    thread.start()
    thread.join()
    assert found[0].finished


def test_every_checkpoint_says_where_it_stands(straight):
    names = sorted(path.name for path in straight.folder.glob("checkpoint-*.json"))
    assert names == ["checkpoint-000001-00000000.json", "checkpoint-000002-00000000.json"]
    facts = json.loads((straight.folder / names[1]).read_text())
    assert facts["epoch"] == 2 and facts["position"] == 0


def test_recipe_on_disk_is_complete(straight):
    text = (straight.folder / "recipe.toml").read_text()
    assert "initial_state = 1.0" in text and "momentum_noise" in text
    assert recipes.load(straight.folder / "recipe.toml") == straight.recipe


def test_seeds_side_by_side_are_the_same_as_one_after_the_other(tmp_path):
    recipe = small_recipe("digits-1fc-w")
    options = {"device": "cpu", "engine": "reference"}
    together = runs.train_side_by_side(
        recipe, [0, 1], watchers=[Watcher(), Watcher()], out=tmp_path / "a", **options
    )
    for seed, run in enumerate(together):
        alone = runs.train(recipe, seed=seed, out=tmp_path / "b", **options)
        assert run.finished and run.record["seed"] == seed
        for ours, theirs in zip(run.metrics, alone.metrics, strict=True):
            timeless = {"seconds": 0, "test_seconds": 0}
            assert ours | timeless == theirs | timeless


def test_a_job_that_fails_ends_those_beside_it_and_those_to_come():
    begun = []

    def fail(stop: threading.Event) -> None:
        begun.append("fails")
        raise BinepError("out of paper")

    def wait(stop: threading.Event) -> None:
        begun.append("waits")
        assert stop.wait(60)

    with pytest.raises(BinepError, match="out of paper"):
        list(runs.side_by_side([wait, fail, wait, wait], at_once=2))
    assert begun.count("fails") == 1 and begun.count("waits") <= 2


def test_a_failure_in_one_of_several_seeds_stops_the_others(tmp_path):
    class Failing(Watcher):
        def epoch(self, line):
            raise BinepError("out of paper")

    endless = small_recipe("digits-1fc-w", "training.epochs=10000")
    with pytest.raises(BinepError, match="out of paper"):
        runs.train_side_by_side(
            endless,
            [0, 1],
            watchers=[Watcher(), Failing()],
            out=tmp_path,
            device="cpu",
            engine="reference",
        )
    assert runs.open_run(tmp_path / f"{endless.name}-seed0").record["status"] == "interrupted"


def test_a_table_far_from_zero_is_told_when_its_training_begins(tmp_path: Path):
    rows = "\n".join(f"{300 + n % 7},{n % 5},{'ab'[n % 2]}" for n in range(40))
    (tmp_path / "table.csv").write_text(f"one,two,label\n{rows}\n")
    keys = [f'data.path="{tmp_path / "table.csv"}"', "network.dense=[4]", "training.epochs=1"]
    for normalise in (False, True):
        listener = Listener()
        recipe = recipes.load("digits-1fc-w", [*keys, f"data.normalise={str(normalise).lower()}"])
        runs.train(recipe, out=tmp_path / str(normalise), device="cpu", watcher=listener)
        assert any("add --set data.normalise=true" in text for text in listener.said) != normalise
