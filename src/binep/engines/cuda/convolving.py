# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
"""Triton kernels of convolutional couplings, channels last.

A convolution is a matrix product whose left factor is gathered tap by tap; what a layer does with
its drive happens in the same kernel, before the sums leave the chip.
"""

import triton
import triton.language as tl

from binep.engines.cuda.kernels import moved


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
    c = tl.arange(0, DEPTH)
    left = m % columns - padding
    top = m // columns % rows - padding
    sample = m // (columns * rows)
    BLOCKS: tl.constexpr = (CHANNELS + DEPTH - 1) // DEPTH
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for k in range(KERNEL * KERNEL * BLOCKS):
        tap, channel = k // BLOCKS, k % BLOCKS * DEPTH + c
        yy, xx = top + tap // KERNEL, left + tap % KERNEL
        there = (m < count) & (yy >= 0) & (yy < height) & (xx >= 0) & (xx < width)
        place = ((sample * height + yy) * width + xx) * CHANNELS
        mask, wanted = there[:, None], (n < outputs)[None, :]
        if CHANNELS % DEPTH != 0:
            mask = mask & (channel < CHANNELS)[None, :]
            wanted = wanted & (channel < CHANNELS)[:, None]
        a = tl.load(x + place[:, None] + channel[None, :], mask=mask, other=0.0)
        w = tl.load(
            weights + (tap * CHANNELS + channel)[:, None] * outputs + n[None, :],
            mask=wanted,
            other=0.0,
        )
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
        a = tl.where(s >= threshold, 1.0, 0.0) if BINARY else tl.minimum(tl.maximum(s, 0.0), 1.0)
        tl.store(new_state + index, s, mask=inside)
        tl.store(activity + index, a.to(activity.dtype.element_ty), mask=inside)
    else:
        tl.store(sums + index, total, mask=inside)


@triton.jit
def pool_kernel(
    maps,  # f32, (batch, height, width, channels)
    above,  # activities of the layer above, (batch, rows, columns, channels), if FIELD
    factor,  # f32, (channels,): scales
    pooled,  # f32, (batch, rows, columns, channels)
    switches,  # uint8, like pooled: the winner's place in its pool
    field,  # like maps, if FIELD: scaled activities where the switches point
    count,
    height,
    width,
    rows,
    columns,
    channels,
    FIELD: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Max-pool with switches, on a tie the first place wins; and unpool the layer above by them.

    What no pool covers in `field` is left alone: it must be zero already.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    channel = index % channels
    column = index // channels % columns
    row = index // (channels * columns) % rows
    sample = index // (channels * columns * rows)
    corner = ((sample * height + row * POOL) * width + column * POOL) * channels + channel
    best = tl.load(maps + corner, mask=inside, other=0.0).to(tl.float32)
    winner = tl.zeros((BLOCK,), tl.int32)
    for place in tl.static_range(1, POOL * POOL):
        offset = (place // POOL * width + place % POOL) * channels
        value = tl.load(maps + corner + offset, mask=inside, other=0.0).to(tl.float32)
        better = value > best
        best = tl.where(better, value, best)
        winner = tl.where(better, place, winner)
    tl.store(pooled + index, best, mask=inside)
    tl.store(switches + index, winner.to(tl.uint8), mask=inside)
    if FIELD:
        value = tl.load(above + index, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(factor + channel, mask=inside, other=0.0) * value
        for place in tl.static_range(POOL * POOL):
            offset = (place // POOL * width + place % POOL) * channels
            sent = tl.where(winner == place, value, 0.0).to(field.dtype.element_ty)
            tl.store(field + corner + offset, sent, mask=inside)


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
