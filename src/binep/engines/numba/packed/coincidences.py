"""Learning by coincidences: the contrast of two phases, fused with Bop's step.

The contrast of a synapse is an integer, `d = sum over samples of D(a_above a_below)`; where it is 0
the momentum stays as it is (its decay is kept outside the array) and the synapse cannot flip. So
work is done only for neurons above that are active, or that changed between the phases.

A thread owns 64 neurons (or channels) above at a time: their momenta, their rows of packed weights
towards the layer below, and one whole word of every row towards the layer above. Of a dense
coupling of bits it owns some words of neurons below instead, and all of their synapses. Nothing is
shared.
"""

from typing import Any, NamedTuple

import numpy as np

from binep.engines.numba.counting import LEVELS, count_rows
from binep.engines.numba.jit import inner, kernel
from binep.engines.numba.packed.dense_events import ALL, NONE, ONE, is_on
from binep.engines.numba.rules import flip, move
from binep.engines.numba.simd import lowest, popcount, prefetch

Array = Any

_EMPTY = np.int32(-(2**31))
_PLUS, _MINUS = np.float32(1), np.float32(-1)
# Listed neurons, a word of the layer below, that take roughly as long as adding up whole rows.
_LISTED = 12
# Momenta are seldom in a cache: they are asked for so many entries ahead.
_AHEAD = 16
# A function is compiled again for every constant that it is given: these are none.
_int = np.int64


class Bop(NamedTuple):
    """One coupling's synapses and Bop's numbers for this step.

    Attributes:
        momentum, signs: (above, fan-in) as in the network.
        bits, up_at, up_words, down_at, down_words: packed signs, see `layout.Wiring`.
        columns: of a dense coupling, where each synapse's neuron stands in the packed layer below.
            Of a conv coupling it is empty, and a synapse is (channel below, tap), with `taps`.
        factor: gradient = factor * contrast. rate: gamma / decay. bound: tau / decay.
    """

    momentum: Array
    signs: Array
    bits: Array
    up_at: int
    up_words: int
    down_at: int
    down_words: int
    columns: Array
    taps: int
    factor: Any
    rate: Any
    bound: Any


@inner
def _patch(bop, up_row, i, down_row, j):
    """Flip one synapse in both packed matrices: bit i of a row up, bit j of a row down."""
    up = bop.up_at + up_row * bop.up_words + i // 64
    bop.bits[up] ^= ONE << np.uint64(i % 64)
    down = bop.down_at + down_row * bop.down_words + j // 64
    bop.bits[down] ^= ONE << np.uint64(j % 64)


@inner
def _bop_row(bop, i, first, contrast):
    """Bop on the synapses of neuron (or channel) i above, from `first` on; clears their contrast.

    Returns flips and `<signs, contrast>` of these.
    """
    end = first + len(contrast)
    momentum, signs = bop.momentum[i, first:end], bop.signs[i, first:end]
    flips, overlap = 0, 0
    for j in range(len(contrast)):
        m = move(momentum[j], contrast[j], bop.factor, bop.rate)
        momentum[j] = m
        w = signs[j]
        overlap += contrast[j] * np.int32(w)
        flips += flip(w, m, bop.bound)
    if flips:
        for j in range(len(contrast)):
            if flip(signs[j], momentum[j], bop.bound):
                _flip(bop, i, first + j)
    for j in range(len(contrast)):
        contrast[j] = 0
    return flips, overlap


@inner
def _flip(bop, i, j):
    """Flip synapse j of neuron i above, and its bit in the packed signs of both directions."""
    bop.signs[i, j] = -bop.signs[i, j]
    if len(bop.columns):
        _patch(bop, bop.columns[j], i, i, bop.columns[j])
    else:
        c, tap = j // bop.taps, j % bop.taps
        _patch(bop, tap * (64 * bop.down_words) + c, i, i * bop.taps + tap, c)


