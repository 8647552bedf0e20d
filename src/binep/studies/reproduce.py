"""The paper's tables and figures, made again: train what they need, show ours beside theirs.

The studies are those of `paper`. The runs come from a folder of runs, or from a folder of evidence,
whose claims say what stands beside the paper's algorithm in a cell.
"""

import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from binep.data import Folder
from binep.errors import BinepError
from binep.report import changes, figures, open_runs, seconds_until, spread_at
from binep.report.figures import DASH, Spread, duration, number
from binep.studies.claims import read_claims
from binep.studies.evidence import Evidence, recipe_hash
from binep.studies.paper import STUDIES, Cell, Study, find_study
from binep.studies.verdict import judge
from binep.training import runs
from binep.training.progress import Watcher, usual_watcher
from binep.training.recipe import Recipe
from binep.training.run_folder import Run
from binep.training.trials import Executor, Options, Trial, missing, place

DEVICES = re.compile(r"NVIDIA |\(R\)| Processor")  # what a device's name is told without
LETTERS = 13  # of a figure's title, an inch


# --- training what is missing -------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The result of `reproduce`: the study's runs, whether all are finished, and the table."""

    study: Study
    runs: list[Run]
    finished: bool
    table: str


def reproduce(
    what: str | Study,
    *,
    seeds: int = 5,
    out: str | Path = "runs",
    epochs: int | None = None,
    only_show: bool = False,
    device: str = "auto",
    engine: str = "auto",
    data_dir: Folder | None = None,
    offline: bool = False,
    watcher: Callable[[], Watcher] = usual_watcher,
    executor: Executor | None = None,
) -> Outcome:
    """Train, or go on with, the runs of a study that are not finished; then read them all.

    All recipes are trained with one seed before the next seed begins, so that a study cut short
    has something in every cell.

    Args:
        seeds: how many: 0 to seeds - 1.
        epochs: in place of the recipes' own, for a rehearsal in folders of its own.
        only_show: train nothing.
        watcher: makes a watcher for each run that is trained here.
        executor: trains elsewhere; by default here, one run after the other.
    """
    study, options = find_study(what), Options(device, engine, data_dir, offline)
    trials = [
        Trial(recipe, seed, Path(out), None, options) for recipe, seed in plan(study, seeds, epochs)
    ]
    if not only_show:
        executor = executor or place("here", watcher=lambda trial: watcher())
        for outcome in executor.run(missing(trials)):
            if outcome.failure is not None:
                raise BinepError(f"{outcome.trial.label}: {outcome.failure}")
    finished = not missing(trials)
    found = {run.folder: run for cell in study.cells for run in look_up(cell, out, epochs).runs}
    return Outcome(study, list(found.values()), finished, render(study, out, epochs=epochs))


def plan(study: Study, seeds: int, epochs: int | None = None) -> list[tuple[Recipe, int]]:
    """The runs that a study needs, each once, in the order in which they are trained."""
    if seeds < 1:
        raise BinepError(f"seeds={seeds}: allowed is at least 1")
    needed = {recipe.name: recipe for recipe in (cell.resolve(epochs) for cell in study.cells)}
    return [(recipe, seed) for seed in range(seeds) for recipe in needed.values()]


