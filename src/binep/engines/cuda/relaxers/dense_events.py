"""Relaxing dense networks of bits at the cost of the neurons that flip.

Samples are independent, so one program takes one sample through a whole phase, after a few busy
steps by matrix products. Sums are kept, and a neuron that flips adds or subtracts its column of
weights. A flip costs one row of memory, a quiet step one pass over the states. A program stops as
soon as a step changes no state, since no later step could. The order of events does not matter:
their sums are integers.

Bits alone move in turn and keep no state: a layer whose neighbours have not flipped is skipped.
"""

from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from binep.core.couplings import Dense
from binep.core.dynamics import EnergyBased, Hopfield
from binep.core.gradients import Learning
from binep.core.network import Network
from binep.core.neurons import Heaviside
from binep.core.plan import PhasePlan
from binep.core.turns import UPDATES
from binep.core.weights import BinaryWeight
from binep.engines.base import Capabilities
from binep.engines.cuda.layout import Copies
from binep.engines.cuda.relaxers.base import Phase, per_sample, power_of_two
from binep.engines.cuda.relaxers.stepwise import BUSY_STEPS, Stepwise
from binep.engines.cuda.rules import Target, handicap, pull, step

WIDE = 1024  # from here on a flip's row of weights costs more than a share of a matrix product
NARROW = 256  # neurons that are passed over in one small block
BUSY_SWEEPS = 2  # of bits alone in a wide network
SECOND_TURN = tl.constexpr(0x2AAAAAAA)  # bits of its layers


class Layer(NamedTuple):
    """A layer of a mini-batch, (batch, SIZE), and the coupling below it.

    Attributes:
        up, down: int32, sums from below and from above; changed, like state and bits.
        events: int32, scratch: neurons that flipped; -1 - i if to 0.
        state: of bits alone only that of the outputs is there.
        gain, bias: f32. kernel, turned: its signs, (SIZE, size below) and the other way round.
    """

    up: Tensor | None
    down: Tensor | None
    state: Tensor | None
    bits: Tensor
    events: Tensor
    gain: Tensor | None
    bias: Tensor | None
    kernel: Tensor | None
    turned: Tensor | None
    SIZE: Any
    BLOCK: Any


class Start(NamedTuple):
    """How a phase of bits alone begins, (batch,).

    Attributes:
        changed: int32, whether a bit has changed in the sweep under way, of which the first turn is
            over; None: it begins with a whole one.
        residual: f32, of the phase before: where it is 0 only outputs can move, by the nudge.
    """

    changed: Tensor | None = None
    residual: Tensor | None = None


@triton.jit
def events_kernel(
    first,  # f32, (batch, size of layer 0): its constant drive
    layers,
    counts,  # int32, (batch, 2, LAYERS), zero: how many flipped, for odd and even steps
    target,
    neuron,
    residual,  # f32, (batch,)
    ran,  # int32, (batch,)
    steps,
    LAYERS: tl.constexpr,
    PACKED: tl.constexpr,  # whether signs are of one byte each
):
    """A phase of a sample."""
    sample = tl.program_id(0).to(tl.int64)
    change = 1.0
    t = 0
    while (t < steps) & (change > 0.0):
        now = counts + (sample * 2 + t % 2) * LAYERS
        later = counts + (sample * 2 + (t + 1) % 2) * LAYERS
        change = 0.0
        for n in tl.static_range(LAYERS):
            tl.store(later + n, 0)
            change = tl.maximum(change, _pass_layer(
                first, layers, now + n, 0, 0, target, neuron, sample, n, LAYERS, False
            ))  # fmt: skip
        t += 1
        tl.debug_barrier()
        for n in tl.static_range(LAYERS):
            count = tl.load(now + n)
            if n + 1 < LAYERS:
                _hear_below(layers, n + 1, count, sample, PACKED)
            if n > 0:
                _hear_above(layers, n - 1, count, sample, PACKED)
        tl.debug_barrier()
    tl.store(residual + sample, change)
    tl.store(ran + sample, t)


