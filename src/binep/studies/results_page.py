"""RESULTS.md: one page made of the claims and of the runs that they name.

evidence/commentary.md, if it is there, is its last part: the only one that a person writes. All
else is on the pages of `detail_pages`.
"""

from collections.abc import Iterator

from binep.report import figures
from binep.report.figures import DASH, number
from binep.studies.claims import read_claims
from binep.studies.evidence import Evidence
from binep.studies.paper import BEYOND, TABLE_1, TABLE_2, Cell, Study
from binep.studies.reproduce import Entry, entries
from binep.studies.verdict import BETTER, MISSING, SAME, SHORT, SINGLE, WORSE, judge
from binep.training import recipe as recipes

LIMIT = 8000  # bytes
HEADER = ("", "", "paper", "ours", "n", "epochs", "verdict", "what differs", "time per run")
MEANINGS = {
    BETTER: "Better",
    SAME: "No difference shown",
    WORSE: "Worse",
    SHORT: "Fewer epochs than the paper's, not judged",
    SINGLE: "One seed, not judged",
    MISSING: "Not run",
}


def overview(evidence: Evidence) -> str:
    """The text of RESULTS.md."""
    folder = evidence.folder.name
    parts = [
        "# Results",
        f"Made of the files in `{folder}/` by `binep reproduce --from {folder}`. Errors in % of "
        "the test images, average readout, after the last epoch: mean ± sample standard deviation "
        "over n seeds; the paper's over 5 trials. p: two-sided t-test against the paper, Welch's, "
        "or one-sample where it prints no deviation; not corrected for the number of tests. Above "
        "0.05 no difference is shown, which does not show that there is none. One seed is never "
        "judged. Training errors, errors by epoch, curves, choices: `docs/results`; what was tried "
        "and why: `docs/notebook.md`.",
        "## Tables 1 and 2",
        "A cell holds the paper's algorithm; what deviates stands below it as *ours*. † is told "
        "below.",
        *_in_short(evidence),
        figures.markdown_table(HEADER, list(_rows((TABLE_1, TABLE_2), evidence)), left=2),
        "## Beyond the paper",
        figures.markdown_table(
            ("", "recipe", "test", "n", "epochs"), list(_beyond(evidence)), left=2
        ),
        *_after_test(evidence),
    ]
    commentary = evidence.folder / "commentary.md"
    if commentary.is_file():
        parts.append(commentary.read_text("utf-8").strip())
    return "\n\n".join(parts) + "\n"


def _in_short(evidence: Evidence) -> Iterator[str]:
    """How the cells of the paper stand, in a line each, and ours beside them."""
    cells: dict[str, list[str]] = {word: [] for word in MEANINGS}
    ours: dict[str, list[str]] = {BETTER: [], SAME: [], WORSE: []}
    for cell in (*TABLE_1.cells, *TABLE_2.cells):
        for entry in entries(cell, evidence):
            found = judge(entry.found.error("test"), cell.paper, entry.found.complete)
            name = _short(cell)
            if entry.name and found.word in ours:
                ours[found.word].append(f"{name}, {entry.name}")
            elif not entry.name:
                cells[found.word].append(name)
    total = sum(map(len, cells.values()))
    lines = [f"Of the {total} cells:", ""]
    for word, meaning in MEANINGS.items():
        if named := cells[word]:
            listed = f": {'; '.join(named)}" if word not in (SAME, MISSING) else ""
            lines.append(f"- {meaning}: {len(named)}{listed}")
    beside = [f"{word}: {'; '.join(ours[word])}" for word in (BETTER, WORSE) if ours[word]]
    if any(ours.values()):
        lines.append(f"- Ours beside them, {'. '.join([*beside, f'{SAME}: {len(ours[SAME])}'])}")
    yield "\n".join(lines)


def _short(cell: Cell) -> str:
    return f"{cell.row} {cell.column}".replace("EP, ", "")


def _rows(studies: tuple[Study, ...], evidence: Evidence) -> Iterator[list[str]]:
    row = None
    for cell in (cell for study in studies for cell in study.cells):
        for entry in entries(cell, evidence):
            found, paper = entry.found, cell.paper
            error = found.error("test")
            yield [
                "" if cell.row == row else cell.row,
                _name(entry),
                DASH if entry.name else number(paper.test, paper.test_sd),
                str(error or DASH),
                str(len(found.counted)) if found.counted else DASH,
                found.epochs,
                str(judge(error, paper, found.complete)),
                "; ".join(filter(None, (entry.differs, entry.note))),
                found.wall_time,
            ]
            row = cell.row


def _name(entry: Entry) -> str:
    mark = " †" if entry.after_test and entry.found.counted else ""
    return (f"ours: {entry.name}" if entry.name else entry.cell.column) + mark


def _beyond(evidence: Evidence) -> Iterator[list[str]]:
    """The recipes that the paper does not have, of which there are runs."""
    row = None
    for cell in BEYOND.cells:
        (entry,) = entries(cell, evidence)
        error = entry.found.error("test")
        if error is None or cell.resolve().paper.test is not None:
            continue
        mark = " †" if entry.after_test else ""
        yield [
            "" if cell.row == row else cell.row,
            cell.recipe + mark,
            str(error),
            str(error.n),
            entry.found.epochs,
        ]
        row = cell.row


def _after_test(evidence: Evidence) -> list[str]:
    """What was set when test errors were known, of all recipes that claims speak of."""
    named: dict[str, list[str]] = {}
    for cell, claim in read_claims(evidence).items():
        for each in (claim, *claim.ours):
            trained = evidence.runs_of(each.runs or recipes.load(cell))
            if each.after_test and trained:
                named.setdefault(each.after_test, []).append(cell)
    if not named:
        return []
    return [
        "## † Set when test errors were known",
        "All other choices were made on validation images, or before training.",
        "\n".join(f"- {', '.join(cells)}: {text}." for text, cells in named.items()),
    ]
