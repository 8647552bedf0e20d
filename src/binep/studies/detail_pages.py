"""The pages of docs/results and everything else made from evidence: written, or checked.

RESULTS.md                     see `results_page`
docs/results/index.md          all tables, with training errors and wall times
docs/results/epochs.md         errors by epoch
docs/results/curves.md         figures, drawn into docs/results/figures
docs/results/choices.md        what was chosen, on validation images
"""

import csv
import io
from pathlib import Path
from typing import Any

from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.report import figures, spread_at
from binep.report.figures import DASH, Spread
from binep.studies import compare as choices
from binep.studies.evidence import (
    INDEX,
    REACHED,
    Evidence,
    describe_reached,
    index,
    read_json,
    recipe_hash,
)
from binep.studies.paper import BEYOND, GOALS, STUDIES, Cell, Study, full_name
from binep.studies.reproduce import HEADER, figure, gather, look_up, table_notes, table_rows
from binep.studies.results_page import overview
from binep.training import recipe as recipes
from binep.training.run_folder import Run

TUNING = "binep tuning 1"  # the format of what benchmarks/tune.py writes
FOLDER = Path("docs") / "results"
FIGURES = FOLDER / "figures"
SHIPPED = Path("src") / "binep" / "studies" / "reached.csv"
DPI = 90  # of the figures, which a repository keeps
EPOCHS = (1, 2, 5, 10, 25, 50, 100, 200, 500)


def pages(evidence: Evidence) -> dict[Path, str]:
    """The text of every page, by its path beside the folder of evidence."""
    found = {
        Path("RESULTS.md"): overview(evidence),
        FOLDER / "index.md": _tables(evidence),
        FOLDER / "epochs.md": _epochs(evidence),
        FOLDER / "curves.md": _curves(evidence),
        FOLDER / "choices.md": _choices(evidence),
        Path(evidence.folder.name) / INDEX: index(evidence),
    }
    if (evidence.folder.parent / SHIPPED).is_file():
        found[SHIPPED] = _reached(evidence)
    return found


def write_pages(evidence: Evidence) -> list[Path]:
    """Write all pages, and draw their figures; returns the pages' paths."""
    beside = evidence.folder.parent
    for name, draw in _drawn(evidence).items():
        make_folder(beside / FIGURES)
        figures.save(draw(), beside / FIGURES / f"{name}.png", dpi=DPI)
    paths = []
    for path, text in pages(evidence).items():
        make_folder((beside / path).parent)
        write_whole(beside / path, text)
        paths.append(beside / path)
    return paths


def outdated(evidence: Evidence) -> list[str]:
    """Which pages, or figures, do not say what the evidence does; empty if all agree."""
    beside, found = evidence.folder.parent, []
    for path, text in pages(evidence).items():
        full = beside / path
        if not full.is_file() or full.read_text("utf-8") != text:
            found.append(path.as_posix())
    drawn = (FIGURES / f"{name}.png" for name in _drawn(evidence))
    return [*found, *(path.as_posix() for path in drawn if not (beside / path).is_file())]


# --- tables -------------------------------------------------------------------------------------

GENERATED = "This page is made of the [evidence files](evidence.md) by `binep reproduce --from`."


def _tables(evidence: Evidence) -> str:
    parts = [
        "# Tables",
        f"{GENERATED} One page of it, with what deviates and what is open, is `RESULTS.md`.",
        *_runs_in_words(evidence),
    ]
    for study in STUDIES.values():
        if study.kind == "table":
            parts += [
                f"## {study.title}",
                figures.markdown_table(HEADER, table_rows(study, evidence), left=2),
                *table_notes(study, evidence),
            ]
            parts += _goals(evidence) if study is BEYOND else []
    return _page([*parts, *_variants(evidence)])


