# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""Triton kernels of convolutional couplings, channels last.

A convolution is a matrix product whose left factor is gathered tap by tap.
"""

import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    x,  # (batch, height, width, CHANNELS)
    weights,  # (KERNEL * KERNEL, CHANNELS, outputs)
    sums,  # f32, (batch, rows, columns, outputs)
    count,  # batch * rows * columns
    height,
    width,
    rows,
    columns,
    outputs,
    padding,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    WHOLE: tl.constexpr,  # each tile lies at one position, and none reaches beyond the outputs
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Sums over a kernel (stride 1)."""
    tiles = tl.cdiv(outputs, OUTPUTS)
    begin = tl.program_id(0) // tiles * ROWS
    m = begin + tl.arange(0, ROWS)
    n = tl.program_id(0) % tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    # The rows of a tile are samples at one position, or at a few: most taps that are outside are so
    # for all of them, and are left out.
    samples = count // (rows * columns)
    sample, position = m % samples, m // samples
    top, left = position // columns - padding, position % columns - padding
    corner = ((sample * height + top) * width + left) * CHANNELS
    down, right = taps_inside(m < count, top, left, height, width, ROWS, KERNEL)
    k = tl.arange(0, DEPTH)
    read, factors = x + corner[:, None] + k[None, :], weights + k[:, None] * outputs + n[None, :]
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    if CHANNELS % DEPTH == 0:
        # A block of terms lies within one tap.
        first, last = begin // samples, (tl.minimum(begin + ROWS, count) - 1) // samples
        line_from, line_to, column_from, column_to = window_of_any(
            first, last, columns, padding, height, width, KERNEL
        )
        line, column, channel = line_from, column_from, 0
        blocks = (line_to - line_from) * (column_to - column_from) * (CHANNELS // DEPTH)
        for _ in range(blocks):
            there = ((down >> line) & (right >> column) & 1) > 0
            offset = (line * width + column) * CHANNELS + channel
            term = (line * KERNEL + column) * CHANNELS + channel
            a = _load(read + offset, there[:, None], WHOLE)
            w = _load(factors + term * outputs, (n < outputs)[None, :], WHOLE)
            total = tl.dot(a, w, total)
            line, column, channel = next_block(
                line, column, channel, column_from, column_to, CHANNELS, DEPTH
            )
    else:
        # It may reach over several.
        TERMS: tl.constexpr = KERNEL * KERNEL * CHANNELS
        for start in range(0, TERMS, DEPTH):
            term = start + k
            line = term // (KERNEL * CHANNELS)
            column = term // CHANNELS - line * KERNEL
            there = ((down[:, None] >> line[None, :]) & (right[:, None] >> column[None, :]) & 1) > 0
            offset = start + line * ((width - KERNEL) * CHANNELS)
            real = term < TERMS
            a = _load(read + offset[None, :], there & real[None, :], False)
            w = _load(factors + start * outputs, (n < outputs)[None, :] & real[:, None], False)
            total = tl.dot(a, w, total)
    index = (sample * (rows * columns) + position)[:, None] * outputs + n[None, :]
    inside = (m < count)[:, None] & (n < outputs)[None, :]
    tl.store(sums + index, total, mask=inside)


@triton.jit
def taps_inside(real, top, left, height, width, ROWS: tl.constexpr, KERNEL: tl.constexpr):
    """Bit i of `down` says that line i of a row's window is inside, of `right` that column i is."""
    down = tl.zeros((ROWS,), tl.int32)
    right = tl.zeros((ROWS,), tl.int32)
    for i in tl.static_range(KERNEL):
        down |= (real & (top + i >= 0) & (top + i < height)).to(tl.int32) << i
        right |= ((left + i >= 0) & (left + i < width)).to(tl.int32) << i
    return down, right


@triton.jit
def window_of_any(first, last, columns, padding, height, width, KERNEL: tl.constexpr):
    """The lines and columns of a kernel that are inside for any position from first to last."""
    line_from, line_to = _span(first // columns, last // columns, padding, height, KERNEL)
    wraps = first // columns < last // columns
    column_from, column_to = _span(
        tl.where(wraps, 0, first % columns),
        tl.where(wraps, columns - 1, last % columns),
        padding,
        width,
        KERNEL,
    )
    return line_from, line_to, column_from, column_to


@triton.jit
def _span(first, last, padding, size, KERNEL: tl.constexpr):
    """The same along one side."""
    begin = tl.maximum(padding - last, 0)
    end = tl.minimum(size + padding - first, KERNEL)
    return begin, tl.maximum(end, begin)


@triton.jit
def next_block(line, column, channel, column_from, column_to, channels, DEPTH: tl.constexpr):
    """Where the block of terms after this one begins: channel by channel, then tap by tap."""
    channel += DEPTH
    end = channel == channels
    channel = tl.where(end, 0, channel)
    column += end.to(tl.int32)
    end = column == column_to
    column = tl.where(end, column_from, column)
    return line + end.to(tl.int32), column, channel


@triton.jit
def _load(place, mask, WHOLE: tl.constexpr):
    """What lies there, 0 where the mask says no; if WHOLE it says yes everywhere."""
    return tl.load(place) if WHOLE else tl.load(place, mask=mask, other=0.0)


@triton.jit
def pool_corner(index, channels, rows, columns, height, width, POOL: tl.constexpr):
    """Where on the maps, (batch, height, width, channels), the pool of each neuron begins."""
    column = index // channels % columns
    row = index // (channels * columns) % rows
    sample = index // (channels * columns * rows)
    position = (sample * height + row * POOL) * width + column * POOL
    return position * channels + index % channels


@triton.jit
def largest_in_pool(corner, inside, width, channels, POOL: tl.constexpr):
    """The largest sum of each pool, and its place: on a tie the first wins."""
    best = tl.load(corner, mask=inside, other=0)
    winner = tl.zeros_like(inside.to(tl.int32))
    for place in tl.static_range(1, POOL * POOL):
        offset = (place // POOL * width + place % POOL) * channels
        value = tl.load(corner + offset, mask=inside, other=0)
        better = value > best
        best = tl.where(better, value, best)
        winner = tl.where(better, place, winner)
    return best, winner


@triton.jit
def pool_kernel(
    maps,  # f32, (batch, height, width, channels)
    pooled,  # f32, (batch, rows, columns, channels)
    switches,  # uint8, like pooled: the winner's place in its pool
    count,
    height,
    width,
    rows,
    columns,
    channels,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Max-pool with switches: on a tie the first place wins."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    corner = pool_corner(index, channels, rows, columns, height, width, POOL)
    best, winner = largest_in_pool(maps + corner, inside, width, channels, POOL)
    tl.store(pooled + index, best, mask=inside)
    tl.store(switches + index, winner.to(tl.uint8), mask=inside)


@triton.jit
def unpool_kernel(
    above,  # activities, (batch, rows, columns, channels)
    factor,  # f32, (channels,): scales, or digits of them
    switches,  # uint8, like above
    maps,  # (batch, height, width, channels)
    count,
    height,
    width,
    rows,
    columns,
    channels,
    POOL: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each activity (times its channel's factor) where its switch points, zeros elsewhere."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    channel = index % channels
    x = index // channels % width
    y = index // (channels * width) % height
    sample = index // (channels * width * height)
    row, column = y // POOL, x // POOL
    pooled = inside & (row < rows) & (column < columns)
    source = ((sample * rows + row) * columns + column) * channels + channel
    value = tl.load(above + source, mask=pooled, other=0.0).to(tl.float32)
    if SCALED:
        value = tl.load(factor + channel, mask=pooled, other=0.0) * value
    if POOL > 1:
        winner = tl.load(switches + source, mask=pooled, other=255).to(tl.int32)
        value = tl.where(winner == y % POOL * POOL + x % POOL, value, 0.0)
    tl.store(maps + index, value.to(maps.dtype.element_ty), mask=inside)
