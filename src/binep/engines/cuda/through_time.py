"""Backpropagation through time on a GPU, a mini-batch as one CUDA graph."""

import torch
from torch import Tensor

from binep.engines.cuda.engine import CudaEngine
from binep.engines.cuda.phases import Phase
from binep.engines.reference import tensor_cores
from binep.gradients import BackpropThroughTime, EquilibriumPropagation
from binep.metrics import Tally
from binep.network import Network
from binep.optim import Optimizers


class ThroughTimeEngine(CudaEngine):
    """Runs mini-batches of BPTT: they settle as in EP's free phase, then the reference goes on."""

    def __init__(
        self, network: Network, learning: BackpropThroughTime, optimizers: Optimizers
    ) -> None:
        self.through_time = learning
        # Of this only the free phase is used.
        settling = EquilibriumPropagation(learning.free_steps, 1, 1.0, tolerance=learning.tolerance)
        super().__init__(network, settling, optimizers)
        self.precision += ", last steps float32"
        self.at_once = 1

    def train_many(self, x: Tensor, labels: Tensor, size: int) -> None:
        """One training step on a mini-batch of `size`."""
        self._take_up()
        self._send([self._numbers()])
        self._run("train", self._through_time, self.network.check(x), labels, size)
        self._tally += Tally(samples=size, batches=1)

    def _through_time(self, x: Tensor, labels: Tensor) -> None:
        learning, network = self.through_time, self.network
        self.scalars.copy_(self.rows[0])
        settled = self._settle(x, learning.free_steps - learning.steps)
        with tensor_cores(False):
            # A target in place of labels: they would be checked, which a graph cannot wait for.
            last = learning.differentiate(network, x, settled.state, self.relaxer.target(labels))
        ran = settled.ran.max().reshape(1) + learning.steps
        free = Phase(last.state, [], last.residuals[-1:], ran)
        self._count(labels, free, free, free, learning=False)
        self._step()

    @torch.no_grad()
    def _settle(self, x: Tensor, steps: int) -> Phase:
        """All steps but those that are differentiated."""
        if steps > 0:
            return self.relaxer.free(self._clamp(x, self._input(x))[0], steps)
        none = torch.zeros(1, dtype=torch.int32, device=self.device)
        return Phase(self.relaxer.start(len(x))[0], [], none, none)

    @torch.no_grad()
    def _step(self) -> None:
        """Every optimizer's step on the gradients that autograd left."""
        for n, coupling in enumerate(self.network.couplings):
            if coupling.binary:
                assert coupling.signs.grad is not None
                self.updater.flip(n, coupling.signs.grad.contiguous(), 1.0)
        for optimizer in self._sgds():
            optimizer.step()
        for fast in self.couplings:
            fast.refresh()
