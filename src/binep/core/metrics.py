"""What is measured: errors of both readouts, flips and pi, agreement of two sets of gradients."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from binep.core.network import READOUTS, Network, State
from binep.core.relaxation import Relaxation
from binep.core.weights import BinaryWeight
from binep.errors import BinepError

Gradients = Mapping[str, Tensor]

PI_FLOOR = -9
# The cost of a sample is rounded to a multiple of this, so that sums of costs are exact, in
# whatever order and by however many processes they are added up.
COST_UNIT = 2.0**-24


@dataclass(frozen=True)
class Tally:
    """What was counted over some mini-batches; tallies add up.

    Attributes:
        samples, batches: how many were seen.
        loss: sum over samples of the cost at the free state, in multiples of `COST_UNIT`.
        wrong: samples misread from the free state, by each readout.
        undecided: samples for which all classes scored the same, as with a dead output.
        residual: sum over mini-batches of the last change of any neuron in the free phase.
        free_steps, nudged_steps: steps run in all; nudged ones of both signs if centered.
        flips: weights flipped, one count a binary coupling.
    """

    samples: int = 0
    batches: int = 0
    loss: float = 0.0
    wrong: dict[str, int] = field(default_factory=lambda: dict.fromkeys(READOUTS, 0))
    undecided: int = 0
    residual: float = 0.0
    free_steps: int = 0
    nudged_steps: int = 0
    flips: list[int] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            samples=self.samples + other.samples,
            batches=self.batches + other.batches,
            loss=self.loss + other.loss,
            wrong={r: self.wrong[r] + other.wrong[r] for r in READOUTS},
            undecided=self.undecided + other.undecided,
            residual=self.residual + other.residual,
            free_steps=self.free_steps + other.free_steps,
            nudged_steps=self.nudged_steps + other.nudged_steps,
            flips=[a + b for a, b in zip_longest(self.flips, other.flips, fillvalue=0)],
        )

    def replace(self, **counts: Any) -> "Tally":
        """The same tally with some counts replaced."""
        return replace(self, **counts)

    def error(self, readout: str) -> float:
        """Percentage of samples that a readout gets wrong."""
        return 100 * self.wrong[readout] / self.samples


@torch.no_grad()
def tally(
    network: Network, free: Relaxation, labels: Tensor, target: Tensor | None = None
) -> Tally:
    """Count one mini-batch, read from its free phase; `target` if it is known already."""
    target = network.target(labels) if target is None else target
    scores = network.scores(free.state)
    return Tally(
        samples=len(labels),
        batches=1,
        loss=float(in_units(network.costs(free.state, target)).sum()),
        wrong=errors(network, free.state, labels),
        undecided=int((scores == scores[:, :1]).all(1).sum()),
        residual=float(free.residuals[-1]),
        free_steps=free.steps,
    )


def in_units(costs: Tensor) -> Tensor:
    """Costs, float64, rounded to multiples of `COST_UNIT`."""
    return (costs / COST_UNIT + 0.5).floor() * COST_UNIT


def errors(network: Network, state: State, labels: Tensor) -> dict[str, int]:
    """How many samples each readout gets wrong: {"average": ..., "single": ...}."""
    return {r: int((network.predict(state, r) != labels).sum()) for r in READOUTS}


def pi(flips: int, weights: int) -> float:
    """`ln(flips / weights + e^-9)`: how busy a coupling was in an epoch (eq. 6).

    >>> round(pi(0, 100), 3), round(pi(100, 100), 3)
    (-9.0, 0.0)
    """
    return math.log(flips / weights + math.exp(PI_FLOOR))


def gradients(network: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter's gradient, by the parameter's name."""
    return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}


def true_gradients(network: Network) -> dict[str, Tensor]:
    """EP's gradients with the paper's factor taken out of the scales': all estimate `dL/dtheta`.

    `scale.grad` as EP fills it is `rule * alpha` times the gradient of the loss
    (`BinaryWeight.scale_factor`).
    """
    found = gradients(network)
    for n, coupling in enumerate(network.couplings):
        if isinstance(coupling.synapses, BinaryWeight):
            found[f"couplings.{n}.synapses.scale"] /= coupling.synapses.scale_factor
    return found


def cosine(a: Gradients, b: Gradients) -> dict[str, float]:
    """`<a, b> / (|a| |b|)` for each parameter; 1 where both are zero, 0 where one is."""
    return {name: _cosine(x, y) for name, x, y in _pairs(a, b)}


def relative_distance(a: Gradients, b: Gradients) -> dict[str, float]:
    """`|a - b| / |b|` for each parameter, `b` being the reference; 0 where they are equal."""
    return {
        name: 0.0 if torch.equal(x, y) else float((x - y).norm() / y.norm())
        for name, x, y in _pairs(a, b)
    }


def _cosine(a: Tensor, b: Tensor) -> float:
    if not a.any() or not b.any():
        return float(not a.any() and not b.any())
    a, b = a / a.norm(), b / b.norm()
    return float((a * b).sum().clamp(-1, 1))


def _pairs(a: Gradients, b: Gradients) -> list[tuple[str, Tensor, Tensor]]:
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise BinepError(f"gradients of different parameters: {', '.join(odd)} is only in one set")
    return [(name, a[name].double(), b[name].double()) for name in a]
