"""All phases of a mini-batch by events, one sample at a time: only bits that change cost time."""

from typing import Any, NamedTuple

import numpy as np

from binep.engines.numba.counting import copy_into, fill
from binep.engines.numba.jit import inner, kernel
from binep.engines.numba.packed.conv_events import pool, send_down_conv, sum_conv
from binep.engines.numba.packed.dense_events import (
    NONE,
    Synapses,
    add_up,
    drive_down,
    drive_from_pixels,
    drive_up,
    sum_dense,
)
from binep.engines.numba.packed.stepping import How, Motion, catch_up, step, wake
from binep.engines.numba.rules import fires, handicap

Array = Any

_ZERO = np.float32(0)
# A function is compiled again for every constant that it is given: these are none.
_int = np.int64


class Net(NamedTuple):
    """What stays constant while a mini-batch relaxes."""

    wiring: Any
    synapses: Synapses
    motion: Motion


class Phases(NamedTuple):
    """A plan's phases, one entry each; see `binep.core.plan.PhasePlan`.

    Attributes:
        start: the phase at whose end one begins, or -1. beta: of the nudge; 0 for none.
        live: 1 if the nudge follows the state, 0 if it is constant.
    """

    steps: Array
    start: Array
    beta: Array
    live: Array


class Found(NamedTuple):
    """The results of the phases, (phases, batch, ...).

    Attributes:
        bits: packed activity. switches: those of the hidden pools (or nothing, if none pools).
        top: states of the output neurons in the first phase, (batch, outputs).
        residuals: largest change of any neuron, of the last step or, traced, of every step.
        events: bits that changed, (batch,). steps: steps run with all neurons, (phases, batch).
    """

    bits: Array
    switches: Array
    top: Array
    residuals: Array
    events: Array
    steps: Array


@inner
def _update_drives(net, sample, how, now, anew):
    """Bring all drives up to date with the bits: `drive = up + down`, after `now` steps.

    `anew`: from nothing, otherwise by the events since the last time. Neurons that rest catch up
    before their drives change.
    """
    wiring, synapses, motion = net
    layers = len(wiring.channels)
    fill(sample.fresh, 0, layers, 0)
    for link in range(1, layers):
        below_changed = anew or sample.event_count[link - 1] > 0
        above_changed = anew or sample.event_count[link] > 0
        begin, count = wiring.start[link], wiring.start[link + 1] - wiring.start[link]
        under, under_count = wiring.start[link - 1], wiring.start[link] - wiring.start[link - 1]
        if below_changed:
            catch_up(wiring, motion, sample, link, now)
        if above_changed or (below_changed and wiring.conv[link]):
            catch_up(wiring, motion, sample, link - 1, now)
        if wiring.conv[link]:
            if below_changed:
                sum_conv(wiring, synapses, sample, link, anew)
                pool(wiring, synapses, sample, link)
            if below_changed or above_changed:
                above_changed = send_down_conv(wiring, synapses, sample, link, anew)
            if above_changed:
                add_up(sample, under, under_count)
            if below_changed:
                add_up(sample, begin, count)
            continue
        up_at, up_words = wiring.up_at[link], wiring.up_words[link]
        down_at, down_words = wiring.down_at[link], wiring.down_words[link]
        if below_changed:
            counts, at, below = sample.counts, wiring.counts_at[link], link - 1
            rows, across = (up_at, up_words), (wiring.channels[link], down_at, down_words)
            sum_dense(wiring, synapses, sample, below, rows, across, counts, at, anew)
            scales = synapses.gain, synapses.bias
            drive_up(counts, at, sample.active[below], *scales, sample, begin, count)
        if above_changed:
            counts, at = sample.down_counts, wiring.down_counts_at[link]
            rows, across = (down_at, down_words), (under_count, up_at, up_words)
            sum_dense(wiring, synapses, sample, link, rows, across, counts, at, anew)
            gain, active = synapses.gain_down, sample.active[link]
            drive_down(counts, at, active, gain, sample, under, under_count)
    if anew:
        add_up(sample, _int(0), wiring.start[1])
    for layer in range(layers):
        if sample.fresh[layer]:
            wake(wiring, motion, sample, how, layer, now)


