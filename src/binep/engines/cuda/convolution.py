"""Convolutions and max-pooling of channels-last images, and their kernels.

A convolution is a matrix product whose left factor is gathered tap by tap.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements of a program that runs an element-wise kernel
PROGRAMS = 120  # that keep most of a GPU's multiprocessors busy


class Window(NamedTuple):
    """What a convolution (stride 1) reads, height x width padded, and writes, rows x columns."""

    height: int
    width: int
    rows: int
    columns: int
    padding: int


class Pooling(NamedTuple):
    """Maps, height x width, and their pooled size, rows x columns."""

    height: int
    width: int
    rows: int
    columns: int
    channels: int


class Tile(NamedTuple):
    """What one program sums: rows x outputs, `depth` terms at a time."""

    rows: int
    outputs: int
    depth: int
    warps: int = 4
    stages: int = 4

    def programs(self, count: int, outputs: int) -> int:
        """Number of programs for `count` rows and `outputs` outputs."""
        return -(-count // self.rows) * -(-outputs // self.outputs)

    @property
    def options(self) -> dict[str, int]:
        """Compile options of a kernel with such tiles."""
        return {"num_warps": self.warps, "num_stages": self.stages}


def convolve(
    x: Tensor, weights: Tensor, padding: int, sums: Tensor, tile: Tile | None = None
) -> None:
    """Convolve (stride 1) into `sums`.

    Args:
        x: (batch, channels, height, width), channels last. weights: (side, side, channels, out).
        tile: instead of the one that fits.
    """
    side, _, channels, outputs = weights.shape
    batch, _, height, width = x.shape
    rows, columns = height + 2 * padding - side + 1, width + 2 * padding - side + 1
    count = batch * rows * columns
    tile = tile or fitting_tile(count, outputs, side * side * channels)
    conv_kernel[(tile.programs(count, outputs),)](
        x,
        weights,
        sums,
        count,
        outputs,
        Window(height, width, rows, columns, padding),
        CHANNELS=channels,
        KERNEL=side,
        WHOLE=batch % tile.rows == 0 and outputs % tile.outputs == 0,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        DEPTH=tile.depth,
        **tile.options,
    )


def fitting_tile(count: int, outputs: int, terms: int) -> Tile:
    """The largest tile that leaves work for all multiprocessors.

    Short sums are read in shallow tiles, of which a multiprocessor holds several at once, those of
    other trainings too.
    """
    tile = Tile(64, min(128, max(16, 1 << (outputs - 1).bit_length())), 64)
    while tile.outputs > 32 and tile.programs(count, outputs) < PROGRAMS:
        tile = tile._replace(outputs=tile.outputs // 2)
    if tile.programs(count, outputs) > 2 * PROGRAMS:
        tile = tile._replace(stages=3)
    return tile if tile.outputs > 64 or terms < 2000 else tile._replace(depth=128)


def channels_last(batch: int, shape: Sequence[int], dtype: torch.dtype, device: Any) -> Tensor:
    return torch.empty(
        (batch, *shape), dtype=dtype, device=device, memory_format=torch.channels_last
    )


def launch(kernel: Any, elements: int, *arguments: Any, **flags: Any) -> None:
    """Run an element-wise kernel over all elements, without contracting multiply-adds."""
    grid = (-(-elements // BLOCK),)
    kernel[grid](*arguments, BLOCK=BLOCK, enable_fp_fusion=False, **flags)


# --- convolutions


@triton.jit
def conv_kernel(
    x,  # (batch, height, width, CHANNELS)
    weights,  # (KERNEL * KERNEL, CHANNELS, outputs)
    sums,  # f32, (batch, rows, columns, outputs)
    count,  # batch * rows * columns
    outputs,
    window,  # Window
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    WHOLE: tl.constexpr,  # each tile lies at one position, and none reaches beyond the outputs
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Sums over a kernel (stride 1)."""
    width, columns, positions = window.width, window.columns, window.rows * window.columns
    tiles = tl.cdiv(outputs, OUTPUTS)
    begin = tl.program_id(0) // tiles * ROWS
    m = begin + tl.arange(0, ROWS)
    n = tl.program_id(0) % tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    # The rows of a tile are samples at one position, or at a few: most taps that are outside are so
    # for all of them, and are left out.
    samples = count // positions
    sample, position = m % samples, m // samples
    top, left = position // columns - window.padding, position % columns - window.padding
    corner = ((sample * window.height + top) * width + left) * CHANNELS
    down, right = taps_inside(m < count, top, left, window, ROWS, KERNEL)
    k = tl.arange(0, DEPTH)
    read, factors = x + corner[:, None] + k[None, :], weights + k[:, None] * outputs + n[None, :]
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    if CHANNELS % DEPTH == 0:
        # A block of terms lies within one tap.
        first, last = begin // samples, (tl.minimum(begin + ROWS, count) - 1) // samples
        line_from, line_to, column_from, column_to = taps_of_any(first, last, window, KERNEL)
        line, column, channel = line_from, column_from, 0
        blocks = (line_to - line_from) * (column_to - column_from) * (CHANNELS // DEPTH)
        for _ in range(blocks):
            there = ((down >> line) & (right >> column) & 1) > 0
            offset = (line * width + column) * CHANNELS + channel
            term = (line * KERNEL + column) * CHANNELS + channel
            a = _load(read + offset, there[:, None], WHOLE)
            w = _load(factors + term * outputs, (n < outputs)[None, :], WHOLE)
            total = tl.dot(a, w, total)
            line, column, channel = next_block(
                line, column, channel, column_from, column_to, CHANNELS, DEPTH
            )
    else:
        # It may reach over several.
        TERMS: tl.constexpr = KERNEL * KERNEL * CHANNELS
        for start in range(0, TERMS, DEPTH):
            term = start + k
            line = term // (KERNEL * CHANNELS)
            column = term // CHANNELS - line * KERNEL
            there = ((down[:, None] >> line[None, :]) & (right[:, None] >> column[None, :]) & 1) > 0
            offset = start + line * ((width - KERNEL) * CHANNELS)
            real = term < TERMS
            a = _load(read + offset[None, :], there & real[None, :], False)
            w = _load(factors + start * outputs, (n < outputs)[None, :] & real[:, None], False)
            total = tl.dot(a, w, total)
    index = (sample * positions + position)[:, None] * outputs + n[None, :]
    inside = (m < count)[:, None] & (n < outputs)[None, :]
    tl.store(sums + index, total, mask=inside)


@triton.jit
def taps_inside(real, top, left, window, ROWS: tl.constexpr, KERNEL: tl.constexpr):
    """Bit i of `down` says that line i of a row's taps is inside, of `right` that column i is."""
    down = tl.zeros((ROWS,), tl.int32)
    right = tl.zeros((ROWS,), tl.int32)
    for i in tl.static_range(KERNEL):
        down |= (real & (top + i >= 0) & (top + i < window.height)).to(tl.int32) << i
        right |= ((left + i >= 0) & (left + i < window.width)).to(tl.int32) << i
    return down, right


@triton.jit
def taps_of_any(first, last, window, KERNEL: tl.constexpr):
    """The lines and columns of a kernel that are inside for any position from first to last."""
    columns, padding = window.columns, window.padding
    line_from, line_to = _span(first // columns, last // columns, padding, window.height, KERNEL)
    wraps = first // columns < last // columns
    column_from, column_to = _span(
        tl.where(wraps, 0, first % columns),
        tl.where(wraps, columns - 1, last % columns),
        padding,
        window.width,
        KERNEL,
    )
    return line_from, line_to, column_from, column_to


@triton.jit
def _span(first, last, padding, size, KERNEL: tl.constexpr):
    """The same along one side."""
    begin = tl.maximum(padding - last, 0)
    end = tl.minimum(size + padding - first, KERNEL)
    return begin, tl.maximum(end, begin)


@triton.jit
def next_block(line, column, channel, column_from, column_to, channels, DEPTH: tl.constexpr):
    """Where the block of terms after this one begins: channel by channel, then tap by tap."""
    channel += DEPTH
    end = channel == channels
    channel = tl.where(end, 0, channel)
    column += end.to(tl.int32)
    end = column == column_to
    column = tl.where(end, column_from, column)
    return line + end.to(tl.int32), column, channel


@triton.jit
def _load(place, mask, WHOLE: tl.constexpr):
    """The values there, 0 where the mask is false; with WHOLE there is no mask."""
    return tl.load(place) if WHOLE else tl.load(place, mask=mask, other=0.0)


# --- pools


@triton.jit
def pool_kernel(
    maps,  # f32, (batch, height, width, channels)
    pooled,  # f32, (batch, rows, columns, channels)
    switches,  # uint8, like pooled: the winner's place in its pool
    count,
    pooling,  # Pooling
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Max-pool with switches: on a tie the first position wins."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    corner = pool_corner(index, pooling, POOL)
    best, winner = largest_in_pool(maps + corner, inside, pooling.width, pooling.channels, POOL)
    tl.store(pooled + index, best, mask=inside)
    tl.store(switches + index, winner.to(tl.uint8), mask=inside)


@triton.jit
def pool_corner(index, pooling, POOL: tl.constexpr):
    """Where on the maps, (batch, height, width, channels), the pool of each neuron begins."""
    channels, rows, columns = pooling.channels, pooling.rows, pooling.columns
    column = index // channels % columns
    row = index // (channels * columns) % rows
    sample = index // (channels * columns * rows)
    position = (sample * pooling.height + row * POOL) * pooling.width + column * POOL
    return position * channels + index % channels


@triton.jit
def largest_in_pool(corner, inside, width, channels, POOL: tl.constexpr):
    """The largest sum of each pool and its position: on a tie the first."""
    best = tl.load(corner, mask=inside, other=0)
    winner = tl.zeros_like(inside.to(tl.int32))
    for place in tl.static_range(1, POOL * POOL):
        offset = (place // POOL * (width - POOL) + place) * channels
        value = tl.load(corner + offset, mask=inside, other=0)
        better = value > best
        best = tl.where(better, value, best)
        winner = tl.where(better, place, winner)
    return best, winner


@triton.jit
def unpool_kernel(
    above,  # activities, (batch, rows, columns, channels)
    factor,  # f32, (channels,): scales, or digits of them; or None
    switches,  # uint8, like above, if POOL > 1
    maps,  # (batch, height, width, channels)
    count,
    pooling,  # Pooling
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each activity (times its channel's factor) where its switch points, zeros elsewhere."""
    channels, height, width = pooling.channels, pooling.height, pooling.width
    rows, columns = pooling.rows, pooling.columns
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    channel = index % channels
    x = index // channels % width
    y = index // (channels * width) % height
    sample = index // (channels * width * height)
    row, column = y // POOL, x // POOL
    pooled = inside & (row < rows) & (column < columns)
    source = ((sample * rows + row) * columns + column) * channels + channel
    value = tl.load(above + source, mask=pooled, other=0.0).to(tl.float32)
    if factor is not None:
        value = tl.load(factor + channel, mask=pooled, other=0.0) * value
    if POOL > 1:
        winner = tl.load(switches + source, mask=pooled, other=255).to(tl.int32)
        value = tl.where(winner == y % POOL * POOL + x % POOL, value, 0.0)
    tl.store(maps + index, value.to(maps.dtype.element_ty), mask=inside)
