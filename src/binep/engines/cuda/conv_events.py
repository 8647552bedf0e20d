# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""A Triton kernel that relaxes convolutional networks of bits at the cost of what changes.

As in `settling`, one program takes one sample through a whole phase. Maps (sums before pooling) and
drives from above are kept. A bit of the layer below that flips changes the maps around it; a bit of
the layer above that flips, or that wins at another place of its pool, *moves*: it changes the
drives around its old place and its new one. In which order is left to chance: all sums are exact.

Signs are read four to a word. Of +1 = 0x01 and -1 = 0xFF the bit 0x02 says which.
"""

import triton
import triton.language as tl

from binep.engines.cuda.settling import add_rows, pass_layer, take_away

SILENT = tl.constexpr(15)  # stands for the place of a bit that is not sent

# Columns of `table`, which has a row for each layer and its coupling below.
SIZE = tl.constexpr(0)  # of the layer
OFFSET = tl.constexpr(1)  # its first neuron
CHANNELS = tl.constexpr(2)
WIDTH = tl.constexpr(3)
ENTRY = tl.constexpr(4)  # the first entry of a dense coupling in `kernels` and `turned`
MAPS = tl.constexpr(5)  # the first sum of a convolution in `maps`
MAP_HEIGHT = tl.constexpr(6)
MAP_WIDTH = tl.constexpr(7)
KERNEL = tl.constexpr(8)
POOL = tl.constexpr(9)
PADDING = tl.constexpr(10)
UP_WORDS = tl.constexpr(11)  # the first word of a convolution in `words`, by what is read below
DOWN_WORDS = tl.constexpr(12)  # and above
COLUMNS = tl.constexpr(13)


@triton.jit
def conv_events_kernel(
    first,  # f32, (batch, size of layer 0): its constant drive
    maps,  # int32, (batch, mapped): sums before pooling, all convolutions side by side
    drive,  # f64, (batch, driven): on the layers below convolutions, side by side
    up,  # int32, (batch, total): sums from below, pooled, all layers side by side
    down,  # int32, (batch, total): sums from above, of layers below a dense coupling
    state,  # f32, (batch, total), changed in place, as are all of these
    bits,  # (batch, total)
    places,  # uint8, (batch, total): where in its pool each bit is sent, or SILENT
    flips,  # int32, (batch, total), scratch: neurons that flipped, layer by layer
    flip_counts,  # int32, (batch, 2, LAYERS), zero: how many, for odd and even steps
    moves,  # int32, (batch, 2 * total), scratch: events of the places of bits, see `_convolve`
    move_counts,  # int32, (batch, LAYERS), zero
    gains,  # f32, (total,): of each neuron's coupling below
    down_gains,  # f32, (LAYERS,): of each layer's coupling above, if dense
    bias,  # f32, (total,)
    words,  # int32: signs of all convolutions, rows padded to 16
    kernels,  # all dense couplings' kernels, one after the other, (above, below) each
    turned,  # their transposes
    table,  # int32, (LAYERS, COLUMNS)
    labels,  # int64, (batch,)
    beta,  # f32, (1,), signed
    rest,  # f32, (batch, outputs): s* that a constant nudge pulls at
    residual,  # f32, (batch,): the last step's largest change
    ran,  # int32, (batch,): steps until nothing moved
    total,
    mapped,
    driven,
    steps,
    per_class,
    direction,  # +1 or -1, multiplies beta
    threshold,
    sigma,
    slope,
    LAYERS: tl.constexpr,
    CONVOLUTIONS: tl.constexpr,  # between layers that relax: couplings 1, 2, ...
    NUDGED: tl.constexpr,
    CONSTANT: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,  # words that are added up at once
    ABOVE: tl.constexpr,  # words of the widest row that is written above, a power of two
    BELOW: tl.constexpr,  # and below
    ROW: tl.constexpr,  # of a dense coupling, as much as is added up at once
):
    """A phase of a chain of convolutions and dense couplings between bits."""
    sample = tl.program_id(0).to(tl.int64)
    row = sample * total
    first += sample * tl.load(table + SIZE)
    rest += sample * tl.load(table + COLUMNS * (LAYERS - 1) + SIZE)
    maps += sample * mapped
    drive += sample * driven
    moved = move_counts + sample * LAYERS
    strength = tl.load(beta) * direction if NUDGED else 0.0
    label = tl.load(labels + sample) if NUDGED else 0
    change = 1.0
    t = 0
    while (t < steps) & (change > 0.0):
        now = flip_counts + (sample * 2 + t % 2) * LAYERS
        before = flip_counts + (sample * 2 + (t + 1) % 2) * LAYERS
        for n in tl.static_range(1, CONVOLUTIONS + 1):
            at = row + tl.load(table + COLUMNS * n + OFFSET)
            if (t == 0) | (tl.load(before + n - 1) > 0) | (tl.load(before + n) > 0):
                _pool(
                    maps, up + at, bits + at, places + at, moves + 2 * at, moved + n,
                    table + COLUMNS * n, BLOCK,
                )  # fmt: skip
        tl.debug_barrier()
        for n in tl.static_range(1, CONVOLUTIONS + 1):
            count = tl.load(moved + n)
            if count > 0:
                above, below = table + COLUMNS * n, table + COLUMNS * (n - 1)
                offset, channels = tl.load(above + OFFSET), tl.load(below + CHANNELS)
                kernel = tl.load(above + KERNEL)
                _convolve(
                    drive + tl.load(below + OFFSET),
                    words + tl.multiple_of(tl.load(above + DOWN_WORDS), 4),
                    moves + 2 * (row + offset), count, gains + offset,
                    tl.load(below + SIZE) // channels, tl.load(below + WIDTH), channels,
                    tl.load(above + CHANNELS), kernel, kernel - 1 - tl.load(above + PADDING),
                    True, TILE, BELOW, 4,
                )  # fmt: skip
        tl.debug_barrier()
        change = 0.0
        for n in tl.static_range(LAYERS):
            size, offset = tl.load(table + COLUMNS * n), tl.load(table + COLUMNS * n + OFFSET)
            at = row + offset
            tl.store(before + n, 0)
            tl.store(moved + n, 0)
            change = tl.maximum(change, pass_layer(
                first, up + at, (drive + offset) if n < CONVOLUTIONS else (down + at),
                bias + offset, state + at, bits + at, flips + at, now + n, rest,
                size, gains + offset, tl.load(down_gains + n), strength, label, per_class,
                threshold, sigma, slope,
                n == 0, True, n + 1 < LAYERS, n < CONVOLUTIONS, NUDGED and n + 1 == LAYERS,
                CONSTANT, BLOCK,
            ))  # fmt: skip
        t += 1
        tl.debug_barrier()
        for n in tl.static_range(CONVOLUTIONS):
            here = table + COLUMNS * n
            _locate(flips + row + tl.load(here + OFFSET), tl.load(now + n), here, 512)
        tl.debug_barrier()
        for n in tl.static_range(LAYERS):
            count = tl.load(now + n)
            if count > 0:
                here = table + COLUMNS * n
                flipped = flips + row + tl.load(here + OFFSET)
                if n < CONVOLUTIONS:
                    above, width = here + COLUMNS, tl.load(here + COLUMNS + MAP_WIDTH)
                    _convolve(
                        maps + tl.load(above + MAPS),
                        words + tl.multiple_of(tl.load(above + UP_WORDS), 4),
                        flipped, count, gains, tl.load(above + MAP_HEIGHT) * width, width,
                        tl.load(above + CHANNELS), tl.load(here + CHANNELS),
                        tl.load(above + KERNEL), tl.load(above + PADDING), False, TILE, ABOVE, 8,
                    )  # fmt: skip
                elif n + 1 < LAYERS:
                    above, weights = here + COLUMNS, turned + tl.load(here + COLUMNS + ENTRY)
                    sums = up + row + tl.load(above + OFFSET)
                    add_rows(sums, weights, tl.load(above + SIZE), flipped, count, False, ROW)
                if n > CONVOLUTIONS:
                    below, weights = here - COLUMNS, kernels + tl.load(here + ENTRY)
                    sums = down + row + tl.load(below + OFFSET)
                    add_rows(sums, weights, tl.load(below + SIZE), flipped, count, False, ROW)
        tl.debug_barrier()
    tl.store(residual + sample, change)
    tl.store(ran + sample, t)


@triton.jit
def _pool(maps, up, bits, places, moves, count, table, BLOCK: tl.constexpr):
    """Max-pool, on a tie the first place wins; lists where bits above are sent, or no longer."""
    size, channels, columns = tl.load(table), tl.load(table + CHANNELS), tl.load(table + WIDTH)
    maps += tl.load(table + MAPS)
    pool, width = tl.load(table + POOL), tl.load(table + MAP_WIDTH)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < size
        channel, position = i % channels, i // channels
        y, x = position // columns * pool, position % columns * pool
        corner = maps + (y * width + x) * channels + channel
        best = tl.load(corner, mask=inside, other=0)
        winner = tl.zeros((BLOCK,), tl.int32)
        for place in range(1, pool * pool):
            offset = (place // pool * width + place % pool) * channels
            value = tl.load(corner + offset, mask=inside, other=0)
            better = value > best
            best = tl.where(better, value, best)
            winner = tl.where(better, place, winner)
        tl.store(up + i, best, mask=inside)
        sent = tl.load(bits + i, mask=inside, other=0.0) > 0.0
        new = tl.where(sent, winner, SILENT)
        old = tl.load(places + i, mask=inside, other=SILENT).to(tl.int32)
        moves_here = inside & (new != old)
        tl.store(places + i, new.to(tl.uint8), mask=moves_here)
        _list(moves, count, _event_at(new, pool, y, x, channel), moves_here & (new < SILENT))
        _list(moves, count, -1 - _event_at(old, pool, y, x, channel), moves_here & (old < SILENT))


@triton.jit
def _event(y, x, channel):
    """Where something happens, in one number."""
    return (y << 22) | (x << 12) | channel


@triton.jit
def _event_at(place, pool, y, x, channel):
    """The same at a place of the pool whose corner is (y, x)."""
    down = (place >= pool).to(tl.int32) + (place >= 2 * pool).to(tl.int32)
    return _event(y + down, x + place - down * pool, channel)


@triton.jit
def _list(events, count, event, mask):
    at = tl.atomic_add(
        count + tl.zeros_like(event), tl.full(event.shape, 1, tl.int32), mask=mask, sem="relaxed",
        scope="cta",
    )  # fmt: skip
    tl.store(events + at, event, mask=mask)


@triton.jit
def _locate(flips, count, table, BLOCK: tl.constexpr):
    """Turn neurons that flipped into events."""
    channels, width = tl.load(table + CHANNELS), tl.load(table + WIDTH)
    for start in range(0, count, BLOCK):
        k = start + tl.arange(0, BLOCK)
        flip = tl.load(flips + k, mask=k < count, other=0)
        unit = tl.where(flip < 0, -1 - flip, flip)
        position = unit // channels
        event = _event(position // width, position % width, unit % channels)
        tl.store(flips + k, tl.where(flip < 0, -1 - event, event), mask=k < count)


@triton.jit
def _convolve(
    sums, words, events, count, gains, positions, width, outputs, channels, kernel, padding,
    SCALED: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Add to sums at all positions, (positions, outputs), what events in the layer read change.

    Args:
        sums: int32 or, if SCALED by the gains of the channels that are read, f64.
        events: at (y << 22 | x << 12 | channel) something begins to be sent, at -1 - that it ends.
        words: signs, (kernel * kernel * channels, outputs).
    """
    POSITIONS: tl.constexpr = TILE // WORDS
    length = tl.multiple_of((outputs + 15) // 16 * 4, 4)
    j = tl.arange(0, WORDS)
    for start in range(0, positions, POSITIONS):
        p = start + tl.arange(0, POSITIONS)
        top, left = p // width - padding, p % width - padding
        # Sums of the outputs 4 j, ... 4 j + 3.
        none = tl.zeros((POSITIONS, WORDS), tl.float64 if SCALED else tl.int32)
        a, b, c, d = none, none, none, none
        for e in range(0, count, GROUP):
            k = e + tl.arange(0, GROUP)
            event = tl.load(events + k, mask=k < count, other=0)
            at = tl.where(event < 0, -1 - event, event)
            channel = at & 4095
            down = (at >> 22)[:, None] - top[None, :]
            right = ((at >> 12) & 1023)[:, None] - left[None, :]
            hit = (k < count)[:, None] & (p < positions)[None, :]
            hit = hit & (down >= 0) & (down < kernel) & (right >= 0) & (right < kernel)
            row = (down * kernel + right) * channels + channel[:, None]
            four = tl.load(
                words + (row * length)[:, :, None] + j[None, None, :],
                mask=hit[:, :, None] & (j < length)[None, None, :],
                other=0,
            )
            if SCALED:
                factor = tl.load(gains + channel).to(tl.float64)
                factor = tl.where(event < 0, -factor, factor)
                there = tl.where(hit, factor[:, None], 0.0)[:, :, None]
                a += tl.sum(_signed(there, four << 24), 0)
                b += tl.sum(_signed(there, four << 16), 0)
                c += tl.sum(_signed(there, four << 8), 0)
                d += tl.sum(_signed(there, four), 0)
            else:
                sign = tl.where(hit, tl.where(event < 0, -1, 1)[:, None], 0)
                # Four bytes at once, -w each: in a group no sum of them leaves -128..127.
                less = ((four & 0x02020202) - 0x01010101) * sign[:, :, None]
                a, b, c, d = take_away(tl.sum(less, 0), a, b, c, d)
        here, inside = sums + p[:, None] * outputs + 4 * j[None, :], (p < positions)[:, None]
        _add(here, a, inside & (4 * j < outputs)[None, :])
        _add(here + 1, b, inside & (4 * j + 1 < outputs)[None, :])
        _add(here + 2, c, inside & (4 * j + 2 < outputs)[None, :])
        _add(here + 3, d, inside & (4 * j + 3 < outputs)[None, :])


@triton.jit
def _signed(values, words):
    """Values, f64, times -1 where the first bit of a word is set."""
    sign = (words & -2147483648).to(tl.int64) << 32
    return (values.to(tl.int64, bitcast=True) ^ sign).to(tl.float64, bitcast=True)


@triton.jit
def _add(place, more, mask):
    tl.store(place, tl.load(place, mask=mask, other=0) + more, mask=mask)
