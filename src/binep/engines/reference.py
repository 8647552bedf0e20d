"""The definition of correct: one mini-batch in plain torch, on any device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from binep import metrics
from binep.gradients import Learning
from binep.network import Network
from binep.optim import Optimizers


@dataclass(frozen=True)
class MiniBatch:
    """What one training step did.

    Attributes:
        loss: batch mean of the cost at the free state, before the update.
        wrong: samples misread from the free state by each readout.
        flips: weights flipped, one count a binary coupling.
        residual: the last change of any neuron in the free phase.
        free_steps, nudged_steps: steps run; nudged ones of both signs for a centered estimate.
    """

    loss: float
    wrong: dict[str, int]
    flips: list[int]
    residual: float
    free_steps: int
    nudged_steps: int


class ReferenceEngine:
    """Trains a network one mini-batch at a time: relax, estimate, update."""

    name = "reference"

    def __init__(self, network: Network, learning: Learning, optimizers: Optimizers) -> None:
        self.network, self.learning, self.optimizers = network, learning, optimizers

    def train(self, x: Tensor, labels: Tensor) -> MiniBatch:
        """One training step on a mini-batch, (batch, *input_shape), with labels, (batch,)."""
        phases = self.learning.backward(self.network, x, labels)
        with torch.no_grad():
            loss = self.network.loss(phases.free.state, self.network.target(labels))
            wrong = metrics.errors(self.network, phases.free.state, labels)
        flips = self.optimizers.step()
        nudged = (phases.nudged, phases.opposite)
        return MiniBatch(
            loss=float(loss),
            wrong=wrong,
            flips=flips,
            residual=float(phases.free.residuals[-1]),
            free_steps=phases.free.steps,
            nudged_steps=sum(phase.steps for phase in nudged if phase is not None),
        )
