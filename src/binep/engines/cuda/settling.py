# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
"""Triton kernels that relax a sample from its first step to its last in one launch.

Samples do not know of each other, so one program takes one sample through a whole phase. Both
kernels stop as soon as a step changes no state at all: every later step would change nothing
either, so that the result is that of all steps.
"""

import triton
import triton.language as tl

from binep.engines.cuda.kernels import moved


@triton.jit
def thin_kernel(
    first,  # f32, (batch, width): the constant drive of the hidden layer
    signs,  # (OUTPUTS, width): the output coupling's kernel, +-1
    gain,  # f32, (1,)
    bias,  # f32, (OUTPUTS,)
    labels,  # int64, (batch,)
    beta,  # f32, (1,), signed
    hidden_from,  # f32, (batch, width): where the phase starts, if NUDGED
    top_from,  # f32, (batch, OUTPUTS)
    hidden,  # f32, (batch, width): where it ends
    top,  # f32, (batch, OUTPUTS)
    residual,  # f32, (batch,): the last step's largest change
    ran,  # int32, (batch,): steps until nothing moved
    width,
    initial,  # all states at t = 0, if not NUDGED
    steps,
    per_class,
    direction,  # +1 or -1, multiplies beta
    HAS_BIAS: tl.constexpr,
    NUDGED: tl.constexpr,
    CONSTANT: tl.constexpr,
    CLAMPED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A phase of a network with one hidden layer and at most 16 outputs, real activations.

    Everything stays in registers. The output coupling is one word a hidden neuron, whose bit k says
    that the synapse to output k is negative: in both directions a product is a flip of a sign bit.
    """
    sample = tl.program_id(0).to(tl.int64)
    j, k = tl.arange(0, WIDTH), tl.arange(0, 16)
    inside, real = j < width, k < OUTPUTS
    negative = tl.zeros((WIDTH,), tl.int32)
    for n in tl.static_range(OUTPUTS):
        w = tl.load(signs + n * width + j, mask=inside, other=0).to(tl.float32)
        negative = negative | ((w < 0).to(tl.int32) << n)
    alpha = tl.load(gain)
    b = tl.load(bias + k, mask=real, other=0.0) if HAS_BIAS else tl.zeros((16,), tl.float32)
    constant = tl.load(first + sample * width + j, mask=inside, other=0.0)
    if NUDGED:
        h = tl.load(hidden_from + sample * width + j, mask=inside, other=0.0)
        o = tl.load(top_from + sample * OUTPUTS + k, mask=real, other=0.0)
        strength = tl.load(beta) * direction
        y = tl.where(k // per_class == tl.load(labels + sample), 1.0, 0.0)
    else:
        h = tl.where(inside, initial, 0.0)
        o = tl.where(real, initial, 0.0)
    rest = o
    change = 1.0
    t = 0
    while (t < steps) & (change > 0.0):
        # What is sent: the hidden states are in [0, 1] already once they have moved.
        a = tl.minimum(tl.maximum(h, 0.0), 1.0)
        sent = tl.minimum(tl.maximum(o, 0.0), 1.0)
        up = tl.zeros((16,), tl.float32)
        down = tl.zeros((WIDTH,), tl.float32)
        for n in tl.static_range(OUTPUTS):
            sign = (negative << (31 - n)) & -2147483648
            up = tl.where(k == n, tl.sum(_flipped(a, sign), 0), up)
            down += _flipped(tl.sum(tl.where(k == n, sent, 0.0), 0) + tl.zeros_like(a), sign)
        new = tl.minimum(tl.maximum(constant + alpha * down, 0.0), 1.0)
        new = tl.where(inside, new, 0.0)
        above = tl.minimum(tl.maximum(alpha * up + b, 0.0), 1.0)
        if NUDGED:
            above += strength * (y - (rest if CONSTANT else o))
            if CLAMPED:
                above = tl.minimum(tl.maximum(above, 0.0), 1.0)
        above = tl.where(real, above, 0.0)
        change = tl.maximum(tl.max(tl.abs(new - h), 0), tl.max(tl.abs(above - o), 0))
        h, o = new, above
        t += 1
    tl.store(hidden + sample * width + j, h, mask=inside)
    tl.store(top + sample * OUTPUTS + k, o, mask=real)
    tl.store(residual + sample, change)
    tl.store(ran + sample, t)


@triton.jit
def _flipped(values, sign):
    """Values whose sign bit is flipped where `sign` has it set."""
    return (values.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def events_kernel(
    first,  # f32, (batch, size of layer 0): its constant drive
    up,  # int32, (batch, total): sums from below, all layers side by side
    down,  # int32, (batch, total): sums from above
    state,  # f32, (batch, total), changed in place
    bits,  # (batch, total), changed in place
    events,  # int32, (batch, total), scratch: neurons that flipped
    bounds,  # int32, (batch, LAYERS + 1), scratch: where each layer's events begin
    gains,  # f32, (LAYERS,)
    bias,  # f32, (total,)
    kernels,  # all couplings' kernels, one after the other, (above, below) each
    turned,  # their transposes
    table,  # int64, (LAYERS, 3): a layer's size, its first neuron, its kernel's first entry
    labels,  # int64, (batch,)
    beta,  # f32, (1,), signed
    rest,  # f32, (batch, outputs): s* that a constant nudge pulls at
    residual,  # f32, (batch,)
    ran,  # int32, (batch,)
    total,
    steps,
    per_class,
    direction,
    threshold,
    sigma,
    slope,
    LAYERS: tl.constexpr,
    NUDGED: tl.constexpr,
    CONSTANT: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A phase of a dense network of bits, at the cost of its events.

    Sums are kept, and a neuron that flips adds or takes away its column of weights. What a flip
    costs is one row of memory; what a quiet step costs is one pass over the states.
    """
    sample = tl.program_id(0).to(tl.int64)
    row = sample * total
    marks = bounds + sample * (LAYERS + 1)
    tl.store(marks, 0)
    moving = 1
    largest = 0.0
    t = 0
    while (t < steps) & (moving > 0):
        count = 0
        moving = 0
        largest = 0.0
        for n in tl.static_range(LAYERS):
            size, offset = tl.load(table + 3 * n), tl.load(table + 3 * n + 1)
            for start in range(0, size, BLOCK):
                i = start + tl.arange(0, BLOCK)
                inside = i < size
                at = row + offset + i
                if n == 0:
                    drive = tl.load(first + sample * size + i, mask=inside, other=0.0)
                else:
                    sums = tl.load(up + at, mask=inside, other=0).to(tl.float32)
                    drive = tl.load(gains + n) * sums
                    drive = drive + tl.load(bias + offset + i, mask=inside, other=0.0)
                if n + 1 < LAYERS:
                    sums = tl.load(down + at, mask=inside, other=0).to(tl.float32)
                    drive = drive + tl.load(gains + n + 1) * sums
                s = tl.load(state + at, mask=inside, other=0.0)
                nudge = s
                if NUDGED and n + 1 == LAYERS:
                    anchor = s
                    if CONSTANT:
                        anchor = tl.load(rest + sample * size + i, mask=inside, other=0.0)
                    y = tl.where(i // per_class == tl.load(labels + sample), 1.0, 0.0)
                    nudge = tl.load(beta) * direction * (y - anchor)
                new = moved(
                    s, drive, nudge, threshold, sigma, slope,
                    True, NUDGED and n + 1 == LAYERS, False,
                )  # fmt: skip
                tl.store(state + at, new, mask=inside)
                fires = new >= threshold
                # A bit follows its state: what it was need not be read.
                flipped = inside & (fires != (s >= threshold))
                # Both counts in one sum: those that flipped, and those that moved at all.
                seen = flipped.to(tl.int64) + ((inside & (new != s)).to(tl.int64) << 32)
                seen = tl.sum(seen, 0)
                found = (seen & 0xFFFFFFFF).to(tl.int32)
                moving += (seen >> 32).to(tl.int32)
                if found > 0:
                    place = count + tl.cumsum(flipped.to(tl.int32), 0) - 1
                    tl.store(events + row + place, tl.where(fires, i, -1 - i), mask=flipped)
                    tl.store(bits + at, fires.to(bits.dtype.element_ty), mask=flipped)
                count += found
                if t + 1 == steps:
                    change = tl.where(inside, tl.abs(new - s), 0.0)
                    largest = tl.maximum(largest, tl.max(change, 0))
            tl.store(marks + n + 1, count)
        t += 1
        if count > 0:
            tl.debug_barrier()
            for n in tl.static_range(LAYERS):
                begin, end = tl.load(marks + n), tl.load(marks + n + 1)
                if end > begin:
                    if n + 1 < LAYERS:
                        above, at = tl.load(table + 3 * n + 3), tl.load(table + 3 * n + 4)
                        weights = turned + tl.load(table + 3 * n + 5)
                        _add_rows(up + row + at, weights, above, events + row, begin, end, PACKED)
                    if n > 0:
                        below, at = tl.load(table + 3 * n - 3), tl.load(table + 3 * n - 2)
                        weights = kernels + tl.load(table + 3 * n + 2)
                        _add_rows(down + row + at, weights, below, events + row, begin, end, PACKED)
            tl.debug_barrier()
    tl.store(residual + sample, largest)
    tl.store(ran + sample, t)


@triton.jit
def _add_rows(sums, weights, width, events, begin, end, PACKED: tl.constexpr):
    """Add (or take away) a row of weights for each event; wide rows and narrow ones."""
    if width <= 256:
        _add_tiles(sums, weights, width, events, begin, end, 64, 256)
    elif PACKED:
        _add_words(sums, weights, width, events, begin, end, 32, 1024)
    else:
        _add_tiles(sums, weights, width, events, begin, end, 8, 4096)


@triton.jit
def _add_tiles(
    sums, weights, width, events, begin, end, GROUP: tl.constexpr, TILE: tl.constexpr
):
    for start in range(0, width, TILE):
        j = start + tl.arange(0, TILE)
        total = tl.zeros((TILE,), tl.int32)
        for e in range(begin, end, GROUP):
            sign, source, known = _group(events, e, end, GROUP)
            w = tl.load(
                weights + source[:, None] * width + j[None, :],
                mask=known[:, None] & (j < width)[None, :],
                other=0,
            )
            total += tl.sum(w.to(tl.int32) * sign[:, None], 0)
        before = tl.load(sums + j, mask=j < width, other=0)
        tl.store(sums + j, before + total, mask=j < width)


@triton.jit
def _add_words(
    sums, weights, width, events, begin, end, GROUP: tl.constexpr, TILE: tl.constexpr
):
    """The same for signs of one byte, four to a word.

    Of +1 = 0x01 and -1 = 0xFF the bit 0x02 says which, so `w = 1 - (byte & 2)`. The masked words
    are added up whole: in a group of 32 events no byte's sum leaves -128..127.
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
        for e in range(begin, end, GROUP):
            sign, source, known = _group(events, e, end, GROUP)
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