@inner
def _relax(net, sample, how, steps, final, trace):
    """`steps` steps of one sample from its state, whose drives are up to date, and so they end.

    `final`: whether the states at the end are asked for and the last change of any. `trace`: the
    residual of every step, or nothing. Returns the last step's residual, the bits that changed, and
    the steps in which bits changed or neurons that are not nudged had to be stepped.
    """
    wiring, motion = net.wiring, net.motion
    layers = len(wiring.channels)
    t, events, whole, residual = 0, 0, 0, _ZERO
    for layer in range(layers):
        wake(wiring, motion, sample, how, layer, _int(0))
    while t < steps:
        measure = len(trace) > 0 or (final and t + 1 == steps)
        if measure:
            for layer in range(layers):
                catch_up(wiring, motion, sample, layer, t)
        changed, residual, pulled, awake = step(
            wiring, motion, sample, how, _int(0), layers, t, measure
        )
        if len(trace) > 0:
            trace[t] = residual
        t += 1
        whole += awake > 0 or changed > 0 or not how.early
        if changed:
            events += changed
            _update_drives(net, sample, how, t, changed == 0)
        elif pulled + awake == 0:
            # Nothing will ever change but the states of those that rest.
            t = max(t, steps - 1) if final else steps
    return residual, events, whole


