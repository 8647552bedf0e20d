"""What follows the phases: contrasts, Bop, gradients and SGD of everything else, counters.

The contrast of a dense coupling is written in what changed between two phases,

    a+ b+' - a- b-'  =  (a+ - a-) b+'  +  a- (b+ - b-)'

so that float16 rounds small changes relative to themselves, and bits stay exact.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from binep.core.couplings import levels
from binep.core.metrics import COST_UNIT
from binep.core.network import Network
from binep.core.optim import Optimizers, PositiveSGD
from binep.core.weights import BinaryWeight
from binep.engines.cuda import SPREAD
from binep.engines.cuda.convolution import launch
from binep.engines.cuda.layout import FastConv, FastDense, flat, product
from binep.engines.cuda.packing import Packed
from binep.engines.cuda.relaxers.base import Phase, power_of_two
from binep.engines.cuda.rules import Neuron, flip, sent
from binep.engines.torch.engine import tensor_cores

ABOVE, BELOW = 64, 64  # a tile of synapses


class Numbers:
    """What changes with every mini-batch, side by side, so that one copy sends it.

    Attributes:
        sign: f32, (1,): the drawn sign of beta.
        bop: f32, (couplings, 3): gamma and tau over decay, contrasts above which a synapse is
            touched. sgd: f32, (groups,): learning rates.
    """

    def __init__(self, couplings: int, groups: int, device: torch.device) -> None:
        self.row = torch.zeros(1 + 3 * couplings + groups, device=device)
        self.sign, bop, self.sgd = self.row.split([1, 3 * couplings, groups])
        self.bop = bop.view(couplings, 3)


# --- contrasts and Bop --------------------------------------------------------------------------


class Factors(NamedTuple):
    """Of a contrast: f16, (rows, above) and (rows, below)."""

    heads: Tensor
    tails: Tensor
    rows: int


class Synapses(NamedTuple):
    """What flips: the parameter, its copies (see `FastDense`) and its momentum, m / decay.

    Attributes:
        channels, positions: of an image below, which lies channels last; the parameter numbers it
            channels first. None if there is no image.
    """

    signs: Tensor
    momentum: Tensor
    kernel: Tensor
    turned: Tensor | None
    above: int
    below: int
    channels: int | None
    positions: int | None


class Rates(NamedTuple):
    """Bop's numbers in a mini-batch, see `Numbers`; `flips`, int64, (1,), counts.

    Attributes:
        factor: of the gradient on the contrast.
    """

    sign: Tensor
    bop: Tensor
    flips: Tensor
    factor: float


@triton.jit
def changes_kernel(
    plus,  # (batch, units): activities of the phase whose contrast counts
    minus,  # (batch, units): of the phase it is compared with
    plus_stride,
    minus_stride,
    heads,  # f16, (2 batch, units): change, minus; the layer as the one above a coupling
    tails,  # f16, (2 batch, units): plus, change; as the one below
    bias_gradient,  # f32, (units,)
    sign,  # f32, (1,)
    batch,
    units,
    factor,
    SPREAD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A layer's part in the contrasts of its two couplings, and its bias's gradient."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, batch, ROWS):
        r = start + tl.arange(0, ROWS)
        inside = (r < batch)[:, None] & (j < units)[None, :]
        a = tl.load(plus + r[:, None] * plus_stride + j[None, :], mask=inside, other=0)
        b = tl.load(minus + r[:, None] * minus_stride + j[None, :], mask=inside, other=0)
        a, b = a.to(tl.float32), b.to(tl.float32)
        change = a - b
        total += tl.sum(change, 0)
        near = r[:, None] * units + j[None, :]
        far = near + batch * units
        spread = (change * SPREAD).to(tl.float16)
        tl.store(heads + near, spread, mask=inside)
        tl.store(heads + far, b.to(tl.float16), mask=inside)
        tl.store(tails + near, a.to(tl.float16), mask=inside)
        tl.store(tails + far, spread, mask=inside)
    tl.store(bias_gradient + j, factor * (total * tl.load(sign)), mask=j < units)


@triton.jit
def learn_kernel(
    factors,
    synapses,
    packed,  # see `packing.Packed`
    rates,
    contracted,  # f64, one per program: <signs, contrast>, if a scale is learnt
    SPREAD: tl.constexpr,
    SPARSE: tl.constexpr,
    ROWS: tl.constexpr,
    ABOVE: tl.constexpr,
    BELOW: tl.constexpr,
):
    """Contrast of a dense coupling and Bop, tile by tile; the contrast is never written to memory.

    An entry without gradient keeps its momentum and cannot newly exceed a threshold that only
    grows: its memory is not touched unless the rates change for all.
    """
    above, below = synapses.above, synapses.below
    tiles = tl.cdiv(below, BELOW)
    program = tl.program_id(0)
    i = program // tiles * ABOVE + tl.arange(0, ABOVE)
    j = program % tiles * BELOW + tl.arange(0, BELOW)
    total = tl.zeros((ABOVE, BELOW), tl.float32)
    for start in range(0, factors.rows, ROWS):
        r = start + tl.arange(0, ROWS)
        h = tl.load(
            factors.heads + r[:, None] * above + i[None, :],
            mask=(r < factors.rows)[:, None] & (i < above)[None, :],
            other=0.0,
        )
        t = tl.load(
            factors.tails + r[:, None] * below + j[None, :],
            mask=(r < factors.rows)[:, None] & (j < below)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(h), t, total)
    contrast = total * (tl.load(rates.sign) / SPREAD)
    inside = (i < above)[:, None] & (j < below)[None, :]
    index = i[:, None] * below + j[None, :]
    column = j
    if synapses.channels is not None:
        column = j % synapses.channels * synapses.positions + j // synapses.channels
    place = i[:, None] * below + column[None, :]
    # Real activities leave hardly any synapse without a gradient.
    touched = inside & (tl.abs(contrast) > tl.load(rates.bop + 2)) if SPARSE else inside
    read = inside if contracted is not None else touched
    w = tl.load(synapses.kernel + index, mask=read, other=0).to(tl.float32)
    m = tl.load(synapses.momentum + place, mask=touched, other=0.0)
    rate, threshold = tl.load(rates.bop), tl.load(rates.bop + 1)
    m, flips = flip(w, m, rates.factor * contrast, rate, threshold)
    flips = touched & flips
    tl.store(synapses.momentum + place, m, mask=touched)
    found = tl.sum(tl.sum(flips.to(tl.int32), 1), 0)
    if found > 0:
        tl.store(synapses.signs + place, -w, mask=flips)
        tl.store(synapses.kernel + index, (-w).to(synapses.kernel.dtype.element_ty), mask=flips)
        if synapses.turned is not None:
            across = j[None, :] * above + i[:, None]
            turned = (-w).to(synapses.turned.dtype.element_ty)
            tl.store(synapses.turned + across, turned, mask=flips)
        if packed.words is not None:
            row = packed.up_at + i[:, None] * packed.up_stride
            _toggle(packed.words, row, j[None, :], packed.up_width, flips)
            row = packed.down_at + j[None, :] * packed.down_stride
            _toggle(packed.words, row, i[:, None], packed.down_width, flips)
        tl.atomic_add(rates.flips, found.to(tl.int64))
    if contracted is not None:
        product = tl.where(inside, w * contrast, 0.0).to(tl.float64)
        tl.store(contracted + program, tl.sum(tl.sum(product, 1), 0))


@triton.jit
def _toggle(words, row, term, width, flips):
    """Toggle the bits of some terms of the rows that begin at these bytes."""
    byte = row + term // (8 * width) * width + term % width
    bit = byte % 4 * 8 + term % (8 * width) // width
    tl.atomic_xor(words + byte // 4, tl.full(flips.shape, 1, tl.int32) << bit, mask=flips)


@triton.jit
def bop_kernel(
    signs,  # f32, +-1
    momentum,  # f32: m / decay
    contrast,  # f32: f(plus) - f(minus)
    rates,
    count,
    BLOCK: tl.constexpr,
):
    """Bop in one pass: read m and g, write m, flip and count flips."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    w = tl.load(signs + index, mask=inside, other=0.0)
    m = tl.load(momentum + index, mask=inside, other=0.0)
    gradient = rates.factor * tl.load(contrast + index, mask=inside, other=0.0)
    m, flips = flip(w, m, gradient, tl.load(rates.bop), tl.load(rates.bop + 1))
    flips = inside & flips
    tl.store(momentum + index, m, mask=inside)
    tl.store(signs + index, -w, mask=flips)
    tl.atomic_add(rates.flips, tl.sum(flips.to(tl.int64)))


