"""What a way to relax real activations offers, and what both ways share; see `shallow`, `deep`."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from binep.core.network import Clamped, Network
from binep.core.plan import PhasePlan
from binep.engines.numba.delta.sign_bytes import SignBytes
from binep.engines.numba.jit import inner
from binep.engines.numba.rules import nudge, step_prototypical

Array = Any


class Nudging(NamedTuple):
    """How the output is nudged.

    Attributes:
        on: whether it is. live: with the current state, otherwise with that of the start.
        beta: signed strength. clamped: whether the nudged state is clamped to [0, 1].
        raw: whether it is sent as it is, beyond [0, 1] too.
    """

    on: bool
    live: bool
    beta: Any
    clamped: bool
    raw: bool


FREE = Nudging(False, False, np.float32(0), clamped=False, raw=False)


def nudging(network: Network, phase: PhasePlan) -> Nudging:
    """A phase's nudge in the numbers of kernels."""
    if not phase.nudged:
        return FREE
    clamped = bool(getattr(network.dynamics, "clamp_nudged", True))
    beta = np.float32(phase.beta)
    return Nudging(True, not phase.constant, beta, clamped, network.sends_state)


@inner
def nudged(drive, state, rest, target, how):
    """`rules.step_prototypical` of a nudged output, whose phase began at `rest`."""
    pull = nudge(state if how.live else rest, target, how.beta)
    return step_prototypical(drive, pull, how.clamped)


@dataclass
class Settled:
    """How a phase went: steps that it stands for, steps run, and the last largest change."""

    steps: int
    taken: int
    residual: float


class Relaxer:
    """How a network relaxes. A *state* is that of a relaxing mini-batch, in a layout of its own.

    Args:
        early_stop: do not run steps that are known to change nothing.
    """

    def __init__(self, network: Network, early_stop: bool) -> None:
        self.network, self.early_stop = network, early_stop

    def refresh(self, n: int) -> None:
        """Copy coupling n's signs anew, if there is a copy that outlives a mini-batch."""

    def take_scales(self) -> None:
        """Read scales and biases, which stay as they are during a mini-batch."""

    def inner(self, n: int) -> SignBytes | None:
        """Coupling n's bytes, if flips can be made in them one by one."""

    def begin(self, clamped: Clamped) -> Any:
        """Where a mini-batch stands at t = 0."""
        raise NotImplementedError

    def states(self, relaxing: Any) -> list[Tensor]:
        """s1..sN, (batch, *layer)."""
        raise NotImplementedError

    def run(
        self, relaxing: Any, phase: PhasePlan, tolerance: float | None, target: Array
    ) -> Settled:
        """Run a phase from where a mini-batch stands, in place; less of it if it settles."""
        raise NotImplementedError
