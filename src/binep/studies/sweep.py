"""Sweeps: many trainings from one file, on this machine, under Slurm or on a Ray cluster.

recipe = "mnist-1fc-w"          # or a list of recipes
seeds = 3                       # 0 to 2, or a list of seeds
set = ["training.epochs=10"]    # in all of them

[grid]                          # every combination of these
"learning.beta" = [0.1, 0.3]
"network.dense" = [[512], [4096]]

[[trial]]                       # and these, one by one
recipe = "mnist-1fc-w-a"
set = ["learning.beta=0.2"]
seeds = [7]
"""

import itertools
import json
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from binep.errors import BinepError
from binep.files import read_text
from binep.report.figures import DASH
from binep.studies.evidence import open_evidence, write_index, write_result
from binep.training import recipe as recipes
from binep.training.naming import variant_name
from binep.training.run_folder import read_metrics
from binep.training.trials import Executor, Options, Outcome, Trial

KEYS = {"recipe", "seeds", "set", "grid", "trial"}
TRIAL_KEYS = {"recipe", "seeds", "set"}
REFRESH = 1.0  # seconds


# --- reading ------------------------------------------------------------------------------------


def read_sweep(path: Path, out: Path, options: Options | None = None) -> list[Trial]:
    """The trials of a file, each in a folder of `out` named after what it changes."""
    try:
        table = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise BinepError(f"{path}: not valid TOML: {error}") from None
    found: dict[str, Trial] = {}
    for recipe, overrides, seed in _described(path, table):
        chosen, name = recipes.load(recipe, overrides), variant_name(recipe, overrides)
        trial = Trial(chosen, seed, out, name, options or Options())
        other = found.setdefault(trial.label, trial)
        if recipes.plain(other.recipe) != recipes.plain(chosen):
            raise BinepError(
                f"{path}: two trials called {trial.label}: allowed are trials with names of their "
                "own; give one of the recipes another name"
            )
    if not found:
        raise BinepError(f"{path}: no trial is described: allowed is a recipe, or [[trial]]")
    return list(found.values())


def _described(path: Path, table: Mapping[str, Any]) -> Iterator[tuple[str, list[str], int]]:
    """Recipe, overrides and seed of each trial, all of them with one seed before the next."""
    _check_keys(path, table, KEYS, "")
    common, grid = _overrides(path, table), _table(path, table, "grid")
    listed = table.get("trial", [])
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise BinepError(f"{path}: trial={listed!r}: allowed are sections [[trial]]")
    groups: list[tuple[str, list[str], list[int]]] = []
    if "recipe" in table and (grid or not listed):
        values = [_values(path, key, value) for key, value in grid.items()]
        for recipe, *chosen in itertools.product(_names(path, table), *values):
            changed = [f"{k}={json.dumps(v)}" for k, v in zip(grid, chosen, strict=True)]
            groups.append((recipe, [*common, *changed], _seeds(path, table)))
    elif grid:
        raise BinepError(f"{path}: a grid needs a recipe: allowed is recipe = NAME")
    for each in listed:
        _check_keys(path, each, TRIAL_KEYS, "trial.")
        given = {**{key: table[key] for key in ("recipe", "seeds") if key in table}, **each}
        overrides = [*common, *_overrides(path, each)]
        groups += [(recipe, overrides, _seeds(path, given)) for recipe in _names(path, given)]
    rounds = max((len(seeds) for _, _, seeds in groups), default=0)
    for n in range(rounds):
        yield from ((r, changed, seeds[n]) for r, changed, seeds in groups if n < len(seeds))