@inner
def _begin(net, sample, ahead):
    """The state at t = 0, the same for every sample up to what the input drives.

    If `ahead`, with the first step of all layers but the first, in which no input is felt yet: what
    the first layer has to be stepped with, its `down` before that step, is left in `ahead`.
    Returns how many bits changed.
    """
    wiring, motion = net.wiring, net.motion
    layers = len(wiring.channels)
    on = fires(motion.initial, motion.threshold)
    fill(sample.state, 0, len(sample.state), 0)
    for word in range(wiring.start[layers] // 64):
        sample.bits[word] = wiring.valid[word] if on else NONE
        for j in range(64 * word, 64 * word + 64):
            valid = (wiring.valid[word] >> np.uint64(j % 64)) & np.uint64(1)
            sample.s[j] = motion.initial if valid else _ZERO
    for layer in range(layers):
        neurons = wiring.channels[layer] * wiring.rows[layer] * wiring.cols[layer]
        sample.active[layer] = neurons if on else 0
    fill(sample.event_count, 0, layers, 0)
    fill(sample.awake, 0, len(sample.awake), True)
    never = layers < 0
    how = How(never, _ZERO, _ZERO, never)
    _update_drives(net, sample, how, _int(0), not never)
    if not ahead:
        return 0
    copy_into(sample.ahead, 0, sample.down, 0, wiring.start[1])
    changed, _, _, _ = step(wiring, motion, sample, how, _int(1), layers, _int(0), never)
    sample.event_count[0] = 0
    _update_drives(net, sample, how, _int(0), never)
    return changed


@inner
def _begin_first(net, sample):
    """The first step of the first layer, after those of all others; see `_begin`."""
    layers, count = len(net.wiring.channels), net.wiring.start[1]
    never = layers < 0
    how = How(never, _ZERO, _ZERO, never)
    up, down, drive = sample.up[:count], sample.ahead[:count], sample.drive[:count]
    for j in range(len(drive)):
        drive[j] = up[j] + down[j]
    fill(sample.event_count, 0, layers, 0)
    fill(sample.awake, 0, len(sample.awake), True)
    changed, _, _, _ = step(net.wiring, net.motion, sample, how, _int(0), _int(1), _int(0), never)
    _update_drives(net, sample, how, _int(0), never)
    add_up(sample, _int(0), count)
    return changed


@inner
def begin_phase(net, sample, kept, phases, phase, b, margin, drives, pixels, pixel_gain):
    """Set the state in which a phase of sample b begins; at t = 0 with the drive of its image.

    Arguments as for `relax_share`.
    """
    wiring, start = net.wiring, phases.start[phase]
    if start == phase - 1 and start >= 0:
        return
    place = start if start >= 0 else len(phases.steps)
    copy_into(sample.state, 0, kept[place], 0, len(sample.state))
    if start >= 0:
        return
    if margin:
        top = len(wiring.channels) - 1
        first = wiring.start[top]
        for j in range(wiring.channels[top]):
            sample.down[first + j] = handicap(sample.target[j], margin)
    if len(drives):
        copy_into(sample.up, 0, drives[b], 0, wiring.start[1])
    else:
        drive_from_pixels(wiring, net.synapses, sample, pixels[b], pixel_gain)


@inner
def end_phase(sample, found, kept, phases, phase, b):
    """Store the results of a phase of sample b, and its state if a later phase begins there."""
    copy_into(found.bits[phase, b], 0, sample.bits, 0, len(sample.bits))
    if found.switches.shape[1]:
        copy_into(found.switches[phase, b], 0, sample.switches, 0, len(sample.switches))
    for later in range(phase + 2, len(phases.steps)):
        if phases.start[later] == phase:
            copy_into(kept[phase], 0, sample.state, 0, len(sample.state))


@kernel
def relax_share(
    net, drives, pixels, pixel_gain, targets, margin, phases, early, found, sample, kept,
    threads, thread,
):  # fmt: skip
    """Run all phases of every n-th sample of a mini-batch, for one of n threads.

    Args:
        drives: `up_1(x)`, (batch, first layer); or nothing, with `pixels`, (batch, features), and
            the first coupling's `pixel_gain` a neuron in its place.
        targets: (batch, outputs). margin: what holds the right class back, and helps the others.
        early: whether neurons whose bits cannot change rest until their drives do.
        sample: workspace. kept: states, one per phase and the one at t = 0.
    """
    wiring = net.wiring
    count, layers, words = len(phases.steps), len(wiring.channels), len(sample.state)
    top, outputs = wiring.start[layers - 1], wiring.channels[layers - 1]
    # Traced, every step is the same for all layers; with a margin none is for all samples.
    traced = found.residuals.shape[2] > 1
    ahead = not traced and margin == 0
    for phase in range(count):
        ahead = ahead and (
            phases.start[phase] >= 0 or (phases.steps[phase] > 1 and phases.beta[phase] == 0)
        )
    upper = _begin(net, sample, ahead)
    copy_into(kept[count], 0, sample.state, 0, words)
    for b in range(thread, len(targets), threads):
        copy_into(sample.target, 0, targets[b], 0, outputs)
        for phase in range(count):
            steps = phases.steps[phase]
            begin_phase(net, sample, kept, phases, phase, b, margin, drives, pixels, pixel_gain)
            if phases.start[phase] < 0:
                if margin:
                    add_up(sample, top, outputs)
                add_up(sample, _int(0), wiring.start[1])
                if ahead:
                    found.events[b] += upper + _begin_first(net, sample)
                    found.steps[phase, b] += 1
                    steps -= 1
            copy_into(sample.rest, 0, sample.s, top, outputs)
            how = How(phases.beta[phase] != 0, phases.beta[phase], phases.live[phase], early)
            trace = found.residuals[phase, b]
            residual, events, whole = _relax(
                net, sample, how, steps, phase == 0, trace if traced else trace[:0]
            )
            if not traced:
                trace[0] = residual
            found.events[b] += events
            found.steps[phase, b] += whole
            end_phase(sample, found, kept, phases, phase, b)
            if phase == 0:
                copy_into(found.top[b], 0, sample.s, top, outputs)
