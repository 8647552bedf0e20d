# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""Triton kernels that relax a sample from its first step to its last in one launch.

Samples do not know of each other, so one program takes one sample through a whole phase. Both
kernels stop as soon as a step changes no state at all: every later step would change nothing
either, so that the result is that of all steps.
"""

import triton
import triton.language as tl

from binep.engines.cuda.kernels import moved, sent_by


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
    RAW: tl.constexpr,
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
        sent = sent_by(o, 0.5, False, RAW)
        up = tl.zeros((16,), tl.float32)
        zero = tl.zeros((WIDTH,), tl.float32)
        down = zero
        # Five outputs at a time: their sums over the hidden layer share one pass across threads.
        for n in tl.static_range(0, OUTPUTS, 5):
            s0, s1 = _sign_bit(negative, n), _sign_bit(negative, n + 1)
            s2, s3 = _sign_bit(negative, n + 2), _sign_bit(negative, n + 3)
            s4 = _sign_bit(negative, n + 4)
            parts = (
                _flipped(a, s0),
                _flipped(a, s1),
                _flipped(a, s2),
                _flipped(a, s3),
                _flipped(a, s4),
            )
            u0, u1, u2, u3, u4 = tl.reduce(parts, 0, _add_five)
            up = tl.where(k == n, u0, tl.where(k == n + 1, u1, up))
            up = tl.where(k == n + 2, u2, tl.where(k == n + 3, u3, tl.where(k == n + 4, u4, up)))
            down += _flipped(tl.sum(tl.where(k == n, sent, 0.0), 0) + zero, s0)
            down += _flipped(tl.sum(tl.where(k == n + 1, sent, 0.0), 0) + zero, s1)
            down += _flipped(tl.sum(tl.where(k == n + 2, sent, 0.0), 0) + zero, s2)
            down += _flipped(tl.sum(tl.where(k == n + 3, sent, 0.0), 0) + zero, s3)
            down += _flipped(tl.sum(tl.where(k == n + 4, sent, 0.0), 0) + zero, s4)
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
def _add_five(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _sign_bit(negative, n: tl.constexpr):
    """Bit n of each word, as the sign bit of a float32; outputs that there are not count 0."""
    return (negative << (31 - n)) & -2147483648


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
    events,  # int32, (batch, total), scratch: neurons that flipped, layer by layer
    counts,  # int32, (batch, 2, LAYERS), zero: how many, for odd and even steps
    gains,  # f32, (LAYERS,)
    bias,  # f32, (total,)
    kernels,  # all couplings' kernels, one after the other, (above, below) each
    turned,  # their transposes
    table,  # int32, (LAYERS, 3): a layer's size, its first neuron, its kernel's first entry
    labels,  # int64, (batch,)
    beta,  # f32, (1,), signed
    rest,  # f32, (batch, outputs): s* that a constant nudge pulls at
    residual,  # f32, (batch,)
    ran,  # int32, (batch,)
    total,
    steps,
    per_class,
    direction,
    margin,
    threshold,
    sigma,
    slope,
    LAYERS: tl.constexpr,
    NUDGED: tl.constexpr,
    HELD: tl.constexpr,
    CONSTANT: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A phase of a dense network of bits, at the cost of its events.

    Sums are kept, and a neuron that flips adds or takes away its column of weights. What a flip
    costs is one row of memory; what a quiet step costs is one pass over the states. The order of
    events is left to chance: their sums are integers.
    """
    sample = tl.program_id(0).to(tl.int64)
    row = sample * total
    outputs = tl.load(table + 3 * (LAYERS - 1))
    size_0 = tl.load(table)
    change = 1.0
    t = 0
    while (t < steps) & (change > 0.0):
        now = counts + (sample * 2 + t % 2) * LAYERS
        later = counts + (sample * 2 + (t + 1) % 2) * LAYERS
        change = 0.0
        for n in tl.static_range(LAYERS):
            size, offset = tl.load(table + 3 * n), tl.load(table + 3 * n + 1)
            tl.store(later + n, 0)
            gain = tl.load(gains + n)
            down_gain = tl.load(gains + n + 1) if n + 1 < LAYERS else gain
            nudge = tl.load(beta) * direction if NUDGED else gain
            label = tl.load(labels + sample) if NUDGED or HELD else 0
            if size > 256:
                change = tl.maximum(change, _pass_layer(
                    first + sample * size_0, up + row + offset, down + row + offset,
                    bias + offset, state + row + offset, bits + row + offset,
                    events + row + offset, now + n, rest + sample * outputs,
                    size, gain, down_gain, nudge, label, per_class, margin,
                    threshold, sigma, slope, n == 0, n + 1 < LAYERS,
                    NUDGED and n + 1 == LAYERS, HELD and n + 1 == LAYERS, CONSTANT, BLOCK,
                ))  # fmt: skip
            else:
                change = tl.maximum(change, _pass_layer(
                    first + sample * size_0, up + row + offset, down + row + offset,
                    bias + offset, state + row + offset, bits + row + offset,
                    events + row + offset, now + n, rest + sample * outputs,
                    size, gain, down_gain, nudge, label, per_class, margin,
                    threshold, sigma, slope, n == 0, n + 1 < LAYERS,
                    NUDGED and n + 1 == LAYERS, HELD and n + 1 == LAYERS, CONSTANT, 256,
                ))  # fmt: skip
        t += 1
        tl.debug_barrier()
        for n in tl.static_range(LAYERS):
            count = tl.load(now + n)
            if count > 0:
                source = events + row + tl.load(table + 3 * n + 1)
                if n + 1 < LAYERS:
                    above, at = tl.load(table + 3 * n + 3), tl.load(table + 3 * n + 4)
                    weights = turned + tl.load(table + 3 * n + 5)
                    _add_rows(up + row + at, weights, above, source, count, PACKED)
                if n > 0:
                    below, at = tl.load(table + 3 * n - 3), tl.load(table + 3 * n - 2)
                    weights = kernels + tl.load(table + 3 * n + 2)
                    _add_rows(down + row + at, weights, below, source, count, PACKED)
        tl.debug_barrier()
    tl.store(residual + sample, change)
    tl.store(ran + sample, t)


