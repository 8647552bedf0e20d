"""The report: well-formed, self-contained, and every number in it is that of metrics.jsonl."""

import io
import json
import re
import shutil
import statistics
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from binep.core.network import READOUTS
from binep.engines.select import select_engine
from binep.errors import BinepError
from binep.report import (
    figures,
    group_runs,
    headline,
    open_runs,
    read_network,
    reading_cost,
    write_report,
)
from binep.training import recipe as recipes
from binep.training import runs, seals
from binep.training.sections import RateSchedule
from binep.training.trainer import evaluate
from conftest import small_recipe

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what a page says, shows and refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.cells: list[list[str]] = []
        self.text = ""
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()
        assert not self.open
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data", "poster"):
                self.references.append(value)
            assert not name.startswith("on")
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        if {"style", "script"} & set(self.open):
            return
        self.text += data + " "
        if self.open and self.open[-1] in ("td", "th", "a") and self.cells:
            self.cells[-1][-1:] = [(self.cells[-1] or [""])[-1] + data]

    def row(self, label: str) -> dict[str, str]:
        """A row of the page's first table, by the names of its columns."""
        cells = next(cells for cells in self.cells if cells and cells[0] == label)
        return dict(zip(self.cells[0], cells, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Runs of two recipes: two seeds with real activations, one with binary ones."""
    out = tmp_path_factory.mktemp("runs")
    learnt = ("network.learn_scale=true", "optimizer.lr_scale=1e-4", "paper.test=2.07")
    for seed in (0, 1):
        runs.train(small_recipe("digits-1fc-w", *learnt, "paper.test_sd=0.02"), seed=seed, out=out)
    runs.train(small_recipe("digits-conv-wa"), seed=0, out=out)
    return out


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory) -> Page:
    return Page(write_report([folder], tmp_path_factory.mktemp("report"), device="cpu"))


def copied(folder: Path, to: Path, name: str = "digits-1fc-w-seed0") -> Path:
    return Path(shutil.copytree(folder / name, to / name))


def give_recipe(run: Path, recipe: recipes.Recipe) -> None:
    """Let a run say that it is of another recipe; its checkpoints, which know better, go."""
    (run / "recipe.toml").write_text(seals.sealed_text(recipes.dumps(recipe)))
    for path in run.glob("checkpoint-*"):
        path.unlink()


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_page_is_well_formed_and_needs_nothing_from_outside(page: Page):
    assert page.references
    assert all(ref.startswith(("#", "data:image/png;base64,")) for ref in page.references)
    assert not {"link", "iframe", "object"} & set(page.tags)
    # One, inline; without it the page says the same.
    assert page.tags.count("script") == 1 and page.source.count("<script>") == 1
    assert not re.search(r"fetch|XMLHttp|import\(|WebSocket|eval\(|innerHTML", page.source)
    assert "@import" not in page.source
    assert not re.search(r"url\((?!#)", page.source)
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page.source))
    # Names of XML's vocabularies, which no browser fetches.
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_every_id_is_there_once_and_every_link_leads_to_one(page: Page):
    assert len(page.ids) == len(set(page.ids))
    inside = {ref[1:] for ref in page.references if ref.startswith("#")}
    inside |= set(re.findall(r"url\(#([^)]+)\)", page.source))
    assert inside <= set(page.ids)


def test_table_holds_the_numbers_of_the_metrics(page: Page, folder: Path):
    last = [lines_of(folder / f"digits-1fc-w-seed{seed}")[-1] for seed in (0, 1)]
    both = {
        split: [line[f"{split}_error"]["average"] for line in last] for split in ("test", "train")
    }
    shown = {s: f"{statistics.mean(v):.2f} ± {statistics.stdev(v):.2f}" for s, v in both.items()}
    row = page.row("digits-1fc-w")
    assert row["Test error, %"] == shown["test"]
    assert row["Training error, %"] == shown["train"]
    # Two epochs of a smaller network are not the paper's.
    assert row["Paper: test, %"] == "2.07 ± 0.02 †"
    assert row["n"] == row["Epochs"] == "2"
    assert shown["test"] in page.text.replace("\xa0", " ")


def test_a_single_seed_has_no_standard_deviation(page: Page, folder: Path):
    (last,) = lines_of(folder / "digits-conv-wa-seed0")[-1:]
    row = page.row("digits-conv-wa")
    assert row["Test error, %"] == f"{last['test_error']['average']:.2f}"
    assert row["Test error, single neuron, %"] == f"{last['test_error']['single']:.2f}"
    assert row["n"] == "1"


def test_every_figure_says_what_one_sees(page: Page):
    titles = [
        "Errors",
        "Flipped weights",
        "Learnt scaling factors",
        "Convergence in training",
        "Difference of the two readouts",
        "Relaxation of the trained network",
        "Saturated neurons",
        "Active neurons",
        "Misread images",
        "Confusion matrix",
    ]
    assert all(title in page.text for title in titles)
    assert page.tags.count("figcaption") == page.tags.count("figure") == page.tags.count("h3")
    # The scales of digits-conv-wa are fixed, and digits-1fc-w has one output neuron a class.
    assert page.text.count("The learnt scaling factor of each coupling") == 1
    assert page.text.count("Error read from one neuron a class minus") == 1


def test_recipe_and_record_are_complete(page: Page, folder: Path):
    for run in open_runs([folder]):
        for line in recipes.dumps(run.recipe).splitlines():
            assert " ".join(line.split()) in page.text
        for key in ("commit", "torch", "device_name", "engine", "precision", "started"):
            assert str(run.record[key] or figures.DASH) in page.text


def test_one_run_makes_a_headline_with_n(folder: Path):
    run = folder / "digits-1fc-w-seed1"
    error = lines_of(run)[-1]["test_error"]["average"]
    sentence = headline(group_runs(open_runs([run])))
    assert f"{error:.2f} % test error after 2 epochs (n = 1 seed)" in sentence
    assert "±" not in sentence
    both = headline(group_runs([r for r in open_runs([folder]) if r.recipe.network.dense]))
    assert "n = 2 seeds" in both and "±" in both


def test_texts_of_others_are_escaped(folder: Path, tmp_path: Path):
    run = copied(folder, tmp_path)
    evil = '<script>alert("1")</script> & \'<img src=x onerror=alert(1)>'
    # A name may hold no slashes.
    texts = {"name": evil.replace("/", ""), "summary": f"</style>{evil}"}
    recipe = replace(recipes.load(run / "recipe.toml"), **texts)
    give_recipe(run, recipe)
    record = json.loads((run / "record.json").read_text())
    record = {**seals.unsealed(record)[0], "device_name": evil, evil: [evil]}
    (run / "record.json").write_text(seals.sealed(record))
    page = Page(write_report([run], tmp_path / "out", device="cpu", images=30))
    assert page.tags.count("script") == 1
    assert page.tags.count("img") == len(re.findall("data:image/png", page.source))
    assert (
        page.source.count("<script") == 1 and "</style>" not in page.source.split("</style>", 1)[1]
    )
    assert page.text.count("alert") >= 4


def test_unfinished_runs_are_marked_and_not_averaged_with_finished_ones(
    folder: Path, tmp_path: Path
):
    copied(folder, tmp_path)
    stopped = copied(folder, tmp_path, "digits-1fc-w-seed1")
    first = (stopped / "metrics.jsonl").read_text().splitlines()[0]
    (stopped / "metrics.jsonl").write_text(first + "\n")
    page = Page(write_report([tmp_path], tmp_path / "out", device="cpu", images=30))
    error = lines_of(tmp_path / "digits-1fc-w-seed0")[-1]["test_error"]["average"]
    assert page.row("digits-1fc-w")["Test error, %"] == f"{error:.2f}"
    assert page.row("digits-1fc-w")["n"] == "1"
    assert "Unfinished: digits-1fc-w-seed1, 1 of 2 epochs, not counted" in page.text

    (group,) = group_runs(open_runs([stopped]))
    so_far = json.loads(first)["test_error"]["average"]
    assert f"{so_far:.2f} % test error so far, after 1 of 2 epochs" in headline([group])


def test_a_run_without_an_epoch_or_a_checkpoint_has_a_page_too(folder: Path, tmp_path: Path):
    run = copied(folder, tmp_path)
    for path in (run / "metrics.jsonl", *run.glob("checkpoint-*")):
        path.unlink()
    page = Page(write_report([run], tmp_path / "out", device="cpu"))
    assert "no epoch of 2 is finished yet" in page.text
    assert page.row("digits-1fc-w")["Test error, %"] == figures.DASH


@pytest.mark.parametrize("lost", ["data", "checkpoint"])
def test_what_cannot_be_shown_is_left_out_with_the_reason(
    folder: Path, tmp_path: Path, monkeypatch, lost: str
):
    run = copied(folder, tmp_path)
    if lost == "checkpoint":
        for path in run.glob("checkpoint-*"):
            path.unlink()
    else:
        monkeypatch.setenv("BINEP_DATA", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        recipe = recipes.load(run / "recipe.toml")
        recipe = replace(recipe, data=replace(recipe.data, name="mnist"))
        give_recipe(run, recipe)
    page = Page(write_report([run], tmp_path / "out", device="cpu", offline=True))
    reason = "mnist" if lost == "data" else "has no checkpoint yet"
    sentence = next(s for s in page.text.split("Left out")[1:] if reason in s)
    assert "confusion matrix" in sentence
    assert "Confusion matrix" not in page.text and "Flipped weights" in page.text
    error = lines_of(run)[-1]["test_error"]["average"]
    assert page.row("digits-1fc-w")["Test error, %"] == f"{error:.2f}"


def test_a_seed_counts_once(folder: Path, tmp_path: Path):
    again = copied(folder, tmp_path)
    (group,) = group_runs(open_runs([folder / "digits-1fc-w-seed0", again]))
    assert len(group.counted) == 1 and [run.folder for run in group.repeated] == [again]
    same_folder = open_runs([folder / "digits-1fc-w-seed0", folder / "digits-1fc-w-seed0" / "."])
    assert len(same_folder) == 1


def test_recipes_of_one_name_that_differ_are_kept_apart(folder: Path, tmp_path: Path):
    other = copied(folder, tmp_path, "digits-1fc-w-seed1")
    recipe = recipes.load(other / "recipe.toml")
    changed = replace(recipe, learning=replace(recipe.learning, beta=0.5))
    give_recipe(other, changed)
    groups = group_runs(open_runs([folder / "digits-1fc-w-seed0", other]))
    assert [group.label for group in groups] == [
        "digits-1fc-w learning.beta=0.3",
        "digits-1fc-w learning.beta=0.5",
    ]


def test_validation_errors_are_not_called_test_errors(tmp_path: Path):
    recipe = small_recipe("digits-1fc-w", "data.validation=100")
    run = runs.train(recipe, out=tmp_path, device="cpu").folder
    page = Page(write_report([run], tmp_path / "out", device="cpu"))
    assert "% validation error" in page.text.replace("\xa0", " ")
    assert page.row("digits-1fc-w")["Test error, %"].endswith("‡")
    assert "all 100 validation images" in page.text


def test_training_errors_against_a_margin_are_told(page: Page, folder: Path, tmp_path: Path):
    run = copied(folder, tmp_path, "digits-conv-wa-seed0")
    recipe = recipes.load(run / "recipe.toml")
    held = replace(recipe, learning=replace(recipe.learning, margin=0.1))
    give_recipe(run, held)
    told = "digits-conv-wa: training error counts what does not win by learning.margin"
    assert told in Page(write_report([run], tmp_path / "out", device="cpu")).text
    assert "margin, which holds" not in page.text


def test_foreign_folders_are_refused_in_one_line(folder: Path, tmp_path: Path):
    with pytest.raises(BinepError, match="is not a run"):
        write_report([tmp_path], tmp_path / "out")
    run = copied(folder, tmp_path)
    (run / "metrics.jsonl").write_text(seals.chained([{"epoch": 1}])[0] + "\n")
    with pytest.raises(BinepError, match=r"metrics\.jsonl: line 1 is not one"):
        write_report([run], tmp_path / "out")
    (run / "record.json").write_text("[]")
    with pytest.raises(BinepError, match=r"record\.json"):
        write_report([run], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["digits-1fc-w-seed0", "digits-conv-wa-seed0"])
def test_the_network_read_is_the_one_that_was_tested(folder: Path, name: str):
    """Every test image, at the run's last epoch: the same images are wrong as in training."""
    run = runs.open_run(folder / name)
    network, dataset = run.network("cpu"), run.dataset(device="cpu")
    reading = read_network(network, run.recipe, dataset)
    assert reading.samples == reading.available == 360
    for readout in READOUTS:
        assert 100 * reading.wrong[readout] / 360 == run.metrics[-1]["test_error"][readout]
    confusion = torch.tensor(reading.confusion)
    assert confusion.sum(1).tolist() == torch.bincount(dataset.test.labels).tolist()
    assert confusion.sum() - confusion.trace() == reading.wrong["average"]
    assert all(true != read for _, true, read in reading.examples)
    keys = run.recipe.learning
    assert (len(reading.free), len(reading.nudged)) == (keys.free_steps, keys.nudged_steps)
    totals = torch.tensor(list(reading.resting.values())).sum(0)
    torch.testing.assert_close(totals, torch.ones(len(reading.layers)))


def test_reading_ends_phases_early_as_the_run_does(folder: Path):
    run = runs.open_run(folder / "digits-1fc-w-seed0")
    network, dataset = run.network("cpu"), run.dataset(device="cpu")
    keys = replace(run.recipe.learning, tolerance=0.9)
    recipe = replace(run.recipe, learning=keys)
    reading = read_network(network, recipe, dataset)
    parts = recipe.build_learning(), recipe.build_optimizers(network)
    engine = select_engine("reference", network, *parts)
    assert reading.wrong == evaluate(engine, dataset, dataset.test).wrong
    assert 100 * reading.wrong["average"] / 360 != run.metrics[-1]["test_error"]["average"]


def test_runs_without_flips_or_nudges_have_a_page_too(tmp_path: Path):
    real = ("network.weights=real", "optimizer.lr_weight=0.05", "learning.method=bptt")
    run = runs.train(small_recipe("digits-1fc-w", *real, "training.epochs=1"), out=tmp_path)
    page = Page(write_report([run.folder], tmp_path / "out", device="cpu", images=30))
    assert "Flipped weights" not in page.text
    assert "this run learns by BPTT and has no nudged phase" in page.text


@pytest.mark.parametrize("epochs", [1, 2, 7, 30])
def test_epochs_are_counted_in_whole_numbers(epochs: int):
    error = {"average": 10.0, "single": 11.0}
    history = [{"train_error": error, "test_error": error}] * epochs
    (axes,) = figures.error_curves([history], readouts=READOUTS).axes
    ticks = [float(tick) for tick in axes.get_xticks()]
    assert ticks and all(tick == int(tick) for tick in ticks)
    # A single epoch is a point, since it makes no line.
    assert all(line.get_marker() == "o" for line in axes.get_lines()) == (epochs == 1)


def test_band_is_one_sample_standard_deviation_wide():
    axes = Figure().subplots()
    figures.band(axes, np.array([[1.0, 4.0], [3.0, 4.0]]), "two seeds", "red")
    (line,), (area,) = axes.get_lines(), axes.collections
    assert list(np.asarray(line.get_ydata())) == [2.0, 4.0]
    edges = np.asarray(area.get_paths()[0].vertices)
    assert {round(float(y), 6) for x, y in edges if x == 1} == {0.585786, 3.414214}
    figures.band(axes, np.array([[1.0, 4.0]]), "one seed", "blue")
    assert len(axes.collections) == 1


@pytest.mark.parametrize("channels", [1, 3])
def test_png_holds_the_pixels(channels: int):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, channels), dtype=np.uint8)
    read = imread(io.BytesIO(figures.png(pixels)), format="png")
    assert np.array_equal(np.rint(read[..., :3] * 255), np.broadcast_to(pixels, (4, 5, 3)))


