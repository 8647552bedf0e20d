"""Altered or swapped files of a run are refused by all who read it; runs of 0.1 are not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from binep.errors import BinepError
from binep.training import runs, seals
from binep.training.progress import Watcher
from binep.training.trainer import Trainer
from conftest import small_recipe


class KilledError(Exception):
    """The process is gone."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    return runs.train(small_recipe("digits-1fc-w"), out=out).folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / trained.name))


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("recipe.toml", "beta = ", "beta = 1"),
        ("recipe.toml", "# SHA-256", "# SHA-257"),
        ("recipe.toml", "epochs = 2", "epochs = 1"),
        ("record.json", '"seed": 0', '"seed": 1'),
        ("record.json", '"device_name": "', '"device_name": "A better '),
        ("metrics.jsonl", '"epoch": 1', '"epoch": 2'),
        ("metrics.jsonl", '"average": ', '"average": 1'),
        ("metrics.jsonl", '"seal"', '"wax"'),
    ],
)
def test_one_edit_is_refused_by_all_who_read_a_run(name: str, old: str, new: str, folder: Path):
    edited(folder / name, old, new)
    with pytest.raises(BinepError, match=f"{name}:.* its seal is broken"):
        runs.open_run(folder)
    longer = small_recipe("digits-1fc-w", "training.epochs=3")
    with pytest.raises(BinepError, match="its seal is broken"):
        runs.train(longer, out=folder.parent, resume=True)


def test_a_line_taken_out_of_the_metrics_is_noticed(folder: Path):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[1])
    with pytest.raises(BinepError, match=r"metrics\.jsonl: line 1: its seal is broken"):
        runs.open_run(folder)


def test_lines_missing_at_the_end_of_the_metrics_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert not runs.open_run(folder).finished
    assert "has lost lines: 1 of 2 epochs" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["recipe.toml", "metrics.jsonl"])
def test_a_file_without_its_seal_is_refused_where_the_record_has_one(name: str, folder: Path):
    path = folder / name
    if name == "recipe.toml":
        path.write_text(path.read_text().partition("# SHA-256")[0])
    else:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**x, "seal": None}) + "\n" for x in lines))
    with pytest.raises(BinepError, match=f"{name}:.* its seal is broken"):
        runs.open_run(folder)


def test_a_record_without_its_seal_is_told(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = folder / "record.json"
    record = json.loads(path.read_text())
    del record["seal"]
    path.write_text(json.dumps({**record, "device_name": "another"}))
    runs.open_run(folder)
    assert "has no seal, what lies beside it has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "seed", "told"),
    [
        ([], 1, "seed was 1, is 0"),
        (["learning.beta=0.25"], 0, r"learning\.beta was 0\.25, now 0\.3"),
        (["data.validation=10"], 0, r"data\.validation was 10, now 0"),
    ],
)
def test_the_checkpoints_of_another_run_are_refused(
    overrides: list[str], seed: int, told: str, folder: Path, tmp_path: Path
):
    """Their shapes are the same, and their seals hold."""
    recipe = small_recipe("digits-1fc-w", *overrides)
    other = runs.train(recipe, seed=seed, out=tmp_path / "other")
    for path in folder.glob("checkpoint-*"):
        shutil.copy(other.folder / path.name, path)
    with pytest.raises(BinepError, match=f"is of another run: .*{told}"):
        runs.open_run(folder)
    longer = small_recipe("digits-1fc-w", "training.epochs=3")
    with pytest.raises(BinepError, match="is of another run"):
        runs.train(longer, out=folder.parent, resume=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"run": {}}, "allowed is one that says its data, metrics, recipe, seed"),
        ({"run": 5}, "allowed is one that says its data, metrics, recipe, seed"),
        ({"run": {"recipe": None}}, "allowed is one that says its"),
        ({"run": {"recipe": ["x"]}}, "allowed is one that says its"),
        ({"run": {"recipe": {"name": 5}}}, "is of another run: name=5"),
        ({"epoch": 10**30}, "after 1000000000000000000000000000000 epochs: allowed are 0 to 2"),
        ({"epoch": "many"}, "after many epochs: allowed are 0 to 2"),
        ({"epoch": -1}, "after -1 epochs: allowed are 0 to 2"),
    ],
)
def test_a_checkpoint_that_says_odd_things_of_its_run_is_refused_in_one_line(
    change: dict[str, Any], told: str, folder: Path
):
    """Under a good seal."""
    path = max(folder.glob("checkpoint-*.json"))
    facts, _ = seals.unsealed(json.loads(path.read_text()))
    if isinstance(change.get("run"), dict) and change["run"]:
        change = {"run": {**facts["run"], **change["run"]}}
    path.write_text(seals.sealed({**facts, **change}))
    with pytest.raises(BinepError, match=told) as told_of:
        runs.open_run(folder)
    assert "\n" not in str(told_of.value)


