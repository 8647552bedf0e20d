# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""Triton kernels: what stands between two matrix products, in one pass each.

All of them are element-wise over arrays whose last axis is the channel (dense layers: the neuron),
so one index arithmetic serves dense and convolutional layers. They reproduce the reference's order
of arithmetic: launch them with `enable_fp_fusion=False`, so that no multiply-add is contracted.
"""

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def moved(
    s,
    drive,
    nudge,
    threshold,
    sigma,
    slope,
    ENERGY: tl.constexpr,
    NUDGED: tl.constexpr,
    CLAMPED: tl.constexpr,
):
    """A state one step later: energy-based with dt = 1/2, or prototypical."""
    if ENERGY:
        listening = tl.abs(s - threshold) <= sigma
        force = tl.where(listening, slope, 0.0) * drive
        if NUDGED:
            force = force + nudge
        s = 0.5 * s + 0.5 * force
        s = tl.minimum(tl.maximum(s, 0.0), 1.0)
    else:
        s = tl.minimum(tl.maximum(drive, 0.0), 1.0)
        if NUDGED:
            s = s + nudge
            if CLAMPED:
                s = tl.minimum(tl.maximum(s, 0.0), 1.0)
    return s


@triton.jit
def sent_by(s, threshold, BINARY: tl.constexpr, RAW: tl.constexpr):
    """What a neuron of state s sends: its bit, its activity, or if RAW the state as it is."""
    if BINARY:
        s = tl.where(s >= threshold, 1.0, 0.0)
    elif not RAW:
        s = tl.minimum(tl.maximum(s, 0.0), 1.0)
    return s


@triton.jit
def thin_product(sent, synapses, units, inside, OUTPUTS: tl.constexpr):
    """What a few outputs send down to some of the `units` neurons below.

    For each of these `sent` says where its sample's outputs lie, `synapses` where its first one is.
    """
    total = inside.to(tl.float32) * 0.0
    for k in tl.static_range(OUTPUTS):
        w = tl.load(synapses + k * units, mask=inside, other=0.0).to(tl.float32)
        total += w * tl.load(sent + k, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def thin_sums(below, kernel, units, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of a few outputs, at most 16, over the activities of one sample."""
    k = tl.arange(0, 16)
    total = tl.zeros((16, BLOCK), tl.float32)
    for start in range(0, units, BLOCK):
        j = start + tl.arange(0, BLOCK)
        mask = (k < OUTPUTS)[:, None] & (j < units)[None, :]
        w = tl.load(kernel + k[:, None] * units + j[None, :], mask=mask, other=0.0)
        a = tl.load(below + j, mask=j < units, other=0.0)
        total += w.to(tl.float32) * a.to(tl.float32)[None, :]
    return tl.sum(total, 1)