def _same(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes train alike, for however long."""
    return {text.partition("=")[0] for text in changes(one, other)} <= {"training.epochs"}


# --- reading what is there ----------------------------------------------------------------------


Place = str | Path | Evidence


@dataclass(frozen=True)
class Found:
    """The existing runs of a cell.

    Attributes:
        planned: the epoch to read them at. epoch: at which they are read, which is earlier if none
            has come so far. counted: those that have come to it. shorter: those that have not.
        foreign: those that carry the cell's name, but were trained with another recipe.
    """

    planned: int
    epoch: int
    counted: list[Run]
    shorter: list[Run]
    foreign: list[Run]

    @property
    def runs(self) -> list[Run]:
        return [*self.counted, *self.shorter]

    @property
    def epochs(self) -> str:
        return str(self.epoch) if self.epoch == self.planned else f"{self.epoch} of {self.planned}"

    @property
    def complete(self) -> bool:
        """Whether they are read at the planned epoch."""
        return self.epoch >= self.planned

    @property
    def wall_time(self) -> str:
        """Mean wall time per run up to the epoch, on each kind of device."""
        by_device: dict[str, list[float]] = {}
        for run in self.counted:
            name = DEVICES.sub("", str(run.record.get("device_name") or "unknown"))
            by_device.setdefault(name, []).append(seconds_until(run, self.epoch))
        times = (f"{duration(statistics.fmean(t))} {name}" for name, t in sorted(by_device.items()))
        return "; ".join(times) or DASH

    def error(self, split: str) -> Spread | None:
        return spread_at(self.counted, self.epoch, lambda line: line[f"{split}_error"]["average"])


def look_up(cell: Cell, place: Place, epochs: int | None = None) -> Found:
    """The runs of a cell's recipe, in a folder of runs or among evidence."""
    recipe, planned = cell.resolve(epochs), cell.last_epoch()
    if isinstance(place, Evidence):
        return replace(gather(place.runs_of(recipe), cell.last_epoch(epochs)), planned=planned)
    named = open_runs(_folders(recipe, Path(place)))
    mine = [run for run in named if _same(run.recipe, recipe)]
    found = gather(mine, cell.last_epoch(epochs))
    return replace(found, planned=planned, foreign=[run for run in named if run not in mine])


@dataclass(frozen=True)
class Entry:
    """What stands in a cell, or beside it.

    Attributes:
        name: "" for the cell's own recipe, else what ours beside it is called.
        differs: what differs from the paper's. note: what else to know.
        after_test: what was set when test errors were known.
    """

    cell: Cell
    found: Found
    name: str = ""
    differs: str = ""
    note: str = ""
    after_test: str = ""


def entries(cell: Cell, place: Place, epochs: int | None = None) -> list[Entry]:
    """The cell's own runs and, of a paper's cell, ours beside them as far as they are claimed."""
    found = look_up(cell, place, epochs)
    if not isinstance(place, Evidence):
        return [Entry(cell, found)]
    claims = read_claims(place)
    claim = claims.get(cell.recipe)
    if claim is None:
        return [Entry(cell, found)]
    if not cell.printed:
        mine = [each for each in claim.ours if each.runs == recipe_hash(cell.resolve())]
        differs, after = (mine[0].differs, mine[0].after_test) if mine else ("", claim.after_test)
        return [Entry(cell, found, "", differs, claim.note, after)]
    if claim.runs:
        found = gather(place.runs_of(claim.runs), cell.last_epoch())
    beside = [
        Entry(
            cell,
            gather(place.runs_of(each.runs), cell.last_epoch()),
            each.name,
            each.differs,
            after_test=each.after_test,
        )
        for each in claim.ours
    ]
    own = Entry(cell, found, note=claim.note, after_test=claim.after_test)
    return [own, *beside]


def gather(mine: list[Run], planned: int) -> Found:
    """Runs of one recipe, read at the planned epoch.

    While none has come so far, they are read where all have come that are at least half as far as
    the furthest.
    """
    reached = [min(len(run.metrics), planned) for run in mine] or [planned]
    furthest = max(reached) or planned
    epoch = furthest if furthest == planned else min(n for n in reached if 2 * n >= furthest)
    return Found(
        planned,
        epoch,
        counted=[run for run in mine if len(run.metrics) >= epoch],
        shorter=[run for run in mine if len(run.metrics) < epoch],
        foreign=[],
    )


def _folders(recipe: Recipe, out: Path) -> list[Path]:
    """The folders of a recipe's runs, by seed."""
    start = runs.run_name(recipe, 0).removesuffix("0")
    seeds = {
        path: path.name.removeprefix(start)
        for path in (out.iterdir() if out.is_dir() else [])
        if path.name.startswith(start) and (path / "record.json").is_file()
    }
    return sorted((p for p, s in seeds.items() if s.isdigit()), key=lambda p: int(seeds[p]))


def render(what: str | Study, place: Place = "runs", *, epochs: int | None = None) -> str:
    """The paper's numbers beside ours as text; a cell without runs says so."""
    study = find_study(what)
    table = figures.text_table(HEADER, table_rows(study, place, epochs), left=2)
    return "\n".join([study.title, "", table, "", *table_notes(study, place, epochs)])


HEADER = (
    *("", "", "paper test", "train", "our test", "train", "n", "epochs", "against the paper"),
    *("differs from the paper", "time per run"),
)


def table_rows(study: Study, place: Place, epochs: int | None = None) -> list[list[str]]:
    """A study's cells, each with what stands under `HEADER`; ours beside the paper's below it."""
    rows, row = [], None
    for cell in study.cells:
        for entry in entries(cell, place, epochs):
            found, paper = entry.found, cell.paper
            error = found.error("test")
            rows.append(
                [
                    "" if cell.row == row else cell.row,
                    f"ours: {entry.name}" if entry.name else cell.column,
                    DASH if entry.name else number(paper.test, paper.test_sd),
                    DASH if entry.name else number(paper.train),
                    str(error or DASH),
                    str(found.error("train") or DASH),
                    str(len(found.counted)) if found.counted else DASH,
                    found.epochs,
                    str(judge(error, paper, found.complete)),
                    "; ".join(filter(None, (entry.differs, entry.note))),
                    found.wall_time,
                ]
            )
            row = cell.row
    return rows


def table_notes(study: Study, place: Place, epochs: int | None = None) -> list[str]:
    """What a reader of a study's table should know: its numbers, and the runs left out of it."""
    remarks = dict[str, None]()
    for cell in study.cells:
        for entry in entries(cell, place, epochs):
            remarks |= dict.fromkeys(_remarks(cell, entry.found))
    return [
        "Errors in %, of the average readout: mean ± sample standard deviation over n seeds; the "
        "paper's over 5 trials. Welch's t-test, two-sided; where the paper prints no standard "
        "deviation, a one-sample t-test against its mean.",
        *([study.note] if study.note else []),
        *remarks,
    ]


def _remarks(cell: Cell, found: Found) -> Iterable[str]:
    for run in found.shorter:
        yield f"{_name(run)}: {len(run.metrics)} of {found.epoch} epochs, not counted."
    for run in found.foreign:
        different = ", ".join(changes(run.recipe, cell.resolve()))
        yield f"{_name(run)}: trained with another recipe, not counted: {different}."


def _name(run: Run) -> str:
    is_file = run.folder.suffix == ".json"
    return f"{run.recipe.name}, seed {run.record['seed']}" if is_file else run.folder.name


# --- drawing ------------------------------------------------------------------------------------


@figures.styled
def figure(what: str | Study, place: Place = "runs", *, epochs: int | None = None) -> Figure:
    """A study's figure, of the runs that are there."""
    study = find_study(what)
    if study.kind == "table":
        drawn = ", ".join(s.name for s in STUDIES.values() if s.kind != "table")
        raise BinepError(f"study {study.name} is a table: allowed are {drawn}")
    found = [(cell, look_up(cell, place, epochs)) for cell in study.cells]
    if study.kind == "against":
        drawing, ((axes,),) = figures.new_figure(width=6.4, height=4)
        _draw_against(axes, study, found)
    else:
        rows = list(dict.fromkeys(cell.row for cell in study.cells))
        drawing, (panels,) = figures.new_figure(1, len(rows), width=5.4, height=3.8)
        draw = _draw_curves if study.kind == "curves" else _draw_readouts
        for row, axes in zip(rows, panels, strict=True):
            draw(axes, [(cell, runs_) for cell, runs_ in found if cell.row == row])
            axes.set_title(row)
    title = textwrap.fill(study.title, int(LETTERS * drawing.get_figwidth()))
    drawing.suptitle(title, x=0.01, ha="left", fontsize=10)
    return drawing


def _draw_against(axes: Axes, study: Study, found: Sequence[tuple[Cell, Found]]) -> None:
    """Errors with their standard deviations against x; a hollow point where x was not chosen."""
    axes.set_xscale("log")
    ticks = [cell.x for cell, _ in found if cell.x is not None]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], rotation=45 if len(ticks) > 7 else 0)
    axes.minorticks_off()
    axes.set_xlabel(study.xlabel)
    axes.set_ylabel("error (%)")
    measured = [(cell, runs_) for cell, runs_ in found if runs_.counted]
    if not measured:
        _say_nothing(axes)
        return
    shown: list[float] = []
    for split, name, colour in (
        ("train", "training", figures.TRAIN),
        ("test", "test", figures.TEST),
    ):
        for chosen in (True, False):
            points = sorted(
                (_x(cell, runs_), spread.mean, spread.sd or 0.0)
                for cell, runs_ in measured
                if (spread := runs_.error(split)) and (cell.x is not None) == chosen
            )
            if points:
                xs, means, sds = zip(*points, strict=True)
                shown += means
                axes.errorbar(
                    xs,
                    means,
                    sds,
                    fmt="-o" if chosen else "D",
                    markersize=4 if chosen else 7,
                    markerfacecolor=colour if chosen else "none",
                    color=colour,
                    capsize=2.5,
                    label=name if chosen else f"{name}, drawn alpha",
                )
    # All of the axis, however few of its points are there yet.
    places = [*ticks, *(_x(cell, runs_) for cell, runs_ in measured)]
    axes.set_xlim(min(places) / 1.2, max(places) * 1.2)
    figures.scale_wide(axes, shown)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(title=_seeds(runs_ for _, runs_ in measured))


