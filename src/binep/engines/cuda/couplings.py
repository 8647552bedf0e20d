# pyright: reportCallIssue=false, reportArgumentType=false
"""Couplings in the layout of the GPU: products in few bits, added up exactly or in float32."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from binep.core.couplings import ConvPool, Dense, Shape
from binep.core.network import Network
from binep.engines.cuda.conv_events import (
    dense_events_kernel,
    down_events_kernel,
    pool_events_kernel,
    up_events_kernel,
)
from binep.engines.cuda.convolving import conv_kernel, pool_kernel, unpool_kernel
from binep.engines.cuda.kernels import BLOCK
from binep.engines.cuda.packing import PackedSigns

DIGIT_BITS = 10
DIGITS = 3
EVENT_TILE = 512  # neurons whose sums a program brings up to date
EVENT_GROUP = 4  # events whose rows a program has at hand: each thread adds up its own columns
PROGRAMS = 120  # that keep most of a GPU's multiprocessors busy


def dtype_of_bits(network: Network) -> torch.dtype:
    """int8 halves the traffic of wide layers, but its products want multiples of 8."""
    sizes = [size for shape in network.layer_shapes for size in shape]
    return torch.int8 if all(size % 8 == 0 for size in sizes) else torch.float16


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, added up in float32 or int32, whatever the inputs' precision."""
    if a.dtype == b.dtype == torch.int8:
        # The integer product wants more than 16 rows, and 8 columns at a time.
        if a.is_cuda and len(a) > 16 and a.shape[1] % 8 == 0 and b.shape[1] % 8 == 0:
            return torch._int_mm(a, b)  # type: ignore[attr-defined]
        a, b = a.half(), b.half()
    if a.is_cuda and a.dtype == b.dtype == torch.float16:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


@dataclass
class Tensors:
    """Tensors that a phase changes in place."""

    def clone(self) -> Self:
        return type(self)(*(getattr(self, each.name).clone() for each in fields(self)))


@dataclass
class Kept(Tensors):
    """What one convolution between bits keeps from step to step.

    Attributes:
        maps: int32, sums before pooling. drive: f64, on the layer below.
        places: uint8, where in its pool each bit above is sent, or that it is not.
    """

    maps: Tensor
    drive: Tensor
    places: Tensor


@dataclass
class KeptSums(Tensors):
    """The same of a dense coupling: int32, (batch, above) and (batch, below)."""

    up: Tensor
    down: Tensor


class Listed(NamedTuple):
    """Neurons of a layer to which something happens in a step, sample by sample.

    Attributes:
        events: int32, (batch, units). counts: int32, (batch,): how many there are.
        spent: int32, (batch,): those of the step before, to be set to zero.
    """

    events: Tensor
    counts: Tensor
    spent: Tensor


