"""Signs of dense couplings, one bit each, as products of differences read them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ALIGNMENT = 16  # bytes that are read at once
TERMS = 2048  # of a part at most: parts of wide products run side by side


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Layout(NamedTuple):
    """How the terms of a row lie: parts of `8 width` terms, one after the other in `width` bytes.

    Bit b of a part's byte j is term `b width + j`, so that eight neighbouring pieces of a row come
    out of one piece of memory by shifts. A set bit is +1.
    """

    width: int
    parts: int

    @classmethod
    def of(cls, terms: int) -> "Layout":
        parts = -(-terms // TERMS)
        return cls(padded(-(-terms // (8 * parts))), parts)

    @property
    def stride(self) -> int:
        """Bytes of a row."""
        return self.parts * self.width

    def pack(self, signs: Tensor) -> Tensor:
        """(rows, terms) to uint8, (rows, stride)."""
        missing = 8 * self.stride - signs.shape[1]
        bits = F.pad((signs > 0).to(torch.uint8), (0, missing))
        bits = bits.view(-1, self.parts, 8, self.width)
        places = torch.arange(8, dtype=torch.uint8, device=signs.device).view(8, 1)
        return (bits << places).sum(2, dtype=torch.uint8).view(len(signs), self.stride)


class Packed(NamedTuple):
    """Where a kernel finds a bit to flip, in either direction.

    Attributes:
        words: int32, the signs of all couplings. *_at: the first byte of this one's.
        *_width, *_stride: see `Layout`.
    """

    words: Tensor | None = None
    up_at: int | None = None
    up_width: int | None = None
    up_stride: int | None = None
    down_at: int | None = None
    down_width: int | None = None
    down_stride: int | None = None


class PackedSigns:
    """A coupling's signs for both directions: `up`, (above, ...), and `down`, (below, ...).

    Args:
        memory: uint8, where both lie. at: their first byte in it.
    """

    def __init__(self, memory: Tensor, at: int, above: int, below: int) -> None:
        self.memory = memory
        self.up, self.down = Layout.of(below), Layout.of(above)
        self.up_at, self.down_at = at, at + padded(above) * self.up.stride

    @staticmethod
    def size(above: int, below: int) -> int:
        """Bytes of both; rows are padded with zeros too."""
        up, down = Layout.of(below), Layout.of(above)
        return padded(above) * up.stride + padded(below) * down.stride

    def for_kernel(self) -> Packed:
        up = self.up_at, self.up.width, self.up.stride
        down = self.down_at, self.down.width, self.down.stride
        return Packed(self.memory.view(torch.int32), *up, *down)

    def refresh(self, kernel: Tensor) -> None:
        """Pack (above, below) signs."""
        directions = ((self.up_at, self.up, kernel), (self.down_at, self.down, kernel.T))
        for at, layout, signs in directions:
            packed = layout.pack(signs)
            self.memory[at : at + packed.numel()] = packed.flatten()


def pack_together(shapes: Sequence[tuple[int, int]], device: torch.device) -> list[PackedSigns]:
    """Room for the signs of several couplings, (above, below), in one array."""
    sizes = [PackedSigns.size(*shape) for shape in shapes]
    memory = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [PackedSigns(memory, at, *shape) for at, shape in zip(starts, shapes, strict=True)]
