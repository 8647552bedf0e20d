"""Memory images read and relaxed from what their README says: nothing of binep is used here."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Row:
    """A line of the README's table of couplings; layers are (channels, rows, columns)."""

    conv: bool
    below: tuple[int, ...]
    above: tuple[int, ...]
    kernel: int
    padding: int
    pool: int
    synapses: int


class Images:
    """A folder of memory images of a network in integers."""

    def __init__(self, folder: Path) -> None:
        self.readme = (folder / "README.md").read_text("utf-8")
        self.words = {
            path.stem: [int(line, 16) for line in path.read_text("ascii").split()]
            for path in folder.glob("*.mem")
        }

    def said(self, pattern: str) -> str:
        """What the README says where a pattern has its group."""
        found = re.search(pattern, self.readme)
        assert found is not None, pattern
        return found[1]

    @cached_property
    def steps(self) -> int:
        return int(self.said(r"time steps T: (\d+)"))

    @cached_property
    def state_bits(self) -> int:
        return int(self.said(r"states: unsigned, \d+ bits in units of 2\^-(\d+)"))

    @cached_property
    def parameter_bits(self) -> int:
        return int(self.said(r"scales,? (?:and biases|biases and drives): .* units of 2\^-(\d+);"))

    @cached_property
    def rows(self) -> list[Row]:
        pattern = (
            r"^\| \d+ \| (dense|conv) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \| (\d+) \|$"
        )
        return [
            Row(
                kind == "conv",
                tuple(map(int, below.split("x"))),
                tuple(map(int, above.split("x"))),
                *(int(size) if kind == "conv" else 1 for size in window),
                synapses=int(synapses),
            )
            for kind, below, above, *window, synapses in re.findall(pattern, self.readme, re.M)
        ]

    @cached_property
    def weights(self) -> list[np.ndarray]:
        """+-1, (above, synapses), of every coupling."""
        return [
            2 * bits(self.words[f"coupling{n}_weights"], row.synapses).astype(np.int64) - 1
            for n, row in enumerate(self.rows)
        ]

    def parameter(self, n: int, part: str) -> np.ndarray:
        """Signed words; a scale is one for all, or one a channel."""
        words = self.words[f"coupling{n}_{part}"]
        return np.array([word - (word >> 63 << 64) for word in words], np.int64)

    # --- relaxation ---------------------------------------------------------------------------

    def relax(self, pixels: np.ndarray) -> list[np.ndarray]:
        """The states of all neurons at t = 0, ..., T, for the pixels of one vector."""
        sizes = [int(np.prod(row.above)) for row in self.rows]
        one = 1 << self.state_bits
        start = int(self.said(r"at t = 0: ([0-9a-f]+), in hexadecimal"), 16)
        layers = [np.full(size, start, np.int64) for size in sizes]
        found = [np.concatenate(layers)]
        first, _ = self.up(0, self.in_order(pixels))
        for _ in range(self.steps):
            sent = [(layer >= one // 2).astype(np.int64) for layer in layers]
            ups = [(first, None), *(self.up(n, sent[n - 1]) for n in range(1, len(sizes)))]
            drives = [drive for drive, _ in ups]
            for n in range(1, len(sizes)):
                drives[n - 1] = drives[n - 1] + self.down(n, sent[n], ups[n][1])
            layers = [
                ((s + (drive >> (self.parameter_bits - self.state_bits))) >> 1).clip(0, one)
                for s, drive in zip(layers, drives, strict=True)
            ]
            found.append(np.concatenate(layers))
        return found

    def settle(self, pixels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Bits alone: those of all neurons at t = 0, ..., T, and the drives of the outputs."""
        start = int(self.said(r"at t = 0: ([01]), in hexadecimal"), 16)
        layers = [np.full(int(np.prod(row.above)), start, np.int64) for row in self.rows]
        found, top = [np.concatenate(layers)], len(layers) - 1
        first, _ = self.up(0, self.in_order(pixels))
        outputs = np.zeros(0, np.int64)
        for _ in range(self.steps):
            for turn in (0, 1):
                moved = {}
                for n in range(turn, top + 1, 2):
                    drive = first if n == 0 else self.up(n, layers[n - 1])[0]
                    if n < top:
                        chosen = self.up(n + 1, layers[n])[1]
                        drive = drive + self.down(n + 1, layers[n + 1], chosen)
                    else:
                        outputs = drive
                    moved[n] = (drive >= 1 << (self.parameter_bits - 1)).astype(np.int64)
                layers = [moved.get(n, layer) for n, layer in enumerate(layers)]
            found.append(np.concatenate(layers))
        return found, outputs

    def in_order(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels are channel by channel; neurons below a convolution position by position."""
        row = self.rows[0]
        return pixels.reshape(row.below[0], -1).T.ravel() if row.conv else pixels

    def up(self, n: int, below: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Drives of a layer, and of a convolution where each tile has its largest sum."""
        row, weights = self.rows[n], self.weights[n]
        scale, bias = self.parameter(n, "scale_up"), self.parameter(n, "bias")
        if not row.conv:
            return scale * (weights @ below) + bias, None
        channels, height, width = row.below
        padded = np.zeros((height + 2 * row.padding, width + 2 * row.padding, channels), np.int64)
        inside = (slice(row.padding, row.padding + size) for size in (height, width))
        padded[tuple(inside)] = below.reshape(height, width, channels)
        _, out_rows, out_cols = row.above
        drives, chosen = [], []
        for top in range(0, out_rows * row.pool, row.pool):
            for left in range(0, out_cols * row.pool, row.pool):
                tile = [(top + y, left + x) for y in range(row.pool) for x in range(row.pool)]
                windows = [
                    padded[y : y + row.kernel, x : x + row.kernel].reshape(-1) for y, x in tile
                ]
                sums = np.array(windows) @ weights.T
                best = sums.argmax(0)
                drives.append(scale * sums.max(0) + bias)
                chosen.append([tile[k] for k in best])
        return np.concatenate(drives), np.array(chosen).reshape(-1, 2)

    def down(self, n: int, above: np.ndarray, chosen: np.ndarray | None) -> np.ndarray:
        row, weights = self.rows[n], self.weights[n]
        scale = self.parameter(n, "scale_down")
        if chosen is None:
            return scale * (above @ weights)
        channels, height, width = row.below
        drive = np.zeros((height + 2 * row.padding, width + 2 * row.padding, channels), np.int64)
        for i in np.flatnonzero(above):
            channel, (y, x) = i % row.above[0], chosen[i]
            kernel = weights[channel].reshape(row.kernel, row.kernel, channels)
            drive[y : y + row.kernel, x : x + row.kernel] += scale[channel] * kernel
        inside = (slice(row.padding, row.padding + size) for size in (height, width))
        return drive[tuple(inside)].reshape(-1)

    def predict(self, states: np.ndarray) -> int:
        """The class of the last states of all neurons."""
        per_class = int(self.said(r"output neurons per class: (\d+)"))
        classes = int(self.said(r"- classes: (\d+)"))
        outputs = states[-classes * per_class :].reshape(classes, per_class)
        average = self.said(r"readout: (\w+)") == "average"
        return int((outputs.sum(1) if average else outputs[:, 0]).argmax())


def bits(words: list[int], width: int) -> np.ndarray:
    """Bit k of a word, counted from the right, stands at k: (words, width)."""
    return np.array([[word >> k & 1 for k in range(width)] for word in words], bool)
