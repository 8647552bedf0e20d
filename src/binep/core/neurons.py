"""Activation functions: what a neuron sends to its neighbours, and how strongly it listens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Protocol

import torch
from torch import Tensor

from binep.errors import BinepError

UNIT = (0.0, 1.0)


class Neuron(Protocol):
    """`neuron(s)` is the activity `a = rho(s)`; `neuron.slope(s)` is `rho'(s)`, both like `s`.

    It may also have `range`, the lowest and the highest activity, [0, 1] by default (`range_of`);
    `name`, by which recipes and saved networks know it (`binep.registry`); and
    `check_layer(shape)`, which refuses a layer that it does not fit.
    """

    binary: ClassVar[bool]
    """Whether an activity is one bit."""

    def __call__(self, state: Tensor) -> Tensor: ...

    def slope(self, state: Tensor) -> Tensor: ...


def range_of(neuron: Neuron) -> tuple[float, float]:
    """The lowest and the highest activity of a neuron: states of energy-based layers stay between.

    >>> range_of(HardSigmoid())
    (0.0, 1.0)
    """
    low, high = getattr(neuron, "range", UNIT)
    if not -math.inf < low < high < math.inf:
        raise BinepError(
            f"{neuron} of range ({low}, {high}): allowed are two finite numbers, a < b"
        )
    return float(low), float(high)


@dataclass(frozen=True)
class HardSigmoid:
    """Real activations: `rho(s) = clamp(s, 0, 1)`, with slope 1 on [0, 1] and 0 outside.

    >>> HardSigmoid()(torch.tensor([-0.5, 0.25, 3.0]))
    tensor([0.0000, 0.2500, 1.0000])
    """

    name: ClassVar[str] = "hard-sigmoid"
    binary: ClassVar[bool] = False
    range: ClassVar[tuple[float, float]] = UNIT

    def __call__(self, state: Tensor) -> Tensor:
        return state.clamp(0, 1)

    def slope(self, state: Tensor) -> Tensor:
        """`rho'(s)`: 1 on [0, 1], else 0."""
        return ((state >= 0) & (state <= 1)).to(state.dtype)


@dataclass(frozen=True)
class Heaviside:
    """Binary activations (eq. 11): `rho(s) = 1 if s >= threshold else 0`, sent as a bool tensor.

    The slope is the pseudo-derivative of eq. 14: `1/(2 sigma)` where
    `|s - threshold| <= sigma`, else 0.

    >>> Heaviside()(torch.tensor([0.49, 0.5, 1.0]))
    tensor([False,  True,  True])
    >>> Heaviside(sigma=0.25).slope(torch.tensor([0.2, 0.25, 0.5, 1.0]))
    tensor([0., 2., 2., 0.])
    """

    threshold: float = 0.5
    sigma: float = 0.5

    name: ClassVar[str] = "heaviside"
    binary: ClassVar[bool] = True
    range: ClassVar[tuple[float, float]] = UNIT

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise BinepError(f"Heaviside threshold={self.threshold}: it must be a finite number")
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise BinepError(f"Heaviside sigma={self.sigma}: it must be a finite number above 0")

    def __call__(self, state: Tensor) -> Tensor:
        return state >= self.threshold

    def slope(self, state: Tensor) -> Tensor:
        """`rho'(s)`: `1/(2 sigma)` inside the window, else 0."""
        listening = (state - self.threshold).abs() <= self.sigma
        return torch.where(listening, 1 / (2 * self.sigma), 0.0).to(state.dtype)


@dataclass(frozen=True)
class Winners(Heaviside):
    """Bits that compete: of each group only the `k` with the largest state may be 1.

    `rho(s) = 1` where `s >= threshold` and fewer than k of the group are ahead: have a larger
    state, or the same and a lower number. A layer of them still minimises the energy with its
    neighbours held, now among the activities that have at most k ones in a group.

    Args:
        k: how many of a group may be on.
        group: how many adjacent neurons of a vector, or channels at one place of an image, compete;
            by default all.

    >>> Winners(k=2)(torch.tensor([[0.7, 0.9, 0.7, 0.1]]))
    tensor([[ True,  True, False, False]])
    """

    k: int = 1
    group: int | None = None

    name: ClassVar[str] = "winners"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("k", self.k), ("group", self.group)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BinepError(f"Winners {name}={value!r}: it must be an integer of at least 1")

    def check_layer(self, shape: Sequence[int]) -> None:
        """See that the neurons, or channels, of a layer can be divided into groups."""
        if self.group is not None and shape[0] % self.group:
            raise BinepError(
                f"Winners group={self.group} on a layer of {shape[0]} neurons or channels: allowed "
                "is what divides them"
            )

    def __call__(self, state: Tensor) -> Tensor:
        groups = state.unflatten(1, (-1, self.group or state.shape[1]))
        # A stable sort keeps the lower of equal ones ahead.
        order = groups.sort(dim=2, descending=True, stable=True).indices
        ahead = torch.zeros_like(groups, dtype=torch.bool)
        ahead.scatter_(2, order[:, :, : self.k], True)
        return ahead.flatten(1, 2) & super().__call__(state)


@dataclass(frozen=True)
class PerLayer:
    """Neurons that differ from layer to layer, first hidden layer to top; see `Network.neurons`.

    It stands where the neuron of a network is asked for: whoever knows only `HardSigmoid` or
    `Heaviside` does not take it for one of them.
    """

    layers: tuple[Neuron, ...]

    peculiarity: ClassVar[str] = "a neuron of its own in each layer"

    @property
    def binary(self) -> bool:  # type: ignore[override]
        """Whether all activities are bits."""
        return all(neuron.binary for neuron in self.layers)

    def __call__(self, state: Tensor) -> NoReturn:
        raise BinepError(f"{self.peculiarity}: allowed is network.neurons[n], of one layer")

    slope = __call__


def of_layers(neuron: Neuron | Sequence[Neuron], layers: int) -> Neuron:
    """One neuron for all layers, or one each; an error if their number does not fit."""
    if not isinstance(neuron, Sequence):
        return neuron
    if len(neuron) != layers:
        raise BinepError(
            f"{len(neuron)} neurons for {layers} layers that relax: allowed is one, or {layers}"
        )
    alike = all(each == neuron[0] for each in neuron)
    return neuron[0] if alike else PerLayer(tuple(neuron))  # type: ignore[return-value]