def _check_keys(path: Path, table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise BinepError(
                f"{path}: unknown key {where}{key}: allowed are {', '.join(sorted(known))}"
            )


def _table(path: Path, table: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise BinepError(f"{path}: {key}={found!r}: allowed is a section [{key}]")
    # Without quotes a dotted key is a table in a table.
    flat = {}
    for name, value in found.items():
        inner = _table(path, found, name) if isinstance(value, dict) else None
        if inner is None:
            flat[name] = value
        else:
            flat.update({f"{name}.{below}": each for below, each in inner.items()})
    return flat


def _values(path: Path, key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise BinepError(f"{path}: grid {key}={values!r}: allowed is a list of values")
    return values


def _names(path: Path, table: Mapping[str, Any]) -> list[str]:
    given = table.get("recipe")
    names = [each for each in (given if isinstance(given, list) else [given]) if each]
    if not names or not all(isinstance(name, str) for name in names):
        raise BinepError(f"{path}: recipe={given!r}: allowed is a name, or a list of names")
    # A recipe's own file is looked for beside the sweep's, too.
    found = []
    for name in map(str, names):
        near = path.parent / name
        found.append(str(near) if near.suffix == ".toml" and near.is_file() else name)
    return found


def _seeds(path: Path, table: Mapping[str, Any]) -> list[int]:
    given = table.get("seeds", 1)
    seeds = list(range(given)) if _is_number(given) else given
    if not isinstance(seeds, list) or not seeds or not all(map(_is_number, seeds)):
        raise BinepError(
            f"{path}: seeds={given!r}: allowed is a number of seeds, or a list of them"
        )
    return seeds


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _overrides(path: Path, table: Mapping[str, Any]) -> list[str]:
    given = table.get("set", [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise BinepError(f'{path}: set={given!r}: allowed is a list as ["learning.beta=0.5"]')
    return given


# --- training -----------------------------------------------------------------------------------


def sweep(
    trials: Sequence[Trial], executor: Executor, *, evidence: Path | None = None
) -> Iterator[Outcome]:
    """Train what is missing of some trials; yields all, those that had finished before first.

    Args:
        evidence: a folder that gets the result of each trial that has finished.
    """
    finished = {id(trial): trial.finished() for trial in trials}
    found = [Outcome(trial, run) for trial in trials if (run := finished[id(trial)]) is not None]
    left = [trial for trial in trials if finished[id(trial)] is None]
    kept = False
    for outcome in itertools.chain(found, executor.run(left)):
        if evidence is not None and outcome.finished:
            assert outcome.run is not None
            try:
                write_result(outcome.run, evidence)
                kept = True
            except BinepError as error:
                outcome = Outcome(outcome.trial, outcome.run, str(error))
        yield outcome
    if evidence is not None and kept:
        write_index(open_evidence(evidence))


# --- showing ------------------------------------------------------------------------------------


class Board:
    """All trials in one table: what is known of each."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials, self.outcomes = list(trials), dict[str, Outcome]()

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.trial.label] = outcome

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.values() if outcome.failure]

    @property
    def unfinished(self) -> list[Trial]:
        done = {label for label, outcome in self.outcomes.items() if outcome.finished}
        return [trial for trial in self.trials if trial.label not in done]

    def rows(self) -> list[list[str]]:
        """Of each trial: name, state, epochs, errors in per cent."""
        return [self._row(trial) for trial in self.trials]

    def _row(self, trial: Trial) -> list[str]:
        outcome = self.outcomes.get(trial.label)
        lines = outcome.run.metrics if outcome and outcome.run else _metrics(trial)
        if outcome is None:
            state = "training" if lines else "waiting"
        elif outcome.failure:
            state = f"failed: {outcome.failure}"
        else:
            state = "finished" if outcome.finished else "stopped"
        errors = [
            f"{lines[-1][key]['average']:.2f}" if lines else DASH
            for key in ("train_error", "test_error")
        ]
        epochs = f"{len(lines)} of {trial.recipe.training.epochs}"
        return [trial.label, state, epochs, *errors]


HEADER = ["trial", "state", "epochs", "train %", "test %"]


def _metrics(trial: Trial) -> list[dict[str, Any]]:
    try:
        return read_metrics(trial.folder)
    except (BinepError, OSError):
        return []


@contextmanager
def shown(board: Board) -> Iterator[None]:
    """The table on a terminal, as it changes; elsewhere nothing."""
    if not sys.stdout.isatty():
        yield
        return
    from rich.live import Live
    from rich.table import Table

    def table() -> Table:
        found = Table(*HEADER, box=None)
        for row in board.rows():
            found.add_row(*row)
        return found

    over = threading.Event()
    with Live(table(), auto_refresh=False, transient=True) as live:

        def refresh() -> None:
            while not over.wait(REFRESH):
                live.update(table(), refresh=True)

        thread = threading.Thread(target=refresh, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
