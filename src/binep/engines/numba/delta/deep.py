"""Several layers: a step of a whole mini-batch at a time, by what has changed, in eight bits.

Numbers travel as integers. A neuron's activity is sent as an integer `sent`, a multiple of a unit
`2^-bits`; each step sends `delta`, eight bits times `2^shift`, so that `sent` follows the activity.
The shift belongs to a sample and step: it is the smallest that holds the largest difference. Sums
over what was sent are exact in int32; the neurons' own arithmetic is float32. A difference of less
than one unit is not sent, so that settled neurons are silent.
Where layers move in turn only those of one turn listen at a time, so that every coupling is used in
one direction: a sweep of all turns costs one step.

Layers are (batch, places * channels), channels last. Kernels run on every n-th sample of those
that still move: row k of what travels belongs to sample `order[k]`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from binep.core.couplings import ConvPool
from binep.core.network import Clamped, Network
from binep.core.plan import PhasePlan
from binep.engines.fixed_point import field_unit, sent_units
from binep.engines.numba.delta.relaxer import FREE, Nudging, Relaxer, Settled, nudged, nudging
from binep.engines.numba.delta.sign_bytes import (
    ZERO_POINT,
    Filters,
    SignBytes,
    channels_first,
    channels_last,
)
from binep.engines.numba.jit import fast, inner, kernel_threads, run_shares
from binep.engines.numba.rules import clamp, sent, wins

Array = Any

_NO_SUMS, _NO_FLOATS = np.empty((0, 0), np.int32), np.empty((0, 0), np.float32)
_NO_SHIFT, _NO_SCALES = np.empty(0, np.int32), np.empty(0, np.float32)


class Sent(NamedTuple):
    """What a layer sends, or a map: units so far, (batch, n), and the next eight bits of each.

    Attributes:
        sent: int32, changed. shift: (batch,), of what is sent; empty for no map.
        delta: bytes, (rows, n), with `offset` added to each.
    """

    sent: Array
    shift: Array
    delta: Array
    offset: int


class Drive(NamedTuple):
    """What comes from one side: `gain * sums + bias`, when `news << shift` has been added to sums.

    Attributes:
        sums: int32, (batch, n), changed. news: (rows, n), or empty. shift: (batch,).
        gain, bias: (n,); from above one gain, and no bias.
    """

    sums: Array
    news: Array
    shift: Array
    gain: Any
    bias: Array


class Pool(NamedTuple):
    """Geometry of a convolution's map and its pool: sides, channels, and the pool's side."""

    map_rows: int
    map_cols: int
    rows: int
    cols: int
    channels: int
    side: int


_NO_UP = Drive(_NO_SUMS, _NO_SUMS, _NO_SHIFT, _NO_SCALES, _NO_SCALES)
_NO_DOWN = Drive(_NO_SUMS, _NO_SUMS, _NO_SHIFT, np.float32(0), _NO_SCALES)


# --- where a mini-batch stands ------------------------------------------------------------------


@dataclass
class Layer:
    """A relaxing layer: its state and what it sends."""

    state: Array
    to: Sent

    def send(self, delta: Tensor) -> None:
        """Send other bytes instead."""
        self.to = self.to._replace(delta=delta.numpy())

    @property
    def delta(self) -> Tensor:
        return torch.from_numpy(self.to.delta)


@dataclass
class Link:
    """What has come through an inner coupling, up and down.

    Attributes:
        sums: of what came up, on the map of a convolution. pooled, winners: what its pool made of
            them; for a dense coupling `sums` itself, and nothing.
        down: sums of what came down. field: what the layer above sends down onto the map of a
            convolution; a dense coupling is sent the same both ways.
    """

    sums: Array
    pooled: Array
    winners: Array
    down: Array
    field: Sent


@dataclass
class RelaxState:
    """State of a relaxing mini-batch; `order`: samples that still move, one per row of deltas."""

    first: Array
    order: Array
    layers: list[Layer]
    links: list[Link]


@dataclass
class Scales:
    """Of a coupling in this mini-batch, in units of what is sent.

    Attributes:
        gain, bias: of a neuron above. down: of a sum on the layer below.
        share: what part of what the layer above sends up counts on a convolution's map, a channel.
    """

    gain: Array
    bias: Array
    down: Any
    share: Array


class Deep(Relaxer):
    """Chains of dense couplings and convolutions."""

    def __init__(self, network: Network, early_stop: bool) -> None:
        super().__init__(network, early_stop)
        self.couplings: list[SignBytes | Filters | None] = [None]
        for coupling, shape in zip(network.couplings[1:], network.shapes[1:-1], strict=True):
            kind: Any = Filters if isinstance(coupling, ConvPool) else SignBytes
            self.couplings.append(kind(coupling, shape))
        self.units = sent_units(network)
        self.sizes = [torch.Size(shape).numel() for shape in network.layer_shapes]
        # Of the maps of convolutions, and otherwise of the layers above.
        self.maps = [
            torch.Size(coupling.map_shape).numel() if isinstance(coupling, Filters) else size
            for coupling, size in zip(self.couplings, self.sizes, strict=True)
        ]
        self.scales: list[Scales] = []

    def refresh(self, n: int) -> None:
        coupling = self.couplings[n]
        if coupling is not None:
            coupling.refresh()

    def inner(self, n: int) -> SignBytes | None:
        coupling = self.couplings[n]
        return coupling if isinstance(coupling, SignBytes) else None

    def take_scales(self) -> None:
        self.scales = []
        for n, coupling in enumerate(self.network.couplings):
            shape = self.network.shapes[n + 1]
            channels, places = shape[0], torch.Size(shape[1:]).numel()
            scale = coupling.scale.detach().numpy().reshape(-1)
            unit = self.units[n - 1] if n else 1.0
            gain = np.tile(np.broadcast_to(scale / np.float32(unit), (channels,)), places)
            bias = np.zeros(channels, np.float32)
            if coupling.bias is not None:
                bias = coupling.bias.detach().numpy()
            largest, conv = scale.max(), isinstance(self.couplings[n], Filters)
            sent_down = field_unit(coupling) if conv else self.units[n]
            share = (scale / largest * sent_down / self.units[n]).astype(np.float32)
            down = np.float32(float(largest) / sent_down)
            self.scales.append(Scales(gain, np.tile(bias, places), down, share))

    def _offset(self, n: int) -> int:
        """What is added to the bytes that layer n sends up."""
        above = self.couplings[n + 1] if n + 1 < len(self.couplings) else None
        return ZERO_POINT if isinstance(above, Filters) else 0

    def begin(self, clamped: Clamped) -> RelaxState:
        batch, initial = len(clamped.x), self.network.initial_state

        def room(size: int, kind: Any = np.int32) -> Array:
            return np.zeros((batch, size), kind)

        layers, links = [], []
        activity, turns = min(max(initial, 0.0), 1.0), self.network.turns
        for n, size in enumerate(self.sizes):
            # All neurons start alike: what they first send is one number, sent exactly. What moves
            # before anybody has listened starts from nothing.
            unheard = len(turns) > 1 and n in turns[0]
            whole, shift = int((0.0 if unheard else activity) * self.units[n] + 0.5), 0
            while whole >> shift > 127:
                shift += 1
            byte = whole >> shift
            delta = torch.full((batch, size), byte + self._offset(n), dtype=torch.uint8)
            state, units = np.full((batch, size), initial, np.float32), room(size)
            units[:] = byte << shift
            to = Sent(units, np.full(batch, shift, np.int32), delta.numpy(), self._offset(n))
            layers.append(Layer(state, to))
        for n in range(1, len(self.sizes)):
            below, above, conv = *self.sizes[n - 1 : n + 1], isinstance(self.couplings[n], Filters)
            size = self.maps[n] if conv else 0
            sums, shift = room(self.maps[n]), np.zeros(batch, np.int32)
            field = Sent(room(size), shift, room(size, np.uint8), ZERO_POINT)
            pooled, winners = room(above) if conv else sums, room(above if conv else 0, np.uint8)
            if conv and activity > 0 and len(turns) > 1 and n - 1 in turns[0]:
                winners[:] = self._first_winners(n)
            links.append(Link(sums, pooled, winners, room(below), field))
        first = channels_last(clamped.drive).contiguous().numpy()
        return RelaxState(first, np.arange(batch), layers, links)

    def _first_winners(self, n: int) -> Array:
        """Where a convolution's pools find the most while all neurons below are still alike."""
        coupling, above = self.couplings[n], self.sizes[n]
        assert isinstance(coupling, Filters)
        alike = torch.full((1, self.sizes[n - 1]), 1 + ZERO_POINT, dtype=torch.uint8)
        one, zero = np.zeros(1, np.int64), np.zeros(1, np.int32)
        sums = np.zeros((1, self.maps[n]), np.int32)
        up = _NO_UP._replace(sums=sums, news=coupling.up(alike).numpy(), shift=zero)
        pooled, winners = np.empty((1, above), np.int32), np.empty((1, above), np.uint8)
        field, scratch = Sent(sums, zero, alike.numpy(), 0), np.empty((1, 1), np.float32)
        pooling = pooled, winners, pooled, self.scales[n].share
        run_shares(
            pool_share, one, _pool(coupling), True, False, False, up, *pooling, field, one,
            np.repeat(scratch, 2 * kernel_threads(), 0),
        )  # fmt: skip
        return winners

    def states(self, relaxing: RelaxState) -> list[Tensor]:
        return [
            channels_first(torch.from_numpy(layer.state), shape)
            for layer, shape in zip(relaxing.layers, self.network.layer_shapes, strict=True)
        ]

    # --- a phase

    def run(
        self, relaxing: RelaxState, phase: PhasePlan, tolerance: float | None, target: Array
    ) -> Settled:
        self._wake(relaxing)
        steps, how = phase.steps, nudging(self.network, phase)
        rest = relaxing.layers[-1].state.copy()
        scratch = np.empty((2 * kernel_threads(), max(*self.sizes, *self.maps)), np.float32)
        taken, residual = 0, 0.0
        for t in range(1, steps + 1):
            order = relaxing.order
            measured = tolerance is not None or t == steps
            taken += len(order)
            still = np.ones(len(order), np.int64)
            changes = np.zeros(len(order) if measured else 0, np.float32)
            for turn in self.network.turns:
                self._move(relaxing, turn, target, rest, how, still, changes, scratch)
            if measured:
                residual = float(changes.max())
                if tolerance is not None and residual <= np.float32(tolerance):
                    return Settled(t, taken, residual)
            if how.on or not self.early_stop:
                # The output also moves by itself: silence does not mean that it has settled.
                continue
            moving = np.flatnonzero(still == 0)
            if not len(moving):
                # Every step from now on would find everything as it is.
                residual = residual if t == steps else 0.0
                return Settled(steps if tolerance is None else min(t + 1, steps), taken, residual)
            if 16 * len(moving) <= 15 * len(still):
                relaxing.order = order[moving]
                for layer in relaxing.layers:
                    layer.send(layer.delta[torch.from_numpy(moving)])
        return Settled(steps, taken, residual)

    def _wake(self, relaxing: RelaxState) -> None:
        """Make all samples move again; those that had come to rest have nothing to send."""
        batch = len(relaxing.first)
        if len(relaxing.order) == batch:
            return
        rows = torch.from_numpy(relaxing.order)
        for n, layer in enumerate(relaxing.layers):
            delta = torch.full((batch, self.sizes[n]), self._offset(n), dtype=torch.uint8)
            delta[rows] = layer.delta
            layer.send(delta)
        relaxing.order = np.arange(batch)

    def _move(
        self, relaxing: RelaxState, turn: range, target: Array, rest: Array, how: Nudging,
        still: Array, changes: Array, scratch: Array,
    ) -> None:  # fmt: skip
        """Layers move at once: first what was sent to them arrives, then they choose the next."""
        order, layers, scales = relaxing.order, relaxing.layers, self.scales
        last = turn == self.network.turns[-1]
        ups, downs = {0: _NO_UP}, {len(layers) - 1: _NO_DOWN}
        for n, link in enumerate(relaxing.links, start=1):
            coupling, below, above = self.couplings[n], layers[n - 1], layers[n]
            assert coupling is not None
            listens_up, listens_down = n in turn, n - 1 in turn
            # Shifts are copied: those of what has come, while the layers choose the next ones.
            news = coupling.up(below.delta).numpy() if listens_up else _NO_FLOATS
            scale = scales[n].gain, scales[n].bias
            ups[n] = Drive(link.sums, news, below.to.shift.copy(), *scale)
            delta, shift = above.delta, above.to.shift.copy()
            if isinstance(coupling, Filters):
                size = self.maps[n] if listens_down else 0
                delta, shift = torch.empty(len(order), size, dtype=torch.uint8), link.field.shift
                field = link.field._replace(delta=delta.numpy())
                pooling = link.pooled, link.winners, above.to.sent, scales[n].share
                directions = listens_up, listens_down, last
                args = order, _pool(coupling), *directions, ups[n], *pooling, field, still, scratch
                run_shares(pool_share, *args)
                ups[n] = ups[n]._replace(sums=link.pooled, news=_NO_SUMS)
            if listens_down:
                fallen = coupling.down(delta).numpy()
                downs[n - 1] = Drive(link.down, fallen, shift, scales[n].down, _NO_SCALES)
        for n in turn:
            layer, up, down = layers[n], ups[n], downs[n]
            first = _NO_FLOATS if n else relaxing.first
            outputs = target, rest, how if down is _NO_DOWN else FREE
            args = layer.state, layer.to, np.float32(self.units[n]), *outputs, last
            run_shares(advance_share, order, first, up, down, *args, still, changes, scratch)


