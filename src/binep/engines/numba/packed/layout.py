"""Where a network's neurons and synapses stand in the packed arrays."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from binep.core.couplings import ConvPool, Coupling
from binep.core.network import Network
from binep.engines.numba.packed.counting import LEVELS
from binep.engines.numba.packed.relaxing import Sample, Wiring

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
        """Values in torch's order, (..., neurons) or one a channel, (channels,), to the layer."""
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


class Layout:
    """The layers and couplings of a network in packed arrays, and the arrays' sizes."""

    def __init__(self, network: Network) -> None:
        self.couplings = list(network.couplings)
        self.input = _layer(0, network.input_shape)
        self.layers: list[Layer] = []
        start = 0
        for shape in network.layer_shapes:
            self.layers.append(_layer(start, shape))
            start += self.layers[-1].cells
        self.cells = start
        # The packed weights begin with one row of zeros, for sums of fewer rows than eight.
        at = max(_row_words(layer.cells) for layer in [self.input, *self.layers])
        counts = maps = held = 0
        fields: dict[str, list[int]] = {name: [] for name in Wiring._fields if name != "valid"}
        for n, (coupling, above) in enumerate(zip(self.couplings, self.layers, strict=True)):
            below = self.below(n)
            conv = isinstance(coupling, ConvPool)
            side = coupling.kernel if isinstance(coupling, ConvPool) else 1
            padding = coupling.padding if isinstance(coupling, ConvPool) else 0
            map_rows = below.rows + 2 * padding - side + 1 if conv else 1
            map_cols = below.cols + 2 * padding - side + 1 if conv else 1
            taps, up_words = side * side, _row_words(above.channels)
            up_rows = taps * below.words * 64 if conv else below.cells
            down_rows = above.channels * taps
            down_words = below.words if conv else _row_words(below.cells)
            values = {
                "start": above.start,
                "channels": above.channels,
                "rows": above.rows,
                "cols": above.cols,
                "words": above.words,
                "conv": int(conv),
                "kernel": side,
                "padding": padding,
                "pool": coupling.pool,
                "map_rows": map_rows,
                "map_cols": map_cols,
                "up_at": at,
                "up_words": up_words,
                "down_at": at + up_rows * up_words,
                "down_words": down_words,
                "counts_at": counts,
                "maps_at": maps,
                "held_at": held,
            }
            for name, value in values.items():
                fields[name].append(value)
            at += up_rows * up_words + down_rows * down_words
            # The first conv coupling is summed by torch: its maps are never held here.
            if not conv or n > 0:
                counts += map_rows * map_cols * up_words * 64
                maps += map_rows * map_cols
            held += 0 if conv else down_words * 64
        fields["start"].append(self.cells)
        self.words, self.counts, self.maps, self.held = at, counts, maps, held
        valid = [
            pack(layer.spread(np.ones(layer.channels, bool)), layer.cells // 64)
            for layer in self.layers
        ]
        self.wiring = Wiring(
            **{k: np.array(v, np.int64) for k, v in fields.items()}, valid=np.concatenate(valid)
        )

    def below(self, n: int) -> Layer:
        """The layer below coupling n: the input or a layer of bits."""
        return self.layers[n - 1] if n else self.input

    def columns(self, n: int) -> Array:
        """Where each column of dense coupling n's weight stands in the packed layer below."""
        return self.below(n).neurons

    def pack_signs(self, n: int, signs: Tensor, bits: Array) -> None:
        """Write coupling n's signs into the packed weights, in both directions."""
        wiring, below, above = self.wiring, self.below(n), self.layers[n]
        positive = signs.detach().numpy() > 0
        if wiring.conv[n]:
            channels = positive.reshape(*positive.shape[:2], -1)
            padded = np.zeros((above.channels, channels.shape[2], below.words * 64), bool)
            padded[:, :, : below.channels] = channels.transpose(0, 2, 1)
        else:
            padded = np.zeros((above.channels, 1, below.cells), bool)
            padded[:, 0, self.columns(n)] = positive
        down, up = padded, padded.transpose(1, 2, 0)
        for rows, at, words in (
            (up, wiring.up_at[n], wiring.up_words[n]),
            (down, wiring.down_at[n], wiring.down_words[n]),
        ):
            packed = pack(rows, int(words)).ravel()
            bits[at : at + packed.size] = packed

    def samples(self, count: int) -> Sample:
        """Room for so many samples to relax, side by side."""
        wiring = self.wiring
        layers, cells, words = len(self.layers), self.cells, self.cells // 64
        widest = int(max(*wiring.up_words, *wiring.down_words))
        windows = [
            int(wiring.kernel[n] ** 2 * self.below(n).words * 64) for n in range(len(self.layers))
        ]
        # A neuron above a convolution may move from one map position to another.
        largest = max(layer.cells for layer in self.layers)
        moves = 2 * largest if self.hidden_conv else 0
        listed = 8 + max(self.input.cells, *windows, largest, moves)
        positions = int(max(wiring.map_rows * wiring.map_cols))
        top = self.layers[-1].cells

        def room(size: int, kind: Any) -> Array:
            return np.zeros((count, size), kind)

        return Sample(
            s=room(cells, np.float32),
            ahead=room(cells, np.float32),
            bits=room(words, np.uint64),
            drive=room(cells, np.float32),
            up=room(cells, np.float32),
            down=room(cells, np.float32),
            active=room(layers, np.int64),
            flipped=room(words, np.uint64),
            event_count=room(layers, np.int64),
            counts=room(self.counts, np.int32),
            present=room(self.maps, np.int32),
            held=room(self.held, np.int32),
            tug=room(cells if self.hidden_conv else 0, np.float64),
            lean=room(words if self.hidden_conv else 0, np.float64),
            switches=room(cells if self.hidden_conv else 0, np.int32),
            placed=room(cells if self.hidden_conv else 0, np.int32),
            lit=room(words if self.hidden_conv else 0, np.uint64),
            pull=room(top, np.float32),
            target=room(top, np.float32),
            awake=room(words, np.bool_),
            reached=room(words, np.int64),
            fresh=room(layers, np.int64),
            digits=room(1 + self.input.cells, np.int64),
            planes=room((2 * LEVELS + 1) * widest, np.uint64),
            rows=room(listed, np.int64),
            inverted=room(listed, np.uint64),
            dirty=room(positions, np.bool_),
            before=room(64, np.float32),
            tags=room(max(cells, moves), np.int64),
            flags=room(cells, np.uint64),
            bounds=room(2 + max(positions, *(layer.places for layer in self.layers)), np.int64),
            filled=room(positions, np.int64),
            amounts=room(moves, np.float64),
            twice=room(moves, np.float64),
        )

    @property
    def hidden_conv(self) -> bool:
        """Whether a conv coupling joins two layers that relax."""
        return bool(self.wiring.conv[1:].any())


def fan_in(coupling: Coupling) -> int:
    """Synapses of one neuron above."""
    return coupling.signs[0].numel()