def test_an_older_checkpoint_of_another_run_is_refused_too(folder: Path, tmp_path: Path):
    other = runs.train(small_recipe("digits-1fc-w"), seed=1, out=tmp_path / "other")
    run = runs.open_run(folder)
    for name in ("json", "safetensors"):
        shutil.copy(other.folder / f"checkpoint-000001-00000000.{name}", folder)
        (folder / f"checkpoint-000002-00000000.{name}").unlink()
    with pytest.raises(BinepError, match="is of another run: seed was 1, is 0"):
        run.network("cpu")


def test_the_metrics_of_another_run_are_refused(folder: Path, tmp_path: Path):
    other = runs.train(small_recipe("digits-1fc-w"), seed=1, out=tmp_path / "other")
    shutil.copy(other.folder / "metrics.jsonl", folder)
    with pytest.raises(BinepError, match="not the metrics of this run's checkpoint"):
        runs.open_run(folder)


def test_own_data_that_have_changed_since_a_checkpoint_are_refused(tmp_path: Path):
    table = tmp_path / "own.csv"
    rows = [f"{n % 7},{n % 5},{n % 3},{'ab'[n % 2]}" for n in range(40)]
    table.write_text("\n".join(rows))
    recipe = small_recipe("digits-1fc-w", f'data.path="{table}"', "training.batch_size=8")
    run = runs.train(recipe, out=tmp_path)
    facts = json.loads((run.folder / "checkpoint-000002-00000000.json").read_text())
    assert facts["run"]["data"] == run.record["data_fingerprint"]
    record = {**run.record, "data_fingerprint": "0" * 64}
    (run.folder / "record.json").write_text(seals.sealed(record))
    with pytest.raises(BinepError, match="is of another run: data_fingerprint was"):
        runs.open_run(run.folder)


def test_a_run_of_version_0_1_is_read_and_goes_on(folder: Path, trained: Path, capsys):
    """It has no seals, and its checkpoints do not say which run they are of."""
    before = runs.open_run(trained)
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text().partition("# SHA-256")[0])
    (folder / "record.json").write_text(json.dumps(before.record))
    text = "".join(json.dumps(line) + "\n" for line in before.metrics)
    (folder / "metrics.jsonl").write_text(text)
    for path in folder.glob("checkpoint-*.json"):
        facts = json.loads(path.read_text())
        del facts["run"], facts["seal"]
        path.write_text(seals.sealed(facts))
    again = runs.open_run(folder)
    assert (again.recipe, again.record, again.metrics) == (
        before.recipe,
        before.record,
        before.metrics,
    )
    again.network("cpu")
    longer = small_recipe("digits-1fc-w", "training.epochs=3")
    assert runs.train(longer, out=folder.parent, resume=True).finished
    assert '"seal"' in (folder / "record.json").read_text()
    assert capsys.readouterr().err == ""


def test_a_damaged_newest_checkpoint_does_not_outlive_the_epochs_trained_again(folder: Path):
    """Its numbers are bound to metrics that are not there any more."""
    newest = max(folder.glob("checkpoint-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])

    class Killed(Watcher):
        def batch(self, trainer: Trainer) -> None:
            raise KilledError

    recipe = small_recipe("digits-1fc-w")
    with pytest.raises(KilledError):
        runs.train(recipe, out=folder.parent, resume=True, watcher=Killed())
    assert len(runs.open_run(folder).metrics) == 1
    assert not newest.exists()
    assert runs.train(recipe, out=folder.parent, resume=True).finished


def test_tensors_of_a_checkpoint_that_was_cut_off_are_removed(folder: Path):
    orphan = folder / "checkpoint-000001-00000300.safetensors"
    orphan.write_bytes(b"of a process that was killed before it wrote the JSON")
    longer = small_recipe("digits-1fc-w", "training.epochs=3")
    runs.train(longer, out=folder.parent, resume=True)
    assert not orphan.exists()
    assert len(list(folder.glob("checkpoint-*"))) == 4


def test_what_the_last_kill_of_a_run_left_behind_is_removed_though_nothing_is_left_to_train(
    folder: Path,
):
    orphan = folder / "checkpoint-000001-00000300.safetensors"
    orphan.write_bytes(b"of a checkpoint that was being removed")
    runs.train(small_recipe("digits-1fc-w"), out=folder.parent, resume=True)
    assert not orphan.exists() and len(list(folder.glob("checkpoint-*"))) == 4
