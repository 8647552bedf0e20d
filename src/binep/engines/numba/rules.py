"""The rules of the dynamics and of learning, each once: every kernel on the CPU calls them.

They are plain functions of numbers. From Python they can be called as they are; kernels inline them
(`register_jitable`), and `simd` gives them sixteen numbers at a time. Given float32 they round
every operation on its own, in the reference's order.
"""

from typing import Any

import numpy as np
from numba import extending

rule: Any = extending.register_jitable
overload: Any = extending.overload

_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)


def where(condition, yes, no):
    """`yes` where the condition holds, else `no`; without a branch."""
    return condition.select(yes, no) if hasattr(condition, "select") else yes if condition else no


@overload(where)
def _where(condition, yes, no):
    return lambda condition, yes, no: yes if condition else no


# --- neurons ------------------------------------------------------------------------------------


@rule
def clamp(value):
    """`clamp(value, 0, 1)`: the hard sigmoid, and where states are kept."""
    value = where(value > _ZERO, value, _ZERO)
    return where(value < _ONE, value, _ONE)


@rule
def fires(state, threshold):
    """The bit that a neuron sends, `s >= threshold`."""
    return state >= threshold


@rule
def slope(state, threshold, sigma, height):
    """`rho'(s) = height` where `|s - threshold| <= sigma`, else 0; `height = 1 / (2 sigma)`."""
    return where(abs(state - threshold) <= sigma, height, _ZERO)


@rule
def sent(state, raw):
    """What a real neuron sends: `clamp(s, 0, 1)`, or the state itself if `raw`."""
    return state if raw else clamp(state)


# --- dynamics -----------------------------------------------------------------------------------


@rule
def nudge(state, target, beta):
    """`beta (y - s)`, with the current state (live), or that of the phase's start (constant)."""
    return beta * (target - state)


@rule
def nudge_bit(target, beta):
    """`beta (y - 1/2)` on a bit alone, whatever it is now."""
    return nudge(_HALF, target, beta)


@rule
def step_energy(state, force, keep, take):
    """`clamp(keep s + take force, 0, 1)`, `force = rho'(s) drive + nudge`, `keep = 1 - dt`,
    `take = dt`."""
    return clamp(keep * state + take * force)


@rule
def step_prototypical(drive, pull, clamped):
    """`rho(drive) + nudge` of a nudged output, clamped to [0, 1] or not."""
    moved = clamp(drive) + pull
    return clamp(moved) if clamped else moved


@rule
def step_bit(drive, pull):
    """`drive + nudge`: the state of a bit alone, which is sent as `fires` and then forgotten."""
    return drive + pull


@rule
def wins(value, best):
    """Whether a position of a pool beats the best so far: the first of equal ones stays."""
    return value > best


@rule
def handicap(target, margin):
    """What drives an output against its target: `margin (1 - 2 y)`."""
    return margin * (_ONE - _TWO * target)


# --- learning -----------------------------------------------------------------------------------


@rule
def move(momentum, contrast, factor, rate):
    """`M <- M + (factor d) rate`: the gradient is `factor d`, the rate `gamma / decay`."""
    return momentum + (factor * np.float32(contrast)) * rate


@rule
def flip(weight, momentum, threshold):
    """Whether Bop flips a weight: `|M| > threshold` and `sign(M) = sign(w)`."""
    return (abs(momentum) > threshold) & (momentum * weight > _ZERO)
