"""The rules of the system in Triton, each written once: all kernels of this engine call them.

They keep the reference's order of arithmetic: launch what calls them with `enable_fp_fusion=False`,
so that no multiply-add is contracted.

Kernels take named tuples. Test a field (`target.beta is not None`), never the tuple; and pass a
tuple with compile-time fields on as it is, never assign it: Triton would turn the fields into
numbers.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from binep.core.dynamics import EnergyBased, Prototypical
from binep.core.network import Network
from binep.core.neurons import Heaviside


class Neuron(NamedTuple):
    """How neurons move and what they send.

    Attributes:
        threshold, sigma, slope: of `Heaviside`: `rho' = slope` within sigma of the threshold.
        BITS: whether they keep only their bit: the state is the drive, and is not stored.
        CLAMPED: whether a nudged output is. SENDS_STATE: whether it then sends its state as it is.
    """

    threshold: float
    sigma: float
    slope: float
    ENERGY: Any
    BITS: Any
    BINARY: Any
    CLAMPED: Any
    SENDS_STATE: Any

    @classmethod
    def of(cls, network: Network) -> "Neuron":
        neuron, dynamics = network.neuron, network.dynamics
        window = (0.5, 0.5, 1.0)
        if isinstance(neuron, Heaviside):
            window = (neuron.threshold, neuron.sigma, 1 / (2 * neuron.sigma))
        flags = (
            isinstance(dynamics, EnergyBased),
            dynamics.bits,
            neuron.binary,
            isinstance(dynamics, Prototypical) and dynamics.clamp_nudged,
            network.sends_state,
        )
        return cls(*window, *map(tl.constexpr, flags))


class Target(NamedTuple):
    """The effect of a label on the outputs of its sample: a nudge, and a margin.

    Attributes:
        labels: int64, (batch,). per_class: outputs of a class, adjacent.
        margin: how much the right class is held back, or None.
        beta: strength of the nudge, or None. sign: f32, (1,), the drawn sign.
        rest: s* of the outputs, which a constant nudge pulls at.
        BITS: whether they are bits alone.
    """

    labels: Tensor | None = None
    per_class: int = 1
    margin: float | None = None
    beta: float | None = None
    sign: Tensor | None = None
    rest: Tensor | None = None
    BITS: Any = tl.constexpr(False)


@triton.jit
def clamp(s):
    return tl.minimum(tl.maximum(s, 0.0), 1.0)


@triton.jit
def step(s, drive, pull, neuron):
    """The next state: energy-based with dt = 1/2, bits alone, or prototypical.

    `pull` is None in a free phase.
    """
    if neuron.ENERGY:
        listening = tl.abs(s - neuron.threshold) <= neuron.sigma
        force = tl.where(listening, neuron.slope, 0.0) * drive
        if pull is not None:
            force = force + pull
        s = clamp(0.5 * s + 0.5 * force)
    elif neuron.BITS:
        s = drive
        if pull is not None:
            s = s + pull
    else:
        s = clamp(drive)
        if pull is not None:
            s = s + pull
            if neuron.CLAMPED:
                s = clamp(s)
    return s


@triton.jit
def sent(s, neuron, NUDGED: tl.constexpr):
    """What a neuron sends: its bit, its activity, or a nudged output's state as it is."""
    if neuron.BINARY:
        s = tl.where(s >= neuron.threshold, 1.0, 0.0)
    elif not (NUDGED and neuron.SENDS_STATE):
        s = clamp(s)
    return s


@triton.jit
def nudge(beta, y, s):
    """The nudge of an output at s: `beta (y - s)`."""
    return beta * (y - s)


@triton.jit
def nudge_bit(beta, y):
    """The nudge of an output of bits alone: `beta (y - 1/2)`, whatever its bit."""
    return beta * (y - 0.5)


@triton.jit
def flip(w, m, gradient, rate, threshold):
    """Bop: the next momentum, and whether `|m| > threshold` and m has the sign of w."""
    m = m + gradient * rate
    # Above a threshold of at least 0, m and w agree in sign where their product is positive.
    return m, (tl.abs(m) > threshold) & ((m > 0) == (w > 0))


# --- what they are given, by a `Target` ---------------------------------------------------------


@triton.jit
def handicap(target, label, unit):
    """The margin's change of an output's drive, which holds back the right class."""
    return tl.where(unit // target.per_class == label, -target.margin, target.margin)


@triton.jit
def pull(target, label, unit, s, place, inside):
    """The nudge of some outputs at s, with their states at rest."""
    y = tl.where(unit // target.per_class == label, 1.0, 0.0)
    beta = target.beta * tl.load(target.sign)
    if target.BITS:
        found = nudge_bit(beta, y)
    else:
        anchor = s
        if target.rest is not None:
            anchor = tl.load(target.rest + place, mask=inside, other=0.0)
        found = nudge(beta, y, anchor)
    return found


# --- a few outputs: their products are done where they are needed -------------------------------


@triton.jit
def down_from_few(above, synapses, units, inside, OUTPUTS: tl.constexpr):
    """What a few outputs send down to some of the `units` neurons below.

    For each of these `above` says where its sample's outputs lie, `synapses` where its first is.
    """
    total = inside.to(tl.float32) * 0.0
    for k in tl.static_range(OUTPUTS):
        w = tl.load(synapses + k * units, mask=inside, other=0.0).to(tl.float32)
        total += w * tl.load(above + k, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def up_to_few(below, kernel, units, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of a few outputs, at most 16, over the activities of one sample."""
    k = tl.arange(0, 16)
    total = tl.zeros((16, BLOCK), tl.float32)
    for start in range(0, units, BLOCK):
        j = start + tl.arange(0, BLOCK)
        mask = (k < OUTPUTS)[:, None] & (j < units)[None, :]
        w = tl.load(kernel + k[:, None] * units + j[None, :], mask=mask, other=0.0)
        a = tl.load(below + j, mask=j < units, other=0.0)
        total += w.to(tl.float32) * a.to(tl.float32)[None, :]
    return tl.sum(total, 1)
