# pyright: reportCallIssue=false
"""Ways of relaxing a mini-batch on the GPU: step by step, or a sample from start to end at once.

A relaxer has `free(first, batch)` and `nudged(first, free, labels, direction)`, both giving a
`Phase`. `choose_relaxer` takes the one made for a network.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from binep.couplings import ConvPool, Dense
from binep.dynamics import EnergyBased, Prototypical
from binep.engines.cuda.conv_events import SILENT
from binep.engines.cuda.couplings import FastConv, FastDense, launch
from binep.engines.cuda.kernels import advance_kernel, top_kernel
from binep.engines.cuda.settling import events_kernel, thin_kernel
from binep.gradients import EquilibriumPropagation
from binep.network import Network
from binep.neurons import Heaviside

THIN = 16  # outputs, as many as a word has room for
THIN_WIDTH = 16384  # hidden neurons that fit into the registers of a program
WIDE = 1024  # from here on a flip's row of weights costs more than a share of a matrix product
BUSY_STEPS = 4  # in which most bits of a wide network change, so that products are cheaper


@dataclass
class Phase:
    """Where a phase ended.

    Attributes:
        state: s1..sN. activity: what they send, in the products' dtype.
        residual: f32, the last step's largest change, one for each sample or one for all.
        ran: int32, like `residual`: steps after which nothing moved any more.
        sums, kept: what `Events` and `ConvEvents` go on with.
    """

    state: list[Tensor]
    activity: list[Tensor]
    residual: Tensor
    ran: Tensor
    sums: "Sums | None" = None
    kept: "dict[int, Kept] | None" = None


class Relaxer(Protocol):
    def free(self, first: Tensor, batch: int) -> Phase: ...
    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase: ...


def choose_relaxer(
    network: Network,
    learning: EquilibriumPropagation,
    couplings: list[FastDense | FastConv],
    beta: Tensor,
    dtype: torch.dtype,
) -> "Relaxer":
    """The fastest relaxer that can run a network."""
    arguments = (network, learning, couplings, beta, dtype)
    if learning.tolerance is not None:
        return Settling(*arguments)
    dense = all(isinstance(coupling, Dense) for coupling in network.couplings)
    if dense and len(couplings) > 1 and network.neuron.binary:
        return Events(*arguments)
    if (
        dense
        and len(couplings) == 2
        and network.layer_shapes[-1][0] <= THIN
        and network.layer_shapes[0][0] <= THIN_WIDTH
        and network.couplings[1].binary
        and isinstance(network.dynamics, Prototypical)
    ):
        return Thin(*arguments)
    convolutions = [c for c in network.couplings if isinstance(c, ConvPool)]
    if network.neuron.binary and len(convolutions) > 1 and all(c.pool <= 3 for c in convolutions):
        return ConvEvents(*arguments)
    return Stepwise(*arguments)


@dataclass
class _Base:
    network: Network
    learning: EquilibriumPropagation
    couplings: list[FastDense | FastConv]
    beta: Tensor  # f32, (1,), signed
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        return self.beta.device

    def start(self, batch: int) -> tuple[list[Tensor], list[Tensor]]:
        """States and activities at t = 0."""
        states, activities = [], []
        for shape in self.network.layer_shapes:
            state = torch.full((batch, *shape), self.network.initial_state, device=self.device)
            states.append(in_order(state))
            activities.append(in_order(self.network.neuron(state).to(self.dtype)))
        return states, activities

    def target(self, labels: Tensor) -> Tensor:
        one_hot = torch.zeros(len(labels), self.network.classes, device=self.device)
        one_hot.scatter_(1, labels[:, None], 1.0)
        return one_hot.repeat_interleave(self.network.per_class, dim=1)

    @cached_property
    def neuron_numbers(self) -> dict[str, float]:
        """The window of the neuron, as the kernels want it."""
        neuron = self.network.neuron
        binary = isinstance(neuron, Heaviside)
        return {
            "threshold": neuron.threshold if binary else 0.5,
            "sigma": neuron.sigma if binary else 0.5,
            "slope": 1 / (2 * neuron.sigma) if binary else 1.0,
        }


# Lists that kernels fill: neurons, how many a sample, and other counts to set to zero.
Flips = tuple[Tensor, Tensor, Tensor]
Nudge = tuple[Tensor, Tensor, Tensor]  # target, signed beta, the state a constant nudge pulls at


class Stepwise(_Base):
    """Any network: matrix products, and one kernel a layer between them."""

    def free(self, first: Tensor, batch: int) -> Phase:
        state, activity = self.start(batch)
        if self._two_coloured:
            return self._free_two_coloured(first, state, activity)
        return self._run(first, state, activity, self.learning.free_steps)

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        nudge = (self.target(labels), self.beta * direction, free.state[-1])
        return self._run(first, free.state, free.activity, self.learning.nudged_steps, nudge)

    def _run(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        steps: int,
        nudge: Nudge | None = None,
    ) -> Phase:
        before, fields = state, self._fields(len(first))
        for _ in range(steps):
            before = state
            state, activity = self.step(first, state, activity, nudge, fields)
        return Phase(state, activity, largest_change(state, before), self._ran(steps))

    def _ran(self, steps: int) -> Tensor:
        return torch.full((1,), steps, dtype=torch.int32, device=self.device)

    def _fields(self, batch: int) -> dict[int, Tensor]:
        """For each convolution of real activities, room for what it sends down."""
        return {
            n: fast.new_field(batch)
            for n, fast in enumerate(self.couplings)
            if n > 0 and isinstance(fast, FastConv) and not fast.exact
        }

    def step(
        self,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        nudge: Nudge | None = None,
        fields: dict[int, Tensor] | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """All layers move at once, from the states of the step before."""
        fields, top = fields or {}, len(state) - 1
        moved: dict[int, tuple[Tensor, Tensor]] = {}
        ups: dict[int, tuple[Tensor, Tensor | None]] = {0: (first, None)}
        for n, fast in enumerate(self.couplings[1:top], 1):
            if n in fields and isinstance(fast, FastConv):
                advance = {}
                if n + 1 == top and self._thin:
                    moved[n], advance = self._advance_in_pool(n, activity[top], state[n])
                pooled = fast.up_with_field(activity[n - 1], activity[n], fields[n], **advance)
                ups[n] = pooled, None
            else:
                ups[n] = fast.up(activity[n - 1])
        if top > 0:
            moved[top] = self._advance_top(activity[top - 1], state[top], nudge)
        else:
            moved[top] = self._advance(top, first, None, state[top], nudge)
        for n, above in enumerate(self.couplings[1:]):
            up, down = ups[n][0], activity[n + 1]
            if n in moved:
                continue
            if n + 1 in fields and isinstance(above, FastConv):
                moved[n] = self._advance_by_field(n, up, fields[n + 1], above, state[n])
                continue
            if not (self._thin and n + 1 == top):
                switches = ups[n + 1][1] if n + 1 in ups else None
                down = above.down(down, switches)
            moved[n] = self._advance(n, up, down, state[n])
        return [moved[n][0] for n in range(top + 1)], [moved[n][1] for n in range(top + 1)]

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
        dense = all(isinstance(coupling, Dense) for coupling in self.network.couplings)
        return dense and isinstance(self.network.dynamics, Prototypical) and len(self.couplings) > 1

    def _free_two_coloured(
        self, first: Tensor, state: list[Tensor], activity: list[Tensor]
    ) -> Phase:
        """The same phase, in updates of the layers 1, 3, ... and 2, 4, ... in turn."""
        steps, batch = self.learning.free_steps, len(first)
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
                found[n] = self._advance_top(sources[n - 1], None, None)
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
        flips: "Flips | None" = None,
    ) -> tuple[Tensor, Tensor]:
        """A layer's next state and activity.

        Args:
            up: sums of the coupling below, of the first one the whole drive.
            down: sums (dense) or drive of the one above; activities of thin outputs.
            flips: where to list the bits that flip.
        """
        coupling, network = self.network.couplings[n], self.network
        dynamics = network.dynamics
        gain, bias = coupling.synapses.gain.detach(), coupling.bias
        above = self.couplings[n + 1] if down is not None else None
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
            LIST=flips is not None,
        )
        return moved, activity

    def _advance_top(
        self, below: Tensor, state: Tensor | None, nudge: Nudge | None
    ) -> tuple[Tensor, Tensor]:
        """The output layer's next state and activity; a few outputs are done in one launch.

        Args:
            state: where it is, (batch, outputs); free prototypical layers need not know.
        """
        n, fast = len(self.couplings) - 1, self.couplings[-1]
        if not self._thin:
            up, _ = fast.up(below)
            return self._advance(n, up, None, up if state is None else state, nudge)
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
            OUTPUTS=outputs,
            BLOCK=512,
            num_warps=4,
        )
        return moved, activity

    def _advance_in_pool(
        self, n: int, sent: Tensor, state: Tensor
    ) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
        """Room for the next state and activity of a layer below a few outputs, and `pool_kernel`'s
        arguments to fill it."""
        coupling, above = self.network.couplings[n], self.couplings[n + 1]
        moved, activity = torch.empty_like(state), torch.empty_like(state, dtype=self.dtype)
        arguments = {
            "sent": sent,
            "sent_kernel": above.kernel,
            "sent_gain": above.coupling.synapses.gain.detach(),
            "state": state,
            "new_state": moved,
            "activity": activity,
            "ENERGY": isinstance(self.network.dynamics, EnergyBased),
            "THIN": sent.shape[1],
            **self.neuron_numbers,
        }
        if coupling.bias is not None:
            arguments |= {"bias": coupling.bias.detach(), "HAS_BIAS": True}
        return (moved, activity), arguments

    def _advance_by_field(
        self, n: int, up: Tensor, field: Tensor, above: FastConv, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same for a layer below a convolution, inside the convolution's kernel."""
        coupling = self.network.couplings[n]
        moved, activity = torch.empty_like(state), torch.empty_like(state, dtype=self.dtype)
        above.transpose(
            field,
            up=up,
            gain=None
            if n == 0
            else coupling.synapses.gain.detach().expand(state.shape[1]).contiguous(),
            bias=None if coupling.bias is None else coupling.bias.detach(),
            state=state,
            new_state=moved,
            activity=activity,
            ENERGY=isinstance(self.network.dynamics, EnergyBased),
            BINARY=self.network.neuron.binary,
            **self.neuron_numbers,
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
    active: Tensor
    residual: Tensor
    ran: Tensor
    limit: Tensor
    graph: "torch.cuda.CUDAGraph | None" = None


class Settling(Stepwise):
    """Any network with a tolerance: a phase ends after a step that changed no state by more.

    Steps run in chunks. Inside one, a mini-batch that has settled stays as it is; whether it has is
    looked up between chunks, while the next one is not launched yet.
    """

    STEPS = 8

    @cached_property
    def _chunks(self) -> dict[tuple[int, bool], Chunk]:
        """By batch size, and whether nudged."""
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
    ) -> Phase:
        key = len(first), nudge is not None
        if key not in self._chunks:
            self._chunks[key] = self._new_chunk(first, state, activity, nudge)
        chunk = self._chunks[key]
        given = [first, *state, *activity, *(nudge or ())]
        kept = [chunk.first, *chunk.state, *chunk.activity, *(chunk.nudge or ())]
        for place, values in zip(kept, given, strict=True):
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
        self, first: Tensor, state: list[Tensor], activity: list[Tensor], nudge: Nudge | None
    ) -> Chunk:
        integers = torch.zeros(2, dtype=torch.int32, device=self.device)
        chunk = Chunk(
            first.clone(),
            [s.clone() for s in state],
            [a.clone() for a in activity],
            None if nudge is None else (nudge[0].clone(), nudge[1].clone(), nudge[2].clone()),
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
        fields = self._fields(len(chunk.first))
        for _ in range(self.STEPS):
            states, activities = self.step(
                chunk.first, chunk.state, chunk.activity, chunk.nudge, fields
            )
            change = largest_change(states, chunk.state)
            for old, new in zip(chunk.state + chunk.activity, states + activities, strict=True):
                torch.where(chunk.active, new, old, out=old)
            torch.where(chunk.active, change, chunk.residual, out=chunk.residual)
            chunk.ran += chunk.active
            chunk.active &= (change > tolerance) & (chunk.ran < chunk.limit)


class Thin(_Base):
    """One hidden layer and few outputs, binary weights, real activations: a phase is one launch."""

    def free(self, first: Tensor, batch: int) -> Phase:
        return self._run(first, None, None, 1)

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        return self._run(first, free, labels, direction)

    def _run(
        self, first: Tensor, start: Phase | None, labels: Tensor | None, direction: int
    ) -> Phase:
        coupling, dynamics = self.network.couplings[1], self.network.dynamics
        gain, bias = coupling.synapses.gain.detach(), coupling.bias
        (batch, width), outputs = first.shape, self.network.layer_shapes[-1][0]
        hidden, top = torch.empty_like(first), first.new_empty(batch, outputs)
        residual, ran = per_sample(first)
        thin_kernel[(batch,)](
            first,
            self.couplings[1].kernel,
            gain,
            gain if bias is None else bias.detach(),
            ran if labels is None else labels,
            self.beta,
            *((hidden, top) if start is None else start.state),
            hidden,
            top,
            residual,
            ran,
            width,
            self.network.initial_state,
            self.learning.free_steps if start is None else self.learning.nudged_steps,
            self.network.per_class,
            direction,
            HAS_BIAS=bias is not None,
            NUDGED=start is not None,
            CONSTANT=self.learning.nudge == "constant",
            CLAMPED=isinstance(dynamics, Prototypical) and dynamics.clamp_nudged,
            OUTPUTS=outputs,
            WIDTH=power_of_two(width),
            num_warps=8 if width > 1024 else 4,
        )
        return Phase([hidden, top], [hidden, top], residual, ran)


@dataclass
class Sums:
    """Sums over signs and bits, int32, (batch, total), kept from step to step."""

    up: Tensor
    down: Tensor
    state: Tensor
    bits: Tensor


@dataclass
class Events(_Base):
    """Dense networks of bits: after a few busy steps, only neurons that flip cause work."""

    sizes: list[int] = field(init=False)
    table: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = [shape[0] for shape in self.network.layer_shapes]
        counts = [0, *(fast.coupling.synapses.kernel.numel() for fast in self.couplings[1:])]
        # All couplings between layers that relax lie in one array, so that one kernel reads them.
        kernels = torch.empty(sum(counts), dtype=self.dtype, device=self.device)
        turned = torch.empty_like(kernels)
        rows, neuron, entry = [], 0, 0
        for size, fast, count in zip(self.sizes, self.couplings, counts, strict=True):
            rows.append([size, neuron, entry])
            if count:
                shape = fast.kernel.shape
                fast.kernel = kernels[entry : entry + count].view(shape)
                fast.turned = turned[entry : entry + count].view(shape[::-1])
            neuron, entry = neuron + size, entry + count
        self.kernels, self.turned = kernels, turned
        self.table = torch.tensor(rows, dtype=torch.int32, device=self.device)
        wide = min(self.sizes) >= WIDE
        self.dense_steps = min(BUSY_STEPS if wide else 2, self.learning.free_steps - 1)
        self.stepwise = Stepwise(self.network, self.learning, self.couplings, self.beta, self.dtype)

    def free(self, first: Tensor, batch: int) -> Phase:
        state, activity = self.start(batch)
        for _ in range(self.dense_steps):
            state, activity = self.stepwise.step(first, state, activity)
        return self._run(
            first,
            self._add_up(state, activity),
            self.learning.free_steps - self.dense_steps,
            None,
            1,
            self.dense_steps,
        )

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        assert free.sums is not None
        kept = free.sums
        sums = Sums(kept.up.clone(), kept.down.clone(), kept.state.clone(), kept.bits.clone())
        rest = free.state[-1].contiguous()
        return self._run(first, sums, self.learning.nudged_steps, labels, direction, rest=rest)

    def _add_up(self, state: list[Tensor], activity: list[Tensor]) -> Sums:
        """All sums at some activity, from scratch."""
        batch, integer = len(state[0]), torch.int32
        none = [torch.zeros(batch, size, dtype=integer, device=self.device) for size in self.sizes]
        ups, downs = [none[0]], []
        for n, fast in enumerate(self.couplings[1:]):
            ups.append(fast.up(activity[n])[0].to(integer))
            downs.append(fast.down(activity[n + 1], None).to(integer))
        return Sums(*(torch.cat(parts, 1) for parts in (ups, [*downs, none[-1]], state, activity)))

    def _run(
        self,
        first: Tensor,
        sums: Sums,
        steps: int,
        labels: Tensor | None,
        direction: int,
        already: int = 0,
        rest: Tensor | None = None,
    ) -> Phase:
        couplings, (batch, total) = self.network.couplings, sums.state.shape
        residual, ran = per_sample(first)
        events = torch.empty_like(sums.up)
        counts = torch.zeros(batch, 2, len(self.sizes), dtype=torch.int32, device=self.device)
        gains = torch.stack([coupling.synapses.gain.detach() for coupling in couplings])
        events_kernel[(batch,)](
            first,
            sums.up,
            sums.down,
            sums.state,
            sums.bits,
            events,
            counts,
            gains,
            self._biases(),
            self.kernels,
            self.turned,
            self.table,
            ran if labels is None else labels,
            self.beta,
            sums.state if rest is None else rest,
            residual,
            ran,
            total,
            steps,
            self.network.per_class,
            direction,
            *self.neuron_numbers.values(),
            LAYERS=len(self.sizes),
            NUDGED=labels is not None,
            CONSTANT=self.learning.nudge == "constant",
            PACKED=self.dtype == torch.int8,
            BLOCK=min(4096, power_of_two(max(self.sizes))),
            num_warps=16,
            enable_fp_fusion=False,
        )
        return Phase(
            list(sums.state.split(self.sizes, 1)),
            list(sums.bits.split(self.sizes, 1)),
            residual,
            ran + already,
            sums,
        )

    def _biases(self) -> Tensor:
        parts = []
        for size, coupling in zip(self.sizes, self.network.couplings, strict=True):
            bias = coupling.bias
            parts.append(torch.zeros(size, device=self.device) if bias is None else bias.detach())
        return torch.cat(parts)


@dataclass
class Kept:
    """What one convolution between bits keeps from step to step.

    Attributes:
        maps: int32, sums before pooling. drive: f64, on the layer below.
        places: uint8, where in its pool each bit above is sent, or that it is not.
        events, counts: bits above that are sent elsewhere than before. flips, flip_counts: bits
            below that flipped.
    """

    maps: Tensor
    drive: Tensor
    places: Tensor
    events: Tensor
    counts: Tensor
    flips: Tensor
    flip_counts: Tensor

    def clone(self) -> "Kept":
        return Kept(*(getattr(self, each.name).clone() for each in fields_of(Kept)))


class ConvEvents(Stepwise):
    """Convolutional networks of bits: after a few busy steps, only what changes causes work."""

    def free(self, first: Tensor, batch: int) -> Phase:
        state, activity = self.start(batch)
        busy = min(BUSY_STEPS, self.learning.free_steps - 1)
        for _ in range(busy):
            state, activity = self.step(first, state, activity)
        kept = {n: self._begin(n, activity) for n in self._convolutions}
        return self._go_on(
            first, state, activity, kept, self.learning.free_steps - busy, None, busy
        )

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        assert free.kept is not None
        kept = {n: each.clone() for n, each in free.kept.items()}
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
        return Phase(state, activity, residual, self._ran(already + steps), kept=kept)

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


# Recording in two threads at once would mix their launches.
_recording = threading.Lock()


def record(
    function: Callable[[], None], restore: Callable[[], None] = lambda: None
) -> torch.cuda.CUDAGraph:
    """A graph of what a function launches, after a warm-up that compiles its kernels.

    Args:
        restore: undoes what the warm-up changed.
    """
    with _recording:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        restore()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            function()
    return graph


def per_sample(first: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the residual and the number of steps of every sample."""
    residual = first.new_empty(len(first))
    return residual, torch.empty_like(residual, dtype=torch.int32)


def largest_change(after: list[Tensor], before: list[Tensor]) -> Tensor:
    """The largest change of any neuron in any sample, (1,)."""
    changes = [(a - b).abs().max() for a, b in zip(after, before, strict=True)]
    return torch.stack(changes).max().reshape(1)


def in_order(values: Tensor) -> Tensor:
    """Channels last for images, rows for the rest."""
    layout = torch.channels_last if values.dim() == 4 else torch.contiguous_format
    return values.contiguous(memory_format=layout)


def power_of_two(count: int) -> int:
    """The next power of two, as the sizes of Triton's blocks are."""
    return 1 << (count - 1).bit_length()