def test_reading_cost_counts_multiply_adds():
    """64-24-10: the input once, then 24 x 10 up and down at each of 8 steps."""
    recipe = small_recipe("digits-1fc-w")
    assert reading_cost(recipe.build_network(), recipe) == 64 * 24 + 2 * 8 * 24 * 10


def test_same_runs_give_the_same_page(folder: Path, tmp_path: Path):
    run = folder / "digits-1fc-w-seed0"
    one, two = (
        write_report([run], tmp_path / name, device="cpu", images=20) for name in ("one", "two")
    )
    assert one.read_bytes() == two.read_bytes()
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["report.html"]


def values_of(page: Page) -> list[list[dict]]:
    """What the page's figures show under the pointer."""
    found = re.findall(r'data-values="([^"]*)"', page.source)
    return [json.loads(unescape(each)) for each in found]


def test_figures_know_their_values(page: Page, folder: Path):
    overlay, *others = values_of(page)
    (panel,) = overlay
    runs_shown = sorted(folder.glob("*-seed*"))
    assert len(panel["series"]) == len(runs_shown) == 3
    for series, run in zip(panel["series"], runs_shown, strict=True):
        errors = [line["test_error"]["average"] for line in lines_of(run)]
        assert series["x"] == [1, 2]
        assert series["y"] == [float(f"{error:.5g}") for error in errors]
    left, low, right, high = panel["box"]
    assert 0 < left < right <= 1 and 0 < low < high <= 1
    assert panel["label"] == "epoch" and len(others) >= 8


