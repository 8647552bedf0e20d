"""Couplings: the synapses between two adjacent layers, used in both directions.

A coupling is one bilinear term of the energy. With switches frozen and no bias, `up`, `down` and
`correlate` are its three faces:

    <up(x), y>  =  <x, down(y)>  =  <W, correlate(x, y)>

What a layer sends is read by its dtype: bool tensors are bits, uint8 tensors are pixels (0..255,
standing for 0..1), floating tensors are themselves. Sums run over signs and bits or pixels first,
so that they are exact integers in float32 (below 2**24), and are scaled afterwards.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from binep.core import convolution
from binep.core.described import arguments
from binep.core.weights import BinaryWeight, RealWeight, default_draw, wide
from binep.errors import BinepError

Shape = tuple[int, ...]
PIXEL_LEVELS = 255
NARROW = 64  # neurons of a layer


def levels(values: Tensor) -> int:
    """How many steps of `values` make one unit: 255 for pixels, 1 for bits and real numbers."""
    return PIXEL_LEVELS if values.dtype == torch.uint8 else 1


def gain_of(synapses: BinaryWeight | RealWeight, below: Tensor) -> Tensor:
    """The factor on sums over `below`: `gain / levels(below)`, rounded alike on all devices.

    By a plain number a GPU would not divide, but multiply with its rounded reciprocal.
    """
    gain, count = synapses.gain, levels(below)
    return gain if count == 1 else gain / gain.new_full((), count)


def sample_shape(shape: Sequence[int]) -> Shape:
    """A layer's shape, (features,) or (channels, height, width), given with or without batch."""
    return tuple(shape) if len(shape) in (1, 3) else tuple(shape[1:])


def correlated(below: Tensor, above: Tensor, out: Tensor | None = None) -> Tensor:
    """`above^T below` of real numbers, (batch, n) and (batch, m): summed over the batch, (n, m).

    Where a layer is narrow, the order in which a CPU sums float32 depends on how many threads do
    it; so that product is summed in float64 and rounded once.
    """
    narrow = min(above.shape[1], below.shape[1]) < NARROW
    if not narrow or above.device.type != "cpu" or above.dtype != torch.float32:
        return torch.mm(above.T, below, out=out)
    total = torch.mm(above.T.double(), below.double())
    return total.to(above.dtype) if out is None else out.copy_(total)


def packed(signs: Tensor) -> Tensor:
    """Signs as bits, +1 as 1, eight in a byte: uint8, on the CPU."""
    if signs.is_meta:  # only the shape is asked for
        return signs.new_empty(math.ceil(signs.numel() / 8), dtype=torch.uint8)
    return torch.from_numpy(np.packbits((signs > 0).flatten().cpu().numpy()))