@triton.jit
def _pass_layer(
    first, up, down, bias, state, bits, events, count, rest,
    size, gain, down_gain, strength, label, per_class, margin, threshold, sigma, slope,
    FIRST: tl.constexpr, HAS_DOWN: tl.constexpr, NUDGED: tl.constexpr, HELD: tl.constexpr,
    CONSTANT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of one layer of one sample; lists who flipped, and returns the largest change."""
    largest = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < size
        if FIRST:
            drive = tl.load(first + i, mask=inside, other=0.0)
        else:
            drive = gain * tl.load(up + i, mask=inside, other=0).to(tl.float32)
            drive = drive + tl.load(bias + i, mask=inside, other=0.0)
        if HAS_DOWN:
            drive = drive + down_gain * tl.load(down + i, mask=inside, other=0).to(tl.float32)
        if HELD:
            drive = drive + tl.where(i // per_class == label, -margin, margin)
        s = tl.load(state + i, mask=inside, other=0.0)
        nudge = s
        if NUDGED:
            anchor = tl.load(rest + i, mask=inside, other=0.0) if CONSTANT else s
            nudge = strength * (tl.where(i // per_class == label, 1.0, 0.0) - anchor)
        new = moved(s, drive, nudge, threshold, sigma, slope, True, NUDGED, False)
        tl.store(state + i, new, mask=inside)
        largest = tl.maximum(largest, tl.where(inside, tl.abs(new - s), 0.0))
        # A bit follows its state: what it was need not be read.
        fires = new >= threshold
        flipped = inside & (fires != (s >= threshold))
        place = tl.atomic_add(
            count + tl.zeros_like(i), tl.full((BLOCK,), 1, tl.int32), mask=flipped, sem="relaxed",
            scope="cta",
        )  # fmt: skip
        tl.store(events + place, tl.where(fires, i, -1 - i), mask=flipped)
        tl.store(bits + i, fires.to(bits.dtype.element_ty), mask=flipped)
    return tl.max(largest, 0)


@triton.jit
def _add_rows(sums, weights, width, events, count, PACKED: tl.constexpr):
    """Add (or take away) a row of weights for each event; wide rows and narrow ones."""
    if width <= 128:
        _add_tiles(sums, weights, width, events, count, 64, 128)
    elif PACKED:
        _add_words(sums, weights, width, events, count, 16, 1024)
    else:
        _add_tiles(sums, weights, width, events, count, 8, 4096)


@triton.jit
def _add_tiles(sums, weights, width, events, count, GROUP: tl.constexpr, TILE: tl.constexpr):
    for start in range(0, width, TILE):
        add_tile(sums, weights, width, events, count, start, GROUP, TILE)


@triton.jit
def add_tile(sums, weights, width, events, count, start, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Add (or take away) a part of a row of weights for each event."""
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
    before = tl.load(sums + j, mask=j < width, other=0)
    tl.store(sums + j, before + total, mask=j < width)


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