def _pool(filters: Filters) -> Pool:
    channels, height, width = filters.map_shape
    _, rows, cols = filters.above_shape
    return Pool(height, width, rows, cols, channels, filters.coupling.pool)


# --- kernels ------------------------------------------------------------------------------------


@inner
def _send(differences, to, b, k):
    """Send differences of sample b in row k, with the smallest shift that they fit in, rounded.

    Returns the largest difference.
    """
    largest, shift = np.int32(0), 0
    for i in range(len(differences)):
        d = differences[i]
        d = d if d > 0 else -d
        largest = d if d > largest else largest
    while ((largest + ((1 << shift) >> 1)) >> shift) > 127:
        shift += 1
    by, half = np.int32(shift), np.int32((1 << shift) >> 1)
    units, delta, offset = to.sent[b], to.delta[k], to.offset
    for i in range(len(differences)):
        d = (differences[i] + half) >> by
        units[i] += d << by
        delta[i] = np.uint8(d + offset)
    to.shift[b] = by
    return largest


@inner
def _take_in(drive, b, k):
    """Add what has come for sample b, in row k, to its sums."""
    sums = drive.sums[b]
    if len(drive.news):
        news, by = drive.news[k], np.int32(drive.shift[b])
        for i in range(len(sums)):
            sums[i] += np.int32(news[i]) << by


