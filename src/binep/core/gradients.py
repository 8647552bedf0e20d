"""How to get a gradient: by Equilibrium Propagation, or by backpropagation through time.

Both are values. `plan` says what a mini-batch goes through, for any backend to run;
`backward(network, x, labels) -> Phases` runs it here, in plain torch, and fills `.grad` of every
parameter with the gradient of the loss (batch mean), so that any optimizer can follow. For a binary
coupling `signs.grad` holds `dL/dW`.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from binep.core.couplings import levels
from binep.core.dynamics import Prototypical
from binep.core.homeostasis import Homeostasis, activity_of
from binep.core.network import Clamped, Network, State
from binep.core.neurons import UNIT
from binep.core.plan import BackwardPlan, ContrastPlan, PhasePlan, Plan
from binep.core.relaxation import NUDGES, Nudge, Relaxation, relax
from binep.errors import BinepError, choose

SIGNS = ("positive", "random", "centered")
PULLS_AT = ("state", "drive")


@dataclass(frozen=True)
class Phases:
    """What a mini-batch went through.

    Attributes:
        free: the free phase, `s*`: what predictions are read from.
        nudged: the nudged phase, `s^beta`; None for backpropagation.
        beta: the signed strength of that nudge; None for backpropagation.
        opposite: the phase under `-beta`, for centered estimates only.
        activity: what homeostasis follows, summed over the whole mini-batch, see `activity_of`.
    """

    free: Relaxation
    nudged: Relaxation | None = None
    beta: float | None = None
    opposite: Relaxation | None = None
    activity: Sequence[Tensor] = ()

    def __repr__(self) -> str:
        nudges = {"nudged": self.nudged, "opposite": self.opposite}
        ran = [f"{name} {phase.steps}" for name, phase in nudges.items() if phase is not None]
        return f"Phases({', '.join([f'free {self.free.steps}', *ran])} steps, beta={self.beta})"


class Learning(Protocol):
    """Anything that can fill `.grad` from a mini-batch, after a free phase of `free_steps`."""

    @property
    def free_steps(self) -> int: ...

    @property
    def tolerance(self) -> float | None: ...

    def check(self, network: Network) -> None: ...

    def plan(self, sign: int = 1) -> Plan: ...

    def backward(
        self, network: Network, x: Tensor, labels: Tensor, whole: "Whole | None" = None
    ) -> Phases: ...


class Whole(Protocol):
    """The mini-batch of which `x` is a part, where several processes share it."""

    @property
    def batch(self) -> int:
        """Samples in all of it."""
        ...

    def add_up(self, exact: Sequence[Tensor], rounded: Sequence[Tensor]) -> None:
        """Put the sum over all parts in place of each tensor.

        Args:
            exact: tensors of integers, which stay exact. rounded: all others.
        """


@dataclass(frozen=True)
class EquilibriumPropagation:
    """Gradients from the difference of two equilibria, local to every synapse.

    With `D(f) = f(nudged) - f(free)`, batch mean (eq. 28), and all of it
    times `d` of the layer above, which is 1 unless feedback is scaled (`Network.energy_factors`):

        dL/dW     = -(1/beta) D(a_above a_below^T)      dense
                  = -(1/beta) D(correlation of unpool(a_above) with a_below)      conv
        dL/db     = -(1/beta) D(a_above), summed over positions
        dL/dalpha = -(1/(2 beta)) D(a_above . W a_below)      dense; conv without the half

    The last is the paper's rule, with its half and its scaled W: `rule * alpha` times the true
    gradient (`BinaryWeight.scale_factor`).

    Args:
        free_steps: T. nudged_steps: K. beta: strength of the nudge, not 0.
        sign: of beta: "positive" takes it as given; "random" draws a fresh sign for each
            mini-batch; "centered" runs both from the same free state and divides their difference
            by `2 beta`.
        nudge: "live" or "constant", see `Nudge`.
        tolerance: let either phase end early once it has settled, see `relax`.
        generator: source of random signs (a CPU generator); the global one by default.
        margin: by how much the right class has to win. In all phases the drive of its outputs is
            lowered by this, and that of the others raised: where outputs saturate, there would be
            nothing more to learn from a sample as soon as it is right.
        homeostasis: how biases follow activity, besides their gradients; engines let them.
    """

    free_steps: int
    nudged_steps: int
    beta: float
    sign: str = "positive"
    nudge: str = "live"
    tolerance: float | None = None
    generator: torch.Generator | None = field(default=None, compare=False, repr=False)
    margin: float = 0.0
    homeostasis: Homeostasis | None = None

    def __post_init__(self) -> None:
        _check_steps(free_steps=self.free_steps, nudged_steps=self.nudged_steps)
        choose(self.sign, SIGNS, "sign of beta")
        choose(self.nudge, NUDGES, "nudge kind")
        if self.beta == 0 or not math.isfinite(self.beta):
            raise BinepError(f"beta={self.beta}: it must be a finite number other than 0")
        if not 0 <= self.margin < math.inf:
            raise BinepError(f"margin={self.margin}: it must be a finite number of at least 0")

    def check(self, network: Network) -> None:
        """An error that says why, if the network cannot learn so."""
        if self.margin and network.cost != "mse":
            raise BinepError(
                f"margin={self.margin} with cost={network.cost!r}: its outputs are outside the "
                "dynamics, allowed is cost='mse'"
            )
        if self.margin and network.output_range != UNIT:
            raise BinepError(
                f"margin={self.margin} with outputs in {network.output_range}: allowed is [0, 1]"
            )
        if self.homeostasis is not None:
            self.homeostasis.check(network)

    def plan(self, sign: int = 1) -> ContrastPlan:
        """What a mini-batch goes through, with a drawn `sign` of beta."""
        beta = self.beta * sign
        free = PhasePlan(self.free_steps)
        nudged = PhasePlan(self.nudged_steps, start=0, beta=beta, nudge=self.nudge)
        if self.sign == "centered":
            phases, minus, span = (free, nudged, replace(nudged, beta=-beta)), 2, 2 * beta
        else:
            phases, minus, span = (free, nudged), 0, beta
        return ContrastPlan(phases, 1, minus, span, self.margin, self.tolerance)

    def draw_sign(self) -> int:
        """The sign of beta for a mini-batch: +1, or with `sign="random"` a fresh +1 or -1."""
        if self.sign != "random":
            return 1
        return 2 * int(torch.randint(2, (), generator=self.generator)) - 1

    @torch.no_grad()
    def backward(
        self, network: Network, x: Tensor, labels: Tensor, whole: Whole | None = None
    ) -> Phases:
        """Run all phases on a mini-batch and fill `.grad` of every parameter.

        Args:
            whole: the mini-batch that `x` is a part of, if it is.
        """
        self.check(network)
        plan = self.plan(self.draw_sign())
        target = network.target(labels)
        clamped = replace(network.clamp(x), handicap=plan.handicap(target))
        ends: list[Relaxation] = []
        for phase in plan.phases:
            ends.append(run_phase(phase, network, clamped, ends, target, plan.tolerance))
        activity = [] if self.homeostasis is None else activity_of(network, ends[0])
        sides = ends[plan.plus], ends[plan.minus]
        fill_gradients(network, clamped, *sides, plan.span, whole, activity)
        if network.cost == "cross_entropy":
            _fill_readout_gradient(network, ends[0], target, whole)
        opposite = ends[2] if len(ends) > 2 else None
        return Phases(ends[0], ends[1], plan.phases[1].beta, opposite, activity)


def run_phase(
    phase: PhasePlan,
    network: Network,
    clamped: Clamped,
    ends: Sequence[Relaxation],
    target: Tensor,
    tolerance: float | None,
) -> Relaxation:
    """Relax a mini-batch as a plan says, from the ends of the phases before."""
    start = network.initial(clamped) if phase.start is None else ends[phase.start].state
    nudge = Nudge(target, phase.beta, phase.nudge) if phase.nudged else None
    return relax(network, clamped, start, phase.steps, nudge, tolerance=tolerance)


def fill_gradients(
    network: Network,
    clamped: Clamped,
    nudged: Relaxation,
    base: Relaxation,
    span: float,
    whole: Whole | None = None,
    activity: Sequence[Tensor] = (),
) -> None:
    """Set every `.grad` to `-(d/span)` times the batch mean of `f(nudged) - f(base)`.

    The difference is taken first, added up over all parts of a mini-batch that is shared, and
    multiplied once: with bits it is an exact integer.

    Args:
        activity: of each layer, see `activity_of`; added up along with the differences.
    """
    plus, minus = (
        [clamped.x, *network.activity(side.state, nudged=True)] for side in (nudged, base)
    )
    contrasts, biases = list[Tensor](), dict[int, Tensor]()
    for n, coupling in enumerate(network.relaxing):
        contrast = coupling.correlate(plus[n], plus[n + 1], nudged.switches[n])
        contrast -= coupling.correlate(minus[n], minus[n + 1], base.switches[n])
        contrasts.append(contrast)
        if coupling.bias is not None:
            here, there = plus[n + 1], minus[n + 1]
            biases[n] = coupling.correlate_bias(here) - coupling.correlate_bias(there)
    if whole is not None:
        real = [sent.is_floating_point() for sent in plus]
        found = [(contrast, real[n] or real[n + 1]) for n, contrast in enumerate(contrasts)]
        found += [(bias, real[n + 1]) for n, bias in biases.items()]
        add_up_all(whole, [*found, *zip(activity, real[1:], strict=False)])
    batch = len(clamped.x) if whole is None else whole.batch
    for n, (coupling, d) in enumerate(zip(network.relaxing, network.energy_factors, strict=True)):
        factor = -d / (span * batch * levels(plus[n]))
        coupling.synapses.set_gradient_from_contrast(contrasts[n], factor)
        if coupling.bias is not None:
            coupling.bias.grad = -d / (span * batch) * biases[n]


def add_up_all(whole: Whole, found: Sequence[tuple[Tensor, bool]]) -> None:
    """Add tensors up over all parts; of each is told whether its numbers are rounded ones."""
    exact, rounded = ([t for t, real in found if real is kind] for kind in (False, True))
    whole.add_up(exact, rounded)


def _fill_readout_gradient(
    network: Network, free: Relaxation, target: Tensor, whole: Whole | None
) -> None:
    """The softmax readout stands outside the dynamics: its gradient at `s*` is exact."""
    readout, top = network.couplings[-1], network.neurons[-1](free.state[-1])
    surprise = network.logits(free.state).softmax(1) - target
    contrast, bias = readout.correlate(top, surprise, None), surprise.sum(0)
    if whole is not None:
        whole.add_up([], [contrast, bias])
    batch = len(target) if whole is None else whole.batch
    readout.synapses.set_gradient_from_contrast(contrast, 1 / batch)
    if readout.bias is not None:
        readout.bias.grad = bias / batch


@dataclass(frozen=True)
class BackpropThroughTime:
    """Gradients of the loss at the end of the free phase, through its last steps.

    The free phase runs `free_steps` steps; the loss of its last state is differentiated through
    the last `steps` of them. For real activations only. Truncated estimates agree step by step:
    EP after t nudged steps, with beta to 0, and this with `steps=t`. The scale of a binary coupling
    gets its true gradient `dL/dalpha = <signs, dL/dW>`.

    Args:
        free_steps: T. steps: how many of them to go back through.
        tolerance: let the steps before those end early once the network has settled.
        pulls_at: what the loss pulls at: the outputs' "state", so that an output which is clamped
            has no gradient, or their "drive", as if the last clamp were not there. The latter is
            what EP does in prototypical dynamics, where the nudge stands outside of rho.
    """

    free_steps: int
    steps: int
    tolerance: float | None = None
    pulls_at: str = "state"

    def __post_init__(self) -> None:
        _check_steps(free_steps=self.free_steps, steps=self.steps)
        choose(self.pulls_at, PULLS_AT, "pulls_at")
        if self.steps > self.free_steps:
            raise BinepError(f"steps={self.steps}: allowed are 1 to free_steps={self.free_steps}")

    def check(self, network: Network) -> None:
        """An error that says why, if the network has no such gradient."""
        bits = next((each for each in network.neurons if each.binary), None)
        if bits is not None:
            raise BinepError(
                f"BackpropThroughTime with {bits}: a step has no derivative, allowed "
                "are real activations"
            )
        outside = isinstance(network.dynamics, Prototypical) and network.cost == "mse"
        if self.pulls_at == "drive" and not outside:
            raise BinepError(
                "pulls_at='drive': allowed with prototypical dynamics and cost='mse' only; "
                "elsewhere the nudge of EP stands inside of rho, too"
            )

    def plan(self, sign: int = 1) -> BackwardPlan:
        """What a mini-batch goes through."""
        before = self.free_steps - self.steps
        settle = PhasePlan(before) if before else None
        return BackwardPlan(settle, self.steps, self.pulls_at, self.tolerance)

    def backward(
        self, network: Network, x: Tensor, labels: Tensor, whole: Whole | None = None
    ) -> Phases:
        """Run the free phase on a mini-batch, or its part of one, and fill every `.grad`."""
        x, plan = network.check(x), self.plan()
        state, residuals = network.initial(x), []
        if plan.settle is not None:
            settled = relax(network, x, state, plan.settle.steps, tolerance=plan.tolerance)
            state, residuals = settled.state, [settled.residuals]
        last = self.differentiate(network, x, state, labels, whole)
        return Phases(replace(last, residuals=torch.cat([*residuals, last.residuals])))

    def differentiate(
        self,
        network: Network,
        x: Tensor,
        state: State,
        labels: Tensor,
        whole: Whole | None = None,
    ) -> Relaxation:
        """Run the last steps from a state and fill `.grad`; returns where they end.

        Args:
            x: a mini-batch that `network.check` has let pass.
        """
        self.check(network)
        target = network.target(labels)
        with torch.enable_grad(), _differentiable(network) as parameters:
            clamped = Clamped(x, *network.couplings[0].up(x))
            last, seen = self._run_last(network, clamped, state)
            gradients = torch.autograd.grad(
                network.loss(seen, target), parameters, materialize_grads=True
            )
        if whole is not None:
            # Means over parts of different sizes become one mean.
            gradients = [gradient * (len(x) / whole.batch) for gradient in gradients]
            whole.add_up([], gradients)
        gradient_of = dict(zip(map(id, parameters), gradients, strict=True))
        for coupling in network.couplings:
            coupling.synapses.set_gradient_from_kernel(gradient_of[id(coupling.synapses.kernel)])
            if coupling.bias is not None:
                coupling.bias.grad = gradient_of[id(coupling.bias)]
        return replace(last, state=[s.detach() for s in last.state])

    def _run_last(
        self, network: Network, clamped: Clamped, state: State
    ) -> tuple[Relaxation, State]:
        """The last steps under autograd, and the state that the loss is to see.

        Layers that move in turn do so the other way round: at rest that changes no state, and
        errors then reach them in the order in which the nudge of EP does.
        """
        turns = network.turns[::-1]
        if self.pulls_at == "state":
            last = relax(network, clamped, state, self.steps, track_gradients=True, turns=turns)
            return last, last.state
        residuals = []
        if self.steps > 1:
            before = relax(
                network, clamped, state, self.steps - 1, track_gradients=True, turns=turns
            )
            state, residuals = before.state, [before.residuals]
        last = relax(network, clamped, state, 1, track_gradients=True, turns=turns)
        # What the top layer listened to: that layer has moved before it, or with it.
        earlier = len(turns) > 1 and len(state) - 1 in turns[-1]
        below = [clamped.x, *network.activity(last.state if earlier else state)][-2]
        drive, _ = network.relaxing[-1].up(below)  # all there is: the top layer has no `down`
        outputs = drive + (last.state[-1] - drive).detach()
        last = replace(last, residuals=torch.cat([*residuals, last.residuals]))
        return last, [*last.state[:-1], outputs]


@contextmanager
def _differentiable(network: Network) -> Iterator[list[Tensor]]:
    """Let autograd see all kernels and biases, frozen ones too, for the time being."""
    kernels = [coupling.synapses.kernel for coupling in network.couplings]
    biases = [coupling.bias for coupling in network.couplings if coupling.bias is not None]
    parameters = [*kernels, *biases]
    before = [parameter.requires_grad for parameter in parameters]
    try:
        yield [parameter.requires_grad_() for parameter in parameters]
    finally:
        for parameter, was in zip(parameters, before, strict=True):
            parameter.requires_grad_(was)


def _check_steps(**steps: int) -> None:
    for name, count in steps.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise BinepError(f"{name}={count!r}: it must be an integer of at least 1")