def test_loss_rates_and_weights_are_shown(page: Page):
    assert page.text.count("Training: averaged over the epoch; test: after it.") == 2
    assert "gamma 0.001, 0.0001; tau" in page.text
    assert "coupling 1, 64 to 24: what 24 of 24 weigh in the input" in page.text
    assert "coupling 2, 24 to 10: all weights" in page.text


def test_rates_that_change_are_drawn(folder: Path, tmp_path: Path):
    run = copied(folder, tmp_path)
    recipe = recipes.load(run / "recipe.toml")
    schedule = RateSchedule(at=[1], factor=0.5)
    changed = replace(recipe, schedule=replace(recipe.schedule, tau=schedule))
    give_recipe(run, changed)
    page = Page(write_report([run], tmp_path / "out", device="cpu", images=30))
    tau = recipe.optimizer.tau
    assert isinstance(tau, list)
    drawn = [panel["series"] for panels in values_of(page) for panel in panels]
    assert [[t, t / 2] for t in tau] in [[s["y"] for s in series] for series in drawn]


def test_weights_are_pictures_of_what_they_are():
    weight = np.array([[1.0, -1.0], [0.0, 0.5]])
    pixels = figures.coloured(weight)
    assert pixels.shape == (2, 2, 3) and pixels.dtype == np.uint8
    (orange, blue), (white, pale) = pixels.astype(int)
    assert orange[0] > orange[2] and blue[2] > blue[0] and white.min() > 240
    assert orange[2] < pale[2] < white[2]
    sheet = figures.tiled(np.ones((3, 2, 2)), columns=2)
    assert sheet.shape == (5, 5) and np.isnan(sheet).sum() == 25 - 3 * 4