@fast
def advance_share(
    order, first, up, down, state, to, unit, target, rest, how, last, still, changes, scratch,
    threads, thread,
):  # fmt: skip
    """Take one layer a step further and send how its activity differs from what was sent.

    Args:
        first: the input's drive on the first layer, (batch, neurons), in place of `up`; or empty.
        up, down: see `Drive`; without news and sums where there is nothing.
        state: (batch, neurons), changed. to: see `Sent`. unit: how many units of `sent` make one.
        target, rest: (batch, outputs), for the top.
        last: whether nobody moves after this layer in a step. still: (rows,), cleared where then
            something is sent; earlier, where not all could be.
        changes: (rows,), gets the largest change of a neuron if it is larger; empty: not wanted.
    """
    size = state.shape[1]
    differences, drives = scratch[thread].view(np.int32)[:size], scratch[thread + threads][:size]
    for k in range(thread, len(order), threads):
        b = order[k]
        if len(first):
            drives[:] = first[b]
        else:
            _take_in(up, b, k)
            sums = up.sums[b]
            for i in range(size):
                drives[i] = up.gain[i] * np.float32(sums[i]) + up.bias[i]
        if len(down.sums):
            _take_in(down, b, k)
            sums = down.sums[b]
            for i in range(size):
                drives[i] += down.gain * np.float32(sums[i])
        old, past = state[b], to.sent[b]
        if how.on:
            for i in range(size):
                drives[i] = nudged(drives[i], old[i], rest[b, i], target[b, i], how)
        else:
            for i in range(size):
                drives[i] = clamp(drives[i])
        if len(changes):
            for i in range(size):
                changes[k] = max(changes[k], abs(drives[i] - old[i]))
        old[:] = drives
        for i in range(size):
            differences[i] = np.int32(sent(drives[i], how.raw) * unit - np.float32(past[i]))
        largest = _send(differences, to, b, k)
        if largest if last else to.shift[b]:
            still[k] = 0


