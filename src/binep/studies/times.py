"""How long a recipe takes to train, as far as it has been measured."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from binep.studies.evidence import reached
from binep.training import recipe as recipes
from binep.training.recipe import Recipe


@dataclass(frozen=True)
class Minutes:
    """Minutes of a whole training; None where nobody has measured.

    Attributes:
        cpu: on two cores of an AMD EPYC or Intel Xeon. h200: on one NVIDIA H200.
    """

    cpu: float | None
    h200: float | None


def minutes(recipe: Recipe) -> Minutes:
    """How long a recipe takes: what its own runs took, else epochs of one that computes as much.

    The former are the mean over the runs of `reached`, on one kind of device; the latter those of
    benchmarks/RESULTS.md, of a recipe with the same data, layers, neurons and number of steps.
    """
    found = reached(recipe.name)
    own = {} if found is None else {_kind(found.device): found.seconds / found.epochs}
    alike = _epochs().get(_amount(recipe), {})
    epochs = recipe.training.epochs / 60

    def of(kind: str) -> float | None:
        seconds = own.get(kind, alike.get(kind))
        return None if seconds is None else seconds * epochs

    return Minutes(of("cpu"), of("h200"))


def _kind(device: str) -> str:
    if "H200" not in device:
        return "cpu"
    return "h200" if "," not in device else "several"


def _amount(recipe: Recipe) -> str:
    """What the time of an epoch depends on."""
    keys, learning = recipe.network, recipe.learning
    layers = [{**layer, "per_class": keys.per_class} for layer in keys.chain]
    phases = 3 if learning.sign == "centered" else 2
    steps = learning.free_steps, learning.nudged_steps, learning.method, phases
    binary = keys.activations, keys.weights, keys.dynamics, keys.updates
    return repr((recipe.data.name, layers, binary, steps, recipe.training.batch_size))


@cache
def _epochs() -> dict[str, dict[str, float]]:
    """Measured seconds per epoch on each kind of device, by the amount of computation."""
    path = resources.files("binep") / "studies" / "epoch_seconds.csv"
    rows: list[dict[str, Any]] = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    return {
        _amount(recipes.load(row["recipe"])): {
            kind: float(row[kind]) for kind in ("cpu", "h200") if row[kind]
        }
        for row in rows
    }
