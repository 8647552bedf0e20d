"""Sums over synapses, in both directions of a coupling: plain numpy, or bit-packed kernels.

For binary weights they run over signs and bits or pixels and are exact integers, whichever way
they are taken; scales and biases come afterwards, from whoever asks (`runtime`, `fixed`).
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from binep.deploy import layout, rules
from binep.deploy.stored import Array, Shape, StoredCoupling


def find_kernels() -> Any:
    """The module of compiled kernels, or None where Numba is not installed."""
    try:
        from binep.deploy import kernels
    except ModuleNotFoundError as error:
        if error.name not in ("numba", "llvmlite"):
            raise
        return None
    return kernels


class Sums:
    """The sums of one coupling, over a layer below of `below_shape`.

    Args:
        kernels: of `find_kernels`, for couplings with binary weights; None: plain numpy.
    """

    def __init__(self, coupling: StoredCoupling, below_shape: Shape, kernels: Any = None) -> None:
        self.coupling, self.below_shape = coupling, tuple(below_shape)
        self.above_shape = coupling.above_shape(self.below_shape)
        self.kernels = kernels if coupling.binary else None

    def up(self, below: Array) -> tuple[Array, Array | None]:
        """Pooled sums on the layer above, float32 (batch, *above), and the pool's switches.

        Switches are flat positions in a convolution's map, (batch, *above); None without pooling.
        On a tie the first position in row-major order wins.
        """
        if self.coupling.kind == "dense":
            return self._dense(below.reshape(len(below), -1)), None
        maps = self._maps(below)
        if self.coupling.pool == 1:
            return maps, None
        return _pooled(maps, self.coupling.pool)

    def down(self, above: Array) -> Array:
        """Sums on the layer below of a dense coupling, float32 (batch, *below)."""
        if self.kernels is not None and above.dtype == bool:
            planes = layout.pack(above, 64)[:, None]
            sums = self.kernels.count_dense(self._down_rows, planes).astype(np.float32)
        else:
            sums = above.astype(np.float32, copy=False) @ self._kernel
        return sums.reshape(len(above), *self.below_shape)

    def down_scaled(self, above: Array, switches: Array | None, scale: Array) -> Array:
        """Sums of `scale_c w` on the layer below of a conv coupling, (batch, *below).

        In the type of `scale`, (above,). Each neuron above sends from where its switch points.
        """
        if self.kernels is not None and above.dtype == bool and scale.dtype == np.float64:
            where = switches if switches is not None else _own_places(above.shape)
            channels, *side = self.below_shape
            room = np.zeros((len(above), *side, channels))
            self.kernels.send_down(
                self._taps,
                scale,
                above,
                where,
                self.coupling.map_shape(self.below_shape)[2],
                self.coupling.padding,
                room,
            )
            return room.transpose(0, 3, 1, 2)
        maps = self._unpooled(above * scale.reshape(-1, 1, 1), switches)
        side, padding = self.coupling.kernel, self.coupling.padding
        padded = np.pad(maps, [(0, 0), (0, 0), (side - 1,) * 2, (side - 1,) * 2])
        windows = _windows(padded, side)
        turned = self._kernel.reshape(self.coupling.weight_shape)[:, :, ::-1, ::-1]
        matrix = turned.transpose(0, 2, 3, 1).reshape(-1, self.coupling.below)
        sums = windows @ matrix.astype(maps.dtype)
        height, width = self.below_shape[1:]
        inside = sums[:, padding : padding + height, padding : padding + width]
        return inside.transpose(0, 3, 1, 2)

    # --- the two ways -----------------------------------------------------------------------

    @cached_property
    def _kernel(self) -> Array:
        """What is summed over, float32 (above, synapses)."""
        values = self.coupling.signs if self.coupling.binary else self.coupling.weight
        return values.reshape(self.coupling.above, -1).astype(np.float32)

    @cached_property
    def _rows(self) -> Array:
        """[w > 0] of each neuron above, packed, (above, words)."""
        return layout.pack(self.coupling.signs.reshape(self.coupling.above, -1) > 0, 64)

    @cached_property
    def _down_rows(self) -> Array:
        """[w > 0] of each neuron below of a dense coupling, packed, (below, words)."""
        return layout.pack(np.ascontiguousarray(self.coupling.signs.T) > 0, 64)

    @cached_property
    def _taps(self) -> Array:
        """Signs of a conv coupling by place in the kernel, int8 (above, kernel, kernel, below)."""
        return np.ascontiguousarray(self.coupling.signs.transpose(0, 2, 3, 1))

    @cached_property
    def _tap_rows(self) -> Array:
        """[w > 0] of the same, packed, (above, kernel, kernel, words)."""
        return layout.pack(self._taps > 0, 64)

    def _dense(self, below: Array) -> Array:
        if self.kernels is not None and below.dtype in (bool, np.uint8):
            bits = [below] if below.dtype == bool else [below >> k & 1 == 1 for k in range(8)]
            planes = np.stack([layout.pack(plane, 64) for plane in bits], axis=1)
            return self.kernels.count_dense(self._rows, planes).astype(np.float32)
        return below.astype(np.float32, copy=False) @ self._kernel.T

    def _maps(self, below: Array) -> Array:
        """The convolution before pooling, float32 (batch, above, height, width)."""
        padding = self.coupling.padding
        if self.kernels is not None and below.dtype == bool:
            bits = layout.pack(np.ascontiguousarray(below.transpose(0, 2, 3, 1)), 64)
            return self.kernels.count_conv(self._tap_rows, bits, padding).astype(np.float32)
        padded = np.pad(below, [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])
        windows = _windows(padded.astype(np.float32, copy=False), self.coupling.kernel)
        return np.ascontiguousarray((windows @ self._kernel.T).transpose(0, 3, 1, 2))

    def _unpooled(self, above: Array, switches: Array | None) -> Array:
        """Each value where its switch points, zeros elsewhere, on the convolution's maps."""
        if switches is None:
            return above
        shape = self.coupling.map_shape(self.below_shape)
        maps = np.zeros((len(above), shape[0], shape[1] * shape[2]), above.dtype)
        flat = (len(above), shape[0], -1)
        np.put_along_axis(maps, switches.reshape(flat), above.reshape(flat), axis=2)
        return maps.reshape(len(above), *shape)


def _windows(maps: Array, side: int) -> Array:
    """All windows of a kernel, (batch, height, width, channels * side * side)."""
    windows = sliding_window_view(maps, (side, side), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
    return windows.reshape(*windows.shape[:3], -1)


def _pooled(maps: Array, pool: int) -> tuple[Array, Array]:
    """The largest of each pool, and where in the map it stands: the first of equals."""
    batch, channels, height, width = maps.shape
    rows, cols = height // pool, width // pool
    tiles = maps[:, :, : rows * pool, : cols * pool].reshape(
        batch, channels, rows, pool, cols, pool
    )
    tiles = tiles.transpose(0, 1, 2, 4, 3, 5).reshape(batch, channels, rows, cols, pool * pool)
    winner = rules.winner(tiles)
    largest = np.take_along_axis(tiles, winner[..., None], -1)[..., 0]
    corner = np.arange(rows)[:, None] * pool * width + np.arange(cols) * pool
    return largest, corner + winner // pool * width + winner % pool


def _own_places(shape: Shape) -> Array:
    """Without pooling every neuron's switch is its own position, (batch, channels, rows, cols)."""
    places = np.arange(shape[2] * shape[3]).reshape(shape[2:])
    return np.broadcast_to(places, shape)