@kernel
def flip_share(bop, threads, thread):
    """Bop's flips for every synapse as it stands, without a gradient; returns how many."""
    above, flips = len(bop.signs), 0
    for chunk in range(thread, (above + 63) // 64, threads):
        for i in range(64 * chunk, min(64 * chunk + 64, above)):
            for j in range(bop.signs.shape[1]):
                if flip(bop.signs[i, j], bop.momentum[i, j], bop.bound):
                    _flip(bop, i, j)
                    flips += 1
    return flips


@kernel
def learn_contrast_share(bop, contrast, overlaps, threads, thread):
    """Learn from a contrast that is known already, (above, fan-in), as float32.

    Returns flips and entries touched; overlaps gets `<signs, contrast>` of each row.
    """
    above, fan_in, flips, touched = len(bop.signs), bop.signs.shape[1], 0, 0
    row = np.zeros(fan_in, np.int32)
    for chunk in range(thread, (above + 63) // 64, threads):
        for i in range(64 * chunk, min(64 * chunk + 64, above)):
            here = 0
            for j in range(fan_in):
                row[j] = np.int32(contrast[i, j])
                here += row[j] != 0
            if here:
                flipped, overlap = _bop_row(bop, i, 0, row)
                flips += flipped
                overlaps[i] += overlap
                touched += here
    return flips, touched


# --- dense, bits below --------------------------------------------------------------------------


@inner
def _differ(one, other):
    """Whether two rows of words do."""
    found = NONE
    for w in range(len(one)):
        found |= one[w] ^ other[w]
    return found != NONE


@inner
def _list_row(words, first, to):
    """List the positions of the bits that are 1, counted on from `first`."""
    count = 0
    for w in range(len(words)):
        rest = words[w]
        while rest:
            to[count] = first + 64 * w + lowest(rest)
            rest &= rest - ONE
            count += 1


@inner
def _bump(contrast, touched, count, j, change):
    """Add to an entry of the contrast; lists it when it is touched for the first time."""
    old = contrast[j]
    if old == _EMPTY:
        touched[count] = j
        contrast[j] = change
        return count + 1
    contrast[j] = old + change
    return count


@inner
def _bop_touched(bop, i, contrast, touched, count, synapse):
    """`_bop_row` for the listed entries only, given by their place in the packed layer below."""
    momentum = bop.momentum[i]
    row = bop.down_at + i * bop.down_words
    flips, overlap, coincidences = 0, 0, 0
    for n in range(count):
        prefetch(momentum, synapse[touched[min(n + _AHEAD, count - 1)]])
        j = touched[n]
        d = contrast[j]
        contrast[j] = _EMPTY
        if d == 0:
            continue
        coincidences += 1
        weight = _PLUS if is_on(bop.bits, 64 * row + j) else _MINUS
        overlap += d if weight > 0 else -d
        k = synapse[j]
        m = move(momentum[k], d, bop.factor, bop.rate)
        momentum[k] = m
        if flip(weight, m, bop.bound):
            _flip(bop, i, k)
            flips += 1
    return flips, overlap, coincidences


@inner
def _pack_row(to, words, others):
    """Write the bits that are 1 in `words` and 0 in `others`; returns how many."""
    total = NONE
    for w in range(len(words)):
        to[w] = words[w] & ~others[w]
        total += popcount(to[w])
    return _int(total)


@kernel
def learn_dense_share(
    bop, plus, minus, below, above, synapse, in_order, lists, overlaps, threads, thread
):
    """One step of Bop on a dense coupling of bits, on one of n parts of the layer below.

    `d_ij = sum_b (plus_i plus_j - minus_i minus_j)`: where neuron i is active in both phases only
    the bits below that differ count, otherwise all bits of the phase in which it is active. They
    are listed, and each adds to its entry; or, where that is less work, counted by whole rows.

    Args:
        plus, minus: packed activities of the two phases, (batch, words).
        below, above: first word and one past the last of the two layers.
        synapse: the column of the weight for each place in the packed layer below.
        in_order: whether the two are the same.
        lists: workspace, (threads, 4 batch neurons below).
        overlaps: `<signs, contrast>` of each neuron above, (threads, above), an output.
    Returns flips, and how many entries of the momentum were touched.
    """
    words = below[1] - below[0]
    begin, end = words * thread // threads, words * (thread + 1) // threads
    here = below[0] + begin, below[0] + end
    # Of samples that end both phases alike there is nothing to learn.
    taught, batch = np.empty(len(plus), np.int64), 0
    for b in range(len(plus)):
        if _differ(plus[b, above[0] : above[1]], minus[b, above[0] : above[1]]) or _differ(
            plus[b, here[0] : here[1]], minus[b, here[0] : here[1]]
        ):
            taught[batch] = b
            batch += 1
    nothing = np.zeros(end - begin, np.uint64)
    width = (end - begin + 7) // 8 * 8
    # Active below, of each of these: in plus, in minus, only in plus, only in minus; packed, behind
    # a row of zeros, and listed from `bounds` on, once a list is needed.
    listed, bounds = lists[thread], np.zeros(4 * batch + 1, np.int64)
    packed, is_listed = np.zeros((4 * batch + 1) * width, np.uint64), np.zeros(4 * batch, np.bool_)
    for s in range(batch):
        p = plus[taught[s], here[0] : here[1]]
        m = minus[taught[s], here[0] : here[1]]
        for which in range(4):
            one = p if which % 2 == 0 else m
            other = nothing if which < 2 else (m if which == 2 else p)
            at = (4 * s + which + 1) * width
            active = _pack_row(packed[at : at + end - begin], one, other)
            bounds[4 * s + which + 1] = bounds[4 * s + which] + active
    cells, all_flips, entries = 64 * words, 0, 0
    contrast = np.empty(cells, np.int32)
    for j in range(cells):
        contrast[j] = _EMPTY
    touched = np.empty(cells, np.int32)
    up, down = np.int32(1), np.int32(-1)
    planes = np.zeros((2 * LEVELS + 1) * width, np.uint64)
    rows, inverted = np.empty(2 * batch + 8, np.int64), np.empty(2 * batch + 8, np.uint64)
    chosen, totals = np.empty(2 * batch, np.int64), np.zeros(64 * width, np.int32)
    first = _int(64 * begin)
    synapses = max(0, min(64 * end, bop.signs.shape[1]) - first)
    for word in range(above[0], above[1]):
        union = np.uint64(0)
        for s in range(batch):
            union |= plus[taught[s], word] | minus[taught[s], word]
        while union:
            bit = lowest(union)
            union &= union - ONE
            i, count, lines, work, fallen = 64 * (word - above[0]) + bit, 0, 0, 0, 0
            for s in range(batch):
                in_plus = (plus[taught[s], word] >> np.uint64(bit)) & ONE
                in_minus = (minus[taught[s], word] >> np.uint64(bit)) & ONE
                for sign in range(2):
                    if not (in_plus if sign == 0 else in_minus):
                        continue
                    which = 4 * s + sign + (2 if in_plus and in_minus else 0)
                    some = bounds[which + 1] - bounds[which]
                    if some:
                        chosen[lines], work = which, work + some
                        rows[lines] = (which + 1) * width
                        inverted[lines] = NONE if sign == 0 else ALL
                        fallen += sign
                        lines += 1
            if in_order and work > _LISTED * (end - begin):
                # What pads a row is never active: its totals stay 0.
                count_rows(packed, rows, inverted, lines, width, planes, totals, 0, -fallen)
                for j in range(synapses):
                    entries += totals[j] != 0
                flips, overlaps[thread, i] = _bop_row(bop, i, first, totals[:synapses])
                all_flips += flips
                continue
            for n in range(lines):
                which = chosen[n]
                change = up if which % 2 == 0 else down
                if not is_listed[which]:
                    is_listed[which] = True
                    at = (which + 1) * width
                    _list_row(packed[at : at + end - begin], first, listed[bounds[which] :])
                for k in range(bounds[which], bounds[which + 1]):
                    count = _bump(contrast, touched, count, listed[k], change)
            flips, overlaps[thread, i], coincidences = _bop_touched(
                bop, i, contrast, touched, count, synapse
            )
            all_flips += flips
            entries += coincidences
    return all_flips, entries


# --- dense, pixels below ------------------------------------------------------------------------


@kernel
def learn_pixels_share(bop, pixels, plus, minus, above, overlaps, threads, thread):
    """One step of Bop on a dense coupling from clamped pixels, (batch, features).

    `d_ij = sum_b (plus_i - minus_i) x_j`: only neurons that differ between the phases count.
    Arguments and result as for `learn_dense_share`.
    """
    batch, features = pixels.shape
    all_flips, entries = 0, 0
    contrast = np.zeros(features, np.int32)
    for chunk in range(thread, above[1] - above[0], threads):
        word = above[0] + chunk
        union = np.uint64(0)
        for b in range(batch):
            union |= plus[b, word] ^ minus[b, word]
        while union:
            bit = lowest(union)
            union &= union - ONE
            i = 64 * chunk + bit
            for b in range(batch):
                p = (plus[b, word] >> np.uint64(bit)) & ONE
                if p == (minus[b, word] >> np.uint64(bit)) & ONE:
                    continue
                image, change = pixels[b], np.int32(1) if p else np.int32(-1)
                for j in range(features):
                    contrast[j] += change * np.int32(image[j])
            flips, overlaps[i] = _bop_row(bop, i, _int(0), contrast)
            all_flips += flips
            entries += features
    return all_flips, entries


# --- conv ---------------------------------------------------------------------------------------


class Window(NamedTuple):
    """Geometry of a conv coupling: kernel side, padding, layer below, columns of its map."""

    kernel: int
    padding: int
    rows: int
    cols: int
    channels: int
    words: int
    map_cols: int


@inner
def _add_window(contrast, window, bits, other, q, change):
    """Add `change` for each active neuron below in the window of map position q.

    `contrast` is (channels below, kernel, kernel), flat. With two different activities `bits` and
    `other`, what only the first has counts `change`, what only the second has `-change`.
    """
    side = window.kernel
    taps = side * side
    oy, ox = q // window.map_cols - window.padding, q % window.map_cols - window.padding
    for ky in range(max(0, -oy), min(side, window.rows - oy)):
        for kx in range(max(0, -ox), min(side, window.cols - ox)):
            at = ((oy + ky) * window.cols + ox + kx) * window.words
            tap = ky * side + kx
            for w in range(window.words):
                rest = bits[at + w] ^ other[at + w]
                while rest:
                    c = lowest(rest)
                    rest &= rest - ONE
                    on = is_on(bits, 64 * (at + w) + c)
                    contrast[(64 * w + c) * taps + tap] += change if on else -change


@inner
def _add_pixel_window(contrast, window, image, q, change):
    """Add `change` times the pixels in the window of map position q, (channels, rows, cols)."""
    side = window.kernel
    oy, ox = q // window.map_cols - window.padding, q % window.map_cols - window.padding
    for c in range(window.channels):
        for ky in range(max(0, -oy), min(side, window.rows - oy)):
            for kx in range(max(0, -ox), min(side, window.cols - ox)):
                x = np.int32(image[c, oy + ky, ox + kx])
                contrast[(c * side + ky) * side + kx] += change * x


@kernel
def learn_conv_share(
    bop, window, pixels, plus, minus, plus_switches, minus_switches, below, above, overlaps,
    threads, thread,
):  # fmt: skip
    """One step of Bop on a conv coupling: windows below, at the switches of active neurons above.

    Args:
        pixels: (batch, channels, rows, cols) if the layer below is the input, otherwise empty.
        plus, minus: packed activities, (batch, words).
        plus_switches, minus_switches: map position of each neuron, (batch, neurons).
        below, above: first word and one past the last of the two layers.
        overlaps: `<signs, contrast>` of each channel above, an output.
    Returns flips, and how many entries of the momentum were touched.
    """
    channels, taps = len(overlaps), window.kernel * window.kernel
    all_flips, entries = 0, 0
    words = (channels + 63) // 64
    places = (above[1] - above[0]) // words
    contrast = np.zeros(window.channels * taps, np.int32)
    nothing = np.zeros(below[1] - below[0], np.uint64)
    for i in range(channels):
        if (i // 64) % threads != thread:
            continue
        bit, touched = np.uint64(i % 64), False
        for b in range(len(plus)):
            p_below, m_below = plus[b, below[0] : below[1]], minus[b, below[0] : below[1]]
            for place in range(places):
                word = above[0] + place * words + i // 64
                p, m = (plus[b, word] >> bit) & ONE, (minus[b, word] >> bit) & ONE
                j = 64 * word + i % 64
                if len(pixels):
                    if p != m:
                        touched = True
                        change = np.int32(1) if p else np.int32(-1)
                        _add_pixel_window(contrast, window, pixels[b], plus_switches[b, j], change)
                elif p or m:
                    touched = True
                    p_q, m_q = plus_switches[b, j], minus_switches[b, j]
                    if p and m and p_q == m_q:
                        _add_window(contrast, window, p_below, m_below, p_q, np.int32(1))
                    else:
                        if p:
                            _add_window(contrast, window, p_below, nothing, p_q, np.int32(1))
                        if m:
                            _add_window(contrast, window, m_below, nothing, m_q, np.int32(-1))
        if touched:
            flips, overlaps[i] = _bop_row(bop, i, _int(0), contrast)
            all_flips += flips
            entries += window.channels * taps
    return all_flips, entries


@kernel
def contrast_bits(plus, minus):
    """`sum_b (plus - minus)` for every neuron, from packed activities, (batch, words)."""
    contrast = np.zeros(64 * plus.shape[1], np.int64)
    for b in range(len(plus)):
        for w in range(plus.shape[1]):
            rest = plus[b, w] ^ minus[b, w]
            while rest:
                j = lowest(rest)
                rest &= rest - ONE
                contrast[64 * w + j] += 1 if (plus[b, w] >> np.uint64(j)) & ONE else -1
    return contrast
