"""A dense coupling's sums by events: only bits that change cost time.

Sums over bits are counts of positive synapses,

    sum_j w_ij a_j  =  2 count_i - (active bits),     count_i = sum_j a_j [w_ij > 0],

so that a bit that changes adds or subtracts one row of packed signs. Rows are added by carry-save
adders to counters stored bit by bit, and read out once per step.
"""

from typing import Any, NamedTuple

import numpy as np

from binep.engines.numba.counting import (
    add_rows,
    binary_digits,
    clear_planes,
    count_rows,
    fill,
    finish_planes,
)
from binep.engines.numba.jit import inner
from binep.engines.numba.simd import expand, lowest, popcount

Array = Any

# Cycles that 512 bits take, and a row of them besides: to compare with others and count, and to be
# added to counters. Only their ratios matter, and roughly.
_COMPARE, _COMPARE_ROW = 3, 20
_ADD, _ADD_ROW = 4, 14
ALL, NONE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0)
ONE = np.uint64(1)


class Synapses(NamedTuple):
    """The weights. Neurons that only pad a layer have gain 0.

    Attributes:
        bits: [w > 0] of all couplings in both directions, packed; it begins with a row of zeros.
        gain: scale of the coupling from below, a neuron. bias: a neuron.
        gain_down: scale of the dense coupling to the layer above times its feedback, a neuron.
        feedback: what is sent down is multiplied by, a coupling.
    """

    bits: Array
    gain: Array
    bias: Array
    gain_down: Array
    feedback: Array


@inner
def is_on(bits, j):
    """Whether bit j of a row of words is 1."""
    return (bits[j // 64] >> np.uint64(j % 64)) & ONE != NONE


@inner
def list_active(wiring, sample, layer, matrix_at, words):
    """List the rows of all active neurons of a layer; returns how many."""
    count = 0
    first = wiring.start[layer]
    for word in range(first // 64, wiring.start[layer + 1] // 64):
        rest = sample.bits[word]
        while rest:
            j = 64 * word + lowest(rest) - first
            rest &= rest - ONE
            sample.rows[count] = matrix_at + j * words
            sample.inverted[count] = NONE
            count += 1
    return count


@inner
def list_events(wiring, sample, layer, matrix_at, words):
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
            rest &= rest - ONE
            on = (now >> np.uint64(bit)) & ONE
            sample.rows[count] = matrix_at + (64 * word + bit - first) * words
            sample.inverted[count] = NONE if on else ALL
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
def sum_dense(wiring, synapses, sample, layer, rows, across, counts, at, anew):
    """Bring the counts of a dense coupling up to date with a layer: by events, or from nothing.

    From nothing either by rows of active neurons or, where that is less work, by comparing the
    layer's bits with the rows `across` that run over it.

    Args:
        rows: of the packed signs, one per neuron of the layer: first word, and length.
        across: one per neuron on the other side: how many, first word, and length.
    """
    (matrix_at, words), (targets, across_at, across_words) = rows, across
    few = sample.active[layer] if anew else min(sample.active[layer], sample.event_count[layer])
    length = (wiring.start[layer + 1] - wiring.start[layer]) // 64
    if targets * (length // 8 * _COMPARE + _COMPARE_ROW) < few * (words // 8 * _ADD + _ADD_ROW):
        first = wiring.start[layer] // 64
        for i in range(targets):
            row = across_at + i * across_words
            counts[at + i] = _count_common(sample.bits, first, synapses.bits, row, length)
        return
    if anew or sample.active[layer] < sample.event_count[layer]:
        fill(counts, at, at + 64 * words, 0)
        count, fallen = list_active(wiring, sample, layer, matrix_at, words), 0
    else:
        count, fallen = list_events(wiring, sample, layer, matrix_at, words)
    if count:
        lists = synapses.bits, sample.rows, sample.inverted
        count_rows(*lists, count, words, sample.planes, counts, at, -fallen)


@inner
def add_up(sample, begin, count):
    """`drive = up + down`."""
    end = begin + count
    up, down, drive = sample.up[begin:end], sample.down[begin:end], sample.drive[begin:end]
    for j in range(len(drive)):
        drive[j] = up[j] + down[j]


@inner
def drive_up(counts, at, active, gain, bias, sample, first, count):
    """`up_j = gain_j (2 count_j - active) + bias_j`, rounded each time; `drive = up + down`."""
    end, active = first + count, np.int32(active)
    positive, gain, bias = counts[at : at + count], gain[first:end], bias[first:end]
    up, down, drive = sample.up[first:end], sample.down[first:end], sample.drive[first:end]
    for j in range(len(drive)):
        u = gain[j] * np.float32(np.int32(2) * positive[j] - active) + bias[j]
        up[j] = u
        drive[j] = u + down[j]


@inner
def drive_down(counts, at, active, gain, sample, first, count):
    """`down_j = gain_j (2 count_j - active)`, rounded each time; `drive = up + down`."""
    end, active = first + count, np.int32(active)
    positive, gain = counts[at : at + count], gain[first:end]
    up, down, drive = sample.up[first:end], sample.down[first:end], sample.drive[first:end]
    for j in range(len(drive)):
        d = gain[j] * np.float32(np.int32(2) * positive[j] - active)
        down[j] = d
        drive[j] = up[j] + d


@inner
def _list_digits(sample, pixels):
    """Split pixels into digits -1, 0, 1: `x = sum_k 2^k digit_k` with the fewest nonzero digits.

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
def drive_from_pixels(wiring, synapses, sample, pixels, gain):
    """`up_1 = gain (W x) + bias` of a dense coupling for 8-bit pixels, (features,).

    The rows of pixels with digit k are added to the counters from bit k on, inverted where the
    digit is -1; see `list_events`.
    """
    words, at = wiring.up_words[0], wiring.counts_at[0]
    count, largest, excess, total = _list_digits(sample, pixels), 0, 0, 0
    for n in range(count):
        positive, negative = (sample.digits[n] >> 16) & 0xFFFF, sample.digits[n] & 0xFFFF
        largest += positive + negative
        excess += negative
        total += positive - negative
    levels, waiting = binary_digits(largest), 0
    clear_planes(sample.planes, words, max(levels, 11))
    for k in range(9):
        rows = 0
        for n in range(count):
            entry = sample.digits[n]
            negative = (entry >> k) & 1
            sample.rows[rows] = wiring.up_at[0] + (entry >> 32) * words
            sample.inverted[rows] = ALL if negative else NONE
            rows += negative | ((entry >> (16 + k)) & 1)
        waiting = add_rows(
            synapses.bits, sample.rows, sample.inverted, rows, words, sample.planes, k, waiting
        )
    finish_planes(sample.planes, words, levels, waiting)
    fill(sample.counts, at, at + 64 * words, -excess)
    for w in range(words):
        expand(sample.planes, w, 2 * words, levels, sample.counts, at + 64 * w, 0)
    count, total = wiring.start[1], np.int32(total)
    positive, bias, up = sample.counts[at : at + count], synapses.bias[:count], sample.up[:count]
    for j in range(len(up)):
        up[j] = gain[j] * np.float32(np.int32(2) * positive[j] - total) + bias[j]
