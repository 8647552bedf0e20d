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
    signs,  # uint8: all couplings, see `packing`
    sums,  # int32, (planes, batch, total): a plane for each part of the terms
    tiles,  # int32, (programs, 8): see `by_deltas.Tile`
    moving,  # int32, (1,): whether anything was sent in the step before
    batch,
    total,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Sums over those synapses that are +1; a tile of outputs and a part of the terms each."""
    # What is read before the flag is known does not wait for it.
    anything = tl.load(moving)
    tile = tiles + tl.program_id(0) * 8
    source, terms = tl.multiple_of(tl.load(tile), 16), tl.multiple_of(tl.load(tile + 1), 16)
    weights, stride = tl.multiple_of(tl.load(tile + 2), 16), tl.multiple_of(tl.load(tile + 3), 16)
    width, plane = tl.multiple_of(tl.load(tile + 4), 16), tl.load(tile + 5)
    target, outputs = tl.multiple_of(tl.load(tile + 6), 16), tl.multiple_of(tl.load(tile + 7), 16)
    if anything == 0:
        return
    n, r = tl.arange(0, OUTPUTS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    found = tl.zeros((OUTPUTS, ROWS), tl.int32)
    for start in range(0, width, DEPTH):
        j = start + tl.arange(0, DEPTH)
        eight = tl.load(
            signs + weights + n[:, None] * stride + j[None, :],
            mask=(n < outputs)[:, None] & (j < width)[None, :],
            other=0,
        )
        # Unrolled, so that the bytes are brought into the layout of products once for all bits.
        for b in tl.static_range(8):
            k = b * width + j
            d = tl.load(
                delta + source + r[:, None] * total + k[None, :],
                mask=(r < batch)[:, None] & ((j < width) & (k < terms))[None, :],
                other=0,
            )
            w = _bit(eight, b, INTERPRETED)
            found = tl.dot(w, tl.trans(d), found, out_dtype=tl.int32)
    place = sums + target + plane * batch * total + r[None, :] * total + n[:, None]
    tl.store(place, found, mask=(n < outputs)[:, None] & (r < batch)[None, :])


@triton.jit
def _bit(eight, b, INTERPRETED: tl.constexpr):
    """Bit b of each byte, as int8; four bytes at a time, which Triton does not do by itself."""
    if INTERPRETED:
        return ((eight >> b) & 1).to(tl.int8)
    return tl.inline_asm_elementwise(
        "shr.u32 $0, $1, $2; and.b32 $0, $0, 0x01010101;",
        "=r,r,r,r,r,r",
        [eight, b + tl.zeros_like(eight).to(tl.int32)],
        dtype=tl.int8,
        is_pure=True,
        pack=4,
    )


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
    headers,  # int32, (batch, LAYERS, 2): shift (-1: none) and sum of the differences that came
    new_headers,  # of those that are sent now
    table,  # int32, (LAYERS, 4): a layer's padded size, its first neuron, planes up and down
    labels,  # int64, (batch,), if NUDGED
    beta,  # f32, (1,), signed
    rest,  # f32, (batch, total): s* that a constant nudge pulls at
    change,  # f32, (batch, LAYERS): the largest, if MEASURED
    moving,  # int32: whether anything was sent in the step before; 4 later, whether in this one
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
    anything = tl.load(moving)
    sample, layer = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size = tl.multiple_of(tl.load(table + layer * 4), 16)
    offset = tl.multiple_of(tl.load(table + layer * 4 + 1), 16)
    up_planes, down_planes = tl.load(table + layer * 4 + 2), tl.load(table + layer * 4 + 3)
    new_headers += (sample * LAYERS + layer) * 2
    silent = anything == 0
    if not NUDGED:
        # A layer whose neighbours sent nothing stays where it is.
        header = headers + sample * LAYERS * 2
        below = tl.load(header + tl.maximum(layer - 1, 0) * 2)
        above = tl.load(header + tl.minimum(layer + 1, LAYERS - 1) * 2)
        silent |= tl.maximum(tl.maximum(below, above), tl.load(header + layer * 2)) < 0
    if silent:
        tl.store(new_headers, -1)
        tl.store(new_headers + 1, 0)
        return
    row, plane = sample * total + offset, batch * total
    i = tl.arange(0, BLOCK)
    inside, at = i < size, row + i
    before = tl.load(sent + at, mask=inside, other=0)
    if layer == 0:
        drive = tl.load(first + sample * size + i, mask=inside, other=0.0)
    else:
        header = headers + (sample * LAYERS + layer - 1) * 2
        came = _arrived(sums + at, 0, up_planes, plane, header, inside, BLOCK)
        came += tl.load(up + at, mask=inside, other=0)
        tl.store(up + at, came, mask=inside)
        drive = tl.load(gains + layer) * came.to(tl.float32)
        drive += tl.load(bias + offset + i, mask=inside, other=0.0)
    if layer < LAYERS - 1:
        header = headers + (sample * LAYERS + layer + 1) * 2
        came = _arrived(sums + at, DOWN, DOWN + down_planes, plane, header, inside, BLOCK)
        came += tl.load(down + at, mask=inside, other=0)
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
    wanted = a * tl.load(units + layer) - before.to(tl.float32)
    if NUDGED:
        # It does not last until all is silent, and what it changes is small: round to the nearest.
        wanted = tl.floor(wanted + 0.5)
    difference = wanted.to(tl.int32)
    largest = tl.max(tl.abs(difference), 0)
    shift = _shift(largest)
    d = (difference + ((1 << shift) >> 1)) >> shift
    tl.store(sent + at, before + (d << shift), mask=inside)
    tl.store(delta + at, d.to(tl.int8), mask=inside)
    tl.store(new_headers, tl.where(largest > 0, shift, -1))
    tl.store(new_headers + 1, tl.sum(d, 0))
    if largest > 0:
        tl.store(moving + 4, 1)


@triton.jit
def _arrived(sums, begin, end, plane, header, inside, BLOCK: tl.constexpr):
    """What differences add up to: twice those that met +1, less all of them."""
    came = tl.zeros((BLOCK,), tl.int32)
    for p in range(begin, end):
        came += tl.load(sums + p * plane, mask=inside, other=0)
    return (2 * came - tl.load(header + 1)) << tl.maximum(tl.load(header), 0)


@triton.jit
def _shift(largest):
    """The smallest shift with which a difference of this size, rounded, fits into seven bits."""
    exponent = (largest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    shift = tl.maximum(exponent - 6, 0)
    return tl.where((largest + ((1 << shift) >> 1)) >> shift > 127, shift + 1, shift)
