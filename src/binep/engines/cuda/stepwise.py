# pyright: reportCallIssue=false
"""Relaxer step by step: matrix products, and one kernel a layer between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from binep.core.dynamics import EnergyBased, Prototypical
from binep.core.network import Network
from binep.engines.cuda.couplings import FastDense, Listed, launch
from binep.engines.cuda.kernels import advance_kernel, top_kernel
from binep.engines.cuda.relaxers.base import (
    Nudge,
    Phase,
    Relaxer,
    all_dense,
    largest_change,
    record,
)

BUSY_STEPS = 4  # in which most bits of a wide network change, so that products are cheaper
THIN = 16  # outputs whose product is done where it is needed


class Stepwise(Relaxer):
    """Any network: matrix products, and one kernel a layer between them."""

    @staticmethod
    def fits(network: Network) -> bool:
        return True

    def free(self, first: Tensor, steps: int) -> Phase:
        state, activity = self.start(len(first))
        if self._two_coloured:
            return self._free_two_coloured(first, state, activity, steps)
        return self._run(first, state, activity, steps)

    def held_back(self, first: Tensor, steps: int, labels: Tensor) -> Phase:
        return self._run(first, *self.start(len(first)), steps, handicap=self.handicap(labels))

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        nudge = (self.target(labels), self.beta * direction, free.state[-1])
        steps, handicap = self.learning.nudged_steps, self.handicap(labels)
        return self._run(first, free.state, free.activity, steps, nudge, handicap)

    def _run(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        steps: int,
        nudge: Nudge | None = None,
        handicap: Tensor | None = None,
    ) -> Phase:
        before = state
        for _ in range(steps):
            before = state
            state, activity = self.step(first, state, activity, nudge, handicap)
        return Phase(state, activity, largest_change(state, before), self._ran(steps))

    def _ran(self, steps: int) -> Tensor:
        return torch.full((1,), steps, dtype=torch.int32, device=self.device)

    def step(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        nudge: Nudge | None = None,
        handicap: Tensor | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """All layers move at once, from the states of the step before."""
        top = len(state) - 1
        ups: list[tuple[Tensor, Tensor | None]] = [(first, None)]
        ups += [
            fast.up(below) for fast, below in zip(self.couplings[1:top], activity, strict=False)
        ]
        moved = []
        for n, above in enumerate(self.couplings[1:]):
            down = activity[n + 1]
            if not (self._thin and n + 1 == top):
                down = above.down(down, ups[n + 1][1] if n + 1 < top else None)
            moved.append(self._advance(n, ups[n][0], down, state[n]))
        if top > 0:
            moved.append(self._advance_top(activity[top - 1], state[top], nudge, handicap))
        else:
            moved.append(self._advance(top, first, handicap, state[top], nudge))
        return [s for s, _ in moved], [a for _, a in moved]

    @cached_property
    def _thin(self) -> bool:
        """Whether the outputs are so few that their product is done where it is needed."""
        return self.network.layer_shapes[-1][0] <= THIN and not self.network.neuron.binary

    # In prototypical dynamics a free layer moves by its neighbours alone, so that a step of all
    # layers is two relaxations that never meet: even layers at even times with odd ones at odd
    # times, and the other way round. Shifted by one step they run side by side, one kind of layer
    # after the other, as one mini-batch of twice the size: half the products, each as cheap.

    @cached_property
    def _two_coloured(self) -> bool:
        dense = all_dense(self.network)
        return dense and isinstance(self.network.dynamics, Prototypical) and len(self.couplings) > 1

    def _free_two_coloured(
        self, first: Tensor, state: list[Tensor], activity: list[Tensor], steps: int
    ) -> Phase:
        """The same phase, in updates of the layers 1, 3, ... and 2, 4, ... in turn."""
        batch = len(first)
        odd, even = range(0, len(state), 2), range(1, len(state), 2)
        doubled = torch.cat([first, first])
        at = {(n, 0): pair for n, pair in enumerate(zip(state, activity, strict=True))}
        early = self._move(odd, first, {n: activity[n] for n in even})
        at |= {(n, 1): moved for n, moved in early.items()}
        joined = {n: torch.cat([at[n, 0][1], at[n, 1][1]]) for n in odd}
        others, layers = odd, even
        for time in range(1, steps):
            # The others, at the two times before, move these layers to `time` and `time + 1`.
            found = self._move(layers, doubled, joined)
            for n, (moved, sent) in found.items():
                at[n, time] = moved[:batch], sent[:batch]
                at[n, time + 1] = moved[batch:], sent[batch:]
                at.pop((n, time - 2), None)
            joined = {n: sent for n, (_, sent) in found.items()}
            others, layers = layers, others
        # One colour has reached the last step, the other is one behind.
        sources = {n: at[n, steps - 1][1] for n in others}
        at |= {(n, steps): moved for n, moved in self._move(layers, first, sources).items()}
        last = [at[n, steps] for n in range(len(state))]
        before = [at[n, steps - 1][0] for n in range(len(state))]
        states, activities = [s for s, _ in last], [a for _, a in last]
        return Phase(states, activities, largest_change(states, before), self._ran(steps))

    def _move(
        self, layers: Sequence[int], first: Tensor, sources: dict[int, Tensor]
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """Some layers, from the activities of their neighbours."""
        found, top = {}, len(self.couplings) - 1
        for n in reversed(layers):
            if n == top:
                found[n] = self._advance_top(sources[n - 1])
                continue
            up = first if n == 0 else self.couplings[n].up(sources[n - 1])[0]
            down = sources[n + 1]
            if not (self._thin and n + 1 == top):
                down = self.couplings[n + 1].down(down, None)
            # Prototypical dynamics do not look at the state: anything of its shape will do.
            found[n] = self._advance(n, up, down, up)
        return found

    def _advance(
        self,
        n: int,
        up: Tensor,
        down: Tensor | None,
        state: Tensor,
        nudge: Nudge | None = None,
        flips: Listed | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A layer's next state and activity.

        Args:
            up: sums of the coupling below, of the first one the whole drive.
            down: sums (dense) or drive of the one above; activities of thin outputs; of the
                outputs themselves their handicap.
            flips: where to list the bits that flip.
        """
        coupling, network = self.network.couplings[n], self.network
        dynamics = network.dynamics
        gain, bias = coupling.synapses.gain.detach(), coupling.bias
        above = self.couplings[n + 1] if n + 1 < len(self.couplings) else None
        dense_down = isinstance(above, FastDense)
        down_gain = above.coupling.synapses.gain.detach() if dense_down else gain
        thin = self._thin and n + 2 == len(self.couplings)
        target, beta, rest = nudge if nudge is not None else (state, gain, state)
        moved, activity = torch.empty_like(state), torch.empty_like(state, dtype=self.dtype)
        launch(
            advance_kernel,
            state.numel(),
            up,
            gain,
            gain if bias is None else bias.detach(),
            up if down is None else down,
            down_gain,
            above.kernel if thin and above is not None else up,
            state,
            target,
            rest,
            beta,
            moved,
            activity,
            *((state, state, state) if flips is None else flips),
            state.numel(),
            state.shape[1],
            state[0].numel(),
            **self.neuron_numbers,
            FIRST=n == 0,
            CHANNEL_GAIN=gain.dim() > 0,
            HAS_BIAS=bias is not None,
            HAS_DOWN=down is not None,
            DENSE_DOWN=dense_down,
            THIN=network.layer_shapes[-1][0] if thin else 0,
            ENERGY=isinstance(dynamics, EnergyBased),
            BINARY=network.neuron.binary,
            NUDGED=nudge is not None,
            CONSTANT=self.learning.nudge == "constant",
            CLAMPED=isinstance(dynamics, Prototypical) and dynamics.clamp_nudged,
            RAW=nudge is not None and network.sends_state,
            LIST=flips is not None,
        )
        return moved, activity

    def _advance_top(
        self,
        below: Tensor,
        state: Tensor | None = None,
        nudge: Nudge | None = None,
        handicap: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The output layer's next state and activity; a few outputs are done in one launch.

        Args:
            state: where it is, (batch, outputs); free prototypical layers need not know.
        """
        n, fast = len(self.couplings) - 1, self.couplings[-1]
        if not self._thin:
            up, _ = fast.up(below)
            return self._advance(n, up, handicap, up if state is None else state, nudge)
        outputs, dynamics = self.network.layer_shapes[-1][0], self.network.dynamics
        moved = torch.empty(len(below), outputs, device=self.device)
        activity = torch.empty_like(moved, dtype=self.dtype)
        gain, bias = fast.coupling.synapses.gain.detach(), fast.coupling.bias
        state = moved if state is None else state
        target, beta, rest = nudge if nudge is not None else (state, gain, state)
        top_kernel[(len(below),)](
            below,
            fast.kernel,
            gain,
            gain if bias is None else bias.detach(),
            state,
            target,
            rest,
            beta,
            moved,
            activity,
            below[0].numel(),
            **self.neuron_numbers,
            HAS_BIAS=bias is not None,
            ENERGY=isinstance(dynamics, EnergyBased),
            NUDGED=nudge is not None,
            CONSTANT=self.learning.nudge == "constant",
            CLAMPED=isinstance(dynamics, Prototypical) and dynamics.clamp_nudged,
            RAW=nudge is not None and self.network.sends_state,
            OUTPUTS=outputs,
            BLOCK=512,
            num_warps=4,
        )
        return moved, activity


@dataclass
class Chunk:
    """Some steps recorded once, with the tensors they read and change.

    Attributes:
        graph: its replay runs the steps; None where there are no graphs.
        active: bool, (1,): whether the phase still goes on. limit: int32, (1,): steps at most.
    """

    first: Tensor
    state: list[Tensor]
    activity: list[Tensor]
    nudge: Nudge | None
    handicap: Tensor | None
    active: Tensor
    residual: Tensor
    ran: Tensor
    limit: Tensor
    graph: "torch.cuda.CUDAGraph | None" = None

    @property
    def given(self) -> list[Tensor]:
        return _given(self.first, self.state, self.activity, self.nudge, self.handicap)


def _given(
    first: Tensor,
    state: list[Tensor],
    activity: list[Tensor],
    nudge: Nudge | None,
    handicap: Tensor | None,
) -> list[Tensor]:
    """What a phase begins with, all in one list."""
    held = [] if handicap is None else [handicap]
    return [first, *state, *activity, *(nudge or ()), *held]


class Settling(Stepwise):
    """Any network with a tolerance: a phase ends after a step that changed no state by more.

    Steps run in chunks. Inside one, a mini-batch that has settled stays as it is; whether it has is
    looked up between chunks, while the next one is not launched yet.
    """

    STEPS = 8

    @cached_property
    def _chunks(self) -> dict[tuple[int, bool, bool], Chunk]:
        """By batch size, whether nudged, and whether with a handicap."""
        return {}

    @property
    def _two_coloured(self) -> bool:  # type: ignore[override]
        return False

    def _run(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        steps: int,
        nudge: Nudge | None = None,
        handicap: Tensor | None = None,
    ) -> Phase:
        key = len(first), nudge is not None, handicap is not None
        if key not in self._chunks:
            self._chunks[key] = self._new_chunk(first, state, activity, nudge, handicap)
        chunk = self._chunks[key]
        given = _given(first, state, activity, nudge, handicap)
        for place, values in zip(chunk.given, given, strict=True):
            place.copy_(values)
        chunk.active.fill_(True)
        chunk.ran.zero_()
        chunk.limit.fill_(steps)
        for _ in range(0, steps, self.STEPS):
            if chunk.graph is not None:
                chunk.graph.replay()
            else:
                self._steps(chunk)
            if not chunk.active.item():
                break
        states, activities = ([t.clone() for t in ts] for ts in (chunk.state, chunk.activity))
        return Phase(states, activities, chunk.residual.clone(), chunk.ran.clone())

    def _new_chunk(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        nudge: Nudge | None,
        handicap: Tensor | None,
    ) -> Chunk:
        integers = torch.zeros(2, dtype=torch.int32, device=self.device)
        chunk = Chunk(
            first.clone(),
            [s.clone() for s in state],
            [a.clone() for a in activity],
            None if nudge is None else (nudge[0].clone(), nudge[1].clone(), nudge[2].clone()),
            None if handicap is None else handicap.clone(),
            torch.ones(1, dtype=torch.bool, device=self.device),
            torch.zeros(1, device=self.device),
            integers[:1],
            integers[1:],
        )
        if self.device.type == "cuda":
            chunk.graph = record(lambda: self._steps(chunk))
        return chunk

    def _steps(self, chunk: Chunk) -> None:
        tolerance = self.learning.tolerance
        assert tolerance is not None
        for _ in range(self.STEPS):
            states, activities = self.step(
                chunk.first, chunk.state, chunk.activity, chunk.nudge, chunk.handicap
            )
            change = largest_change(states, chunk.state)
            for old, new in zip(chunk.state + chunk.activity, states + activities, strict=True):
                torch.where(chunk.active, new, old, out=old)
            torch.where(chunk.active, change, chunk.residual, out=chunk.residual)
            chunk.ran += chunk.active
            chunk.active &= (change > tolerance) & (chunk.ran < chunk.limit)
