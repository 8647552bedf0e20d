"""Couplings in the GPU's layout: products in few bits, summed exactly or in float32."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from binep.core import convolution
from binep.core.couplings import ConvPool, Dense, Shape
from binep.core.network import Network
from binep.engines.cuda.convolution import (
    Pooling,
    Window,
    channels_last,
    convolve,
    launch,
    pool_kernel,
    unpool_kernel,
)
from binep.engines.cuda.packing import PackedSigns, pack_together, padded

DIGIT_BITS = 10
DIGITS = 3


class Copies(NamedTuple):
    """Which copies of the kernels a relaxer reads.

    Attributes:
        first, inner: dtypes of the first coupling's copy, and of the others'.
        turned: whether dense kernels are there by columns, too, as integer products and events read
            them; those of convolutions always are.
        packed: whether dense signs are also stored as one bit each.
    """

    first: torch.dtype = torch.float16
    inner: torch.dtype = torch.float16
    turned: bool = False
    packed: bool = False


class Room(NamedTuple):
    """Where the copies of a kernel begin, in arrays shared by all couplings of a launch.

    Attributes:
        kernels: as sums upwards read them. turned: as sums downwards do, or None.
        at: the first entry in both.
    """

    kernels: Tensor
    turned: Tensor | None
    at: int

    def copies(self, shape: Sequence[int], turned: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Both as tensors of these shapes."""
        end = self.at + prod(shape)
        kernel = self.kernels[self.at : end].view(*shape)
        return kernel, None if self.turned is None else self.turned[self.at : end].view(*turned)


def lay_out(network: Network, copies: Copies) -> list["FastDense | FastConv"]:
    """A network's couplings with the copies that a relaxer reads.

    Couplings between layers that relax lie side by side; nothing is sent down the first one.
    """
    first, *inner = network.couplings
    sizes = [padded(coupling.synapses.kernel.numel()) for coupling in inner]
    *starts, total = accumulate(sizes, initial=0)
    images = any(isinstance(coupling, ConvPool) for coupling in inner)
    kernel = first.synapses.kernel
    kernels = torch.empty(total, dtype=copies.inner, device=kernel.device)
    turned = torch.empty_like(kernels) if copies.turned or images else None
    rooms = [Room(torch.empty_like(kernel.flatten(), dtype=copies.first), None, 0)]
    rooms += [Room(kernels, turned, at) for at in starts]
    packed: list[PackedSigns | None] = [None] * len(network.couplings)
    if copies.packed:
        shapes = [(c.synapses.kernel.shape[0], c.synapses.kernel.shape[1]) for c in inner]
        packed[1:] = pack_together(shapes, kernel.device)
    couplings: list[FastDense | FastConv] = []
    for coupling, below, room, signs in zip(
        network.couplings, network.shapes[:-1], rooms, packed, strict=True
    ):
        if isinstance(coupling, ConvPool):
            couplings.append(FastConv(coupling, below, room, exact=network.neuron.binary))
        elif isinstance(coupling, Dense):
            room = room if copies.turned else room._replace(turned=None)
            couplings.append(FastDense(coupling, below, room, signs))
    return couplings


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, summed in float32 or int32 whatever the inputs' precision."""
    if a.dtype == b.dtype == torch.int8:
        # The integer product wants more than 16 rows, and 8 columns at a time.
        if a.is_cuda and len(a) > 16 and a.shape[1] % 8 == 0 and b.shape[1] % 8 == 0:
            return torch._int_mm(a, b)  # type: ignore[attr-defined]
        a, b = a.half(), b.half()
    if a.is_cuda and a.dtype == b.dtype == torch.float16:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