class FastDense:
    """A dense coupling: its kernel in the dtype of activities, columns in their memory order."""

    def __init__(self, coupling: Dense, below_shape: Shape, dtype: torch.dtype) -> None:
        self.coupling, self.below_shape = coupling, below_shape
        kernel = coupling.synapses.kernel.detach()
        self.kernel = torch.empty_like(kernel, dtype=dtype)
        # An image below lies in memory channels last; the reference numbers it channels first.
        self.permuted = len(below_shape) == 3
        # Integer products want their second factor by columns, and events want rows of both layers:
        # a copy for each direction.
        self.turned: Tensor | None = None
        if dtype == torch.int8:
            self.turned = torch.empty_like(kernel.T.contiguous(), dtype=dtype)
        self.packed: PackedSigns | None = None

    def begin(self) -> None:
        """Nothing to prepare for a mini-batch."""

    def refresh(self) -> None:
        """Copy the kernel from the coupling's parameter."""
        kernel = self.in_memory_order()
        self.kernel.copy_(kernel)
        if self.turned is not None:
            self.turned.copy_(kernel.T)
        if self.packed is not None:
            self.packed.refresh(kernel)

    def up(self, below: Tensor) -> tuple[Tensor, None]:
        return product(flat(below), self.kernel.T), None

    def down(self, above: Tensor, switches: Tensor | None) -> Tensor:
        """Unscaled sums: the scale is applied where the drive is put together."""
        return product(above, self.kernel if self.turned is None else self.turned.T)

    def follow_events(self, kept: KeptSums, below: Listed, above: Listed) -> None:
        """Bring the sums in both directions up to date, after bits on either side flipped."""
        assert self.turned is not None
        (batch, outputs), inputs = kept.up.shape, kept.down.shape[1]
        tiles = -(-outputs // EVENT_TILE) + -(-inputs // EVENT_TILE)
        dense_events_kernel[(batch, tiles)](
            below.events,
            below.counts,
            above.events,
            above.counts,
            self.turned,
            self.kernel,
            kept.up,
            kept.down,
            inputs,
            outputs,
            GROUP=8,
            TILE=EVENT_TILE,
        )

    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None) -> Tensor:
        return self.in_parameter_order(above.float().T @ flat(below).float())

    def in_memory_order(self) -> Tensor:
        """The coupling's kernel as it is now, with the columns where activities have them."""
        kernel = self.coupling.synapses.kernel.detach()
        if not self.permuted:
            return kernel
        return kernel.unflatten(1, self.below_shape).permute(0, 2, 3, 1).flatten(1)

    def in_parameter_order(self, contrast: Tensor) -> Tensor:
        """A contrast, (above, below), with the columns where the parameter has them."""
        if not self.permuted:
            return contrast
        channels, height, width = self.below_shape
        contrast = contrast.unflatten(1, (height, width, channels))
        return contrast.permute(0, 3, 1, 2).flatten(1).contiguous()


