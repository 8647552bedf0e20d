# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""Triton kernels for what follows both phases: counting, contrasts, Bop.

The contrast of a dense coupling is written in what changed between the phases,

    a+ b+' - a- b-'  =  (a+ - a-) b+'  +  a- (b+ - b-)'

so that float16 rounds small changes relative to themselves, and bits stay exact.
"""

import triton
import triton.language as tl


@triton.jit
def count_kernel(
    top,  # f32, (batch, classes * per_class): the free state of the output layer
    stride,
    labels,  # int64, (batch,)
    found,  # f64, (batch, 4): wrong by average, by single, undecided, cost
    classes,
    per_class,
    CLASSES: tl.constexpr,
    PER_CLASS: tl.constexpr,
):
    """Read out one sample: both predictions against its label, and its cost."""
    sample = tl.program_id(0)
    c, p = tl.arange(0, CLASSES), tl.arange(0, PER_CLASS)
    inside = (c < classes)[:, None] & (p < per_class)[None, :]
    place = top + sample * stride + c[:, None] * per_class + p[None, :]
    s = tl.load(place, mask=inside, other=0.0)
    label = tl.load(labels + sample)
    # In float64 the order of the sum cannot decide between two classes.
    average = tl.sum(s.to(tl.float64), 1) / per_class
    single = tl.sum(tl.where(p[None, :] == 0, s, 0.0), 1).to(tl.float64)
    wrong = _first_of_largest(average, c, classes) != label
    wrong_single = _first_of_largest(single, c, classes) != label
    highest = tl.max(tl.where(c < classes, average, float("-inf")), 0)
    lowest = tl.min(tl.where(c < classes, average, float("inf")), 0)
    y = tl.where(c == label, 1.0, 0.0)
    miss = tl.where(inside, y[:, None] - s, 0.0).to(tl.float64)
    cost = 0.5 * tl.sum(tl.sum(miss * miss, 1), 0)
    tl.store(found + sample * 4, wrong.to(tl.float64))
    tl.store(found + sample * 4 + 1, wrong_single.to(tl.float64))
    tl.store(found + sample * 4 + 2, (highest == lowest).to(tl.float64))
    tl.store(found + sample * 4 + 3, cost)


@triton.jit
def _first_of_largest(scores, c, classes):
    """The index of the largest score, on a tie the lowest one."""
    scores = tl.where(c < classes, scores, float("-inf"))
    return tl.min(tl.where(scores == tl.max(scores, 0), c, classes), 0)


@triton.jit
def changes_kernel(
    plus,  # (batch, units): activities of the nudged phase
    minus,  # (batch, units): of the phase it is compared with
    plus_stride,
    minus_stride,
    heads,  # f16, (2 batch, units): change, minus; the layer as the one above a coupling
    tails,  # f16, (2 batch, units): plus, change; as the one below
    bias_gradient,  # f32, (units,)
    beta,  # f32, (1,)
    batch,
    units,
    factor,
    SPREAD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What a layer brings into the contrasts of its two couplings, and its bias's gradient."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, batch, ROWS):
        r = start + tl.arange(0, ROWS)
        inside = (r < batch)[:, None] & (j < units)[None, :]
        a = tl.load(plus + r[:, None] * plus_stride + j[None, :], mask=inside, other=0)
        b = tl.load(minus + r[:, None] * minus_stride + j[None, :], mask=inside, other=0)
        a, b = a.to(tl.float32), b.to(tl.float32)
        change = a - b
        total += tl.sum(change, 0)
        near = r[:, None] * units + j[None, :]
        far = near + batch * units
        spread = (change * SPREAD).to(tl.float16)
        tl.store(heads + near, spread, mask=inside)
        tl.store(heads + far, b.to(tl.float16), mask=inside)
        tl.store(tails + near, a.to(tl.float16), mask=inside)
        tl.store(tails + far, spread, mask=inside)
    direction = tl.where(tl.load(beta) < 0, -1.0, 1.0)
    tl.store(bias_gradient + j, factor * (total * direction), mask=j < units)


@triton.jit
def learn_kernel(
    heads,  # f16, (rows, above)
    tails,  # f16, (rows, below)
    signs,  # f32, (above, below): the parameter
    kernel,  # its copy that products read
    turned,  # the copy's transpose
    packed,  # int32: bits of all couplings, see `packing`
    up_at,  # the first byte of this one's, by rows
    up_width,
    up_stride,
    down_at,  # and by columns
    down_width,
    down_stride,
    momentum,  # f32: m / decay
    rates,  # f32, (3,): gamma / decay, tau / decay, contrasts above which an entry is touched
    flips,  # int64, (1,)
    contracted,  # f64, one a program: <signs, contrast>, if SCALE
    beta,  # f32, (1,)
    rows,
    above,
    below,
    channels,
    positions,
    factor,
    SPREAD: tl.constexpr,
    SPARSE: tl.constexpr,
    TURN: tl.constexpr,
    PACKED: tl.constexpr,
    PERMUTED: tl.constexpr,
    SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    ABOVE: tl.constexpr,
    BELOW: tl.constexpr,
):
    """Contrast of a dense coupling and Bop, tile by tile; the contrast never leaves the chip.

    An entry without gradient keeps its momentum and cannot newly exceed a threshold that only
    grows: its memory is not touched, unless the rates ask for all.
    """
    tiles = tl.cdiv(below, BELOW)
    program = tl.program_id(0)
    i = program // tiles * ABOVE + tl.arange(0, ABOVE)
    j = program % tiles * BELOW + tl.arange(0, BELOW)
    total = tl.zeros((ABOVE, BELOW), tl.float32)
    for start in range(0, rows, ROWS):
        r = start + tl.arange(0, ROWS)
        h = tl.load(
            heads + r[:, None] * above + i[None, :],
            mask=(r < rows)[:, None] & (i < above)[None, :],
            other=0.0,
        )
        t = tl.load(
            tails + r[:, None] * below + j[None, :],
            mask=(r < rows)[:, None] & (j < below)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(h), t, total)
    direction = tl.where(tl.load(beta) < 0, -1.0, 1.0)
    contrast = total * (direction / SPREAD)
    inside = (i < above)[:, None] & (j < below)[None, :]
    index = i[:, None] * below + j[None, :]
    # Products read an image below channels last; the parameter numbers it channels first.
    column = j % channels * positions + j // channels if PERMUTED else j
    place = i[:, None] * below + column[None, :]
    # Real activities leave hardly any synapse without a gradient.
    touched = inside & (tl.abs(contrast) > tl.load(rates + 2)) if SPARSE else inside
    w = tl.load(kernel + index, mask=inside if SCALE else touched, other=0).to(tl.float32)
    m = tl.load(momentum + place, mask=touched, other=0.0)
    gradient = factor * contrast
    m = m + gradient * tl.load(rates)
    # Above a threshold of at least 0, m and w agree in sign where their product is positive.
    flip = touched & (tl.abs(m) > tl.load(rates + 1)) & ((m > 0) == (w > 0))
    tl.store(momentum + place, m, mask=touched)
    found = tl.sum(tl.sum(flip.to(tl.int32), 1), 0)
    if found > 0:
        tl.store(signs + place, -w, mask=flip)
        tl.store(kernel + index, (-w).to(kernel.dtype.element_ty), mask=flip)
        if TURN:
            across = j[None, :] * above + i[:, None]
            tl.store(turned + across, (-w).to(turned.dtype.element_ty), mask=flip)
        if PACKED:
            _toggle(packed, up_at + i[:, None] * up_stride, j[None, :], up_width, flip)
            _toggle(packed, down_at + j[None, :] * down_stride, i[:, None], down_width, flip)
        tl.atomic_add(flips, found.to(tl.int64))
    if SCALE:
        product = tl.where(inside, w * contrast, 0.0).to(tl.float64)
        tl.store(contracted + program, tl.sum(tl.sum(product, 1), 0))


@triton.jit
def _toggle(words, row, term, width, flip):
    """Toggle the bits of some terms of the rows that begin at these bytes."""
    byte = row + term // (8 * width) * width + term % width
    bit = byte % 4 * 8 + term % (8 * width) // width
    tl.atomic_xor(words + byte // 4, tl.full(flip.shape, 1, tl.int32) << bit, mask=flip)


@triton.jit
def tally_kernel(
    found,  # f64, (batch, 4), from `count_kernel`
    residual,  # f32, (batch,) or (1,)
    free_ran,  # int32, (batch,) or (1,)
    nudged_ran,
    opposite_ran,
    totals,  # f64, (7,): found, then residual, steps of the free phase, of nudged ones
    batch,
    residuals,
    LEARNING: tl.constexpr,
    CENTERED: tl.constexpr,
    BATCH: tl.constexpr,
):
    """Add a mini-batch to the totals of the epoch, always in the same order."""
    sample = tl.arange(0, BATCH)
    for column in tl.static_range(4):
        value = tl.load(found + sample * 4 + column, mask=sample < batch, other=0.0)
        tl.store(totals + column, tl.load(totals + column) + tl.sum(value, 0))
    inside = sample < residuals
    last = tl.max(tl.load(residual + sample, mask=inside, other=0.0), 0)
    tl.store(totals + 4, tl.load(totals + 4) + last)
    steps = tl.max(tl.load(free_ran + sample, mask=inside, other=0), 0)
    tl.store(totals + 5, tl.load(totals + 5) + steps)
    if LEARNING:
        steps = tl.max(tl.load(nudged_ran + sample, mask=inside, other=0), 0)
        if CENTERED:
            steps += tl.max(tl.load(opposite_ran + sample, mask=inside, other=0), 0)
        tl.store(totals + 6, tl.load(totals + 6) + steps)
