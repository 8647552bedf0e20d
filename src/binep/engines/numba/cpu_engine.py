"""What the CPU engines share: they run a plan and train a network in place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from binep.core import metrics
from binep.core.couplings import levels
from binep.core.gradients import EquilibriumPropagation, Learning, Whole, add_up_all
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.optim import Bop, Optimizers
from binep.core.plan import ContrastPlan
from binep.core.relaxation import Relaxation
from binep.engines.activity import Activity
from binep.engines.base import Capabilities
from binep.engines.numba.jit import kernel_threads
from binep.engines.processes import ALONE, Processes
from binep.errors import BinepError


@dataclass
class Ends:
    """Where the phases of a mini-batch ended.

    Attributes:
        x: the mini-batch.
        steps: how many each phase took. top, residual: output neurons and last largest change of
            the first phase, which is read out.
    """

    x: Tensor
    steps: list[int]
    top: Tensor
    residual: float

    @property
    def free(self) -> Relaxation:
        """The part of the first phase that is read out."""
        residuals = torch.zeros(self.steps[0])
        residuals[-1] = self.residual
        return Relaxation([self.top], [], residuals)


@dataclass
class Rates:
    """Numbers of a coupling's step: gradient = factor * contrast; gamma and tau over Bop's decay.

    `at_rest`: whether all of the momentum is 0 before.
    """

    factor: float
    rate: float
    bound: float
    at_rest: bool


class CpuEngine:
    """Trains binary weights by EP in compiled kernels, in place.

    The network and its optimizers hold the state of training at any time. An engine's copy of the
    signs is renewed when they are changed from outside, see `_changed_signs`. A subclass says how
    to clamp a mini-batch, run the phases of a plan, and take a coupling's contrast.

    Args:
        early_stop: skip steps that can change nothing; results are the same either way.
    """

    name: str
    capabilities: Capabilities

    def __init__(
        self,
        network: Network,
        learning: Learning,
        optimizers: Optimizers,
        *,
        early_stop: bool = True,
    ) -> None:
        self.capabilities.check(self.name, network, learning, optimizers)
        assert isinstance(learning, EquilibriumPropagation)
        self.network, self.learning, self.optimizers = network, learning, optimizers
        self.early_stop = early_stop
        self.activity: Activity = Activity()
        self.processes, self._tallies = ALONE, list[Tally]()
        self._seen: list[Any] = [None] * len(network.couplings)
        self._set_up()

    def _set_up(self) -> None:
        """Prepare what the engine needs."""
        raise NotImplementedError

    def _clamp(self, x: Tensor) -> Any:
        """What stays constant while a mini-batch relaxes, with the current signs."""
        raise NotImplementedError

    def _run(self, clamped: Any, target: Tensor, plan: ContrastPlan) -> Any:
        """Run all phases."""
        raise NotImplementedError

    def _prepare(self, clamped: Any, ends: Any, plan: ContrastPlan) -> Any:
        """What the contrasts of all couplings are taken from."""
        raise NotImplementedError

    def _contrast_bias(self, n: int, sides: Any) -> Tensor:
        """`D(a_above)`, summed over batch and positions, (above,)."""
        raise NotImplementedError

    def _activity(self, ends: Any) -> list[Tensor]:
        """What homeostasis follows, see `activity_of`; asked of engines that know it."""
        raise NotImplementedError

    def _contrast(self, n: int, sides: Any) -> Tensor:
        """`D(correlation)` of coupling n, like its signs; asked for where processes add it up."""
        raise NotImplementedError

    def _flip(
        self, n: int, sides: Any, rates: Rates, contrast: Tensor | None
    ) -> tuple[int, Tensor]:
        """Add coupling n's contrast, as given or that of the sides, to its momentum, and flip.

        Returns the flips, and `<signs, contrast>` of every neuron or channel above.
        """
        raise NotImplementedError

    # --- what every engine offers

    @torch.no_grad()
    def train(self, x: Tensor, labels: Tensor) -> None:
        """One training step on a mini-batch, (batch, *input_shape), with labels, (batch,)."""
        plan, part = self.learning.plan(self.learning.draw_sign()), self.processes.part(x, labels)
        clamped, target = self._clamp(part.x), self.network.target(part.labels)
        ends = self._run(clamped, target, plan)
        seen = metrics.tally(self.network, ends.free, part.labels, target)
        sides, flips = self._prepare(clamped, ends, plan), []
        biases = {
            n: self._contrast_bias(n, sides)
            for n, coupling in enumerate(self.network.couplings)
            if coupling.bias is not None
        }
        homeostasis = self.learning.homeostasis
        activity = [] if homeostasis is None else self._activity(ends)
        contrasts = self._add_up(part.whole, sides, ends.x, [*biases.values(), *activity])
        share, factors = plan.span * part.batch, self.network.energy_factors
        for n, (coupling, d) in enumerate(zip(self.network.couplings, factors, strict=True)):
            factor = -d / (share * (levels(ends.x) if n == 0 else 1))
            flips.append(self._step_bop(n, sides, factor, contrasts.get(n)))
            if coupling.bias is not None:
                coupling.bias.grad = -d / share * biases[n]
        for optimizer in (self.optimizers.sgd, self.optimizers.scale_sgd):
            if optimizer is not None:
                optimizer.step()
        if homeostasis is not None:
            homeostasis.step(self.network, activity, part.batch)
        seen = replace(seen, flips=self._in_order(flips), nudged_steps=sum(ends.steps[1:]))
        self._tallies.append(part.counted(seen))

    def _add_up(
        self, whole: Whole | None, sides: Any, x: Tensor, sums: Sequence[Tensor]
    ) -> dict[int, Tensor]:
        """Where processes share a mini-batch: all contrasts, and other sums over it, added up."""
        if whole is None:
            return {}
        bits = self.network.neuron.binary
        contrasts = {n: self._contrast(n, sides) for n in range(len(self.network.couplings))}
        found = [(c, not bits or (n == 0 and x.is_floating_point())) for n, c in contrasts.items()]
        add_up_all(whole, [*found, *((each, not bits) for each in sums)])
        return contrasts

    @torch.no_grad()
    def evaluate(self, x: Tensor, labels: Tensor) -> Tally:
        """Read a mini-batch out of the free phase, without learning from it."""
        plan = self.learning.plan()
        free = replace(plan, phases=plan.phases[:1], margin=0.0)
        part = self.processes.part(x, labels)
        target = self.network.target(part.labels)
        ends = self._run(self._clamp(part.x), target, free)
        seen = metrics.tally(self.network, ends.free, part.labels, target)
        return self.processes.merge([part.counted(seen)])

    def join(self, processes: Processes) -> None:
        """Join other processes that share the training."""
        self.processes = processes

    def collect(self) -> Tally:
        """What was counted over the mini-batches trained on since the last call."""
        tallies, self._tallies = self._tallies, []
        return self.processes.merge(tallies)

    @property
    def kernel_threads(self) -> int:
        """How many threads the kernels run on."""
        return kernel_threads()

    # --- Bop, where the network's own tensors are

    def _step_bop(self, n: int, sides: Any, factor: float, contrast: Tensor | None) -> int:
        """One step of Bop on coupling n, and its scale's gradient; returns the flips."""
        coupling = self.network.couplings[n]
        signs, (bop, group) = coupling.signs, self._bop_of(n)
        at_rest = not bop.state[signs] and group["noise"] == 0
        rate, bound = bop.prepare(signs, group)
        state = bop.state[signs]
        if not state["momentum"].is_contiguous():
            state["momentum"] = state["momentum"].contiguous()
        flips, overlaps = self._flip(n, sides, Rates(factor, rate, bound, at_rest), contrast)
        state["flips"] += flips
        rule = coupling.synapses.scale_factor.double() * factor  # type: ignore[union-attr]
        overlaps = overlaps.double() if coupling.scale.dim() else overlaps.double().sum()
        coupling.scale.grad = (rule * overlaps).to(coupling.scale.dtype)
        return flips

    def _momentum(self, n: int) -> Tensor:
        return self._bop_of(n)[0].state[self.network.couplings[n].signs]["momentum"]

    def _bop_of(self, n: int) -> tuple[Bop, dict[str, Any]]:
        """Bop, and its group that coupling n's signs belong to."""
        bop, signs = self.optimizers.bop, self.network.couplings[n].signs
        for group in bop.param_groups if bop is not None else []:
            if any(p is signs for p in group["params"]):
                assert bop is not None
                return bop, group
        raise BinepError(f"engine {self.name!r}: no Bop claims the signs of coupling {n}")

    def _in_order(self, flips: list[int]) -> list[int]:
        """Flips, one count a coupling, in the order in which Bop has them."""
        bop, couplings = self.optimizers.bop, self.network.couplings
        count = {id(coupling.signs): f for coupling, f in zip(couplings, flips, strict=True)}
        return [count[id(p)] for g in (bop.param_groups if bop else []) for p in g["params"]]

    def _changed_signs(self) -> Iterator[int]:
        """The couplings whose signs were changed from outside, as by a restored checkpoint."""
        for n, coupling in enumerate(self.network.couplings):
            version = (coupling.signs.data_ptr(), coupling.signs._version)
            if self._seen[n] != version:
                if not coupling.signs.is_contiguous():
                    raise BinepError(
                        f"engine {self.name!r}: the signs of coupling {n} are not contiguous"
                    )
                self._seen[n] = version
                yield n
