"""Relaxing any network step by step: matrix products, and one kernel a layer between them.

Kernels are element-wise over arrays whose last axis is the channel (dense layers: the neuron), so
that one index arithmetic serves dense and convolutional layers.
"""

from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from binep.core.dynamics import EnergyBased, Hopfield, Prototypical
from binep.core.plan import PhasePlan
from binep.core.turns import UPDATES
from binep.engines.base import Capabilities
from binep.engines.cuda.convolution import launch
from binep.engines.cuda.layout import FastConv, FastDense
from binep.engines.cuda.relaxers.base import (
    Phase,
    Relaxer,
    all_dense,
    largest_change,
    rest_of_bits,
)
from binep.engines.cuda.rules import (
    Target,
    down_from_few,
    handicap,
    pull,
    sent,
    step,
    up_to_few,
)

BUSY_STEPS = 4  # in which most bits of a wide network change, so that products are cheaper
FEW = 16  # outputs whose product is done where it is needed


class Up(NamedTuple):
    """What drives a layer from below.

    Attributes:
        sums: of the coupling below; of the first one the whole drive, and nothing else is there.
        gain, bias: f32, of all neurons (PER_CHANNEL) or one.
    """

    sums: Tensor
    gain: Tensor | None
    bias: Tensor | None
    PER_CHANNEL: Any


class Down(NamedTuple):
    """What drives a layer from above, if anything.

    Attributes:
        sums: of the coupling above, or the drive if there is no gain.
        kernel: of a few OUTPUTS above, (OUTPUTS, units): then `sums` is what they send.
    """

    sums: Tensor | None = None
    gain: Tensor | None = None
    kernel: Tensor | None = None
    OUTPUTS: Any = tl.constexpr(0)


class Step(NamedTuple):
    """A layer.

    Attributes:
        state, moved: f32, before and after; None where that is not needed.
        bits, activity: what it sends before (of bits alone) and after.
        channels, units: how many there are.
    """

    state: Tensor | None
    moved: Tensor | None
    bits: Tensor | None
    activity: Tensor
    channels: int
    units: int


class Sweep(NamedTuple):
    """What bits alone do in a sweep: int32, (batch,).

    Attributes:
        moving: the samples that do not rest yet; None: all are moved.
        changed: set to 1 where a bit changes.
    """

    moving: Tensor | None = None
    changed: Tensor | None = None


class EventList(NamedTuple):
    """Neurons of a layer to which something happens in a step, sample by sample; or none.

    Attributes:
        events: int32, (batch, units). counts: int32, (batch,): how many there are.
        spent: int32, (batch,): those of the step before, to be set to zero.
    """

    events: Any = None
    counts: Any = None
    spent: Any = None

    @classmethod
    def of(cls, state: Tensor) -> "EventList":
        """Room for one event of each neuron."""
        whole = {"dtype": torch.int32, "device": state.device}
        counts = torch.zeros(2, len(state), **whole)
        return cls(torch.empty(len(state), state[0].numel(), **whole), *counts)

    def turned(self) -> "EventList":
        """For the next step: the counts of this one are spent by then."""
        return self._replace(counts=self.spent, spent=self.counts)


@triton.jit
def scaled(up, sums, channel, inside):
    """The drive from below that some sums make."""
    drive = sums.to(tl.float32)
    if up.gain is not None:
        if up.PER_CHANNEL:
            drive = tl.load(up.gain + channel, mask=inside, other=0.0) * drive
        else:
            drive = tl.load(up.gain) * drive
        if up.bias is not None:
            drive = drive + tl.load(up.bias + channel, mask=inside, other=0.0)
    return drive


@triton.jit
def from_above(down, sums):
    """The drive from above that some sums make."""
    drive = sums.to(tl.float32)
    if down.gain is not None:
        drive = tl.load(down.gain) * drive
    return drive