@fast
def pool_share(
    order, pool, upwards, downwards, last, up, pooled, winners, sent, share, to, still, scratch,
    threads, thread,
):  # fmt: skip
    """Add up a convolution's map, pool it, and send what the layer above sends back through it.

    That is a field on the map: each neuron's activity times its channel's scale, at the switch.

    Args:
        upwards, downwards: whether to do the one, and whether to do the other. last: whether what
            is chosen now acts in the next step.
        up: what the convolution made of the differences, on the map; see `Drive`.
        pooled, winners: (batch, neurons), get the pools' sums and the places of the winners in
            their pools; on a tie the first.
        sent: what the layer above has sent up, (batch, neurons). share: (channels,), what part of
            it counts, in the units of the field.
        to: the field, see `Sent`. still: (rows,), cleared where not all could be sent at once, and
            where a winner has yet to act.
    """
    side, channels = pool.side, pool.channels
    row = pool.map_cols * channels
    differences = scratch[thread].view(np.int32)[: to.sent.shape[1]]
    best = np.empty(channels, np.int32)
    where = np.empty(channels, np.uint8)
    for k in range(thread, len(order), threads):
        b = order[k]
        here, mine = up.sums[b], to.sent[b]
        if upwards:
            _take_in(up, b, k)
        if downwards:
            for i in range(len(mine)):
                differences[i] = -mine[i]
        for y in range(pool.rows):
            for x in range(pool.cols):
                corner = y * side * row + x * side * channels
                at = (y * pool.cols + x) * channels
                if upwards:
                    best[:] = here[corner : corner + channels]
                    where[:] = 0
                    for n in range(1, side * side):
                        place = corner + n // side * row + n % side * channels
                        values = here[place : place + channels]
                        for c in range(channels):
                            more = wins(values[c], best[c])
                            best[c] = values[c] if more else best[c]
                            where[c] = np.uint8(n) if more else where[c]
                    pooled[b, at : at + channels] = best
                    before = winners[b, at : at + channels]
                    if last and not downwards:
                        other = np.uint8(0)
                        for c in range(channels):
                            other |= where[c] ^ before[c]
                        if other:
                            still[k] = 0
                    before[:] = where
                else:
                    where[:] = winners[b, at : at + channels]
                if not downwards:
                    continue
                values = sent[b, at : at + channels]
                for n in range(side * side):
                    place = corner + n // side * row + n % side * channels
                    wanted = differences[place : place + channels]
                    for c in range(channels):
                        a = np.int32(np.float32(values[c]) * share[c] + np.float32(0.5))
                        wanted[c] += a if where[c] == n else np.int32(0)
        if downwards:
            _send(differences, to, b, k)
            if to.shift[b]:
                still[k] = 0
