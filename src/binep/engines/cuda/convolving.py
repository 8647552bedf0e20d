# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""Triton kernels of convolutional couplings, channels last.

A convolution is a matrix product whose left factor is gathered tap by tap; what a layer does with
its drive happens in the same kernel, before the sums leave the chip.
"""

import triton
import triton.language as tl

from binep.engines.cuda.kernels import moved, sent_by, thin_product


@triton.jit
def conv_kernel(
    x,  # (batch, height, width, CHANNELS)
    weights,  # (KERNEL * KERNEL, CHANNELS, outputs)
    sums,  # f32, (batch, rows, columns, outputs), unless ADVANCE
    up,  # f32, like sums: pooled sums of the coupling below, or its whole drive if FIRST
    gain,  # f32, (outputs,)
    bias,  # f32, (outputs,)
    state,  # f32, like sums
    new_state,
    activity,
    count,  # batch * rows * columns
    height,
    width,
    rows,
    columns,
    outputs,
    padding,
    threshold,
    sigma,
    slope,
    ADVANCE: tl.constexpr,
    FIRST: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ENERGY: tl.constexpr,
    BINARY: tl.constexpr,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Sums over a kernel (stride 1); with ADVANCE they are the drive from above, and the layer
    moves by one step."""
    tiles = tl.cdiv(outputs, OUTPUTS)
    m = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) % tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    left = m % columns - padding
    top = m // columns % rows - padding
    # Where the window of each row begins; taps are offsets from there.
    corner = ((m // (columns * rows) * height + top) * width + left) * CHANNELS
    TERMS: tl.constexpr = KERNEL * KERNEL * CHANNELS
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in range(0, TERMS, DEPTH):
        # One block of terms may reach over several taps.
        k = start + tl.arange(0, DEPTH)
        tap = k // CHANNELS
        down, right = tap // KERNEL, tap % KERNEL
        yy, xx = top[:, None] + down[None, :], left[:, None] + right[None, :]
        there = (m < count)[:, None] & (yy >= 0) & (yy < height) & (xx >= 0) & (xx < width)
        wanted = (n < outputs)[None, :]
        if TERMS % DEPTH != 0:
            there = there & (k < TERMS)[None, :]
            wanted = wanted & (k < TERMS)[:, None]
        offset = (down * width + right) * CHANNELS + k % CHANNELS
        a = tl.load(x + corner[:, None] + offset[None, :], mask=there, other=0.0)
        w = tl.load(weights + k[:, None] * outputs + n[None, :], mask=wanted, other=0.0)
        total = tl.dot(a, w, total)
    index = m[:, None] * outputs + n[None, :]
    inside = (m < count)[:, None] & (n < outputs)[None, :]
    if ADVANCE:
        drive = tl.load(up + index, mask=inside, other=0.0)
        if not FIRST:
            drive = drive * tl.load(gain + n, mask=n < outputs, other=0.0)[None, :]
            if HAS_BIAS:
                drive = drive + tl.load(bias + n, mask=n < outputs, other=0.0)[None, :]
        drive = drive + total
        s = tl.load(state + index, mask=inside, other=0.0) if ENERGY else drive
        s = moved(s, drive, s, threshold, sigma, slope, ENERGY, False, False)
        a = sent_by(s, threshold, BINARY, False)
        tl.store(new_state + index, s, mask=inside)
        tl.store(activity + index, a.to(activity.dtype.element_ty), mask=inside)
    else:
        tl.store(sums + index, total, mask=inside)


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
    above,  # activities of the layer above, (batch, rows, columns, channels), if FIELD
    factor,  # f32, (channels,): scales
    pooled,  # f32, (batch, rows, columns, channels)
    switches,  # uint8, like pooled: the winner's place in its pool
    field,  # like maps, if FIELD: scaled activities where the switches point
    bias,  # f32, (channels,), of the layer above, which moves if THIN
    sent,  # activities of THIN outputs, (batch, THIN)
    sent_kernel,  # (THIN, units of the layer above)
    sent_gain,  # f32, (1,)
    state,  # f32, like pooled
    new_state,
    activity,
    count,
    height,
    width,
    rows,
    columns,
    channels,
    threshold,
    sigma,
    slope,
    FIELD: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ENERGY: tl.constexpr,
    THIN: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Max-pool with switches, on a tie the first place wins; and unpool the layer above by them.

    What no pool covers in `field` is left alone: it must be zero already. Below a few outputs the
    layer above is then ready to move by one step, real activations only.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    channel = index % channels
    corner = pool_corner(index, channels, rows, columns, height, width, POOL)
    best, winner = largest_in_pool(maps + corner, inside, width, channels, POOL)
    tl.store(pooled + index, best, mask=inside)
    tl.store(switches + index, winner.to(tl.uint8), mask=inside)
    if FIELD:
        value = tl.load(above + index, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(factor + channel, mask=inside, other=0.0) * value
        for place in tl.static_range(POOL * POOL):
            offset = (place // POOL * width + place % POOL) * channels
            here = tl.where(winner == place, value, 0.0).to(field.dtype.element_ty)
            tl.store(field + corner + offset, here, mask=inside)
    if THIN > 0:
        drive = tl.load(factor + channel, mask=inside, other=0.0) * best
        if HAS_BIAS:
            drive = drive + tl.load(bias + channel, mask=inside, other=0.0)
        units = channels * rows * columns
        below = thin_product(sent, sent_kernel, index, inside, units, THIN)
        drive = drive + tl.load(sent_gain) * below
        s = tl.load(state + index, mask=inside, other=0.0) if ENERGY else drive
        s = moved(s, drive, s, threshold, sigma, slope, ENERGY, False, False)
        tl.store(new_state + index, s, mask=inside)
        a = sent_by(s, threshold, False, False)
        tl.store(activity + index, a.to(activity.dtype.element_ty), mask=inside)


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