class Coupling(nn.Module, ABC):
    """Synapses and bias between a layer below and a layer above; see `Dense` and `ConvPool`.

    One of your own has a `name` (see `binep.registry`), makes its weights with `build`, keeps the
    arguments of its constructor as attributes, and says what `above_shape`, `sum_up`, `down`,
    `correlate` and, for layers that are no vectors, `per_output` are.
    """

    name: ClassVar[str]
    synapses: BinaryWeight | RealWeight
    bias: nn.Parameter | None
    pool: int = 1

    def build(
        self,
        weight_shape: Shape,
        *,
        binary: bool = True,
        bias: bool = True,
        learn_scale: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        """Draw weights, (above, ...), and a bias, (above,); the options are those of `Dense`."""
        if learn_scale and not binary:
            raise BinepError(
                "learn_scale=True with binary=False: a real weight has no scale to learn"
            )
        out, fan_in = weight_shape[0], torch.Size(weight_shape[1:]).numel()
        draw = default_draw(weight_shape, fan_in, generator)
        self.synapses = (
            BinaryWeight(draw, channelwise=len(weight_shape) > 2, learn_scale=learn_scale)
            if binary
            else RealWeight(draw)
        )
        self.bias = nn.Parameter(default_draw((out,), fan_in, generator)) if bias else None

    @classmethod
    def connect(cls, below_shape: Shape, size: int, **options: Any) -> Self:
        """A coupling from a layer of this shape to one of `size` neurons, as recipes ask for it."""
        return cls(math.prod(below_shape), size, **options)  # type: ignore[call-arg]

    def describe(self) -> dict[str, Any]:
        """The arguments that make a coupling like this one, with other weights."""
        learnt = isinstance(self.synapses, BinaryWeight) and self.synapses.scale.requires_grad
        return arguments(self, binary=self.binary, bias=self.bias is not None, learn_scale=learnt)

    def stored(self) -> dict[str, Tensor]:
        """All that it has learnt, by name: `bits` and `scale`, or `weight`, and `bias`.

        Signs are packed, eight in a byte, +1 as 1. What else a coupling keeps as parameters and
        buffers goes by its own names.
        """
        tensors = {
            name.removeprefix("synapses."): tensor.detach()
            for name, tensor in self.state_dict().items()
        }
        if "signs" in tensors:
            tensors["bits"] = packed(tensors.pop("signs"))
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `stored` gave, of a coupling like this one."""
        for name, tensor in self.state_dict(keep_vars=True).items():
            part = name.removeprefix("synapses.")
            if part == "signs":
                bits = np.unpackbits(tensors["bits"].numpy(), count=tensor.numel())
                found = 2.0 * torch.from_numpy(bits) - 1
                tensor.copy_(found.reshape(tensor.shape))
            else:
                tensor.copy_(tensors[part])

    @property
    def binary(self) -> bool:
        return isinstance(self.synapses, BinaryWeight)

    @property
    def signs(self) -> nn.Parameter:
        """The +-1 of a binary coupling, shaped like the weight; what Bop flips."""
        return self._binary_synapses("signs").signs

    @property
    def scale(self) -> nn.Parameter:
        """alpha of a binary coupling: () for `Dense`, (out,) for `ConvPool`."""
        return self._binary_synapses("scale").scale

    @property
    def weight(self) -> Tensor:
        """W: `scale * signs`, or the weight parameter itself with `binary=False`."""
        return self.synapses.full

    def _binary_synapses(self, name: str) -> BinaryWeight:
        if not isinstance(self.synapses, BinaryWeight):
            raise BinepError(f"{self} has real weights: it has `weight`, no `{name}`")
        return self.synapses

    @abstractmethod
    def above_shape(self, below_shape: Shape) -> Shape:
        """The shape of the layer above, for a layer below that fits; an error otherwise."""

    @abstractmethod
    def sum_up(self, below: Tensor) -> tuple[Tensor, Tensor | None]:
        """Unscaled, pooled sums over the kernel of what is sent, and the switches of the pool."""

    @abstractmethod
    def down(self, above: Tensor, switches: Tensor | None, below_shape: Sequence[int]) -> Tensor:
        """The drive of `above` on the layer below: the transpose of `up`, without bias.

        Args:
            above: (batch, *layer above).
            switches: those of the same time step's `up`; None for `Dense` and without pooling.
            below_shape: of the layer below, with or without the batch.
        """

    @abstractmethod
    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None) -> Tensor:
        """`d<up(below), above>/dW`, summed over the batch, shaped like the weight.

        For pixels the sums are over 0..255: divide by `levels(below)`.
        """

    def products(self, below_shape: Shape) -> int:
        """Multiplications of one sum over all synapses, for a sample: one a weight and place."""
        return self.synapses.kernel.numel()

    def correlate_bias(self, above: Tensor) -> Tensor:
        """`d<up(below), above>/db`: `above` summed over batch and positions, (out,)."""
        numbers = self.numbers(above).transpose(0, 1).flatten(1)
        return numbers.sum(1, dtype=wide(numbers)).to(numbers.dtype)

    def up(self, below: Tensor) -> tuple[Tensor, Tensor | None]:
        """The drive of `below` on the layer above, bias included, and the pool's switches.

        The order of arithmetic is part of the definition: sums over signs, pooling, then the
        scale, then the bias, each rounded on its own.
        """
        sums, switches = self.sum_up(below)
        drive = self.per_output(gain_of(self.synapses, below)) * sums
        if self.bias is not None:
            drive = drive + self.per_output(self.bias)
        return drive, switches

    def numbers(self, values: Tensor) -> Tensor:
        """Bits and pixels as numbers that the kernel can be multiplied with."""
        return values.to(self.synapses.kernel.dtype)

    def per_output(self, values: Tensor) -> Tensor:
        """Shape () or (out,) values so that they meet a drive on the layer above."""
        return values


class Dense(Coupling):
    """All-to-all coupling: up `W a + b`, down `W^T a`.

    Args:
        below: number of neurons of the layer below. An image is flattened.
        above: number of neurons of the layer above.
        binary: `W = scale * signs` with one scale; otherwise a real weight.
        bias: whether the layer above has a bias, (above,).
        learn_scale: whether the scale is trained.
        generator: source of the initial draw; the global one by default.

    >>> coupling = Dense(784, 10)
    >>> drive, switches = coupling.up(torch.rand(64, 784))
    >>> drive.shape, switches
    (torch.Size([64, 10]), None)
    >>> coupling.down(torch.rand(64, 10), None, (784,)).shape
    torch.Size([64, 784])
    """

    name = "dense"

    def __init__(
        self,
        below: int,
        above: int,
        *,
        binary: bool = True,
        bias: bool = True,
        learn_scale: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.below, self.above = _positive(below=below, above=above)
        self.build(
            (above, below), binary=binary, bias=bias, learn_scale=learn_scale, generator=generator
        )

    def extra_repr(self) -> str:
        return f"{self.below}, {self.above}, binary={self.binary}"

    def above_shape(self, below_shape: Shape) -> Shape:
        features = torch.Size(below_shape).numel()
        if features != self.below:
            raise BinepError(
                f"Dense({self.below}, {self.above}) does not connect to a layer below of shape "
                f"{tuple(below_shape)}: that has {features} neurons, allowed: {self.below}"
            )
        return (self.above,)

    def sum_up(self, below: Tensor) -> tuple[Tensor, None]:
        return F.linear(self.numbers(below).flatten(1), self.synapses.kernel), None

    def down(self, above: Tensor, switches: Tensor | None, below_shape: Sequence[int]) -> Tensor:
        sums = F.linear(self.numbers(above), self.synapses.kernel.T)
        return (self.synapses.gain * sums).reshape(len(above), *sample_shape(below_shape))

    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None = None) -> Tensor:
        below = self.numbers(below).flatten(1)
        if above.is_floating_point():
            return correlated(below, above)
        return self.numbers(above).T @ below


class ConvPool(Coupling):
    """Convolution (stride 1) and max-pooling: up `pool(W * a) + b`, down its transpose.

    The pool remembers which position won, its *switches*: flat indices into a map of the
    convolution, (batch, above, height, width). On a tie the first position in row-major order
    wins. Rows and columns that do not fill a pool are dropped.

    Args:
        below: number of channels of the layer below.
        above: number of channels of the layer above.
        kernel: side of the square kernel.
        padding: zeros around the layer below.
        pool: side of the square pool, 1 for none.
        binary: `W = scale * signs` with one scale for each output channel.
        bias: whether the layer above has a bias for each channel, (above,).
        learn_scale: whether the scales are trained.
        generator: source of the initial draw; the global one by default.

    >>> coupling = ConvPool(1, 32, kernel=5, padding=2, pool=2)
    >>> drive, switches = coupling.up(torch.rand(64, 1, 28, 28))
    >>> drive.shape, switches.shape
    (torch.Size([64, 32, 14, 14]), torch.Size([64, 32, 14, 14]))
    >>> coupling.down(torch.rand(64, 32, 14, 14), switches, (1, 28, 28)).shape
    torch.Size([64, 1, 28, 28])
    """

    name = "conv"

    def __init__(
        self,
        below: int,
        above: int,
        *,
        kernel: int,
        padding: int = 0,
        pool: int = 1,
        binary: bool = True,
        bias: bool = True,
        learn_scale: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.below, self.above, self.kernel, self.pool = _positive(
            below=below, above=above, kernel=kernel, pool=pool
        )
        if not isinstance(padding, int) or padding < 0:
            raise BinepError(f"ConvPool padding={padding!r}: it must be an integer of at least 0")
        self.padding = padding
        self.build(
            (above, below, kernel, kernel),
            binary=binary,
            bias=bias,
            learn_scale=learn_scale,
            generator=generator,
        )

    @classmethod
    def connect(cls, below_shape: Shape, size: int, **options: Any) -> Self:
        """A coupling from a layer of this shape, (channels, height, width), to `size` channels."""
        return cls(below_shape[0], size, **options)

    def extra_repr(self) -> str:
        return (
            f"{self.below}, {self.above}, kernel={self.kernel}, padding={self.padding}, "
            f"pool={self.pool}, binary={self.binary}"
        )

    def _map_side(self, side: int) -> int:
        return side + 2 * self.padding - self.kernel + 1

    def products(self, below_shape: Shape) -> int:
        height, width = (self._map_side(side) for side in below_shape[1:])
        return super().products(below_shape) * height * width

    def above_shape(self, below_shape: Shape) -> Shape:
        name = f"ConvPool({self.extra_repr()})"
        if len(below_shape) != 3 or below_shape[0] != self.below:
            raise BinepError(
                f"{name} does not connect to a layer below of shape {tuple(below_shape)}, "
                f"allowed: ({self.below}, height, width)"
            )
        height, width = (self._map_side(side) // self.pool for side in below_shape[1:])
        if min(height, width) < 1:
            smallest = self.kernel + self.pool - 1 - 2 * self.padding
            raise BinepError(
                f"{name} leaves nothing of a layer below of shape {tuple(below_shape)}: height "
                f"and width must be at least {smallest}"
            )
        return (self.above, height, width)

    def sum_up(self, below: Tensor) -> tuple[Tensor, Tensor | None]:
        numbers, exact = self.numbers(below), not below.is_floating_point()
        maps = convolution.up(numbers, self.synapses.kernel, self.padding, exact=exact)
        if self.pool == 1:
            return maps, None
        return F.max_pool2d(maps, self.pool, return_indices=True)

    def down(self, above: Tensor, switches: Tensor | None, below_shape: Sequence[int]) -> Tensor:
        kernel = self.synapses.kernel
        # Here the channels' scales stand inside the sum. For bits it runs in float64, which holds
        # sums of float32 scales of like size exactly, so that no engine's order can change it.
        exact = above.dtype == torch.bool
        kind = wide(kernel) if exact else kernel.dtype
        scaled = self.per_output(self.synapses.gain).to(kind) * above
        maps = self._unpool(scaled, switches, below_shape)
        drive = convolution.down(maps, kernel.to(kind), self.padding, exact=exact)
        return drive.to(kernel.dtype)

    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None) -> Tensor:
        maps = self._unpool(self.numbers(above), switches, below.shape)
        exact = not (below.is_floating_point() or above.is_floating_point())
        shape = self.synapses.kernel.shape
        return convolution.correlate(self.numbers(below), shape, maps, self.padding, exact=exact)

    def _unpool(self, above: Tensor, switches: Tensor | None, below_shape: Sequence[int]) -> Tensor:
        """Put each value where its switch points, zeros elsewhere, on the convolution's maps."""
        if self.pool == 1:
            return above
        if switches is None:
            raise BinepError(f"{self} pools: give the switches that `up` returned, not None")
        height, width = (self._map_side(side) for side in below_shape[-2:])
        maps = above.new_zeros(*above.shape[:2], height * width)
        return maps.scatter(2, switches.flatten(2), above.flatten(2)).unflatten(2, (height, width))

    def per_output(self, values: Tensor) -> Tensor:
        return values.reshape(-1, 1, 1)


def _positive(**sizes: int) -> list[int]:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise BinepError(f"coupling with {name}={size!r}: it must be an integer of at least 1")
    return list(sizes.values())
