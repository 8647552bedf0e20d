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
    signs,  # (outputs, width): the output coupling's kernel
    gain,  # f32, (1,)
    bias,  # f32, (outputs,)
    labels,  # int64, (batch,)
    beta,  # f32, (1,), signed
    hidden_from,  # f32, (batch, width): where the phase starts
    top_from,  # f32, (batch, outputs)
    hidden,  # f32, (batch, width): where it ends
    top,  # f32, (batch, outputs)
    residual,  # f32, (batch,): the last step's largest change
    ran,  # int32, (batch,): steps until nothing moved
    width,
    outputs,
    steps,
    per_class,
    direction,  # +1 or -1, multiplies beta
    HAS_BIAS: tl.constexpr,
    NUDGED: tl.constexpr,
    CONSTANT: tl.constexpr,
    CLAMPED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A phase of a network with one hidden layer and few outputs, real activations.

    The hidden layer streams through in blocks; both directions of the output coupling read each
    block of its kernel once.
    """
    sample = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, OUTPUTS)
    real = k < outputs
    alpha = tl.load(gain)
    b = tl.load(bias + k, mask=real, other=0.0) if HAS_BIAS else tl.zeros((OUTPUTS,), tl.float32)
    o = tl.load(top_from + sample * outputs + k, mask=real, other=0.0)
    rest = o
    if NUDGED:
        strength = tl.load(beta) * direction
        y = tl.where(k // per_class == tl.load(labels + sample), 1.0, 0.0)
    row = sample * width
    for start in range(0, width, BLOCK):
        j = start + tl.arange(0, BLOCK)
        tl.store(hidden + row + j, tl.load(hidden_from + row + j, mask=j < width), mask=j < width)
    tl.debug_barrier()
    change = 1.0
    t = 0
    while (t < steps) & (change > 0.0):
        sent = tl.where(real, tl.minimum(tl.maximum(o, 0.0), 1.0), 0.0)
        total = tl.zeros((OUTPUTS, BLOCK), tl.float32)
        largest = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, width, BLOCK):
            j = start + tl.arange(0, BLOCK)
            inside = j < width
            w = tl.load(
                signs + k[:, None] * width + j[None, :],
                mask=real[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float32)
            h = tl.load(hidden + row + j, mask=inside, other=0.0)
            total += w * h[None, :]
            down = alpha * tl.sum(w * sent[:, None], 0)
            drive = tl.load(first + row + j, mask=inside, other=0.0) + down
            new = tl.minimum(tl.maximum(drive, 0.0), 1.0)
            largest = tl.maximum(largest, tl.where(inside, tl.abs(new - h), 0.0))
            tl.store(hidden + row + j, new, mask=inside)
        moved_to = tl.minimum(tl.maximum(alpha * tl.sum(total, 1) + b, 0.0), 1.0)
        if NUDGED:
            moved_to += strength * (y - (rest if CONSTANT else o))
            if CLAMPED:
                moved_to = tl.minimum(tl.maximum(moved_to, 0.0), 1.0)
        stirred = tl.max(tl.where(real, tl.abs(moved_to - o), 0.0), 0)
        change = tl.maximum(tl.max(largest, 0), stirred)
        o = moved_to
        t += 1
    tl.store(top + sample * outputs + k, o, mask=real)
    tl.store(residual + sample, change)
    tl.store(ran + sample, t)


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
    rest,  # f32, (batch, outputs): s* that a constant nudge pulls at
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """A phase of a dense network of bits, at the cost of its events.

    Sums are kept, and a neuron that flips adds or takes away its column of weights. What a flip
    costs is one row of memory; what a quiet step costs is one pass over the states.
    """
    sample = tl.program_id(0).to(tl.int64)
    row = sample * total
    marks = bounds + sample * (LAYERS + 1)
    outputs = tl.load(table + 3 * (LAYERS - 1))
    tl.store(marks, 0)
    change = 1.0
    t = 0
    while (t < steps) & (change > 0.0):
        largest = tl.zeros((BLOCK,), tl.float32)
        count = 0
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
                nudge = tl.zeros((BLOCK,), tl.float32)
                if NUDGED and n + 1 == LAYERS:
                    anchor = s
                    if CONSTANT:
                        anchor = tl.load(rest + sample * outputs + i, mask=inside, other=0.0)
                    y = tl.where(i // per_class == tl.load(labels + sample), 1.0, 0.0)
                    nudge = tl.load(beta) * direction * (y - anchor)
                new = moved(s, drive, nudge, threshold, sigma, slope, True, NUDGED and n + 1 == LAYERS, False)
                largest = tl.maximum(largest, tl.where(inside, tl.abs(new - s), 0.0))
                tl.store(state + at, new, mask=inside)
                fires = new >= threshold
                flipped = inside & (fires != (tl.load(bits + at, mask=inside, other=0) > 0))
                found = tl.sum(flipped.to(tl.int32), 0)
                if found > 0:
                    place = count + tl.cumsum(flipped.to(tl.int32), 0) - 1
                    tl.store(events + row + place, tl.where(fires, i, -1 - i), mask=flipped)
                    tl.store(bits + at, fires.to(bits.dtype.element_ty), mask=flipped)
                count += found
            tl.store(marks + n + 1, count)
        change = tl.max(largest, 0)
        t += 1
        if count > 0:
            tl.debug_barrier()
            for n in tl.static_range(LAYERS):
                begin, end = tl.load(marks + n), tl.load(marks + n + 1)
                if end > begin:
                    size, offset = tl.load(table + 3 * n), tl.load(table + 3 * n + 1)
                    if n + 1 < LAYERS:
                        above, at = tl.load(table + 3 * n + 3), tl.load(table + 3 * n + 4)
                        weights = turned + tl.load(table + 3 * n + 5)
                        _add_rows(up + row + at, weights, above, events + row, begin, end, TILE)
                    if n > 0:
                        below, at = tl.load(table + 3 * n - 3), tl.load(table + 3 * n - 2)
                        weights = kernels + tl.load(table + 3 * n + 2)
                        _add_rows(down + row + at, weights, below, events + row, begin, end, TILE)
            tl.debug_barrier()
    tl.store(residual + sample, change)
    tl.store(ran + sample, t)


@triton.jit
def _add_rows(sums, weights, width, events, begin, end, TILE: tl.constexpr):
    """Add (or take away) a row of weights for each event; wide rows and narrow ones."""
    if width > 256:
        _add_tiles(sums, weights, width, events, begin, end, 8, TILE)
    else:
        _add_tiles(sums, weights, width, events, begin, end, 64, 256)


@triton.jit
def _add_tiles(
    sums, weights, width, events, begin, end, GROUP: tl.constexpr, TILE: tl.constexpr
):
    for start in range(0, width, TILE):
        j = start + tl.arange(0, TILE)
        total = tl.zeros((TILE,), tl.int32)
        for e in range(begin, end, GROUP):
            k = e + tl.arange(0, GROUP)
            event = tl.load(events + k, mask=k < end, other=0)
            sign = tl.where(event < 0, -1, 1)
            source = tl.where(event < 0, -1 - event, event).to(tl.int64)
            w = tl.load(
                weights + source[:, None] * width + j[None, :],
                mask=(k < end)[:, None] & (j < width)[None, :],
                other=0,
            )
            total += tl.sum(w.to(tl.int32) * sign[:, None], 0)
        before = tl.load(sums + j, mask=j < width, other=0)
        tl.store(sums + j, before + total, mask=j < width)
