"""Relaxing one hidden layer and a few outputs in registers: real activations, a phase is a launch.

Samples are independent, so one program takes one sample through a whole phase. It stops
as soon as a step changes no state at all: every later step would change nothing either.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from binep.core.couplings import Dense
from binep.core.dynamics import Prototypical
from binep.core.gradients import Learning
from binep.core.network import Network
from binep.core.neurons import HardSigmoid
from binep.core.plan import PhasePlan
from binep.core.turns import UPDATES
from binep.engines.base import Capabilities
from binep.engines.cuda.relaxers.base import Phase, Relaxer, per_sample, power_of_two
from binep.engines.cuda.rules import clamp, pull, sent, step

OUTPUTS = 16  # as many as a word has room for
WIDTH = 16384  # hidden neurons that fit into the registers of a program


class Readout(NamedTuple):
    """The output coupling: its kernel of +-1, (outputs, width), its scale and its bias."""

    signs: Tensor
    gain: Tensor
    bias: Tensor | None


class Ends(NamedTuple):
    """Where a phase begins or ends, f32: (batch, width) and (batch, outputs)."""

    hidden: Tensor | None = None
    top: Tensor | None = None


@triton.jit
def shallow_kernel(
    first,  # f32, (batch, width): the constant drive of the hidden layer
    readout,
    start,
    end,
    target,
    neuron,
    residual,  # f32, (batch,): the last step's largest change
    ran,  # int32, (batch,): steps until nothing moved
    width,
    initial,  # all states at t = 0, if the phase has no other start
    steps,
    IN_TURN: tl.constexpr,  # whether outputs hear what the hidden layer has just become
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A phase of a sample.

    Everything stays in registers. The output coupling is one word a hidden neuron, whose bit k says
    that the synapse to output k is negative: in both directions a product is a flip of a sign bit.
    """
    sample = tl.program_id(0).to(tl.int64)
    j, k = tl.arange(0, WIDTH), tl.arange(0, 16)
    inside, real = j < width, k < OUTPUTS
    negative = tl.zeros((WIDTH,), tl.int32)
    for n in tl.static_range(OUTPUTS):
        w = tl.load(readout.signs + n * width + j, mask=inside, other=0).to(tl.float32)
        negative = negative | ((w < 0).to(tl.int32) << n)
    alpha = tl.load(readout.gain)
    b = tl.zeros((16,), tl.float32)
    if readout.bias is not None:
        b = tl.load(readout.bias + k, mask=real, other=0.0)
    constant = tl.load(first + sample * width + j, mask=inside, other=0.0)
    if start.hidden is not None:
        h = tl.load(start.hidden + sample * width + j, mask=inside, other=0.0)
        o = tl.load(start.top + sample * OUTPUTS + k, mask=real, other=0.0)
    else:
        h = tl.where(inside, initial, 0.0)
        o = tl.where(real, initial, 0.0)
    label = 0
    if target.beta is not None:
        label = tl.load(target.labels + sample)
    change = 1.0
    t = 0
    while (t < steps) & (change > 0.0):
        # What is sent: the hidden states are in [0, 1] already once they have moved.
        sending = sent(o, neuron, target.beta is not None)
        up, down = _sums(clamp(h), sending, negative, k, OUTPUTS, not IN_TURN, True)
        new = tl.where(inside, step(h, constant + alpha * down, None, neuron), 0.0)
        if IN_TURN:
            up, _ = _sums(clamp(new), sending, negative, k, OUTPUTS, True, False)
        force = None
        if target.beta is not None:
            force = pull(target, label, k, o, sample * OUTPUTS + k, real)
        above = tl.where(real, step(o, alpha * up + b, force, neuron), 0.0)
        change = tl.maximum(tl.max(tl.abs(new - h), 0), tl.max(tl.abs(above - o), 0))
        h, o = new, above
        t += 1
    tl.store(end.hidden + sample * width + j, h, mask=inside)
    tl.store(end.top + sample * OUTPUTS + k, o, mask=real)
    tl.store(residual + sample, change)
    tl.store(ran + sample, t)


