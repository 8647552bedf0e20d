"""Bit-packed sums, compiled by Numba: AND and popcount, 64 synapses per word."""

from typing import Any

import numba
import numpy as np
from numba import extending, types

from binep.kernel_cache import keep

_compiled: Any = numba.njit(nogil=True, error_model="numpy")
_intrinsic: Any = extending.intrinsic


def _njit(function: Any) -> Any:
    return keep(_compiled(function))


@_intrinsic
def _popcount(typing_context: Any, word: Any) -> Any:
    """How many bits of a word are 1."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), code


@_njit
def count_dense(rows, planes):
    """`sum_j w_ij a_j = 2 popcount(w+ & a) - popcount(a)`: int32 (batch, rows).

    Of numbers `a = sum_k 2^k a_k`, given as planes of bits, (batch, planes, words): bits have one.
    """
    sums = np.empty((len(planes), len(rows)), np.int32)
    for b in range(len(planes)):
        total = 0
        for k in range(planes.shape[1]):
            for w in range(planes.shape[2]):
                total += np.int64(_popcount(planes[b, k, w])) << k
        for i in range(len(rows)):
            count = 0
            for k in range(planes.shape[1]):
                plane = 0
                for w in range(planes.shape[2]):
                    plane += np.int64(_popcount(rows[i, w] & planes[b, k, w]))
                count += plane << k
            sums[b, i] = 2 * count - total
    return sums


@_njit
def count_conv(taps, bits, padding):
    """A convolution of bits, (batch, height, width, words), with signs by place in the kernel.

    `taps` is (above, side, side, words); returns maps, int32 (batch, above, height, width).
    """
    above, side, _, words = taps.shape
    batch, height, width, _ = bits.shape
    rows, cols = height + 2 * padding - side + 1, width + 2 * padding - side + 1
    maps = np.empty((batch, above, rows, cols), np.int32)
    for b in range(batch):
        for y in range(rows):
            for x in range(cols):
                ky0, ky1 = max(0, padding - y), min(side, height + padding - y)
                kx0, kx1 = max(0, padding - x), min(side, width + padding - x)
                active = 0
                for ky in range(ky0, ky1):
                    for kx in range(kx0, kx1):
                        for w in range(words):
                            word = bits[b, y + ky - padding, x + kx - padding, w]
                            active += np.int64(_popcount(word))
                for c in range(above):
                    count = 0
                    for ky in range(ky0, ky1):
                        for kx in range(kx0, kx1):
                            for w in range(words):
                                word = bits[b, y + ky - padding, x + kx - padding, w]
                                count += np.int64(_popcount(taps[c, ky, kx, w] & word))
                    maps[b, c, y, x] = 2 * count - active
    return maps


@_njit
def send_down(taps, scale, above, switches, map_cols, padding, down):
    """Add `scale_c w` of every active neuron above, placed by its switch, to `down`.

    `taps` is int8 (above, side, side, below), `down` float64 (batch, height, width, below).
    """
    channels, side, _, below = taps.shape
    _, height, width, _ = down.shape
    for b in range(len(above)):
        for c in range(channels):
            for py in range(above.shape[2]):
                for px in range(above.shape[3]):
                    if not above[b, c, py, px]:
                        continue
                    y, x = divmod(switches[b, c, py, px], map_cols)
                    for ky in range(max(0, padding - y), min(side, height + padding - y)):
                        for kx in range(max(0, padding - x), min(side, width + padding - x)):
                            to = down[b, y + ky - padding, x + kx - padding]
                            signs = taps[c, ky, kx]
                            for k in range(below):
                                to[k] += scale[c] * signs[k]