@triton.jit
def sgd_kernel(
    parameter,  # f32
    gradient,  # f32
    rate,  # f32, (1,)
    clamped,  # int64, counts the entries that are set to the floor, if there is one
    floor,
    count,
    BLOCK: tl.constexpr,
):
    """`p <- p - lr g`, rounded once, as torch's `add_` does it on a GPU; not below a floor."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    p = tl.load(parameter + index, mask=inside, other=0.0)
    g = tl.load(gradient + index, mask=inside, other=0.0)
    p = tl.fma(-tl.load(rate), g, p)
    if clamped is not None:
        below = inside & (p < floor)
        p = tl.where(below, floor, p)
        tl.atomic_add(clamped, tl.sum(below.to(tl.int64)))
    tl.store(parameter + index, p, mask=inside)


class Learner:
    """Learns from a mini-batch: flips signs by Bop, updates everything else by SGD.

    Args:
        flips: int64, (couplings,), counted up.
    """

    def __init__(
        self,
        network: Network,
        couplings: Sequence[FastDense | FastConv],
        optimizers: Optimizers,
        flips: Tensor,
    ) -> None:
        self.network, self.couplings, self.bop = network, couplings, optimizers.bop
        self.sgds = [o for o in (optimizers.sgd, optimizers.scale_sgd) if o is not None]
        self.groups = [(o, group) for o in self.sgds for group in o.param_groups]
        self.numbers = Numbers(len(couplings), len(self.groups), flips.device)
        self.flips, self.bits = flips, network.neuron.binary

    def fill_and_flip(
        self,
        x: Tensor,
        numbers: Tensor,
        switches: Tensor | None,
        plus: Phase,
        minus: Phase,
        places: Sequence[dict[int, Tensor | None]],
        span: float,
    ) -> None:
        """Contrast of two phases: signs flip by it, all other parameters get their `.grad`.

        Args:
            x: the input. numbers: the same in the products' layout.
            switches: of the first coupling's pool. places: those of the others, at the end of
                either phase.
        """
        above, below = self._sent(plus), self._sent(minus)
        changes = [
            self._changes(n, *pair, -1 / (span * len(x)))
            for n, pair in enumerate(zip(above, below, strict=True))
        ]
        for n, fast in enumerate(self.couplings):
            factor = -1 / (span * len(x) * (levels(x) if n == 0 else 1))
            if isinstance(fast, FastDense) and not _real_input(n, x):
                tails = flat(numbers) if n == 0 else changes[n - 1][1]
                self._learn_dense(n, fast, changes[n][0], tails, factor)
                continue
            contrast = self._contrast_of(n, fast, x, numbers, switches, above, below, places)
            self._apply(n, contrast * self.numbers.sign, factor)

    def _contrast_of(
        self,
        n: int,
        fast: FastDense | FastConv,
        x: Tensor,
        numbers: Tensor,
        switches: Tensor | None,
        above: list[Tensor],
        below: list[Tensor],
        places: Sequence[dict[int, Tensor | None]],
    ) -> Tensor:
        """The contrast of a convolution, or of a coupling that reads real numbers."""
        if n == 0:
            # The input does not change: only the layer above does. TF32 where it is exact.
            with tensor_cores(self.bits and not _real_input(n, x)):
                return fast.correlate(numbers, above[0] - below[0], switches)
        ends = [(side[n - 1], side[n]) for side in (above, below)]
        return _contrast(fast, *ends, [places[side][n] for side in range(2)])

    # --- in two launches, between which processes add up

    def contrasts(
        self,
        x: Tensor,
        numbers: Tensor,
        switches: Tensor | None,
        plus: Phase,
        minus: Phase,
        places: Sequence[dict[int, Tensor | None]],
    ) -> list[Tensor]:
        """What `fill_and_flip` learns from: contrasts of all couplings, then of their biases."""
        above, below = self._sent(plus), self._sent(minus)
        found, biases = [], []
        changes = [
            self._changes(n, *pair, 1.0) for n, pair in enumerate(zip(above, below, strict=True))
        ]
        for n, (fast, coupling) in enumerate(
            zip(self.couplings, self.network.couplings, strict=True)
        ):
            if isinstance(fast, FastDense) and not _real_input(n, x):
                tails = flat(numbers) if n == 0 else changes[n - 1][1]
                contrast = self._contrast_dense(fast, changes[n][0], tails)
            else:
                contrast = self._contrast_of(n, fast, x, numbers, switches, above, below, places)
                contrast = contrast * self.numbers.sign
            found.append(contrast)
            if coupling.bias is not None:
                assert coupling.bias.grad is not None
                biases.append(coupling.bias.grad)
        return [*found, *biases]

    def learn_from(self, contrasts: Sequence[Tensor], span: float, steps: int) -> None:
        """Learn from the contrasts of a mini-batch in all its parts.

        Args:
            span: difference of betas, times samples. steps: of the input's values in one unit.
        """
        biases = iter(contrasts[len(self.couplings) :])
        for n, coupling in enumerate(self.network.couplings):
            self._apply(n, contrasts[n], -1 / (span * (steps if n == 0 else 1)))
            if coupling.bias is not None:
                coupling.bias.grad = -1 / span * next(biases)

    def step(self) -> None:
        """SGD on everything that has a `.grad`."""
        for n, (optimizer, group) in enumerate(self.groups):
            for p in group["params"]:
                if p.grad is None:
                    continue
                clamped = floor = None
                if isinstance(optimizer, PositiveSGD):
                    clamped, floor = optimizer.state[p]["clamped"], optimizer.floor
                count, gradient = p.numel(), p.grad.contiguous()
                rate = self.numbers.sgd[n:]
                launch(sgd_kernel, count, p.detach(), gradient, rate, clamped, floor, count)

    def flip(self, n: int, contrast: Tensor, factor: float) -> None:
        """Bop on coupling n, whose gradient is `factor * contrast`."""
        signs, count = self.network.couplings[n].signs, contrast.numel()
        assert self.bop is not None
        momentum = self.bop.state[signs]["momentum"]
        launch(bop_kernel, count, signs.detach(), momentum, contrast, self._rates(n, factor), count)

    def flips_copies(self, n: int, x: Tensor) -> bool:
        """Whether the copies of coupling n's signs are flipped along with the signs."""
        fast = self.couplings[n]
        return isinstance(fast, FastDense) and fast.coupling.binary and not _real_input(n, x)

    def _rates(self, n: int, factor: float) -> Rates:
        return Rates(self.numbers.sign, self.numbers.bop[n], self.flips[n:], factor)

    def _sent(self, phase: Phase) -> list[Tensor]:
        """The activities that learning reads: bits as sent, real ones in full precision."""
        return phase.activity if self.bits else self.network.activity(phase.state, nudged=True)

    def _changes(self, n: int, plus: Tensor, minus: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """A layer's part in the contrasts of its couplings, see `changes_kernel`; fills `.grad`."""
        coupling = self.network.couplings[n]
        # An image's bias is summed over positions before it is scaled.
        image = plus.dim() == 4
        plus_rows, minus_rows = flat(plus), flat(minus)
        batch, units = plus_rows.shape
        heads = torch.empty(2 * batch, units, dtype=torch.float16, device=plus.device)
        tails, gradient = torch.empty_like(heads), torch.empty(units, device=plus.device)
        changes_kernel[(-(-units // 32),)](
            plus_rows,
            minus_rows,
            plus_rows.stride(0),
            minus_rows.stride(0),
            heads,
            tails,
            gradient,
            self.numbers.sign,
            batch,
            units,
            1.0 if image else factor,
            SPREAD=self._spread,
            ROWS=64,
            BLOCK=32,
            enable_fp_fusion=False,
        )
        if coupling.bias is not None:
            if image:
                gradient = factor * gradient.view(-1, len(coupling.bias)).sum(0)
            coupling.bias.grad = gradient
        return heads, tails

    @property
    def _spread(self) -> int:
        return 1 if self.bits else SPREAD

    def _contrast_dense(self, fast: FastDense, heads: Tensor, tails: Tensor) -> Tensor:
        heads = heads[: len(tails)]  # the input does not change: only the layer above does
        sign = self.numbers.sign / self._spread
        return fast.in_parameter_order(product(heads.T, tails.half()) * sign)

    def _learn_dense(
        self, n: int, fast: FastDense, heads: Tensor, tails: Tensor, factor: float
    ) -> None:
        synapses = self.network.couplings[n].synapses
        heads = heads[: len(tails)]
        if not isinstance(synapses, BinaryWeight):
            contrast = self._contrast_dense(fast, heads, tails)
            synapses.set_gradient_from_contrast(contrast, factor)
            return
        assert self.bop is not None
        above, below = fast.kernel.shape
        programs = -(-above // ABOVE) * -(-below // BELOW)
        contracted = None
        if synapses.scale.requires_grad:
            contracted = torch.empty(programs, dtype=torch.float64, device=heads.device)
        image = fast.below_shape if fast.permuted else None
        learn_kernel[(programs,)](
            Factors(heads, tails.half(), len(tails)),
            Synapses(
                synapses.signs.detach(),
                self.bop.state[synapses.signs]["momentum"],
                fast.kernel,
                fast.turned,
                above,
                below,
                None if image is None else image[0],
                None if image is None else image[1] * image[2],
            ),
            Packed() if fast.packed is None else fast.packed.for_kernel(),
            self._rates(n, factor),
            contracted,
            SPREAD=self._spread,
            SPARSE=self.bits,
            ROWS=64,
            ABOVE=ABOVE,
            BELOW=BELOW,
            enable_fp_fusion=False,
            num_warps=4,
        )
        if contracted is not None:
            rule = synapses.scale_factor.double() * factor
            synapses.scale.grad = (rule * contracted.sum()).to(synapses.scale.dtype)

    def _apply(self, n: int, contrast: Tensor, factor: float) -> None:
        synapses = self.network.couplings[n].synapses
        if not isinstance(synapses, BinaryWeight):
            synapses.set_gradient_from_contrast(contrast, factor)
            return
        if synapses.scale.requires_grad:
            synapses.set_scale_gradient(contrast, factor)
        self.flip(n, contrast, factor)


def _contrast(
    fast: FastConv,
    plus: tuple[Tensor, Tensor],
    minus: tuple[Tensor, Tensor],
    places: Sequence[Tensor | None],
) -> Tensor:
    """The contrast of a convolution, also from what changed, which TF32 rounds little.

    Args:
        plus, minus: activities below and above. places: the winners' for either.
    """
    after, before = (
        fast.unpool(above, None, switches, torch.float32)
        for (_, above), switches in zip((plus, minus), places, strict=True)
    )
    below = torch.cat([plus[0], plus[0] - minus[0]])
    with tensor_cores(True):
        return fast.correlate_maps(below, torch.cat([after - before, before]))


def _real_input(n: int, x: Tensor) -> bool:
    """Whether coupling n reads real numbers that float16 could not hold."""
    return n == 0 and x.is_floating_point()


# --- counters -----------------------------------------------------------------------------------


class Ran(NamedTuple):
    """Number of steps of each phase, int32, (batch,) or (1,)."""

    free: Tensor
    nudged: Tensor | None = None
    opposite: Tensor | None = None


@triton.jit
def count_kernel(
    top,  # f32, (batch, classes * per_class): the free state of the output layer
    stride,
    labels,  # int64, (batch,)
    found,  # f64, (batch, 4): wrong by average, by single, undecided, cost
    neuron,
    unit,  # of costs, see `metrics.COST_UNIT`
    classes,
    per_class,
    CLASSES: tl.constexpr,
    PER_CLASS: tl.constexpr,
):
    """Read one sample out: both predictions against its label, and its cost."""
    sample = tl.program_id(0)
    c, p = tl.arange(0, CLASSES), tl.arange(0, PER_CLASS)
    inside = (c < classes)[:, None] & (p < per_class)[None, :]
    place = top + sample * stride + c[:, None] * per_class + p[None, :]
    s = tl.load(place, mask=inside, other=0.0)
    label = tl.load(labels + sample)
    # In float64 the order of the sum cannot decide between two classes.
    average = tl.sum(s.to(tl.float64), 1) / per_class
    single = tl.sum(tl.where(p[None, :] == 0, s, 0.0), 1).to(tl.float64)
    wrong = _first_of_largest(average, c, classes) != label
    wrong_single = _first_of_largest(single, c, classes) != label
    highest = tl.max(tl.where(c < classes, average, float("-inf")), 0)
    lowest = tl.min(tl.where(c < classes, average, float("inf")), 0)
    y = tl.where(c == label, 1.0, 0.0)
    if neuron.BITS:
        s = sent(s, neuron, False)
    miss = tl.where(inside, y[:, None] - s, 0.0).to(tl.float64)
    cost = 0.5 * tl.sum(tl.sum(miss * miss, 1), 0)
    cost = tl.floor(cost / unit + 0.5) * unit
    tl.store(found + sample * 4, wrong.to(tl.float64))
    tl.store(found + sample * 4 + 1, wrong_single.to(tl.float64))
    tl.store(found + sample * 4 + 2, (highest == lowest).to(tl.float64))
    tl.store(found + sample * 4 + 3, cost)


@triton.jit
def _first_of_largest(scores, c, classes):
    """The index of the largest score, on a tie the lowest one."""
    scores = tl.where(c < classes, scores, float("-inf"))
    return tl.min(tl.where(scores == tl.max(scores, 0), c, classes), 0)


@triton.jit
def tally_kernel(
    found,  # f64, (batch, 4), from `count_kernel`
    residual,  # f32, (batch,) or (1,)
    ran,
    totals,  # f64, (7,): found, then residual, steps of the free phase, of nudged ones
    batch,
    residuals,
    BATCH: tl.constexpr,
):
    """Add a mini-batch to the totals of the epoch, always in the same order."""
    sample = tl.arange(0, BATCH)
    for column in tl.static_range(4):
        value = tl.load(found + sample * 4 + column, mask=sample < batch, other=0.0)
        tl.store(totals + column, tl.load(totals + column) + tl.sum(value, 0))
    inside = sample < residuals
    last = tl.max(tl.load(residual + sample, mask=inside, other=0.0), 0)
    tl.store(totals + 4, tl.load(totals + 4) + last)
    steps = tl.max(tl.load(ran.free + sample, mask=inside, other=0), 0)
    tl.store(totals + 5, tl.load(totals + 5) + steps)
    if ran.nudged is not None:
        steps = tl.max(tl.load(ran.nudged + sample, mask=inside, other=0), 0)
        if ran.opposite is not None:
            steps += tl.max(tl.load(ran.opposite + sample, mask=inside, other=0), 0)
        tl.store(totals + 6, tl.load(totals + 6) + steps)


def count(network: Network, labels: Tensor, ends: Sequence[Phase], totals: Tensor) -> None:
    """Add a mini-batch to the totals, see `tally_kernel`: read out of the first of its phases."""
    free, batch = ends[0], len(labels)
    top = free.state[-1]
    found = torch.empty(batch, 4, dtype=torch.float64, device=top.device)
    count_kernel[(batch,)](
        top,
        top.stride(0),
        labels,
        found,
        Neuron.of(network),
        COST_UNIT,
        network.classes,
        network.per_class,
        CLASSES=power_of_two(network.classes),
        PER_CLASS=power_of_two(network.per_class),
    )
    tally_kernel[(1,)](
        found,
        free.residual,
        Ran(*(end.ran for end in ends)),
        totals,
        batch,
        len(free.residual),
        BATCH=power_of_two(batch),
    )