@triton.jit
def turns_kernel(
    first,  # f32, (batch, size of layer 0): its constant drive
    layers,
    counts,  # int32, (batch, 2, LAYERS), zero: how many flipped, for odd and even sweeps
    start,
    target,
    neuron,
    residual,  # f32, (batch,)
    ran,  # int32, (batch,)
    sweeps,
    LAYERS: tl.constexpr,
    PACKED: tl.constexpr,  # whether signs are of one byte each
):
    """A phase of a sample whose layers are bits alone, and move in turn.

    On its turn a layer takes in what has flipped since it last moved; if nothing has, it stays.
    """
    sample = tl.program_id(0).to(tl.int64)
    # Layers that move in the first sweep even if nothing has flipped, a bit each.
    moves = tl.full((), (1 << LAYERS) - 1, tl.int32)
    if start.changed is not None:
        moves = moves & SECOND_TURN
    elif start.residual is not None:
        moves = tl.where(tl.load(start.residual + sample) > 0.0, moves, 1 << (LAYERS - 1))
    change = 1.0
    t = 0
    while (t < sweeps) & (change > 0.0):
        now = counts + (sample * 2 + t % 2) * LAYERS
        later = counts + (sample * 2 + (t + 1) % 2) * LAYERS
        change = 0.0
        if start.changed is not None:
            change = tl.where(t == 0, tl.load(start.changed + sample).to(tl.float32), 0.0)
        for turn in tl.static_range(2):
            # Those of the sweep before are still there when the first turn begins.
            heard = now if turn > 0 else later
            for n in tl.static_range(turn, LAYERS, 2):
                below = tl.load(heard + n - 1) if n > 0 else 0
                above = tl.load(heard + n + 1) if n + 1 < LAYERS else 0
                tl.store(later + n, 0)
                if ((moves >> n) & 1) + below + above > 0:
                    if PACKED:
                        # Four signs at a time, before the neurons are passed over.
                        _hear(layers, n, below, above, sample, LAYERS, PACKED)
                        tl.debug_barrier()
                    change = tl.maximum(change, _pass_layer(
                        first, layers, now + n, below, above, target, neuron, sample,
                        n, LAYERS, not PACKED
                    ))  # fmt: skip
            tl.debug_barrier()
        moves = moves & 0
        t += 1
    if change > 0.0:
        # What the layers of the first turn would hear next.
        last = counts + (sample * 2 + (t + 1) % 2) * LAYERS
        for n in tl.static_range(0, LAYERS, 2):
            below = tl.load(last + n - 1) if n > 0 else 0
            above = tl.load(last + n + 1) if n + 1 < LAYERS else 0
            _hear(layers, n, below, above, sample, LAYERS, PACKED)
    tl.store(residual + sample, change)
    tl.store(ran + sample, t)


