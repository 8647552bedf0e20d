"""The drive of 8-bit pixels on the first layer through a convolution, once per mini-batch."""

import numpy as np

from binep.engines.numba.jit import inner, kernel
from binep.engines.numba.rules import wins


@inner
def _add_window(total, image, signs, oy, ox):
    """Add the pixels in the window at (oy, ox), each times its row of signs, to one map position.

    All sums are integers below 2**24, exact in float32 in any order.
    """
    channels, height, width = image.shape
    side = signs.shape[1]
    for c in range(channels):
        for ky in range(max(0, -oy), min(side, height - oy)):
            for kx in range(max(0, -ox), min(side, width - ox)):
                x = np.float32(image[c, oy + ky, ox + kx])
                if x != 0:
                    row = signs[c, ky, kx]
                    for j in range(len(total)):
                        total[j] += x * row[j]


@kernel
def convolve_share(images, signs, shape, gain, bias, drive, switches, threads, thread):
    """`drive = gain pool(sums) + bias` and the pool's switches, on every n-th sample.

    Args:
        images: uint8, (batch, channels, height, width).
        signs: float32, (channels, side, side, cells): cells are the outputs of one position.
        shape: padding, pool, rows and columns of the layer above.
        gain, bias: (cells,).
        drive, switches: outputs, (batch, rows * columns * cells), channels last.
    """
    padding, pool, rows, cols = shape
    cells, map_cols = len(gain), images.shape[3] + 2 * padding - signs.shape[1] + 1
    total, best = np.empty(cells, np.float32), np.empty(cells, np.float32)
    for b in range(thread, len(images), threads):
        for place in range(rows * cols):
            top, left = place // cols * pool, place % cols * pool
            chosen = switches[b, place * cells : (place + 1) * cells]
            for k in range(pool * pool):
                y, x = top + k // pool, left + k % pool
                for j in range(cells):
                    total[j] = 0
                _add_window(total, images[b], signs, y - padding, x - padding)
                q = np.int32(y * map_cols + x)
                for j in range(cells):
                    more = k == 0 or wins(total[j], best[j])
                    best[j] = total[j] if more else best[j]
                    chosen[j] = q if more else chosen[j]
            here = drive[b, place * cells : (place + 1) * cells]
            for j in range(cells):
                here[j] = gain[j] * best[j] + bias[j]
