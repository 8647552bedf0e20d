# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""Triton kernels of convolutional networks that send differences, until a sample comes to rest.

What a neuron has sent follows its activity; each step sends the difference in float8 or float16,
which round it relative to itself, and sums over what was sent are kept in float32. What rounding
leaves is sent in the next step. A difference of less than a unit is not sent, so that a sample
comes to rest: from then on every step would be the same. `order` lists the samples that still move,
`count` says how many; a launch does the work of all couplings for those.

What was not sent when the free phase ended is `held` back in the nudged one, too: the rest is that
of a network whose neurons are off by less than a unit each, and what moves from there, however
little, is the nudge's doing alone.

All layers of a sample lie side by side, (batch, total), images channels last; maps and fields too.
"""

import triton
import triton.language as tl

from binep.engines.cuda.convolution import (
    Window,
    largest_in_pool,
    next_block,
    taps_inside,
    taps_of_any,
)
from binep.engines.cuda.kernels import moved, thin_product, thin_sums

# Numbers in float8 have four significant bits, the last of which is this one in float32.
_LAST = tl.constexpr(1 << 20)
_LARGEST, _SMALLEST = tl.constexpr(448.0), tl.constexpr(2.0**-6)
_ROUNDING = tl.constexpr(1.5 * 2.0**14)  # what is added to this is rounded to 2^-9, as below that

# Where the numbers of a `by_moving.Task` stand in its row.
_READ, _WEIGHTS, _TARGET, _CHANNEL_AT = map(tl.constexpr, range(4))
_CHANNELS, _OUTPUTS, _HEIGHT, _WIDTH = map(tl.constexpr, range(4, 8))
_PADDING, _ROWS, _COLUMNS, _LAYER_AT = map(tl.constexpr, range(8, 12))
_SPLIT, _SPLIT_FEW, TASK = map(tl.constexpr, range(12, 15))


@triton.jit
def convolve_kernel(
    read,  # f8 or f16, (batch, all that is read): differences of activities, or of fields if SEND
    weights,  # the same: kernels, (KERNEL * KERNEL, outputs, channels) each, the last tap first
    sums,  # f32, (batch, all that is written), changed: over all that was sent
    pooled,  # f32, (batch, total), if SEND: the drive from below
    state,  # f32, (batch, total)
    sent,  # f32, (batch, total)
    new_sent,
    delta,  # like read, (batch, total)
    held,  # f32, (batch, total), if HOLD: what is not sent
    order,
    count,
    changed,  # int32, (batch,)
    tasks,  # int32, (TASKS, TASK): see `by_moving.Task`
    parts,  # f32: sums over parts of the terms
    arrived,  # int32, zero: how many of them are there
    batch,
    read_stride,
    sum_stride,
    unit,
    SPREAD: tl.constexpr,  # factor on the differences that are read
    SPREAD_ON: tl.constexpr,  # and on those that are sent on
    SEND: tl.constexpr,
    HOLD: tl.constexpr,
    TASKS: tl.constexpr,
    KERNEL: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Convolutions (stride 1) of all couplings; with SEND they drive the layers below, which then
    move by one step."""
    active = tl.load(count)
    task, tile, start = -1, 0, 0
    for j in tl.static_range(TASKS):
        each = tasks + j * TASK
        programs = _tiles(each, active, ROWS, OUTPUTS) * _split(each, active, batch)
        here = (tl.program_id(0) >= start) & (tl.program_id(0) < start + programs)
        task, tile = tl.where(here, j, task), tl.where(here, tl.program_id(0) - start, tile)
        start += programs
    if task < 0:
        return
    tasks += task * TASK
    split = _split(tasks, active, batch)
    part, tile = tile % split, tile // split
    source, kernel = (
        tl.multiple_of(tl.load(tasks + _READ), 16),
        tl.multiple_of(tl.load(tasks + _WEIGHTS), 16),
    )
    target = tl.multiple_of(tl.load(tasks + _TARGET), 16)
    channels, outputs = tl.load(tasks + _CHANNELS), tl.load(tasks + _OUTPUTS)
    channels, outputs = tl.multiple_of(channels, 16), tl.multiple_of(outputs, 16)
    height, width, padding = (
        tl.load(tasks + _HEIGHT),
        tl.load(tasks + _WIDTH),
        tl.load(tasks + _PADDING),
    )
    rows, columns = tl.load(tasks + _ROWS), tl.load(tasks + _COLUMNS)
    tiles = outputs // OUTPUTS
    begin, n = tile // tiles * ROWS, tile % tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    # The rows of a tile are samples at one position, or at a few: most taps that are outside are so
    # for all of them, and are left out.
    m = begin + tl.arange(0, ROWS)
    real = m < active * rows * columns
    position = quotient(m, active)
    sample = tl.load(order + m - position * active, mask=real, other=0)
    line = quotient(position, columns)
    top, left = line - padding, position - line * columns - padding
    corner = sample * tl.multiple_of(read_stride, 16) + (top * width + left) * channels
    window = Window(height, width, rows, columns, padding)
    down, right = taps_inside(real, top, left, window, ROWS, KERNEL)
    k = tl.arange(0, DEPTH)
    images = read + source + corner[:, None] + k[None, :]
    factors = weights + kernel + n[:, None] * channels + k[None, :]
    first, last = begin // active, (tl.minimum(begin + ROWS, active * rows * columns) - 1) // active
    line_from, line_to, column_from, column_to = taps_of_any(first, last, window, KERNEL)
    deep, wide = channels // DEPTH, column_to - column_from
    blocks = (line_to - line_from) * wide * deep
    block = blocks * part // split
    channel, tap = block % deep * DEPTH, block // deep
    line, column = line_from + tap // wide, column_from + tap % wide
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for _ in range(block, blocks * (part + 1) // split):
        there = ((down >> line) & (right >> column) & 1) > 0
        offset = (line * width + column) * channels + channel
        tap = KERNEL * KERNEL - 1 - (line * KERNEL + column)
        a = tl.load(images + offset, mask=there[:, None], other=0.0)
        w = tl.load(factors + tap * (outputs * channels) + channel)
        # Tensor cores add up float8 in fewer bits than float32 has: no more than a block that way.
        total = tl.dot(a, tl.trans(w), total, max_num_imprecise_acc=DEPTH)
        line, column, channel = next_block(
            line, column, channel, column_from, column_to, channels, DEPTH
        )
    complete = split == 1
    if split > 1:
        # Whoever comes last adds up what all have found, always in the same order.
        mine = tl.program_id(0) - part
        local = tl.arange(0, ROWS)[:, None] * OUTPUTS + tl.arange(0, OUTPUTS)[None, :]
        tl.store(parts + (mine + part) * (ROWS * OUTPUTS) + local, total)
        tl.debug_barrier()
        complete = tl.atomic_add(arrived + mine, 1) == split - 1
        if complete:
            tl.store(arrived + mine, 0)
            total = tl.zeros((ROWS, OUTPUTS), tl.float32)
            for p in range(split):
                found = parts + (mine + p) * (ROWS * OUTPUTS) + local
                total += tl.load(found, cache_modifier=".cg")
    if not complete:
        return
    # Where sums belong is found anew: kept through the loop, it would take registers without which
    # a multiprocessor holds more tiles.
    active = tl.load(count, volatile=True)
    position = quotient(m, active)
    real = m < active * rows * columns
    sample = tl.load(order + m - position * active, mask=real, other=0)
    place = sample * tl.multiple_of(sum_stride, 16) + target + position * outputs
    index, inside = place[:, None] + n[None, :], real[:, None]
    # Nobody else adds to these; it saves reading them, and the registers for it.
    tl.atomic_add(sums + index, total * (1.0 / SPREAD), mask=inside, sem="relaxed")
    if SEND:
        tl.debug_barrier()
        total = tl.load(sums + index, mask=inside, other=0.0, volatile=True)
        drive = tl.load(pooled + index, mask=inside, other=0.0) + total
        s = tl.minimum(tl.maximum(drive, 0.0), 1.0)
        tl.store(state + index, s, mask=inside)
        before = tl.load(sent + index, mask=inside, other=0.0)
        a = s - tl.load(held + index, mask=inside, other=0.0) if HOLD else s
        after, difference = _follow(a, before, unit, SPREAD_ON, delta.dtype.element_ty)
        tl.store(new_sent + index, after, mask=inside)
        tl.store(delta + index, difference, mask=inside)
        news = tl.max((inside & (after != before)).to(tl.int32), 1)
        tl.store(changed + sample, 1, mask=real & (news > 0))


@triton.jit
def quotient(value, divisor):
    """`value // divisor`, both positive, the first up to 2^20; integers take longer.

    A half is added, so that rounding would have to move it by half of 1 / divisor.
    """
    return ((value.to(tl.float32) + 0.5) * (1.0 / divisor.to(tl.float32))).to(tl.int32)


@triton.jit
def _tiles(task, active, ROWS: tl.constexpr, OUTPUTS: tl.constexpr):
    positions = tl.load(task + _ROWS) * tl.load(task + _COLUMNS)
    return tl.cdiv(active * positions, ROWS) * (tl.load(task + _OUTPUTS) // OUTPUTS)


@triton.jit
def _split(task, active, batch):
    """Into how many parts a sum is split: few tiles would leave most of the GPU idle."""
    return tl.where(2 * active <= batch, tl.load(task + _SPLIT_FEW), tl.load(task + _SPLIT))


@triton.jit
def _follow(value, sent, unit, SPREAD: tl.constexpr, DTYPE: tl.constexpr):
    """What has been sent after this step, and the difference that was sent in it, spread."""
    difference = tl.where(tl.abs(value - sent) < unit, 0.0, (value - sent) * SPREAD)
    if DTYPE.is_fp8():
        # Rounded here, so that what is sent need not be read back.
        bits = difference.to(tl.int32, bitcast=True) + _LAST // 2
        normal = (bits & -_LAST).to(tl.float32, bitcast=True)
        small = (difference + _ROUNDING) - _ROUNDING
        rounded = tl.where(tl.abs(difference) < _SMALLEST, small, normal)
        rounded = tl.minimum(tl.maximum(rounded, -_LARGEST), _LARGEST)
    else:
        rounded = difference.to(DTYPE).to(tl.float32)
    return sent + rounded * (1.0 / SPREAD), rounded.to(DTYPE)


@triton.jit
def pool_and_top_kernel(
    maps,  # f32, (batch, all maps): sums before pooling
    fields,  # f32, like maps, changed: scaled activities where the switches point, as sent
    field_delta,  # f8 or f16, like maps
    pooled,  # f32, (batch, total): the drive from below
    gain,  # f32: of all channels that are pooled
    bias,
    state,  # f32, (batch, total)
    sent,  # f32, (batch, total)
    new_sent,
    held,  # f32, (batch, total), if NUDGED: what is not sent
    order,
    count,
    changed,  # int32, (batch,)
    tasks,  # int32, (TASKS, TASK): convolutions up, the one below the outputs first
    output_weights,  # f16, (THIN, units below)
    output_gain,  # f32, (1,)
    output_bias,  # f32, (THIN,)
    labels,  # int64, (batch,), if NUDGED
    rest,  # f32, (batch, total): s* that a constant nudge pulls at
    beta,  # f32, (1,), signed
    map_stride,
    total,
    batch,
    per_class,
    direction,
    unit,
    finest,  # of what goes down through the winners' places
    SPREAD: tl.constexpr,  # factor on `field_delta`
    NUDGED: tl.constexpr,
    CONSTANT: tl.constexpr,
    CLAMPED: tl.constexpr,
    RAW: tl.constexpr,
    THIN: tl.constexpr,
    POOL: tl.constexpr,
    TASKS: tl.constexpr,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,  # terms that an output adds up at a time
):
    """Max-pools of all couplings, by whose switches the layer above is unpooled; the outputs' step.

    What no pool covers in `field_delta` is left alone: it must be zero already. The layer below the
    outputs has all of its drive then, and moves.
    """
    active, program = tl.load(count), tl.program_id(0)
    if program < batch:
        if program < active:
            sample = tl.load(order + program)
            below = tl.load(tasks + _LAYER_AT)
            units = tl.load(tasks + _OUTPUTS) * _pooled_positions(tasks, POOL)
            k = tl.arange(0, 16)
            real = k < THIN
            sums = thin_sums(sent + sample * total + below, output_weights, units, THIN, BLOCK)
            drive = tl.load(output_gain) * sums + tl.load(output_bias + k, mask=real, other=0.0)
            index = sample * total + below + units + k
            s = tl.load(state + index, mask=real, other=0.0)
            nudge = s
            if NUDGED:
                y = tl.where(k // per_class == tl.load(labels + sample), 1.0, 0.0)
                anchor = tl.load(rest + index, mask=real, other=0.0) if CONSTANT else s
                nudge = tl.load(beta) * direction * (y - anchor)
            s = moved(s, drive, nudge, 0.5, 0.5, 1.0, False, NUDGED, CLAMPED)
            news = _send_whole(s, index, real, state, sent, new_sent, held, unit, NUDGED, RAW)
            tl.store(changed + sample, 1, mask=tl.max(news.to(tl.int32), 0) > 0)
        return
    task, block, start = -1, 0, batch
    for j in tl.static_range(TASKS):
        each = tasks + j * TASK
        blocks = tl.cdiv(active * _pooled_positions(each, POOL), POSITIONS)
        blocks *= tl.load(each + _OUTPUTS) // CHANNELS
        here = (program >= start) & (program < start + blocks)
        task, block = tl.where(here, j, task), tl.where(here, program - start, block)
        start += blocks
    if task < 0:
        return
    tasks += task * TASK
    map_at = tl.multiple_of(tl.load(tasks + _TARGET), 16)
    layer_at = tl.multiple_of(tl.load(tasks + _LAYER_AT), 16)
    channels = tl.multiple_of(tl.load(tasks + _OUTPUTS), 16)
    width, columns = tl.load(tasks + _COLUMNS), tl.load(tasks + _COLUMNS) // POOL
    positions = _pooled_positions(tasks, POOL)
    parts = channels // CHANNELS
    p = block // parts * POSITIONS + tl.arange(0, POSITIONS)
    c = block % parts * CHANNELS + tl.arange(0, CHANNELS)
    real = p < active * positions
    inside = real[:, None] & (c >= 0)[None, :]
    sample = tl.load(order + p // positions, mask=real, other=0)
    p = p % positions
    corner = (p // columns * POOL * width + p % columns * POOL) * channels
    corner = (sample * tl.multiple_of(map_stride, 16) + map_at + corner)[:, None] + c[None, :]
    best, winner = largest_in_pool(maps + corner, inside, width, channels, POOL)
    i = p[:, None] * channels + c[None, :]
    index = (sample * tl.multiple_of(total, 16) + layer_at)[:, None] + i
    channel = tl.load(tasks + _CHANNEL_AT) + c
    factor = tl.load(gain + channel)[None, :]
    value = factor * tl.load(sent + index, mask=inside, other=0.0)
    news = inside & (winner < 0)
    for place in tl.static_range(POOL * POOL):
        there = corner + (place // POOL * width + place % POOL) * channels
        before = tl.load(fields + there, mask=inside, other=0.0)
        wanted = tl.where(winner == place, value, 0.0)
        after, difference = _follow(
            wanted, before, factor * finest, SPREAD, field_delta.dtype.element_ty
        )
        news |= inside & (after != before)
        tl.store(fields + there, after, mask=inside)
        tl.store(field_delta + there, difference, mask=inside)
    drive = factor * best + tl.load(bias + channel)[None, :]
    if task > 0:
        tl.store(pooled + index, drive, mask=inside)
    else:
        outputs = (sent + sample * total + layer_at + channels * positions)[:, None]
        above = thin_product(outputs, output_weights + i, channels * positions, inside, THIN)
        drive = drive + tl.load(output_gain) * above
        s = tl.minimum(tl.maximum(drive, 0.0), 1.0)
        news |= _send_whole(s, index, inside, state, sent, new_sent, held, unit, NUDGED, False)
    tl.store(changed + sample, 1, mask=real & (tl.max(news.to(tl.int32), 1) > 0))


@triton.jit
def _pooled_positions(task, POOL: tl.constexpr):
    return (tl.load(task + _ROWS) // POOL) * (tl.load(task + _COLUMNS) // POOL)


@triton.jit
def _send_whole(
    s, index, inside, state, sent, new_sent, held, unit, HOLD: tl.constexpr, RAW: tl.constexpr
):
    """Keep new states and send what follows from them in float32; whether that is anything new."""
    tl.store(state + index, s, mask=inside)
    a = s if RAW else tl.minimum(tl.maximum(s, 0.0), 1.0)
    a = a - tl.load(held + index, mask=inside, other=0.0) if HOLD else a
    before = tl.load(sent + index, mask=inside, other=0.0)
    news = inside & (tl.abs(a - before) >= unit) & (a != before)
    tl.store(new_sent + index, tl.where(news, a, before), mask=inside)
    return news


@triton.jit
def compact_kernel(
    order,  # int32, (batch,), changed
    count,  # int32, (1,), changed
    changed,  # int32, (batch,): whether a sample sent anything in this step
    ran,  # int32, (batch,)
    step,
    BATCH: tl.constexpr,
):
    """Leave out the samples that have come to rest in this step."""
    i = tl.arange(0, BATCH)
    there = i < tl.load(count)
    sample = tl.load(order + i, mask=there, other=0)
    moves = there & (tl.load(changed + sample, mask=there, other=0) > 0)
    place = tl.cumsum(moves.to(tl.int32), 0) - 1
    tl.store(order + place, sample, mask=moves)
    tl.store(ran + sample, step + 1, mask=there & (moves == 0))
    tl.store(count, tl.sum(moves.to(tl.int32), 0))
