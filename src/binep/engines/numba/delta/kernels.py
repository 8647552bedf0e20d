"""What happens between two products: sums, pools, neurons, and the differences that they send.

Numbers travel as integers. A neuron's activity is sent as an integer `sent`, a multiple of a unit
`2^-bits`; each step sends `delta`, eight bits times `2^shift`, so that `sent` follows the activity.
The shift belongs to a sample and step: it is the smallest that holds the largest difference. Sums
over what was sent are exact in int32; the neurons' own arithmetic is float32. A difference of less
than one unit is not sent, so that neurons which have settled are silent instead of trembling.

Layers are (batch, places * channels), channels last. Kernels run on every n-th sample of those
that still move: row k of what travels belongs to sample `order[k]`. They may take liberties with
the order of float32 operations, hence `LIBERTIES`, but none with NaN.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from binep.engines.numba.jit import inner, kernel

Array = Any

LIBERTIES = {"reassoc", "contract", "nsz"}
_fast = partial(kernel, fastmath=LIBERTIES)

BLOCK = 256  # neurons whose synapses stay in the first level of cache
ROWS = 5  # rows of synapses that are taken together

_ZERO, _ONE = np.float32(0), np.float32(1)


# --- sending ------------------------------------------------------------------------------------


@inner
def _shift(largest):
    """The smallest shift with which a difference of this size, rounded, fits into seven bits."""
    shift = 0
    while ((largest + ((1 << shift) >> 1)) >> shift) > 127:
        shift += 1
    return shift


@inner
def _send(differences, largest, sent, delta, offset):
    """Send differences: `delta` gets eight bits of each, `sent` what that is worth.

    Returns the shift that they are sent with.
    """
    by = np.int32(_shift(largest))
    half = np.int32((1 << by) >> 1)
    for i in range(len(differences)):
        d = (differences[i] + half) >> by
        sent[i] += d << by
        delta[i] = np.uint8(d + offset)
    return by


# --- one hidden layer: a whole relaxation for one sample at a time ------------------------------


class Nudging(NamedTuple):
    """How the output is nudged.

    Attributes:
        on: whether it is. live: with the current state, otherwise with that of the start.
        beta: signed strength. clamped: whether the nudged state is clamped to [0, 1].
        raw: whether it is sent as it is, beyond [0, 1] too.
    """

    on: bool
    live: bool
    beta: Any
    clamped: bool
    raw: bool


@inner
def _nudged(value, state, rest, target, nudging):
    pull = target - (state if nudging.live else rest)
    value = value + nudging.beta * pull
    if nudging.clamped:
        value = min(max(value, _ZERO), _ONE)
    return value


@_fast
def settle_share(
    first, synapses, gain, bias, hidden, top, steps, target, nudging, early_stop, trace, taken,
    threads, thread,
):  # fmt: skip
    """Relax networks of one hidden layer, in place, without ever leaving the cache.

    Once the output repeats itself with period one or two, so does everything, bit for bit: then one
    or two more steps lead to where all the remaining ones would.

    Args:
        first: the drive of the input, (batch, hidden).
        synapses: the signs of the upper coupling, (outputs, hidden), float32, with rows of zeros up
            to a multiple of `ROWS`. gain: its scale. bias: (outputs,).
        hidden, top: states, (batch, hidden) and (batch, outputs), changed.
        target: (batch, outputs). early_stop: whether to use that.
        trace: (batch, steps), gets the largest change in each step, every step being run; or
            (batch, 1), which gets that of the last step.
        taken: (batch,), gets the number of steps that were run.
    """
    width, outputs = first.shape[1], top.shape[1]
    rows = len(synapses)
    drive = np.empty(BLOCK, np.float32)
    sums = np.empty(rows, np.float32)
    sent = np.zeros(rows, np.float32)
    past = np.empty((4, outputs), np.float32)
    tracing = trace.shape[1] > 1
    for b in range(thread, len(first), threads):
        state, out = hidden[b], top[b]
        rest = out.copy()
        end, t = steps, 0
        while t < end:
            past[t % 4] = out
            for m in range(outputs):
                sent[m] = gain * (out[m] if nudging.raw else min(max(out[m], _ZERO), _ONE))
                sums[m] = _ZERO
            change = _ZERO
            for start in range(0, width, BLOCK):
                stop = min(start + BLOCK, width)
                here, drives = state[start:stop], drive[: stop - start]
                drives[:] = first[b, start:stop]
                for m in range(0, rows, ROWS):
                    w0, w1 = synapses[m, start:stop], synapses[m + 1, start:stop]
                    w2, w3 = synapses[m + 2, start:stop], synapses[m + 3, start:stop]
                    w4 = synapses[m + 4, start:stop]
                    a0, a1, a2, a3, a4 = sent[m], sent[m + 1], sent[m + 2], sent[m + 3], sent[m + 4]
                    n0, n1, n2, n3, n4 = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
                    for i in range(len(here)):
                        a = here[i]
                        n0 += w0[i] * a
                        n1 += w1[i] * a
                        n2 += w2[i] * a
                        n3 += w3[i] * a
                        n4 += w4[i] * a
                        drives[i] += w0[i] * a0 + w1[i] * a1 + w2[i] * a2 + w3[i] * a3 + w4[i] * a4
                    sums[m] += n0
                    sums[m + 1] += n1
                    sums[m + 2] += n2
                    sums[m + 3] += n3
                    sums[m + 4] += n4
                if tracing or t == end - 1:
                    for i in range(len(here)):
                        change = max(change, abs(min(max(drives[i], _ZERO), _ONE) - here[i]))
                for i in range(len(here)):
                    d = drives[i]
                    d = d if d > _ZERO else _ZERO
                    here[i] = d if d < _ONE else _ONE
            for m in range(outputs):
                value = min(max(gain * sums[m] + bias[m], _ZERO), _ONE)
                if nudging.on:
                    value = _nudged(value, out[m], rest[m], target[b, m], nudging)
                change = max(change, abs(value - out[m]))
                out[m] = value
            trace[b, t if tracing else 0] = change
            t += 1
            if early_stop and t >= 3 and end == steps and not tracing:
                repeats = True
                for m in range(outputs):
                    if (
                        out[m] != past[(t - 2) % 4, m]
                        or past[(t - 1) % 4, m] != past[(t - 3) % 4, m]
                    ):
                        repeats = False
                if repeats and end - t > 2:
                    end = t + 2 - (end - t) % 2
        taken[b] = t


# --- several layers: between the products of one step -------------------------------------------


@_fast
def advance_share(
    order,
    first,
    sums,
    ups,
    up_shift,
    gain,
    bias,
    downs,
    down_sums,
    down_shift,
    down_gain,
    state,
    sent,
    delta,
    shift,
    unit,
    offset,
    target,
    rest,
    nudging,
    still,
    changes,
    scratch,
    threads,
    thread,
):
    """Take one layer a step further and send how its activity differs from what was sent.

    Args:
        first: the input's drive on the first layer, (batch, neurons); otherwise empty, and the
            drive from below is `gain * sums + bias`, with `ups`, (rows, neurons), added to the sums
            first, times `2^up_shift`. (Empty where a pool has done so.)
        downs, down_sums, down_shift, down_gain: the same from the layer above; empty for the top.
        state, sent: (batch, neurons), changed. delta: (rows, neurons), what to send.
        shift: (batch,), the shift of what is sent. unit: how many units of `sent` make one.
        offset: added to what is sent. target, rest: (batch, outputs), for the top.
        still: (rows,), cleared where something is sent.
        changes: (rows,), gets the largest change of a neuron if it is larger; empty: not wanted.
    """
    differences, drives = scratch[thread].view(np.int32), scratch[thread + threads]
    size = state.shape[1]
    differences, drives = differences[:size], drives[:size]
    for k in range(thread, len(order), threads):
        b = order[k]
        if len(first):
            drives[:] = first[b]
        else:
            here = sums[b]
            if len(ups):
                up, by = ups[k], np.int32(up_shift[b])
                for i in range(size):
                    here[i] += np.int32(up[i]) << by
            for i in range(size):
                drives[i] = gain[i] * np.float32(here[i]) + bias[i]
        if len(downs):
            here, down, by = down_sums[b], downs[k], np.int32(down_shift[b])
            for i in range(size):
                here[i] += np.int32(down[i]) << by
            for i in range(size):
                drives[i] += down_gain * np.float32(here[i])
        old = state[b]
        for i in range(size):
            d = drives[i]
            d = d if d > _ZERO else _ZERO
            drives[i] = d if d < _ONE else _ONE
        if nudging.on:
            for i in range(size):
                drives[i] = _nudged(drives[i], old[i], rest[b, i], target[b, i], nudging)
        if len(changes):
            for i in range(size):
                changes[k] = max(changes[k], abs(drives[i] - old[i]))
        old[:] = drives
        past, largest = sent[b], np.int32(0)
        for i in range(size):
            a = drives[i]
            if not nudging.raw:
                a = a if a > _ZERO else _ZERO
                a = a if a < _ONE else _ONE
            d = np.int32(a * unit - np.float32(past[i]))
            differences[i] = d
            d = d if d > 0 else -d
            largest = d if d > largest else largest
        shift[b] = _send(differences, largest, past, delta[k], offset)
        if largest:
            still[k] = 0


class Pool(NamedTuple):
    """Geometry of a convolution's map and its pool: sides, channels, and the pool's side."""

    map_rows: int
    map_cols: int
    rows: int
    cols: int
    channels: int
    side: int


@_fast
def pool_share(
    order,
    pool,
    ups,
    up_shift,
    maps,
    pooled,
    winners,
    sent,
    share,
    field,
    delta,
    shift,
    still,
    scratch,
    threads,
    thread,
):
    """Add up a convolution's map, pool it, and send what the layer above sends back through it.

    That is a field on the map: each neuron's activity times its channel's scale, at the switch.

    Args:
        ups: what the convolution made of the differences, (rows, map), float32.
        up_shift: (batch,), their shift. maps: (batch, map), int32, changed.
        pooled, winners: (batch, neurons), get the pools' sums and the places of the winners in
            their pools; on a tie the first.
        sent: what the layer above has sent up, (batch, neurons). share: (channels,), what part of
            it counts, in the units of the field.
        field, delta, shift: what was sent, what to send, and its shift; see `advance_share`.
        still: (rows,), cleared where not everything could be sent at once.
    """
    side, channels = pool.side, pool.channels
    row = pool.map_cols * channels
    differences = scratch[thread].view(np.int32)[: field.shape[1]]
    best = np.empty(channels, np.int32)
    where = np.empty(channels, np.uint8)
    for k in range(thread, len(order), threads):
        b = order[k]
        here, up, by = maps[b], ups[k], np.int32(up_shift[b])
        for i in range(len(here)):
            here[i] += np.int32(up[i]) << by
        mine = field[b]
        for i in range(len(mine)):
            differences[i] = -mine[i]
        for y in range(pool.rows):
            for x in range(pool.cols):
                corner = y * side * row + x * side * channels
                at = (y * pool.cols + x) * channels
                best[:] = here[corner : corner + channels]
                where[:] = 0
                for n in range(1, side * side):
                    place = corner + n // side * row + n % side * channels
                    values = here[place : place + channels]
                    for c in range(channels):
                        wins = values[c] > best[c]
                        best[c] = values[c] if wins else best[c]
                        where[c] = np.uint8(n) if wins else where[c]
                pooled[b, at : at + channels] = best
                winners[b, at : at + channels] = where
                values = sent[b, at : at + channels]
                for n in range(side * side):
                    place = corner + n // side * row + n % side * channels
                    wanted = differences[place : place + channels]
                    for c in range(channels):
                        a = np.int32(np.float32(values[c]) * share[c] + np.float32(0.5))
                        wanted[c] += a if where[c] == n else np.int32(0)
        largest = np.int32(0)
        for i in range(len(differences)):
            d = differences[i]
            d = d if d > 0 else -d
            largest = d if d > largest else largest
        shift[b] = _send(differences, largest, mine, delta[k], 128)
        if shift[b]:
            still[k] = 0


# --- learning -----------------------------------------------------------------------------------


@_fast
def bop_share(
    momentum, signs, contrast, factor, rate, bound, bytes_up, bytes_down, columns, row_sums,
    overlaps, threads, thread,
):  # fmt: skip
    """One step of Bop on the rows of a coupling, `M <- M + (factor d) rate`, and flips.

    Args:
        momentum, signs, contrast: (above, fan-in).
        bytes_up, bytes_down: copies of the signs, int8, (fan-in, above) and (above, fan-in), in the
            order of layers that `columns` gives; empty where there are none.
        row_sums: (above,), the sum of each row of signs, changed with them; or empty.
        overlaps: (above,), gets `<signs, contrast>` of each row, of the signs before.
    Returns the flips.
    """
    all_flips = 0
    for i in range(thread, len(signs), threads):
        m, w, d = momentum[i], signs[i], contrast[i]
        overlap, flips = 0.0, np.int32(0)
        for j in range(len(m)):
            moved = m[j] + (factor * d[j]) * rate
            m[j] = moved
            overlap += np.float64(d[j] * w[j])
            flips += np.int32((moved * w[j] > _ZERO) & (abs(moved) > bound))
        overlaps[i] = overlap
        if flips:
            all_flips += flips
            for j in range(len(m)):
                if abs(m[j]) > bound and m[j] * w[j] > _ZERO:
                    w[j] = -w[j]
                    if len(row_sums):
                        row_sums[i] += 2 * np.int32(w[j])
                    if len(bytes_up):
                        bytes_up[columns[j], i] = -bytes_up[columns[j], i]
                    if len(bytes_down):
                        bytes_down[i, columns[j]] = -bytes_down[i, columns[j]]
    return all_flips
