"""Relaxation by events: a sample at a time, paying for the bits that change.

A sample's neurons stand in one row, layer after layer; a layer of images is channels-last, each
position padded to whole words of 64 channels. Sums over bits are counts of positive synapses,

    sum_j w_ij a_j  =  2 count_i - (active bits),     count_i = sum_j a_j [w_ij > 0],

so that a bit that changes adds or subtracts one row of packed weights. Rows are added upright, by
carry-save adders, and read out once a step. Between changes of bits neurons are independent of each
other. One whose bit cannot change before its drive does rests, and catches up with its steps, all
in one go, when the drive changes or its state is asked for.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from binep.engines.numba.jit import inner, kernel
from binep.engines.numba.packed.counting import (
    add_rows,
    binary_digits,
    clear_planes,
    copy_into,
    count_rows,
    fill,
    finish_planes,
)
from binep.engines.numba.simd import (
    add_where,
    advance_free,
    advance_many,
    advance_nudged,
    advance_windowed,
    expand,
    inclined,
    largest_change,
    lowest,
    popcount,
)

Array = Any

_FOREVER = 1 << 62
# Cycles that 512 bits take, and a row of them besides: to compare with others and count, and to be
# added to counters. Only their ratios matter, and roughly.
_COMPARE, _COMPARE_ROW = 3, 20
_ADD, _ADD_ROW = 4, 14
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
        gain_down: scale of the dense coupling to the layer above, a neuron.
    """

    bits: Array
    gain: Array
    bias: Array
    gain_down: Array


class Motion(NamedTuple):
    """`s <- clamp(keep s + take (rho'(s) drive + nudge), 0, 1)`, in float32.

    `windowed`: whether `rho'` is anything but 1. `below`: the largest number below the threshold.
    """

    keep: Any
    take: Any
    threshold: Any
    sigma: Any
    slope: Any
    windowed: bool
    initial: Any
    below: Any


class Sample(NamedTuple):
    """All that changes while one sample relaxes; (neurons,) unless said otherwise.

    Attributes:
        s: states. ahead: states some steps on. bits: packed activity, (words,).
        drive: up + down. up, down: drives from below and from above.
        active: bits that are 1, (layers,).
        flipped, event_count: the bits that changed in the last step, (words,); how many, (layers,).
        counts: positive synapses from active neurons below, int32, a map position and channel.
        present: active bits in the window of a map position, int32.
        held: positive synapses from active neurons above of a dense coupling, int32.
        tug, lean: the same for a conv coupling, where scales stand inside the sum, in float64:
            `down = tug - lean`; lean is one number a position.
        switches: the map position that each neuron's pool has chosen. placed: the one from which
            it now contributes to `tug`, or -1. lit: the bits of those that do, (words,).
        pull, target: the constant nudge and the target of the top layer, (top,).
        awake: whether a word of neurons is stepped every time, (words,). reached: up to which step
            one that rests has been taken; `_FOREVER` if it has come to a standstill. fresh: layers
            whose drives are changing, (layers,).
        digits: the pixels that are not 0, see `_list_digits`.
        planes, rows, inverted, dirty, before, tags, flags, bounds, filled, amounts,
            twice: workspace.
    """

    s: Array
    ahead: Array
    bits: Array
    drive: Array
    up: Array
    down: Array
    active: Array
    flipped: Array
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
    awake: Array
    reached: Array
    fresh: Array
    digits: Array
    planes: Array
    rows: Array
    inverted: Array
    dirty: Array
    before: Array
    tags: Array
    flags: Array
    bounds: Array
    filled: Array
    amounts: Array
    twice: Array


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


