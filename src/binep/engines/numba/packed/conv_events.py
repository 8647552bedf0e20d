"""A hidden convolution's sums by events: a map position at a time, where something has changed.

Up it counts positive synapses, as a dense coupling does, and pools the counts. Down every active
neuron sends its scaled kernel from the map position that its pool has chosen.
"""

import numpy as np

from binep.engines.numba.counting import count_rows, fill
from binep.engines.numba.jit import inner
from binep.engines.numba.packed.dense_events import ALL, NONE, ONE, is_on, list_active, list_events
from binep.engines.numba.rules import wins
from binep.engines.numba.simd import add_where, lowest

# A function is compiled again for every constant that it is given: these are none.
_int = np.int64


@inner
def _sort_events(wiring, sample, link, anew):
    """Put the changed (or, anew, the active) neurons below a conv coupling in order of position.

    Neuron n has the rows `tags[n]` of its channel, inverted by `flags[n]`; those of position p are
    `bounds[p]` to `bounds[p + 1]`.
    """
    below, words = link - 1, wiring.up_words[link]
    first, cells = wiring.start[below], 64 * wiring.words[below]
    if anew:
        count = list_active(wiring, sample, below, _int(0), _int(1))
    else:
        count, _ = list_events(wiring, sample, below, _int(0), _int(1))
    place, begin = 0, 0
    sample.bounds[0] = 0
    for n in range(count):
        j = sample.rows[n]
        while j >= begin + cells:
            place += 1
            begin += cells
            sample.bounds[place] = n
        sample.tags[n] = (j - begin) * words
        sample.flags[n] = NONE if is_on(sample.bits, first + j) else ALL
    places = wiring.rows[below] * wiring.cols[below]
    fill(sample.bounds, place + 1, places + 1, count)


@inner
def sum_conv(wiring, synapses, sample, link, anew):
    """Bring the counts of a conv coupling up to date, a map position at a time; marks the dirty."""
    below = link - 1
    anew = anew or sample.active[below] < sample.event_count[below]
    side, pad = wiring.kernel[link], wiring.padding[link]
    words, cells = wiring.up_words[link], 64 * wiring.words[below]
    _sort_events(wiring, sample, link, anew)
    for oy in range(wiring.map_rows[link]):
        for ox in range(wiring.map_cols[link]):
            q = oy * wiring.map_cols[link] + ox
            near, fallen = 0, 0
            for y in range(max(0, oy - pad), min(wiring.rows[below], oy - pad + side)):
                for x in range(max(0, ox - pad), min(wiring.cols[below], ox - pad + side)):
                    tap = (y - oy + pad) * side + x - ox + pad
                    base = wiring.up_at[link] + tap * cells * words
                    place = y * wiring.cols[below] + x
                    for n in range(sample.bounds[place], sample.bounds[place + 1]):
                        sample.rows[near] = base + sample.tags[n]
                        sample.inverted[near] = sample.flags[n]
                        fallen += sample.flags[n] != NONE
                        near += 1
            at = wiring.counts_at[link] + q * 64 * words
            if anew:
                fill(sample.counts, at, at + 64 * words, 0)
                sample.present[wiring.maps_at[link] + q] = near
            else:
                sample.present[wiring.maps_at[link] + q] += near - 2 * fallen
            sample.dirty[q] = anew or near > 0
            if near:
                lists = synapses.bits, sample.rows, sample.inverted
                count_rows(*lists, near, words, sample.planes, sample.counts, at, -fallen)


