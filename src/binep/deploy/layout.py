"""The order of neurons and synapses in hardware: in the C program and in memory images.

Neurons of a layer are numbered position by position (row by row), and channel by channel within a
position; a vector is one position of many channels. The synapses of a neuron above a dense coupling
run over the layer below in that order; those of a convolution over the kernel, row by row, and over
the channels below within a place of it. The pixels of a vector keep their own order.
"""

import numpy as np

from binep.deploy.stored import Array, Shape, StoredCoupling

WORD = 32


def words(bits: int, word: int = WORD) -> int:
    """Number of words for a number of bits."""
    return -(-bits // word)


def neurons(layer: Array) -> Array:
    """A layer, (batch, features) or (batch, channels, rows, cols), in order: (batch, neurons)."""
    if layer.ndim == 4:
        layer = layer.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(layer.reshape(len(layer), -1))


def synapses(coupling: StoredCoupling, below_shape: Shape, values: Array) -> Array:
    """Values shaped like a coupling's weight, in order: (above, synapses of a neuron)."""
    if coupling.kind == "conv":
        values = values.transpose(0, 2, 3, 1)
    elif len(below_shape) == 3:
        values = values.reshape(coupling.above, *below_shape).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(values.reshape(coupling.above, -1))


def pack(bits: Array, word: int = WORD) -> Array:
    """Booleans, (..., n), as words of so many bits, bit 0 first: unsigned (..., words)."""
    size = word // 8
    room = np.zeros((*bits.shape[:-1], size * words(bits.shape[-1], word)), np.uint8)
    packed = np.packbits(bits, axis=-1, bitorder="little")
    room[..., : packed.shape[-1]] = packed
    return room.view(f"<u{size}").astype(f"u{size}", copy=False)
