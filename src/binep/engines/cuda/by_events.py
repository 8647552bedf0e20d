# pyright: reportCallIssue=false
"""Relaxing convolutional networks of bits at the cost of what changes, see `conv_events`."""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from binep.couplings import ConvPool
from binep.engines.cuda.conv_events import SILENT, conv_events_kernel
from binep.engines.cuda.couplings import FastConv, FastDense, Tensors, flat
from binep.engines.cuda.packing import padded
from binep.engines.cuda.phases import Phase, in_order, per_sample, power_of_two
from binep.engines.cuda.stepwise import BUSY_STEPS, Stepwise
from binep.network import Network

TILE = 2048  # words that a program adds up at once: four a thread


class Row(NamedTuple):
    """A layer and its coupling below, as `conv_events` numbers them; what does not apply is 0."""

    size: int
    offset: int
    channels: int
    width: int
    entry: int = 0
    maps: int = 0
    map_height: int = 0
    map_width: int = 0
    kernel: int = 0
    pool: int = 0
    padding: int = 0
    up_words: int = 0
    down_words: int = 0


@dataclass
class Kept(Tensors):
    """Where a mini-batch stands, all layers side by side, see `conv_events_kernel`."""

    maps: Tensor
    drive: Tensor
    up: Tensor
    down: Tensor
    state: Tensor
    bits: Tensor
    places: Tensor


