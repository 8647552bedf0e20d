"""A run on disk, and what is read of it.

runs/mnist-1fc-w-seed0/
  recipe.toml       complete and resolved
  record.json       seed, commit, versions, device, engine, precision, times
  metrics.jsonl     one line per epoch
  checkpoint-*      see `checkpoints`

All of them are sealed, see `seals`, and a checkpoint says which recipe, seed, data and metrics it
is of: a file that was altered, or is another run's, is refused.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from binep.core.metrics import Tally
from binep.core.network import Network
from binep.data import Dataset, Folder
from binep.data.own import fingerprint
from binep.engines.base import Engine
from binep.engines.select import select_device, select_engine
from binep.errors import LONGEST, BinepError
from binep.files import claimed, read_text, read_whole, telling, write_whole
from binep.training import checkpoints, seals
from binep.training import recipe as recipes
from binep.training.fit import as_dataset
from binep.training.recipe import Recipe
from binep.training.signals import exit_code
from binep.training.trainer import evaluate

OF = {"recipe", "seed", "data", "metrics"}  # what a checkpoint says of its run


@dataclass(frozen=True)
class Run:
    """A run as it stands on disk."""

    folder: Path
    recipe: Recipe
    record: dict[str, Any]
    metrics: list[dict[str, Any]]

    def __repr__(self) -> str:
        error = f", test error {self.last['test_error']['average']:.2f} %" if self.last else ""
        epochs = f"{len(self.metrics)} of {self.recipe.training.epochs} epochs"
        return f"Run({str(self.folder)!r}, {epochs}{error})"

    @property
    def finished(self) -> bool:
        return len(self.metrics) >= self.recipe.training.epochs

    @property
    def exit_code(self) -> int:
        """What a process that trained it should end with: 0, or by which signal it was stopped."""
        return 0 if self.finished else exit_code(self.record.get("signal"))

    def network(self, device: str = "auto", *, newest: bool = False) -> Network:
        """The trained network of the newest checkpoint.

        If that is damaged, the one before is read with a warning; with `newest` it is an error.
        """
        found = checkpoints.load(self.folder, warn=_warn, newest=newest)
        if found is None:
            raise BinepError(f"{self.folder} has no checkpoint yet: let it train for a while")
        check_belongs(self, found[1])
        network = self.recipe.build_network()
        checkpoints.restore_network(network, found[0])
        return network.to(select_device(device))

    def engine(self, device: str = "auto") -> Engine:
        """An engine that can evaluate the trained network."""
        network = self.network(device)
        return select_engine(
            "auto", network, self.recipe.build_learning(), self.recipe.build_optimizers(network)
        )

    @property
    def last(self) -> dict[str, Any] | None:
        """The metrics of the last epoch finished."""
        return self.metrics[-1] if self.metrics else None

    def dataset(
        self,
        given: Dataset | Any = None,
        *,
        device: str = "auto",
        data_dir: Folder | None = None,
        offline: bool = False,
    ) -> Dataset:
        """The data that the run trains and is tested on; `given`, if they were in `train`."""
        whole = all_data(self.recipe, given, data_dir, offline)
        check_same_data(self.folder, self.record, self.recipe, fingerprint_of(self.recipe, whole))
        return self.recipe.hold_out(whole.to(select_device(device)))

    def evaluate(
        self,
        split: str = "test",
        *,
        device: str = "auto",
        data_dir: Folder | None = None,
        offline: bool = False,
        dataset: Dataset | Any = None,
    ) -> Tally:
        """Read the "test" or "train" images out of the trained network; see `dataset`."""
        dataset = self.dataset(dataset, device=device, data_dir=data_dir, offline=offline)
        return evaluate(self.engine(device), dataset, getattr(dataset, split))


def all_data(
    recipe: Recipe, given: Dataset | Any, data_dir: Folder | None, offline: bool
) -> Dataset:
    """All of a recipe's data: loaded, or handed over."""
    if given is None:
        return recipe.load_data(data_dir=data_dir, offline=offline)
    return as_dataset(given)


def fingerprint_of(recipe: Recipe, dataset: Dataset) -> str | None:
    """The fingerprint of data of one's own; None of those that binep verifies by itself."""
    return fingerprint(dataset) if recipe.data.published is None else None


