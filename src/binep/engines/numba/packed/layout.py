"""Where a network's neurons and synapses are in the packed arrays."""

import math
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from binep.core.couplings import ConvPool
from binep.core.network import Network

Array = Any

# Rows that sums run over are padded to eight words: a vector register of 512 bits.
ROW_WORDS = 8


def _words(bits: int) -> int:
    return math.ceil(bits / 64)


def _row_words(bits: int) -> int:
    return math.ceil(bits / (64 * ROW_WORDS)) * ROW_WORDS


def pack(bits: Array, words: int) -> Array:
    """Booleans, (..., n), as words of 64 bits, lowest first: (..., words)."""
    padded = np.zeros((*bits.shape[:-1], 8 * words), np.uint8)
    packed = np.packbits(bits, axis=-1, bitorder="little")
    padded[..., : packed.shape[-1]] = packed
    return padded.view("<u8").astype(np.uint64, copy=False)


@dataclass(frozen=True)
class Layer:
    """One layer in a packed row of neurons: channels-last, each position in whole words."""

    start: int
    channels: int
    rows: int
    cols: int

    @property
    def places(self) -> int:
        return self.rows * self.cols

    @property
    def words(self) -> int:
        return _words(self.channels)

    @property
    def cells(self) -> int:
        """Neurons with padding."""
        return self.places * self.words * 64

    @property
    def span(self) -> tuple[int, int]:
        """First word and one past the last."""
        return self.start // 64, (self.start + self.cells) // 64

    @property
    def neurons(self) -> Array:
        """For each neuron in the order of torch (channel, row, column), its place in the layer."""
        channel, place = np.divmod(np.arange(self.channels * self.places), self.places)
        return place * self.words * 64 + channel

    def spread(self, values: Array) -> Array:
        """Values in torch's order, (..., neurons) or one per channel, (channels,), to the layer."""
        lead = values.shape[:-1]
        images = values.reshape(*lead, self.channels, -1).swapaxes(-1, -2)
        spread = np.zeros((*lead, self.places, 64 * self.words), values.dtype)
        spread[..., : self.channels] = images
        return spread.reshape(*lead, self.cells)

    def gather(self, cells: Array) -> Array:
        """The other way: (..., cells) to torch's order, (..., neurons)."""
        lead = cells.shape[:-1]
        images = cells.reshape(*lead, self.places, 64 * self.words)[..., : self.channels]
        gathered = np.ascontiguousarray(images.swapaxes(-1, -2))
        return gathered.reshape(*lead, self.channels * self.places)


def _layer(start: int, shape: tuple[int, ...]) -> Layer:
    return Layer(start, shape[0], *(shape[1:] if len(shape) == 3 else (1, 1)))


# Where everything is. One entry a layer; coupling n joins layer n-1 to layer n, 0 the input.
LINK = (
    # First neuron of a layer, (layers + 1,), a multiple of 64; channels, rows and columns, where a
    # vector is one position of many channels; words of 64 channels a position.
    *("start", "channels", "rows", "cols", "words"),
    # Of a coupling, with its map before pooling.
    *("conv", "kernel", "padding", "pool", "map_rows", "map_cols"),
    # First word and row length in the packed signs of the rows that run over the layer above: one
    # a neuron below (dense), or one a tap and channel below (conv).
    *("up_at", "up_words"),
    # The same for the rows that run over the layer below: one per neuron above (dense), or one a
    # channel above and tap (conv).
    *("down_at", "down_words"),
    # First entries in the arrays of these names of a sample.
    *("counts_at", "maps_at", "down_counts_at"),
)
# `valid`: the bits that stand for neurons, not for padding, (words,).
Wiring: Any = namedtuple("Wiring", [*LINK, "valid"])


class Layout:
    """The layers and couplings of a network in packed arrays, and the arrays' sizes."""

    def __init__(self, network: Network) -> None:
        self.input = _layer(0, network.input_shape)
        self.layers: list[Layer] = []
        start = 0
        for shape in network.layer_shapes:
            self.layers.append(_layer(start, shape))
            start += self.layers[-1].cells
        self.cells = start
        # The packed signs begin with one row of zeros, for sums of fewer rows than eight.
        at = max(_row_words(layer.cells) for layer in [self.input, *self.layers])
        counts = maps = down_counts = 0
        links = []
        for n, coupling in enumerate(network.couplings):
            below, above = self.below(n), self.layers[n]
            conv = isinstance(coupling, ConvPool)
            side, padding = (coupling.kernel, coupling.padding) if conv else (1, 0)
            map_rows, map_cols = (
                (x + 2 * padding - side + 1 if conv else 1) for x in (below.rows, below.cols)
            )
            up_words = _row_words(above.channels)
            up_size = up_words * (side * side * below.words * 64 if conv else below.cells)
            down_words = below.words if conv else _row_words(below.cells)
            layer = above.start, above.channels, above.rows, above.cols, above.words
            window = int(conv), side, padding, coupling.pool, map_rows, map_cols
            places = at, up_words, at + up_size, down_words, counts, maps, down_counts
            links.append((*layer, *window, *places))
            at += up_size + above.channels * side * side * down_words
            # What the input drives through a convolution is never counted here.
            if not conv or n > 0:
                counts += map_rows * map_cols * up_words * 64
                maps += map_rows * map_cols
            down_counts += 0 if conv else down_words * 64
        self.words, self.counts, self.maps, self.down_counts = at, counts, maps, down_counts
        columns = [np.array(column, np.int64) for column in zip(*links, strict=True)]
        columns[0] = np.append(columns[0], self.cells)
        valid = [
            pack(layer.spread(np.ones(layer.channels, bool)), layer.cells // 64)
            for layer in self.layers
        ]
        self.wiring = Wiring(*columns, np.concatenate(valid))

    @property
    def hidden_conv(self) -> bool:
        """Whether a conv coupling joins two layers that relax."""
        return bool(self.wiring.conv[1:].any())

    def below(self, n: int) -> Layer:
        """The layer below coupling n: the input or a layer of bits."""
        return self.layers[n - 1] if n else self.input

    def pack_signs(self, n: int, signs: Tensor, bits: Array) -> None:
        """Write coupling n's signs into the packed ones, in both directions."""
        wiring, below, above = self.wiring, self.below(n), self.layers[n]
        positive = signs.detach().numpy() > 0
        if wiring.conv[n]:
            channels = positive.reshape(*positive.shape[:2], -1)
            padded = np.zeros((above.channels, channels.shape[2], below.words * 64), bool)
            padded[:, :, : below.channels] = channels.transpose(0, 2, 1)
        else:
            padded = np.zeros((above.channels, 1, below.cells), bool)
            padded[:, 0, below.neurons] = positive
        down, up = padded, padded.transpose(1, 2, 0)
        for rows, at, words in (
            (up, wiring.up_at[n], wiring.up_words[n]),
            (down, wiring.down_at[n], wiring.down_words[n]),
        ):
            packed = pack(rows, int(words)).ravel()
            bits[at : at + packed.size] = packed
