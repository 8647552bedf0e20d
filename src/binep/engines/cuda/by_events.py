"""Relaxer convolutional networks of bits at the cost of what changes, see `conv_events`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from binep.core.couplings import ConvPool
from binep.core.network import Network
from binep.engines.cuda.conv_events import SILENT
from binep.engines.cuda.couplings import FastConv, FastDense, Kept, KeptSums, Listed
from binep.engines.cuda.relaxers.base import Nudge, Phase, largest_change
from binep.engines.cuda.stepwise import BUSY_STEPS, Stepwise


@dataclass
class ConvEvents(Stepwise):
    """Convolutional networks of bits: after a few busy steps, only what changes causes work."""

    @staticmethod
    def fits(network: Network) -> bool:
        convolutions = [c for c in network.couplings if isinstance(c, ConvPool)]
        small = all(coupling.pool <= 3 for coupling in convolutions)
        return network.neuron.binary and len(convolutions) > 1 and small

    def __post_init__(self) -> None:
        for fast in self.couplings[1:]:
            if isinstance(fast, FastDense):
                fast.turned = fast.kernel.T.contiguous()

    def free(self, first: Tensor, steps: int) -> Phase:
        return self._start(first, steps, None)

    def held_back(self, first: Tensor, steps: int, labels: Tensor) -> Phase:
        return self._start(first, steps, self.handicap(labels))

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        kept = [each.clone() for each in free.carried]
        nudge = (self.target(labels), self.beta * direction, free.state[-1])
        steps, handicap = self.learning.nudged_steps, self.handicap(labels)
        return self._go_on(first, free.state, free.activity, kept, steps, nudge, handicap)

    def _start(self, first: Tensor, steps: int, handicap: Tensor | None) -> Phase:
        state, activity = self.start(len(first))
        busy = min(BUSY_STEPS, steps - 1)
        for _ in range(busy):
            state, activity = self.step(first, state, activity, handicap=handicap)
        kept = [self._begin(n, activity) for n in range(1, len(self.couplings))]
        return self._go_on(first, state, activity, kept, steps - busy, None, handicap, busy)

    def _begin(self, n: int, activity: list[Tensor]) -> Kept | KeptSums:
        """Sums of coupling n from scratch; drives are still 0, as if nothing had been sent yet."""
        fast, below, above = self.couplings[n], activity[n - 1], activity[n]
        if isinstance(fast, FastDense):
            up, down = fast.up(below)[0], fast.down(above, None)
            return KeptSums(up.to(torch.int32), down.to(torch.int32))
        return Kept(
            fast.maps(below).to(torch.int32),
            torch.zeros_like(below, dtype=torch.float64),
            torch.full_like(above, SILENT.value, dtype=torch.uint8),
        )

    def _go_on(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        kept: list[Kept | KeptSums],
        steps: int,
        nudge: Nudge | None,
        handicap: Tensor | None,
        already: int = 0,
    ) -> Phase:
        before, flips, moves = state, self._lists(state), self._lists(state)
        for _ in range(steps):
            before = state
            state, activity = self._step_by_events(
                first, state, activity, kept, nudge, handicap, flips, moves
            )
            flips, moves = ([_turned(each) for each in lists] for lists in (flips, moves))
        residual = largest_change(state, before)
        return Phase(state, activity, residual, self._ran(already + steps), kept)

    def _lists(self, state: list[Tensor]) -> list[Listed]:
        """Room for one event a neuron, for each layer."""
        return [
            Listed(
                torch.empty(len(s), s[0].numel(), dtype=torch.int32, device=self.device),
                *torch.zeros(2, len(s), dtype=torch.int32, device=self.device),
            )
            for s in state
        ]

    def _step_by_events(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        kept: list[Kept | KeptSums],
        nudge: Nudge | None,
        handicap: Tensor | None,
        flips: list[Listed],
        moves: list[Listed],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """All layers move at once; then all sums follow the bits that flipped."""
        ups, downs = [first], []
        for n, (fast, sums) in enumerate(zip(self.couplings[1:], kept, strict=True), 1):
            if isinstance(fast, FastConv) and isinstance(sums, Kept):
                ups.append(fast.pool_events(activity[n], sums, moves[n]))
                fast.down_events(sums, moves[n])
                downs.append(sums.drive)
            elif isinstance(sums, KeptSums):
                ups.append(sums.up)
                downs.append(sums.down)
        nudges = [*[None] * len(downs), nudge]
        moved = [
            self._advance(n, up, down, state[n], nudges[n], flips[n])
            for n, (up, down) in enumerate(zip(ups, [*downs, handicap], strict=True))
        ]
        for n, (fast, sums) in enumerate(zip(self.couplings[1:], kept, strict=True), 1):
            if isinstance(fast, FastConv) and isinstance(sums, Kept):
                fast.up_events(sums, flips[n - 1])
            elif isinstance(fast, FastDense) and isinstance(sums, KeptSums):
                fast.follow_events(sums, flips[n - 1], flips[n])
        return [s for s, _ in moved], [a for _, a in moved]


def _turned(listed: Listed) -> Listed:
    """For the next step: the counts of this one are spent by then."""
    return listed._replace(counts=listed.spent, spent=listed.counts)