@triton.jit
def advance_kernel(
    up,  # sums of the coupling below, or its whole drive if FIRST
    gain,  # f32, (1,) or (channels,)
    bias,  # f32, (channels,)
    down,  # sums (DENSE_DOWN) or drive of the coupling above; if THIN, what outputs send
    down_gain,  # f32, (1,)
    down_kernel,  # (THIN, units), if THIN
    state,  # s of the step before, f32
    target,  # y, f32, (top layer only)
    rest,  # s* that a constant nudge pulls at, f32
    beta,  # f32, (1,), signed
    new_state,
    activity,  # a = rho(s), in the matrix products' dtype
    events,  # int32, (batch, units), if LIST: neurons that flipped; -1 - i if to 0
    counts,  # int32, (batch,), zero, if LIST
    spent,  # int32, (batch,), if LIST: set to zero
    count,
    channels,
    units,
    threshold,
    sigma,
    slope,
    FIRST: tl.constexpr,
    CHANNEL_GAIN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_DOWN: tl.constexpr,
    DENSE_DOWN: tl.constexpr,
    THIN: tl.constexpr,
    ENERGY: tl.constexpr,
    BINARY: tl.constexpr,
    NUDGED: tl.constexpr,
    CONSTANT: tl.constexpr,
    CLAMPED: tl.constexpr,
    RAW: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One time step of one layer: drive from both neighbours, nudge, new state, activity."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    channel = index % channels
    drive = tl.load(up + index, mask=inside, other=0).to(tl.float32)
    if not FIRST:
        factor = tl.load(gain + channel, mask=inside, other=0.0) if CHANNEL_GAIN else tl.load(gain)
        drive = factor * drive
        if HAS_BIAS:
            drive = drive + tl.load(bias + channel, mask=inside, other=0.0)
    if HAS_DOWN:
        if THIN > 0:
            outputs = down + index // units * THIN
            below = thin_product(outputs, down_kernel + index % units, units, inside, THIN)
        else:
            below = tl.load(down + index, mask=inside, other=0).to(tl.float32)
        if DENSE_DOWN:
            below = tl.load(down_gain) * below
        drive = drive + below
    s = tl.load(state + index, mask=inside, other=0.0)
    nudge = s
    if NUDGED:
        anchor = tl.load(rest + index, mask=inside, other=0.0) if CONSTANT else s
        nudge = tl.load(beta) * (tl.load(target + index, mask=inside, other=0.0) - anchor)
    was = s >= threshold
    s = moved(s, drive, nudge, threshold, sigma, slope, ENERGY, NUDGED, CLAMPED)
    a = sent_by(s, threshold, BINARY, RAW)
    tl.store(new_state + index, s, mask=inside)
    tl.store(activity + index, a.to(activity.dtype.element_ty), mask=inside)
    if LIST:
        fires, sample = s >= threshold, index // units
        tl.store(spent + index, 0, mask=index < count // units)
        one = tl.full((BLOCK,), 1, tl.int32)
        at = tl.atomic_add(counts + sample, one, mask=inside & (fires != was), sem="relaxed")
        event = tl.where(fires, index % units, -1 - index % units)
        tl.store(events + sample * units + at, event, mask=inside & (fires != was))


@triton.jit
def top_kernel(
    below,  # activities of the layer below, (batch, units)
    kernel,  # (OUTPUTS, units)
    gain,  # f32, (1,)
    bias,  # f32, (OUTPUTS,)
    state,  # f32, (batch, OUTPUTS)
    target,  # y, f32, if NUDGED
    rest,  # s* that a constant nudge pulls at
    beta,  # f32, (1,), signed
    new_state,
    activity,
    units,
    threshold,
    sigma,
    slope,
    HAS_BIAS: tl.constexpr,
    ENERGY: tl.constexpr,
    NUDGED: tl.constexpr,
    CONSTANT: tl.constexpr,
    CLAMPED: tl.constexpr,
    RAW: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of an output layer of at most 16 real neurons: product and update in one launch."""
    sample = tl.program_id(0)
    k = tl.arange(0, 16)
    real = k < OUTPUTS
    drive = tl.load(gain) * thin_sums(below + sample * units, kernel, units, OUTPUTS, BLOCK)
    if HAS_BIAS:
        drive = drive + tl.load(bias + k, mask=real, other=0.0)
    place = sample * OUTPUTS + k
    s = tl.load(state + place, mask=real, other=0.0)
    nudge = s
    if NUDGED:
        anchor = tl.load(rest + place, mask=real, other=0.0) if CONSTANT else s
        nudge = tl.load(beta) * (tl.load(target + place, mask=real, other=0.0) - anchor)
    s = moved(s, drive, nudge, threshold, sigma, slope, ENERGY, NUDGED, CLAMPED)
    tl.store(new_state + place, s, mask=real)
    a = sent_by(s, threshold, False, RAW)
    tl.store(activity + place, a.to(activity.dtype.element_ty), mask=real)


@triton.jit
def bop_kernel(
    signs,  # f32, +-1
    momentum,  # f32: m / decay
    contrast,  # f32: f(nudged) - f(base)
    rates,  # f32, (2,): gamma / decay, tau / decay
    flips,  # int64, (1,)
    count,
    factor,
    BLOCK: tl.constexpr,
):
    """Bop in one pass: read m and g, write m, flip where |m| > tau agrees in sign, count flips."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    w = tl.load(signs + index, mask=inside, other=0.0)
    m = tl.load(momentum + index, mask=inside, other=0.0)
    gradient = factor * tl.load(contrast + index, mask=inside, other=0.0)
    m = m + gradient * tl.load(rates)
    # Above a threshold of at least 0, m and w agree in sign where their product is positive.
    flip = inside & (tl.abs(m) > tl.load(rates + 1)) & ((m > 0) == (w > 0))
    tl.store(momentum + index, m, mask=inside)
    tl.store(signs + index, -w, mask=flip)
    tl.atomic_add(flips, tl.sum(flip.to(tl.int64)))
