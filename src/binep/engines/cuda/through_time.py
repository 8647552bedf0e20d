"""Backpropagation through time on a GPU: only steps that are differentiated run in plain torch."""

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
        self._settled: dict[int, list[Tensor]] = {}
        self._ran = torch.zeros(1, dtype=torch.int32, device=self.device)

    def train_many(self, x: Tensor, labels: Tensor, size: int) -> None:
        """One training step on a mini-batch of `size`."""
        learning, network = self.through_time, self.network
        self._take_up()
        x = network.check(x)
        state = network.initial(x)
        if learning.free_steps > learning.steps:
            state = self._settled.setdefault(size, state)
            self._run("settle", self._settle, x, labels, size)
        with tensor_cores(False):
            last = learning.differentiate(network, x, state, labels)
        free = Phase(last.state, [], last.residuals[-1:], self._ran + learning.steps)
        self._count(labels, free, free, free, learning=False)
        self._step()
        self._tally += Tally(samples=size, batches=1)

    @torch.no_grad()
    def _settle(self, x: Tensor, labels: Tensor) -> None:
        """All steps but those that are differentiated."""
        steps = self.through_time.free_steps - self.through_time.steps
        phase = self.relaxer.free(self._clamp(x, self._input(x))[0], steps)
        for place, state in zip(self._settled[len(x)], phase.state, strict=True):
            place.copy_(state)
        self._ran.copy_(phase.ran.max())

    @torch.no_grad()
    def _step(self) -> None:
        """Every optimizer's step on the gradients that autograd left."""
        self._send([self._numbers()])
        self.scalars.copy_(self.rows[0])
        for n, coupling in enumerate(self.network.couplings):
            if coupling.binary:
                assert coupling.signs.grad is not None
                self.updater.flip(n, coupling.signs.grad.contiguous(), 1.0)
        for optimizer in self._sgds():
            optimizer.step()
        for fast in self.couplings:
            fast.refresh()
