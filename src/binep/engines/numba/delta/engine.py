"""The delta engine: mini-batches of real activations and binary weights on the CPU.

Neurons that settle send less and less. A step sends how each activity differs from what was sent
before, in eight bits, and products of eight bits are four times as fast as of float32; what they
add up to is exact. A sample in which nothing is left to send has come to rest, and its remaining
steps are not run, since they would change nothing. Networks of one hidden layer are relaxed whole,
in float32, one sample at a time in the cache, until they repeat themselves bit for bit.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from binep.core import metrics
from binep.core.couplings import Coupling, Dense, correlated, levels
from binep.core.dynamics import Prototypical
from binep.core.gradients import Learning
from binep.core.metrics import Tally
from binep.core.network import Clamped, Network
from binep.core.neurons import HardSigmoid
from binep.core.optim import Optimizers
from binep.core.relaxation import Relaxation
from binep.engines.activity import Activity
from binep.engines.fixed_point import sums_fit
from binep.engines.numba.cpu_engine import InPlaceEngine
from binep.engines.numba.delta import kernels
from binep.engines.numba.delta.relaxing import (
    FREE,
    Deep,
    Relaxer,
    Settled,
    Shallow,
    Synapses,
    nudging,
    product,
)
from binep.engines.numba.jit import announce, run_shares

PIXEL_MIDDLE = 128


class DeltaEngine(InPlaceEngine):
    """Trains networks of binary weights and real activations on the CPU; see `ReferenceEngine`.

    Signs, momenta, biases and scales are changed where they are, in the network and its optimizers,
    which so hold the state of training at any time; copies are made anew if someone else changes
    the signs. `activity` counts the steps that were really taken.

    Args:
        early_stop: do not run steps that are known to change nothing; the results are the same
            without.
    """

    name = "delta"
    precision = "int8 differences, float32"

    def __init__(
        self,
        network: Network,
        learning: Learning,
        optimizers: Optimizers,
        *,
        early_stop: bool = True,
    ) -> None:
        needs = {
            "real activations, neuron=HardSigmoid()": isinstance(network.neuron, HardSigmoid),
            "dynamics='prototypical'": isinstance(network.dynamics, Prototypical),
            "torch with oneDNN": torch.backends.mkldnn.is_available(),
            "learning without a margin": getattr(learning, "margin", 0) == 0,
            "a smaller beta, where nudged outputs send states": sums_fit(network, learning),
        }
        super().__init__(network, learning, optimizers, needs)
        kind = Shallow if Shallow.fits(network) else Deep
        self._relaxer: Relaxer = kind(network, early_stop)
        first = network.couplings[0]
        self._first = (
            Synapses(first, (first.below,), both=False) if isinstance(first, Dense) else None
        )
        self._row_sums = torch.empty(0, dtype=torch.int32)
        self._contrasts: dict[int, Tensor] = {}

    # --- what every engine offers

    @torch.no_grad()
    def train(self, x: Tensor, labels: Tensor) -> None:
        """One training step on a mini-batch, (batch, *input_shape), with labels, (batch,)."""
        ep, network, relaxer = self.learning, self.network, self._relaxer
        clamped, target = self._clamp(x), network.target(labels)
        phase, free = self._free(clamped, target)
        rest = [state.clone() for state in relaxer.states(phase)]
        seen = metrics.tally(network, _read(rest, free), labels, target)
        beta = ep.beta * (ep.draw_sign() if ep.sign == "random" else 1)
        other = relaxer.copy(phase) if ep.sign == "centered" else None
        nudged = self._run(phase, ep.nudged_steps, target, beta)
        plus, minus, span, steps = relaxer.states(phase), rest, beta, nudged.steps
        if other is not None:
            opposite = self._run(other, ep.nudged_steps, target, -beta)
            minus, span = relaxer.states(other), 2 * beta
            steps += opposite.steps
        flips = self._learn(clamped, plus, minus, span)
        self._step_the_rest()
        self._tally += seen.having(flips=flips, nudged_steps=steps)

    @torch.no_grad()
    def evaluate(self, x: Tensor, labels: Tensor) -> Tally:
        """Read a mini-batch out of the free phase, without learning from it."""
        target = self.network.target(labels)
        phase, free = self._free(self._clamp(x), target)
        states = self._relaxer.states(phase)
        return metrics.tally(self.network, _read(states, free), labels, target)

    @torch.no_grad()
    def relax(self, x: Tensor, labels: Tensor, beta: float) -> list[list[Tensor]]:
        """The states s1..sN after the free phase, and after it nudged by beta."""
        target = self.network.target(labels)
        phase, _ = self._free(self._clamp(x), target)
        free = [state.clone() for state in self._relaxer.states(phase)]
        self._run(phase, self.learning.nudged_steps, target, beta)
        return [free, self._relaxer.states(phase)]

    # --- relaxation

    def _clamp(self, x: Tensor) -> Clamped:
        """The clamped input; pixels are multiplied as bytes, shifted to where bytes are signed."""
        self._take_up()
        network, first = self.network, self._first
        x = network.check(x)
        if first is None or x.dtype != torch.uint8:
            return network.clamp(x)
        pixels = (x.flatten(1).to(torch.int16) - PIXEL_MIDDLE).to(torch.int8)
        sums = product(pixels, first.down_bytes.T)
        sums += PIXEL_MIDDLE * self._row_sums
        drive = (first.coupling.synapses.gain / levels(x)) * sums
        if first.coupling.bias is not None:
            drive += first.coupling.bias
        return Clamped(x, drive, None)

    def _take_up(self) -> None:
        """Follow what others did to the signs."""
        for n in self._changed_signs():
            self._relaxer.refresh(n)
            if n == 0 and self._first is not None:
                self._first.refresh()
                self._row_sums = self._first.down_bytes.sum(1, dtype=torch.int32)
        self._relaxer.take_scales()

    def _free(self, clamped: Clamped, target: Tensor) -> tuple[Any, Settled]:
        announce(
            kernels.settle_share if isinstance(self._relaxer, Shallow) else kernels.advance_share
        )
        phase = self._relaxer.begin(clamped)
        return phase, self._run(phase, self.learning.free_steps, target, None)

    def _run(self, phase: Any, steps: int, target: Tensor, beta: float | None) -> Settled:
        how = FREE if beta is None else nudging(self.network, self.learning, beta)
        settled = self._relaxer.run(
            phase, steps, self.learning.tolerance, target.contiguous().numpy(), how
        )
        self.activity += Activity(steps=settled.taken, samples=len(target) if beta is None else 0)
        return settled

    # --- learning

    def _learn(
        self, clamped: Clamped, plus: list[Tensor], minus: list[Tensor], span: float
    ) -> list[int]:
        """Step Bop on every coupling and leave the gradients of biases and scales in `.grad`."""
        network, batch = self.network, len(clamped.x)
        high, low = (
            [clamped.x, *network.activity([s.contiguous() for s in states], nudged=True)]
            for states in (plus, minus)
        )
        flips = []
        for n, coupling in enumerate(network.couplings):
            contrast = self._contrast(n, coupling, clamped, high, low)
            factor = -1 / (span * batch * levels(high[n]))
            flips.append(self._bop(n, coupling, contrast, factor))
            if coupling.bias is not None:
                difference = coupling.correlate_bias(high[n + 1] - low[n + 1])
                coupling.bias.grad = -1 / (span * batch) * difference
        return self._in_order(flips)

    def _contrast(
        self, n: int, coupling: Coupling, clamped: Clamped, high: list[Tensor], low: list[Tensor]
    ) -> Tensor:
        """`D(correlation)` of coupling n, shaped like its weight: both phases in one product."""
        if n == 0:
            # The input is the same in both phases, and so are the switches of its pool.
            below, above = clamped.x, high[1] - low[1]
            switches = clamped.switches
        else:
            below = torch.cat([high[n], low[n]])
            above = torch.cat([high[n + 1], -low[n + 1]])
            switches = coupling.up(below)[1] if coupling.pool > 1 else None
        if not isinstance(coupling, Dense):
            return coupling.correlate(below, above, switches).contiguous()
        if n not in self._contrasts:
            self._contrasts[n] = torch.empty_like(coupling.signs)
        return correlated(below.flatten(1).float(), above, out=self._contrasts[n])

    def _bop(self, n: int, coupling: Coupling, contrast: Tensor, factor: float) -> int:
        """One step of Bop on coupling n; returns its flips."""
        signs = coupling.signs
        bop, group = self._bop_of(n)
        rate, bound = bop.prepare(signs, group)
        state = bop.state[signs]
        state["momentum"] = state["momentum"].contiguous()
        rows = len(signs)
        bytes_of = self._first if n == 0 else self._relaxer.inner(n)
        up, down = np.empty((0, 0), np.int8), np.empty((0, 0), np.int8)
        columns = np.empty(0, np.int64)
        if bytes_of is not None:
            up, down = bytes_of.up_bytes.numpy(), bytes_of.down_bytes.numpy()
            columns = bytes_of.columns
        overlaps = np.zeros(rows)
        shares = run_shares(
            kernels.bop_share,
            state["momentum"].numpy().reshape(rows, -1),
            signs.detach().numpy().reshape(rows, -1),
            contrast.numpy().reshape(rows, -1),
            np.float32(factor),
            np.float32(rate),
            np.float32(bound),
            up,
            down,
            columns,
            self._row_sums.numpy() if n == 0 else np.empty(0, np.int32),
            overlaps,
        )
        flips = int(sum(shares))
        state["flips"] += flips
        if flips and bytes_of is None:
            self._relaxer.refresh(n)
        self._set_scale_gradient(n, torch.from_numpy(overlaps), factor)
        return flips


def _read(states: list[Tensor], free: Settled) -> Relaxation:
    """The free phase as far as it is read out: the output neurons and the last change."""
    residuals = torch.zeros(free.steps)
    residuals[-1] = free.residual
    return Relaxation(states[-1:], [], residuals)
