"""Relaxing dense networks of real activations by differences in eight bits, until nothing changes.

A neuron's activity is sent as an integer `sent`, a multiple of a unit; each step sends `delta`,
eight bits times `2^shift`, so that `sent` follows the activity. The shift belongs to a sample, a
layer and a step. Sums over what was sent are exact in int32. A difference of less than one unit is
not sent, so that a network comes to rest; from then on every kernel returns at once.

All layers lie side by side, (batch, total); `Place` says where. Each is padded with neurons that
nothing reaches to a multiple of 16, so that 16 bytes are read at once.

Where layers move in turn, a launch only adds up what drives those of one turn, cut finer.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate, product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from binep.core.couplings import Dense
from binep.core.dynamics import Prototypical
from binep.core.gradients import Learning
from binep.core.network import Network
from binep.core.neurons import HardSigmoid
from binep.core.plan import PhasePlan
from binep.core.turns import UPDATES
from binep.core.weights import BinaryWeight
from binep.engines.base import Capabilities
from binep.engines.cuda.layout import Copies, FastDense
from binep.engines.cuda.packing import Layout, padded
from binep.engines.cuda.relaxers.base import Phase, Relaxer, power_of_two
from binep.engines.cuda.rules import clamp, pull, step
from binep.engines.fixed_point import sent_units

OUTPUTS = 128  # of a tile
WIDEST = 8192  # neurons of a layer that fit into the registers of a program


class Tile(NamedTuple):
    """What one program of `product_kernel` adds up: some outputs, over a part of the terms.

    Attributes:
        source, terms: first neuron that sends, and how many.
        weights, stride, width: first byte of the first output's row, bytes from row to row, bytes
            of the part. begin, end: those of them that are read.
        plane, target, outputs: where the first sum goes, and how many.
    """

    source: Any
    terms: Any
    weights: Any
    stride: Any
    width: Any
    begin: Any
    end: Any
    plane: Any
    target: Any
    outputs: Any


class Place(NamedTuple):
    """Where a layer lies: its padded size, its first neuron, and its planes of sums up and down."""

    size: Any
    offset: Any
    ups: Any
    downs: Any


# Numbers of a row of their tables.
TILE, PLACE = tl.constexpr(len(Tile._fields)), tl.constexpr(len(Place._fields))


class Traffic(NamedTuple):
    """State of a relaxing mini-batch, all layers side by side, (batch, total).

    Attributes:
        state: f32. sent: int32. delta: int8, what was sent in the last step.
        up, down: int32, sums of all that was sent.
        headers: int32, (batch, layers, 2): shift (-1: none) and sum of the differences in `delta`.
        next_headers: room for those of the step after.
    """

    state: Tensor
    sent: Tensor
    delta: Tensor
    up: Tensor
    down: Tensor
    headers: Tensor
    next_headers: Tensor


class Scales(NamedTuple):
    """What turns sums into drives: f32, (layers,) each, and (total,).

    Attributes:
        ups, downs: scale of the coupling below or above, over its unit.
        bias: of all neurons. units: how many units of `sent` make one.
    """

    ups: Tensor
    downs: Tensor
    bias: Tensor
    units: Tensor


@triton.jit
def _tile_at(row):
    return Tile(
        tl.multiple_of(tl.load(row), 16),
        tl.multiple_of(tl.load(row + 1), 16),
        tl.multiple_of(tl.load(row + 2), 16),
        tl.multiple_of(tl.load(row + 3), 16),
        tl.multiple_of(tl.load(row + 4), 16),
        tl.multiple_of(tl.load(row + 5), 16),
        tl.multiple_of(tl.load(row + 6), 16),
        tl.load(row + 7),
        tl.multiple_of(tl.load(row + 8), 16),
        tl.multiple_of(tl.load(row + 9), 16),
    )


@triton.jit
def _place_at(row):
    size, offset = tl.multiple_of(tl.load(row), 16), tl.multiple_of(tl.load(row + 1), 16)
    return Place(size, offset, tl.load(row + 2), tl.load(row + 3))


@triton.jit
def product_kernel(
    delta,  # int8, (batch, total)
    signs,  # uint8: all couplings, see `packing`
    sums,  # int32, (planes, batch, total): a plane for each part of the terms
    tiles,  # int32, (programs, TILE)
    moving,  # int32, (1,): whether anything was sent in the step before
    batch,
    total,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Sums over those synapses that are +1; a tile of outputs and a part of the terms each."""
    # What is read before the flag is known does not wait for it.
    anything = tl.load(moving)
    tile = _tile_at(tiles + tl.program_id(0) * TILE)
    if anything == 0:
        return
    n, r = tl.arange(0, OUTPUTS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    found = tl.zeros((OUTPUTS, ROWS), tl.int32)
    for start in range(tile.begin, tile.end, DEPTH):
        j = start + tl.arange(0, DEPTH)
        eight = tl.load(
            signs + tile.weights + n[:, None] * tile.stride + j[None, :],
            mask=(n < tile.outputs)[:, None] & (j < tile.end)[None, :],
            other=0,
        )
        # Unrolled, so that the bytes are brought into the layout of products once for all bits.
        for b in tl.static_range(8):
            k = b * tile.width + j
            d = tl.load(
                delta + tile.source + r[:, None] * total + k[None, :],
                mask=(r < batch)[:, None] & ((j < tile.end) & (k < tile.terms))[None, :],
                other=0,
            )
            w = _bit(eight, b, INTERPRETED)
            found = tl.dot(w, tl.trans(d), found, out_dtype=tl.int32)
    place = sums + tile.target + tile.plane * batch * total + r[None, :] * total + n[:, None]
    tl.store(place, found, mask=(n < tile.outputs)[:, None] & (r < batch)[None, :])


@triton.jit
def _bit(eight, b, INTERPRETED: tl.constexpr):
    """Bit b of each byte, as int8; four bytes at a time, which Triton does not do by itself."""
    if INTERPRETED:
        return ((eight >> b) & 1).to(tl.int8)
    return tl.inline_asm_elementwise(
        "shr.u32 $0, $1, $2; and.b32 $0, $0, 0x01010101;",
        "=r,r,r,r,r,r",
        [eight, b + tl.zeros_like(eight).to(tl.int32)],
        dtype=tl.int8,
        is_pure=True,
        pack=4,
    )


@triton.jit
def send_kernel(
    first,  # f32, (batch, padded size of layer 0): its constant drive
    sums,  # int32, (planes, batch, total): up, from `DOWN` on down
    now,
    scales,
    places,  # int32, (LAYERS, PLACE)
    target,
    neuron,
    change,  # f32, (batch, LAYERS): the largest, if it is asked for
    moving,  # int32: whether anything was sent in the step before; 4 later, whether in this one
    batch,
    total,
    LAYERS: tl.constexpr,
    FIRST: tl.constexpr,  # of the layers that move
    EVERY: tl.constexpr,  # from one of them to the next
    DOWN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of a layer of a sample: new states, and how activities differ from what was sent."""
    anything = tl.load(moving)
    sample, layer = tl.program_id(0).to(tl.int64), FIRST + EVERY * tl.program_id(1)
    here = _place_at(places + layer * PLACE)
    headers = now.headers + sample * LAYERS * 2
    header = now.next_headers + (sample * LAYERS + layer) * 2
    silent = anything == 0
    if target.beta is None:
        # A layer whose neighbours sent nothing stays where it is.
        below = tl.load(headers + tl.maximum(layer - 1, 0) * 2)
        above = tl.load(headers + tl.minimum(layer + 1, LAYERS - 1) * 2)
        silent |= tl.maximum(tl.maximum(below, above), tl.load(headers + layer * 2)) < 0
    if silent:
        tl.store(header, -1)
        tl.store(header + 1, 0)
        return
    plane = batch * total
    i = tl.arange(0, BLOCK)
    inside, at = i < here.size, sample * total + here.offset + i
    before = tl.load(now.sent + at, mask=inside, other=0)
    if layer == 0:
        drive = tl.load(first + sample * here.size + i, mask=inside, other=0.0)
    else:
        came = _arrived(sums + at, 0, here.ups, plane, headers + layer * 2 - 2, inside, BLOCK)
        came += tl.load(now.up + at, mask=inside, other=0)
        tl.store(now.up + at, came, mask=inside)
        drive = tl.load(scales.ups + layer) * came.to(tl.float32)
        drive += tl.load(scales.bias + here.offset + i, mask=inside, other=0.0)
    if layer < LAYERS - 1:
        end = DOWN + here.downs
        came = _arrived(sums + at, DOWN, end, plane, headers + layer * 2 + 2, inside, BLOCK)
        came += tl.load(now.down + at, mask=inside, other=0)
        tl.store(now.down + at, came, mask=inside)
        drive += tl.load(scales.downs + layer) * came.to(tl.float32)
    s = clamp(drive)
    if target.beta is not None:  # noqa: SIM102, known when compiling
        if layer == LAYERS - 1:
            was = tl.load(now.state + at, mask=inside, other=0.0)
            force = pull(target, tl.load(target.labels + sample), i, was, at, inside)
            s = step(was, drive, force, neuron)
    if change is not None:
        moved = tl.abs(s - tl.load(now.state + at, mask=inside, other=0.0))
        tl.store(change + sample * LAYERS + layer, tl.max(tl.where(inside, moved, 0.0), 0))
    tl.store(now.state + at, s, mask=inside)
    a = tl.where(inside, clamp(s), 0.0)
    wanted = a * tl.load(scales.units + layer) - before.to(tl.float32)
    if target.beta is not None:
        # It does not last until all is silent, and what it changes is small: round to the nearest.
        wanted = tl.floor(wanted + 0.5)
    difference = wanted.to(tl.int32)
    largest = tl.max(tl.abs(difference), 0)
    shift = _shift(largest)
    d = (difference + ((1 << shift) >> 1)) >> shift
    tl.store(now.sent + at, before + (d << shift), mask=inside)
    tl.store(now.delta + at, d.to(tl.int8), mask=inside)
    tl.store(header, tl.where(largest > 0, shift, -1))
    tl.store(header + 1, tl.sum(d, 0))
    if largest > 0:
        tl.store(moving + 4, 1)


@triton.jit
def _arrived(sums, begin, end, plane, header, inside, BLOCK: tl.constexpr):
    """What differences add up to: twice those that met +1, less all of them."""
    came = tl.zeros((BLOCK,), tl.int32)
    for p in range(begin, end):
        came += tl.load(sums + p * plane, mask=inside, other=0)
    return (2 * came - tl.load(header + 1)) << tl.maximum(tl.load(header), 0)


@triton.jit
def _shift(largest):
    """The smallest shift with which a difference of this size, rounded, fits into seven bits."""
    exponent = (largest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    shift = tl.maximum(exponent - 6, 0)
    return tl.where((largest + ((1 << shift) >> 1)) >> shift > 127, shift + 1, shift)


def _pieces(layout: Layout, cut: int) -> list[tuple[int, int, int]]:
    """Part, first byte and end of what a program adds up, if parts are cut into so many."""
    width = layout.width
    span = padded(-(-width // cut))
    return [
        (part, begin, min(width, begin + span))
        for part in range(layout.parts)
        for begin in range(0, width, span)
    ]


def _longest_first(tile: Tile) -> int:
    return tile.begin - tile.end


def _limits(network: Network, learning: Learning) -> Iterator[str]:
    if len(network.couplings) < 2:
        yield "a hidden layer"
    if max(shape[0] for shape in network.layer_shapes) > WIDEST:
        yield f"at most {WIDEST} neurons in a layer"
    if network.sends_state:
        yield "outputs that send their activity"


class DenseDelta(Relaxer):
    """Dense networks of binary weights and real, prototypical neurons."""

    real_precision = "int8 differences, float32"
    takes = Capabilities(
        couplings=frozenset({Dense}),
        weights=frozenset({BinaryWeight}),
        neurons=frozenset({HardSigmoid}),
        dynamics=frozenset({Prototypical}),
        updates=frozenset(UPDATES),
        limits=_limits,
    )

    @staticmethod
    def copies(network: Network) -> Copies:
        return Copies(inner=torch.int8, packed=True)

    def __post_init__(self) -> None:
        self.sizes = [shape[0] for shape in self.network.layer_shapes]
        *self.offsets, self.total = accumulate(map(padded, self.sizes), initial=0)
        self.units = sent_units(self.network)
        self.unit_values = torch.tensor(self.units, device=self.device)
        inner = [fast for fast in self.couplings[1:] if isinstance(fast, FastDense)]
        self.packed = [fast.packed for fast in inner if fast.packed is not None]
        self._make_tables()

    def _make_tables(self) -> None:
        """What the programs of `product_kernel` do, and where `send_kernel` finds their sums."""
        turns = self.network.turns
        self.pieces = [_pieces(Layout.of(size), len(turns)) for size in self.sizes]
        counts = [len(pieces) for pieces in self.pieces]
        self.down_plane = max(counts[:-1])
        self.planes = self.down_plane + max(counts[1:])
        tiles: dict[int, list[Tile]] = {n: [] for n in range(len(self.sizes))}
        for n, packed in enumerate(self.packed):
            tiles[n + 1] += self._tiles(n, n + 1, packed.up_at, packed.up, 0)
            tiles[n] += self._tiles(n + 1, n, packed.down_at, packed.down, self.down_plane)
        ups, downs = [0, *counts[:-1]], [*counts[1:], 0]
        places = map(Place, map(padded, self.sizes), self.offsets, ups, downs)
        self.places = self._table(places)
        # The longest first, so that none is begun last.
        self.turns = [
            (turn, self._table(sorted((t for n in turn for t in tiles[n]), key=_longest_first)))
            for turn in turns
        ]

    def _table(self, rows: Iterable[tuple[int, ...]]) -> Tensor:
        return torch.tensor(list(rows), dtype=torch.int32, device=self.device)

    def _tiles(
        self, source: int, target: int, weights: int, layout: Layout, plane: int
    ) -> list[Tile]:
        """The product of one coupling in one direction."""
        terms, outputs, span = padded(self.sizes[source]), padded(self.sizes[target]), layout.width
        return [
            Tile(
                source=self.offsets[source] + part * 8 * span,
                terms=min(8 * span, terms - part * 8 * span),
                weights=weights + start * layout.stride + part * span,
                stride=layout.stride,
                width=span,
                begin=begin,
                end=end,
                plane=plane + piece,
                target=self.offsets[target] + start,
                outputs=min(OUTPUTS, outputs - start),
            )
            for piece, (part, begin, end) in enumerate(self.pieces[source])
            for start in range(0, outputs, OUTPUTS)
        ]

    def relax(
        self, first: Tensor, phase: PhasePlan, origin: Phase | None, labels: Tensor | None
    ) -> Phase:
        batch, layers, integer = len(first), len(self.sizes), torch.int32
        target = self.target_of(phase, origin, labels)
        if origin is None:
            now = self._begin(batch)
        else:
            rest: Traffic = origin.carried
            now = Traffic(*(each.clone() for each in rest))
            target = target._replace(rest=rest.state if phase.constant else None)
        # Rows of four, since kernels want addresses that are multiples of 16. A nudged output also
        # moves by itself: that nothing is sent does not mean that nothing will be.
        moving = torch.zeros(phase.steps + 1, 4, dtype=integer, device=self.device)
        (moving if phase.nudged else moving[0]).fill_(1)
        sums = torch.empty(self.planes, batch, self.total, dtype=integer, device=self.device)
        changes = torch.zeros(batch, layers, device=self.device)
        scales = self._scales()
        drive = F.pad(first, (0, padded(first.shape[1]) - first.shape[1]))
        rows = min(64, max(16, power_of_two(batch)))
        if len(self.turns) > 1:
            # Layers of a turn do not listen to each other, so that they may send in place.
            now = now._replace(next_headers=now.headers)
        for t, (turn, tiles) in product(range(phase.steps), self.turns):
            widest = max(self.sizes[n] for n in turn)
            product_kernel[(len(tiles), -(-batch // rows))](
                now.delta,
                self.packed[0].memory,
                sums,
                tiles,
                moving[t],
                batch,
                self.total,
                INTERPRETED=self.device.type == "cpu",
                ROWS=rows,
                OUTPUTS=OUTPUTS,
                DEPTH=64,
                num_warps=8,
                num_stages=2,
            )
            send_kernel[(batch, len(turn))](
                drive,
                sums,
                now,
                scales,
                self.places,
                target,
                self.neuron,
                changes if t + 1 == phase.steps else None,
                moving[t],
                batch,
                self.total,
                LAYERS=layers,
                FIRST=turn.start,
                EVERY=turn.step,
                DOWN=self.down_plane,
                BLOCK=power_of_two(widest),
                num_warps=16 if widest > 2048 else 4,
            )
            now = now._replace(headers=now.next_headers, next_headers=now.headers)
        states = [
            now.state[:, offset : offset + size]
            for offset, size in zip(self.offsets, self.sizes, strict=True)
        ]
        ran = (moving[:-1, 0] > 0).sum(dtype=integer).reshape(1)
        return Phase(states, [], changes.max().reshape(1), ran, now)

    def _begin(self, batch: int) -> Traffic:
        """t = 0. All neurons start alike: what they first send is one number, sent exactly."""

        def room(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(batch, *shape or (self.total,), dtype=dtype, device=self.device)

        integer, initial, header = torch.int32, self.network.initial_state, (len(self.sizes), 2)
        start = Traffic(
            state=room(torch.float32).fill_(initial),
            sent=room(integer),
            delta=room(torch.int8),
            up=room(integer),
            down=room(integer),
            headers=room(integer, *header),
            next_headers=room(integer, *header),
        )
        for n, unit in enumerate(self.units):
            if len(self.turns) > 1 and n in self.turns[0][0]:
                continue  # it moves before it is heard
            whole = round(min(max(initial, 0.0), 1.0) * unit)
            shift = max(0, whole.bit_length() - 7)
            if whole:
                layer = slice(self.offsets[n], self.offsets[n] + self.sizes[n])
                start.headers[:, n, 0] = shift
                start.headers[:, n, 1] = self.sizes[n] * (whole >> shift)
                start.delta[:, layer] = whole >> shift
                start.sent[:, layer] = whole >> shift << shift
        return start

    def _scales(self) -> Scales:
        """As they are in this mini-batch."""
        couplings = self.network.couplings[1:]
        scales = [coupling.synapses.gain.detach() for coupling in couplings]
        none = torch.zeros((), device=self.device)
        ups = [scale / unit for scale, unit in zip(scales, self.units[:-1], strict=True)]
        downs = [scale / unit for scale, unit in zip(scales, self.units[1:], strict=True)]
        bias = torch.zeros(self.total, device=self.device)
        for offset, coupling in zip(self.offsets[1:], couplings, strict=True):
            if coupling.bias is not None:
                bias[offset : offset + len(coupling.bias)] = coupling.bias.detach()
        return Scales(
            torch.stack([none, *ups]), torch.stack([*downs, none]), bias, self.unit_values
        )
