"""Studies: runs that do not collide, tables of what is on disk, what is missing trained."""

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from binep.errors import BinepError
from binep.report.figures import DASH
from binep.studies.paper import STUDIES, Cell, Study
from binep.studies.reproduce import figure, gather, plan, render, reproduce
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.progress import Watcher
from binep.training.sections import PaperKeys

TINY = (
    "network.dense=[16]",
    "learning.free_steps=6",
    "learning.nudged_steps=2",
    "training.epochs=2",
    "training.batch_size=300",
)
REPORTED = PaperKeys(test=2.14, test_sd=0.06, train=0.92)
STUDY = Study(
    "tiny",
    "A tiny study",
    (
        Cell("digits", "after 1", "digits-1fc-w", TINY, epoch=1, reported=REPORTED),
        Cell("digits", "at the end", "digits-1fc-w", TINY),
        Cell("digits", "beta 1", "digits-1fc-w", (*TINY, "learning.beta=1.0")),
    ),
    note="A note.",
)


class Counting(Watcher):
    """Remembers which runs were trained."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def begin(self, name, trainer, epochs) -> None:
        self.names.append(name)


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Two seeds of the study's first recipe, none of the other."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        runs.train(STUDY.cells[0].resolve(), seed=seed, out=folder)
    return folder


def errors(out: Path, epoch: int, split: str = "test") -> list[float]:
    folders = sorted(out.glob("*seed?"))
    lines = [(f / "metrics.jsonl").read_text().splitlines()[epoch - 1] for f in folders]
    return [json.loads(line)[f"{split}_error"]["average"] for line in lines]


def cells(text: str) -> list[list[str]]:
    """The table's rows, cut where two spaces stand."""
    return [line.split("  ") for line in text.splitlines()]


# --- the paper's studies ------------------------------------------------------------------------


def test_every_study_resolves_and_no_two_recipes_share_a_name():
    by_name = {}
    for study in STUDIES.values():
        assert STUDIES[study.name] is study and study.cells
        for cell in study.cells:
            for epochs in (None, 3):
                recipe = cell.resolve(epochs)
                assert by_name.setdefault(recipe.name, recipe) == recipe
                assert not set(recipe.name) & set("/\\[]\" '")


def test_a_rehearsal_has_a_folder_of_its_own():
    cell = Cell("", "", "mnist-1fc-w", ("network.scale=0.02",))
    assert cell.resolve().name == "mnist-1fc-w+network.scale=0.02"
    assert cell.resolve(3).name == "mnist-1fc-w+network.scale=0.02+training.epochs=3"
    assert cell.resolve(50).name == cell.resolve().name
    assert Cell("", "", "mnist-1fc-w", ("network.dense=[4096]",)).resolve() == recipes.load(
        "mnist-1fc-w"
    )


def test_a_changed_recipe_does_not_carry_the_papers_number():
    assert Cell("", "", "mnist-1fc-w").paper.test == 2.07
    assert Cell("", "", "mnist-1fc-w", ("network.scale=0.02",)).paper == PaperKeys()
    assert Cell("", "", "mnist-1fc-w", epoch=25).paper == PaperKeys()
    assert Cell("", "", "mnist-1fc-w", epoch=25, reported=REPORTED).paper is REPORTED


@pytest.mark.parametrize(
    ("study", "numbers"),
    [
        (
            "table1",
            "2.07 0.02 0.77 1.7 0.04 0 2.00 2.14 0.06 2.48 0.08 0.29 2.28 0.13 0 1.95 2.38 0.07 "
            "0.85 0.11 0.46 0.88 0.06 0.05 1.05 0.97 0.03 16.8 0.3 6.9 15.66 0.28 5.54 13.78 14.45 "
            "0.12",
        ),
        ("table2", "2.83 0.06 0.2 3.03 0.03 0.84 1.14 0.08 0.67"),
        (
            "table-mnist-fc",
            "2.14 0.92 2.07 0.02 0.77 1.66 0.03 1.7 0.04 0 2.45 1.24 2.2 0.7 2.47 0.4 2.48 0.08 "
            "0.29 2.27 0.02 2.28 0.13 0",
        ),
        ("table-mnist-conv", "0.92 0.63 0.85 0.11 0.46 0.79 0.16 0.88 0.06 0.05"),
        ("table-cifar10", "18.4 13.4 16.8 0.3 6.9 17.6 11.86 15.66 0.28 5.54"),
        ("table-mnist-wa", "2.83 0.06 0.2 2.8 0.1"),
    ],
)
def test_the_papers_tables_are_typed_in_right(study: str, numbers: str):
    """Row by row as printed, where Table 1 and the appendix differ as in Table 1."""
    papers = [cell.paper for cell in STUDIES[study].cells]
    found = [n for p in papers for n in (p.test, p.test_sd, p.train) if n is not None]
    assert found == [float(n) for n in numbers.split()]