# A function is compiled again for every constant that it is given: these are none.
_int = np.int64


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
    count, fallen = 0, 0
    first = wiring.start[layer]
    for word in range(first // 64, wiring.start[layer + 1] // 64):
        rest, now = sample.flipped[word], sample.bits[word]
        while rest:
            bit = lowest(rest)
            rest &= rest - np.uint64(1)
            on = (now >> np.uint64(bit)) & np.uint64(1)
            sample.rows[count] = matrix_at + (64 * word + bit - first) * words
            sample.inverted[count] = _NONE if on else _ALL
            fallen += 0 if on else 1
            count += 1
    return count, fallen


@inner
def _count_common(bits, first, matrix, row, words):
    """How many bits are 1 in both of two rows of words."""
    one, other = bits[first : first + words], matrix[row : row + words]
    total = np.uint64(0)
    for w in range(len(one)):
        total += popcount(one[w] & other[w])
    return np.int32(total)


@inner
def _sum_dense(wiring, synapses, sample, layer, matrix_at, words, across, counts, at, anew):
    """Bring the counts of a dense coupling up to date with a layer: by events, or from nothing.

    From nothing either by rows of active neurons, `words` long, or, where that is less work, by
    comparing the layer's bits with the rows `across` that run over it: those of which neurons,
    their first word in the packed weights, and their length there.
    """
    few = min(sample.active[layer], sample.event_count[layer])
    if anew:
        few = sample.active[layer]
    targets, across_at, across_words = across
    length = (wiring.start[layer + 1] - wiring.start[layer]) // 64
    if targets * (length // 8 * _COMPARE + _COMPARE_ROW) < few * (words // 8 * _ADD + _ADD_ROW):
        first = wiring.start[layer] // 64
        for i in range(targets):
            row = across_at + i * across_words
            counts[at + i] = _count_common(sample.bits, first, synapses.bits, row, length)
        return
    if anew or sample.active[layer] < sample.event_count[layer]:
        fill(counts, at, at + 64 * words, 0)
        count, fallen = _list_active(wiring, sample, layer, matrix_at, words), 0
    else:
        count, fallen = _list_events(wiring, sample, layer, matrix_at, words)
    if count:
        count_rows(
            synapses.bits,
            sample.rows,
            sample.inverted,
            count,
            words,
            sample.planes,
            counts,
            at,
            -fallen,
        )


@inner
def _sort_events(wiring, sample, link, anew):
    """Put the changed (or, anew, the active) neurons below a conv coupling in order of position.

    Neuron n has the rows `tags[n]` of its channel, inverted by `flags[n]`; those of position p are
    `bounds[p]` to `bounds[p + 1]`.
    """
    below, words = link - 1, wiring.up_words[link]
    first, cells = wiring.start[below], 64 * wiring.words[below]
    if anew:
        count = _list_active(wiring, sample, below, _int(0), _int(1))
    else:
        count, _ = _list_events(wiring, sample, below, _int(0), _int(1))
    place, begin = 0, 0
    sample.bounds[0] = 0
    for n in range(count):
        j = sample.rows[n]
        while j >= begin + cells:
            place += 1
            begin += cells
            sample.bounds[place] = n
        at = first + j
        on = (sample.bits[at // 64] >> np.uint64(at % 64)) & np.uint64(1)
        sample.tags[n] = (j - begin) * words
        sample.flags[n] = _NONE if on else _ALL
    places = wiring.rows[below] * wiring.cols[below]
    fill(sample.bounds, place + 1, places + 1, count)


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
                fill(sample.counts, at, at + 64 * words, 0)
                sample.present[wiring.maps_at[link] + q] = near
            else:
                sample.present[wiring.maps_at[link] + q] += near - 2 * fallen
            sample.dirty[q] = anew or near > 0
            if near:
                count_rows(
                    synapses.bits,
                    sample.rows,
                    sample.inverted,
                    near,
                    words,
                    sample.planes,
                    sample.counts,
                    at,
                    -fallen,
                )


@inner
def _pool(wiring, synapses, sample, link):
    """`up = gain max(sums) + bias` and its switches; the first of equal sums in row-major order."""
    pool, wide, cells = (wiring.pool[link], 64 * wiring.up_words[link], 64 * wiring.words[link])
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
def _count_moves(wiring, sample, link):
    """How many neurons above a conv coupling are to be sent from a map position, or no longer.

    Leaves in `bounds[q + 1]` how many of them at position q.
    """
    fill(sample.bounds, 0, wiring.map_rows[link] * wiring.map_cols[link] + 1, 0)
    moves = 0
    for word in range(wiring.start[link] // 64, wiring.start[link + 1] // 64):
        rest = sample.bits[word] | sample.lit[word]
        while rest:
            j = 64 * word + lowest(rest)
            rest &= rest - np.uint64(1)
            on = (sample.bits[word] >> np.uint64(j % 64)) & np.uint64(1)
            old, wanted = sample.placed[j], sample.switches[j] if on else np.int32(-1)
            if old != wanted:
                if old >= 0:
                    sample.bounds[old + 1] += 1
                    moves += 1
                if wanted >= 0:
                    sample.bounds[wanted + 1] += 1
                    moves += 1
    return moves


@inner
def _sort_moves(wiring, synapses, sample, link):
    """Put the moves in order of map position, and do them: `placed` and `lit` are up to date then.

    Those at position q are `bounds[q]` to `bounds[q + 1]`: the rows `tags` of their channel, and
    in `amounts` their scale, taken away where it is negative.
    """
    positions = wiring.map_rows[link] * wiring.map_cols[link]
    begin, cells = wiring.start[link], 64 * wiring.words[link]
    length = wiring.kernel[link] * wiring.kernel[link] * wiring.down_words[link]
    for q in range(positions):
        sample.bounds[q + 1] += sample.bounds[q]
        sample.filled[q] = sample.bounds[q]
    for word in range(begin // 64, wiring.start[link + 1] // 64):
        rest = sample.bits[word] | sample.lit[word]
        sample.lit[word] = sample.bits[word]
        while rest:
            j = 64 * word + lowest(rest)
            rest &= rest - np.uint64(1)
            on = (sample.bits[word] >> np.uint64(j % 64)) & np.uint64(1)
            old, wanted = sample.placed[j], sample.switches[j] if on else np.int32(-1)
            if old == wanted:
                continue
            row, scale = (j - begin) % cells * length, np.float64(synapses.gain[j])
            if old >= 0:
                sample.tags[sample.filled[old]] = row
                sample.amounts[sample.filled[old]] = -scale
                sample.filled[old] += 1
            if wanted >= 0:
                sample.tags[sample.filled[wanted]] = row
                sample.amounts[sample.filled[wanted]] = scale
                sample.filled[wanted] += 1
            sample.placed[j] = wanted


@inner
def _send_down_conv(wiring, synapses, sample, link, anew):
    """`down = sum of scale * kernel` over active neurons above, each from where its switch points.

    Sums of float32 scales of like size are exact in float64, in any order. Returns whether any
    changed.
    """
    below = link - 1
    side, pad, words = wiring.kernel[link], wiring.padding[link], wiring.down_words[link]
    map_rows, map_cols = wiring.map_rows[link], wiring.map_cols[link]
    rows, cols, wide = wiring.rows[below], wiring.cols[below], 64 * wiring.words[below]
    leaning = wiring.start[below] // 64
    moves = _count_moves(wiring, sample, link)
    anew = anew or sample.active[link] < moves
    if anew:
        fill(sample.placed, wiring.start[link], wiring.start[link + 1], -1)
        fill(sample.tug, wiring.start[below], wiring.start[link], 0)
        fill(sample.lean, leaning, leaning + rows * cols, 0)
        _count_moves(wiring, sample, link)
    elif moves == 0:
        return False
    _sort_moves(wiring, synapses, sample, link)
    for place in range(rows * cols):
        y, x = place // cols + pad, place % cols + pad
        near, lean = 0, np.float64(0)
        for oy in range(max(0, y - side + 1), min(map_rows, y + 1)):
            for ox in range(max(0, x - side + 1), min(map_cols, x + 1)):
                q = oy * map_cols + ox
                base = wiring.down_at[link] + ((y - oy) * side + x - ox) * words
                for n in range(sample.bounds[q], sample.bounds[q + 1]):
                    sample.rows[near] = base + sample.tags[n]
                    sample.twice[near] = 2 * sample.amounts[n]
                    lean += sample.amounts[n]
                    near += 1
        if near == 0 and not anew:
            continue
        at = wiring.start[below] + place * wide
        for w in range(words):
            add_where(sample.tug, at + 64 * w, synapses.bits, w, sample.rows, sample.twice, near)
        sample.lean[leaning + place] += lean
        lean, end = sample.lean[leaning + place], at + wiring.channels[below]
        tug, down = sample.tug[at:end], sample.down[at:end]
        for c in range(len(down)):
            down[c] = np.float32(tug[c] - lean)
    return True


@inner
def _update_drives(wiring, synapses, motion, sample, anew, now, nudged, early):
    """Bring all drives up to date with the bits: `drive = up + down`, after `now` steps.

    `anew`: from nothing, otherwise by the events since the last time. Neurons that rest catch up
    before their drives change.
    """
    layers = len(wiring.channels)
    fill(sample.fresh, 0, layers, 0)
    for link in range(1, layers):
        below_changed = anew or sample.event_count[link - 1] > 0
        above_changed = anew or sample.event_count[link] > 0
        begin, count = wiring.start[link], wiring.start[link + 1] - wiring.start[link]
        under, under_count = wiring.start[link - 1], wiring.start[link] - wiring.start[link - 1]
        if below_changed:
            _catch_up(wiring, motion, sample, link, now)
        if above_changed or (below_changed and wiring.conv[link]):
            _catch_up(wiring, motion, sample, link - 1, now)
        if wiring.conv[link]:
            if below_changed:
                _sum_conv(wiring, synapses, sample, link, anew)
                _pool(wiring, synapses, sample, link)
            if below_changed or above_changed:
                above_changed = _send_down_conv(wiring, synapses, sample, link, anew)
            if above_changed:
                _add_up(sample, under, under_count)
            if below_changed:
                _add_up(sample, begin, count)
            continue
        up_at, up_words = wiring.up_at[link], wiring.up_words[link]
        down_at, down_words = wiring.down_at[link], wiring.down_words[link]
        if below_changed:
            at, across = wiring.counts_at[link], (wiring.channels[link], down_at, down_words)
            below, counts = link - 1, sample.counts
            _sum_dense(wiring, synapses, sample, below, up_at, up_words, across, counts, at, anew)
            active = sample.active[below]
            _drive_up(counts, at, active, synapses, sample, begin, count)
        if above_changed:
            at, across = wiring.held_at[link], (under_count, up_at, up_words)
            held = sample.held
            _sum_dense(wiring, synapses, sample, link, down_at, down_words, across, held, at, anew)
            active = sample.active[link]
            _drive_down(held, at, active, synapses, sample, under, under_count)
    if anew:
        _add_up(sample, _int(0), wiring.start[1])
    for layer in range(layers):
        if sample.fresh[layer]:
            _wake(wiring, motion, sample, layer, now, nudged, early)


@inner
def _drive_up(counts, at, active, synapses, sample, first, count):
    """`up_j = gain_j (2 count_j - active) + bias_j`, rounded each time; `drive = up + down`."""
    end, active = first + count, np.int32(active)
    positive, gain, bias = (
        counts[at : at + count],
        synapses.gain[first:end],
        synapses.bias[first:end],
    )
    up, down, drive = (sample.up[first:end], sample.down[first:end], sample.drive[first:end])
    for j in range(len(drive)):
        u = gain[j] * np.float32(np.int32(2) * positive[j] - active) + bias[j]
        up[j] = u
        drive[j] = u + down[j]


@inner
def _drive_down(held, at, active, synapses, sample, first, count):
    """`down_j = gain (2 held_j - active)`, rounded each time; `drive = up + down`."""
    end, active = first + count, np.int32(active)
    positive, gain = held[at : at + count], synapses.gain_down[first:end]
    up, down, drive = (sample.up[first:end], sample.down[first:end], sample.drive[first:end])
    for j in range(len(drive)):
        d = gain[j] * np.float32(np.int32(2) * positive[j] - active)
        down[j] = d
        drive[j] = up[j] + d


@inner
def _add_up(sample, begin, count):
    end = begin + count
    up, down, drive = (sample.up[begin:end], sample.down[begin:end], sample.drive[begin:end])
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
def _stays(motion, sample, word, valid):
    """Whether no bit of a word of neurons can change as long as their drives do not.

    A step takes a higher state no lower than a lower one: every operation, rounded, is monotone.
    So states above the threshold stay there if one right at it does, and those below stay there
    if the highest of them does.
    """
    keep, take, threshold = motion.keep, motion.take, motion.threshold
    bits, drive = sample.bits[word], sample.drive
    up = inclined(threshold, drive, 64 * word, keep, take, threshold)
    still_up = inclined(motion.below, drive, 64 * word, keep, take, threshold)
    return (bits & ~up) | (~bits & still_up & valid) == _NONE


@inner
def _wake(wiring, motion, sample, layer, now, nudged, early):
    """After a change of drives, or of the nudge: which words have to be stepped, which can rest."""
    layers = len(wiring.channels)
    watched = motion.windowed or not early or (nudged and layer == layers - 1)
    for word in range(wiring.start[layer] // 64, wiring.start[layer + 1] // 64):
        sample.awake[word] = watched or not _stays(motion, sample, word, wiring.valid[word])
        sample.reached[word] = now
    sample.fresh[layer] = 0


@inner
def _catch_up(wiring, motion, sample, layer, now):
    """Take the neurons of a layer that rest through the steps that they have missed."""
    for word in range(wiring.start[layer] // 64, wiring.start[layer + 1] // 64):
        missed = now - sample.reached[word]
        if missed > 0 and not sample.awake[word]:
            advance_many(sample.s, 64 * word, sample.drive, missed, motion.keep, motion.take)
            sample.reached[word] = now
    sample.fresh[layer] = 1


@inner
def _step(wiring, motion, sample, begin, end, nudged, live, now, early, measure):
    """Step number `now` of the layers from `begin` to `end`, of all words that are awake.

    If `measure`, of all words: those that rest have caught up. Returns how many bits changed, the
    largest change of any state, if measured, and how many words were awake: of nudged outputs, and
    others.
    """
    layers = len(wiring.channels)
    changed, residual, pulled, awake = 0, np.float32(0), 0, 0
    top = wiring.start[layers - 1] if nudged else wiring.start[layers]
    s, drive, pull, target = sample.s, sample.drive, sample.pull, sample.target
    for layer in range(begin, end):
        first, count, active = wiring.start[layer], 0, 0
        rests = early and not motion.windowed and not (nudged and layer == layers - 1)
        for word in range(first // 64, wiring.start[layer + 1] // 64):
            sample.flipped[word] = _NONE
            if not (sample.awake[word] or measure):
                continue
            j = 64 * word
            pulled += sample.awake[word] and j >= top
            awake += sample.awake[word] and j < top
            if measure:
                copy_into(sample.before, 0, sample.s, j, 64)
            bits, moved = _advance(motion, drive, pull, target, top, live, s, j, s, j, j)
            bits &= wiring.valid[word]
            if measure:
                residual = max(residual, largest_change(sample.s, j, sample.before, 0))
            rest = bits ^ sample.bits[word]
            if rest:
                sample.flipped[word] = rest
                active += np.int64(popcount(bits)) - np.int64(popcount(sample.bits[word]))
                count += np.int64(popcount(rest))
                sample.bits[word] = bits
                if rests:
                    sample.awake[word] = not _stays(motion, sample, word, wiring.valid[word])
                sample.reached[word] = now + 1
            elif early and not moved:
                sample.awake[word] = False
                sample.reached[word] = _FOREVER
            elif measure:
                sample.reached[word] = now + 1
        sample.event_count[layer] = count
        sample.active[layer] += active
        changed += count
    return changed, residual, pulled, awake


@inner
def _relax(wiring, synapses, motion, sample, steps, nudged, live, early, final, trace):
    """`steps` steps of one sample from its state, whose drives are up to date, and so they end.

    `early`: let neurons rest. `final`: whether the states at the end are asked for and the last
    change of any. `trace`: the residual of every step, or nothing.
    Returns the last step's residual, the bits that changed, and the steps in which bits changed or
    neurons that are not nudged had to be stepped.
    """
    layers = len(wiring.channels)
    t, events, whole, residual = 0, 0, 0, np.float32(0)
    for layer in range(layers):
        _wake(wiring, motion, sample, layer, _int(0), nudged, early)
    while t < steps:
        measure = len(trace) > 0 or (final and t + 1 == steps)
        if measure:
            for layer in range(layers):
                _catch_up(wiring, motion, sample, layer, t)
        changed, residual, pulled, awake = _step(
            wiring, motion, sample, _int(0), layers, nudged, live, t, early, measure
        )
        if len(trace) > 0:
            trace[t] = residual
        t += 1
        whole += awake > 0 or changed > 0 or not early
        if changed:
            events += changed
            _update_drives(wiring, synapses, motion, sample, changed == 0, t, nudged, early)
        elif pulled + awake == 0:
            # Nothing will ever change but the states of those that rest.
            t = max(t, steps - 1) if final else steps
    return residual, events, whole


@inner
def _begin(wiring, synapses, motion, sample, ahead):
    """The state at t = 0, the same for every sample up to what the input drives.

    If `ahead`, with the first step of all layers but the first, in which no input is felt yet: what
    the first layer has to be stepped with, its `down` before that step, is left in its `ahead`.
    Returns how many bits changed.
    """
    layers = len(wiring.channels)
    neurons, count = wiring.start[layers], wiring.start[1]
    on = motion.initial >= motion.threshold
    fill(sample.s, 0, neurons, 0)
    for word in range(neurons // 64):
        sample.bits[word] = wiring.valid[word] if on else _NONE
    fill(sample.up, 0, neurons, 0)
    fill(sample.down, 0, neurons, 0)
    for layer in range(layers):
        cells, sample.active[layer] = 64 * wiring.words[layer], 0
        for place in range(wiring.rows[layer] * wiring.cols[layer]):
            first = wiring.start[layer] + place * cells
            for j in range(first, first + wiring.channels[layer]):
                sample.s[j] = motion.initial
                sample.active[layer] += on
    fill(sample.event_count, 0, layers, 0)
    fill(sample.awake, 0, neurons // 64, True)
    never = layers < 0
    _update_drives(wiring, synapses, motion, sample, not never, _int(0), never, never)

    if not ahead:
        return 0
    copy_into(sample.ahead, 0, sample.down, 0, count)
    changed, _, _, _ = _step(
        wiring, motion, sample, _int(1), layers, never, np.float32(0), _int(0), never, never
    )
    sample.event_count[0] = 0
    _update_drives(wiring, synapses, motion, sample, never, _int(0), never, never)
    return changed


@inner
def _begin_first(wiring, synapses, motion, sample, before):
    """The first step of the first layer, all others having taken theirs; see `_begin`."""
    layers, count = len(wiring.channels), wiring.start[1]
    never = layers < 0
    up, down, drive = sample.up[:count], before[:count], sample.drive[:count]
    for j in range(len(drive)):
        drive[j] = up[j] + down[j]
    fill(sample.event_count, 0, layers, 0)
    fill(sample.awake, 0, len(sample.awake), True)
    changed, _, _, _ = _step(
        wiring, motion, sample, _int(0), _int(1), never, np.float32(0), _int(0), never, never
    )
    _update_drives(wiring, synapses, motion, sample, never, _int(0), never, never)
    _add_up(sample, _int(0), count)
    return changed


@inner
def _copy(source, to):
    """Give a sample the state of another."""
    copy_into(to.s, 0, source.s, 0, len(to.s))
    copy_into(to.bits, 0, source.bits, 0, len(to.bits))
    copy_into(to.drive, 0, source.drive, 0, len(to.drive))
    copy_into(to.up, 0, source.up, 0, len(to.up))
    copy_into(to.down, 0, source.down, 0, len(to.down))
    copy_into(to.active, 0, source.active, 0, len(to.active))
    copy_into(to.counts, 0, source.counts, 0, len(to.counts))
    copy_into(to.present, 0, source.present, 0, len(to.present))
    copy_into(to.held, 0, source.held, 0, len(to.held))
    copy_into(to.tug, 0, source.tug, 0, len(to.tug))
    copy_into(to.lean, 0, source.lean, 0, len(to.lean))
    copy_into(to.switches, 0, source.switches, 0, len(to.switches))
    copy_into(to.placed, 0, source.placed, 0, len(to.placed))
    copy_into(to.lit, 0, source.lit, 0, len(to.lit))


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
        samples.flipped[n],
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
        samples.awake[n],
        samples.reached[n],
        samples.fresh[n],
        samples.digits[n],
        samples.planes[n],
        samples.rows[n],
        samples.inverted[n],
        samples.dirty[n],
        samples.before[n],
        samples.tags[n],
        samples.flags[n],
        samples.bounds[n],
        samples.filled[n],
        samples.amounts[n],
        samples.twice[n],
    )


@inner
def _list_digits(sample, pixels):
    """Split pixels into digits -1, 0, 1: `x = sum_k 2^k digit_k` with as few as can be that count.

    Bright pixels are `256 - something small`: two or three rows to add instead of eight. Leaves
    the pixels that are not 0 in `sample.digits`: their place, their positive digits and their
    negative ones, shifted by 32, 16 and 0 bits. Returns how many there are.
    """
    count = 0
    for j in range(len(pixels)):
        x = np.int64(pixels[j])
        triple = 3 * x
        sample.digits[count] = (j << 32) | (((triple & ~x) >> 1) << 16) | ((x & ~triple) >> 1)
        count += x != 0
    return count


@inner
def _drive_from_pixels(wiring, synapses, sample, pixels, gain):
    """`up_1 = gain (W x) + bias` of a dense coupling for 8-bit pixels, (features,).

    The rows of pixels with digit k are added to the counters from bit k on, inverted where the
    digit is -1; see `_list_events`.
    """
    words, count, total = wiring.up_words[0], wiring.start[1], 0
    lit, largest, excess = _list_digits(sample, pixels), 0, 0
    for n in range(lit):
        positive, negative = ((sample.digits[n] >> 16) & 0xFFFF, sample.digits[n] & 0xFFFF)
        largest += positive + negative
        excess += negative
        total += positive - negative
    levels = binary_digits(largest)
    clear_planes(sample.planes, words, max(levels, 11))
    waiting = 0
    for k in range(9):
        rows = 0
        for n in range(lit):
            entry = sample.digits[n]
            negative = (entry >> k) & 1
            sample.rows[rows] = wiring.up_at[0] + (entry >> 32) * words
            sample.inverted[rows] = _ALL if negative else _NONE
            rows += negative | ((entry >> (16 + k)) & 1)
        waiting = add_rows(
            synapses.bits, sample.rows, sample.inverted, rows, words, sample.planes, k, waiting
        )
    finish_planes(sample.planes, words, levels, waiting)
    at = wiring.counts_at[0]
    fill(sample.counts, at, at + 64 * words, -excess)
    for w in range(words):
        expand(sample.planes, w, 2 * words, levels, sample.counts, at + 64 * w, 0)
    positive, up, bias = (sample.counts[at : at + count], sample.up[:count], synapses.bias[:count])
    gain, total = gain[:count], np.int32(total)
    for j in range(len(up)):
        up[j] = gain[j] * np.float32(np.int32(2) * positive[j] - total) + bias[j]


@inner
def _nudge(wiring, sample, strength, live):
    """Set the constant part of a phase's nudge, nothing if it is `live`."""
    top = wiring.start[len(wiring.channels) - 1]
    for j in range(wiring.channels[-1]):
        pull = strength * (sample.target[j] - sample.s[top + j])
        sample.pull[j] = np.float32(0) if live else pull


@inner
def _handicap(wiring, sample, margin):
    """Let the right class's outputs be driven less, and the others more: from above, as it were."""
    top, outputs = wiring.start[len(wiring.channels) - 1], wiring.channels[-1]
    for j in range(outputs):
        sample.down[top + j] = margin * (np.float32(1) - np.float32(2) * sample.target[j])
    _add_up(sample, top, outputs)


@inner
def _note(sample, found, phase, b):
    """Note what a phase of sample b has left."""
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
    margin,
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
        margin: what holds the right class back, and helps the others.
        steps: of the three phases, free, nudged, and nudged by -beta; 0 leaves one out.
        early: whether neurons whose bits cannot change rest until their drives do.
    """
    sample, first, kept = (
        _nth(samples, 3 * thread),
        _nth(samples, 3 * thread + 1),
        _nth(samples, 3 * thread + 2),
    )
    # Traced, every step is the same for all layers; with a margin none is for all samples.
    traced = found.residuals.shape[2] > 1
    ahead = steps[0] > 1 and not traced and margin == 0
    upper = _begin(wiring, synapses, motion, first, ahead)
    layers = len(wiring.channels)
    top, outputs = wiring.start[layers - 1], wiring.channels[layers - 1]
    for b in range(thread, len(targets), threads):
        _copy(first, sample)
        copy_into(sample.target, 0, targets[b], 0, outputs)
        if margin:
            _handicap(wiring, sample, margin)
        if len(drives):
            copy_into(sample.up, 0, drives[b], 0, wiring.start[1])
        else:
            _drive_from_pixels(wiring, synapses, sample, pixels[b], pixel_gain)
        _add_up(sample, _int(0), wiring.start[1])
        if ahead:
            changed = _begin_first(wiring, synapses, motion, sample, first.ahead)
            found.events[b] += upper + changed
            found.steps[b] += 1
        for phase in range(3):
            if steps[phase]:
                if phase == 2:
                    _copy(kept, sample)
                strength = np.float32(0) if phase == 0 else (beta if phase == 1 else -beta)
                nudged, final = strength != 0, phase == 0 or found.states.shape[1] > 0
                _nudge(wiring, sample, strength, live)
                residual, events, whole = _relax(
                    wiring,
                    synapses,
                    motion,
                    sample,
                    steps[phase] - (1 if ahead and phase == 0 else 0),
                    nudged,
                    strength if live else np.float32(0),
                    early,
                    final,
                    found.residuals[phase, b] if traced else found.residuals[phase, b, :0],
                )
                if not traced:
                    found.residuals[phase, b, 0] = residual
                found.events[b] += events
                found.steps[b] += whole
                _note(sample, found, phase, b)
                if phase == 0:
                    copy_into(found.top[b], 0, sample.s, top, outputs)
                    if steps[2]:
                        _copy(sample, kept)
