"""Signs as bytes: products and convolutions of int8, and Bop's flips in the copies."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from binep.core.couplings import ConvPool, Dense, Shape
from binep.engines.numba.jit import fast
from binep.engines.numba.rules import flip, move
from binep.errors import BinepError

ZERO_POINT = 128  # the byte that convolutions take for 0


class SignBytes:
    """A dense coupling's signs as bytes, in both directions, in the order of layers.

    An image below lies channels last; the weight numbers it channels first: `columns` tells where
    each of the weight's columns stands.
    """

    def __init__(self, coupling: Dense, below_shape: Shape, *, both: bool = True) -> None:
        self.coupling, self.both = coupling, both
        places = torch.arange(coupling.below)
        if len(below_shape) == 3:
            channels, height, width = below_shape
            places = places.reshape(height, width, channels).permute(2, 0, 1).flatten()
        self.columns = places.numpy()
        self.down_bytes = torch.empty(coupling.above, coupling.below, dtype=torch.int8)
        self.up_bytes = torch.empty(
            (coupling.below, coupling.above) if both else (0, 0), dtype=torch.int8
        )

    def refresh(self) -> None:
        """Copy the signs from the coupling's parameter."""
        signs = self.coupling.signs.detach().to(torch.int8)
        self.down_bytes[:, torch.from_numpy(self.columns)] = signs
        if self.both:
            self.up_bytes.copy_(self.down_bytes.T)

    def up(self, delta: Tensor) -> Tensor:
        return product(delta.view(torch.int8), self.up_bytes)

    def down(self, delta: Tensor) -> Tensor:
        return product(delta.view(torch.int8), self.down_bytes)


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of int8 matrices, in int32."""
    if a.shape[1] < 4:
        # For a sum of a single product torch's own leaves the result unset.
        return (a.float() @ b.float()).to(torch.int32)
    return torch._int_mm(a, b)  # type: ignore[attr-defined]


@fast
def bop_share(
    momentum, signs, contrast, rates, up_bytes, down_bytes, columns, row_sums, overlaps, threads,
    thread,
):  # fmt: skip
    """One step of Bop on the rows of a coupling, momenta and flips.

    Args:
        momentum, signs, contrast: (above, fan-in).
        rates: factor, rate, bound in float32: gradient = factor * contrast; gamma and tau over
            Bop's decay.
        up_bytes, down_bytes: copies of the signs, int8, (fan-in, above) and (above, fan-in), in the
            order of layers that `columns` gives; empty where there are none.
        row_sums: (above,), the sum of each row of signs, changed with them; or empty.
        overlaps: (above,), gets `<signs, contrast>` of each row, of the signs before.
    Returns the flips.
    """
    factor, rate, bound = rates
    all_flips = 0
    for i in range(thread, len(signs), threads):
        m, w, d = momentum[i], signs[i], contrast[i]
        overlap, flips = 0.0, np.int32(0)
        for j in range(len(m)):
            m[j] = move(m[j], d[j], factor, rate)
            overlap += np.float64(d[j] * w[j])
            flips += np.int32(flip(w[j], m[j], bound))
        overlaps[i] = overlap
        if flips:
            all_flips += flips
            for j in range(len(m)):
                if flip(w[j], m[j], bound):
                    w[j] = -w[j]
                    if len(row_sums):
                        row_sums[i] += 2 * np.int32(w[j])
                    if len(up_bytes):
                        up_bytes[columns[j], i] = -up_bytes[columns[j], i]
                    if len(down_bytes):
                        down_bytes[i, columns[j]] = -down_bytes[i, columns[j]]
    return all_flips


# --- convolutions -------------------------------------------------------------------------------


class Filters:
    """A convolution's signs as oneDNN wants them, for both directions."""

    def __init__(self, coupling: ConvPool, below_shape: Shape) -> None:
        self.coupling, self.below_shape = coupling, below_shape
        self.above_shape = coupling.above_shape(below_shape)
        self.map_shape = (coupling.above, *(coupling._map_side(side) for side in below_shape[1:]))
        self.packed: list[tuple[Tensor, Tensor, int]] = []
        if not convolves_bytes():
            raise BinepError(
                "engine 'delta' needs torch's oneDNN convolutions of bytes, and this torch "
                f"({torch.__version__}) does not have them as expected; the reference engine runs "
                "the rest"
            )

    def refresh(self) -> None:
        """Pack the signs from the coupling's parameter; down is a convolution with them turned."""
        signs = self.coupling.signs.detach().to(torch.int8)
        side, padding = self.coupling.kernel, self.coupling.padding
        turned = signs.transpose(0, 1).flip(2, 3).contiguous()
        self.packed = [
            _packed_filters(signs, padding, self.below_shape),
            _packed_filters(turned, side - 1 - padding, self.map_shape),
        ]

    def up(self, delta: Tensor) -> Tensor:
        return _convolve(delta, self.below_shape, *self.packed[0])

    def down(self, delta: Tensor) -> Tensor:
        return _convolve(delta, self.map_shape, *self.packed[1])


def _onednn() -> Any:
    return torch.ops.onednn


def _packed_filters(signs: Tensor, padding: int, below: Shape) -> tuple[Tensor, Tensor, int]:
    ones = torch.ones(len(signs))
    shape = [1, *below]
    packed = _onednn().qconv_prepack(
        signs, ones, 1.0, ZERO_POINT, [1, 1], [padding] * 2, [1, 1], 1, shape
    )
    return packed, ones, padding


def _convolve(delta: Tensor, shape: Shape, packed: Tensor, ones: Tensor, padding: int) -> Tensor:
    """Bytes, (rows, places * channels), channels last, to sums in float32, laid out likewise."""
    channels, height, width = shape
    images = delta.view(len(delta), height, width, channels).permute(0, 3, 1, 2)
    zeros = torch.zeros(len(ones), dtype=torch.int32)
    sums = _onednn().qconv2d_pointwise(
        images, 1.0, ZERO_POINT, packed, ones, zeros, None, [1, 1], [padding] * 2, [1, 1], 1,
        1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return channels_last(sums).reshape(len(delta), -1)


@functools.cache
def convolves_bytes() -> bool:
    """Whether torch has these convolutions and they give the right sums: its ops are not public."""
    signs = torch.tensor([[[[1, -1], [1, 1]]], [[[-1, 1], [1, -1]]]], dtype=torch.int8)
    delta = torch.arange(-4, 5) + ZERO_POINT
    try:
        found = _convolve(
            delta.to(torch.uint8)[None], (1, 3, 3), *_packed_filters(signs, 1, (1, 3, 3))
        )
    except (AttributeError, RuntimeError, TypeError):
        return False
    image = (delta - ZERO_POINT).reshape(1, 1, 3, 3).float()
    expected = torch.nn.functional.conv2d(image, signs.float(), padding=1)
    return torch.equal(found, channels_last(expected))


def channels_last(values: Tensor) -> Tensor:
    """(batch, *layer) as (batch, places * channels), channels last."""
    return values.permute(0, 2, 3, 1).flatten(1) if values.dim() == 4 else values


def channels_first(values: Tensor, shape: Shape) -> Tensor:
    """The inverse of `channels_last`: (batch, *layer)."""
    if len(shape) == 1:
        return values
    channels, height, width = shape
    return values.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