def test_early_epochs_are_read_from_the_runs_of_table_1():
    early = STUDIES["table-cifar10"].cells[0]
    assert early.last_epoch() == 100 and early.resolve() == recipes.load("cifar10-conv-w")
    assert early.last_epoch(epochs=7) == 7
    names = {recipe.name for recipe, _ in plan(STUDIES["table-cifar10"], 1)}
    assert names <= {recipe.name for recipe, _ in plan(STUDIES["table1"], 1)}


def test_plan_trains_each_run_once_and_all_recipes_of_a_seed_first():
    order = [(recipe.name, seed) for recipe, seed in plan(STUDY, 2)]
    assert len(order) == len(set(order)) == 4
    assert [seed for _, seed in order] == [0, 0, 1, 1]
    with pytest.raises(BinepError, match="seeds=0"):
        plan(STUDY, 0)


def test_unknown_studies_are_named():
    with pytest.raises(BinepError, match="did you mean 'table1'"):
        render("tabel1")


# --- ours beside the paper's --------------------------------------------------------------------


def test_table_shows_mean_deviation_and_n_of_the_epoch(out: Path):
    text = render(STUDY, out)
    assert text.startswith("A tiny study\n") and "A note." in text
    early, last, missing = cells(text)[4:7]
    for row, epoch in ((early, 1), (last, 2)):
        for split in ("test", "train"):
            values = errors(out, epoch, split)
            assert f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" in [
                cell.strip() for cell in row
            ]
    shown = [[cell.strip() for cell in row if cell.strip()] for row in (early, last, missing)]
    assert "2.14 ± 0.06" in shown[0] and shown[0][-4:-2] == ["2", "1"]
    assert shown[0][-2].startswith("worse, p")
    assert shown[1][1:3] == [DASH, DASH] and shown[1][-3:-1] == ["2", "2"]
    # No run, no number.
    assert shown[2] == ["beta 1", *[DASH] * 5, "2", "not run", DASH]


def test_one_seed_has_no_deviation(out: Path, tmp_path: Path):
    only = next(iter(sorted(out.glob("*seed0"))))
    shutil.copytree(only, tmp_path / only.name)
    row = cells(render(STUDY, tmp_path))[5]
    assert f"{errors(tmp_path, 2)[0]:.2f}" in [cell.strip() for cell in row]


