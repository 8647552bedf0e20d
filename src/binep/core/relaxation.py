"""Relaxation: one function for the free and the nudged phase."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from binep.core.network import Clamped, Network, State, Switches
from binep.errors import BinepError, choose

NUDGES = ("live", "constant")


@dataclass(frozen=True)
class Nudge:
    """The pull of the target on the top layer, of strength `beta` (signed, not 0).

    `live`: `beta (y - s_top)` with the current state; `constant`: `beta (y - s*_top)` with the
    state from which the phase starts.

    Args:
        target: (batch, outputs), see `Network.target`.
        beta: strength, negative to push away.
        kind: "live" or "constant".
    """

    target: Tensor
    beta: float
    kind: str = "live"

    def __post_init__(self) -> None:
        choose(self.kind, NUDGES, "nudge kind")
        if self.beta == 0 or not math.isfinite(self.beta):
            raise BinepError(f"beta={self.beta}: it must be a finite number other than 0")


@dataclass(frozen=True)
class Relaxation:
    """Where a relaxation ended, and how it came to rest.

    Attributes:
        state: s1..sN, each (batch, *layer).
        switches: the pools' winners *at that state*, one entry a coupling (None without pooling);
            what a gradient taken there has to use.
        residuals: for each step run, the largest change of any neuron, (steps,); of its bit, if
            that is all it has.
    """

    state: State
    switches: Switches
    residuals: Tensor

    @property
    def steps(self) -> int:
        """How many steps were run."""
        return len(self.residuals)

    def __repr__(self) -> str:
        layers = ", ".join(str(tuple(layer.shape)) for layer in self.state)
        last = f", last residual {float(self.residuals[-1]):.2g}" if self.steps else ""
        return f"Relaxation({self.steps} steps, layers {layers}{last})"


def step(
    network: Network,
    clamped: Clamped,
    state: State,
    nudge: Tensor | None = None,
    turns: Sequence[range] | None = None,
) -> State:
    """One time step: all layers move at once, or those of each turn one after the other.

    Args:
        nudge: `beta * pull` on the top layer, like the top layer, in the nudged phase.
        turns: which layers move together, in order; `network.turns` by default.
    """
    state, neurons, top = [*state], network.neurons, len(state) - 1
    for layers in network.turns if turns is None else turns:
        activity = network.activity(state, nudged=nudge is not None)
        drives = network.drives(clamped, activity, layers)
        for n, drive in zip(layers, drives, strict=True):
            force = nudge if n == top else None
            if force is not None and network.cost == "cross_entropy":
                # The readout is one more neighbour of the top layer: its pull is a drive.
                drive, force = drive + force, None
            state[n] = network.dynamics.advance(neurons[n], state[n], drive, force)
    return state


def relax(
    network: Network,
    x: Tensor | Clamped,
    state: State,
    steps: int,
    nudge: Nudge | None = None,
    *,
    tolerance: float | None = None,
    track_gradients: bool = False,
    turns: Sequence[range] | None = None,
) -> Relaxation:
    """Let the network settle for `steps` steps from `state`, freely or under a nudge.

    Bits alone are done once no bit has changed: further steps would change nothing.

    Args:
        x: the mini-batch, (batch, *input_shape), or what `network.clamp` made of it.
        state: s1..sN to start from, see `Network.initial`; it is not changed.
        tolerance: stop after a step whose residual is at most this, for the whole mini-batch.
        track_gradients: keep autograd's graph of all the steps.
        turns: see `step`.

    >>> from binep import Dense, Network
    >>> net = Network((4,), [Dense(4, 8), Dense(8, 2)], classes=2)
    >>> x = torch.rand(3, 4)
    >>> relax(net, x, net.initial(x), steps=50).residuals.shape
    torch.Size([50])
    """
    if not isinstance(steps, int) or steps < 1:
        raise BinepError(f"steps={steps!r}: a phase needs an integer of at least 1")
    if tolerance is not None and not tolerance >= 0:
        raise BinepError(f"tolerance={tolerance}: it must be a number of at least 0")
    with torch.set_grad_enabled(track_gradients):
        clamped = network.clamp(x)
        _check_state(network, clamped, state)
        if nudge is not None:
            _check_target(network, clamped, nudge.target)
        if clamped.handicap is not None:
            _check_target(network, clamped, clamped.handicap)
        constant = (
            nudge.beta * network.pull(state, nudge.target)
            if nudge is not None and nudge.kind == "constant"
            else None
        )
        if network.dynamics.bits:
            tolerance = 0.0
        residuals = []
        for _ in range(steps):
            force = constant
            if nudge is not None and nudge.kind == "live":
                force = nudge.beta * network.pull(state, nudge.target)
            before, state = state, step(network, clamped, state, force, turns)
            with torch.no_grad():
                residuals.append(network.change(before, state))
            if tolerance is not None and residuals[-1] <= tolerance:
                break
        switches = network.switches(clamped, network.activity(state))
    return Relaxation(state, switches, torch.stack(residuals))


def _check_state(network: Network, clamped: Clamped, state: State) -> None:
    allowed = [(len(clamped.x), *shape) for shape in network.layer_shapes]
    given = [tuple(s.shape) for s in state]
    if given != allowed:
        raise BinepError(f"state of shapes {given} does not fit: allowed is {allowed}")


def _check_target(network: Network, clamped: Clamped, target: Tensor) -> None:
    allowed: Sequence[int] = (len(clamped.x), network.classes * network.per_class)
    if tuple(target.shape) != tuple(allowed):
        raise BinepError(f"target of shape {tuple(target.shape)}: allowed is {allowed}")
