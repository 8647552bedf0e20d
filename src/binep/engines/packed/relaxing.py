"""Relaxation by events: a sample at a time, paying for the bits that change.

A sample's neurons stand in one row, layer after layer; a layer of images is channels-last, each
position padded to whole words of 64 channels. Sums over bits are counts of positive synapses,

    sum_j w_ij a_j  =  2 count_i - (active bits),     count_i = sum_j a_j [w_ij > 0],

so that a bit that changes adds or subtracts one row of packed weights. Rows are added upright, by
carry-save adders, and read out once a step. Between changes of bits neurons are independent of each
other: as long as none changes, each is stepped on its own (`_coast`).
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from binep.engines.packed.jit import inner, kernel
from binep.engines.packed.simd import (
    add_eight_rows,
    add_where,
    advance_free,
    advance_nudged,
    advance_windowed,
    expand,
    largest_change,
    lowest,
    popcount,
)

Array = Any

# Binary digits of the largest sum: float32 holds integers below 2**24.
LEVELS = 25
_FIRST_HORIZON = 4
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_NONE = np.uint64(0)


class Wiring(NamedTuple):
    """Where everything is. One entry a layer; coupling n joins layer n-1 to layer n, 0 the input.

    Attributes:
        start: first neuron of a layer, (layers + 1,); a multiple of 64.
        channels, rows, cols: of a layer; a vector is one position of many channels.
        words: of 64 channels a position.
        conv, kernel, padding, pool, map_rows, map_cols: of a coupling, before pooling.
        up_at, up_words: first word and row length in `Synapses.bits` of the rows that run over
            the layer above: one a neuron below (dense), or one a tap and channel below (conv).
        down_at, down_words: the same for the rows that run over the layer below: one a neuron
            above (dense), or one a channel above and tap (conv).
        counts_at: first entry in `Sample.counts`, maps_at in `Sample.present`, held_at in
            `Sample.held`.
        valid: the bits that stand for neurons, not for padding, (words,).
    """

    start: Array
    channels: Array
    rows: Array
    cols: Array
    words: Array
    conv: Array
    kernel: Array
    padding: Array
    pool: Array
    map_rows: Array
    map_cols: Array
    up_at: Array
    up_words: Array
    down_at: Array
    down_words: Array
    counts_at: Array
    maps_at: Array
    held_at: Array
    valid: Array


class Synapses(NamedTuple):
    """The weights. Neurons that only pad a layer have gain 0.

    Attributes:
        bits: [w > 0] of all couplings in both directions, packed; it begins with a row of zeros.
        gain: scale of the coupling from below, a neuron. bias: a neuron.
        gain_down: scale of the dense coupling to the layer above, a neuron. zero: no bias.
    """

    bits: Array
    gain: Array
    bias: Array
    gain_down: Array
    zero: Array


class Motion(NamedTuple):
    """`s <- clamp(keep s + take (rho'(s) drive + nudge), 0, 1)`, in float32.

    `windowed`: whether `rho'` is anything but 1. `live`: beta of a live nudge.
    """

    keep: Any
    take: Any
    threshold: Any
    sigma: Any
    slope: Any
    windowed: bool
    initial: Any


class Sample(NamedTuple):
    """All that changes while one sample relaxes; (neurons,) unless said otherwise.

    Attributes:
        s: states. ahead: states some steps on. bits: packed activity, (words,).
        drive: up + down. up, down: drives from below and from above.
        active: bits that are 1, (layers,).
        events, event_count: neurons whose bit changed in the last step, layer by layer.
        counts: positive synapses from active neurons below, int32, a map position and channel.
        present: active bits in the window of a map position, int32.
        held: positive synapses from active neurons above of a dense coupling, int32.
        tug, lean: the same for a conv coupling, where scales stand inside the sum, in float64:
            `down = tug - lean`; lean is one number a position.
        switches: the map position that each neuron's pool has chosen. placed: the one from which
            it now contributes to `tug`, or -1. lit: the bits of those that do, (words,).
        pull, target: the constant nudge and the target of the top layer, (top,).
        planes, rows, inverted, dirty, before, tags, flags, bounds: workspace.
    """

    s: Array
    ahead: Array
    bits: Array
    drive: Array
    up: Array
    down: Array
    active: Array
    events: Array
    event_count: Array
    counts: Array
    present: Array
    held: Array
    tug: Array
    lean: Array
    switches: Array
    placed: Array
    lit: Array
    pull: Array
    target: Array
    planes: Array
    rows: Array
    inverted: Array
    dirty: Array
    before: Array
    tags: Array
    flags: Array
    bounds: Array


class Found(NamedTuple):
    """What the phases left: free, nudged, and nudged the other way, (3, batch, ...).

    Attributes:
        bits: packed activity. switches: those of the hidden pools (or nothing, if none pools).
        top: states of the output neurons in the free phase, (batch, outputs).
        states: all states (or nothing, if not asked for).
        residuals: largest change of any neuron, of the last step or, traced, of every step.
        events: bits that changed, (batch,). steps: steps run with all neurons, (batch,).
    """

    bits: Array
    switches: Array
    top: Array
    states: Array
    residuals: Array
    events: Array
    steps: Array


# --- sums of packed rows ------------------------------------------------------------------------


@inner
def _digits(number):
    """How many binary digits a number has."""
    digits = 0
    while number > 0:
        number >>= 1
        digits += 1
    return digits


@inner
def _fill(array, begin, end, value):
    """`array[begin:end] = value`; Numba takes seconds to compile that.

    Loops run over slices from 0 on: where an index might be negative, they are not vectorised.
    """
    part = array[begin:end]
    for n in range(len(part)):
        part[n] = value


@inner
def _copy_into(array, begin, source, first, count):
    """`array[begin : begin + count] = source[first : first + count]`."""
    to, part = array[begin : begin + count], source[first : first + count]
    for n in range(len(to)):
        to[n] = part[n]


@inner
def _clear_planes(planes, words, levels):
    for n in range(levels):
        _fill(planes, 2 * n * words, (2 * n + 1) * words, 0)


@inner
def _add_planes(planes, at, wait, carry, onward, words):
    """Add two carries to a level of the counters; what they carry on goes to `onward`."""
    total, one = planes[at : at + words], planes[wait : wait + words]
    two, out = planes[carry : carry + words], planes[onward : onward + words]
    for w in range(len(total)):
        a, b, c = total[w], one[w], two[w]
        total[w] = a ^ b ^ c
        out[w] = (a & b) | ((a ^ b) & c)


@inner
def _add_rows(matrix, rows, inverted, count, words, planes, base, waiting):
    """Add `2^base` times the rows `matrix[rows[n] : rows[n] + words]` to upright counters.

    Bit k of the counters is `planes[2 k words : (2 k + 1) words]`; behind it stands a carry of the
    same worth that still waits for a second one, if bit k of `waiting` says so: so a carry moves
    on only half as often at each level. `rows` needs room for seven more than `count`.
    Returns the new `waiting`.
    """
    for n in range(count, (count + 7) // 8 * 8):
        rows[n] = 0
        inverted[n] = _NONE
    for n in range(0, count, 8):
        r = (
            rows[n],
            rows[n + 1],
            rows[n + 2],
            rows[n + 3],
            rows[n + 4],
            rows[n + 5],
            rows[n + 6],
            rows[n + 7],
        )
        m = (
            inverted[n],
            inverted[n + 1],
            inverted[n + 2],
            inverted[n + 3],
            inverted[n + 4],
            inverted[n + 5],
            inverted[n + 6],
            inverted[n + 7],
        )
        level = base + 3
        busy = (waiting >> level) & 1
        eights = (2 * level + 1) * words if busy == 0 else 2 * LEVELS * words
        for w in range(0, words, 8):
            shifted = (
                r[0] + w,
                r[1] + w,
                r[2] + w,
                r[3] + w,
                r[4] + w,
                r[5] + w,
                r[6] + w,
                r[7] + w,
            )
            add_eight_rows(planes, 2 * base * words + w, 2 * words, eights + w, matrix, shifted, m)
        while busy:
            at, wait, carry = 2 * level * words, (2 * level + 1) * words, 2 * LEVELS * words
            waiting &= ~(1 << level)
            level += 1
            busy = (waiting >> level) & 1
            onward = (2 * level + 1) * words if busy == 0 else carry
            _add_planes(planes, at, wait, carry, onward, words)
        waiting |= 1 << level
    return waiting


@inner
def _finish_planes(planes, words, levels, waiting):
    """Let all waiting carries move on."""
    moving = False
    carry = 2 * LEVELS * words
    for level in range(levels):
        at, wait = 2 * level * words, (2 * level + 1) * words
        waits = (waiting >> level) & 1
        if waits and moving:
            _add_planes(planes, at, wait, carry, carry, words)
        elif waits or moving:
            source = wait if waits else carry
            total, one = planes[at : at + words], planes[source : source + words]
            two = planes[carry : carry + words]
            for w in range(len(total)):
                a, b = total[w], one[w]
                total[w] = a ^ b
                two[w] = a & b
            moving = True


@inner
def _count_rows(matrix, sample, count, words, counts, at, offset):
    """`counts[at + j] += offset + sum_n (row_n ^ inverted_n)_j` for `64 words` columns j."""
    planes = sample.planes
    levels = _digits(count)
    # The first three bits are always written.
    _clear_planes(planes, words, max(levels, 3))
    waiting = _add_rows(matrix, sample.rows, sample.inverted, count, words, planes, 0, 0)
    _finish_planes(planes, words, levels, waiting)
    for w in range(words):
        expand(planes, w, 2 * words, levels, counts, at + 64 * w, offset)


@inner
def _scale(counts, at, active, gain, bias, to, first, count):
    """`to[j] = gain_j (2 count_j - active) + bias_j`, each operation rounded to float32."""
    end, active = first + count, np.int32(active)
    positive, gain, bias, to = (
        counts[at : at + count],
        gain[first:end],
        bias[first:end],
        to[first:end],
    )
    for j in range(len(to)):
        to[j] = gain[j] * np.float32(np.int32(2) * positive[j] - active) + bias[j]


# --- drives -------------------------------------------------------------------------------------


@inner
def _list_active(wiring, sample, layer, matrix_at, words):
    """List the rows of all active neurons of a layer; returns how many."""
    count = 0
    first = wiring.start[layer]
    for word in range(first // 64, wiring.start[layer + 1] // 64):
        rest = sample.bits[word]
        while rest:
            j = 64 * word + lowest(rest) - first
            rest &= rest - np.uint64(1)
            sample.rows[count] = matrix_at + j * words
            sample.inverted[count] = _NONE
            count += 1
    return count


@inner
def _list_events(wiring, sample, layer, matrix_at, words):
    """List the rows of all neurons of a layer that changed, inverted where their bit fell.

    Since `-b = (1 - b) - 1`, subtracting a row is adding its inverse and subtracting one; returns
    how many rows there are and how many are inverted.
    """
    count, fallen = sample.event_count[layer], 0
    first = wiring.start[layer]
    for n in range(count):
        j = sample.events[first + n]
        on = (sample.bits[j // 64] >> np.uint64(j % 64)) & np.uint64(1)
        sample.rows[n] = matrix_at + (j - first) * words
        sample.inverted[n] = _NONE if on else _ALL
        fallen += 0 if on else 1
    return count, fallen


@inner
def _sum_dense(wiring, synapses, sample, layer, matrix_at, words, counts, at, anew):
    """Bring the counts of a dense coupling up to date with a layer: by events, or from nothing."""
    if anew or sample.active[layer] < sample.event_count[layer]:
        _fill(counts, at, at + 64 * words, 0)
        count, fallen = _list_active(wiring, sample, layer, matrix_at, words), 0
    else:
        count, fallen = _list_events(wiring, sample, layer, matrix_at, words)
    if count:
        _count_rows(synapses.bits, sample, count, words, counts, at, -fallen)


@inner
def _sort_events(wiring, sample, link, anew):
    """Put the changed (or, anew, the active) neurons below a conv coupling in order of position.

    Neuron n has the rows `tags[n]` of its channel, inverted by `flags[n]`; those of position p are
    `bounds[p]` to `bounds[p + 1]`.
    """
    below, words = link - 1, wiring.up_words[link]
    first, cells = wiring.start[below], 64 * wiring.words[below]
    count = sample.event_count[below]
    if anew:
        count = _list_active(wiring, sample, below, 0, 1)
    place, begin = 0, 0
    sample.bounds[0] = 0
    for n in range(count):
        j = sample.rows[n] if anew else sample.events[first + n] - first
        while j >= begin + cells:
            place += 1
            begin += cells
            sample.bounds[place] = n
        at = first + j
        on = (sample.bits[at // 64] >> np.uint64(at % 64)) & np.uint64(1)
        sample.tags[n] = (j - begin) * words
        sample.flags[n] = _NONE if on else _ALL
    places = wiring.rows[below] * wiring.cols[below]
    _fill(sample.bounds, place + 1, places + 1, count)


@inner
def _sum_conv(wiring, synapses, sample, link, anew):
    """Bring the counts of a conv coupling up to date, a map position at a time; marks the dirty."""
    below = link - 1
    anew = anew or sample.active[below] < sample.event_count[below]
    side, pad = wiring.kernel[link], wiring.padding[link]
    words, cells = wiring.up_words[link], 64 * wiring.words[below]
    _sort_events(wiring, sample, link, anew)
    for oy in range(wiring.map_rows[link]):
        for ox in range(wiring.map_cols[link]):
            q = oy * wiring.map_cols[link] + ox
            near, fallen = 0, 0
            for y in range(max(0, oy - pad), min(wiring.rows[below], oy - pad + side)):
                for x in range(max(0, ox - pad), min(wiring.cols[below], ox - pad + side)):
                    tap = (y - oy + pad) * side + x - ox + pad
                    base = wiring.up_at[link] + tap * cells * words
                    place = y * wiring.cols[below] + x
                    for n in range(sample.bounds[place], sample.bounds[place + 1]):
                        sample.rows[near] = base + sample.tags[n]
                        sample.inverted[near] = sample.flags[n]
                        fallen += sample.flags[n] != _NONE
                        near += 1
            at = wiring.counts_at[link] + q * 64 * words
            if anew:
                _fill(sample.counts, at, at + 64 * words, 0)
                sample.present[wiring.maps_at[link] + q] = near
            else:
                sample.present[wiring.maps_at[link] + q] += near - 2 * fallen
            sample.dirty[q] = anew or near > 0
            if near:
                _count_rows(synapses.bits, sample, near, words, sample.counts, at, -fallen)


@inner
def _pool(wiring, synapses, sample, link):
    """`up = gain max(sums) + bias` and its switches; the first of equal sums in row-major order."""
    pool, wide, cells = wiring.pool[link], 64 * wiring.up_words[link], 64 * wiring.words[link]
    for py in range(wiring.rows[link]):
        for px in range(wiring.cols[link]):
            stale = False
            for k in range(pool * pool):
                q = (py * pool + k // pool) * wiring.map_cols[link] + px * pool + k % pool
                stale = stale or sample.dirty[q]
            if not stale:
                continue
            first = wiring.start[link] + (py * wiring.cols[link] + px) * cells
            corner = py * pool * wiring.map_cols[link] + px * pool
            end = first + cells
            best, chosen = sample.ahead[first:end], sample.switches[first:end]
            for k in range(pool * pool):
                q = np.int32(corner + k // pool * wiring.map_cols[link] + k % pool)
                at = wiring.counts_at[link] + q * wide
                positive = sample.counts[at : at + cells]
                present = sample.present[wiring.maps_at[link] + q]
                for c in range(len(best)):
                    total = np.float32(np.int32(2) * positive[c] - present)
                    more = k == 0 or total > best[c]
                    best[c] = total if more else best[c]
                    chosen[c] = q if more else chosen[c]
            gain, bias, up = (
                synapses.gain[first:end],
                synapses.bias[first:end],
                sample.up[first:end],
            )
            for c in range(len(up)):
                up[c] = gain[c] * best[c] + bias[c]


@inner
def _put(wiring, synapses, sample, link, c, q, amount):
    """Add `amount` times channel c's kernel, at map position q, to what is sent down."""
    below = link - 1
    side, pad, words = wiring.kernel[link], wiring.padding[link], wiring.down_words[link]
    oy, ox = q // wiring.map_cols[link], q % wiring.map_cols[link]
    for ky in range(side):
        y = oy + ky - pad
        if y < 0 or y >= wiring.rows[below]:
            continue
        for kx in range(side):
            x = ox + kx - pad
            if x < 0 or x >= wiring.cols[below]:
                continue
            place = y * wiring.cols[below] + x
            row = wiring.down_at[link] + (c * side * side + ky * side + kx) * words
            at = wiring.start[below] + place * 64 * wiring.words[below]
            for w in range(wiring.words[below]):
                add_where(sample.tug, at + 64 * w, synapses.bits[row + w], 2 * amount)
            sample.lean[wiring.start[below] // 64 + place] += amount


@inner
def _send_down_conv(wiring, synapses, sample, link, anew):
    """`down = sum of scale * kernel` over active neurons above, each from where its switch points.

    Sums of float32 scales of like size are exact in float64, in any order.
    """
    below, cells = link - 1, 64 * wiring.words[link]
    begin, end = wiring.start[link], wiring.start[link + 1]
    places = wiring.rows[below] * wiring.cols[below]
    moves = 0
    for word in range(begin // 64, end // 64):
        rest = sample.bits[word] | sample.lit[word]
        while rest:
            j = 64 * word + lowest(rest)
            rest &= rest - np.uint64(1)
            on = (sample.bits[word] >> np.uint64(j % 64)) & np.uint64(1)
            old, wanted = sample.placed[j], sample.switches[j] if on else np.int32(-1)
            moves += ((old >= 0) + (wanted >= 0)) if old != wanted else 0
    if anew or sample.active[link] < moves:
        _fill(sample.placed, begin, end, -1)
        _fill(sample.tug, wiring.start[below], wiring.start[link], 0)
        _fill(sample.lean, wiring.start[below] // 64, wiring.start[below] // 64 + places, 0)
    elif moves == 0:
        return False
    for word in range(begin // 64, end // 64):
        rest = sample.bits[word] | sample.lit[word]
        sample.lit[word] = sample.bits[word]
        while rest:
            j = 64 * word + lowest(rest)
            rest &= rest - np.uint64(1)
            on = (sample.bits[word] >> np.uint64(j % 64)) & np.uint64(1)
            wanted = sample.switches[j] if on else np.int32(-1)
            if sample.placed[j] != wanted:
                c, scale = (j - begin) % cells, np.float64(synapses.gain[j])
                if sample.placed[j] >= 0:
                    _put(wiring, synapses, sample, link, c, sample.placed[j], -scale)
                if wanted >= 0:
                    _put(wiring, synapses, sample, link, c, wanted, scale)
                sample.placed[j] = wanted
    wide = 64 * wiring.words[below]
    for place in range(places):
        at = wiring.start[below] + place * wide
        end, lean = at + wiring.channels[below], sample.lean[wiring.start[below] // 64 + place]
        tug, down = sample.tug[at:end], sample.down[at:end]
        for c in range(len(down)):
            down[c] = np.float32(tug[c] - lean)
    return True


@inner
def _update_drives(wiring, synapses, sample, anew):
    """Bring all drives up to date with the bits: `drive = up + down`.

    `anew`: from nothing, otherwise by the events since the last time.
    """
    layers = len(wiring.channels)
    for link in range(1, layers):
        below_changed = anew or sample.event_count[link - 1] > 0
        above_changed = anew or sample.event_count[link] > 0
        begin, count = wiring.start[link], wiring.start[link + 1] - wiring.start[link]
        under, under_count = wiring.start[link - 1], wiring.start[link] - wiring.start[link - 1]
        if wiring.conv[link]:
            if below_changed:
                _sum_conv(wiring, synapses, sample, link, anew)
                _pool(wiring, synapses, sample, link)
            if below_changed or above_changed:
                above_changed = _send_down_conv(wiring, synapses, sample, link, anew)
        else:
            if below_changed:
                words, at = wiring.up_words[link], wiring.counts_at[link]
                _sum_dense(
                    wiring,
                    synapses,
                    sample,
                    link - 1,
                    wiring.up_at[link],
                    words,
                    sample.counts,
                    at,
                    anew,
                )
                active = sample.active[link - 1]
                _scale(
                    sample.counts, at, active, synapses.gain, synapses.bias, sample.up, begin, count
                )
            if above_changed:
                words, at = wiring.down_words[link], wiring.held_at[link]
                _sum_dense(
                    wiring,
                    synapses,
                    sample,
                    link,
                    wiring.down_at[link],
                    words,
                    sample.held,
                    at,
                    anew,
                )
                active, gain, zero = sample.active[link], synapses.gain_down, synapses.zero
                _scale(sample.held, at, active, gain, zero, sample.down, under, under_count)
        if above_changed:
            _add_up(sample, under, under_count)
        if below_changed:
            _add_up(sample, begin, count)
    if anew:
        _add_up(sample, 0, wiring.start[1])


@inner
def _add_up(sample, begin, count):
    end = begin + count
    up, down, drive = sample.up[begin:end], sample.down[begin:end], sample.drive[begin:end]
    for j in range(len(drive)):
        drive[j] = up[j] + down[j]


# --- time ---------------------------------------------------------------------------------------


@inner
def _advance(motion, drive, pull, target, top, live, s, i, to, j, k):
    """One step of the 64 neurons k.., from `s[i:]` to `to[j:]`: new bits, whether any moved.

    Neurons from `top` on are nudged, by `pull + live (target - s)`.
    """
    keep, take, threshold = motion.keep, motion.take, motion.threshold
    sigma, slope = motion.sigma, motion.slope
    if k >= top:
        n = k - top
        return advance_nudged(
            s, i, to, j, drive, k, keep, take, threshold, sigma, slope, pull, target, n, live
        )
    if motion.windowed:
        return advance_windowed(s, i, to, j, drive, k, keep, take, threshold, sigma, slope)
    return advance_free(s, i, to, j, drive, k, keep, take, threshold)


@inner
def _step(wiring, motion, sample, begin, end, nudged, live, measure):
    """One step of all neurons of the layers from `begin` to `end`; notes the events.

    Returns how many bits changed and, if `measure`, the largest change of any state.
    """
    layers = len(wiring.channels)
    changed, residual = 0, np.float32(0)
    top = wiring.start[layers - 1] if nudged else wiring.start[layers]
    s, drive, pull, target = sample.s, sample.drive, sample.pull, sample.target
    for layer in range(begin, end):
        first, count, active = wiring.start[layer], 0, 0
        for word in range(first // 64, wiring.start[layer + 1] // 64):
            j = 64 * word
            if measure:
                _copy_into(sample.ahead, j, sample.s, j, 64)
            bits, _ = _advance(motion, drive, pull, target, top, live, s, j, s, j, j)
            bits &= wiring.valid[word]
            if measure:
                residual = max(residual, largest_change(sample.s, j, sample.ahead, j))
            rest = bits ^ sample.bits[word]
            if rest:
                rising = popcount(rest & bits)
                active += np.int64(rising) - np.int64(popcount(rest) - rising)
                sample.bits[word] = bits
                while rest:
                    sample.events[first + count] = j + lowest(rest)
                    rest &= rest - np.uint64(1)
                    count += 1
        sample.event_count[layer] = count
        sample.active[layer] += active
        changed += count
    return changed, residual


@inner
def _coast(wiring, motion, sample, nudged, live, steps, measure):
    """Up to `steps` steps of all neurons at constant drives, as long as no bit changes.

    Returns how many were taken and, if `measure` and all were, the last one's largest change.
    """
    layers = len(wiring.channels)
    neurons = wiring.start[layers]
    top = wiring.start[layers - 1] if nudged else neurons
    s, drive, pull, target = sample.ahead, sample.drive, sample.pull, sample.target
    before = sample.before
    taken, residual = steps, np.float32(0)
    for _ in range(2):
        allowed, residual = taken, np.float32(0)
        for j in range(0, neurons, 64):
            _copy_into(sample.ahead, j, sample.s, j, 64)
            for t in range(taken):
                last = measure and t + 1 == steps
                if last:
                    _copy_into(before, 0, sample.ahead, j, 64)
                bits, moved = _advance(motion, drive, pull, target, top, live, s, j, s, j, j)
                if bits & wiring.valid[j // 64] != sample.bits[j // 64]:
                    taken = t
                    break
                if not moved:
                    break
                if last:
                    residual = max(residual, largest_change(sample.ahead, j, before, 0))
        if taken == allowed:
            break
        # Some neuron changes its bit after fewer steps: take only those, all together.
    _copy_into(sample.s, 0, sample.ahead, 0, neurons)
    return taken, residual


@inner
def _relax(wiring, synapses, motion, sample, steps, nudged, live, early, trace):
    """`steps` steps of one sample from its state, whose drives are up to date, and so they end.

    `early`: take quiet stretches by `_coast`. `trace`: the residual of every step, or nothing.
    Returns the last step's residual, the bits that changed, and the steps taken by all neurons.
    """
    layers = len(wiring.channels)
    t, events, whole, residual = 0, 0, 0, np.float32(0)
    horizon = _FIRST_HORIZON
    while t < steps:
        measure = len(trace) > 0 or t + 1 == steps
        changed, residual = _step(wiring, motion, sample, 0, layers, nudged, live, measure)
        if len(trace) > 0:
            trace[t] = residual
        t += 1
        whole += 1
        if changed:
            events += changed
            horizon = _FIRST_HORIZON
            _update_drives(wiring, synapses, sample, changed == 0)
            continue
        while early and t < steps:
            stretch = min(horizon, steps - t)
            taken, residual = _coast(
                wiring, motion, sample, nudged, live, stretch, t + stretch == steps
            )
            t += taken
            if taken < stretch:
                break
            horizon *= 2
    return residual, events, whole


@inner
def _begin(wiring, synapses, motion, sample):
    """The state at t = 0, the same for every sample up to what the input drives."""
    layers = len(wiring.channels)
    neurons = wiring.start[layers]
    on = motion.initial >= motion.threshold
    _fill(sample.s, 0, neurons, 0)
    for word in range(neurons // 64):
        sample.bits[word] = wiring.valid[word] if on else _NONE
    _fill(sample.up, 0, neurons, 0)
    _fill(sample.down, 0, neurons, 0)
    for layer in range(layers):
        cells, sample.active[layer] = 64 * wiring.words[layer], 0
        for place in range(wiring.rows[layer] * wiring.cols[layer]):
            first = wiring.start[layer] + place * cells
            for j in range(first, first + wiring.channels[layer]):
                sample.s[j] = motion.initial
                sample.active[layer] += on
    _fill(sample.event_count, 0, layers, 0)
    _update_drives(wiring, synapses, sample, layers > 0)


@inner
def _begin_upper(wiring, synapses, motion, sample):
    """The first step of all layers but the first, in which no input is felt yet.

    What the first layer has to be stepped with, its `down` before this step, is left in its
    `ahead`. Returns how many bits changed.
    """
    layers, count = len(wiring.channels), wiring.start[1]
    _copy_into(sample.ahead, 0, sample.down, 0, count)
    changed, _ = _step(wiring, motion, sample, 1, layers, layers < 0, np.float32(0), layers < 0)
    sample.event_count[0] = 0
    _update_drives(wiring, synapses, sample, layers < 0)
    return changed


@inner
def _begin_first(wiring, synapses, motion, sample, before):
    """The first step of the first layer, all others having taken theirs; see `_begin_upper`."""
    layers, count = len(wiring.channels), wiring.start[1]
    up, down, drive = sample.up[:count], before[:count], sample.drive[:count]
    for j in range(len(drive)):
        drive[j] = up[j] + down[j]
    _fill(sample.event_count, 0, layers, 0)
    changed, _ = _step(wiring, motion, sample, 0, 1, layers < 0, np.float32(0), layers < 0)
    _update_drives(wiring, synapses, sample, layers < 0)
    _add_up(sample, 0, count)
    return changed


@inner
def _copy(source, to):
    """Give a sample the state of another."""
    _copy_into(to.s, 0, source.s, 0, len(to.s))
    _copy_into(to.bits, 0, source.bits, 0, len(to.bits))
    _copy_into(to.drive, 0, source.drive, 0, len(to.drive))
    _copy_into(to.up, 0, source.up, 0, len(to.up))
    _copy_into(to.down, 0, source.down, 0, len(to.down))
    _copy_into(to.active, 0, source.active, 0, len(to.active))
    _copy_into(to.counts, 0, source.counts, 0, len(to.counts))
    _copy_into(to.present, 0, source.present, 0, len(to.present))
    _copy_into(to.held, 0, source.held, 0, len(to.held))
    _copy_into(to.tug, 0, source.tug, 0, len(to.tug))
    _copy_into(to.lean, 0, source.lean, 0, len(to.lean))
    _copy_into(to.switches, 0, source.switches, 0, len(to.switches))
    _copy_into(to.placed, 0, source.placed, 0, len(to.placed))
    _copy_into(to.lit, 0, source.lit, 0, len(to.lit))


@numba.njit
def _nth(samples, n):
    """One of several samples that stand side by side."""
    return Sample(
        samples.s[n],
        samples.ahead[n],
        samples.bits[n],
        samples.drive[n],
        samples.up[n],
        samples.down[n],
        samples.active[n],
        samples.events[n],
        samples.event_count[n],
        samples.counts[n],
        samples.present[n],
        samples.held[n],
        samples.tug[n],
        samples.lean[n],
        samples.switches[n],
        samples.placed[n],
        samples.lit[n],
        samples.pull[n],
        samples.target[n],
        samples.planes[n],
        samples.rows[n],
        samples.inverted[n],
        samples.dirty[n],
        samples.before[n],
        samples.tags[n],
        samples.flags[n],
        samples.bounds[n],
    )


@inner
def _drive_from_pixels(wiring, synapses, sample, pixels, gain):
    """`up_1 = gain (W x) + bias` of a dense coupling for 8-bit pixels, (features,).

    `x = sum_k 2^k x_k`: the rows of pixels with bit k are added to the counters from bit k on.
    """
    words, count, total = wiring.up_words[0], wiring.start[1], 0
    for j in range(len(pixels)):
        total += np.int64(pixels[j])
    levels = _digits(total)
    _clear_planes(sample.planes, words, max(levels, 10))
    waiting = 0
    for k in range(8):
        rows = 0
        for j in range(len(pixels)):
            if (pixels[j] >> k) & 1:
                sample.rows[rows] = wiring.up_at[0] + j * words
                sample.inverted[rows] = _NONE
                rows += 1
        waiting = _add_rows(
            synapses.bits, sample.rows, sample.inverted, rows, words, sample.planes, k, waiting
        )
    _finish_planes(sample.planes, words, levels, waiting)
    at = wiring.counts_at[0]
    _fill(sample.counts, at, at + 64 * words, 0)
    for w in range(words):
        expand(sample.planes, w, 2 * words, levels, sample.counts, at + 64 * w, 0)
    _scale(sample.counts, at, total, gain, synapses.bias, sample.up, 0, count)


@inner
def _relax_phase(wiring, synapses, motion, sample, steps, strength, live, early, found, phase, b):
    """One phase of one sample, nudged if `strength` is not 0, and what it leaves."""
    traced = found.residuals.shape[2] > 1
    trace = found.residuals[phase, b] if traced else found.residuals[phase, b, :0]
    nudged = strength != 0
    if nudged:
        top = wiring.start[len(wiring.channels) - 1]
        for j in range(wiring.channels[-1]):
            pull = strength * (sample.target[j] - sample.s[top + j])
            sample.pull[j] = np.float32(0) if live else pull
    residual, events, whole = _relax(
        wiring,
        synapses,
        motion,
        sample,
        steps,
        nudged,
        strength if live else np.float32(0),
        early,
        trace,
    )
    if not traced:
        found.residuals[phase, b, 0] = residual
    found.events[b] += events
    found.steps[b] += whole
    for w in range(len(sample.bits)):
        found.bits[phase, b, w] = sample.bits[w]
    if found.switches.shape[1]:
        for j in range(len(sample.s)):
            found.switches[phase, b, j] = sample.switches[j]
    if found.states.shape[1]:
        for j in range(len(sample.s)):
            found.states[phase, b, j] = sample.s[j]


@kernel
def relax_share(
    wiring,
    synapses,
    motion,
    samples,
    drives,
    pixels,
    pixel_gain,
    targets,
    beta,
    live,
    steps,
    early,
    found,
    threads,
    thread,
):
    """Relax every n-th sample of a mini-batch, for one of n threads: freely, and then nudged.

    Args:
        samples: workspace, three for each thread.
        drives: `up_1(x)`, (batch, first layer); or nothing, with `pixels`, (batch, features), and
            the first coupling's `pixel_gain` a neuron in its place.
        targets: (batch, outputs). beta: strength of the nudge. live: whether it follows the state.
        steps: of the three phases, free, nudged, and nudged by -beta; 0 leaves one out.
        early: whether quiet stretches are taken at constant drives.
    """
    sample, first, kept = (
        _nth(samples, 3 * thread),
        _nth(samples, 3 * thread + 1),
        _nth(samples, 3 * thread + 2),
    )
    _begin(wiring, synapses, motion, first)
    # Traced, every step is the same for all layers.
    ahead = steps[0] > 1 and found.residuals.shape[2] == 1
    upper = _begin_upper(wiring, synapses, motion, first) if ahead else 0
    layers = len(wiring.channels)
    top, outputs = wiring.start[layers - 1], wiring.channels[layers - 1]
    for b in range(thread, len(targets), threads):
        _copy(first, sample)
        _copy_into(sample.target, 0, targets[b], 0, outputs)
        if len(drives):
            _copy_into(sample.up, 0, drives[b], 0, wiring.start[1])
        else:
            _drive_from_pixels(wiring, synapses, sample, pixels[b], pixel_gain)
        _add_up(sample, 0, wiring.start[1])
        if ahead:
            changed = _begin_first(wiring, synapses, motion, sample, first.ahead)
            found.events[b] += upper + changed
            found.steps[b] += 1
        for phase in range(3):
            if steps[phase]:
                if phase == 2:
                    _copy(kept, sample)
                strength = np.float32(0) if phase == 0 else (beta if phase == 1 else -beta)
                _relax_phase(
                    wiring,
                    synapses,
                    motion,
                    sample,
                    steps[phase] - (1 if ahead and phase == 0 else 0),
                    strength,
                    live,
                    early,
                    found,
                    phase,
                    b,
                )
                if phase == 0:
                    _copy_into(found.top[b], 0, sample.s, top, outputs)
                    if steps[2]:
                        _copy(sample, kept)