def _x(cell: Cell, found: Found) -> float:
    if cell.x is not None:
        return cell.x
    alphas = [run.metrics[found.epoch - 1]["alpha"] for run in found.counted]
    return statistics.fmean(alpha for run in alphas for alpha in run)


def _seeds(found: Iterable[Found]) -> str:
    counts = sorted({len(runs_.counted) for runs_ in found})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def _draw_curves(axes: Axes, found: Sequence[tuple[Cell, Found]]) -> None:
    """Training (solid) and test errors (dashed) against epochs, a colour a column."""
    everything: list[list[dict[str, Any]]] = []
    for (cell, runs_), colour in zip(found, figures.COLOURS, strict=False):
        shown, label = _histories(runs_)
        everything += shown
        if shown:
            for split, line in (("train", "-"), ("test", "--")):
                curves = figures.series(shown, lambda at, s=split: at[f"{s}_error"]["average"])
                name = "training" if split == "train" else "test"
                figures.band(axes, curves, f"{cell.column}, {name} ({label})", colour, line)
    figures.label_epochs(axes, "error (%)")
    if everything:
        figures.show_later_errors(axes, everything)
        axes.legend()
    else:
        _say_nothing(axes)


def _draw_readouts(axes: Axes, found: Sequence[tuple[Cell, Found]]) -> None:
    """The two readouts' difference against epochs."""
    ((cell, runs_),) = found
    shown, label = _histories(runs_)
    if shown:
        figures.draw_readout_difference(axes, shown)
        axes.legend(title=f"{cell.column}, {label}")
    else:
        _say_nothing(axes)


def _histories(found: Found) -> tuple[list[list[dict[str, Any]]], str]:
    """The metrics to draw, and how many runs and epochs they are of."""
    label = f"n = {len(found.counted)}"
    if found.epoch < found.planned:
        label += f", {found.epochs} epochs"
    return [run.metrics[: found.epoch] for run in found.counted], label


def _say_nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no runs yet", transform=axes.transAxes, ha="center", va="center")
