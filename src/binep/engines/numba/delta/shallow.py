"""One hidden layer: a whole phase for one sample at a time, in float32, in the cache."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from binep.core.couplings import Dense
from binep.core.kinds import is_one_of
from binep.core.network import Clamped, Network
from binep.core.plan import PhasePlan
from binep.engines.numba.delta.relaxer import Nudging, Relaxer, Settled, nudged, nudging
from binep.engines.numba.jit import fast, fast_inner, run_shares
from binep.engines.numba.rules import clamp, sent

Array = Any

WIDEST_OUTPUT = 64  # the upper synapses are float32 and should stay in the cache
BLOCK = 256  # neurons whose synapses stay in the first level of cache
ROWS = 5  # rows of synapses that are taken together

_ZERO = np.float32(0)


@dataclass
class RelaxState:
    """Where a shallow network stands; see `settle_share`."""

    first: Array
    hidden: Array
    top: Array


class Shallow(Relaxer):
    """Networks of two dense couplings, the upper one thin."""

    @staticmethod
    def fits(network: Network) -> bool:
        dense = all(is_one_of(coupling, {Dense}) for coupling in network.couplings)
        return len(network.couplings) == 2 and dense and network.shapes[-1][0] <= WIDEST_OUTPUT

    def __init__(self, network: Network, early_stop: bool) -> None:
        super().__init__(network, early_stop)
        self.upper = network.couplings[1]
        rows = -(-network.shapes[-1][0] // ROWS) * ROWS
        self.synapses = np.zeros((rows, network.shapes[1][0]), np.float32)

    def begin(self, clamped: Clamped) -> RelaxState:
        signs = self.upper.signs.detach().numpy()
        self.synapses[: len(signs)] = signs
        batch, start = len(clamped.x), np.float32(self.network.initial_state)
        return RelaxState(
            clamped.drive.numpy(),
            np.full((batch, self.synapses.shape[1]), start),
            np.full((batch, len(signs)), start),
        )

    def states(self, relaxing: RelaxState) -> list[Tensor]:
        return [torch.from_numpy(relaxing.hidden), torch.from_numpy(relaxing.top)]

    def run(
        self, relaxing: RelaxState, phase: PhasePlan, tolerance: float | None, target: Array
    ) -> Settled:
        steps, how = phase.steps, nudging(self.network, phase)
        if tolerance is not None and steps > 1:
            # A mini-batch settles as a whole: see when it does, then run it so far.
            trace, _ = self._settle(deepcopy(relaxing), steps, target, how, steps)
            settled = np.flatnonzero(trace.max(0) <= np.float32(tolerance))
            if len(settled):
                steps = int(settled[0]) + 1
        trace, taken = self._settle(relaxing, steps, target, how, 1)
        return Settled(steps, int(taken.sum()), float(trace[:, -1].max()))

    def _settle(
        self, relaxing: RelaxState, steps: int, target: Array, how: Nudging, traced: int
    ) -> tuple[Array, Array]:
        bias = self.upper.bias
        batch, outputs = relaxing.top.shape
        trace, taken = np.zeros((batch, traced), np.float32), np.zeros(batch, np.int64)
        bias = np.zeros(outputs, np.float32) if bias is None else bias.detach().numpy()
        upper = self.synapses, np.float32(self.upper.scale.item()), bias
        state = relaxing.hidden, relaxing.top
        in_turn = len(self.network.turns) > 1
        args = steps, target, how, in_turn, self.early_stop, trace, taken
        run_shares(settle_share, relaxing.first, *upper, *state, *args)
        return trace, taken


@fast_inner
def _add_products(synapses, m, start, here, sums):
    """Add to `ROWS` sums from the m-th on what a block of hidden neurons sends them."""
    stop = start + len(here)
    w0, w1, w2 = synapses[m, start:stop], synapses[m + 1, start:stop], synapses[m + 2, start:stop]
    w3, w4 = synapses[m + 3, start:stop], synapses[m + 4, start:stop]
    n0, n1, n2, n3, n4 = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
    for i in range(len(here)):
        a = here[i]
        n0 += w0[i] * a
        n1 += w1[i] * a
        n2 += w2[i] * a
        n3 += w3[i] * a
        n4 += w4[i] * a
    sums[m] += n0
    sums[m + 1] += n1
    sums[m + 2] += n2
    sums[m + 3] += n3
    sums[m + 4] += n4


@fast
def settle_share(
    first, synapses, gain, bias, hidden, top, steps, target, how, in_turn, early_stop, trace,
    taken, threads, thread,
):  # fmt: skip
    """Relax networks of one hidden layer, in place, without ever leaving the cache.

    Once the output repeats itself with period one or two, so does everything, bit for bit: then one
    or two more steps lead to where all the remaining ones would.

    Args:
        first: the drive of the input, (batch, hidden).
        synapses: the signs of the upper coupling, (outputs, hidden), float32, with rows of zeros up
            to a multiple of `ROWS`. gain: its scale. bias: (outputs,).
        hidden, top: states, (batch, hidden) and (batch, outputs), changed.
        target: (batch, outputs). in_turn: whether the output moves after the hidden layer, and not
            with it. early_stop: whether to use what was said above.
        trace: (batch, steps), gets the largest change in each step, every step being run; or
            (batch, 1), which gets that of the last step.
        taken: (batch,), gets the number of steps that were run.
    """
    width, outputs = first.shape[1], top.shape[1]
    rows = len(synapses)
    block = np.empty(BLOCK, np.float32)
    sums = np.empty(rows, np.float32)
    sends = np.zeros(rows, np.float32)
    past = np.empty((4, outputs), np.float32)
    tracing = trace.shape[1] > 1
    for b in range(thread, len(first), threads):
        state, out = hidden[b], top[b]
        rest = out.copy()
        end, t = steps, 0
        while t < end:
            past[t % 4] = out
            for m in range(outputs):
                sends[m] = gain * sent(out[m], how.raw)
                sums[m] = _ZERO
            change = _ZERO
            for start in range(0, width, BLOCK):
                stop = min(start + BLOCK, width)
                here, drives = state[start:stop], block[: stop - start]
                drives[:] = first[b, start:stop]
                for m in range(0, rows, ROWS):
                    w0, w1 = synapses[m, start:stop], synapses[m + 1, start:stop]
                    w2, w3 = synapses[m + 2, start:stop], synapses[m + 3, start:stop]
                    w4 = synapses[m + 4, start:stop]
                    a0, a1, a2, a3, a4 = (
                        sends[m],
                        sends[m + 1],
                        sends[m + 2],
                        sends[m + 3],
                        sends[m + 4],
                    )
                    n0, n1, n2, n3, n4 = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
                    if in_turn:
                        for i in range(len(here)):
                            drives[i] += (
                                w0[i] * a0 + w1[i] * a1 + w2[i] * a2 + w3[i] * a3 + w4[i] * a4
                            )
                        continue
                    for i in range(len(here)):
                        a = here[i]
                        n0 += w0[i] * a
                        n1 += w1[i] * a
                        n2 += w2[i] * a
                        n3 += w3[i] * a
                        n4 += w4[i] * a
                        drives[i] += w0[i] * a0 + w1[i] * a1 + w2[i] * a2 + w3[i] * a3 + w4[i] * a4
                    sums[m] += n0
                    sums[m + 1] += n1
                    sums[m + 2] += n2
                    sums[m + 3] += n3
                    sums[m + 4] += n4
                if tracing or t == end - 1:
                    for i in range(len(here)):
                        change = max(change, abs(clamp(drives[i]) - here[i]))
                for i in range(len(here)):
                    here[i] = clamp(drives[i])
                for m in range(0, rows if in_turn else 0, ROWS):
                    _add_products(synapses, m, start, here, sums)
            for m in range(outputs):
                drive = gain * sums[m] + bias[m]
                value = clamp(drive)
                if how.on:
                    value = nudged(drive, out[m], rest[m], target[b, m], how)
                change = max(change, abs(value - out[m]))
                out[m] = value
            trace[b, t if tracing else 0] = change
            t += 1
            if early_stop and t >= 3 and end == steps and not tracing:
                one, two, three = past[(t - 1) % 4], past[(t - 2) % 4], past[(t - 3) % 4]
                repeats = True
                for m in range(outputs):
                    repeats = repeats and out[m] == two[m] and one[m] == three[m]
                if repeats and end - t > 2:
                    end = t + 2 - (end - t) % 2
        taken[b] = t