@triton.jit
def advance_kernel(layer, up, down, target, listed, sweep, neuron, count, BLOCK: tl.constexpr):
    """One time step of one layer: drive from both neighbours, nudge, new state, activity."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    units = layer.units
    channel, sample, unit = index % layer.channels, index // units, index % units
    if listed.events is not None:
        tl.store(listed.spent + index, 0, mask=index < count // units)
    if sweep.moving is not None:
        inside &= tl.load(sweep.moving + sample, mask=inside, other=0) > 0
    drive = scaled(up, tl.load(up.sums + index, mask=inside, other=0), channel, inside)
    if down.sums is not None:
        if down.kernel is not None:
            outputs = down.sums + sample * down.OUTPUTS
            below = down_from_few(outputs, down.kernel + unit, units, inside, down.OUTPUTS)
        else:
            below = tl.load(down.sums + index, mask=inside, other=0)
        drive = drive + from_above(down, below)
    s = drive
    if layer.state is not None:
        s = tl.load(layer.state + index, mask=inside, other=0.0)
    force = None
    if target.labels is not None:
        label = tl.load(target.labels + sample, mask=inside, other=0)
        if target.margin is not None:
            drive = drive + handicap(target, label, unit)
        if target.beta is not None:
            force = pull(target, label, unit, s, index, inside)
    was = s >= neuron.threshold
    if layer.bits is not None:
        was = tl.load(layer.bits + index, mask=inside, other=0.0) > 0
    s = step(s, drive, force, neuron)
    a = sent(s, neuron, target.beta is not None)
    if layer.moved is not None:
        tl.store(layer.moved + index, s, mask=inside)
    tl.store(layer.activity + index, a.to(layer.activity.dtype.element_ty), mask=inside)
    fires = s >= neuron.threshold
    flipped = inside & (fires != was)
    if sweep.changed is not None:
        tl.store(sweep.changed + sample, 1, mask=flipped)
    if listed.events is not None:
        one = tl.full((BLOCK,), 1, tl.int32)
        at = tl.atomic_add(listed.counts + sample, one, mask=flipped, sem="relaxed")
        event = tl.where(fires, unit, -1 - unit)
        tl.store(listed.events + sample * units + at, event, mask=flipped)


@triton.jit
def few_outputs_kernel(
    below,  # activities of the layer below, (batch, units)
    kernel,  # (OUTPUTS, units)
    up,
    layer,  # (batch, OUTPUTS)
    target,
    neuron,
    units,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of an output layer of at most 16 real neurons: product and update in one launch."""
    sample = tl.program_id(0)
    k = tl.arange(0, 16)
    real = k < OUTPUTS
    sums = up_to_few(below + sample * units, kernel, units, OUTPUTS, BLOCK)
    drive = scaled(up, sums, k, real)
    place = sample * OUTPUTS + k
    s = tl.load(layer.state + place, mask=real, other=0.0)
    force = None
    if target.beta is not None:
        force = pull(target, tl.load(target.labels + sample), k, s, place, real)
    s = step(s, drive, force, neuron)
    tl.store(layer.moved + place, s, mask=real)
    a = sent(s, neuron, target.beta is not None)
    tl.store(layer.activity + place, a.to(layer.activity.dtype.element_ty), mask=real)


