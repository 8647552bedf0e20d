"""RESULTS.md: everything that a folder of evidence says, generated from its files alone.

evidence/commentary.md, if it is there, is taken over word for word: the only part that a person
writes. What is too long for it is in evidence/notes.md.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.report import figures
from binep.report.figures import DASH, Spread
from binep.studies import compare as choices
from binep.studies.evidence import Evidence, read_json, recipe_hash
from binep.studies.reproduce import (
    AGREES,
    BETTER,
    BEYOND,
    GOALS,
    HEADER,
    MISSING,
    SHORT,
    STUDIES,
    TABLE_1,
    TABLE_2,
    WORSE,
    Cell,
    Found,
    Study,
    figure,
    gather,
    look_up,
    table_notes,
    table_rows,
    variant_name,
    verdict,
)
from binep.training import recipe as recipes

TUNING = "binep tuning 1"  # the format of what benchmarks/tune.py writes
FIGURES = "docs/results/figures"
DPI = 90  # of the figures, which a repository keeps
MEANINGS = {
    BETTER: "Better than the paper",
    AGREES: "As in the paper",
    WORSE: "Worse than the paper",
    SHORT: "Trained for fewer epochs than the paper, not judged",
    MISSING: "Not run",
}


def write_overview(evidence: Evidence) -> Path:
    """Write RESULTS.md beside a folder of evidence, and its figures into it; returns the path."""
    drawn = evidence.folder.parent / FIGURES
    make_folder(drawn)
    for study in _figures(evidence):
        figures.save(figure(study, evidence), drawn / f"{study.name}.png", dpi=DPI)
    for name in trained_recipes(evidence):
        draw_training(evidence, name, drawn / f"{name}.png")
    path = evidence.folder.parent / "RESULTS.md"
    write_whole(path, overview(evidence))
    return path


def overview(evidence: Evidence) -> str:
    """The text of RESULTS.md."""
    parts = [
        "# Results",
        f"Generated from `{evidence.folder.name}/` by `binep reproduce --from "
        f"{evidence.folder.name}`; a test sees to it that the two agree. Errors are in per cent of "
        "the test images, of the average readout, after the last epoch: mean ± sample standard "
        "deviation over n seeds. The paper's are over 5 trials.",
        *_evidence(evidence),
        "## Tables 1 and 2 in short",
        *_in_short((TABLE_1, TABLE_2), evidence),
    ]
    commentary = evidence.folder / "commentary.md"
    if commentary.is_file():
        parts.append(commentary.read_text("utf-8").strip())
    for study in STUDIES.values():
        if study.kind == "table":
            parts += _table(study, evidence)
            parts += _goals(evidence) if study is BEYOND else []
    parts += ["## Figures"]
    for study in STUDIES.values():
        if study.kind != "table":
            parts += _drawn_study(study, evidence)
    parts += _variants(evidence)
    parts += _training(evidence)
    parts += _choices(evidence)
    parts += _tuning(evidence)
    return "\n\n".join(parts) + "\n"


# --- in words -----------------------------------------------------------------------------------


def _evidence(evidence: Evidence) -> list[str]:
    """Where the numbers come from."""
    found = [run for runs in evidence.groups for run in runs]
    if not found:
        return ["There are no runs yet."]

    def kinds(*keys: str) -> str:
        each = {" ".join(str(run.record.get(key) or "unknown") for key in keys) for run in found}
        return "; ".join(sorted(each))

    return [
        f"Runs: {len(found)} of {len(evidence.groups)} recipes and variants. Devices: "
        f"{kinds('device_name')}. Engines: {kinds('engine', 'precision')}. PyTorch: "
        f"{kinds('torch')}. Each file holds its run's seed, commit, versions, complete recipe and "
        "every epoch's metrics."
    ]


def _in_short(studies: Iterable[Study], evidence: Evidence) -> Iterator[str]:
    """Which cells agree with the paper."""
    sentences: dict[str, list[str]] = {meaning: [] for meaning in MEANINGS}
    for study in studies:
        for cell in study.cells:
            found = look_up(cell, evidence)
            kind = verdict(cell.paper, found)
            more = {WORSE: _remedy(cell, evidence), SHORT: _so_far(cell, found)}.get(kind, "")
            sentences[kind].append(_sentence(cell, found.error("test")) + more)
    total = sum(map(len, sentences.values()))
    judged = sum(len(sentences[kind]) for kind in (BETTER, AGREES, WORSE))
    good = judged - len(sentences[WORSE])
    yield (
        f"Of {total} cells {judged} were trained as long as the paper's, and {good} of these are "
        "as good as the paper's or better: our mean is at most its mean plus two of its standard "
        "deviations, or plus 0.1 where that is more. Better is what lies as far below."
    )
    lines = [
        f"- **{meaning}** ({len(sentences[kind])}): {'; '.join(sentences[kind])}."
        for kind, meaning in MEANINGS.items()
        if sentences[kind]
    ]
    yield "\n".join(lines)


def _sentence(cell: Cell, ours: Spread | None) -> str:
    name = f"{cell.row}, {cell.column}"
    theirs = figures.number(cell.paper.test, cell.paper.test_sd)
    return f"{name}: {ours} (n = {ours.n}) against {theirs}" if ours else name


def _so_far(cell: Cell, found: Found) -> str:
    """What the paper has after as many epochs as we trained, if an appendix says so."""
    for each in (each for study in STUDIES.values() for each in study.cells):
        if (each.recipe, each.epoch) == (cell.recipe, found.epoch) and each.paper.test is not None:
            theirs = figures.number(each.paper.test, each.paper.test_sd)
            return f" (after {found.epoch} epochs, when the paper has {theirs})"
    return f" (after {found.epoch} epochs)"


def _remedy(cell: Cell, evidence: Evidence) -> str:
    """What our best recipe beyond the paper has instead, of those that train on the same images."""
    row = next((each.row for each in BEYOND.cells if each.recipe == cell.recipe), None)
    images, ours = recipes.load(cell.recipe).data, look_up(cell, evidence).error("test")
    found = [
        (error, each.recipe, verdict(cell.paper, gathered))
        for each in BEYOND.cells
        if each.row == row and recipes.load(each.recipe).data == images
        for gathered in [look_up(each, evidence)]
        if (error := gathered.error("test")) and ours and error.mean < ours.mean
    ]
    if not found:
        return ""
    error, recipe, kind = min(found, key=lambda each: each[0].mean)
    meaning = MEANINGS[kind][0].lower() + MEANINGS[kind][1:]
    return f" (`{recipe}`, on the same images: {error}, n = {error.n}, {meaning})"


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
            rows.append(
                [row, recipe, f"below {goal:.2f}", str(error), str(error.n), epochs, reached]
            )
    if not rows:
        return []
    header = ("", "best recipe", "goal", "our test", "n", "epochs", "")
    title = "What we want of each network, and our best recipe:"
    return [title, figures.markdown_table(header, rows, left=2)]


# --- tables and figures -------------------------------------------------------------------------


def _table(study: Study, evidence: Evidence) -> list[str]:
    rows = table_rows(study, evidence)
    return [
        f"## {study.title}",
        figures.markdown_table(HEADER, rows, left=2),
        *table_notes(study, evidence)[1:],
    ]


def _drawn_study(study: Study, evidence: Evidence) -> list[str]:
    found = [look_up(cell, evidence) for cell in study.cells]
    drawn = any(each.counted for each in found)
    picture = f"![{study.title}]({FIGURES}/{study.name}.png)"
    return [
        f"### {study.title}",
        picture if drawn else "Not run.",
        *([figures.markdown_table(HEADER, table_rows(study, evidence), left=2)] if drawn else []),
        *table_notes(study, evidence)[1:],
    ]


def _variants(evidence: Evidence) -> list[str]:
    """The runs that no table or figure shows: recipes as they once were, or with a key changed."""
    shown = {recipe_hash(cell.resolve()) for study in STUDIES.values() for cell in study.cells}
    rows = []
    for mine in evidence.groups:
        if mine[0].recipe.data.validation or recipe_hash(mine[0].recipe) in shown:
            continue
        found = gather(mine, mine[0].recipe.training.epochs)
        recipe, *changed = variant_name(mine[0].recipe).split("+")
        errors = (str(found.error(split) or DASH) for split in ("test", "train"))
        rows.append([recipe, ", ".join(changed), *errors, str(len(found.counted)), found.epochs])
    if not rows:
        return []
    header = ("recipe", "with", "test", "train", "n", "epochs")
    return [
        "## Variants",
        "Runs that are in no table or figure above, since a key of the recipe as it ships is "
        "changed in them.",
        figures.markdown_table(header, rows, left=2),
    ]


def _figures(evidence: Evidence) -> list[Study]:
    """The studies of which there is something to draw."""
    return [
        study
        for study in STUDIES.values()
        if study.kind != "table" and any(look_up(c, evidence).counted for c in study.cells)
    ]


def trained_recipes(evidence: Evidence) -> list[str]:
    """The recipes, as they ship, of which there are epochs to draw."""
    return [name for name in recipes.names() if look_up(Cell("", "", name), evidence).counted]


def _training(evidence: Evidence) -> list[str]:
    names = trained_recipes(evidence)
    if not names:
        return []
    return [
        "## Training curves",
        "Lines: means over seeds; bands: ± one standard deviation. π = ln(flips in the epoch / "
        "weights + e⁻⁹), for each coupling from input to output.",
        *(f"![{name}]({FIGURES}/{name}.png)" for name in names),
    ]


def draw_training(evidence: Evidence, name: str, path: Path) -> None:
    """Draw errors and pi of a recipe's runs."""
    found, recipe = look_up(Cell("", "", name), evidence), recipes.load(name)
    histories = [run.metrics[: found.epoch] for run in found.counted]
    margin = recipe.learning.margin
    held = f", held back by {margin} in training" if margin else ""
    title = f"{name} (n = {len(histories)}){held}"
    drawn = figures.training_curves(
        histories, figures.coupling_names(recipe), title, recipe.paper.test
    )
    figures.save(drawn, path, dpi=DPI)


# --- choices ------------------------------------------------------------------------------------


def _choices(evidence: Evidence) -> list[str]:
    found = [choices.read_choice(path) for path in choice_files(evidence)]
    parts = [
        "## Choices",
        "Made on validation images: the last 5,000 of the training set, which were kept out of "
        "training for these. No choice was made on test images.",
    ]
    for choice in found:
        header, rows = choices.table(choice)
        parts += [f"### {choice.question}", figures.markdown_table(header, rows)]
        parts.append(choices.standing(choice))
    return parts if found else []


def choice_files(evidence: Evidence) -> list[Path]:
    return sorted((evidence.folder / "choices").glob("*.json"))


# --- tuning -------------------------------------------------------------------------------------


def _tuning(evidence: Evidence) -> list[str]:
    """Where `binep tune` comes to from rates that are far off."""
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
