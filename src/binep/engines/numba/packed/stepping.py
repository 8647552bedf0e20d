"""Steps of the neurons of one sample between changes of their drives, and early rest.

Between changes of bits neurons are independent of each other. A neuron whose bit cannot change
before its drive does is not stepped; it makes up for the missed steps at once when its drive
changes or its state is needed.
"""

from typing import Any, NamedTuple

import numpy as np

from binep.engines.numba.counting import copy_into
from binep.engines.numba.jit import inner
from binep.engines.numba.packed.dense_events import NONE
from binep.engines.numba.simd import advance, advance_many, inclined, largest_change, popcount

FOREVER = 1 << 62


class Motion(NamedTuple):
    """The dynamics in float32; see `rules.step_energy` and `rules.slope`.

    Attributes:
        windowed: whether `rho'` is ever anything but 1.
        initial: the state at t = 0. below: the largest number below the threshold.
    """

    keep: Any
    take: Any
    threshold: Any
    sigma: Any
    height: Any
    windowed: bool
    initial: Any
    below: Any


class How(NamedTuple):
    """How the neurons are stepped in a phase.

    Attributes:
        nudged: whether the outputs are. beta: how strongly. live: 1 if the nudge follows their
            state, 0 if it stays what it is where the phase starts.
        early: whether neurons whose bits cannot change rest until their drives do.
    """

    nudged: bool
    beta: Any
    live: Any
    early: bool


@inner
def _advance(motion, sample, how, j, top):
    """One step of the 64 neurons from j on, nudged from `top` on: new bits, whether any moved."""
    s, drive, moving = sample.s, sample.drive, (motion.keep, motion.take, motion.threshold)
    window = (motion.threshold, motion.sigma, motion.height)
    if j >= top:
        nudge = (sample.rest, sample.target, j - top, how.beta, how.live)
        return advance(s, drive, j, moving, window, nudge)
    if motion.windowed:
        return advance(s, drive, j, moving, window, ())
    return advance(s, drive, j, moving, (), ())


@inner
def _stays(motion, sample, word, valid):
    """Whether no bit of a word of neurons can change as long as their drives do not.

    A step takes a higher state no lower than a lower one: every operation, rounded, is monotone.
    So states above the threshold stay there if one right at it does, and those below stay there
    if the highest of them does.
    """
    moving = (motion.keep, motion.take, motion.threshold)
    bits, drive = sample.bits[word], sample.drive
    up = inclined(motion.threshold, drive, 64 * word, moving)
    still_up = inclined(motion.below, drive, 64 * word, moving)
    return (bits & ~up) | (~bits & still_up & valid) == NONE


@inner
def _listens_always(wiring, motion, how, layer):
    """Whether `_stays` can tell: not of a windowed neuron or a nudged one."""
    return how.early and not motion.windowed and not (how.nudged and layer == len(wiring.rows) - 1)


@inner
def wake(wiring, motion, sample, how, layer, now):
    """After a change of drives, or of the nudge: which words have to be stepped, which can rest."""
    rests = _listens_always(wiring, motion, how, layer)
    for word in range(wiring.start[layer] // 64, wiring.start[layer + 1] // 64):
        sample.awake[word] = not rests or not _stays(motion, sample, word, wiring.valid[word])
        sample.reached[word] = now
    sample.fresh[layer] = 0


@inner
def catch_up(wiring, motion, sample, layer, now):
    """Make up for the steps that resting neurons of a layer have missed."""
    moving = (motion.keep, motion.take, motion.threshold)
    for word in range(wiring.start[layer] // 64, wiring.start[layer + 1] // 64):
        missed = now - sample.reached[word]
        if missed > 0 and not sample.awake[word]:
            advance_many(sample.s, sample.drive, 64 * word, missed, moving)
            sample.reached[word] = now
    sample.fresh[layer] = 1


@inner
def step(wiring, motion, sample, how, begin, end, now, measure):
    """Step number `now` of the layers from `begin` to `end`, of all words that are awake.

    If `measure`, of all words: those that rest have caught up. Returns how many bits changed, the
    largest change of any state, if measured, and how many words were awake: of nudged outputs, and
    others.
    """
    layers = len(wiring.channels)
    changed, residual, pulled, awake = 0, np.float32(0), 0, 0
    top = wiring.start[layers - 1] if how.nudged else wiring.start[layers]
    for layer in range(begin, end):
        first, count, active = wiring.start[layer], 0, 0
        rests = _listens_always(wiring, motion, how, layer)
        for word in range(first // 64, wiring.start[layer + 1] // 64):
            sample.flipped[word] = NONE
            if not (sample.awake[word] or measure):
                continue
            j = 64 * word
            pulled += sample.awake[word] and j >= top
            awake += sample.awake[word] and j < top
            if measure:
                copy_into(sample.before, 0, sample.s, j, 64)
            bits, moved = _advance(motion, sample, how, j, top)
            bits &= wiring.valid[word]
            if measure:
                residual = max(residual, largest_change(sample.s, j, sample.before, 0))
            rest = bits ^ sample.bits[word]
            if rest:
                sample.flipped[word] = rest
                active += np.int64(popcount(bits)) - np.int64(popcount(sample.bits[word]))
                count += np.int64(popcount(rest))
                sample.bits[word] = bits
                if rests:
                    sample.awake[word] = not _stays(motion, sample, word, wiring.valid[word])
                sample.reached[word] = now + 1
            elif how.early and not moved:
                sample.awake[word] = False
                sample.reached[word] = FOREVER
            elif measure:
                sample.reached[word] = now + 1
        sample.event_count[layer] = count
        sample.active[layer] += active
        changed += count
    return changed, residual, pulled, awake
