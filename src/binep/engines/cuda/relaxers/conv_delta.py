"""Relaxing convolutional networks of real activations by differences, until samples come to rest.

What a neuron has sent follows its activity; each step sends the difference in float8 or float16,
which round it relative to itself, and sums over what was sent are kept in float32. What rounding
leaves is sent in the next step. A difference of less than a unit is not sent, so that a sample
comes to rest: from then on every step would be the same. A launch does the work of all couplings
for the samples that still move.

What was not sent when the free phase ended is not sent in the nudged one either. The state at rest
is then that of a network whose neurons are off by less than a unit each, and every change from
there, however small, is due to the nudge.

Where layers move in turn, a launch does the work of those couplings that drive the layers of a turn
from above, and then of the same couplings upwards, since they are the ones that those drive.

All layers of a sample lie side by side, (batch, total), images channels last; maps and fields too.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import gcd, prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from binep.core.couplings import ConvPool, Dense
from binep.core.dynamics import Prototypical
from binep.core.gradients import Learning
from binep.core.network import Network
from binep.core.neurons import HardSigmoid
from binep.core.plan import PhasePlan
from binep.core.turns import UPDATES
from binep.engines.base import Capabilities
from binep.engines.cuda.convolution import (
    Tile,
    Window,
    largest_in_pool,
    next_block,
    taps_inside,
    taps_of_any,
)
from binep.engines.cuda.layout import FastConv, flat
from binep.engines.cuda.packing import padded
from binep.engines.cuda.relaxers.base import Phase, Relaxer, in_order, power_of_two
from binep.engines.cuda.rules import Target, down_from_few, pull, sent, step, up_to_few
from binep.errors import BinepError

FEW = 16  # outputs at most
TERMS_UP, TERMS_DOWN = 3200, 1 << 20  # of a sum that one program adds up
TERMS_IN_TURN = 1600  # where a launch has only the couplings of a turn
TERMS_FEW = 1600  # where most samples rest
CHANNELS = 64  # of the neurons that a program pools, at most
POSITIONS = tl.constexpr(8)  # of them
BLOCK = tl.constexpr(512)  # terms of the outputs that are added up at a time
EVERY = 2  # steps after which samples at rest are left out
UNIT = 2.0**-12  # less is not sent in a free phase
FINEST = tl.constexpr(2.0**-18)  # nor in a nudged one, whose first layers move by 2^-14
LAST = 4  # steps of a free phase that send in float16 what float8 has left
PLACES = 2**31 - 1  # that kernels can count
POSITIONS_IN_ALL = 2**20  # of which they find the sample, see `quotient`


class Precision(NamedTuple):
    """In what differences are sent.

    Attributes:
        spread: factor on those of activities, which would else sink below what the dtype can hold.
            field_spread: the same of what goes down, which is as small as scales are.
        up, down: what a program adds up at most.
    """

    dtype: torch.dtype
    spread: float
    field_spread: float
    up: Tile
    down: Tile


HALF = Precision(torch.float16, 1024.0, 1024.0, Tile(64, 128, 64), Tile(64, 64, 64))
EIGHT = Precision(
    torch.float8_e4m3fn, 256.0, 8192.0, Tile(64, 128, 64, stages=3), Tile(64, 64, 128, stages=3)
)


# --- what kernels are given ---------------------------------------------------------------------


class Task(NamedTuple):
    """One convolution, up or down, of one coupling; places are those of a sample. See `Window`.

    Attributes:
        read, target: where what it reads and where its sums begin; of downs, the layer that moves.
        weights: where its kernel begins.
        layer, channel: of ups, the layer that is driven; gain and bias of its first channel.
        channels: of what is read. outputs: of the sums.
        split: how many programs share a sum. split_few: where most samples rest.
    """

    read: Any
    weights: Any
    target: Any
    layer: Any
    channel: Any
    channels: Any
    outputs: Any
    height: Any
    width: Any
    rows: Any
    columns: Any
    padding: Any
    split: Any
    split_few: Any


TASK = tl.constexpr(len(Task._fields))


class RelaxState(NamedTuple):
    """State of a relaxing mini-batch, f32, all layers or all maps side by side.

    Attributes:
        state, sent: of all neurons. maps: sums before pooling. fields: what goes down through the
            winners' places, as sent. down: the drive that comes of it.
    """

    state: Tensor
    sent: Tensor
    maps: Tensor
    fields: Tensor
    down: Tensor


class Neurons(NamedTuple):
    """All neurons of a mini-batch in a step, f32, (batch, total).

    Attributes:
        pooled: the drive from below. sent, new_sent: before and after. delta: the difference, f8 or
            f16, spread. held: what is not sent, in a nudged phase. unit: less is not sent either.
    """

    pooled: Tensor | None = None
    state: Tensor | None = None
    sent: Tensor | None = None
    new_sent: Tensor | None = None
    delta: Tensor | None = None
    held: Tensor | None = None
    unit: float = 0.0


class Moving(NamedTuple):
    """The samples that still move: int32, the first `active` in `order`, (batch,).

    `changed`, (batch,), says who sends anything in this step.
    """

    order: Tensor
    active: Tensor
    changed: Tensor
    batch: int


class Parts(NamedTuple):
    """Of sums that several programs share, f32, and how many are there, int32, zero."""

    sums: Tensor
    arrived: Tensor


class Cut(NamedTuple):
    """How the work of a launch is cut up, and the factors on differences: all known to kernels.

    Attributes:
        TASKS: how many. KERNEL: side. ROWS, OUTPUTS, DEPTH: see `Tile`.
        SPREAD: of the differences that are read. SPREAD_ON: of those that are sent on.
    """

    TASKS: Any
    KERNEL: Any
    ROWS: Any
    OUTPUTS: Any
    DEPTH: Any
    SPREAD: Any
    SPREAD_ON: Any


class Scales(NamedTuple):
    """Gain and bias, f32, of all channels that are pooled, and of the outputs with their weights.

    Attributes:
        weights: f16, (FEW, units below).
    """

    gain: Tensor
    bias: Tensor
    weights: Tensor
    output_gain: Tensor
    output_bias: Tensor | None


# --- kernels ------------------------------------------------------------------------------------


@triton.jit
def _task_at(row):
    read, weights, target = _aligned(row), _aligned(row + 1), _aligned(row + 2)
    layer, channel = _aligned(row + 3), _aligned(row + 4)
    channels, outputs = _aligned(row + 5), _aligned(row + 6)
    height, width, rows = tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
    columns, padding = tl.load(row + 10), tl.load(row + 11)
    window = (height, width, rows, columns, padding)
    places = (read, weights, target, layer, channel)
    return Task(*places, channels, outputs, *window, tl.load(row + 12), tl.load(row + 13))


@triton.jit
def _aligned(place):
    return tl.multiple_of(tl.load(place), 16)


@triton.jit
def convolve_kernel(
    read,  # f8 or f16, (batch, read_stride): differences of activities, or of fields
    weights,  # the same: kernels, (KERNEL * KERNEL, outputs, channels) each, the last tap first
    sums,  # f32, (batch, sum_stride), changed: over all that was sent
    neurons,  # Neurons, if these sums drive them: they then move by one step
    moving,
    tasks,  # int32, (TASKS, TASK)
    parts,
    read_stride,
    sum_stride,
    neuron,
    cut,
):
    """Convolutions (stride 1) of all couplings in one direction."""
    active = tl.load(moving.active)
    index, tile, start = -1, 0, 0
    for j in tl.static_range(cut.TASKS):
        each = _task_at(tasks + j * TASK)
        programs = tl.cdiv(active * (each.rows * each.columns), cut.ROWS)
        programs *= each.outputs // cut.OUTPUTS
        programs *= _split(each, active, moving.batch)
        here = (tl.program_id(0) >= start) & (tl.program_id(0) < start + programs)
        index, tile = tl.where(here, j, index), tl.where(here, tl.program_id(0) - start, tile)
        start += programs
    if index < 0:
        return
    task = _task_at(tasks + index * TASK)
    channels, outputs = task.channels, task.outputs
    split = _split(task, active, moving.batch)
    part, tile = tile % split, tile // split
    tiles = outputs // cut.OUTPUTS
    begin, n = tile // tiles * cut.ROWS, tile % tiles * cut.OUTPUTS + tl.arange(0, cut.OUTPUTS)
    # The rows of a tile are samples at one position, or at a few: most taps that are outside are so
    # for all of them, and are left out.
    m = begin + tl.arange(0, cut.ROWS)
    real = m < active * task.rows * task.columns
    position = quotient(m, active)
    sample = tl.load(moving.order + m - position * active, mask=real, other=0)
    line = quotient(position, task.columns)
    top, left = line - task.padding, position - line * task.columns - task.padding
    corner = sample * tl.multiple_of(read_stride, 16) + (top * task.width + left) * channels
    down, right = taps_inside(real, top, left, task, cut.ROWS, cut.KERNEL)
    k = tl.arange(0, cut.DEPTH)
    images = read + task.read + corner[:, None] + k[None, :]
    factors = weights + task.weights + n[:, None] * channels + k[None, :]
    last = tl.minimum(begin + cut.ROWS, active * task.rows * task.columns) - 1
    line_from, line_to, column_from, column_to = taps_of_any(
        begin // active, last // active, task, cut.KERNEL
    )
    deep, wide = channels // cut.DEPTH, column_to - column_from
    blocks = (line_to - line_from) * wide * deep
    block = blocks * part // split
    channel, tap = block % deep * cut.DEPTH, block // deep
    line, column = line_from + tap // wide, column_from + tap % wide
    total = tl.zeros((cut.ROWS, cut.OUTPUTS), tl.float32)
    for _ in range(block, blocks * (part + 1) // split):
        there = ((down >> line) & (right >> column) & 1) > 0
        offset = (line * task.width + column) * channels + channel
        tap = cut.KERNEL * cut.KERNEL - 1 - (line * cut.KERNEL + column)
        a = tl.load(images + offset, mask=there[:, None], other=0.0)
        w = tl.load(factors + tap * (outputs * channels) + channel)
        # Tensor cores add up float8 in fewer bits than float32 has: no more than a block that way.
        total = tl.dot(a, tl.trans(w), total, max_num_imprecise_acc=cut.DEPTH)
        line, column, channel = next_block(
            line, column, channel, column_from, column_to, channels, cut.DEPTH
        )
    complete = split == 1
    if split > 1:
        # Whoever comes last adds up what all have found, always in the same order.
        mine = tl.program_id(0) - part
        local = tl.arange(0, cut.ROWS)[:, None] * cut.OUTPUTS + tl.arange(0, cut.OUTPUTS)[None, :]
        tl.store(parts.sums + (mine + part) * (cut.ROWS * cut.OUTPUTS) + local, total)
        tl.debug_barrier()
        complete = tl.atomic_add(parts.arrived + mine, 1) == split - 1
        if complete:
            tl.store(parts.arrived + mine, 0)
            total = tl.zeros((cut.ROWS, cut.OUTPUTS), tl.float32)
            for p in range(split):
                found = parts.sums + (mine + p) * (cut.ROWS * cut.OUTPUTS) + local
                total += tl.load(found, cache_modifier=".cg")
    if not complete:
        return
    # Where sums belong is found anew: kept through the loop, it would take registers without which
    # a multiprocessor holds more tiles.
    active = tl.load(moving.active, volatile=True)
    position = quotient(m, active)
    real = m < active * task.rows * task.columns
    sample = tl.load(moving.order + m - position * active, mask=real, other=0)
    place = sample * tl.multiple_of(sum_stride, 16) + task.target + position * outputs
    index, inside = place[:, None] + n[None, :], real[:, None]
    # Nobody else adds to these; it saves reading them, and the registers for it.
    tl.atomic_add(sums + index, total * (1.0 / cut.SPREAD), mask=inside, sem="relaxed")
    if neurons.state is not None:
        tl.debug_barrier()
        total = tl.load(sums + index, mask=inside, other=0.0, volatile=True)
        drive = tl.load(neurons.pooled + index, mask=inside, other=0.0) + total
        s = step(drive, drive, None, neuron)
        tl.store(neurons.state + index, s, mask=inside)
        before = tl.load(neurons.sent + index, mask=inside, other=0.0)
        a = s
        if neurons.held is not None:
            a = s - tl.load(neurons.held + index, mask=inside, other=0.0)
        after, difference = follow(
            a, before, neurons.unit, cut.SPREAD_ON, neurons.delta.dtype.element_ty
        )
        tl.store(neurons.new_sent + index, after, mask=inside)
        tl.store(neurons.delta + index, difference, mask=inside)
        news = tl.max((inside & (after != before)).to(tl.int32), 1)
        tl.store(moving.changed + sample, 1, mask=real & (news > 0))


@triton.jit
def quotient(value, divisor):
    """`value // divisor`, both positive, the first up to 2^20; integers take longer.

    A half is added, so that rounding would have to move it by half of 1 / divisor.
    """
    return ((value.to(tl.float32) + 0.5) * (1.0 / divisor.to(tl.float32))).to(tl.int32)


@triton.jit
def _split(task, active, batch):
    """Into how many parts a sum is split: few tiles would leave most of the GPU idle."""
    return tl.where(2 * active <= batch, task.split_few, task.split)


# Numbers in float8 have four significant bits, the last of which is this one in float32.
_LAST = tl.constexpr(1 << 20)
_LARGEST, _SMALLEST = tl.constexpr(448.0), tl.constexpr(2.0**-6)
_ROUNDING = tl.constexpr(1.5 * 2.0**14)  # what is added to this is rounded to 2^-9, as below that


@triton.jit
def follow(value, before, unit, SPREAD: tl.constexpr, DTYPE: tl.constexpr):
    """What has been sent after this step, and the difference that is sent in it, spread."""
    difference = tl.where(tl.abs(value - before) < unit, 0.0, (value - before) * SPREAD)
    if DTYPE.is_fp8():
        # Rounded here, so that what is sent need not be read back.
        bits = difference.to(tl.int32, bitcast=True) + _LAST // 2
        normal = (bits & -_LAST).to(tl.float32, bitcast=True)
        small = (difference + _ROUNDING) - _ROUNDING
        rounded = tl.where(tl.abs(difference) < _SMALLEST, small, normal)
        rounded = tl.minimum(tl.maximum(rounded, -_LARGEST), _LARGEST)
    else:
        rounded = difference.to(DTYPE).to(tl.float32)
    return before + rounded * (1.0 / SPREAD), rounded.to(DTYPE)


@triton.jit
def pool_and_top_kernel(
    maps,  # f32, (batch, map_stride): sums before pooling
    fields,  # f32, like maps, changed: scaled activities where the switches point, as sent
    field_delta,  # f8 or f16, like maps
    neurons,
    moving,
    tasks,  # int32, (TASKS, TASK): convolutions up, the one below the outputs first
    scales,
    target,
    neuron,
    map_stride,
    total,
    TASKS: tl.constexpr,
    TURN: tl.constexpr,  # the layers that move: of odd (0) or even (1) number, or all (-1)
    POOL: tl.constexpr,
    CHANNELS: tl.constexpr,  # that a program pools
    FEW: tl.constexpr,  # outputs
    SPREAD: tl.constexpr,  # factor on `field_delta`
):
    """Max-pools of all couplings, by whose switches the layer above is unpooled; the outputs' step.

    What no pool covers in `field_delta` is left alone: it must be zero already. The layer below the
    outputs has all of its drive then, and moves. In a turn a coupling drives the layer above, or
    sends to the layer below.
    """
    active, program = tl.load(moving.active), tl.program_id(0)
    if program < moving.batch:
        if program < active:
            sample = tl.load(moving.order + program)
            task = _task_at(tasks)
            units = task.outputs * _pooled_positions(task, POOL)
            k = tl.arange(0, 16)
            real = k < FEW
            below = neurons.sent + sample * total + task.layer
            sums = up_to_few(below, scales.weights, units, FEW, BLOCK)
            drive = tl.load(scales.output_gain) * sums
            if scales.output_bias is not None:
                drive = drive + tl.load(scales.output_bias + k, mask=real, other=0.0)
            index = sample * total + task.layer + units + k
            s = tl.load(neurons.state + index, mask=real, other=0.0)
            force = None
            if target.beta is not None:
                force = pull(target, tl.load(target.labels + sample), k, s, index, real)
            s = step(s, drive, force, neuron)
            news = _send_whole(s, index, real, neurons, neuron, target.beta is not None)
            tl.store(moving.changed + sample, 1, mask=tl.max(news.to(tl.int32), 0) > 0)
        return
    which, block, start = -1, 0, moving.batch
    for j in tl.static_range(TASKS):
        each = _task_at(tasks + j * TASK)
        blocks = tl.cdiv(active * _pooled_positions(each, POOL), POSITIONS)
        blocks *= each.outputs // CHANNELS
        here = (program >= start) & (program < start + blocks)
        which, block = tl.where(here, j, which), tl.where(here, program - start, block)
        start += blocks
    if which < 0:
        return
    task = _task_at(tasks + which * TASK)
    channels, width, columns = task.outputs, task.columns, task.columns // POOL
    positions = _pooled_positions(task, POOL)
    parts = channels // CHANNELS
    p = block // parts * POSITIONS + tl.arange(0, POSITIONS)
    c = block % parts * CHANNELS + tl.arange(0, CHANNELS)
    real = p < active * positions
    inside = real[:, None] & (c >= 0)[None, :]
    sample = tl.load(moving.order + p // positions, mask=real, other=0)
    p = p % positions
    corner = (p // columns * POOL * width + p % columns * POOL) * channels
    corner = sample * tl.multiple_of(map_stride, 16) + task.target + corner
    corner = corner[:, None] + c[None, :]
    best, winner = largest_in_pool(maps + corner, inside, width, channels, POOL)
    i = p[:, None] * channels + c[None, :]
    index = (sample * tl.multiple_of(total, 16) + task.layer)[:, None] + i
    channel = task.channel + c
    factor = tl.load(scales.gain + channel)[None, :]
    news = inside & (winner < 0)
    if (TURN < 0) | ((TASKS - which) % 2 != TURN):
        value = factor * tl.load(neurons.sent + index, mask=inside, other=0.0)
        for place in tl.static_range(POOL * POOL):
            there = corner + (place // POOL * (width - POOL) + place) * channels
            before = tl.load(fields + there, mask=inside, other=0.0)
            wanted = tl.where(winner == place, value, 0.0)
            after, difference = follow(
                wanted, before, factor * FINEST, SPREAD, field_delta.dtype.element_ty
            )
            news |= inside & (after != before)
            tl.store(fields + there, after, mask=inside)
            tl.store(field_delta + there, difference, mask=inside)
    if (TURN < 0) | ((TASKS - which) % 2 == TURN):
        drive = factor * best + tl.load(scales.bias + channel)[None, :]
        if which > 0:
            tl.store(neurons.pooled + index, drive, mask=inside)
        else:
            outputs = (neurons.sent + sample * total + task.layer + channels * positions)[:, None]
            above = down_from_few(outputs, scales.weights + i, channels * positions, inside, FEW)
            drive = drive + tl.load(scales.output_gain) * above
            s = step(drive, drive, None, neuron)
            news |= _send_whole(s, index, inside, neurons, neuron, False)
    tl.store(moving.changed + sample, 1, mask=real & (tl.max(news.to(tl.int32), 1) > 0))


@triton.jit
def _pooled_positions(task, POOL: tl.constexpr):
    return (task.rows // POOL) * (task.columns // POOL)


@triton.jit
def _send_whole(s, index, inside, neurons, neuron, NUDGED: tl.constexpr):
    """Keep new states and send what follows from them in float32; whether that is anything new."""
    tl.store(neurons.state + index, s, mask=inside)
    a = sent(s, neuron, NUDGED)
    if neurons.held is not None:
        a = a - tl.load(neurons.held + index, mask=inside, other=0.0)
    before = tl.load(neurons.sent + index, mask=inside, other=0.0)
    news = inside & (tl.abs(a - before) >= neurons.unit) & (a != before)
    tl.store(neurons.new_sent + index, tl.where(news, a, before), mask=inside)
    return news


@triton.jit
def compact_kernel(
    moving,
    ran,  # int32, (batch,): steps of a sample
    step,
    BATCH: tl.constexpr,
):
    """Drop the samples that came to rest in this step."""
    i = tl.arange(0, BATCH)
    there = i < tl.load(moving.active)
    sample = tl.load(moving.order + i, mask=there, other=0)
    moves = there & (tl.load(moving.changed + sample, mask=there, other=0) > 0)
    place = tl.cumsum(moves.to(tl.int32), 0) - 1
    tl.store(moving.order + place, sample, mask=moves)
    tl.store(ran + sample, step + 1, mask=there & (moves == 0))
    tl.store(moving.active, tl.sum(moves.to(tl.int32), 0))


# --- host ---------------------------------------------------------------------------------------


class Convolutions:
    """Those of one direction that drive the layers of a turn, or that these drive, in one launch.

    Args:
        weights: of all couplings. largest: the tile is this one, or a part of it.
        spreads: factors on the differences that are read, and on those that are sent on.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        kernel: int,
        weights: Tensor,
        largest: Tile,
        spreads: tuple[float, float],
    ) -> None:
        self.tasks, self.weights, self.spreads = tasks, weights, spreads
        self.table = torch.tensor(tasks, dtype=torch.int32, device=weights.device)
        # One that divides all of their outputs and channels.
        self.tile = largest._replace(
            outputs=gcd(largest.outputs, *(task.outputs for task in tasks)),
            depth=gcd(largest.depth, *(task.channels for task in tasks)),
        )
        self.cut = Cut(*map(tl.constexpr, (len(tasks), kernel, *self.tile[:3], *spreads)))

    def programs(self, batch: int) -> int:
        """The number of programs that suffices for any number of moving samples."""

        def needed(samples: int, few: bool) -> int:
            return sum(
                self.tile.programs(samples * task.rows * task.columns, task.outputs)
                * (task.split_few if few else task.split)
                for task in self.tasks
            )

        return max(needed(batch, few=False), needed(batch // 2, few=True))

    def parts(self, batch: int) -> Parts:
        """Room for the parts of sums."""
        programs, device = self.programs(batch), self.table.device
        sums = torch.empty(programs * self.tile.rows * self.tile.outputs, device=device)
        return Parts(sums, torch.zeros(programs, dtype=torch.int32, device=device))

    def launch(
        self,
        read: Tensor,
        sums: Tensor,
        moving: Moving,
        parts: Parts,
        neuron: Any,
        neurons: Neurons = Neurons(),  # noqa: B008, it is a value
    ) -> None:
        """Bring sums over all that was sent up to date; they may drive neurons."""
        if not self.tasks:
            return
        convolve_kernel[(self.programs(len(read)),)](
            read,
            self.weights,
            sums,
            neurons,
            moving,
            self.table,
            parts,
            read.shape[1],
            sums.shape[1],
            neuron,
            self.cut,
            enable_fp_fusion=False,
            **self.tile.options,
        )


class Directions(NamedTuple):
    """Both directions in one precision, a launch for each turn.

    Attributes:
        kernels: f16, of all couplings, and as weights in the precision, for each direction.
    """

    precision: Precision
    kernels: tuple[tuple[Tensor, Tensor], ...]
    ups: list[Convolutions]
    downs: list[Convolutions]

    def refresh(self) -> None:
        """Take up the kernels as they are now."""
        for kernels, weights in self.kernels:
            if weights is not kernels:
                weights.copy_(kernels)


def _limits(network: Network, learning: Learning) -> Iterator[str]:
    *images, last = network.couplings
    inner = [coupling for coupling in images[1:] if isinstance(coupling, ConvPool)]
    if not inner or len(inner) != len(images) - 1 or not isinstance(images[0], ConvPool):
        yield "two convolutions or more, then one dense coupling"
    elif not isinstance(last, Dense) or network.layer_shapes[-1][0] > FEW:
        yield f"at most {FEW} outputs, of a dense coupling"
    elif any(shape[0] % 16 for shape in network.layer_shapes[:-1]):
        yield "channels that are multiples of 16"
    elif len({(coupling.kernel, coupling.pool) for coupling in inner}) > 1:
        yield "one size of kernels and pools between layers that relax"


class ConvDelta(Relaxer):
    """Convolutional networks of real, prototypical neurons below a few outputs."""

    takes = Capabilities(
        neurons=frozenset({HardSigmoid}),
        dynamics=frozenset({Prototypical}),
        updates=frozenset(UPDATES),
        limits=_limits,
    )

    def __post_init__(self) -> None:
        shapes = self.network.layer_shapes
        self.inner = [fast for fast in self.couplings[1:-1] if isinstance(fast, FastConv)]
        self.sizes = [prod(shape) for shape in shapes]
        *self.offsets, total = accumulate(self.sizes, initial=0)
        self.total = padded(total)
        *self.channel_at, _ = accumulate((shape[0] for shape in shapes[1:-1]), initial=0)
        map_sizes = (fast.coupling.above * prod(fast.map_shape) for fast in self.inner)
        *self.map_at, self.map_total = accumulate(map_sizes, initial=0)
        self.pool_channels = gcd(CHANNELS, *(fast.coupling.above for fast in self.inner))
        self.turns = self.network.turns
        # From the outputs down: the longest sums first, so that none is begun last.
        tasks = [(n - 1, *self._tasks(n, fast)) for n, fast in enumerate(self.inner, 1)][::-1]
        pools = [up for _, up, _ in tasks]
        self.pools = torch.tensor(pools, dtype=torch.int32, device=self.device)
        self.half = self._directions(tasks, HALF)
        self.eight = self._directions(tasks, EIGHT) if self._sends_float8() else None
        kind = "float16" if self.eight is None else "float8"
        self.real_precision = f"{kind} differences, float32"

    def _sends_float8(self) -> bool:
        """Whether signs and differences are multiplied in float8, by tensor cores that can."""
        sides = [side for fast in self.inner for side in fast.kernel.shape[2:]]
        return (
            all(fast.coupling.binary for fast in self.inner)
            and all(side % 32 == 0 for side in sides)  # as products in float8 want
            and (self.device.type != "cuda" or torch.cuda.get_device_capability() >= (9, 0))
        )

    def _directions(
        self, tasks: Sequence[tuple[int, Task, Task]], precision: Precision
    ) -> Directions:
        """From the tasks of each coupling, by the layer below it."""
        kernel, (kernels, turned, _) = self.inner[0].coupling.kernel, self.inner[0].room
        dtype, spread, field_spread, up, down = precision
        assert turned is not None
        back, forth = turned.to(dtype), kernels.to(dtype)
        ups, downs = [], []
        for turn in self.turns:
            mine = [both for below, *both in tasks if below in turn]
            each = [task for task, _ in mine], [task for _, task in mine]
            ups.append(Convolutions(each[0], kernel, back, up, (spread, spread)))
            downs.append(Convolutions(each[1], kernel, forth, down, (field_spread, spread)))
        return Directions(precision, ((turned, back), (kernels, forth)), ups, downs)

    def _tasks(self, n: int, fast: FastConv) -> tuple[Task, Task]:
        """The convolutions of coupling n, up and down; they read each other's kernels, turned."""
        coupling, window, kernel = fast.coupling, fast.window, fast.room.at
        below, maps = self.offsets[n - 1], self.map_at[n - 1]
        driven = self.offsets[n], self.channel_at[n - 1]
        inputs, outputs = coupling.below, coupling.above
        back = Window(*window[2:4], *window[:2], coupling.kernel - 1 - coupling.padding)

        def splits(channels: int, most: int) -> tuple[int, int]:
            terms = coupling.kernel**2 * channels
            most = most if len(self.turns) == 1 else TERMS_IN_TURN
            return -(-terms // most), -(-terms // TERMS_FEW)

        up = below, kernel, maps, *driven, inputs, outputs, *window, *splits(inputs, TERMS_UP)
        down = maps, kernel, below, *driven, outputs, inputs, *back, *splits(outputs, TERMS_DOWN)
        return Task(*up), Task(*down)

    def relax(
        self, first: Tensor, phase: PhasePlan, origin: Phase | None, labels: Tensor | None
    ) -> Phase:
        if origin is None:
            return self._settle(first, phase.steps)
        rest: RelaxState = origin.carried
        target = self.target_of(phase, origin, labels)
        if target.rest is not None:
            target = target._replace(rest=rest.state)
        now = RelaxState(*(each.clone() for each in rest))
        held = self.network.neuron(rest.state) - rest.sent
        return self._run(self.half, first, now, None, phase.steps, held, target)

    def _settle(self, first: Tensor, steps: int) -> Phase:
        """A free phase. All neurons start alike; what they first send is rounded once.

        Where all weights are signs most steps send in float8, until samples rest. What its rounding
        has left is then sent in float16, so that the nudged phase has nothing of it.
        """
        batch = len(first)
        self._check_size(batch)
        state = torch.cat([flat(layer) for layer in self.start(batch)[0]], 1)
        state = F.pad(state, (0, self.total - state.shape[1]))
        last = LAST // len(self.turns)
        directions = self.half if self.eight is None or steps <= last else self.eight
        precision = directions.precision
        delta = (self.network.neuron(state) * precision.spread).to(precision.dtype)
        maps = torch.zeros(batch, self.map_total, device=self.device)
        told, fields = delta.float() / precision.spread, torch.zeros_like(maps)
        start = RelaxState(state, told, maps, fields, torch.zeros_like(state))
        if directions is self.half:
            return self._run(directions, first, start, delta, steps)
        directions.refresh()
        nearly = self._run(directions, first, start, delta, steps - last)
        rest = self._run(self.half, first, nearly.carried, None, last)
        rest.ran += nearly.ran
        return rest

    def _check_size(self, batch: int) -> None:
        ways = (*self.half.ups, *self.half.downs)
        positions = max(task.rows * task.columns for way in ways for task in way.tasks)
        most = min(PLACES // max(self.total, self.map_total), POSITIONS_IN_ALL // positions)
        if batch > most:
            raise BinepError(
                f"engine 'cuda': {batch} samples at once are too many for this network, allowed "
                f"are up to {most}"
            )

    def _run(
        self,
        directions: Directions,
        first: Tensor,
        now: RelaxState,
        delta: Tensor | None,
        steps: int,
        held: Tensor | None = None,
        target: Target = Target(),  # noqa: B008, it is a value
    ) -> Phase:
        """Some steps from where a mini-batch stands.

        Args:
            delta: (batch, total), spread: of what was sent the sums do not know yet, if anything.
            held: (batch, total), in the nudged phase: what is not sent.
        """
        batch, integer = len(first), {"dtype": torch.int32, "device": self.device}
        order, count = torch.arange(batch, **integer), torch.full((1,), batch, **integer)
        changed, ran = torch.zeros(steps, batch, **integer), torch.full((batch,), steps, **integer)
        precision, _, *both = directions
        field_delta = torch.zeros_like(now.fields, dtype=precision.dtype)
        new_delta = torch.zeros_like(now.sent, dtype=precision.dtype)
        pooled = torch.empty_like(now.state)
        pooled[:, : self.sizes[0]] = flat(first)
        unit = UNIT if held is None else FINEST.value
        # Layers of a turn do not listen to each other, so that they may send in place.
        new_sent = now.sent if len(self.turns) > 1 else now.sent.clone()
        neurons = Neurons(pooled, now.state, now.sent, new_sent, new_delta, held, unit)
        moving = Moving(order, count, changed[0], batch)
        both = zip(*both, strict=True)
        ways = [(up, up.parts(batch), down, down.parts(batch)) for up, down in both]
        scales, before, every = self._scales(), now.state, EVERY // len(self.turns)
        if delta is not None:
            for up, parts, _, _ in ways:
                up.launch(delta, now.maps, moving, parts, self.neuron)
        for t in range(steps):
            if t + 1 == steps:
                before = now.state.clone()
            moving = moving._replace(changed=changed[t])
            for turn, (up, up_parts, down, down_parts) in enumerate(ways):
                self._pool(turn, now, field_delta, neurons, moving, scales, target, precision)
                down.launch(field_delta, now.down, moving, down_parts, self.neuron, neurons)
                up.launch(new_delta, now.maps, moving, up_parts, self.neuron)
            if t % every == every - 1 and held is None:
                compact_kernel[(1,)](moving, ran, t, BATCH=power_of_two(batch), num_warps=1)
            neurons = neurons._replace(sent=neurons.new_sent, new_sent=neurons.sent)
        now = now._replace(sent=neurons.sent)
        residual = (now.state - before).abs().amax(1)
        return Phase(self._layers(now.state), self._layers(now.sent), residual, ran, now)

    def _pool(
        self,
        turn: int,
        now: RelaxState,
        field_delta: Tensor,
        neurons: Neurons,
        moving: Moving,
        scales: Scales,
        target: Target,
        precision: Precision,
    ) -> None:
        """Pools, and what moves or is sent down by them in a turn."""
        # One for each sample's outputs, if they move, then those that pool.
        outputs = moving.batch if len(self.sizes) - 1 in self.turns[turn] else 0
        pools = sum(
            -(-moving.batch * height * width // POSITIONS.value) * (channels // self.pool_channels)
            for channels, height, width in self.network.layer_shapes[1:-1]
        )
        pool_and_top_kernel[(outputs + pools,)](
            now.maps,
            now.fields,
            field_delta,
            neurons,
            moving._replace(batch=outputs),
            self.pools,
            scales,
            target,
            self.neuron,
            self.map_total,
            self.total,
            TASKS=len(self.inner),
            TURN=turn if len(self.turns) > 1 else -1,
            POOL=self.inner[0].coupling.pool,
            CHANNELS=self.pool_channels,
            FEW=self.sizes[-1],
            SPREAD=precision.field_spread,
            enable_fp_fusion=False,
        )

    def _scales(self) -> Scales:
        biases, top = [], self.couplings[-1]
        for coupling in (fast.coupling for fast in self.inner):
            none = torch.zeros(coupling.above, device=self.device)
            biases.append(none if coupling.bias is None else coupling.bias.detach())
        gains, bias = [fast.gain for fast in self.inner], top.coupling.bias
        return Scales(
            torch.cat(gains),
            torch.cat(biases),
            top.kernel,
            top.coupling.synapses.gain.detach(),
            None if bias is None else bias.detach(),
        )

    def switches(self, phase: Phase) -> dict[int, Tensor | None]:
        now: RelaxState = phase.carried
        found = {}
        for n, (fast, at) in enumerate(zip(self.inner, self.map_at, strict=True), 1):
            shape = (fast.coupling.above, *fast.map_shape)
            maps = _image(now.maps[:, at : at + prod(shape)], shape)
            found[n] = fast.pool(in_order(maps))[1]
        return found

    def _layers(self, joined: Tensor) -> list[Tensor]:
        """The layers that lie side by side, (batch, *layer) each."""
        parts = joined[:, : sum(self.sizes)].split(self.sizes, 1)
        shapes = self.network.layer_shapes
        return [*map(_image, parts[:-1], shapes[:-1]), parts[-1]]


def _image(values: Tensor, shape: Sequence[int]) -> Tensor:
    """(batch, units), channels last, as (batch, *shape)."""
    channels, height, width = shape
    return values.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)
