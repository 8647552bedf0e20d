"""What a packed file may say of its network, and the limits on its size.

`NETWORK` and `COUPLING` give every key its kind; `docs/format.md` has the same words. A seal proves
that a file is as it was written, not who wrote it: all of this is checked before any number is
used, or memory is taken for it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from binep.core.limits import (
    LARGEST,
    MOST_COUPLINGS,
    MOST_NEURONS,
    MOST_NUMBERS,
    MOST_PRODUCTS,
    MOST_STEPS,
    MOST_SYNAPSES,
    MOST_WIDTH,
    SMALLEST,
)
from binep.core.turns import ONLY, UPDATES
from binep.errors import BinepError

if TYPE_CHECKING:
    from binep.deploy.stored import StoredCoupling, StoredNetwork

KINDS = ("dense", "conv")
WEIGHTS = ("binary", "real")
ACTIVATIONS = ("real", "binary")
DYNAMICS = ("prototypical", "energy", "hopfield")
COSTS = ("mse", "cross_entropy")
READOUTS = ("average", "single")

Shape = tuple[int, ...]


class Kind(ABC):
    """What a value may be; `str(kind)` says it in words."""

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether a value is one of these."""


@dataclass(frozen=True)
class Whole(Kind):
    low: int
    high: int

    def __str__(self) -> str:
        return f"integer, {self.low} to {self.high}"

    def holds(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high


@dataclass(frozen=True)
class Number(Kind):
    low: float = -LARGEST
    high: float = LARGEST
    name: str = "number within +-2^64"

    def __str__(self) -> str:
        return self.name

    def holds(self, value: Any) -> bool:
        return type(value) in (int, float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Word(Kind):
    choices: tuple[str, ...]

    def __str__(self) -> str:
        return " or ".join(f"`{choice}`" for choice in self.choices)

    def holds(self, value: Any) -> bool:
        return type(value) is str and value in self.choices


class Truth(Kind):
    def __str__(self) -> str:
        return "true or false"

    def holds(self, value: Any) -> bool:
        return type(value) is bool


class Table(Kind):
    def __str__(self) -> str:
        return "object"

    def holds(self, value: Any) -> bool:
        return type(value) is dict


@dataclass(frozen=True)
class Row(Kind):
    """A list of so many items of a kind; or null."""

    kind: Kind
    lengths: range | tuple[int, ...]
    or_null: bool = False

    def __str__(self) -> str:
        ends = self.lengths
        many = (
            f"{ends[0]} to {ends[-1]}" if isinstance(ends, range) else " or ".join(map(str, ends))
        )
        return f"list of {many}, each {self.kind}" + ", or null" * self.or_null

    def holds(self, value: Any) -> bool:
        if value is None:
            return self.or_null
        return (
            type(value) is list
            and len(value) in self.lengths
            and all(self.kind.holds(item) for item in value)
        )


_SIZE = Whole(1, MOST_NEURONS)
_POSITIVE = Number(SMALLEST, LARGEST, "number, 2^-64 to 2^64")
_NORMALISATION = range(1, MOST_NEURONS + 1)

NETWORK: dict[str, Kind] = {
    "input_shape": Row(_SIZE, (1, 3)),
    "image_shape": Row(_SIZE, (1, 2, 3)),
    "mean": Row(Number(), _NORMALISATION, or_null=True),
    "std": Row(_POSITIVE, _NORMALISATION, or_null=True),
    "couplings": Row(Table(), range(1, MOST_COUPLINGS + 1)),
    "activations": Word(ACTIVATIONS),
    "threshold": Number(),
    "sigma": _POSITIVE,
    "dynamics": Word(DYNAMICS),
    "updates": Word(UPDATES),
    "dt": Number(SMALLEST, 1, "number, 2^-64 to 1"),
    "initial_state": Number(),
    "steps": Whole(1, MOST_STEPS),
    "cost": Word(COSTS),
    "classes": _SIZE,
    "per_class": _SIZE,
    "readout": Word(READOUTS),
    "origin": Table(),
}

COUPLING: dict[str, Kind] = {
    "kind": Word(KINDS),
    "below": _SIZE,
    "above": _SIZE,
    "kernel": Whole(1, MOST_WIDTH),
    "padding": Whole(0, MOST_WIDTH),
    "pool": Whole(1, MOST_WIDTH),
    "weights": Word(WEIGHTS),
    "bias": Truth(),
}


def check_facts(facts: Any) -> None:
    """Check that every key of a network's description is there and has an allowed value."""
    _check_keys(facts, NETWORK, "the network")
    for n, coupling in enumerate(facts["couplings"]):
        _check_keys(coupling, COUPLING, f"coupling {n}")


def _check_keys(facts: Any, known: Mapping[str, Kind], where: str) -> None:
    if type(facts) is not dict:
        raise BinepError(f"{where} is {_shown(facts)}: allowed is an object")
    for key in (*known, *facts):
        if key not in facts:
            raise BinepError(f"{where} lacks {key}: allowed is {known[key]}")
        if key not in known:
            raise BinepError(f"{where} has {_shown(key)}: allowed are {', '.join(known)}")
        if not known[key].holds(facts[key]):
            raise BinepError(f"{where}: {key}={_shown(facts[key])}: allowed is {known[key]}")


def check_network(network: "StoredNetwork") -> None:
    """Check that the parts fit each other, and that no sample takes too much memory or time."""
    _check_input(network)
    _check_dynamics(network)
    _check_cost(network)
    _check_sizes(network)


def _check_input(network: "StoredNetwork") -> None:
    image, mean, std = network.image_shape, network.mean, network.std
    if math.prod(image) != math.prod(network.input_shape):
        raise BinepError(f"images {image} do not fit the input {network.input_shape}")
    if (mean is None) != (std is None) or (mean and {len(mean), len(std or ())} != {image[0]}):
        raise BinepError(
            f"mean={_shown(mean)}, std={_shown(std)}: allowed are both null, or {image[0]} numbers "
            "each, one for each channel or feature"
        )


def _check_dynamics(network: "StoredNetwork") -> None:
    """Check that neurons, dynamics and the order in which layers move go together."""
    bits = {"prototypical": (False,), "energy": (False, True), "hopfield": (True,)}
    dynamics, updates = network.dynamics, network.updates
    if network.binary not in bits[dynamics] or updates != ONLY.get(dynamics, updates):
        raise BinepError(
            f"dynamics={dynamics!r} with activations={network.activations!r} and "
            f"updates={updates!r}: see docs/format.md for what goes together"
        )


def _check_cost(network: "StoredNetwork") -> None:
    if network.cost == "cross_entropy" and (
        network.binary or network.per_class != 1 or len(network.couplings) < 2
    ):
        raise BinepError(
            "cost='cross_entropy': allowed with real activations, per_class=1 and at least two "
            "couplings"
        )


def _check_sizes(network: "StoredNetwork") -> None:
    """Check that each coupling fits the layer below, and that all of them fit the limits."""
    shape, products = tuple(network.input_shape), 0
    neurons = math.prod(shape)
    for n, coupling in enumerate(network.couplings):
        where, below = f"coupling {n}", shape
        _within(coupling.fan_in, MOST_SYNAPSES, where, "synapses of one neuron")
        shape = coupling.above_shape(below)
        driven = coupling.map_shape(below) if coupling.kind == "conv" else shape
        _within(math.prod(driven), MOST_NEURONS, where, "neurons before pooling")
        _within(numbers(coupling, below, n), MOST_NUMBERS, where, "numbers in its windows")
        products += 2 * math.prod(driven) * coupling.fan_in * (network.steps if n else 1)
        neurons += math.prod(shape)
    _within(neurons, MOST_NEURONS, "the network", "neurons")
    _within(products, MOST_PRODUCTS, "the network", "products of a free phase")
    if shape != (network.classes * network.per_class,):
        raise BinepError(
            f"output layer {shape} does not fit {network.classes} classes of "
            f"{network.per_class} neurons"
        )


def numbers(coupling: "StoredCoupling", below: Shape, n: int) -> int:
    """What a sample takes at coupling n: neurons, or the windows of a convolution, up and down.

    Nothing is sent down to the input.
    """
    if coupling.kind == "dense":
        return max(coupling.below, coupling.above)
    place, above, *sides = coupling.kernel**2, *coupling.map_shape(below)
    turned = math.prod(side + coupling.kernel - 1 for side in sides)
    up = math.prod(sides) * max(coupling.fan_in, above)
    return max(up, turned * above * place if n else 0)


def _within(count: int, most: int, where: str, what: str) -> None:
    if count > most:
        raise BinepError(f"{where} has {count:,} {what}: allowed are at most {most:,}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