@triton.jit
def _pass_layer(
    first,
    layers,
    count,  # int32: how many flip
    below,  # how many flipped in the layers below and above since it last moved, if it HEARS them
    above,
    target,
    neuron,
    sample,
    N: tl.constexpr,
    LAYERS: tl.constexpr,
    HEARS: tl.constexpr,
):
    """One step of one layer of one sample; lists the flips, and returns the largest change."""
    SIZE: tl.constexpr = layers[N].SIZE
    BLOCK: tl.constexpr = layers[N].BLOCK
    GROUP: tl.constexpr = tl.constexpr(64) if SIZE <= 128 else tl.constexpr(8)
    TOP: tl.constexpr = N + 1 == LAYERS
    row = sample * SIZE
    largest = tl.zeros((BLOCK,), tl.float32)
    label = 0
    if TOP and target.labels is not None:
        label = tl.load(target.labels + sample)
    for start in range(0, SIZE, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < SIZE
        if N == 0:
            drive = tl.load(first + row + i, mask=inside, other=0.0)
        else:
            if HEARS:
                events = layers[N - 1].events + sample * layers[N - 1].SIZE
                up, weights = layers[N].up + row, layers[N].turned
                sums = add_tile(up, weights, SIZE, events, below, start, GROUP, BLOCK)
            else:
                sums = tl.load(layers[N].up + row + i, mask=inside, other=0)
            drive = tl.load(layers[N].gain) * sums.to(tl.float32)
            if layers[N].bias is not None:
                drive = drive + tl.load(layers[N].bias + i, mask=inside, other=0.0)
        if not TOP:
            if HEARS:
                events = layers[N + 1].events + sample * layers[N + 1].SIZE
                down, weights = layers[N].down + row, layers[N + 1].kernel
                sums = add_tile(down, weights, SIZE, events, above, start, GROUP, BLOCK)
            else:
                sums = tl.load(layers[N].down + row + i, mask=inside, other=0)
            drive = drive + tl.load(layers[N + 1].gain) * sums.to(tl.float32)
        if neuron.BITS:
            s = drive
            was = tl.load(layers[N].bits + row + i, mask=inside, other=0) > 0
        else:
            s = tl.load(layers[N].state + row + i, mask=inside, other=0.0)
            was = s >= neuron.threshold  # a bit follows its state: it need not be read
        force = None
        if TOP and target.margin is not None:
            drive = drive + handicap(target, label, i)
        if TOP and target.beta is not None:
            force = pull(target, label, i, s, row + i, inside)
        new = step(s, drive, force, neuron)
        if layers[N].state is not None:
            tl.store(layers[N].state + row + i, new, mask=inside)
        fires = new >= neuron.threshold
        flipped = inside & (fires != was)
        if neuron.BITS:
            change = tl.where(flipped, 1.0, 0.0)
        else:
            change = tl.where(inside, tl.abs(new - s), 0.0)
        largest = tl.maximum(largest, change)
        place = tl.atomic_add(
            count + tl.zeros_like(i), tl.full((BLOCK,), 1, tl.int32), mask=flipped, sem="relaxed",
            scope="cta",
        )  # fmt: skip
        tl.store(layers[N].events + row + place, tl.where(fires, i, -1 - i), mask=flipped)
        tl.store(layers[N].bits + row + i, fires.to(layers[N].bits.dtype.element_ty), mask=flipped)
    return tl.max(largest, 0)


@triton.jit
def _hear(
    layers, n: tl.constexpr, below, above, sample, LAYERS: tl.constexpr, PACKED: tl.constexpr
):
    """Bring the sums of a layer up to date with what has flipped below and above it."""
    if n > 0:
        _hear_below(layers, n, below, sample, PACKED)
    if n + 1 < LAYERS:
        _hear_above(layers, n, above, sample, PACKED)


@triton.jit
def _hear_below(layers, n: tl.constexpr, count, sample, PACKED: tl.constexpr):
    if count > 0:
        sums = layers[n].up + sample * layers[n].SIZE
        events = layers[n - 1].events + sample * layers[n - 1].SIZE
        _add_rows(sums, layers[n].turned, events, count, layers[n].SIZE, PACKED)


@triton.jit
def _hear_above(layers, n: tl.constexpr, count, sample, PACKED: tl.constexpr):
    if count > 0:
        sums = layers[n].down + sample * layers[n].SIZE
        events = layers[n + 1].events + sample * layers[n + 1].SIZE
        _add_rows(sums, layers[n + 1].kernel, events, count, layers[n].SIZE, PACKED)


@triton.jit
def _add_rows(sums, weights, events, count, WIDTH: tl.constexpr, PACKED: tl.constexpr):
    """Add (or take away) a row of weights for each event; wide rows and narrow ones."""
    if WIDTH <= 128:
        _add_tiles(sums, weights, WIDTH, events, count, 64, 128)
    elif PACKED:
        _add_words(sums, weights, WIDTH, events, count, 16, 1024)
    else:
        _add_tiles(sums, weights, WIDTH, events, count, 8, 4096)


@triton.jit
def _add_tiles(sums, weights, width, events, count, GROUP: tl.constexpr, TILE: tl.constexpr):
    for start in range(0, width, TILE):
        add_tile(sums, weights, width, events, count, start, GROUP, TILE)


@triton.jit
def add_tile(sums, weights, width, events, count, start, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Add (or take away) a part of a row of weights for each event; the sums that come of it."""
    j = start + tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.int32)
    for e in range(0, count, GROUP):
        sign, source, known = _group(events, e, count, GROUP)
        w = tl.load(
            weights + source[:, None] * width + j[None, :],
            mask=known[:, None] & (j < width)[None, :],
            other=0,
        )
        total += tl.sum(w.to(tl.int32) * sign[:, None], 0)
    total += tl.load(sums + j, mask=j < width, other=0)
    tl.store(sums + j, total, mask=j < width)
    return total


@triton.jit
def _add_words(sums, weights, width, events, count, GROUP: tl.constexpr, TILE: tl.constexpr):
    """The same for signs of one byte, four to a word.

    Of +1 = 0x01 and -1 = 0xFF the bit 0x02 says which, so `w = 1 - (byte & 2)`. The masked words
    are added up whole: in a group of 16 events no byte's sum leaves -128..127.
    """
    words = weights.to(tl.pointer_type(tl.int32))
    for start in range(0, width // 4, TILE):
        j = start + tl.arange(0, TILE)
        inside = j < width // 4
        # Sums of the neurons 4 j, ... 4 j + 3.
        a = tl.zeros((TILE,), tl.int32)
        b = tl.zeros((TILE,), tl.int32)
        c = tl.zeros((TILE,), tl.int32)
        d = tl.zeros((TILE,), tl.int32)
        balance = 0
        for e in range(0, count, GROUP):
            sign, source, known = _group(events, e, count, GROUP)
            balance += tl.sum(sign, 0)
            w = tl.load(
                words + source[:, None] * (width // 4) + j[None, :],
                mask=known[:, None] & inside[None, :],
                other=0,
            )
            four = tl.sum((w & 0x02020202) * sign[:, None], 0)
            low = (four << 24) >> 24
            a -= low
            four = (four - low) >> 8
            low = (four << 24) >> 24
            b -= low
            four = (four - low) >> 8
            low = (four << 24) >> 24
            c -= low
            d -= (four - low) >> 8
        place = sums + 4 * j
        tl.store(place, tl.load(place, mask=inside, other=0) + a + balance, mask=inside)
        tl.store(place + 1, tl.load(place + 1, mask=inside, other=0) + b + balance, mask=inside)
        tl.store(place + 2, tl.load(place + 2, mask=inside, other=0) + c + balance, mask=inside)
        tl.store(place + 3, tl.load(place + 3, mask=inside, other=0) + d + balance, mask=inside)


@triton.jit
def _group(events, e, end, GROUP: tl.constexpr):
    """Some events: +1 or -1 (0 past the end), the neurons that flipped, whether they are known."""
    k = e + tl.arange(0, GROUP)
    event = tl.load(events + k, mask=k < end, other=0)
    sign = tl.where(k < end, tl.where(event < 0, -1, 1), 0)
    return sign, tl.where(event < 0, -1 - event, event).to(tl.int64), k < end


def _limits(network: Network, learning: Learning) -> Iterator[str]:
    if len(network.couplings) < 2:
        yield "a hidden layer"


class Sums(NamedTuple):
    """What is kept from step to step, layer by layer; see `Layer`."""

    up: list[Tensor | None]
    down: list[Tensor | None]


class DenseEvents(Stepwise):
    """Dense networks of bits."""

    one_launch = True
    takes = Capabilities(
        couplings=frozenset({Dense}),
        weights=frozenset({BinaryWeight}),
        neurons=frozenset({Heaviside}),
        dynamics=frozenset({EnergyBased, Hopfield}),
        updates=frozenset(UPDATES),
        limits=_limits,
    )

    @staticmethod
    def copies(network: Network) -> Copies:
        # int8 halves the traffic of wide layers, but its products want multiples of 8.
        sizes = [size for shape in network.layer_shapes for size in shape]
        dtype = torch.int8 if all(size % 8 == 0 for size in sizes) else torch.float16
        return Copies(dtype, dtype, turned=True)

    def relax(
        self, first: Tensor, phase: PhasePlan, origin: Phase | None, labels: Tensor | None
    ) -> Phase:
        target = self.target_of(phase, origin, labels)
        if origin is not None:
            lists = (origin.activity, *origin.carried)
            bits, *sums = ([_copy(each) for each in tensors] for tensors in lists)
            if self.network.dynamics.bits:
                state = [*bits[:-1], origin.state[-1].clone()]
            else:
                state = [each.clone() for each in origin.state]
            start = Start(residual=origin.residual)
            return self._run(first, state, bits, Sums(*sums), phase.steps, target, start)
        sizes = [shape[0] for shape in self.network.layer_shapes]
        wide = min(sizes) >= WIDE
        if self.network.dynamics.bits:
            busy = min(BUSY_SWEEPS if wide else 0, phase.steps - 1)
            return self._settle_bits(first, phase.steps, busy, target)
        state, bits = self.start(len(first))
        busy = min(BUSY_STEPS if wide else 2, phase.steps - 1)
        for _ in range(busy):
            state, bits = self.step(first, state, bits, target)
        phase_end = self._run(first, state, bits, self._sums(bits), phase.steps - busy, target)
        phase_end.ran += busy
        return phase_end

    def _settle_bits(self, first: Tensor, steps: int, busy: int, target: Target) -> Phase:
        """A free phase of bits alone: some sweeps and a turn by matrix products, then by events."""
        batch = len(first)
        on = bool(self.network.neuron(torch.tensor(self.network.initial_state)))
        bits = [
            torch.full((batch, *shape), on, dtype=self.dtype, device=self.device)
            for shape in self.network.layer_shapes
        ]
        state = [*bits[:-1], torch.empty_like(bits[-1], dtype=torch.float32)]
        changed = self.unchanged(busy + 1, batch)
        silent = set() if on else set(range(len(bits)))
        for turn in range(2 * busy + 1):
            layers = self.network.turns[turn % 2]
            sources, row = dict(enumerate(bits)), changed[turn // 2]
            found = self._move(layers, first, sources, None, target, row, silent)
            for n, moved in found.items():
                state[n], bits[n] = moved
            silent -= set(layers)
        start = Start(changed=changed[-1])
        sums = self._sums(bits, silent)
        phase_end = self._run(first, state, bits, sums, steps - busy, target, start)
        if busy:
            # A sample may have come to rest in one of those sweeps.
            phase_end.ran += changed[:-1].sum(0, dtype=torch.int32)
        return phase_end

    def _sums(self, bits: list[Tensor], silent: Container[int] = ()) -> Sums:
        """From scratch; layers that are `silent` send nothing."""

        def whole(source: int, target: int) -> Tensor:
            if source in silent:
                return torch.zeros_like(bits[target], dtype=torch.int32)
            if source < target:
                return self.couplings[target].up(bits[source])[0].to(torch.int32)
            return self.couplings[source].down(bits[source], None).to(torch.int32)

        top = len(bits) - 1
        ups = [whole(n - 1, n) for n in range(1, top + 1)]
        downs = [whole(n + 1, n) for n in range(top)]
        return Sums([None, *ups], [*downs, None])

    def _run(
        self,
        first: Tensor,
        state: list[Tensor],
        bits: list[Tensor],
        sums: Sums,
        steps: int,
        target: Target,
        start: Start = Start(),  # noqa: B008, it is a value
    ) -> Phase:
        """Steps from some sums; all is changed in place."""
        residual, ran = per_sample(first)
        count = len(state)
        layers = tuple(
            self._layer(n, *tensors)
            for n, tensors in enumerate(zip(*sums, state, bits, strict=True))
        )
        counts = torch.zeros(len(first), 2, count, dtype=torch.int32, device=self.device)
        alone = self.network.dynamics.bits
        kernel, more = (turns_kernel, (start,)) if alone else (events_kernel, ())
        kernel[(len(first),)](
            first,
            layers,
            counts,
            *more,
            target,
            self.neuron,
            residual,
            ran,
            steps,
            LAYERS=count,
            PACKED=self.dtype == torch.int8,
            num_warps=16,
            enable_fp_fusion=False,
        )
        return Phase(state, bits, residual, ran, sums)

    def _layer(
        self, n: int, up: Tensor | None, down: Tensor | None, state: Tensor, bits: Tensor
    ) -> Layer:
        fast, size = self.couplings[n], state.shape[1]
        widest = max(shape[0] for shape in self.network.layer_shapes)
        most = 8192 if self.network.dynamics.bits and self.dtype != torch.int8 else 4096
        block = NARROW if size <= NARROW else min(most, power_of_two(widest))
        gain = bias = kernel = turned = None
        if n > 0:
            gain, kernel, turned = fast.coupling.synapses.gain.detach(), fast.kernel, fast.turned
            bias = fast.coupling.bias
            bias = None if bias is None else bias.detach()
        events = torch.empty_like(bits, dtype=torch.int32)
        flags = tl.constexpr(size), tl.constexpr(block)
        kept = None if self.network.dynamics.bits and n + 1 < len(self.couplings) else state
        return Layer(up, down, kept, bits, events, gain, bias, kernel, turned, *flags)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
