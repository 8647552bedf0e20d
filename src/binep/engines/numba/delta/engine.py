"""The delta engine: mini-batches of real activations and binary weights on the CPU.

Neurons that settle send less and less. A step sends the difference of each activity to what was
sent before, in eight bits; products of eight bits are four times as fast as those of float32, and
their sums are exact. A sample with nothing left to send has come to rest, and its remaining steps
are skipped. Networks of one hidden layer are relaxed in float32, one sample at a time in the cache,
until they repeat themselves bit for bit.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from binep.core.couplings import Dense, correlated, gain_of
from binep.core.network import Clamped
from binep.core.plan import ContrastPlan
from binep.engines.activity import Activity
from binep.engines.numba import DELTA
from binep.engines.numba.cpu_engine import CpuEngine, Ends, Rates
from binep.engines.numba.delta import deep, shallow
from binep.engines.numba.delta.relaxer import Relaxer
from binep.engines.numba.delta.sign_bytes import SignBytes, bop_share, product
from binep.engines.numba.jit import announce, run_shares

PIXEL_MIDDLE = 128


@dataclass
class DeltaEnds(Ends):
    """`states`: s1..sN of each phase."""

    states: list[list[Tensor]]


class Sides(NamedTuple):
    """The activities of the two ends that are contrasted, input first."""

    clamped: Clamped
    plus: list[Tensor]
    minus: list[Tensor]


class DeltaEngine(CpuEngine):
    """Trains networks of binary weights and real activations on the CPU; see `ReferenceEngine`.

    `activity` counts the steps taken.
    """

    name = "delta"
    precision = "int8 differences, float32"
    capabilities = DELTA

    def _set_up(self) -> None:
        network = self.network
        kind = shallow.Shallow if shallow.Shallow.fits(network) else deep.Deep
        self._relaxer: Relaxer = kind(network, self.early_stop)
        first = network.couplings[0]
        self._first = (
            SignBytes(first, (first.below,), both=False) if isinstance(first, Dense) else None
        )
        self._row_sums = torch.empty(0, dtype=torch.int32)
        self._contrasts: dict[int, Tensor] = {}

    # --- relaxation

    def _clamp(self, x: Tensor) -> Clamped:
        """The clamped input; pixels are multiplied as bytes, shifted to where bytes are signed."""
        network, first = self.network, self._first
        for n in self._changed_signs():
            self._relaxer.refresh(n)
            if n == 0 and first is not None:
                first.refresh()
                self._row_sums = first.down_bytes.sum(1, dtype=torch.int32)
        self._relaxer.take_scales()
        x = network.check(x)
        if first is None or x.dtype != torch.uint8:
            return network.clamp(x)
        pixels = (x.flatten(1).to(torch.int16) - PIXEL_MIDDLE).to(torch.int8)
        sums = product(pixels, first.down_bytes.T)
        sums += PIXEL_MIDDLE * self._row_sums
        drive = gain_of(first.coupling.synapses, x) * sums
        if first.coupling.bias is not None:
            drive += first.coupling.bias
        return Clamped(x, drive, None)

    def _run(self, clamped: Clamped, target: Tensor, plan: ContrastPlan) -> DeltaEnds:
        relaxer, rows = self._relaxer, target.contiguous().numpy()
        shallow_one = isinstance(relaxer, shallow.Shallow)
        announce(shallow.settle_share if shallow_one else deep.advance_share)
        starts = [phase.start for phase in plan.phases]
        stands: list[Any] = []
        states, steps, taken, residuals = [], [], 0, []
        for n, phase in enumerate(plan.phases):
            if phase.start is None:
                relaxing = relaxer.begin(clamped)
            else:
                relaxing = stands[phase.start]
                if phase.start in starts[n + 1 :]:
                    relaxing = deepcopy(relaxing)
            settled = relaxer.run(relaxing, phase, plan.tolerance, rows)
            end = relaxer.states(relaxing)
            # Another phase will go on from here in place.
            states.append([s.clone() for s in end] if n in starts[n + 1 :] else end)
            stands.append(relaxing)
            steps.append(settled.steps)
            residuals.append(settled.residual)
            taken += settled.taken
        self.activity += Activity(steps=taken, samples=len(rows))
        return DeltaEnds(clamped.x, steps, states[0][-1], residuals[0], states)

    # --- learning

    def _prepare(self, clamped: Clamped, ends: DeltaEnds, plan: ContrastPlan) -> Sides:
        plus, minus = (
            [s.contiguous() for s in ends.states[phase]] for phase in (plan.plus, plan.minus)
        )
        activity = self.network.activity
        return Sides(
            clamped,
            [clamped.x, *activity(plus, nudged=True)],
            [clamped.x, *activity(minus, nudged=True)],
        )

    def _contrast_bias(self, n: int, sides: Sides) -> Tensor:
        return self.network.couplings[n].correlate_bias(sides.plus[n + 1] - sides.minus[n + 1])

    def _contrast(self, n: int, sides: Sides) -> Tensor:
        """`D(correlation)` of coupling n, shaped like its weight: both phases in one product."""
        coupling, (clamped, plus, minus) = self.network.couplings[n], sides
        if n == 0:
            # The input is the same in both phases, and so are the switches of its pool.
            below, above, switches = clamped.x, plus[1] - minus[1], clamped.switches
        else:
            below = torch.cat([plus[n], minus[n]])
            above = torch.cat([plus[n + 1], -minus[n + 1]])
            switches = coupling.up(below)[1] if coupling.pool > 1 else None
        if not isinstance(coupling, Dense):
            return coupling.correlate(below, above, switches).contiguous()
        if n not in self._contrasts:
            self._contrasts[n] = torch.empty_like(coupling.signs)
        return correlated(below.flatten(1).float(), above, out=self._contrasts[n])

    def _flip(
        self, n: int, sides: Sides, rates: Rates, contrast: Tensor | None
    ) -> tuple[int, Tensor]:
        signs = self.network.couplings[n].signs
        sign_bytes: Any = self._first if n == 0 else self._relaxer.inner(n)
        copies: Any = np.empty((0, 0), np.int8), np.empty((0, 0), np.int8), np.empty(0, np.int64)
        if sign_bytes is not None:
            up, down = sign_bytes.up_bytes.numpy(), sign_bytes.down_bytes.numpy()
            copies = up, down, sign_bytes.columns
        rows = len(signs)
        overlaps = np.zeros(rows)
        contrast = self._contrast(n, sides) if contrast is None else contrast
        arrays = self._momentum(n), signs.detach(), contrast
        shares = run_shares(
            bop_share,
            *(array.numpy().reshape(rows, -1) for array in arrays),
            (np.float32(rates.factor), np.float32(rates.rate), np.float32(rates.bound)),
            *copies,
            self._row_sums.numpy() if n == 0 else np.empty(0, np.int32),
            overlaps,
        )
        flips = int(sum(shares))
        if flips and sign_bytes is None:
            self._relaxer.refresh(n)
        return flips, torch.from_numpy(overlaps)
