# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""Triton kernels of relaxations in which neurons send differences, in eight bits.

A neuron's activity is sent as an integer `sent`, a multiple of a unit; each step sends `delta`,
eight bits times `2^shift`, so that `sent` follows the activity. The shift belongs to a sample, a
layer and a step. Sums over what was sent are exact in int32. A difference of less than one unit is
not sent, so that a network comes to rest; from then on every kernel returns at once.

All layers lie side by side, (batch, total); `table` says where. Each is padded with neurons that
nothing reaches to a multiple of 16, so that 16 bytes are read at once.
"""

import triton
import triton.language as tl


@triton.jit
def product_kernel(
    delta,  # int8, (batch, total)
    signs,  # int8: kernels of all dense couplings and their transposes, by rows of terms
    sums,  # int32, (planes, batch, total): a plane for each part of the terms
    tiles,  # int32, (programs, 8): see `by_deltas.Tile`
    moving,  # int32, (1,): whether anything was sent in the step before
    batch,
    total,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """All dense products of a step, up and down: a tile of outputs, a part of the terms each."""
    if tl.load(moving) == 0:
        return
    tile = tiles + tl.program_id(0) * 8
    source, weights, stride = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    begin, end = tl.load(tile + 3), tl.load(tile + 4)
    plane, target, outputs = tl.load(tile + 5), tl.load(tile + 6), tl.load(tile + 7)
    source, weights = tl.multiple_of(source, 16), tl.multiple_of(weights, 16)
    stride, begin = tl.multiple_of(stride, 16), tl.multiple_of(begin, 16)
    end = tl.multiple_of(end, 16)
    target, outputs = tl.multiple_of(target, 16), tl.multiple_of(outputs, 16)
    n, r = tl.arange(0, OUTPUTS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    found = tl.zeros((OUTPUTS, ROWS), tl.int32)
    for start in range(begin, end, DEPTH):
        k = start + tl.arange(0, DEPTH)
        w = tl.load(
            signs + weights + n[:, None] * stride + k[None, :],
            mask=(n < outputs)[:, None] & (k < end)[None, :],
            other=0,
        )
        d = tl.load(
            delta + source + r[:, None] * total + k[None, :],
            mask=(r < batch)[:, None] & (k < end)[None, :],
            other=0,
        )
        found = tl.dot(w, tl.trans(d), found, out_dtype=tl.int32)
    place = sums + target + plane * batch * total + r[None, :] * total + n[:, None]
    tl.store(place, found, mask=(n < outputs)[:, None] & (r < batch)[None, :])


@triton.jit
def send_kernel(
    first,  # f32, (batch, padded size of layer 0): its constant drive
    sums,  # int32, (planes, batch, total): up, from `DOWN` on down
    up,  # int32, (batch, total), changed: sums of all that was sent
    down,
    gains,  # f32, (LAYERS,): scale of the coupling below, over its unit
    down_gains,  # f32, (LAYERS,): the same of the coupling above
    bias,  # f32, (total,)
    units,  # f32, (LAYERS,): how many units of `sent` make one
    state,  # f32, (batch, total), changed
    sent,  # int32, (batch, total), changed
    delta,  # int8, (batch, total): what to send
    shifts,  # int32, (batch, LAYERS): of what came
    new_shifts,  # int32, (batch, LAYERS): of what is sent now
    table,  # int32, (LAYERS, 4): a layer's padded size, its first neuron, planes up and down
    labels,  # int64, (batch,), if NUDGED
    beta,  # f32, (1,), signed
    rest,  # f32, (batch, total): s* that a constant nudge pulls at
    change,  # f32, (batch, LAYERS): the largest, if MEASURED
    moving,  # int32, (1,): whether anything was sent in the step before
    moving_next,  # the same for this step
    batch,
    total,
    per_class,
    direction,
    NUDGED: tl.constexpr,
    CONSTANT: tl.constexpr,
    CLAMPED: tl.constexpr,
    MEASURED: tl.constexpr,
    LAYERS: tl.constexpr,
    DOWN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of a layer of a sample: new states, and how activities differ from what was sent."""
    if tl.load(moving) == 0:
        return
    sample, layer = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size = tl.multiple_of(tl.load(table + layer * 4), 16)
    offset = tl.multiple_of(tl.load(table + layer * 4 + 1), 16)
    up_planes, down_planes = tl.load(table + layer * 4 + 2), tl.load(table + layer * 4 + 3)
    row, plane = sample * total + offset, batch * total
    i = tl.arange(0, BLOCK)
    inside, at = i < size, row + i
    before = tl.load(sent + at, mask=inside, other=0)
    if layer == 0:
        drive = tl.load(first + sample * size + i, mask=inside, other=0.0)
    else:
        by = tl.load(shifts + sample * LAYERS + layer - 1)
        came = tl.zeros((BLOCK,), tl.int32)
        for p in range(up_planes):
            came += tl.load(sums + p * plane + at, mask=inside, other=0)
        came = tl.load(up + at, mask=inside, other=0) + (came << by)
        tl.store(up + at, came, mask=inside)
        drive = tl.load(gains + layer) * came.to(tl.float32)
        drive += tl.load(bias + offset + i, mask=inside, other=0.0)
    if layer < LAYERS - 1:
        by = tl.load(shifts + sample * LAYERS + layer + 1)
        came = tl.zeros((BLOCK,), tl.int32)
        for p in range(DOWN, DOWN + down_planes):
            came += tl.load(sums + p * plane + at, mask=inside, other=0)
        came = tl.load(down + at, mask=inside, other=0) + (came << by)
        tl.store(down + at, came, mask=inside)
        drive += tl.load(down_gains + layer) * came.to(tl.float32)
    s = tl.minimum(tl.maximum(drive, 0.0), 1.0)
    if NUDGED:  # noqa: SIM102, known when compiling
        if layer == LAYERS - 1:
            y = tl.where(i // per_class == tl.load(labels + sample), 1.0, 0.0)
            anchor = tl.load((rest if CONSTANT else state) + at, mask=inside, other=0.0)
            s += tl.load(beta) * direction * (y - anchor)
            if CLAMPED:
                s = tl.minimum(tl.maximum(s, 0.0), 1.0)
    if MEASURED:
        moved = tl.abs(s - tl.load(state + at, mask=inside, other=0.0))
        tl.store(change + sample * LAYERS + layer, tl.max(tl.where(inside, moved, 0.0), 0))
    tl.store(state + at, s, mask=inside)
    a = tl.where(inside, tl.minimum(tl.maximum(s, 0.0), 1.0), 0.0)
    difference = (a * tl.load(units + layer) - before.to(tl.float32)).to(tl.int32)
    largest = tl.max(tl.abs(difference), 0)
    shift = _shift(largest)
    d = (difference + ((1 << shift) >> 1)) >> shift
    tl.store(sent + at, before + (d << shift), mask=inside)
    tl.store(delta + at, d.to(tl.int8), mask=inside)
    tl.store(new_shifts + sample * LAYERS + layer, shift)
    if largest > 0:
        tl.store(moving_next, 1)


@triton.jit
def _shift(largest):
    """The smallest shift with which a difference of this size, rounded, fits into seven bits."""
    exponent = (largest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    shift = tl.maximum(exponent - 6, 0)
    return tl.where((largest + ((1 << shift) >> 1)) >> shift > 127, shift + 1, shift)
