"""The rules in numpy: what neurons send, how states move, how a nudge pulls, when weights flip.

Each stands here once; `c/rules.h` has the same in C. In float32 every operation is rounded on its
own. In integers a state is in units of `1 / one`, a power of two, a drive in 2^-PARAMETER_BITS, and
betas and margins in 2^-BETA_BITS; shifts round down.
"""

import numpy as np

from binep.deploy.stored import Array

PARAMETER_BITS = 40
BETA_BITS = 16


def winner(values: Array) -> Array:
    """Where the largest stands along the last axis: of equals, the first."""
    return values.argmax(-1)


def fires(s: Array, threshold: float) -> Array:
    """`[s >= threshold]`"""
    return s >= s.dtype.type(threshold)


def clamp(s: Array, one: int = 1) -> Array:
    """s, kept in [0, 1]."""
    return s.clip(0, one)


def flip(momentum: Array, signs: Array, tau: float) -> Array:
    """`|m| > tau and sign(m) = sign(w)`"""
    return (np.abs(momentum) > tau) & (np.sign(momentum) == signs)


# --- in float32 ---------------------------------------------------------------------------------


def slope(s: Array, threshold: float, sigma: float) -> Array:
    """`rho'(s)` of binary activations: `1/(2 sigma)` where `|s - threshold| <= sigma`, else 0."""
    inside = np.abs(s - np.float32(threshold)) <= np.float32(sigma)
    return np.where(inside, np.float32(1 / (2 * sigma)), np.float32(0))


def slope_of_real(s: Array) -> Array:
    """`rho'(s)` of real activations: 1 on [0, 1], else 0."""
    return ((s >= 0) & (s <= 1)).astype(np.float32)


def step(s: Array, drive: Array, slope: Array, dt: float) -> Array:
    """`s <- clamp((1 - dt) s + dt slope drive, 0, 1)`"""
    return clamp(np.float32(1 - dt) * s + np.float32(dt) * (slope * drive))


# --- in integers --------------------------------------------------------------------------------


def whole_step(s: Array, drive: Array, nudge: Array | int, one: int) -> Array:
    """`s <- clamp(floor((s + D) / 2), 0, 1)`, D the drive and the nudge, kept in [-1, 2]."""
    force = (drive >> (PARAMETER_BITS + 1 - one.bit_length())) + nudge
    return clamp((s + force.clip(-one, 2 * one)) >> 1, one)


def whole_nudge(beta: int, target: Array, s: Array | int) -> Array:
    """`beta (target - s)`"""
    return (beta * (target - s)) >> BETA_BITS


def whole_handicap(margin: int, target: Array, one: int) -> Array:
    """What drives an output against its target, `margin (1 - 2 target)`; margin as beta."""
    return (margin * (one - 2 * target)) >> BETA_BITS


def whole_momentum(momentum: Array, gradient: Array, most: int) -> Array:
    """`m <- m + gradient`, kept in +-most."""
    return (momentum + gradient).clip(-most, most)
