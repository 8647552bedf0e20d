"""Runs that belong together: those that differ in their seeds only."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from binep.errors import BinepError
from binep.report.figures import Spread
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.recipe import Recipe
from binep.training.run_folder import Run, find_runs


def open_runs(folders: Iterable[Path]) -> list[Run]:
    """All runs in some folders, each once, with metrics that a report can be made of."""
    paths = {path.resolve(): path for folder in folders for path in find_runs(folder)}
    return [_open(path) for path in paths.values()]


def _open(path: Path) -> Run:
    run = runs.open_run(path)
    check_metrics(run.metrics, path / "metrics.jsonl")
    return run


def check_metrics(metrics: list[Any], path: Path) -> None:
    """See that a table and a figure can be made of some lines of metrics."""
    needed = {"epoch", "train_error", "test_error", "loss", "test_loss", "pi", "alpha", "residual"}
    needed |= {"alpha_range", "undecided", "seconds", "test_seconds"}
    for n, line in enumerate(metrics, start=1):
        if not isinstance(line, dict) or not needed <= line.keys():
            raise BinepError(f"{path}: line {n} is not one that binep writes")


def settings(recipe: Recipe) -> dict[str, Any]:
    """Every key of a recipe that training depends on, as `section.key`."""
    return {
        key: value
        for name, section in asdict(recipe).items()
        if name not in ("name", "summary", "loggers", "paper")
        for key, value in _flat(section, name)
    }


def _flat(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{where}.{key}")
    else:
        yield where, value


def changes(recipe: Recipe, base: Recipe) -> list[str]:
    """What a recipe sets otherwise than another one, as `section.key=value`."""
    before = settings(base)
    return [
        f"{key}={json.dumps(value)}"
        for key, value in settings(recipe).items()
        if value != before[key]
    ]


def spread_at(
    found: Iterable[Run], epoch: int, pick: Callable[[dict[str, Any]], float]
) -> Spread | None:
    """A number of an epoch's metrics over runs, all of which have come that far; None of none."""
    values = [pick(run.metrics[epoch - 1]) for run in found] if epoch else []
    return Spread.of(values) if values else None


def seconds_until(run: Run, epoch: int) -> float:
    """Wall time of training and testing up to an epoch."""
    return sum(line["seconds"] + line["test_seconds"] for line in run.metrics[:epoch])


@dataclass(frozen=True)
class Group:
    """Runs of one recipe, which differ in their seeds.

    Attributes:
        label: the recipe's name, and what tells it from others of the same name.
        runs: all of them, one a seed, by seed.
        repeated: further runs with a seed that is already there; they are not counted again.
    """

    label: str
    runs: list[Run]
    repeated: list[Run]

    @property
    def recipe(self) -> Recipe:
        return self.runs[0].recipe

    @property
    def finished(self) -> bool:
        return any(run.finished for run in self.runs)

    @property
    def counted(self) -> list[Run]:
        """The finished runs; if there are none yet, those with an epoch behind them."""
        return [run for run in self.runs if run.finished or (not self.finished and run.metrics)]

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs if not run.finished]

    @property
    def epoch(self) -> int:
        """The last epoch that all counted runs have come to; 0 if there is none."""
        return min((len(run.metrics) for run in self.counted), default=0)

    @property
    def histories(self) -> list[list[dict[str, Any]]]:
        return [run.metrics for run in self.counted]

    @property
    def tested_on(self) -> str:
        return "validation" if self.recipe.data.validation else "test"

    @property
    def changed(self) -> list[str]:
        """What differs from the recipe of that name that ships with binep, if there is one."""
        name = self.recipe.name
        return changes(self.recipe, recipes.load(name)) if name in recipes.names() else []

    @property
    def summary(self) -> str:
        """What was trained, in one line."""
        data = self.recipe.data
        if data.path is None:
            return self.recipe.summary
        return f"{data.path}: {data.samples:,} training samples, {data.classes} classes"

    def error(self, split: str, readout: str = "average") -> Spread | None:
        return spread_at(self.counted, self.epoch, lambda line: line[f"{split}_error"][readout])


def group_runs(found: Sequence[Run]) -> list[Group]:
    """Put runs together that differ in their seeds only, in the order in which they are given."""
    by_recipe: dict[str, list[Run]] = {}
    for run in found:
        key = json.dumps([run.recipe.name, settings(run.recipe)])
        by_recipe.setdefault(key, []).append(run)
    return [_group(members, list(by_recipe.values())) for members in by_recipe.values()]


def _group(members: list[Run], everyone: list[list[Run]]) -> Group:
    recipe, seeds = members[0].recipe, dict[Any, Run]()
    for run in members:
        seeds.setdefault(run.record.get("seed"), run)
    namesakes = [m[0].recipe for m in everyone if m[0].recipe.name == recipe.name]
    apart = {text.partition("=")[0] for other in namesakes for text in changes(recipe, other)}
    values = [
        f"{key}={json.dumps(value)}" for key, value in settings(recipe).items() if key in apart
    ]
    # The recipe as it ships needs no more than its name, for however many epochs it is trained.
    ships = recipe.name in recipes.names() and not [
        text
        for text in changes(recipe, recipes.load(recipe.name))
        if not text.startswith("training.epochs=")
    ]
    path = recipe.data.path
    name = recipe.name if path is None else f"{recipe.name} on {Path(path).name}"
    return Group(
        label=name if ships and apart != {"training.epochs"} else " ".join([name, *values]),
        runs=[seeds[seed] for seed in sorted(seeds, key=lambda seed: (str(type(seed)), seed))],
        repeated=[run for run in members if run is not seeds[run.record.get("seed")]],
    )
