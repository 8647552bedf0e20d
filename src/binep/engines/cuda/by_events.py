"""Relaxing convolutional networks of bits at the cost of what changes, see `conv_events`."""

from functools import cached_property

import torch
from torch import Tensor

from binep.couplings import ConvPool
from binep.engines.cuda.conv_events import SILENT
from binep.engines.cuda.couplings import FastConv, Kept
from binep.engines.cuda.phases import Nudge, Phase, largest_change
from binep.engines.cuda.stepwise import BUSY_STEPS, Stepwise
from binep.network import Network


class ConvEvents(Stepwise):
    """Convolutional networks of bits: after a few busy steps, only what changes causes work."""

    @staticmethod
    def fits(network: Network) -> bool:
        convolutions = [c for c in network.couplings if isinstance(c, ConvPool)]
        small = all(coupling.pool <= 3 for coupling in convolutions)
        return network.neuron.binary and len(convolutions) > 1 and small

    def free(self, first: Tensor, steps: int) -> Phase:
        state, activity = self.start(len(first))
        busy = min(BUSY_STEPS, steps - 1)
        for _ in range(busy):
            state, activity = self.step(first, state, activity)
        kept = {n: self._begin(n, activity) for n in self._convolutions}
        return self._go_on(first, state, activity, kept, steps - busy, None, busy)

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        kept = {n: each.clone() for n, each in free.carried.items()}
        nudge = (self.target(labels), self.beta * direction, free.state[-1])
        steps = self.learning.nudged_steps
        return self._go_on(first, free.state, free.activity, kept, steps, nudge, 0)

    @cached_property
    def _convolutions(self) -> dict[int, FastConv]:
        """The convolutions between layers that relax."""
        return {n: c for n, c in enumerate(self.couplings) if n and isinstance(c, FastConv)}

    def _begin(self, n: int, activity: list[Tensor]) -> Kept:
        """Maps from scratch; the drive is still 0, as if nothing had been sent yet."""
        fast, below, above = self._convolutions[n], activity[n - 1], activity[n]
        batch, integer = len(below), torch.int32
        return Kept(
            fast.maps(below).to(integer),
            torch.zeros_like(below, dtype=torch.float64),
            torch.full_like(above, SILENT.value, dtype=torch.uint8),
            torch.empty(batch, above[0].numel(), dtype=integer, device=self.device),
            torch.zeros(batch, dtype=integer, device=self.device),
            torch.empty(batch, below[0].numel(), dtype=integer, device=self.device),
            torch.zeros(batch, dtype=integer, device=self.device),
        )

    def _go_on(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        kept: dict[int, Kept],
        steps: int,
        nudge: Nudge | None,
        already: int,
    ) -> Phase:
        before = state
        for _ in range(steps):
            before = state
            state, activity = self._step_by_events(first, state, activity, kept, nudge)
        residual = largest_change(state, before)
        return Phase(state, activity, residual, self._ran(already + steps), kept)

    def _step_by_events(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        kept: dict[int, Kept],
        nudge: Nudge | None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """All layers move at once; then the maps follow the bits that flipped."""
        top = len(state) - 1
        ups = [first]
        for n, fast in enumerate(self.couplings[1:], 1):
            if n in kept and isinstance(fast, FastConv):
                ups.append(fast.pool_events(activity[n], kept[n]))
                fast.down_events(kept[n])
            else:
                ups.append(fast.up(activity[n - 1])[0])
        moved = []
        for n, up in enumerate(ups):
            follow = kept.get(n + 1)
            if follow is not None:
                flips = (follow.flips, follow.flip_counts, follow.counts)
                moved.append(self._advance(n, up, follow.drive, state[n], None, flips))
            else:
                above = self.couplings[n + 1] if n < top else None
                down = above.down(activity[n + 1], None) if above is not None else None
                nudged = nudge if n == top else None
                moved.append(self._advance(n, up, down, state[n], nudged))
        for n, fast in self._convolutions.items():
            fast.up_events(kept[n])
        return [s for s, _ in moved], [a for _, a in moved]