@pytest.fixture
def cut(out: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The runs again, the first with one of its two epochs only."""
    for folder in out.iterdir():
        shutil.copytree(folder, tmp_path / folder.name)
    first, second = sorted(tmp_path.iterdir())
    line = (first / "metrics.jsonl").read_text().splitlines()[0]
    (first / "metrics.jsonl").write_text(line + "\n")
    return first, second


def test_runs_shorter_than_others_are_named_and_not_counted(cut: tuple[Path, Path]):
    text = render(STUDY, cut[0].parent)
    assert f"{cut[0].name}: 1 of 2 epochs, not counted." in text
    early, last, _ = ([c.strip() for c in row if c.strip()] for row in cells(text)[4:7])
    assert early[-4:-2] == ["2", "1"] and last[-3:-1] == ["1", "2"]


@pytest.mark.parametrize(
    ("lengths", "epoch", "counted"),
    [
        ([], 10, 0),
        ([0, 0], 10, 0),
        ([10, 9], 10, 1),
        ([12, 10, 4], 10, 2),
        # None has come to the end: read together, but for those that have only begun.
        ([8, 6, 4, 3, 0], 4, 3),
        ([7, 3], 7, 1),
    ],
)
def test_unfinished_runs_are_read_together(lengths: list[int], epoch: int, counted: int):
    recipe = recipes.load("digits-1fc-w")
    found = gather([runs.Run(Path(), recipe, {}, [{}] * n) for n in lengths], 10)
    assert (found.epoch, len(found.counted)) == (epoch, counted)
    assert len(found.runs) == len(lengths)


def test_foreign_runs_are_named_and_not_counted(cut: tuple[Path, Path]):
    recipe = recipes.load(cut[1] / "recipe.toml")
    other = replace(recipe, learning=replace(recipe.learning, beta=0.7))
    shutil.rmtree(cut[1])
    assert runs.train(other, seed=1, out=cut[1].parent).folder == cut[1]
    text = render(STUDY, cut[0].parent)
    foreign = f"{cut[1].name}: trained with another recipe, not counted: learning.beta=0.7."
    assert text.count(foreign) == 1
    # What is left has not come to the end: it is shown where it is, and said to be short.
    early, last, _ = ([c.strip() for c in row if c.strip()] for row in cells(text)[4:7])
    assert early[-4:-2] == ["1", "1"]
    assert last[-4:-2] == ["1", "1 of 2"] and last[-2] == "fewer epochs"


def test_missing_runs_are_trained_finished_ones_left_alone(out: Path, tmp_path: Path):
    for folder in out.iterdir():
        shutil.copytree(folder, tmp_path / folder.name)
    kept = sorted(tmp_path.iterdir())
    shutil.rmtree(kept.pop())
    before = {path: path.stat().st_mtime_ns for path in kept[0].iterdir()}
    trained: list[str] = []
    options = {"seeds": 2, "out": tmp_path, "device": "cpu", "watcher": lambda: Counting(trained)}

    shown = reproduce(STUDY, only_show=True, **options)
    assert not trained and not shown.finished and len(shown.runs) == 1
    outcome = reproduce(STUDY, **options)
    assert outcome.finished and len(outcome.runs) == 4
    assert len(trained) == 3 and kept[0].name not in trained
    assert before == {path: path.stat().st_mtime_ns for path in kept[0].iterdir()}
    assert DASH not in cells(outcome.table)[6][-1] and outcome.table == render(STUDY, tmp_path)
    assert reproduce(STUDY, **options).finished and len(trained) == 3


def test_a_finished_run_of_another_recipe_is_not_taken_for_the_studys(tmp_path: Path):
    study = Study("one", "One", STUDY.cells[1:2])
    recipe = STUDY.cells[1].resolve()
    other = replace(recipe, learning=replace(recipe.learning, beta=0.7))
    runs.train(other, out=tmp_path)
    with pytest.raises(BinepError, match=r"another recipe: learning\.beta was 0\.7"):
        reproduce(study, seeds=1, out=tmp_path, watcher=Watcher)


def test_a_run_that_stopped_early_goes_on(tmp_path: Path):
    cell = STUDY.cells[1]
    short = recipes.load("digits-1fc-w", [*TINY, "training.epochs=1"])
    runs.train(replace(short, name=cell.resolve().name, paper=PaperKeys()), out=tmp_path)
    study = Study("one", "One", (cell,))
    outcome = reproduce(study, seeds=1, out=tmp_path, watcher=Watcher)
    assert [len(run.metrics) for run in outcome.runs] == [2]
    assert outcome.runs[0].record["starts"] == 2


def test_a_rehearsal_says_how_short_it_is(tmp_path: Path):
    study = Study("one", "One", STUDY.cells[1:2])
    outcome = reproduce(study, seeds=1, out=tmp_path, epochs=1, watcher=Watcher)
    assert "1 of 2" in outcome.table
    assert ["+training.epochs=1" in run.folder.name for run in outcome.runs] == [True]
    assert DASH in render(study, tmp_path)  # which the study itself does not count


def test_an_interrupted_run_ends_the_study(tmp_path: Path, monkeypatch):
    asked = []

    def interrupted(recipe, **options):
        asked.append(recipe.name)
        return runs.Run(tmp_path, recipe, {}, [])

    monkeypatch.setattr(runs, "train", interrupted)
    outcome = reproduce(STUDY, seeds=2, out=tmp_path)
    assert not outcome.finished and len(asked) == 1


# --- figures ------------------------------------------------------------------------------------


def test_against_shows_each_mean_with_its_deviation(out: Path):
    found = [replace(STUDY.cells[0], x=5.0), replace(STUDY.cells[1], x=2.0)]
    study = Study("fig", "Fig", tuple(found), kind="against", xlabel="something")
    (axes,) = figure(study, out).axes
    means = {}
    for split, container in zip(("train", "test"), axes.containers, strict=True):
        assert isinstance(container, ErrorbarContainer)
        line, _, (bars,) = container.lines
        values = {epoch: errors(out, epoch, split) for epoch in (1, 2)}
        means[split] = [statistics.mean(values[2]), statistics.mean(values[1])]
        assert list(np.asarray(line.get_xdata())) == [2.0, 5.0]
        assert list(np.asarray(line.get_ydata())) == pytest.approx(means[split])
        low, high = bars.get_segments()[0][:, 1]
        assert high - low == pytest.approx(2 * statistics.stdev(values[2]))
    low, high = axes.get_xlim()
    assert low < 2 and high > 5
    assert axes.get_xlabel() == "something" and axes.get_legend().get_title().get_text() == "n = 2"


def test_against_shows_all_of_its_axis_when_one_point_is_there(out: Path):
    cells = (replace(STUDY.cells[0], x=5.0), replace(STUDY.cells[2], x=200.0))
    (axes,) = figure(Study("fig", "Fig", cells, kind="against"), out).axes
    low, high = axes.get_xlim()
    assert low < 5 and high > 200
    assert [text.get_text() for text in axes.get_xticklabels()] == ["5", "200"]


def test_curves_have_a_panel_a_row_and_say_where_nothing_is(out: Path):
    done, missing = replace(STUDY.cells[1], row="a"), replace(STUDY.cells[2], row="b")
    left, right = figure(Study("fig", "Fig", (done, missing), kind="curves"), out).axes
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["at the end, training (n = 2)", "at the end, test (n = 2)"]
    assert list(np.asarray(left.get_lines()[1].get_ydata())) == pytest.approx(
        [statistics.mean(errors(out, epoch)) for epoch in (1, 2)]
    )
    assert [text.get_text() for text in right.texts] == ["no runs yet"]


@pytest.mark.parametrize("name", [s.name for s in STUDIES.values() if s.kind != "table"])
def test_every_figure_of_the_paper_can_be_drawn_without_runs(name: str, tmp_path: Path):
    assert all(axes.texts for axes in figure(name, tmp_path).axes)


def test_tables_have_no_figure():
    with pytest.raises(BinepError, match="table1 is a table: allowed are fig-alpha"):
        figure("table1")