@triton.jit
def _sums(a, sending, negative, k, OUTPUTS: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr):
    """Sums over the hidden neurons for each output, and the other way round.

    Five outputs at a time: their sums over the hidden layer share one pass across threads.
    """
    up = tl.zeros((16,), tl.float32)
    zero = tl.zeros_like(a)
    down = zero
    for n in tl.static_range(0, OUTPUTS, 5):
        s0, s1 = _sign_bit(negative, n), _sign_bit(negative, n + 1)
        s2, s3 = _sign_bit(negative, n + 2), _sign_bit(negative, n + 3)
        s4 = _sign_bit(negative, n + 4)
        if UP:
            parts = (
                _flipped(a, s0),
                _flipped(a, s1),
                _flipped(a, s2),
                _flipped(a, s3),
                _flipped(a, s4),
            )
            u0, u1, u2, u3, u4 = tl.reduce(parts, 0, _add_five)
            up = tl.where(k == n, u0, tl.where(k == n + 1, u1, up))
            up = tl.where(k == n + 2, u2, tl.where(k == n + 3, u3, tl.where(k == n + 4, u4, up)))
        if DOWN:
            down += _flipped(_sent_by(sending, k, n) + zero, s0)
            down += _flipped(_sent_by(sending, k, n + 1) + zero, s1)
            down += _flipped(_sent_by(sending, k, n + 2) + zero, s2)
            down += _flipped(_sent_by(sending, k, n + 3) + zero, s3)
            down += _flipped(_sent_by(sending, k, n + 4) + zero, s4)
    return up, down


@triton.jit
def _sent_by(sending, k, n):
    """What output n sends."""
    return tl.sum(tl.where(k == n, sending, 0.0), 0)


@triton.jit
def _add_five(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _sign_bit(negative, n: tl.constexpr):
    """Bit n of each word, as the sign bit of a float32; outputs that there are not count 0."""
    return (negative << (31 - n)) & -2147483648


@triton.jit
def _flipped(values, sign):
    """Values whose sign bit is flipped where `sign` has it set."""
    return (values.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


def _limits(network: Network, learning: Learning) -> Iterator[str]:
    if len(network.couplings) != 2 or not network.couplings[1].binary:
        yield "one hidden layer, with binary weights above it"
    elif network.layer_shapes[0][0] > WIDTH or network.layer_shapes[1][0] > OUTPUTS:
        yield f"at most {WIDTH} hidden neurons and {OUTPUTS} outputs"


class Shallow(Relaxer):
    """One hidden layer and few outputs, binary weights, real activations."""

    one_launch = True
    real_precision = "float32"
    takes = Capabilities(
        couplings=frozenset({Dense}),
        neurons=frozenset({HardSigmoid}),
        dynamics=frozenset({Prototypical}),
        updates=frozenset(UPDATES),
        limits=_limits,
    )

    def relax(
        self, first: Tensor, phase: PhasePlan, origin: Phase | None, labels: Tensor | None
    ) -> Phase:
        coupling = self.network.couplings[1]
        bias = None if coupling.bias is None else coupling.bias.detach()
        (batch, width), outputs = first.shape, self.network.layer_shapes[-1][0]
        hidden, top = torch.empty_like(first), first.new_empty(batch, outputs)
        residual, ran = per_sample(first)
        shallow_kernel[(batch,)](
            first,
            Readout(self.couplings[1].kernel, coupling.synapses.gain.detach(), bias),
            Ends() if origin is None else Ends(*origin.state),
            Ends(hidden, top),
            self.target_of(phase, origin, labels),
            self.neuron,
            residual,
            ran,
            width,
            self.network.initial_state,
            phase.steps,
            IN_TURN=len(self.network.turns) > 1,
            OUTPUTS=outputs,
            WIDTH=power_of_two(width),
            num_warps=8 if width > 1024 else 4,
        )
        return Phase([hidden, top], [hidden, top], residual, ran)
