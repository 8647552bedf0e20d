"""Backpropagation through time on a GPU, a mini-batch as one CUDA graph."""

import torch
from torch import Tensor

from binep.core.dynamics import Prototypical
from binep.core.gradients import BackpropThroughTime, EquilibriumPropagation
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.neurons import HardSigmoid
from binep.core.optim import Optimizers
from binep.engines.cuda.adjoint import Adjoint
from binep.engines.cuda.engine import CudaEngine
from binep.engines.cuda.relaxers.base import Phase
from binep.engines.torch.engine import tensor_cores


class ThroughTimeEngine(CudaEngine):
    """Runs mini-batches of BPTT: they settle as in EP's free phase, then come the last steps.

    Prototypical dynamics have their adjoint written out, others are left to autograd.
    """

    def __init__(
        self, network: Network, learning: BackpropThroughTime, optimizers: Optimizers
    ) -> None:
        self.through_time = learning
        # Of this only the free phase is used.
        settling = EquilibriumPropagation(learning.free_steps, 1, 1.0, tolerance=learning.tolerance)
        super().__init__(network, settling, optimizers)
        self.adjoint = None
        if isinstance(network.dynamics, Prototypical) and isinstance(network.neuron, HardSigmoid):
            self.adjoint = Adjoint(network, self.couplings, learning)
        self.precision += f", last steps {'float32' if self.adjoint is None else 'TF32'}"
        self.at_once = 1

    def train_many(self, x: Tensor, labels: Tensor, size: int) -> None:
        """One training step on a mini-batch of `size`."""
        self._take_up()
        self._send([self._numbers()])
        self._run("train", self._through_time, self.network.check(x), labels, size)
        self._tally += Tally(samples=size, batches=1)

    @torch.no_grad()
    def _through_time(self, x: Tensor, labels: Tensor) -> None:
        learning, numbers = self.through_time, self._input(x)
        self.scalars.copy_(self.rows[0])
        first, switches = self._clamp(x, numbers)
        settled = self._settle(first, learning.free_steps - learning.steps)
        # A target in place of labels: they would be checked, which a graph cannot wait for.
        target = self.relaxer.target(labels)
        if self.adjoint is not None:
            outputs, residual = self.adjoint.differentiate(
                x, numbers, first, switches, settled.state, target
            )
        else:
            with tensor_cores(False):
                last = learning.differentiate(self.network, x, settled.state, target)
            outputs, residual = last.state[-1], last.residuals[-1:]
        free = Phase([outputs], [], residual, settled.ran.max().reshape(1) + learning.steps)
        self._count(labels, free, free, free, learning=False)
        self._step()

    def _settle(self, first: Tensor, steps: int) -> Phase:
        """All steps but those that are differentiated."""
        if steps > 0:
            return self.relaxer.free(first, steps)
        none = torch.zeros(1, dtype=torch.int32, device=self.device)
        return Phase(self.relaxer.start(len(first))[0], [], none, none)

    def _step(self) -> None:
        """Every optimizer's step on the gradients of the last steps."""
        for n, coupling in enumerate(self.network.couplings):
            if coupling.binary:
                assert coupling.signs.grad is not None
                self.updater.flip(n, coupling.signs.grad.contiguous(), 1.0)
        for optimizer in self._sgds():
            optimizer.step()
        for fast in self.couplings:
            fast.refresh()
