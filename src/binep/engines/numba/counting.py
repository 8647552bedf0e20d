"""Adding up rows of packed bits: a counter for every column.

Counters stand upright: bit k of all of them is one row of words. Rows are added by carry-save
adders and read out in the end. `planes` needs room for `2 LEVELS + 1` rows.
"""

from typing import Any

import numpy as np
from numba.np.unsafe import ndarray

from binep.engines.numba.jit import inner
from binep.engines.numba.simd import add_eight_rows, expand

to_fixed_tuple: Any = ndarray.to_fixed_tuple

# Binary digits of the largest sum: float32 holds integers below 2**24.
LEVELS = 25
_NONE = np.uint64(0)
# A function is compiled again for every constant that it is given: these are none.
_int = np.int64


@inner
def binary_digits(number):
    """Number of binary digits."""
    digits = 0
    while number > 0:
        number >>= 1
        digits += 1
    return digits


@inner
def fill(array, begin, end, value):
    """`array[begin:end] = value`; Numba takes seconds to compile that.

    Loops run over slices from 0 on: where an index might be negative, they are not vectorised.
    """
    part = array[begin:end]
    for n in range(len(part)):
        part[n] = value


@inner
def copy_into(array, begin, source, first, count):
    """`array[begin : begin + count] = source[first : first + count]`."""
    to, part = array[begin : begin + count], source[first : first + count]
    for n in range(len(to)):
        to[n] = part[n]


@inner
def clear_planes(planes, words, levels):
    for n in range(levels):
        fill(planes, 2 * n * words, (2 * n + 1) * words, 0)


@inner
def _add_planes(planes, at, wait, carry, onward, words):
    """Add two carries to a level of the counters; their carry goes to `onward`."""
    total, one = planes[at : at + words], planes[wait : wait + words]
    two, out = planes[carry : carry + words], planes[onward : onward + words]
    for w in range(len(total)):
        a, b, c = total[w], one[w], two[w]
        total[w] = a ^ b ^ c
        out[w] = (a & b) | ((a ^ b) & c)


@inner
def add_rows(matrix, rows, inverted, count, words, planes, base, waiting):
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
        eight, flips = to_fixed_tuple(rows[n : n + 8], 8), to_fixed_tuple(inverted[n : n + 8], 8)
        level = base + 3
        busy = (waiting >> level) & 1
        eights = (2 * level + 1) * words if busy == 0 else 2 * LEVELS * words
        for w in range(0, words, 8):
            at = 2 * base * words + w
            add_eight_rows(planes, at, 2 * words, eights + w, matrix, eight, w, flips)
        while busy:
            at, wait, carry = (2 * level * words, (2 * level + 1) * words, 2 * LEVELS * words)
            waiting &= ~(1 << level)
            level += 1
            busy = (waiting >> level) & 1
            onward = (2 * level + 1) * words if busy == 0 else carry
            _add_planes(planes, at, wait, carry, onward, words)
        waiting |= 1 << level
    return waiting


@inner
def finish_planes(planes, words, levels, waiting):
    """Propagate all waiting carries."""
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
def count_rows(matrix, rows, inverted, count, words, planes, counts, at, offset):
    """`counts[at + j] += offset + sum_n (row_n ^ inverted_n)_j` for `64 words` columns j."""
    levels = binary_digits(count)
    # The first three bits are always written.
    clear_planes(planes, words, max(levels, 3))
    waiting = add_rows(matrix, rows, inverted, count, words, planes, _int(0), _int(0))
    finish_planes(planes, words, levels, waiting)
    for w in range(words):
        expand(planes, w, 2 * words, levels, counts, at + 64 * w, offset)
