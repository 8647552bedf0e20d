"""Evidence: runs as small files that a repository can hold, named once and never renamed.

evidence/
  runs/<hash of the recipe>/seed<k>.json   a run: record, recipe, and a line of metrics an epoch
  index.csv                                a line a run, for any tool to read
  claims.toml                              which runs speak for what, see `claims`
  choices/<question>.json                  what was chosen on validation images, see `compare`

The hash is of what the recipe sets (`recipe_hash`), not of how that differs from the recipe that
ships under its name today, so that editing a recipe, or adding a key to all of them, moves no file.
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.report import check_metrics, seconds_until, settings, spread_at
from binep.training import recipe as recipes
from binep.training.recipe import Recipe
from binep.training.run_folder import Run

FORMAT = "binep results 1"
RUNS, INDEX = "runs", "index.csv"
DIGITS = 5  # significant, of every number that is not an integer
HASH_DIGITS = 16  # hexadecimal
# Keys that say what a recipe is called, or for how long it goes on.
NOT_TELLING = ("name", "summary", "loggers", "paper", "training.epochs")


# --- names --------------------------------------------------------------------------------------


def recipe_hash(recipe: Recipe) -> str:
    """What a recipe trains, as sixteen hexadecimal digits: the name of its folder in `runs`.

    The first digits of SHA-256 of what the recipe sets otherwise than a key's default, as JSON with
    sorted keys. So a new key changes no hash if its default, or what its `before` says, is what was
    done without it. Nor do name, summary, the paper's numbers, the number of epochs (a run can be
    lengthened), or the folder of your own data. One value for all couplings is the same as a list
    of equal ones.

    >>> recipe_hash(recipes.load("mnist-1fc-w"))
    '41ad9c3a998e8777'
    """
    text = json.dumps(_telling(recipe), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def _telling(section: Any, where: str = "") -> dict[str, Any]:
    """The keys of a section, or of a whole recipe, that are not what they are by default."""
    found, hints = {}, get_type_hints(type(section))
    for key in fields(section):
        value, path = getattr(section, key.name), where + key.name
        if path in NOT_TELLING:
            continue
        if path == "data.path" and value is not None:
            value = Path(value).name
        value = _plain(value, path, _takes_one_or_many(hints[key.name]))
        if value not in ({}, _unsaid(key)):
            found[key.name] = value
    return found


def _plain(value: Any, path: str, one_for_all: bool) -> Any:
    if is_dataclass(value):
        return _telling(value, f"{path}.")
    if isinstance(value, list | tuple):
        items = [_plain(item, path, False) for item in value]
        alike = bool(items) and all(item == items[0] for item in items)
        return items[0] if one_for_all and alike else items
    return value


def _takes_one_or_many(hint: Any) -> bool:
    """Whether a key takes one value for all couplings as well as a list, one for each."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return len({get_origin(kind) is list for kind in kinds}) == 2


def _unsaid(key: Field) -> Any:
    """The value of a key that a recipe does not mention: what was done before the key existed."""
    if "before" in key.metadata:
        return key.metadata["before"]
    return key.default_factory() if key.default_factory is not MISSING else key.default


def result_path(recipe: Recipe, seed: int) -> Path:
    """Where a run belongs, inside a folder of evidence."""
    return Path(RUNS) / recipe_hash(recipe) / f"seed{seed}.json"


# --- writing ------------------------------------------------------------------------------------


def write_result(run: Run, to: str | Path) -> Path:
    """Write a run, finished or not, into a folder of evidence; returns the file's path.

    A file that is there already may grow by epochs that were trained since, and by nothing else:
    what has been published stays. `write_index` brings the index up to date.
    """
    seed = run.record.get("seed")
    if not isinstance(seed, int):
        raise BinepError(f"{run.folder / 'record.json'}: seed={seed!r}: allowed is an integer")
    path = Path(to) / result_path(run.recipe, seed)
    if path.exists():
        _check_continues(run, read_result(path))
    make_folder(path.parent)
    head = {"format": FORMAT, "record": run.record, "recipe": without_none(asdict(run.recipe))}
    write_json(path, head, "metrics", [json.dumps(rounded(line)) for line in run.metrics])
    return path


def _check_continues(run: Run, published: Run) -> None:
    """Check that a run begins with all of its published epochs."""
    known = published.metrics
    if len(known) > len(run.metrics):
        raise BinepError(
            f"{published.folder} holds {len(known)} epochs, {run.folder} only "
            f"{len(run.metrics)}: remove it if it should be replaced"
        )
    for line, earlier in zip(run.metrics, known, strict=False):
        if rounded(_timeless(line)) != rounded(_timeless(earlier)):
            raise BinepError(
                f"{published.folder} is another run of this recipe and seed than {run.folder}: "
                f"they part in epoch {earlier['epoch']}; remove it if it should be replaced"
            )


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("seconds", "test_seconds")}


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
    """Numbers rounded to their significant digits."""
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
    belongs = result_path(recipe, run.record.get("seed", -1))
    if path.parts[-2:] != belongs.parts[-2:]:
        raise BinepError(
            f"{path}: by its content it is {belongs.as_posix()}: it was moved or changed"
        )
    return run