@inner
def pool(wiring, synapses, sample, link):
    """`up = gain max(sums) + bias` and its switches; the first of equal sums in row-major order."""
    side, wide, cells = wiring.pool[link], 64 * wiring.up_words[link], 64 * wiring.words[link]
    map_cols = wiring.map_cols[link]
    for py in range(wiring.rows[link]):
        for px in range(wiring.cols[link]):
            corner, stale = py * side * map_cols + px * side, False
            for k in range(side * side):
                stale = stale or sample.dirty[corner + k // side * map_cols + k % side]
            if not stale:
                continue
            first = wiring.start[link] + (py * wiring.cols[link] + px) * cells
            end = first + cells
            best, chosen = sample.ahead[first:end], sample.switches[first:end]
            for k in range(side * side):
                q = np.int32(corner + k // side * map_cols + k % side)
                at = wiring.counts_at[link] + q * wide
                positive = sample.counts[at : at + cells]
                present = sample.present[wiring.maps_at[link] + q]
                for c in range(len(best)):
                    total = np.float32(np.int32(2) * positive[c] - present)
                    more = k == 0 or wins(total, best[c])
                    best[c] = total if more else best[c]
                    chosen[c] = q if more else chosen[c]
            gain, bias, up = (
                synapses.gain[first:end],
                synapses.bias[first:end],
                sample.up[first:end],
            )
            for c in range(len(up)):
                up[c] = gain[c] * best[c] + bias[c]


@inner
def _wanted(sample, j):
    """The map position that neuron j is to be sent from, or -1."""
    return sample.switches[j] if is_on(sample.bits, j) else np.int32(-1)


@inner
def _count_moves(wiring, sample, link):
    """How many neurons above a conv coupling are to be sent from a map position, or no longer.

    Leaves in `bounds[q + 1]` how many of them at position q.
    """
    fill(sample.bounds, 0, wiring.map_rows[link] * wiring.map_cols[link] + 1, 0)
    moves = 0
    for word in range(wiring.start[link] // 64, wiring.start[link + 1] // 64):
        rest = sample.bits[word] | sample.sent_bits[word]
        while rest:
            j = 64 * word + lowest(rest)
            rest &= rest - ONE
            old, wanted = sample.placed[j], _wanted(sample, j)
            if old != wanted:
                if old >= 0:
                    sample.bounds[old + 1] += 1
                    moves += 1
                if wanted >= 0:
                    sample.bounds[wanted + 1] += 1
                    moves += 1
    return moves


@inner
def _sort_moves(wiring, synapses, sample, link):
    """Put the moves in order of map position, and do them: `placed` and `sent_bits` follow.

    Those at position q are `bounds[q]` to `bounds[q + 1]`: the rows `tags` of their channel, and
    in `amounts` their scale, taken away where it is negative.
    """
    positions = wiring.map_rows[link] * wiring.map_cols[link]
    begin, cells = wiring.start[link], 64 * wiring.words[link]
    length = wiring.kernel[link] * wiring.kernel[link] * wiring.down_words[link]
    for q in range(positions):
        sample.bounds[q + 1] += sample.bounds[q]
        sample.filled[q] = sample.bounds[q]
    for word in range(begin // 64, wiring.start[link + 1] // 64):
        rest = sample.bits[word] | sample.sent_bits[word]
        sample.sent_bits[word] = sample.bits[word]
        while rest:
            j = 64 * word + lowest(rest)
            rest &= rest - ONE
            old, wanted = sample.placed[j], _wanted(sample, j)
            if old == wanted:
                continue
            row = (j - begin) % cells * length
            scale = np.float64(synapses.gain[j]) * synapses.feedback[link]
            if old >= 0:
                sample.tags[sample.filled[old]] = row
                sample.amounts[sample.filled[old]] = -scale
                sample.filled[old] += 1
            if wanted >= 0:
                sample.tags[sample.filled[wanted]] = row
                sample.amounts[sample.filled[wanted]] = scale
                sample.filled[wanted] += 1
            sample.placed[j] = wanted


@inner
def send_down_conv(wiring, synapses, sample, link, anew):
    """`down = sum of scale * feedback * kernel` over active neurons above, from their switches on.

    Sums of float32 scales of like size are exact in float64, in any order. Returns whether any
    changed.
    """
    below = link - 1
    side, pad, words = wiring.kernel[link], wiring.padding[link], wiring.down_words[link]
    map_rows, map_cols = wiring.map_rows[link], wiring.map_cols[link]
    rows, cols, wide = wiring.rows[below], wiring.cols[below], 64 * wiring.words[below]
    offsets = wiring.start[below] // 64
    moves = _count_moves(wiring, sample, link)
    anew = anew or sample.active[link] < moves
    if anew:
        fill(sample.placed, wiring.start[link], wiring.start[link + 1], -1)
        fill(sample.down_sum, wiring.start[below], wiring.start[link], 0)
        fill(sample.down_offset, offsets, offsets + rows * cols, 0)
        _count_moves(wiring, sample, link)
    elif moves == 0:
        return False
    _sort_moves(wiring, synapses, sample, link)
    for place in range(rows * cols):
        y, x = place // cols + pad, place % cols + pad
        near, offset = 0, np.float64(0)
        for oy in range(max(0, y - side + 1), min(map_rows, y + 1)):
            for ox in range(max(0, x - side + 1), min(map_cols, x + 1)):
                q = oy * map_cols + ox
                base = wiring.down_at[link] + ((y - oy) * side + x - ox) * words
                for n in range(sample.bounds[q], sample.bounds[q + 1]):
                    sample.rows[near] = base + sample.tags[n]
                    sample.twice[near] = 2 * sample.amounts[n]
                    offset += sample.amounts[n]
                    near += 1
        if near == 0 and not anew:
            continue
        at = wiring.start[below] + place * wide
        for w in range(words):
            sums = sample.down_sum, at + 64 * w
            add_where(*sums, synapses.bits, w, sample.rows, sample.twice, near)
        sample.down_offset[offsets + place] += offset
        offset, end = sample.down_offset[offsets + place], at + wiring.channels[below]
        total, down = sample.down_sum[at:end], sample.down[at:end]
        for c in range(len(down)):
            down[c] = np.float32(total[c] - offset)
    return True