def test_many_recipes_have_a_headline_that_says_something(folder: Path, tmp_path: Path):
    for n, beta in enumerate((0.1, 0.2, 0.3, 0.4, 0.5)):
        run = copied(folder, tmp_path / str(n))
        recipe = recipes.load(run / "recipe.toml")
        changed = replace(recipe, learning=replace(recipe.learning, beta=beta))
        give_recipe(run, changed)
    found = open_runs([tmp_path / str(n) for n in range(5)])
    error = lines_of(folder / "digits-1fc-w-seed0")[-1]["test_error"]["average"]
    sentence = headline(group_runs(found))
    assert sentence.startswith("5 recipes in 5 runs. digits, test error: ")
    assert f"{error:.2f} % (digits-1fc-w learning.beta=0." in sentence


def test_who_waits_is_told_how_far_the_page_is(folder: Path, tmp_path: Path):
    told = []
    write_report([folder], tmp_path, device="cpu", images=20, say=told.append)
    assert [text[:6] for text in told[:-1]] == ["1 of 2", "2 of 2"] and "2 recipes" in told[-1]


def test_a_run_on_data_of_ones_own_says_which(tmp_path: Path):
    rows = "\n".join(f"{n % 3},{n % 5},{'ab'[n % 2]}" for n in range(40))
    (tmp_path / "table.csv").write_text(f"one,two,label\n{rows}\n")
    keys = [f'data.path="{tmp_path / "table.csv"}"', "network.dense=[4]", "training.epochs=1"]
    runs.train(recipes.load("digits-1fc-w", keys), out=tmp_path, device="cpu")
    (group,) = group_runs(open_runs([tmp_path]))
    assert group.label.startswith("digits-1fc-w on table.csv")
    assert group.summary == f"{tmp_path / 'table.csv'}: 32 training samples, 2 classes"
