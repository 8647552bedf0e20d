"""Bits without an inner state: layers in turn, one sample at a time, until no bit changes.

Only its bit is kept of a neuron. A layer moves only if its neighbours' bits or its nudge have
changed since its last turn; drives are computed from counts for the comparison that decides the
bits, and never stored. Bits that change add their rows of synapses to the counts of the
neighbouring layers.
"""

from typing import Any, NamedTuple

import numpy as np

from binep.engines.numba.counting import copy_into, fill
from binep.engines.numba.jit import inner, kernel
from binep.engines.numba.packed.conv_events import pool, send_down_conv, sum_conv
from binep.engines.numba.packed.dense_events import NONE, Synapses, sum_dense
from binep.engines.numba.packed.relaxing import begin_phase, end_phase
from binep.engines.numba.rules import fires, nudge_bit
from binep.engines.numba.simd import decide, popcount

Array = Any

# A function is compiled again for every constant that it is given: these are none.
_int = np.int64


class Chain(NamedTuple):
    """What stays constant while a mini-batch settles. `initial`: the state of all at t = 0."""

    wiring: Any
    synapses: Synapses
    threshold: Any
    initial: Any


@inner
def _decide(chain, sample, layer, word, pulled):
    """The bits that 64 neurons of a layer have after their turn."""
    wiring, synapses, threshold, _ = chain
    first, top = wiring.start[layer], layer + 1 == len(wiring.channels)
    j, n, active = 64 * word, 64 * word - first, np.int32(0)
    up, down, pull = (sample.up, j), (sample.down, j), (sample.pull, n)
    above = layer if top else layer + 1
    at, active = wiring.down_counts_at[above] + n, np.int32(sample.active[above])
    down_counted = (sample.down_counts, at, active, synapses.gain_down[first])
    if layer == 0 or wiring.conv[layer]:
        if top and pulled:
            return decide(up, down, pull, threshold)
        if top or wiring.conv[layer + 1]:
            return decide(up, down, (), threshold)
        return decide(up, down_counted, (), threshold)
    at, active = wiring.counts_at[layer] + n, np.int32(sample.active[layer - 1])
    up_counted = (sample.counts, at, active, synapses.gain[first], synapses.bias, j)
    if top and pulled:
        return decide(up_counted, down, pull, threshold)
    if top or wiring.conv[layer + 1]:
        return decide(up_counted, down, (), threshold)
    return decide(up_counted, down_counted, (), threshold)