@dataclass(frozen=True)
class Evidence:
    """A folder of evidence, each file of which is read once."""

    folder: Path
    _read: dict[str, list[Run]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def hashes(self) -> list[str]:
        """The recipes that there are runs of, each by its hash."""
        runs = self.folder / RUNS
        inside = runs.iterdir() if runs.is_dir() else []
        return sorted(path.name for path in inside if self._files(path.name))

    @property
    def groups(self) -> list[list[Run]]:
        """All runs, those of a recipe together, by the recipes' names."""
        found = [self.runs_of(each) for each in self.hashes]
        return sorted(found, key=lambda runs: (runs[0].recipe.name, runs[0].folder))

    def runs_of(self, recipe: Recipe | str) -> list[Run]:
        """The runs of a recipe, given as such or by its hash, by seed."""
        name = recipe if isinstance(recipe, str) else recipe_hash(recipe)
        if name not in self._read:
            self._read[name] = [read_result(path) for path in self._files(name)]
        return self._read[name]

    def _files(self, name: str) -> list[Path]:
        found = {
            path: match
            for path in (self.folder / RUNS / name).glob("seed*.json")
            if (match := re.fullmatch(r"seed(\d+)\.json", path.name))
        }
        return sorted(found, key=lambda path: int(found[path][1]))


def open_evidence(folder: str | Path) -> Evidence:
    """A folder that holds evidence, or a `BinepError`."""
    evidence = Evidence(Path(folder))
    if not evidence.folder.is_dir():
        raise BinepError(f"{folder} is not a folder: allowed is one that binep results wrote")
    if not evidence.hashes:
        raise BinepError(f"{folder} holds no runs: allowed is a folder that binep results wrote")
    return evidence


# --- the index ----------------------------------------------------------------------------------

FACTS = (
    *("file", "hash", "recipe", "seed", "epochs", "planned"),
    *("test_error", "test_error_single", "train_error", "seconds"),
    *("status", "device_name", "engine", "precision", "torch", "commit", "commit_filled_in"),
    "started",
)
FROM_RECORD = FACTS[FACTS.index("status") :]


def write_index(evidence: Evidence) -> Path:
    """Write `index.csv`: a line a run with its last errors, where it was made, and its recipe.

    After the facts of `FACTS` there is a column for each key, `section.key`, that some run sets
    otherwise than its default. Errors are in per cent, those of the average readout where it does
    not say single; `seconds` is wall time, tests included.
    """
    path = evidence.folder / INDEX
    write_whole(path, index(evidence))
    return path


def index(evidence: Evidence) -> str:
    """The text of the index."""
    found = [run for runs in evidence.groups for run in runs]
    every = [settings(run.recipe) for run in found]
    defaults = _unsaid_keys()
    keys = [
        key
        for key in (every[0] if every else ())
        if key != "training.epochs" and any(each[key] != defaults.get(key) for each in every)
    ]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*FACTS, *keys])
    for run, each in zip(found, every, strict=True):
        facts = _facts(run)
        writer.writerow([*(facts[name] for name in FACTS), *(_cell(each[key]) for key in keys)])
    return stream.getvalue()


def _facts(run: Run) -> dict[str, Any]:
    last = rounded(run.metrics[-1]) if run.metrics else {"test_error": {}, "train_error": {}}
    return {
        "file": result_path(run.recipe, run.record["seed"]).as_posix(),
        "hash": recipe_hash(run.recipe),
        "recipe": run.recipe.name,
        "seed": run.record["seed"],
        "epochs": len(run.metrics),
        "planned": run.recipe.training.epochs,
        "test_error": last["test_error"].get("average", ""),
        "test_error_single": last["test_error"].get("single", ""),
        "train_error": last["train_error"].get("average", ""),
        "seconds": f"{seconds_until(run, len(run.metrics)):.4g}",
        **{key: _cell(run.record.get(key)) for key in FROM_RECORD},
    }


def _cell(value: Any) -> str:
    """A value as a cell of the index: texts as they are, nothing for None, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _unsaid_keys() -> dict[str, Any]:
    """What every key means that is not said, as `section.key`."""
    found: dict[str, Any] = {}

    def walk(cls: type, where: str) -> None:
        hints = get_type_hints(cls)
        for key in fields(cls):
            if is_dataclass(hints[key.name]):
                walk(hints[key.name], f"{where}{key.name}.")
            elif (default := _unsaid(key)) is not MISSING:
                found[where + key.name] = default

    walk(Recipe, "")
    return found


# --- what was reached ---------------------------------------------------------------------------

REACHED = ("recipe", "test", "test_sd", "best", "train", "n", "epochs", "seconds", "device")


@dataclass(frozen=True)
class Reached:
    """The results of a recipe's runs, exactly as it ships, after their last epoch.

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
