"""How a state moves in one time step: prototypical, energy-based, or as bits alone.

A dynamics is a value with one method, `advance(neuron, state, drive, nudge)`, which returns a
layer's next state from its state, its drive, and (top layer, nudged phase) the nudge.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from binep.core.neurons import Neuron, range_of


class Dynamics(Protocol):
    """See `Prototypical`.

    `bits` says whether all that a neuron keeps from one step to the next is the bit that it sends.
    """

    bits: ClassVar[bool]

    def advance(
        self, neuron: Neuron, state: Tensor, drive: Tensor, nudge: Tensor | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Prototypical:
    """`s <- rho(drive)`, nudged `s <- rho(drive) + nudge` (eq. 25).

    Attributes:
        clamp_nudged: whether a nudged state is clamped to the neuron's range, [0, 1].
        send_state: whether a nudged state is sent as it is, beyond [0, 1] too, and not `rho` of it.
    """

    clamp_nudged: bool
    send_state: bool = False
    bits: ClassVar[bool] = False

    def advance(
        self, neuron: Neuron, state: Tensor, drive: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        moved = neuron(drive)
        if nudge is None:
            return moved
        moved = moved + nudge
        return moved.clamp(*range_of(neuron)) if self.clamp_nudged else moved


@dataclass(frozen=True)
class EnergyBased:
    """`s <- clamp((1-dt) s + dt (rho'(s) drive + nudge), 0, 1)` (eq. 22).

    Where activities are not within [0, 1] states are clamped to the neuron's own range.
    """

    dt: float
    bits: ClassVar[bool] = False

    def advance(
        self, neuron: Neuron, state: Tensor, drive: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        force = neuron.slope(state) * drive
        if nudge is not None:
            force = force + nudge
        return ((1 - self.dt) * state + self.dt * force).clamp(*range_of(neuron))


@dataclass(frozen=True)
class Hopfield:
    """`s <- drive + nudge`, of which only the bit `a = (s >= threshold)` is sent and remembered.

    Layers move in turn, so every move lowers the energy (see `binep.core.energy`) or leaves it, and
    the network comes to rest after finitely many. The state itself says how far a bit is from
    turning: outputs are read from it.
    """

    bits: ClassVar[bool] = True

    def advance(
        self, neuron: Neuron, state: Tensor, drive: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        return drive if nudge is None else drive + nudge
