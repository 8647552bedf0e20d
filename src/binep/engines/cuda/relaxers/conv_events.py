"""Relaxing convolutional networks of bits, step by step at the cost of what changes.

Maps (sums before pooling), drives from above and the sums of dense couplings are kept. A bit of the
layer below that flips changes the maps around it; a bit of the layer above that flips, or that wins
at another position of its pool, changes the drives around both positions. Changes are listed sample
by sample, in any order, since all sums are exact.

Bits alone move in turn: the sums of a turn's layers are updated before they move, and samples that
have come to rest are left out.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from binep.core.couplings import ConvPool
from binep.core.dynamics import EnergyBased, Hopfield
from binep.core.gradients import Learning
from binep.core.network import Network
from binep.core.neurons import Heaviside
from binep.core.plan import PhasePlan
from binep.core.turns import UPDATES
from binep.core.weights import BinaryWeight
from binep.engines.base import Capabilities
from binep.engines.cuda.convolution import channels_last, largest_in_pool, pool_corner
from binep.engines.cuda.layout import Copies, FastConv, FastDense
from binep.engines.cuda.relaxers.base import Phase, largest_change, rest_of_bits
from binep.engines.cuda.relaxers.dense_events import add_tile
from binep.engines.cuda.relaxers.stepwise import BUSY_STEPS, EventList, Stepwise, Sweep
from binep.engines.cuda.rules import Target

BUSY_SWEEPS = 2  # of bits alone
SILENT = tl.constexpr(15)  # stands for the place of a bit that is not sent
TILE = 512  # neurons whose sums a program brings up to date
GROUP = 4  # events whose rows a program has at hand: each thread adds up its own columns


class ConvCache(NamedTuple):
    """What one convolution between bits keeps from step to step.

    Attributes:
        maps: int32, sums before pooling. drive: f64, on the layer below.
        places: uint8, where in its pool each bit above is sent, or that it is not.
    """

    maps: Tensor
    drive: Tensor
    places: Tensor


class DenseCache(NamedTuple):
    """The same of a dense coupling: int32 sums, (batch, above) and (batch, below)."""

    up: Tensor
    down: Tensor


def _limits(network: Network, learning: Learning) -> Iterator[str]:
    pools = [coupling.pool for coupling in network.couplings if isinstance(coupling, ConvPool)]
    if len(pools) < 2:
        yield "two convolutions or more"
    if max(pools, default=1) > 3:
        yield "pools of at most 3 x 3"


class ConvEvents(Stepwise):
    """Convolutional networks of bits: after a few busy steps only changes cost time."""

    takes = Capabilities(
        weights=frozenset({BinaryWeight}),
        neurons=frozenset({Heaviside}),
        dynamics=frozenset({EnergyBased, Hopfield}),
        updates=frozenset(UPDATES),
        limits=_limits,
    )

    @staticmethod
    def copies(network: Network) -> Copies:
        return Copies(turned=True)

    def relax(
        self, first: Tensor, phase: PhasePlan, origin: Phase | None, labels: Tensor | None
    ) -> Phase:
        target, batch = self.target_of(phase, origin, labels), len(first)
        changed = None
        if self.network.dynamics.bits:
            # Whether a bit has changed in the sweep before; the first one is to be run.
            changed = self.unchanged(phase.steps + 1, batch)
            changed[0] = 1
        busy = 0
        if origin is not None:
            state, activity = [*origin.state], [*origin.activity]
            caches = [each._make(map(torch.clone, each)) for each in origin.carried]
            if changed is not None:
                activity = [bits.clone() for bits in activity]
                state = [*activity[:-1], state[-1].clone()]
        else:
            state, activity = self.start(batch)
            busy = min(BUSY_STEPS if changed is None else BUSY_SWEEPS, phase.steps - 1)
            for t in range(busy):
                row = None if changed is None else changed[t + 1]
                state, activity = self.step(first, state, activity, target, row)
            caches = [self._add_up(n, activity) for n in range(1, len(self.couplings))]
        before, flips, moves = state, *([EventList.of(s) for s in state] for _ in range(2))
        for t in range(busy, phase.steps):
            before, state, activity = state, [*state], [*activity]
            sweep = Sweep() if changed is None else Sweep(changed[t], changed[t + 1])
            for layers in self.network.turns:
                self._turn(layers, first, state, activity, caches, flips, moves, target, sweep)
        if changed is None:
            rest = largest_change(state, before), self._ran(phase.steps)
        else:
            rest = rest_of_bits(changed[1:])
        return Phase(state, activity, *rest, caches)

    def _turn(
        self,
        layers: range,
        first: Tensor,
        state: list[Tensor],
        activity: list[Tensor],
        caches: list[Any],
        flips: list[EventList],
        moves: list[EventList],
        target: Target,
        sweep: Sweep,
    ) -> None:
        """Some layers move at once; then all sums follow the bits that flipped."""
        pairs = list(enumerate(zip(self.couplings[1:], caches, strict=True), 1))
        ups, downs = {0: first}, {}
        for n, (fast, cache) in pairs:
            if isinstance(fast, FastDense):
                ups[n], downs[n - 1] = cache.up, cache.down
                continue
            # It drives the layer above, the layer below, or both.
            sends = n - 1 in layers
            ups[n] = _pool(fast, activity[n], cache, moves[n] if sends else EventList(), sweep)
            downs[n - 1] = cache.drive
            if sends:
                _drive(fast, cache, moves[n])
                moves[n] = moves[n].turned()
        moved = {}
        for n in layers:
            mine = target if n + 1 == len(state) else Target()
            bits = None if sweep.changed is None else activity[n]
            args = ups[n], downs.get(n), state[n], mine, flips[n], sweep, bits
            moved[n] = self._advance(n, *args)
        for n, found in moved.items():
            state[n], activity[n] = found
        flipped = [each if n in layers else EventList() for n, each in enumerate(flips)]
        for n, (fast, cache) in pairs:
            if isinstance(fast, FastDense):
                _multiply(fast, cache, flipped[n - 1], flipped[n])
            elif n - 1 in layers:
                _convolve(fast, cache, flipped[n - 1])
        for n in layers:
            flips[n] = flips[n].turned()

    def _add_up(self, n: int, activity: list[Tensor]) -> Any:
        """Sums of coupling n from scratch; drives are still 0, as if nothing had been sent yet."""
        fast, below, above = self.couplings[n], activity[n - 1], activity[n]
        if isinstance(fast, FastDense):
            up, down = fast.up(below)[0], fast.down(above, None)
            return DenseCache(up.to(torch.int32), down.to(torch.int32))
        return ConvCache(
            fast.maps(below).to(torch.int32),
            torch.zeros_like(below, dtype=torch.float64),
            torch.full_like(above, SILENT.value, dtype=torch.uint8),
        )


# --- sums that follow events: launches, then kernels


def _pool(
    fast: FastConv, above: Tensor, cache: ConvCache, moves: EventList, sweep: Sweep
) -> Tensor:
    """Pooled sums of the maps; may list the bits above that are sent elsewhere than before."""
    pooled = channels_last(len(above), fast.above_shape, torch.float32, above.device)
    fast.launch(
        pool_events_kernel,
        cache.maps,
        above,
        cache.places,
        pooled,
        moves,
        sweep,
        len(above),
        count=pooled.numel(),
    )
    return pooled


def _drive(fast: FastConv, cache: ConvCache, moves: EventList) -> None:
    """Bring the drive on the layer below up to date."""
    below, height, width = fast.below_shape
    down_events_kernel[(len(cache.drive) * height * width,)](
        moves,
        fast.turned,
        fast.gain,
        cache.drive,
        moves.events.shape[1],
        below,
        fast.window,
        fast.pooling,
        POOL=fast.coupling.pool,
        KERNEL=fast.coupling.kernel,
        GROUP=GROUP,
        BELOW=1 << (below - 1).bit_length(),
        num_warps=_warps(below),
    )


def _convolve(fast: FastConv, cache: ConvCache, flips: EventList) -> None:
    """Bring the maps up to date."""
    (height, width), above = fast.map_shape, fast.coupling.above
    up_events_kernel[(len(cache.maps) * height * width,)](
        flips,
        fast.kernel,
        cache.maps,
        flips.events.shape[1],
        fast.coupling.below,
        above,
        fast.window,
        KERNEL=fast.coupling.kernel,
        GROUP=GROUP,
        ABOVE=1 << (above - 1).bit_length(),
        num_warps=_warps(above),
    )


def _multiply(fast: FastDense, cache: DenseCache, below: EventList, above: EventList) -> None:
    """Bring the sums in both directions up to date, or in one of them."""
    (batch, outputs), inputs = cache.up.shape, cache.down.shape[1]
    tiles = -(-outputs // TILE) if below.counts is not None else 0
    tiles += -(-inputs // TILE) if above.counts is not None else 0
    dense_events_kernel[(batch, tiles)](
        below,
        above,
        fast.turned,
        fast.kernel,
        cache.up,
        cache.down,
        inputs,
        outputs,
        GROUP=8,
        TILE=TILE,
    )


def _warps(channels: int) -> int:
    """So many that a thread has eight columns of a row, or a few more."""
    return min(8, max(1, channels // 256))


@triton.jit
def pool_events_kernel(
    maps,  # int32, (batch, height, width, channels)
    above,  # bits of the layer above, (batch, rows, columns, channels)
    places,  # uint8, like above, changed in place: where each bit is sent, or SILENT
    pooled,  # f32, like above
    moves,  # EventList: unit << 8 | old place << 4 | new place
    sweep,
    batch,
    count,
    pooling,  # Pooling
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Max-pool, and list the bits above that are sent elsewhere than before."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    if moves.events is not None:
        tl.store(moves.spent + index, 0, mask=index < batch)
    units = pooling.channels * pooling.columns * pooling.rows
    sample = index // units
    if sweep.moving is not None:
        inside &= tl.load(sweep.moving + sample, mask=inside, other=0) > 0
    corner = pool_corner(index, pooling, POOL)
    best, winner = largest_in_pool(maps + corner, inside, pooling.width, pooling.channels, POOL)
    tl.store(pooled + index, best.to(tl.float32), mask=inside)
    if moves.events is not None:
        sent = tl.load(above + index, mask=inside, other=0.0) > 0.0
        new = tl.where(sent, winner, SILENT)
        old = tl.load(places + index, mask=inside, other=SILENT).to(tl.int32)
        changed = inside & (new != old)
        tl.store(places + index, new.to(tl.uint8), mask=changed)
        one = tl.full((BLOCK,), 1, tl.int32)
        at = tl.atomic_add(moves.counts + sample, one, mask=changed, sem="relaxed")
        event = ((index % units) << 8) | (old << 4) | new
        tl.store(moves.events + sample * units + at, event, mask=changed)


@triton.jit
def down_events_kernel(
    moves,  # EventList, from `pool_events_kernel`
    weights,  # (KERNEL * KERNEL, channels, below), taps turned
    scale,  # f32, (channels,)
    drive,  # f64, (batch, height, width, below), changed in place
    units,  # of the layer above
    below,  # channels
    window,  # Window
    pooling,  # Pooling
    POOL: tl.constexpr,
    KERNEL: tl.constexpr,
    GROUP: tl.constexpr,
    BELOW: tl.constexpr,
):
    """The drive on one position of the layer below, after the layer above has changed."""
    columns, channels = pooling.columns, pooling.channels
    position = tl.program_id(0) % (window.height * window.width)
    sample = tl.program_id(0) // (window.height * window.width)
    y, x = position // window.width, position % window.width
    number = tl.load(moves.counts + sample)
    if number > 0:
        j = tl.arange(0, BELOW)
        total = tl.zeros((BELOW,), tl.float64)
        for start in range(0, number, GROUP):
            k = start + tl.arange(0, GROUP)
            event = tl.load(moves.events + sample * units + k, mask=k < number, other=255)
            unit = event >> 8
            channel = unit % channels
            # Where a window that starts at the pool's corner would have its tap.
            down = y + window.padding - unit // (channels * columns) * POOL
            right = x + window.padding - unit // channels % columns * POOL
            factor = tl.load(scale + channel).to(tl.float64)
            place = event & 15
            for _ in tl.static_range(2):
                dy, dx = down - place // POOL, right - place % POOL
                hit = (place < SILENT) & (dy >= 0) & (dy < KERNEL) & (dx >= 0) & (dx < KERNEL)
                tap = (KERNEL - 1 - dy) * KERNEL + KERNEL - 1 - dx
                w = tl.load(
                    weights + (tap * channels + channel)[:, None] * below + j[None, :],
                    mask=hit[:, None] & (j < below)[None, :],
                    other=0.0,
                )
                # A sign bit instead of a product: float64 is slow to convert to.
                there = tl.where(hit, factor, 0.0)[:, None]
                total += tl.sum(tl.where(w < 0.0, -there, there), 0)
                # Then the same for the old place, taken away.
                place = (event >> 4) & 15
                factor = -factor
        here = drive + tl.program_id(0) * below + j
        tl.store(here, tl.load(here, mask=j < below, other=0.0) + total, mask=j < below)


@triton.jit
def up_events_kernel(
    flips,  # EventList of the layer below; -1 - i where a bit fell to 0
    weights,  # (KERNEL * KERNEL, channels, above)
    maps,  # int32, (batch, rows, columns, above), changed in place
    units,  # of the layer below
    channels,
    above,
    window,  # Window
    KERNEL: tl.constexpr,
    GROUP: tl.constexpr,
    ABOVE: tl.constexpr,
):
    """The sums at one position of the maps, after bits of the layer below have flipped."""
    position = tl.program_id(0) % (window.rows * window.columns)
    sample = tl.program_id(0) // (window.rows * window.columns)
    number = tl.load(flips.counts + sample)
    if number > 0:
        j = tl.arange(0, ABOVE)
        total = tl.zeros((ABOVE,), tl.int32)
        for start in range(0, number, GROUP):
            k = start + tl.arange(0, GROUP)
            event = tl.load(flips.events + sample * units + k, mask=k < number, other=0)
            sign = tl.where(event < 0, -1, 1)
            unit = tl.where(event < 0, -1 - event, event)
            dy = unit // (channels * window.width) - position // window.columns + window.padding
            dx = unit // channels % window.width - position % window.columns + window.padding
            hit = (k < number) & (dy >= 0) & (dy < KERNEL) & (dx >= 0) & (dx < KERNEL)
            row = (dy * KERNEL + dx) * channels + unit % channels
            w = tl.load(
                weights + row[:, None] * above + j[None, :],
                mask=hit[:, None] & (j < above)[None, :],
                other=0.0,
            )
            total += tl.sum(w.to(tl.int32) * sign[:, None], 0)
        here = maps + tl.program_id(0) * above + j
        tl.store(here, tl.load(here, mask=j < above, other=0) + total, mask=j < above)


@triton.jit
def dense_events_kernel(
    flips_below,  # EventList, or none; -1 - i where a bit fell to 0
    flips_above,
    turned,  # (below, above)
    kernel,  # (above, below)
    up,  # int32, (batch, above), changed in place
    down,  # int32, (batch, below), changed in place
    below,
    above,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
):
    """Sums of a dense coupling, in both directions, after bits on either side flipped."""
    sample, tile = tl.program_id(0), tl.program_id(1)
    if flips_below.events is not None:
        if tile < tl.cdiv(above, TILE):
            events = flips_below.events + sample * below
            count = tl.load(flips_below.counts + sample)
            if count > 0:
                sums = up + sample * above
                add_tile(sums, turned, above, events, count, tile * TILE, GROUP, TILE)
        tile -= tl.cdiv(above, TILE)
    if flips_above.events is not None:  # noqa: SIM102, known when compiling
        if tile >= 0:
            events = flips_above.events + sample * above
            count = tl.load(flips_above.counts + sample)
            if count > 0:
                sums = down + sample * below
                add_tile(sums, kernel, below, events, count, tile * TILE, GROUP, TILE)