def _page(parts: list[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _runs_in_words(evidence: Evidence) -> list[str]:
    """Where the numbers come from."""
    found = [run for runs in evidence.groups for run in runs]

    def kinds(*keys: str) -> str:
        each = {" ".join(str(run.record.get(key) or "unknown") for key in keys) for run in found}
        return "; ".join(sorted(each))

    filled = sum(bool(run.record.get("commit_filled_in")) for run in found)
    return [
        f"Runs: {len(found)} of {len(evidence.groups)} recipes and variants. Devices: "
        f"{kinds('device_name')}. Engines: {kinds('engine', 'precision')}. PyTorch: "
        f"{kinds('torch')}. Each file holds its run's seed, commit, versions, complete recipe and "
        f"every epoch's metrics. The commits of {filled} were filled in afterwards, and are marked."
    ]


def _goals(evidence: Evidence) -> list[str]:
    """What is wanted of each network with binary synapses, and the recipe that comes closest."""
    rows = []
    for row, goal in GOALS.items():
        found = [
            (error, cell.recipe, gathered.epochs)
            for cell in BEYOND.cells
            if cell.row == row and cell.resolve().network.weights == "binary"
            for gathered in [look_up(cell, evidence)]
            if (error := gathered.error("test"))
        ]
        if found:
            error, recipe, epochs = min(found, key=lambda each: each[0].mean)
            reached = "reached" if error.mean < goal else "not reached"
            reached += ", one seed" if error.n == 1 else ""
            rows.append(
                [row, recipe, f"below {goal:.2f}", str(error), str(error.n), epochs, reached]
            )
    if not rows:
        return []
    header = ("", "best recipe", "goal", "our test", "n", "epochs", "")
    title = "What we want of each network, and our best recipe:"
    return [title, figures.markdown_table(header, rows, left=2)]


def _variants(evidence: Evidence) -> list[str]:
    """The runs that no study shows: recipes as they once were, or with a key changed."""
    shown = {recipe_hash(cell.resolve()) for study in STUDIES.values() for cell in study.cells}
    rows = []
    for mine in evidence.groups:
        if mine[0].recipe.data.validation or recipe_hash(mine[0].recipe) in shown:
            continue
        found = gather(mine, mine[0].recipe.training.epochs)
        recipe, *changed = full_name(mine[0].recipe).split("+")
        changed = [each for each in changed if not each.startswith("training.epochs")]
        errors = (str(found.error(split) or DASH) for split in ("test", "train"))
        rows.append([recipe, ", ".join(changed), *errors, str(len(found.counted)), found.epochs])
    if not rows:
        return []
    header = ("recipe", "with", "test", "train", "n", "epochs")
    return [
        "## Variants",
        "Runs of no recipe above as it ships, and what is changed in it.",
        figures.markdown_table(header, rows, left=2),
    ]


# --- by epoch -----------------------------------------------------------------------------------


def _epochs(evidence: Evidence) -> str:
    shown = [epoch for epoch in EPOCHS if any(epoch <= len(r[0].metrics) for r in evidence.groups)]
    parts = [
        "# Errors by epoch",
        f"{GENERATED} Mean ± sample standard deviation over all seeds that have come so far, in %, "
        "average readout. Training errors are read from the free phases before each update.",
    ]
    for split in ("test", "train"):
        rows = []
        for mine in evidence.groups:
            if mine[0].recipe.data.validation:
                continue
            recipe, *changed = full_name(mine[0].recipe).split("+")
            cells = (_at(mine, epoch, split) for epoch in shown)
            rows.append([recipe, ", ".join(changed), *cells, str(len(mine))])
        header = ("recipe", "with", *map(str, shown), "n")
        title = "## Test errors" if split == "test" else "## Training errors"
        parts += [title, figures.markdown_table(header, rows, left=2)]
    return _page(parts)


def _at(mine: list[Run], epoch: int, split: str) -> str:
    reached = [run for run in mine if len(run.metrics) >= epoch]
    error = spread_at(reached, epoch, lambda line: line[f"{split}_error"]["average"])
    return str(error or DASH)


# --- figures ------------------------------------------------------------------------------------


def _drawn(evidence: Evidence) -> dict[str, Any]:
    """A function for each figure that has data to draw."""
    studies = {study.name: study for study in _shown_studies(evidence)}
    trained = trained_recipes(evidence)
    return {
        **{name: (lambda s=study: figure(s, evidence)) for name, study in studies.items()},
        **{name: (lambda n=name: _training_curves(evidence, n)) for name in trained},
    }


def _shown_studies(evidence: Evidence) -> list[Study]:
    return [
        study
        for study in STUDIES.values()
        if study.kind != "table" and any(look_up(cell, evidence).counted for cell in study.cells)
    ]


def trained_recipes(evidence: Evidence) -> list[str]:
    """The recipes, as they ship, of which there are epochs to draw."""
    return [name for name in recipes.names() if look_up(Cell("", "", name), evidence).counted]


def _training_curves(evidence: Evidence, name: str) -> Any:
    """Errors and pi of a recipe's runs."""
    found, recipe = look_up(Cell("", "", name), evidence), recipes.load(name)
    histories = [run.metrics[: found.epoch] for run in found.counted]
    margin = recipe.learning.margin
    held = f", held back by {margin} in training" if margin else ""
    title = f"{name} (n = {len(histories)}){held}"
    names = figures.coupling_names(recipe)
    return figures.training_curves(histories, names, title, recipe.paper.test)


def _curves(evidence: Evidence) -> str:
    parts = ["# Figures and curves", GENERATED]
    for study in _shown_studies(evidence):
        parts += [
            f"## {study.title}",
            f"![{study.title}](figures/{study.name}.png)",
            figures.markdown_table(HEADER, table_rows(study, evidence), left=2),
            *table_notes(study, evidence),
        ]
    names = trained_recipes(evidence)
    if names:
        parts += [
            "## Training curves",
            "Lines: means over seeds; bands: ± one standard deviation. π = ln(flips in the epoch / "
            "weights + e⁻⁹), for each coupling from input to output.",
            *(f"![{name}](figures/{name}.png)" for name in names),
        ]
    return _page(parts)


# --- choices ------------------------------------------------------------------------------------


def _choices(evidence: Evidence) -> str:
    parts = [
        "# Choices",
        f"{GENERATED} The files are those of `{evidence.folder.name}/choices`. Errors are of "
        "validation images: the last 5,000 of the training set, which were kept out of training "
        "for these. What was set when test errors were known is listed in `RESULTS.md`.",
    ]
    for path in choice_files(evidence):
        choice = choices.read_choice(path)
        header, rows = choices.table(choice)
        parts += [f"## {choice.question}", figures.markdown_table(header, rows)]
        parts.append(f"`{path.name}`. {choices.standing(choice)}")
    return _page([*parts, *_tuning(evidence)])


def choice_files(evidence: Evidence) -> list[Path]:
    return sorted((evidence.folder / "choices").glob("*.json"))


def _tuning(evidence: Evidence) -> list[str]:
    """What `binep tune` finds from rates that are far off."""
    path = evidence.folder / "tuning.json"
    if not path.is_file():
        return []
    found = read_json(path, TUNING)
    try:
        header, rows = tuning_table(found)
        distance = max(s["tuned"]["mean"] - s["shipped"]["mean"] for s in found["starts"])
        epochs, factor = found["epochs"], found["factor"]
    except (KeyError, TypeError, ValueError) as error:
        raise BinepError(f"{path}: not what benchmarks/tune.py writes ({error!r})") from None
    return [
        "## Tuning by pi",
        f"`binep tune` was started from gammas and taus {factor:g} times too large or too small; "
        f"what it found was trained for {epochs} epochs. Errors are of validation images. At worst "
        f"it ends {distance:+.2f} from the recipe as it ships.",
        figures.markdown_table(header, rows, left=4),
    ]


def tuning_table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: what was found from each start, and its validation error."""
    header = ["recipe", "start", "gamma found", "tau found"]
    header += ["as it started", "tuned", "as it ships", "difference", "n", "time"]
    rows = []
    for start in found["starts"]:
        spreads = [Spread(**start[key]) for key in ("started", "tuned", "shipped")]
        rows.append(
            [
                start["recipe"],
                start["start"],
                *(" ".join(f"{rate:g}" for rate in start[key]) for key in ("gamma", "tau")),
                *map(str, spreads),
                f"{spreads[1].mean - spreads[2].mean:+.2f}",
                str(spreads[1].n),
                figures.duration(start["seconds"]),
            ]
        )
    return header, rows


# --- what ships ---------------------------------------------------------------------------------


def _reached(evidence: Evidence) -> str:
    """The table in the package that `binep recipes` shows."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list[str](REACHED), lineterminator="\n")
    writer.writeheader()
    for name in trained_recipes(evidence):
        found = look_up(Cell("", "", name), evidence)
        whole = [r for r in found.counted if len(r.metrics) >= r.recipe.training.epochs]
        if whole:
            writer.writerow(describe_reached(name, whole))
    return stream.getvalue()