@dataclass
class ConvEvents(Stepwise):
    """Convolutional networks of bits: after a few busy steps, only what changes causes work."""

    rows: list[Row] = field(init=False)
    table: Tensor = field(init=False)

    @staticmethod
    def fits(network: Network) -> bool:
        convolutions = [c for c in network.couplings if isinstance(c, ConvPool)]
        small = all(coupling.pool <= 3 for coupling in convolutions)
        return network.neuron.binary and len(network.couplings) > 1 and bool(convolutions) and small

    def __post_init__(self) -> None:
        inner = self.couplings[1:]
        self.convolutions = [fast for fast in inner if isinstance(fast, FastConv)]
        self.denses = [fast for fast in inner if isinstance(fast, FastDense)]
        self._number_layers()
        self._place_dense()
        self._place_words()
        self.table = torch.tensor(self.rows, dtype=torch.int32, device=self.device)

    def _number_layers(self) -> None:
        """Rows without what `_place_dense` and `_place_words` add."""
        shapes = self.network.layer_shapes
        self.sizes = [torch.Size(shape).numel() for shape in shapes]
        *self.offsets, self.total = accumulate(self.sizes, initial=0)
        self.rows = [
            Row(size, offset, shape[0], shape[-1] if len(shape) == 3 else 1)
            for shape, size, offset in zip(shapes, self.sizes, self.offsets, strict=True)
        ]

    def _place_dense(self) -> None:
        """All dense couplings in one array, and their transposes, so that one kernel reads them."""
        counts = [fast.kernel.numel() for fast in self.denses]
        self.kernels = torch.empty(max(1, sum(counts)), dtype=self.dtype, device=self.device)
        self.turned = torch.empty_like(self.kernels)
        entry, first = 0, 1 + len(self.convolutions)
        for n, (fast, count) in enumerate(zip(self.denses, counts, strict=True), first):
            shape, part = fast.kernel.shape, slice(entry, entry + count)
            fast.kernel, fast.turned = (
                self.kernels[part].view(shape),
                self.turned[part].view(shape[::-1]),
            )
            self.rows[n] = self.rows[n]._replace(entry=entry)
            entry += count

    def _place_words(self) -> None:
        """All convolutions in one array of bytes, for both directions."""
        maps, byte, places = 0, 0, []
        for n, fast in enumerate(self.convolutions, 1):
            coupling, (height, width) = fast.coupling, fast.map_shape
            taps, above, below = coupling.kernel**2, coupling.above, coupling.below
            up = taps * below, padded(above)
            down = taps * above, padded(below)
            down_byte = byte + up[0] * up[1]
            self.rows[n] = self.rows[n]._replace(
                maps=maps,
                map_height=height,
                map_width=width,
                kernel=coupling.kernel,
                pool=coupling.pool,
                padding=coupling.padding,
                up_words=byte // 4,
                down_words=down_byte // 4,
            )
            places.append(((byte, up), (down_byte, down)))
            maps, byte = maps + above * height * width, down_byte + down[0] * down[1]
        signs = torch.ones(max(4, byte), dtype=torch.int8, device=self.device)
        for fast, ((up_at, up), (down_at, down)) in zip(self.convolutions, places, strict=True):
            fast.rows = (
                signs[up_at:].as_strided(up, (up[1], 1)),
                signs[down_at:].as_strided(down, (down[1], 1)),
            )
        self.words = signs.view(torch.int32)

    # --- phases

    def free(self, first: Tensor, steps: int) -> Phase:
        state, activity = self.start(len(first))
        busy = min(BUSY_STEPS, steps - 1)
        for _ in range(busy):
            state, activity = self.step(first, state, activity)
        return self._relax(first, self._add_up(state, activity), steps - busy, already=busy)

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        rest = free.state[-1].contiguous()
        steps = self.learning.nudged_steps
        return self._relax(first, free.carried.clone(), steps, labels, direction, rest)

    def _add_up(self, state: list[Tensor], activity: list[Tensor]) -> Kept:
        """All sums at some activity, from scratch."""
        batch, integer = len(state[0]), torch.int32

        def room(dtype: torch.dtype, n: int) -> Tensor:
            return torch.zeros(batch, self.sizes[n], dtype=dtype, device=self.device)

        maps, drives = [], []
        ups, downs, places = [room(integer, 0)], [], [room(torch.uint8, 0)]
        for n, fast in enumerate(self.couplings[1:], 1):
            below, above = activity[n - 1], activity[n]
            if isinstance(fast, FastConv):
                summed = fast.maps(below)
                pooled, switches = fast.pool(summed)
                maps.append(flat(summed).to(integer))
                drives.append(flat(fast.exact_down(above, switches)))
                where = torch.zeros_like(above) if switches is None else switches
                place = torch.where(above > 0, where, SILENT.value).to(torch.uint8)
                downs.append(room(integer, n - 1))
                places.append(flat(place))
            else:
                pooled = fast.up(below)[0]
                downs.append(fast.down(above, None).to(integer))
                places.append(room(torch.uint8, n))
            ups.append(flat(pooled).to(integer))
        downs.append(room(integer, -1))
        none = torch.zeros(batch, 1, dtype=torch.float64, device=self.device)
        return Kept(
            torch.cat(maps, 1) if maps else none.to(integer),
            torch.cat(drives, 1) if drives else none,
            torch.cat(ups, 1),
            torch.cat(downs, 1),
            torch.cat([flat(s) for s in state], 1),
            torch.cat([flat(a) for a in activity], 1),
            torch.cat(places, 1),
        )

    def _relax(
        self,
        first: Tensor,
        kept: Kept,
        steps: int,
        labels: Tensor | None = None,
        direction: int = 1,
        rest: Tensor | None = None,
        already: int = 0,
    ) -> Phase:
        first, layers, count = flat(first), len(self.sizes), len(self.convolutions)
        residual, ran = per_sample(first)
        flips = torch.empty_like(kept.up)
        counts = torch.zeros(len(first), 3, layers, dtype=torch.int32, device=self.device)
        above, below = (
            max((power_of_two(padded(row.channels) // 4) for row in rows), default=1)
            for rows in (self.rows[1 : count + 1], self.rows[:count])
        )
        conv_events_kernel[(len(first),)](
            first,
            kept.maps,
            kept.drive,
            kept.up,
            kept.down,
            kept.state,
            kept.bits,
            kept.places,
            flips,
            counts[:, :2].contiguous(),
            torch.empty(len(first), 2 * self.total, dtype=torch.int32, device=self.device),
            counts[:, 2].contiguous(),
            *self._scales(),
            self.words,
            self.kernels,
            self.turned,
            self.table,
            ran if labels is None else labels,
            self.beta,
            kept.state if rest is None else rest,
            residual,
            ran,
            self.total,
            kept.maps.shape[1],
            kept.drive.shape[1],
            steps,
            self.network.per_class,
            direction,
            *self.neuron_numbers.values(),
            LAYERS=layers,
            CONVOLUTIONS=count,
            NUDGED=labels is not None,
            CONSTANT=self.learning.nudge == "constant",
            BLOCK=min(4096, power_of_two(max(self.sizes))),
            TILE=max(TILE, above, below),
            ABOVE=above,
            BELOW=below,
            ROW=min(4096, power_of_two(max(max(fast.kernel.shape) for fast in self.denses))),
            num_warps=16,
            enable_fp_fusion=False,
        )
        return Phase(
            self._layers(kept.state), self._layers(kept.bits), residual, ran + already, kept
        )

    def _layers(self, values: Tensor) -> list[Tensor]:
        """All layers apart, images channels last."""
        found = []
        for part, shape in zip(values.split(self.sizes, 1), self.network.layer_shapes, strict=True):
            if len(shape) == 3:
                channels, height, width = shape
                part = part.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)
            found.append(in_order(part))
        return found

    def _scales(self) -> tuple[Tensor, Tensor, Tensor]:
        """`conv_events_kernel`'s gains, down_gains and bias, as they are in this mini-batch."""
        gains, biases, none = [], [], torch.zeros(1, device=self.device)
        for row, coupling in zip(self.rows, self.network.couplings, strict=True):
            positions = row.size // row.channels
            for parts, values in ((gains, coupling.synapses.gain), (biases, coupling.bias)):
                values = none if values is None else values.detach()
                parts.append(values.expand(row.channels).repeat(positions))
        dense = [fast.coupling.synapses.gain.detach().reshape(1) for fast in self.denses]
        down_gains = torch.cat([*[none] * len(self.convolutions), *dense, none])
        return torch.cat(gains), down_gains, torch.cat(biases)