class FastConv:
    """A convolution and its pool, channels last, with switches of one byte."""

    def __init__(
        self, coupling: ConvPool, below_shape: Shape, dtype: torch.dtype, exact: bool
    ) -> None:
        self.coupling, self.dtype, self.exact = coupling, dtype, exact
        self.map_shape = [
            side + 2 * coupling.padding - coupling.kernel + 1 for side in below_shape[1:]
        ]
        self.below_shape, self.above_shape = below_shape, coupling.above_shape(below_shape)
        # By taps, channels that are read, channels that are written; the transposed convolution
        # is a plain one with the kernel turned.
        kernel, side = coupling.synapses.kernel, coupling.kernel
        self.kernel = kernel.new_empty(side, side, coupling.below, coupling.above, dtype=dtype)
        self.turned = kernel.new_empty(side, side, coupling.above, coupling.below, dtype=dtype)
        self.factors: list[Tensor] = []
        self.unit: Tensor | None = None

    def begin(self) -> None:
        """Take up the scales, which stay as they are during a mini-batch."""
        gain = self.coupling.synapses.gain.detach().expand(self.coupling.above)
        if self.exact:
            self.unit, self.factors = split_digits(gain)
        else:
            self.factors = [gain.contiguous()]

    def refresh(self) -> None:
        """Copy the kernel from the coupling's parameter, once for each direction."""
        kernel = self.coupling.synapses.kernel.detach()
        self.kernel.copy_(kernel.permute(2, 3, 1, 0))
        self.turned.copy_(kernel.flip(2, 3).permute(2, 3, 0, 1))

    def up(self, below: Tensor) -> tuple[Tensor, Tensor | None]:
        """Pooled sums and the winners' places, both (batch, *above), channels last."""
        return self.pool(self.maps(below))

    def pool(self, maps: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same from sums before pooling."""
        if self.coupling.pool == 1:
            return maps, None
        pooled = channels_last(len(maps), self.above_shape, torch.float32, maps.device)
        switches = torch.empty_like(pooled, dtype=torch.uint8)
        self._launch(pool_kernel, pooled.numel(), maps, pooled, switches)
        return pooled, switches

    def down(self, above: Tensor, switches: Tensor | None) -> Tensor:
        """The drive on the layer below, scales included."""
        if self.unit is None:
            return self.transpose(self.unpool(above, self.factors[0], switches, self.dtype))
        # Sums of float32 scales are exact in parts: three digits of each scale, added up apart as
        # integers, and put together in float64. See `ConvPool.down`.
        fields = [self.unpool(above, digit, switches, self.dtype) for digit in self.factors]
        parts = self.transpose(torch.cat(fields)).double().chunk(DIGITS)
        total = parts[0]
        for part in parts[1:]:
            total = total * 2**DIGIT_BITS + part
        return (total * self.unit).float().contiguous(memory_format=torch.channels_last)

    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None) -> Tensor:
        return self.correlate_maps(below, self.unpool(above, None, switches, torch.float32))

    def correlate_maps(self, below: Tensor, maps: Tensor) -> Tensor:
        """The same with activities above that are unpooled already."""
        coupling = self.coupling
        shape, padding = coupling.synapses.kernel.shape, coupling.padding
        return conv2d_weight(below.float(), shape, maps, padding=padding).contiguous()

    def maps(self, below: Tensor) -> Tensor:
        """Sums before pooling, f32, (batch, above, *map_shape)."""
        coupling = self.coupling
        if below.dtype != self.dtype:
            # Real numbers in full precision.
            maps = F.conv2d(below, coupling.synapses.kernel.detach(), padding=coupling.padding)
            return maps.contiguous(memory_format=torch.channels_last)
        shape = (coupling.above, *self.map_shape)
        maps = channels_last(len(below), shape, torch.float32, below.device)
        convolve(below, self.kernel, coupling.padding, maps)
        return maps

    def transpose(self, maps: Tensor) -> Tensor:
        """The transposed convolution, f32."""
        drive = channels_last(len(maps), self.below_shape, torch.float32, maps.device)
        convolve(maps, self.turned, self.coupling.kernel - 1 - self.coupling.padding, drive)
        return drive

    def pool_events(self, above: Tensor, kept: Kept, moves: Listed) -> Tensor:
        """Pooled sums of the maps that are kept; lists the bits above that are sent elsewhere."""
        pooled = channels_last(len(above), self.above_shape, torch.float32, above.device)
        self._launch(
            pool_events_kernel,
            pooled.numel(),
            kept.maps,
            above,
            kept.places,
            pooled,
            *moves,
            batch=len(above),
        )
        return pooled

    def down_events(self, kept: Kept, moves: Listed) -> None:
        """Bring the drive on the layer below up to date."""
        (channels, _, columns), (below, height, width) = self.above_shape, self.below_shape
        down_events_kernel[(len(kept.drive) * height * width,)](
            moves.events,
            moves.counts,
            self.turned,
            self.coupling.synapses.gain.detach().expand(channels).contiguous(),
            kept.drive,
            moves.events.shape[1],
            columns,
            channels,
            height,
            width,
            below,
            self.coupling.padding,
            POOL=self.coupling.pool,
            KERNEL=self.coupling.kernel,
            GROUP=EVENT_GROUP,
            BELOW=1 << (below - 1).bit_length(),
            num_warps=_warps(below),
        )

    def up_events(self, kept: Kept, flips: Listed) -> None:
        """Bring the maps up to date."""
        (height, width), (below, _, below_width) = self.map_shape, self.below_shape
        up_events_kernel[(len(kept.maps) * height * width,)](
            flips.events,
            flips.counts,
            self.kernel,
            kept.maps,
            flips.events.shape[1],
            below_width,
            below,
            height,
            width,
            self.coupling.above,
            self.coupling.padding,
            KERNEL=self.coupling.kernel,
            GROUP=EVENT_GROUP,
            ABOVE=1 << (self.coupling.above - 1).bit_length(),
            num_warps=_warps(self.coupling.above),
        )

    def unpool(
        self, above: Tensor, factor: Tensor | None, switches: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """What is sent down (times its channel's factor) where the switches point, else zeros."""
        shape = (self.coupling.above, *self.map_shape)
        maps = channels_last(len(above), shape, dtype, above.device)
        unused = maps if factor is None else factor
        place = above if switches is None else switches
        scaled = factor is not None
        self._launch(unpool_kernel, maps.numel(), above, unused, place, maps, SCALED=scaled)
        return maps

    def _launch(self, kernel: Any, elements: int, *tensors: Tensor, **flags: Any) -> None:
        (height, width), (channels, rows, columns) = self.map_shape, self.above_shape
        sizes = {"height": height, "width": width, "rows": rows, "columns": columns}
        launch(
            kernel,
            elements,
            *tensors,
            count=elements,
            channels=channels,
            POOL=self.coupling.pool,
            **sizes,
            **flags,
        )


class Tile(NamedTuple):
    """What one program adds up: rows x outputs, by `depth` terms at a time.

    `registers` is how many a thread may have at the most; with fewer, a multiprocessor holds more
    programs.
    """

    rows: int
    outputs: int
    depth: int
    warps: int = 4
    stages: int = 4
    registers: int | None = None

    def programs(self, count: int, outputs: int) -> int:
        """How many programs `count` rows and so many outputs need."""
        return -(-count // self.rows) * -(-outputs // self.outputs)

    @property
    def options(self) -> dict[str, int]:
        """How a kernel of such tiles is compiled."""
        most = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages} | most


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
        height,
        width,
        rows,
        columns,
        outputs,
        padding,
        CHANNELS=channels,
        KERNEL=side,
        WHOLE=batch % tile.rows == 0 and outputs % tile.outputs == 0,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        DEPTH=tile.depth,
        **tile.options,
    )


def fitting_tile(count: int, outputs: int, terms: int) -> Tile:
    """As large as leaves work for all multiprocessors.

    Short sums are read in shallow tiles, of which a multiprocessor holds several at once, those of
    other trainings too.
    """
    tile = Tile(64, min(128, max(16, 1 << (outputs - 1).bit_length())), 64)
    while tile.outputs > 32 and tile.programs(count, outputs) < PROGRAMS:
        tile = tile._replace(outputs=tile.outputs // 2)
    if tile.programs(count, outputs) > 2 * PROGRAMS:
        tile = tile._replace(stages=3)
    return tile if tile.outputs > 64 or terms < 2000 else tile._replace(depth=128)


def _warps(channels: int) -> int:
    """So many that a thread has eight columns of a row, or a few more."""
    return min(8, max(1, channels // 256))


def split_digits(gain: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A unit, (), and integers below 2**10 whose number in base 2**10 times the unit is `gain`.

    Exact for scales down to 1/64 of the largest, whose 24 bits fit into the 30 of three digits.
    """
    wide = gain.double()
    unit = torch.exp2(wide.max().log2().floor() + 1 - DIGIT_BITS * DIGITS)
    rest, digits = wide / unit, []
    for place in reversed(range(DIGITS)):
        digit = torch.floor(rest / 2 ** (DIGIT_BITS * place))
        rest = rest - digit * 2 ** (DIGIT_BITS * place)
        digits.append(digit.float())
    return unit, [digit.contiguous() for digit in digits]


def channels_last(batch: int, shape: Sequence[int], dtype: torch.dtype, device: Any) -> Tensor:
    return torch.empty(
        (batch, *shape), dtype=dtype, device=device, memory_format=torch.channels_last
    )


def flat(images: Tensor) -> Tensor:
    """(batch, features) in the order of memory."""
    return images if images.dim() == 2 else images.permute(0, 2, 3, 1).flatten(1)


def launch(kernel: Any, elements: int, *arguments: Any, **flags: Any) -> None:
    """Run an element-wise kernel over all elements, without contracting multiply-adds."""
    grid = (-(-elements // BLOCK),)
    kernel[grid](*arguments, BLOCK=BLOCK, enable_fp_fusion=False, **flags)