@inner
def _move(chain, sample, layer, pulled):
    """A layer's turn; returns how many of its bits changed."""
    wiring = chain.wiring
    count, active = 0, 0
    for word in range(wiring.start[layer] // 64, wiring.start[layer + 1] // 64):
        bits = _decide(chain, sample, layer, word, pulled) & wiring.valid[word]
        old = sample.bits[word]
        sample.flipped[word] = bits ^ old
        if bits != old:
            sample.bits[word] = bits
            count += np.int64(popcount(bits ^ old))
            active += np.int64(popcount(bits)) - np.int64(popcount(old))
    sample.event_count[layer] = count
    sample.active[layer] += active
    return count


@inner
def _note_outputs(chain, sample):
    """The states of the outputs in the free phase, where their turn has just found them."""
    wiring, synapses, layer = chain.wiring, chain.synapses, len(chain.wiring.channels) - 1
    first, count = wiring.start[layer], wiring.channels[layer]
    end = first + count
    up, down, state = sample.up[first:end], sample.down[first:end], sample.rest[:count]
    if layer > 0:
        at, active = wiring.counts_at[layer], np.int32(sample.active[layer - 1])
        positive, gain, bias = sample.counts[at : at + count], synapses.gain[first], synapses.bias
        bias = bias[first:end]
        for j in range(len(up)):
            up[j] = gain * np.float32(np.int32(2) * positive[j] - active) + bias[j]
    for j in range(len(state)):
        state[j] = up[j] + down[j]


@inner
def _tell_above(chain, sample, layer, anew):
    """Tell the layer above what has changed, and update the pool between the two."""
    wiring, synapses, link = chain.wiring, chain.synapses, layer + 1
    sample.stale[link] = 1
    if wiring.conv[link]:
        sum_conv(wiring, synapses, sample, link, anew)
        pool(wiring, synapses, sample, link)
        # From where the layer above sends down has changed with it.
        sample.stale[layer] = 1
        return
    rows = wiring.up_at[link], wiring.up_words[link]
    across = wiring.channels[link], wiring.down_at[link], wiring.down_words[link]
    sum_dense(
        wiring, synapses, sample, layer, rows, across, sample.counts, wiring.counts_at[link], anew
    )


@inner
def _tell_below(chain, sample, layer, anew):
    """Tell the layer below what has changed; through a convolution it is updated on its turn."""
    wiring, synapses, link = chain.wiring, chain.synapses, layer
    sample.stale[layer - 1] = 1
    if wiring.conv[link]:
        return
    under = wiring.start[link] - wiring.start[link - 1]
    rows = wiring.down_at[link], wiring.down_words[link]
    across = under, wiring.up_at[link], wiring.up_words[link]
    counts, at = sample.down_counts, wiring.down_counts_at[link]
    sum_dense(wiring, synapses, sample, layer, rows, across, counts, at, anew)


@inner
def _sweep(chain, sample, pulled, noted):
    """Each layer's turn, odd ones first; returns how many bits changed."""
    wiring = chain.wiring
    layers, changed, never = len(wiring.channels), 0, len(wiring.channels) < 0
    for turn in range(2):
        for layer in range(turn, layers, 2):
            if not sample.stale[layer]:
                continue
            sample.stale[layer] = 0
            top = layer + 1 == layers
            if not top and wiring.conv[layer + 1]:
                send_down_conv(wiring, chain.synapses, sample, layer + 1, never)
            if top and noted:
                _note_outputs(chain, sample)
            count = _move(chain, sample, layer, top and pulled)
            if count:
                changed += count
                if not top:
                    _tell_above(chain, sample, layer, never)
                if layer > 0:
                    _tell_below(chain, sample, layer, never)
    return changed


@inner
def _begin(chain, sample):
    """The state at t = 0, the same for every sample up to what the input drives."""
    wiring = chain.wiring
    layers = len(wiring.channels)
    on = fires(chain.initial, chain.threshold)
    fill(sample.state, 0, len(sample.state), 0)
    for word in range(wiring.start[layers] // 64):
        sample.bits[word] = wiring.valid[word] if on else NONE
    for layer in range(layers):
        neurons = wiring.channels[layer] * wiring.rows[layer] * wiring.cols[layer]
        sample.active[layer] = neurons if on else 0
        sample.event_count[layer] = 0
    anew = layers > 0
    for link in range(1, layers):
        _tell_above(chain, sample, link - 1, anew)
        _tell_below(chain, sample, link, anew)
        if wiring.conv[link]:
            send_down_conv(wiring, chain.synapses, sample, link, anew)
    fill(sample.stale, 0, layers, 1)


@kernel
def settle_share(
    chain, drives, pixels, pixel_gain, targets, margin, phases, found, sample, kept, threads,
    thread,
):  # fmt: skip
    """Run all phases of every n-th sample of a mini-batch; arguments as for `relax_share`."""
    wiring = chain.wiring
    count, layers, words = len(phases.steps), len(wiring.channels), len(sample.state)
    outputs = wiring.channels[layers - 1]
    _begin(chain, sample)
    copy_into(kept[count], 0, sample.state, 0, words)
    for b in range(thread, len(targets), threads):
        copy_into(sample.target, 0, targets[b], 0, outputs)
        for phase in range(count):
            beta = phases.beta[phase]
            begin_phase(chain, sample, kept, phases, phase, b, margin, drives, pixels, pixel_gain)
            for j in range(outputs):
                sample.pull[j] = nudge_bit(sample.target[j], beta)
            sample.stale[layers - 1] = 1
            sweeps, changed, events = 0, 1, 0
            while sweeps < phases.steps[phase] and changed:
                changed = _sweep(chain, sample, beta != 0, phase == 0)
                events += changed
                sweeps += 1
            found.residuals[phase, b, 0] = np.float32(changed > 0)
            found.events[b] += events
            found.steps[phase, b] = sweeps
            end_phase(sample, found, kept, phases, phase, b)
            if phase == 0:
                copy_into(found.top[b], 0, sample.rest, 0, outputs)