class FastDense:
    """A dense coupling: its kernel, with columns in the memory order of the layer below.

    Attributes:
        room: where its copies lie. kernel, turned: (above, below) and (below, above).
        packed: the signs as a bit each. permuted: whether images are below, channels last in memory
            and channels first in the parameter.
    """

    def __init__(
        self, coupling: Dense, below_shape: Shape, room: Room, packed: PackedSigns | None = None
    ) -> None:
        self.coupling, self.below_shape = coupling, below_shape
        self.room, self.packed = room, packed
        shape = coupling.synapses.kernel.shape
        self.kernel, self.turned = room.copies(shape, shape[::-1])
        self.permuted = len(below_shape) == 3

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
        """Unscaled sums: the scale is applied where the drive is computed."""
        # Integer products want their second factor by columns.
        return product(above, self.kernel if self.turned is None else self.turned.T)

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
    """A convolution and its pool, channels last, with switches of one byte.

    Attributes:
        room: where its copies lie. kernel, turned: by taps, channels that are read, channels that
            are written; turned it makes a plain convolution of the transposed one.
        map_shape: height and width before pooling. window, pooling: what kernels know of it.
        gain: f32, (above,): scales, which stay as they are during a mini-batch.
    """

    def __init__(self, coupling: ConvPool, below_shape: Shape, room: Room, exact: bool) -> None:
        self.coupling, self.room, self.exact = coupling, room, exact
        self.dtype, side = room.kernels.dtype, coupling.kernel
        self.map_shape = [size + 2 * coupling.padding - side + 1 for size in below_shape[1:]]
        self.below_shape, self.above_shape = below_shape, coupling.above_shape(below_shape)
        self.window = Window(*below_shape[1:], *self.map_shape, coupling.padding)
        self.pooling = Pooling(*self.map_shape, *self.above_shape[1:], coupling.above)
        below, above = coupling.below, coupling.above
        self.kernel, self.turned = room.copies(
            (side, side, below, above), (side, side, above, below)
        )
        self.factors: list[Tensor] = []
        self.unit: Tensor | None = None

    def begin(self) -> None:
        """Take the current scales."""
        gain = self.coupling.synapses.gain.detach().expand(self.coupling.above)
        self.gain = gain.contiguous()
        if self.exact:
            self.unit, self.factors = split_digits(gain)
        else:
            self.factors = [self.gain]

    def refresh(self) -> None:
        """Copy the kernel from the coupling's parameter, once for each direction."""
        kernel = self.coupling.synapses.kernel.detach()
        self.kernel.copy_(kernel.permute(2, 3, 1, 0))
        if self.turned is not None:
            self.turned.copy_(kernel.flip(2, 3).permute(2, 3, 0, 1))

    def up(self, below: Tensor) -> tuple[Tensor, Tensor | None]:
        """Pooled sums and the winners' positions, both (batch, *above), channels last."""
        return self.pool(self.maps(below))

    def maps(self, below: Tensor) -> Tensor:
        """Sums before pooling, f32, (batch, above, *map_shape)."""
        coupling = self.coupling
        if below.dtype != self.dtype:
            # Real numbers in full precision.
            maps = F.conv2d(below, coupling.synapses.kernel.detach(), padding=coupling.padding)
            return maps.contiguous(memory_format=torch.channels_last)
        maps = self._empty_maps(below, torch.float32)
        convolve(below, self.kernel, coupling.padding, maps)
        return maps

    def pool(self, maps: Tensor) -> tuple[Tensor, Tensor | None]:
        """Their maxima, and the winners' positions."""
        if self.coupling.pool == 1:
            return maps, None
        pooled = channels_last(len(maps), self.above_shape, torch.float32, maps.device)
        switches = torch.empty_like(pooled, dtype=torch.uint8)
        self.launch(pool_kernel, maps, pooled, switches, count=pooled.numel())
        return pooled, switches

    def down(self, above: Tensor, switches: Tensor | None) -> Tensor:
        """The drive on the layer below, scales included."""
        if self.unit is None:
            return self._transpose(self.unpool(above, self.factors[0], switches, self.dtype))
        # Sums of float32 scales are exact in parts: three digits of each scale, added up apart as
        # integers, and put together in float64. See `ConvPool.down`.
        fields = [self.unpool(above, digit, switches, self.dtype) for digit in self.factors]
        parts = self._transpose(torch.cat(fields)).double().chunk(DIGITS)
        total = parts[0]
        for part in parts[1:]:
            total = total * 2**DIGIT_BITS + part
        return (total * self.unit).float().contiguous(memory_format=torch.channels_last)

    def unpool(
        self, above: Tensor, factor: Tensor | None, switches: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """What is sent down (times its channel's factor) where the switches point, else zeros."""
        maps = self._empty_maps(above, dtype)
        self.launch(unpool_kernel, above, factor, switches, maps, count=maps.numel())
        return maps

    def _transpose(self, maps: Tensor) -> Tensor:
        """The transposed convolution, f32."""
        assert self.turned is not None
        drive = channels_last(len(maps), self.below_shape, torch.float32, maps.device)
        convolve(maps, self.turned, self.coupling.kernel - 1 - self.coupling.padding, drive)
        return drive

    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None) -> Tensor:
        return self.correlate_maps(below, self.unpool(above, None, switches, torch.float32))

    def correlate_maps(self, below: Tensor, maps: Tensor) -> Tensor:
        """The same with activities above that are unpooled already."""
        coupling = self.coupling
        shape, padding = coupling.synapses.kernel.shape, coupling.padding
        exact = self.exact and below.dtype == self.dtype
        found = convolution.correlate(below.float(), shape, maps, padding, exact=exact)
        return found.contiguous()

    def launch(self, kernel: Any, *arguments: Any, count: int, **flags: Any) -> None:
        """Run an element-wise kernel over maps or pooled maps."""
        pool = self.coupling.pool
        launch(kernel, count, *arguments, count=count, pooling=self.pooling, POOL=pool, **flags)

    def _empty_maps(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        shape = (self.coupling.above, *self.map_shape)
        return channels_last(len(like), shape, dtype, like.device)


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


def flat(images: Tensor) -> Tensor:
    """(batch, features) in the order of memory."""
    return images if images.dim() == 2 else images.permute(0, 2, 3, 1).flatten(1)
