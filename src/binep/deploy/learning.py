"""Learning in integers, one image at a time: the definition of what the C program learns.

    M <- M - sign(span) (correlation[plus] - correlation[minus])       one image's gradient
    flip w  where |M| > Theta and sign(M) = sign(w)        Theta = tau |span| batch size / gamma

with phases and span of an `EquilibriumPropagation.plan`. M counts units of
`gamma / (|span| batch size)`, as Bop does over a mini-batch. Between bits the
correlation is ternary; from pixels it is 8-bit, and its Theta 255 times larger. M
is a signed integer of `momentum_bits`, saturating; where it is too narrow for Theta of the pixels,
only their highest bits are taken. Bop's decay is a halving of M every `half_life` images. Biases
move by a fixed step with the change of activity; scales stay.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from binep.core.plan import ContrastPlan, PhasePlan
from binep.deploy import layout, rules
from binep.deploy.fixed import FixedNetwork
from binep.deploy.relaxing import Batch, State
from binep.deploy.rules import BETA_BITS, PARAMETER_BITS
from binep.deploy.stored import LEVELS, Array, StoredCoupling, StoredNetwork
from binep.errors import BinepError

SEED = 2463534242
_MOST_MOMENTUM_BITS = 31
_PIXEL_BITS = 8
_LARGEST_NUDGE = 2**62


@dataclass(frozen=True)
class Rule:
    """What a recipe says about learning, one entry a coupling where it is a tuple.

    Attributes:
        plan: what an image goes through. random_sign: whether a sign drawn for each image
            multiplies all its betas.
    """

    plan: ContrastPlan
    random_sign: bool
    gamma: tuple[float, ...]
    tau: tuple[float, ...]
    lr_bias: tuple[float, ...]
    batch_size: int


@dataclass(frozen=True)
class FixedRule:
    """The same in integers; see the module."""

    rule: Rule
    momentum_bits: int = 16
    seed: int = SEED

    def __post_init__(self) -> None:
        bits = self.momentum_bits
        if not isinstance(bits, int) or not 2 <= bits <= _MOST_MOMENTUM_BITS:
            raise BinepError(f"momentum bits {bits!r}: allowed are 2 to {_MOST_MOMENTUM_BITS}")
        for n, threshold in enumerate(self.flip_above):
            if threshold >= self.most:
                needed = math.ceil(math.log2(threshold + 2)) + 1
                raise BinepError(
                    f"momentum bits {bits}: coupling {n} flips above {threshold}, which takes at "
                    f"least {needed} bits"
                )

    @property
    def most(self) -> int:
        """The largest momentum; the smallest is its negative."""
        return (1 << (self.momentum_bits - 1)) - 1

    @property
    def betas(self) -> list[int]:
        """Of every phase, signed, in units of 2^-BETA_BITS."""
        return [round(phase.beta * 2**BETA_BITS) for phase in self.rule.plan.phases]

    @property
    def margin(self) -> int:
        """By how much the right class has to win, in units of 2^-BETA_BITS."""
        return round(self.rule.plan.margin * 2**BETA_BITS)

    @property
    def direction(self) -> int:
        """The sign of the span."""
        return 1 if self.rule.plan.span > 0 else -1

    def _thresholds(self, shift: int) -> list[int]:
        """Theta of every coupling; that of the pixels in units of 2^shift."""
        rule, found = self.rule, []
        for n, (gamma, tau) in enumerate(zip(rule.gamma, rule.tau, strict=True)):
            levels = LEVELS / 2**shift if n == 0 else 1
            found.append(math.floor(tau * abs(rule.plan.span) * rule.batch_size / gamma * levels))
        return found

    @cached_property
    def pixel_shift(self) -> int:
        """How many low bits of a pixel are dropped, so that the momentum can hold its Theta."""
        fits = (k for k in range(_PIXEL_BITS) if self._thresholds(k)[0] < self.most)
        return next(fits, _PIXEL_BITS - 1)

    @property
    def flip_above(self) -> list[int]:
        return self._thresholds(self.pixel_shift)

    @property
    def half_life(self) -> list[int]:
        """Images after which a momentum is halved; at most what 31 bits hold."""
        rule = self.rule
        images = [rule.batch_size * math.log(2) / gamma for gamma in rule.gamma]
        return [min(max(1, round(each)), 2**31 - 1) for each in images]

    @property
    def bias_step(self) -> list[int]:
        scale = 2.0**PARAMETER_BITS / (abs(self.rule.plan.span) * self.rule.batch_size)
        return [round(lr * scale) for lr in self.rule.lr_bias]


@dataclass
class Ending:
    """Where a phase ended: states and bits, (layers), and switches, (couplings)."""

    state: State
    bits: list[Array]
    switches: list[Array | None]


class FixedLearner:
    """A network that goes on learning, in integers.

    `momenta` are integers shaped like the weights; weights and biases are those of `fixed`, and
    change with every image. `watch` is given the states at the beginning of a phase, then with
    True, and after each of its steps.
    """

    def __init__(self, fixed: FixedNetwork, rule: FixedRule) -> None:
        beta, most = max(map(abs, rule.betas)), _LARGEST_NUDGE // fixed.one
        if beta + rule.margin > most:
            raise BinepError(
                f"beta up to {beta / 2**BETA_BITS:g} and margin {rule.margin / 2**BETA_BITS:g}: "
                "what they drive outputs by does not fit into 64 bits, allowed is a sum of at most "
                f"{most / 2**BETA_BITS:g}"
            )
        self.fixed, self.rule = fixed, rule
        self.momenta = [np.zeros(c.weight_shape, np.int64) for c in fixed.network.couplings]
        self.flips, self.images = 0, 0
        self._random = rule.seed
        self.watch: Callable[[State, bool], None] = lambda state, begins: None

    @property
    def network(self) -> StoredNetwork:
        return self.fixed.network

    def learn(self, image: Array, label: int) -> None:
        """Learn one image of uint8 pixels, (*image shape)."""
        plan = self.rule.rule.plan
        sign = self._draw_sign() if self.rule.rule.random_sign else 1
        batch = self.fixed.begin(np.asarray(image)[None])
        initial, ends = batch.state, list[Ending]()
        for phase, beta in zip(plan.phases, self.rule.betas, strict=True):
            batch.state = list(initial if phase.start is None else ends[phase.start].state)
            ends.append(self._relax(batch, phase, sign * beta, label))
        pixels = self.network.inputs(np.asarray(image)[None])
        self._update(pixels, ends[plan.plus], ends[plan.minus], -sign * self.rule.direction)

    def handicap(self, label: int) -> Array:
        """What drives the outputs against their target while an image is learnt, (outputs,)."""
        return rules.whole_handicap(self.rule.margin, self._target(label), self.fixed.one)

    def _target(self, label: int) -> Array:
        """The states that the outputs should have, (outputs,)."""
        classes = np.arange(self.network.classes).repeat(self.network.per_class)
        return np.where(classes == label, self.fixed.one, 0)

    def _draw_sign(self) -> int:
        """xorshift32; bit 16 decides."""
        x = self._random
        x ^= x << 13 & 0xFFFFFFFF
        x ^= x >> 17
        x ^= x << 5 & 0xFFFFFFFF
        self._random = x
        return 1 if x >> 16 & 1 else -1

    def _relax(self, batch: Batch, phase: PhasePlan, beta: int, label: int) -> Ending:
        """Run a phase from the state of a batch, under a nudge unless beta is 0.

        The handicap adds to the nudge: in units of a state, where a drive has been rounded to
        them, both orders of adding are one.
        """
        target = self._target(label)
        handicap = self.handicap(label)
        nudge = rules.whole_nudge(beta, target, self.fixed.pulled(batch.state[-1]))
        self.watch(batch.state, True)
        for _ in range(phase.steps):
            if not phase.constant:
                nudge = rules.whole_nudge(beta, target, self.fixed.pulled(batch.state[-1]))
            batch.step(nudge + handicap)
            self.watch(batch.state, False)
        switches = batch.settle_switches()
        return Ending(batch.state, [self.fixed.activity(s) for s in batch.state], switches)

    def _update(self, pixels: Array, plus: Ending, minus: Ending, direction: int) -> None:
        rule, couplings = self.rule, list(self.network.couplings)
        for n, coupling in enumerate(couplings):
            below = (
                [pixels >> rule.pixel_shift] * 2
                if n == 0
                else [plus.bits[n - 1], minus.bits[n - 1]]
            )
            contrast = _correlation(coupling, below[0], plus.bits[n], plus.switches[n])
            contrast -= _correlation(coupling, below[1], minus.bits[n], minus.switches[n])
            momentum = rules.whole_momentum(self.momenta[n], direction * contrast, rule.most)
            self.momenta[n] = momentum
            flip = rules.flip(momentum, coupling.signs, rule.flip_above[n])
            self.flips += int(flip.sum())
            signs = np.where(flip, -coupling.signs, coupling.signs).astype(np.int8)
            couplings[n] = replace(coupling, signs=signs)
            change = plus.bits[n][0].astype(np.int64) - minus.bits[n][0]
            if change.ndim == 3:
                change = change.sum((1, 2))
            self.fixed.biases[n] = self.fixed.biases[n] - direction * change * rule.bias_step[n]
        self.fixed.network = replace(self.network, couplings=couplings)
        self.images += 1
        for n, images in enumerate(rule.half_life):
            if self.images % images == 0:
                momentum = self.momenta[n]
                self.momenta[n] = np.sign(momentum) * (np.abs(momentum) // 2)


def _correlation(
    coupling: StoredCoupling, below: Array, above: Array, switches: Array | None
) -> Array:
    """`a_above a_below` of every synapse, for one sample: int64, shaped like the weight."""
    values = below[0].astype(np.int64)
    if coupling.kind == "dense":
        return np.outer(above[0], values.reshape(-1)).astype(np.int64)
    padding, side = coupling.padding, coupling.kernel
    padded = np.pad(values, [(0, 0), (padding,) * 2, (padding,) * 2])
    width = values.shape[2] + 2 * padding - side + 1
    found = np.zeros(coupling.weight_shape, np.int64)
    for channel, row, col in np.argwhere(above[0]):
        place = row * width + col if switches is None else switches[0, channel, row, col]
        y, x = divmod(int(place), width)
        found[channel] += padded[:, y : y + side, x : x + side]
    return found


def learnt(learner: FixedLearner) -> bytes:
    """What the C program writes after the same images: see `main.c`."""
    shapes, content = learner.network.shapes, b""
    for n, coupling in enumerate(learner.network.couplings):
        rows = layout.pack(layout.synapses(coupling, shapes[n], coupling.signs) > 0)
        momenta = layout.synapses(coupling, shapes[n], learner.momenta[n])
        content += rows.tobytes() + learner.fixed.biases[n].astype("<i8").tobytes()
        content += momenta.astype("<i4").tobytes()
    return content
