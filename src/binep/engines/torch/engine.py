"""The definition of correct: one mini-batch in plain torch, on any device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from binep.core import metrics
from binep.core.gradients import EquilibriumPropagation, Learning
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.optim import Optimizers
from binep.core.relaxation import relax
from binep.engines.processes import ALONE, Processes


@contextmanager
def tensor_cores(allowed: bool) -> Iterator[None]:
    """Whether a GPU may round the factors of float32 products to 11 bits (TF32)."""
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


class ReferenceEngine:
    """Trains a network one mini-batch at a time: relax, estimate, update.

    What every engine offers: `train` and `evaluate` a mini-batch, and `collect` what was counted
    since the last time. `network` and `optimizers` hold the state of training.
    """

    name = "reference"
    precision = "float32"

    def __init__(self, network: Network, learning: Learning, optimizers: Optimizers) -> None:
        self.network, self.learning, self.optimizers = network, learning, optimizers
        self.processes, self._tallies = ALONE, list[Tally]()

    def join(self, processes: Processes) -> None:
        """Join other processes that share the training."""
        self.processes = processes

    def train(self, x: Tensor, labels: Tensor) -> None:
        """One training step on a mini-batch, (batch, *input_shape), with labels, (batch,)."""
        part = self.processes.part(x, labels)
        shared = [] if part.whole is None else [part.whole]
        with tensor_cores(self._exact(x)):
            phases = self.learning.backward(self.network, part.x, part.labels, *shared)
            seen = metrics.tally(self.network, phases.free, part.labels)
        flips = self.optimizers.step()
        if isinstance(self.learning, EquilibriumPropagation) and self.learning.homeostasis:
            self.learning.homeostasis.step(self.network, phases.activity, part.batch)
        nudged = (phases.nudged, phases.opposite)
        steps = sum(phase.steps for phase in nudged if phase is not None)
        self._tallies.append(part.counted(seen.replace(flips=flips, nudged_steps=steps)))

    @torch.no_grad()
    def evaluate(self, x: Tensor, labels: Tensor) -> Tally:
        """Read a mini-batch out of the free phase, without learning from it."""
        part = self.processes.part(x, labels)
        with tensor_cores(self._exact(x)):
            clamped = self.network.clamp(part.x)
            free = relax(
                self.network,
                clamped,
                self.network.initial(clamped),
                self.learning.free_steps,
                tolerance=self.learning.tolerance,
            )
            seen = metrics.tally(self.network, free, part.labels)
        return self.processes.merge([part.counted(seen)])

    def _exact(self, x: Tensor) -> bool:
        """Whether only bits and pixels are multiplied, which TF32 holds exactly."""
        return self.network.neuron.binary and not x.is_floating_point()

    def collect(self) -> Tally:
        """What was counted over the mini-batches trained on since the last call."""
        tallies, self._tallies = self._tallies, []
        return self.processes.merge(tallies)
