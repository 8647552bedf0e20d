# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
"""Triton kernels of couplings between bits, step by step at the cost of what changes.

Maps (sums before pooling), drives from above and the sums of dense couplings are kept. A bit of the
layer below that flips changes the maps around it; a bit of the layer above that flips, or that wins
at another place of its pool, changes the drives around both places. Who changed is listed sample by
sample; the order is left to chance, since all sums are exact.
"""

import triton
import triton.language as tl

from binep.engines.cuda.convolving import largest_in_pool, pool_corner
from binep.engines.cuda.settling import add_tile

SILENT = tl.constexpr(15)  # stands for the place of a bit that is not sent


@triton.jit
def pool_events_kernel(
    maps,  # int32, (batch, height, width, channels)
    above,  # bits of the layer above, (batch, rows, columns, channels)
    places,  # uint8, like above, changed in place: where each bit is sent, or SILENT
    pooled,  # f32, like above
    events,  # int32, (batch, units): unit << 8 | old place << 4 | new place
    counts,  # int32, (batch,), zero: events of each sample
    spent,  # int32, (batch,): set to zero
    batch,
    count,
    height,
    width,
    rows,
    columns,
    channels,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Max-pool, and list the bits above that are sent elsewhere than before."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    tl.store(spent + index, 0, mask=index < batch)
    units = channels * columns * rows
    sample = index // units
    corner = pool_corner(index, channels, rows, columns, height, width, POOL)
    best, winner = largest_in_pool(maps + corner, inside, width, channels, POOL)
    tl.store(pooled + index, best.to(tl.float32), mask=inside)
    sent = tl.load(above + index, mask=inside, other=0.0) > 0.0
    new = tl.where(sent, winner, SILENT)
    old = tl.load(places + index, mask=inside, other=SILENT).to(tl.int32)
    changed = inside & (new != old)
    tl.store(places + index, new.to(tl.uint8), mask=changed)
    one = tl.full((BLOCK,), 1, tl.int32)
    at = tl.atomic_add(counts + sample, one, mask=changed, sem="relaxed")
    event = ((index % units) << 8) | (old << 4) | new
    tl.store(events + sample * units + at, event, mask=changed)


@triton.jit
def down_events_kernel(
    events,  # from `pool_events_kernel`
    counts,
    weights,  # (KERNEL * KERNEL, channels, below), taps turned
    scale,  # f32, (channels,)
    drive,  # f64, (batch, height, width, below), changed in place
    units,
    columns,
    channels,
    height,
    width,
    below,
    padding,
    POOL: tl.constexpr,
    KERNEL: tl.constexpr,
    GROUP: tl.constexpr,
    BELOW: tl.constexpr,
):
    """The drive on one position of the layer below, after the layer above has changed."""
    position = tl.program_id(0) % (height * width)
    sample = tl.program_id(0) // (height * width)
    y, x = position // width, position % width
    number = tl.load(counts + sample)
    if number > 0:
        j = tl.arange(0, BELOW)
        total = tl.zeros((BELOW,), tl.float64)
        for start in range(0, number, GROUP):
            k = start + tl.arange(0, GROUP)
            event = tl.load(events + sample * units + k, mask=k < number, other=255)
            unit = event >> 8
            channel = unit % channels
            # Where a window that starts at the pool's corner would have its tap.
            down = y + padding - unit // (channels * columns) * POOL
            right = x + padding - unit // channels % columns * POOL
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
    events,  # int32, (batch, units): neurons of the layer below that flipped; -1 - i if to 0
    counts,  # int32, (batch,)
    weights,  # (KERNEL * KERNEL, channels, above)
    maps,  # int32, (batch, height, width, above), changed in place
    units,
    below_width,
    channels,
    height,
    width,
    above,
    padding,
    KERNEL: tl.constexpr,
    GROUP: tl.constexpr,
    ABOVE: tl.constexpr,
):
    """The sums at one position of the maps, after bits of the layer below have flipped."""
    position = tl.program_id(0) % (height * width)
    sample = tl.program_id(0) // (height * width)
    number = tl.load(counts + sample)
    if number > 0:
        j = tl.arange(0, ABOVE)
        total = tl.zeros((ABOVE,), tl.int32)
        for start in range(0, number, GROUP):
            k = start + tl.arange(0, GROUP)
            event = tl.load(events + sample * units + k, mask=k < number, other=0)
            sign = tl.where(event < 0, -1, 1)
            unit = tl.where(event < 0, -1 - event, event)
            dy = unit // (channels * below_width) - position // width + padding
            dx = unit // channels % below_width - position % width + padding
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
    flips_below,  # int32, (batch, below): neurons that flipped; -1 - i if to 0
    counts_below,  # int32, (batch,)
    flips_above,  # int32, (batch, above)
    counts_above,
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
    tiles = tl.cdiv(above, TILE)
    if tile < tiles:
        events, count = flips_below + sample * below, tl.load(counts_below + sample)
        if count > 0:
            sums = up + sample * above
            add_tile(sums, turned, above, events, count, tile * TILE, GROUP, TILE)
    else:
        events, count = flips_above + sample * above, tl.load(counts_above + sample)
        if count > 0:
            sums, start = down + sample * below, (tile - tiles) * TILE
            add_tile(sums, kernel, below, events, count, start, GROUP, TILE)
