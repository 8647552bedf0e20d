"""What processes exchange: sums of contrasts, in as few bytes as possible.

Contrasts of bits are small integers. First every process sends the largest value of each contrast
and its number of nonzero entries; then all choose the same smallest format:

    list      positions and values of nonzero entries, gathered from all and summed here
    ternary   -1, 0, 1 in two bits, gathered from all and summed here
    bytes     int8, summed on the way, if no sum can be larger
    float32   summed on the way: exact below 2^24

The sums are the same either way.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from binep.errors import BinepError

FORMATS = ("list", "ternary", "bytes", "float32")
LARGEST_BYTE = 127
EXACT_SUM = 2**24  # float32 holds the integers below
PLACES = 2**31  # that an int32 holds


@dataclass
class Traffic:
    """What this process has received so far.

    Attributes:
        steps: mini-batches. received: bytes, by format; `header` is what is told beforehand.
        tensors: how many travelled, by format.
    """

    steps: int = 0
    received: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)

    def add(self, format: str, size: int, tensors: int = 0) -> None:
        self.received[format] = self.received.get(format, 0) + size
        self.tensors[format] = self.tensors.get(format, 0) + tensors

    @property
    def bytes_per_step(self) -> float:
        return sum(self.received.values()) / max(self.steps, 1)

    def __str__(self) -> str:
        shares = ", ".join(
            f"{name} {size / max(self.steps, 1):,.0f}" for name, size in self.received.items()
        )
        return f"{self.bytes_per_step:,.0f} bytes received per mini-batch ({shares})"


def sizes(count: int, largest: Sequence[int], filled: Sequence[int]) -> dict[str, float]:
    """Bytes that a process receives for a contrast of integers, by each format that can hold it.

    Args:
        count: entries. largest, filled: of each process, the largest and how many are not 0.

    >>> sizes(1000, [1, 1], [3, 5])
    {'float32': 4000.0, 'bytes': 1000.0, 'ternary': 250, 'list': 20}
    """
    processes, most = len(largest), max(largest)
    ring = 2 * (processes - 1) / processes
    found: dict[str, float] = {"float32": 4 * count * ring}
    if sum(largest) <= LARGEST_BYTE:
        found["bytes"] = count * ring
    if most <= 1:
        found["ternary"] = (processes - 1) * -(-count // 4)
    width = 4 if count * (2 * most + 1) < PLACES else 8
    found["list"] = (processes - 1) * max(filled) * width
    return found


class Exchange:
    """Sums over the processes of a group; see `training.launch`, which makes the group.

    Args:
        answering: surrounds all that waits for the others; says who has not answered if it fails.
        formats: those that may be chosen, besides float32.
    """

    def __init__(
        self,
        answering: Callable[[], AbstractContextManager[Any]] = nullcontext,
        formats: Iterable[str] = FORMATS,
    ) -> None:
        self.count, self.answering = dist.get_world_size(), answering
        self.formats = {*formats, "float32"}
        self.traffic = Traffic()

    # --- a few numbers

    def largest(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        """The largest value over all processes, of every number."""
        values = torch.tensor(rows, dtype=torch.float64)
        with self.answering():
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values.tolist()

    def total(self, row: Sequence[float]) -> list[float]:
        """The sum over all processes, of every number."""
        values = torch.tensor(row, dtype=torch.float64)
        with self.answering():
            dist.all_reduce(values)
        return values.tolist()

    def gather(self, text: bytes) -> list[bytes]:
        """The message of each process; all have the same length."""
        own = torch.tensor(list(text), dtype=torch.uint8)
        return [bytes(each.tolist()) for each in self._gather(own)]

    # --- contrasts

    def add_up(self, exact: Sequence[Tensor], rounded: Sequence[Tensor]) -> None:
        """Put the sum over all processes in place of each tensor."""
        self.traffic.steps += 1
        ways = self._choose(exact)
        for format, add_up in (
            ("list", self._add_up_lists),
            ("ternary", self._add_up_ternary),
            ("bytes", self._add_up_bytes),
        ):
            chosen = [n for n, way in enumerate(ways) if way.format == format]
            if chosen:
                size = add_up([exact[n] for n in chosen], [ways[n] for n in chosen])
                self.traffic.add(format, size, len(chosen))
        floats = [t for t, way in zip(exact, ways, strict=True) if way.format == "float32"]
        floats += rounded
        if floats:
            self.traffic.add("float32", self._add_up_floats(floats), len(floats))

    def _choose(self, exact: Sequence[Tensor]) -> list["_Way"]:
        """The smallest format of each tensor, the same in every process."""
        if not exact:
            return []
        own = torch.stack(
            [torch.stack([t.abs().max().long(), t.count_nonzero()]) for t in exact]
        ).cpu()
        told = torch.stack(self._gather(own.flatten())).reshape(self.count, -1, 2).tolist()
        self.traffic.add("header", (self.count - 1) * own.numel() * own.element_size())
        ways = []
        for n, tensor in enumerate(exact):
            largest, filled = ([int(each[n][k]) for each in told] for k in range(2))
            if sum(largest) >= EXACT_SUM:
                raise BinepError(
                    f"contrasts of up to {sum(largest)}: allowed are sums below {EXACT_SUM}; "
                    "choose a smaller training.batch_size"
                )
            allowed = sizes(tensor.numel(), largest, filled)
            smallest = min(self.formats & allowed.keys(), key=lambda name: (allowed[name], name))
            ways.append(_Way(smallest, max(largest), max(filled)))
        return ways

    def _add_up_lists(self, tensors: Sequence[Tensor], ways: Sequence["_Way"]) -> int:
        """Lists of (place, value) as one number each, of the same length in all processes."""
        wide = any(t.numel() * way.base >= PLACES for t, way in zip(tensors, ways, strict=True))
        dtype = torch.int64 if wide else torch.int32
        lists = []
        for tensor, way in zip(tensors, ways, strict=True):
            values = tensor.flatten()
            places = values.nonzero().flatten()
            codes = places * way.base + values[places].long() + way.largest
            # What fills a list up says that nothing is to be added to the first place.
            rest = codes.new_full((way.filled - len(codes),), way.largest)
            lists.append(torch.cat([codes, rest]).to(dtype))
        own = torch.cat(lists)
        told = torch.stack(self._gather(own))
        lengths = [way.filled for way in ways]
        for tensor, way, codes in zip(tensors, ways, told.split(lengths, 1), strict=True):
            found = codes.flatten().long()
            places = found.div(way.base, rounding_mode="floor")
            values = (found - places * way.base - way.largest).to(tensor.dtype)
            total = tensor.new_zeros(tensor.numel()).index_add_(0, places, values)
            tensor.copy_(total.reshape(tensor.shape))
        return (self.count - 1) * own.numel() * own.element_size()

    def _add_up_ternary(self, tensors: Sequence[Tensor], ways: Sequence["_Way"]) -> int:
        own = packed_ternary(torch.cat([t.flatten() for t in tensors]))
        told = self._gather(own)
        count = sum(t.numel() for t in tensors)
        total = unpacked_ternary(told[0], count)
        for each in told[1:]:
            total += unpacked_ternary(each, count)
        _put_back(total, tensors)
        return (self.count - 1) * own.numel()

    def _add_up_bytes(self, tensors: Sequence[Tensor], ways: Sequence["_Way"]) -> int:
        flat = torch.cat([t.flatten().to(torch.int8) for t in tensors])
        with self.answering():
            dist.all_reduce(flat)
        _put_back(flat, tensors)
        return self._ring(flat)

    def _add_up_floats(self, tensors: Sequence[Tensor]) -> int:
        one = len(tensors) == 1 and tensors[0].is_contiguous()
        flat = tensors[0].detach() if one else torch.cat([t.flatten() for t in tensors])
        with self.answering():
            dist.all_reduce(flat)
        if not one:
            _put_back(flat, tensors)
        return self._ring(flat)

    def _ring(self, flat: Tensor) -> int:
        """Bytes that each process receives while a ring adds up."""
        return round(2 * (self.count - 1) / self.count * flat.numel() * flat.element_size())

    def _gather(self, own: Tensor) -> list[Tensor]:
        told = [torch.empty_like(own) for _ in range(self.count)]
        with self.answering():
            dist.all_gather(told, own)
        return told


@dataclass(frozen=True)
class _Way:
    """How a tensor is sent: its format, and the largest value and longest list of any process."""

    format: str
    largest: int
    filled: int

    @property
    def base(self) -> int:
        """How many values there are, from -largest to largest."""
        return 2 * self.largest + 1


def packed_ternary(values: Tensor) -> Tensor:
    """-1, 0 and 1 as 2, 0 and 1 in two bits, four in a byte.

    >>> packed_ternary(torch.tensor([1.0, -1.0, 0.0, 0.0, 1.0])).tolist()
    [9, 1]
    """
    digits = values.to(torch.int8).remainder(3).to(torch.uint8)
    rest = -len(digits) % 4
    four = torch.cat([digits, digits.new_zeros(rest)]).reshape(-1, 4)
    return four[:, 0] | four[:, 1] << 2 | four[:, 2] << 4 | four[:, 3] << 6


def unpacked_ternary(packed: Tensor, count: int) -> Tensor:
    """The inverse, int8: the first `count` values.

    >>> unpacked_ternary(torch.tensor([9, 1], dtype=torch.uint8), 5).tolist()
    [1, -1, 0, 0, 1]
    """
    four = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], 1)
    digits = four.flatten()[:count].to(torch.int8)
    return torch.where(digits == 2, -1, digits)


def _put_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = flat.split([t.numel() for t in tensors])
    for part, tensor in zip(parts, tensors, strict=True):
        tensor.copy_(part.reshape(tensor.shape))
