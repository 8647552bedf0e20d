"""Results: what is written is read back, and nothing passes for what it is not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from binep.errors import BinepError
from binep.report import settings
from binep.studies.evidence import (
    Results,
    open_results,
    reached,
    read_result,
    variant_name,
    write_result,
)
from binep.studies.reproduce import Cell
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.runs import Run
from conftest import small_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return runs.train(small_recipe("digits-1fc-w"), seed=3, out=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def path(run: Run, tmp_path: Path) -> Path:
    return write_result(run, tmp_path)


def test_a_run_is_read_back_with_its_evidence(run: Run, path: Path):
    found = read_result(path)
    assert found.recipe == run.recipe and found.record == run.record and found.finished
    for line, original in zip(found.metrics, run.metrics, strict=True):
        assert line.keys() == original.keys()
        assert line["flips"] == original["flips"]
        for split in ("train_error", "test_error"):
            assert line[split] == pytest.approx(original[split], rel=1e-4)


def test_a_file_has_one_line_an_epoch_and_short_numbers(run: Run, path: Path):
    text = path.read_text()
    assert sum(line.startswith('{"epoch"') for line in text.splitlines()) == 2
    lines = json.loads(text)["metrics"]
    numbers = [value for line in lines for value in line.values() if isinstance(value, float)]
    assert numbers and all(value == float(f"{value:.5g}") for value in numbers)


def test_an_unfinished_run_says_so(run: Run, tmp_path: Path):
    record = {**run.record, "status": "interrupted"}
    found = read_result(write_result(replace(run, record=record, metrics=[]), tmp_path))
    assert not found.finished and found.record["status"] == "interrupted" and not found.metrics


def test_variants_have_folders_of_their_own(run: Run, path: Path, tmp_path: Path):
    assert path.parent.name.startswith("digits-1fc-w+network.dense=24+learning.free_steps=8")
    assert path.name == "seed3.json"
    shipped = recipes.load("digits-1fc-w")
    assert write_result(replace(run, recipe=shipped), tmp_path).parent.name == "digits-1fc-w"
    shorter = recipes.load("digits-1fc-w", ["training.epochs=2"])
    assert write_result(replace(run, recipe=shorter), tmp_path).parent.name == "digits-1fc-w"
    validated = recipes.load("digits-1fc-w", ["data.validation=200"])
    name = write_result(replace(run, recipe=validated), tmp_path).parent.name
    assert name == "digits-1fc-w+data.validation=200"
    assert Results(tmp_path).names == sorted({"digits-1fc-w", name, path.parent.name})
    mine = replace(shipped, name="mine")
    assert variant_name(mine) == "mine" and settings(mine) == settings(shipped)


def test_a_shorter_run_replaces_nothing(run: Run, path: Path, tmp_path: Path):
    before = path.read_text()
    with pytest.raises(BinepError, match="holds 2 epochs, .* only 1: remove it"):
        write_result(replace(run, metrics=run.metrics[:1]), tmp_path)
    assert path.read_text() == before and write_result(run, tmp_path) == path


def test_a_rehearsal_belongs_to_its_recipe(run: Run, tmp_path: Path):
    """What reproduce trains with --epochs has them in its name, in a folder of its own."""
    rehearsal = Cell("", "", "mnist-1fc-w", ("network.scale=0.02",)).resolve(2)
    assert rehearsal.name == "mnist-1fc-w+network.scale=0.02+training.epochs=2"
    path = write_result(replace(run, recipe=rehearsal), tmp_path)
    assert path.parent.name == "mnist-1fc-w+network.scale=0.02"
    assert read_result(path).recipe == rehearsal


def test_runs_come_by_seed_and_other_files_are_left_alone(run: Run, tmp_path: Path):
    for seed in (10, 9):
        path = write_result(replace(run, record={**run.record, "seed": seed}), tmp_path)
    (path.parent / "seed1.json.part").write_text("cut off")
    (tmp_path / "figures").mkdir()
    (tmp_path / "notes.json").write_text("{}")
    (name,) = Results(tmp_path).names
    assert [r.record["seed"] for r in Results(tmp_path).runs_of(name)] == [9, 10]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.pop("format"), 'format=null: allowed is "binep results 1"'),
        (lambda table: table.pop("recipe"), "recipe is missing or damaged: allowed is an object"),
        (lambda table: table.update(metrics={}), "metrics is missing or damaged.*a list"),
        (lambda table: table["metrics"].append({"epoch": 3}), "line 3 is not one that binep"),
        (lambda table: table["recipe"]["learning"].update(beta=0), "learning.beta=0"),
        (lambda table: table["recipe"]["learning"].update(beta=0.7), "moved or changed"),
        (lambda table: table["record"].update(seed=4), "it is digits.*/seed4.json: it was moved"),
    ],
)
def test_damaged_files_are_refused_in_one_line(change, message: str, path: Path):
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(BinepError, match=message) as caught:
        read_result(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_what_is_not_json_and_what_is_not_there_is_refused(path: Path, tmp_path: Path):
    path.write_text(path.read_text()[:-20])
    with pytest.raises(BinepError, match="not readable as JSON"):
        read_result(path)
    with pytest.raises(BinepError, match="is not a folder"):
        open_results(tmp_path / "nowhere")


def test_a_variant_moved_into_the_recipes_folder_is_found_out(path: Path, tmp_path: Path):
    folder = tmp_path / "digits-1fc-w"
    folder.mkdir()
    shutil.copy(path, folder)
    with pytest.raises(BinepError, match="moved or changed"):
        Results(tmp_path).runs_of("digits-1fc-w")


def test_a_run_without_a_seed_is_refused(run: Run, tmp_path: Path):
    with pytest.raises(BinepError, match="seed=None: allowed is an integer"):
        write_result(replace(run, record={}), tmp_path)


def test_what_was_reached_is_told_of_recipes_that_ship_and_of_no_others():
    found = {name: reached(name) for name in recipes.names()}
    told = [each for each in found.values() if each is not None]
    assert told and reached("nothing of that name") is None
    for each in told:
        assert each.n >= 1 and each.epochs >= 1 and each.seconds > 0 and each.device
        assert each.best <= each.test + 1e-3 and (each.test_sd is None) == (each.n == 1)