def check_same_data(folder: Path, record: dict[str, Any], recipe: Recipe, mark: str | None) -> None:
    """Check that your own data are still those that the run was trained on."""
    seen = record.get("data_fingerprint")
    if mark is not None and seen is not None and seen != mark:
        raise BinepError(
            f"{recipe.data.place} is not what {folder} was trained on: its content has changed; "
            "bring the file back, or train anew in another --out"
        )


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def open_run(folder: str | Path) -> Run:
    """Read a run's folder, or the only run inside a folder."""
    found = find_runs(folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BinepError(f"{folder} holds {len(found)} runs, name one of them: {names}")
    path = found[0]
    # Before the rest: what training writes meanwhile is later than this.
    newest = checkpoints.newest_facts(path)
    record, is_sealed = read_record(path)
    recipe, recipe_is_sealed = _read_recipe(path)
    if is_sealed and not recipe_is_sealed:
        raise BinepError(f"{path / 'recipe.toml'}: {seals.ALTERED}")
    if recipe_is_sealed and not is_sealed:
        _warn(f"{path / 'record.json'} has no seal, what lies beside it has: it may be altered")
    run = Run(path, recipe, record, read_metrics(path, is_sealed))
    if newest is not None:
        check_belongs(run, newest)
    return run


def find_runs(folder: str | Path) -> list[Path]:
    """The folder itself if it is a run, else the runs directly inside it."""
    folder = Path(folder)
    inside = []
    with telling("read", folder):
        if is_run(folder):
            return [folder]
        if folder.is_dir():
            inside = sorted(p for p in folder.iterdir() if is_run(p))
    if not inside:
        raise BinepError(
            f"{folder} is not a run: allowed is a folder that binep train wrote, with recipe.toml "
            "and record.json in it"
        )
    return inside


def is_run(folder: Path) -> bool:
    return (folder / "recipe.toml").is_file() and (folder / "record.json").is_file()


def summary_of(folder: Path) -> dict[str, Any]:
    """A run's line in a list of runs; if it cannot be read, the reason."""
    try:
        run = open_run(folder)
    except BinepError as error:
        return {
            "run": str(folder), "state": f"unreadable: {error}", "epochs": 0, "of": 0,
            "test_error": None, "updated": "",
        }  # fmt: skip
    return {
        "run": str(folder),
        "state": "finished" if run.finished else _state(run),
        "epochs": len(run.metrics),
        "of": run.recipe.training.epochs,
        "test_error": run.last["test_error"]["average"] if run.last else None,
        "updated": str(run.record.get("updated", ""))[:16].replace("T", " "),
    }


def _state(run: Run) -> str:
    """State of an unfinished run: whether a process trains it, by its folder's lock."""
    try:
        with claimed(run.folder):
            return "stopped"
    except BinepError:
        return "training"


def read_metrics(folder: Path, must: bool = False) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line cut off by a crash is left out.

    Args:
        must: whether each line must have its seal; otherwise, as of version 0.1, none may.
    """
    path = folder / "metrics.jsonl"
    lines = read_whole(path).splitlines() if path.exists() else []
    found = []
    for n, line in enumerate(lines):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            if n + 1 < len(lines):
                raise BinepError(f"{path}: line {n + 1} is damaged") from None
    for n, line in enumerate(found):
        if not isinstance(line, dict):
            raise BinepError(f"{path}: line {n + 1} is damaged")
    try:
        return seals.unchained(found, must)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None


def write_metrics(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    text = "".join(line + "\n" for line in seals.chained(lines))
    path = folder / "metrics.jsonl"
    if not path.exists() or read_whole(path) != text.encode():
        write_whole(path, text)


def read_record(folder: Path) -> tuple[dict[str, Any], bool]:
    """The record, and whether it has a seal, as what goes with it then must have."""
    path = folder / "record.json"
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BinepError):
            raise
        raise BinepError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(found, dict):
        raise BinepError(f"{path}: allowed is what binep train writes, an object")
    try:
        return seals.unsealed(found)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None


def write_record(folder: Path, record: dict[str, Any]) -> None:
    write_whole(folder / "record.json", seals.sealed(record))


def _read_recipe(folder: Path) -> tuple[Recipe, bool]:
    """The recipe, and whether it has a seal."""
    path = folder / "recipe.toml"
    text = read_text(path)
    try:
        is_sealed = seals.is_sealed(text)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None
    return recipes.load(path), is_sealed


def check_belongs(run: Run, facts: dict[str, Any]) -> None:
    """Check that a checkpoint belongs to this run: seed, recipe, data and metrics so far."""
    of, epochs = facts.get("run"), facts.get("epoch")
    if of is None:  # of version 0.1
        return
    if type(epochs) is not int or not 0 <= epochs <= run.recipe.training.epochs:
        raise BinepError(
            f"{run.folder}: its checkpoint is after {str(epochs)[:LONGEST]} epochs: allowed are 0 "
            f"to {run.recipe.training.epochs}"
        )
    where = f"{run.folder}: its checkpoint after {epochs} epochs is of another run"
    if not isinstance(of, dict) or not of.keys() >= OF or not isinstance(of["recipe"], dict):
        raise BinepError(f"{where}: allowed is one that says its {', '.join(sorted(OF))}")
    try:
        trained = recipes.from_table(of["recipe"])
    except BinepError as error:
        raise BinepError(f"{where}: {error}") from None
    # A trained network may be measured on other hardware: see `on_hardware`.
    trained = replace(trained, hardware=run.recipe.hardware)
    told = [
        f"{word} was {json.dumps(old)}, is {json.dumps(new)}"
        for word, old, new in (
            ("seed", of["seed"], run.record.get("seed")),
            ("data_fingerprint", of["data"], run.record.get("data_fingerprint")),
        )
        if old != new
    ]
    told += differences_so_far(trained, run.recipe, epochs)
    if told:
        raise BinepError(f"{where}: {'; '.join(told)}")
    if len(run.metrics) < epochs:
        _warn(f"{run.folder}/metrics.jsonl has lost lines: {len(run.metrics)} of {epochs} epochs")
    elif seals.last_seal(run.metrics[:epochs]) != of["metrics"]:
        raise BinepError(f"{run.folder}/metrics.jsonl: not the metrics of this run's checkpoint")


def differences_so_far(old: Recipe, new: Recipe, epochs: int) -> list[str]:
    """What differs between two recipes in the epochs trained so far."""
    same_rates = all(old.rates(n) == new.rates(n) for n in range(epochs + 1))
    free = (
        "name",
        "summary",
        "loggers",
        "paper.",
        "training.epochs",
        *(["schedule."] if same_rates else []),
    )
    return [
        f"{key} was {json.dumps(was)}, now {json.dumps(now)}"
        for key, was, now in _differences(asdict(old), asdict(new))
        if not key.startswith(free)
    ]


def _differences(old: dict, new: dict, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in old:
        if isinstance(old[key], dict):
            yield from _differences(old[key], new[key], f"{where}{key}.")
        elif old[key] != new[key]:
            yield where + key, old[key], new[key]
