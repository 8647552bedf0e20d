"""Activation functions: what a neuron sends to its neighbours, and how strongly it listens."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from binep.errors import BinepError


class Neuron(Protocol):
    """`neuron(s)` is the activity `a = rho(s)`; `neuron.slope(s)` is `rho'(s)`, both like `s`."""

    binary: ClassVar[bool]
    """Whether an activity is one bit."""

    def __call__(self, state: Tensor) -> Tensor: ...

    def slope(self, state: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class HardSigmoid:
    """Real activations: `rho(s) = clamp(s, 0, 1)`, with slope 1 on [0, 1] and 0 outside.

    >>> HardSigmoid()(torch.tensor([-0.5, 0.25, 3.0]))
    tensor([0.0000, 0.2500, 1.0000])
    """

    binary: ClassVar[bool] = False

    def __call__(self, state: Tensor) -> Tensor:
        return state.clamp(0, 1)

    def slope(self, state: Tensor) -> Tensor:
        """`rho'(s)`: 1 on [0, 1], else 0."""
        return ((state >= 0) & (state <= 1)).to(state.dtype)


@dataclass(frozen=True)
class Heaviside:
    """Binary activations (eq:heavi): `rho(s) = 1 if s >= threshold else 0`, sent as a bool tensor.

    The slope is the pseudo-derivative of eq:def-pseudo-derivative: `1/(2 sigma)` where
    `|s - threshold| <= sigma`, else 0.

    >>> Heaviside()(torch.tensor([0.49, 0.5, 1.0]))
    tensor([False,  True,  True])
    >>> Heaviside(sigma=0.25).slope(torch.tensor([0.2, 0.25, 0.5, 1.0]))
    tensor([0., 2., 2., 0.])
    """

    threshold: float = 0.5
    sigma: float = 0.5

    binary: ClassVar[bool] = True

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