class Stepwise(Relaxer):
    """Any network."""

    takes = Capabilities(
        dynamics=frozenset({Prototypical, EnergyBased, Hopfield}), updates=frozenset(UPDATES)
    )

    def relax(
        self, first: Tensor, phase: PhasePlan, origin: Phase | None, labels: Tensor | None
    ) -> Phase:
        target = self.target_of(phase, origin, labels)
        if origin is not None:
            state, activity = origin.state, origin.activity
        else:
            state, activity = self.start(len(first))
            if self._two_coloured:
                return self._free_two_coloured(first, state, activity, phase.steps)
        if self.network.dynamics.bits:
            changed = self.unchanged(phase.steps, len(first))
            for row in changed:
                state, activity = self.step(first, state, activity, target, row)
            return Phase(state, activity, *rest_of_bits(changed))
        before = state
        for _ in range(phase.steps):
            before = state
            state, activity = self.step(first, state, activity, target)
        return Phase(state, activity, largest_change(state, before), self._ran(phase.steps))

    def _ran(self, steps: int) -> Tensor:
        return torch.full((1,), steps, dtype=torch.int32, device=self.device)

    def unchanged(self, sweeps: int, batch: int) -> Tensor:
        """Whether a bit of a sample changed in a sweep: not yet."""
        return torch.zeros(sweeps, batch, dtype=torch.int32, device=self.device)

    def step(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        target: Target,
        changed: Tensor | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """All layers move at once, or those of each turn from what the turn before has become.

        Args:
            changed: int32, (batch,), set to 1 where a bit changes; of bits alone.
        """
        state, activity = [*state], [*activity]
        for layers in self.network.turns:
            found = self._move(layers, first, dict(enumerate(activity)), state, target, changed)
            for n, moved in found.items():
                state[n], activity[n] = moved
        return state, activity

    @cached_property
    def _few(self) -> bool:
        """Whether the outputs are so few that their product is done where it is needed."""
        return self.network.layer_shapes[-1][0] <= FEW and not self.network.neuron.binary

    def _pools(self, n: int) -> bool:
        """Whether a coupling sends down through the switches that its sums have."""
        fast = self.couplings[n]
        return isinstance(fast, FastConv) and fast.coupling.pool > 1

    def _move(
        self,
        layers: Sequence[int],
        first: Tensor,
        sources: Mapping[int, Tensor],
        state: list[Tensor] | None = None,
        target: Target = Target(),  # noqa: B008, it is a value
        changed: Tensor | None = None,
        silent: Container[int] = (),
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """Some layers' next states and activities, from the activities of their neighbours.

        Args:
            state: where they are; free prototypical layers need not know.
            changed: see `step`.
            silent: layers that are known to send nothing.
        """
        top, found = len(self.couplings) - 1, {}
        ups: dict[int, tuple[Tensor, Tensor | None]] = {0: (first, None)}
        for n in {*layers, *(n + 1 for n in layers if n < top and self._pools(n + 1))}:
            if n - 1 in silent:
                ups[n] = torch.zeros_like(sources[n], dtype=torch.float32), None
            elif n > 0 and not (n == top and self._few):
                ups[n] = self.couplings[n].up(sources[n - 1])
        for n in layers:
            here = None if state is None else state[n]
            if n == top and self._few and n > 0:
                found[n] = self._advance_few(sources[n - 1], here, target)
                continue
            down = None
            if n < top and n + 1 not in silent:
                down = sources[n + 1]
                if not (n + 1 == top and self._few):
                    down = self.couplings[n + 1].down(down, ups.get(n + 1, (None, None))[1])
            bits, sweep = (None, Sweep()) if changed is None else (sources[n], Sweep(None, changed))
            mine = target if n == top else Target()
            found[n] = self._advance(n, ups[n][0], down, here, mine, sweep=sweep, bits=bits)
        return found

    # In prototypical dynamics a free layer moves by its neighbours alone, so that a step of all
    # layers is two relaxations that never meet: even layers at even times with odd ones at odd
    # times, and the other way round. Shifted by one step they run side by side, one kind of layer
    # after the other, as one mini-batch of twice the size: half the products, each as cheap.

    @cached_property
    def _two_coloured(self) -> bool:
        dense = all_dense(self.network)
        free = isinstance(self.network.dynamics, Prototypical) and len(self.couplings) > 1
        return dense and free and len(self.network.turns) == 1

    def _free_two_coloured(
        self, first: Tensor, state: list[Tensor], activity: list[Tensor], steps: int
    ) -> Phase:
        """A free phase in updates of the layers 1, 3, ... and 2, 4, ... in turn."""
        count, others = len(state), range(1, len(state), 2)
        layers, twice = range(0, count, 2), torch.cat([first, first])
        # Where each layer is at the last two times that it is known at.
        at = {n: [pair, pair] for n, pair in enumerate(zip(state, activity, strict=True))}
        for n, moved in self._move(layers, first, dict(enumerate(activity))).items():
            at[n][1] = moved
        joined = {n: torch.cat([at[n][0][1], at[n][1][1]]) for n in layers}
        for _ in range(1, steps):
            # The others, at the two times before, move these layers to the next two.
            layers, others = others, layers
            found = self._move(layers, twice, joined)
            for n, moved in found.items():
                at[n] = list(zip(*(part.chunk(2) for part in moved), strict=True))
            joined = {n: activity for n, (_, activity) in found.items()}
        # One colour has reached the last step, the other is one behind.
        sources = {n: at[n][0][1] for n in layers}
        for n, moved in self._move(others, first, sources).items():
            at[n] = [at[n][1], moved]
        before, after = ([at[n][time][0] for n in range(count)] for time in (0, 1))
        activities = [at[n][1][1] for n in range(count)]
        return Phase(after, activities, largest_change(after, before), self._ran(steps))

    def _up(self, n: int, sums: Tensor) -> Up:
        if n == 0:
            return Up(sums, None, None, tl.constexpr(False))
        coupling = self.network.couplings[n]
        gain, bias = coupling.synapses.gain.detach(), coupling.bias
        bias = None if bias is None else bias.detach()
        return Up(sums, gain, bias, tl.constexpr(gain.dim() > 0))

    def _down(self, n: int, sums: Tensor | None) -> Down:
        if sums is None:
            return Down()
        above = self.couplings[n + 1]
        if isinstance(above, FastConv):
            return Down(sums)
        gain = above.coupling.synapses.gain.detach()
        if n + 2 == len(self.couplings) and self._few:
            return Down(sums, gain, above.kernel, tl.constexpr(sums.shape[1]))
        return Down(sums, gain)

    def _advance(
        self,
        n: int,
        up: Tensor,
        down: Tensor | None,
        state: Tensor | None,
        target: Target,
        listed: EventList = EventList(),  # noqa: B008, it is a value
        sweep: Sweep = Sweep(),  # noqa: B008, it is a value
        bits: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A layer's next state and activity.

        Args:
            up: sums of the coupling below, of the first one the whole drive.
            down: sums (dense) or drive of the one above; activities of a few outputs.
            listed: where to list the bits that flip.
            bits: of bits alone, what it sends. Where samples are left out, it is changed in place,
                and so is the state of outputs.
        """
        moved, activity, in_place = None, bits, sweep.moving is not None
        if bits is None or n + 1 == len(self.couplings):
            moved = state if in_place else torch.empty_like(up, dtype=torch.float32)
        if activity is None or not in_place:
            activity = torch.empty_like(up, dtype=self.dtype)
        before = state if bits is None else None
        layer = Step(before, moved, bits, activity, up.shape[1], up[0].numel())
        args = self._up(n, up), self._down(n, down), target, listed, sweep
        launch(advance_kernel, up.numel(), layer, *args, self.neuron, up.numel())
        return activity if moved is None else moved, activity

    def _advance_few(
        self, below: Tensor, state: Tensor | None, target: Target
    ) -> tuple[Tensor, Tensor]:
        """The next state and activity of a few outputs."""
        fast, outputs = self.couplings[-1], self.network.layer_shapes[-1][0]
        assert isinstance(fast, FastDense)
        moved = torch.empty(len(below), outputs, device=self.device)
        activity = torch.empty_like(moved, dtype=self.dtype)
        few_outputs_kernel[(len(below),)](
            below,
            fast.kernel,
            self._up(len(self.couplings) - 1, below),
            Step(moved if state is None else state, moved, None, activity, outputs, outputs),
            target,
            self.neuron,
            below[0].numel(),
            OUTPUTS=outputs,
            BLOCK=512,
            num_warps=4,
        )
        return moved, activity
