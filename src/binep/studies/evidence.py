"""Results: runs as small files that a repository can hold, evidence and numbers in one.

results/
  mnist-1fc-w/seed0.json                           a run of a recipe as it ships
  mnist-1fc-w+network.scale=0.02/seed0.json        a run of a recipe with a key changed
  choices/                                         see `choices`
  figures/, commentary.md, notes.md, tuning.json   see `overview`

A file holds the run's record, its complete recipe and one line of metrics an epoch. What was
changed in a recipe stands in the folder's name, so that no variant passes for the recipe itself.
"""

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.report import changes, check_metrics, seconds_until, spread_at
from binep.training import recipe as recipes
from binep.training.recipe import Recipe
from binep.training.runs import Run

FORMAT = "binep results 1"
DIGITS = 5  # significant, of every number that is not an integer


# --- names --------------------------------------------------------------------------------------


def variant_name(recipe: Recipe) -> str:
    """A recipe's name and, if one ships under that name, what is changed in it.

    >>> variant_name(recipes.load("mnist-1fc-w", ["network.dense=[512]", "learning.beta=0.3"]))
    'mnist-1fc-w+network.dense=512'
    """
    if recipe.name not in recipes.names():
        return recipe.name
    changed = changes(recipe, recipes.load(recipe.name))
    return "+".join([recipe.name, *(re.sub(r"[^\w.,=+-]", "", text) for text in changed)])


def folder_name(run: Run) -> str:
    """Where a run's results belong; for how many epochs it was to be trained does not count."""
    # A rehearsal of `reproduce --epochs` tells them in its recipe's own name.
    return re.sub(r"\+training\.epochs=\d+(?=\+|$)", "", variant_name(run.recipe))


# --- writing ------------------------------------------------------------------------------------


def write_result(run: Run, to: str | Path) -> Path:
    """Write a run, finished or not, as `to/<recipe>/seed<seed>.json`; returns the path.

    What is there already is replaced, unless it has more epochs.
    """
    seed = run.record.get("seed")
    if not isinstance(seed, int):
        raise BinepError(f"{run.folder / 'record.json'}: seed={seed!r}: allowed is an integer")
    folder = Path(to) / folder_name(run)
    make_folder(folder)
    path = folder / f"seed{seed}.json"
    if path.exists() and len(read_result(path).metrics) > len(run.metrics):
        raise BinepError(
            f"{path} holds {len(read_result(path).metrics)} epochs, {run.folder} only "
            f"{len(run.metrics)}: remove it if it should be replaced"
        )
    head = {"format": FORMAT, "record": run.record, "recipe": without_none(asdict(run.recipe))}
    write_json(path, head, "metrics", [json.dumps(rounded(line)) for line in run.metrics])
    return path


def write_json(path: Path, head: dict[str, Any], name: str, items: list[str]) -> None:
    """Write an object in JSON whose changes can be read: a line a key, and a line an item.

    Args:
        head: all keys but the last. name: the last key, of a list. items: of that list, as JSON.
    """
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    listed = "\n" + ",\n".join(items) + "\n" if items else ""
    lines.append(f"{json.dumps(name)}: [{listed}]")
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


def rounded(value: Any) -> Any:
    """Numbers with as many digits as mean something."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


# --- reading ------------------------------------------------------------------------------------


def read_json(path: Path, format: str) -> dict[str, Any]:
    """An object in JSON that says it is of a format."""
    try:
        table = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BinepError(f"{path}: not readable as JSON ({error})") from None
    found = table.get("format") if isinstance(table, dict) else None
    if found != format:
        raise BinepError(f"{path}: format={json.dumps(found)}: allowed is {json.dumps(format)}")
    return table


def read_result(path: Path) -> Run:
    """Read a file of `write_result`, with its recipe and metrics checked; `folder` is the file."""
    table = read_json(path, FORMAT)
    for key, kind, word in (
        ("record", dict, "an object"),
        ("recipe", dict, "an object"),
        ("metrics", list, "a list"),
    ):
        if not isinstance(table.get(key), kind):
            raise BinepError(f"{path}: {key} is missing or damaged: allowed is {word}")
    try:
        recipe = recipes.from_table(table["recipe"])
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None
    run = Run(path, recipe, table["record"], table["metrics"])
    check_metrics(run.metrics, path)
    where = f"{path.parent.name}/{path.name}"
    belongs = f"{folder_name(run)}/seed{run.record.get('seed')}.json"
    if where != belongs:
        raise BinepError(f"{path}: by its content it is {belongs}: it was moved or changed")
    return run


@dataclass(frozen=True)
class Results:
    """A folder of results, each file of which is read once."""

    folder: Path
    _read: dict[str, list[Run]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """The recipes, and the variants of recipes, that there are runs of."""
        inside = self.folder.iterdir() if self.folder.is_dir() else []
        return sorted(path.name for path in inside if self._files(path.name))

    def runs_of(self, name: str) -> list[Run]:
        """The runs of a recipe, by seed."""
        if name not in self._read:
            self._read[name] = [read_result(path) for path in self._files(name)]
        return self._read[name]

    def _files(self, name: str) -> list[Path]:
        found = {
            path: match
            for path in (self.folder / name).glob("seed*.json")
            if (match := re.fullmatch(r"seed(\d+)\.json", path.name))
        }
        return sorted(found, key=lambda path: int(found[path][1]))


def open_results(folder: str | Path) -> Results:
    """A folder that holds results, or a `BinepError`."""
    results = Results(Path(folder))
    if not results.folder.is_dir():
        raise BinepError(f"{folder} is not a folder: allowed is one that binep results wrote")
    if not results.names:
        raise BinepError(f"{folder} holds no results: allowed is a folder that binep results wrote")
    return results


# --- what was reached ---------------------------------------------------------------------------

REACHED = ("recipe", "test", "test_sd", "best", "train", "n", "epochs", "seconds", "device")


@dataclass(frozen=True)
class Reached:
    """What the runs of a recipe, exactly as it ships, came to after their last epoch.

    Attributes:
        test, test_sd: test error in per cent, mean and sample standard deviation (None for n = 1).
        best: lowest test error of a seed. train: mean training error.
        n: seeds. epochs: they were trained for. seconds: mean wall time per run.
        device: on which, several with a comma between.
    """

    test: float
    test_sd: float | None
    best: float
    train: float
    n: int
    epochs: int
    seconds: float
    device: str


def reached(name: str) -> Reached | None:
    """Best and mean test error, n, epochs, seconds and device of a shipped recipe's runs.

    None if there is no evidence for it. The table is in the package, so that `binep recipes` can
    show it anywhere; `binep reproduce --from` writes it.
    """
    return _all_reached().get(name)


@cache
def _all_reached() -> dict[str, Reached]:
    path = resources.files("binep") / "studies" / "reached.csv"
    return {
        row["recipe"]: Reached(
            float(row["test"]),
            float(row["test_sd"]) if row["test_sd"] else None,
            float(row["best"]),
            float(row["train"]),
            int(row["n"]),
            int(row["epochs"]),
            float(row["seconds"]),
            row["device"],
        )
        for row in csv.DictReader(path.read_text("utf-8").splitlines())
    }


def describe_reached(name: str, found: Sequence[Run]) -> dict[str, Any]:
    """A row of the table that `reached` reads, from a recipe's finished runs."""
    epochs = found[0].recipe.training.epochs
    test = spread_at(found, epochs, lambda line: line["test_error"]["average"])
    train = spread_at(found, epochs, lambda line: line["train_error"]["average"])
    assert test is not None and train is not None
    seconds = [seconds_until(run, epochs) for run in found]
    values = (
        name,
        f"{test.mean:.4g}",
        "" if test.sd is None else f"{test.sd:.2g}",
        f"{min(run.metrics[epochs - 1]['test_error']['average'] for run in found):.4g}",
        f"{train.mean:.4g}",
        test.n,
        epochs,
        f"{sum(seconds) / len(seconds):.4g}",
        ", ".join(sorted({str(run.record.get("device_name")) for run in found})),
    )
    return dict(zip(REACHED, values, strict=True))
