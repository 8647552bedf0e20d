"""A mini-batch on a GPU as one CUDA graph, without single launches or read-backs.

A relaxation has hundreds of small steps, in which eager torch spends its time launching kernels.
Here a whole mini-batch (all phases, gradients, Bop, biases, scales, counters) is recorded once and
then replayed; small or quiet networks relax inside one kernel (see `relaxers`).

Numbers. Activities are sent in float16 (real ones rounded to 11 bits; bits, signs and pixels are
exact in it) or int8 (bits, or differences of real ones, see `dense_delta`), and products added up
in float32 or int32, so that with bits everything agrees with the reference bit for bit, as long as
sums stay below 2**24. States, momenta and all element-wise arithmetic are float32.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from binep.core.couplings import gain_of, levels
from binep.core.gradients import EquilibriumPropagation, Learning, add_up_all
from binep.core.metrics import Tally
from binep.core.network import READOUTS, Network
from binep.core.optim import Bop, Optimizers
from binep.core.plan import PhasePlan
from binep.engines.cuda import CUDA
from binep.engines.cuda.graph import Graphs
from binep.engines.cuda.layout import lay_out
from binep.engines.cuda.learning import Learner, count
from binep.engines.cuda.relaxers.base import Phase, Relaxer, in_order
from binep.engines.cuda.relaxers.conv_delta import ConvDelta
from binep.engines.cuda.relaxers.conv_events import ConvEvents
from binep.engines.cuda.relaxers.dense_delta import DenseDelta
from binep.engines.cuda.relaxers.dense_events import DenseEvents
from binep.engines.cuda.relaxers.shallow import Shallow
from binep.engines.cuda.relaxers.stepwise import Stepwise
from binep.engines.processes import ALONE, Part, Processes
from binep.engines.torch.engine import tensor_cores

# The fastest first; the last one takes everything.
RELAXERS: list[type[Relaxer]] = [Shallow, DenseEvents, ConvEvents, DenseDelta, ConvDelta, Stepwise]
SLOTS = 64
AT_ONCE = 16


def choose_relaxer(network: Network, learning: Learning, optimizers: Optimizers) -> type[Relaxer]:
    """The fastest relaxer that takes a network."""
    parts = network, learning, optimizers
    return next(relaxer for relaxer in RELAXERS if not relaxer.takes.reasons(*parts))


class CudaEngine:
    """Runs mini-batches of EP as CUDA graphs, one for each shape of a mini-batch.

    Attributes:
        graphs: the recorded ones; None without a GPU, where everything runs eagerly.
    """

    name = "cuda"

    def __init__(self, network: Network, learning: Learning, optimizers: Optimizers) -> None:
        CUDA.check(self.name, network, learning, optimizers)
        self.network, self.learning, self.optimizers = network, learning, optimizers
        self.device = network.couplings[0].synapses.kernel.device
        relaxer = choose_relaxer(network, learning, optimizers)
        copies = relaxer.copies(network)
        self.dtype, self.couplings = copies.first, lay_out(network, copies)
        self.flips = torch.zeros(len(self.couplings), dtype=torch.int64, device=self.device)
        self.totals = torch.zeros(7, dtype=torch.float64, device=self.device)
        self.learner = Learner(network, self.couplings, optimizers, self.flips)
        self.numbers = self.learner.numbers
        margin = getattr(learning.plan(), "margin", 0.0)
        self.relaxer = relaxer(network, self.couplings, self.numbers.sign, self.dtype, margin)
        exact = network.neuron.binary and all(c.binary for c in network.couplings)
        self.precision = "exact" if exact else self.relaxer.real_precision
        # A mini-batch that is one launch a phase is over before the next one could be launched.
        self.at_once = AT_ONCE if relaxer.one_launch else 1
        self.rows = self.numbers.row.new_zeros(self.at_once, len(self.numbers.row))
        on_gpu = self.device.type == "cuda"
        self._pinned = torch.empty(SLOTS, *self.rows.shape, pin_memory=on_gpu)
        self._slot = 0
        self.graphs = Graphs() if on_gpu else None
        self._versions: list[int] = []
        self._tested: dict[int, tuple[int, float]] = {}
        self._tally = Tally()
        self.processes, self._parts = ALONE, list[tuple[Part, Tensor]]()

    # --- what every engine offers

    def train(self, x: Tensor, labels: Tensor) -> None:
        """One training step on a mini-batch; nothing is read back."""
        self.train_many(x, labels, len(x))

    def train_many(self, x: Tensor, labels: Tensor, size: int) -> None:
        """The same on up to `at_once` mini-batches of `size`, in one launch."""
        if len(x) > size and (self.processes.count > 1 or self._folds_within(len(x) // size)):
            for part in zip(x.split(size), labels.split(size), strict=True):
                self.train(*part)
            return
        self._take_up()
        if self.processes.count > 1:
            self._train_part(self.processes.part(self.network.check(x), labels))
            return
        batches = -(-len(x) // size)
        self._send([self._new_numbers() for _ in range(batches)])
        inputs = self.network.check(x), labels
        self._run(("train", size), partial(self._train, size), inputs)
        self._tally += Tally(samples=len(x), batches=batches)

    def evaluate(self, x: Tensor, labels: Tensor) -> Tally:
        """Read a mini-batch out of the free phase, without learning from it."""
        self._take_up()
        before, part = self.totals.clone(), self.processes.part(self.network.check(x), labels)
        self._run(("evaluate", len(part.x)), self._evaluate, (part.x, part.labels))
        found = self._read(self.totals - before)
        self.totals.copy_(before)
        found = found.replace(samples=len(part.x), batches=1)
        return self.processes.merge([part.counted(found)])

    def join(self, processes: Processes) -> None:
        """Join other processes: contrasts, their sum and Bop become separate steps."""
        self.processes, self.at_once = processes, 1

    def collect(self) -> Tally:
        """What was counted over the mini-batches trained on since the last call."""
        flips = self.flips.tolist()
        binary = [flips[group["coupling"]] for group in self._groups()]
        found = self._tally + self._read(self.totals).replace(flips=binary)
        if self._parts:
            found += self.processes.merge(
                [
                    part.counted(self._read(row).replace(samples=len(part.x), batches=1))
                    for part, row in self._parts
                ]
            )
            self._parts.clear()
        for group in self._groups():
            state = self._bop.state[group["params"][0]]
            if state:
                state["flips"] += flips[group["coupling"]]
        for counter in (self.flips, self.totals):
            counter.zero_()
        self._tally = Tally()
        return found

    def _read(self, totals: Tensor) -> Tally:
        average, single, undecided, loss, residual, free_steps, nudged_steps = totals.tolist()
        return Tally(
            loss=loss,
            wrong=dict(zip(READOUTS, (int(average), int(single)), strict=True)),
            undecided=int(undecided),
            residual=residual,
            free_steps=int(free_steps),
            nudged_steps=int(nudged_steps),
        )

    # --- between mini-batches

    @property
    def _bop(self) -> Bop:
        assert self.optimizers.bop is not None
        return self.optimizers.bop

    def _groups(self) -> list[dict[str, Any]]:
        return self._bop.param_groups if self.optimizers.bop is not None else []

    def _kernel_versions(self) -> list[int]:
        return [c.synapses.kernel._version for c in self.network.couplings]

    def _take_up(self) -> None:
        """Take up changes of parameters and momenta from outside, such as a restored checkpoint."""
        if self._kernel_versions() != self._versions:
            for fast in self.couplings:
                fast.refresh()
            self._versions = self._kernel_versions()
            self._tested.clear()

    def _draw_sign(self) -> int:
        assert isinstance(self.learning, EquilibriumPropagation)
        return self.learning.draw_sign()

    def _new_numbers(self) -> list[float]:
        """The `Numbers` of the next mini-batch; lets the momenta decay."""
        bop = [0.0] * self.numbers.bop.numel()
        for group in self._groups():
            n, signs = group["coupling"], group["params"][0]
            rate, threshold = self._bop.prepare(signs, group)
            # A momentum without a gradient can only flip its weight if it was never compared with
            # a threshold as low as this one.
            known = self._bop.state[signs]["momentum"].data_ptr(), group["tau"]
            bop[3 * n : 3 * n + 3] = rate, threshold, 0.0 if self._tested.get(n) == known else -1.0
            self._tested[n] = known
        return [self._draw_sign(), *bop, *(group["lr"] for _, group in self.learner.groups)]

    def _folds_within(self, count: int) -> bool:
        """Whether Bop will rescale a momentum before all of `count` mini-batches are done."""
        for group in self._groups():
            state = self._bop.state[group["params"][0]]
            decay = state["decay"] if state else 1.0
            if decay * (1 - group["gamma"] * group["lr"]) ** (count + 1) <= 0.5:
                return True
        return False

    def _send(self, rows: list[list[float]]) -> None:
        """Copy numbers to the device without waiting, from pinned buffers used in turn."""
        slot = self._slot % SLOTS
        if slot == 0 and self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._pinned[slot, : len(rows)] = torch.tensor(rows)
        self.rows.copy_(self._pinned[slot], non_blocking=True)
        self._slot += 1

    # --- graphs

    def _run(
        self, kind: tuple[Any, ...], function: Callable[..., None], inputs: Sequence[Tensor]
    ) -> None:
        """Replay the graph for inputs of this shape, recording it first if there is none."""
        with tensor_cores(True):
            if self.graphs is None:
                function(*inputs)
                return
            # Besides its inputs a graph has fixed where the momenta lie.
            momenta = () if kind[0] == "evaluate" else tuple(m.data_ptr() for m in self._momenta())
            self.graphs.run(kind, function, inputs, self._remember, momenta)
        self._versions = self._kernel_versions()

    def _remember(self) -> Callable[[], None]:
        """Remember all that a mini-batch changes; returns a function that restores it."""
        kept = [(tensor, tensor.clone()) for tensor in self._state()]

        def restore() -> None:
            for tensor, before in kept:
                tensor.copy_(before)
            for fast in self.couplings:
                fast.refresh()

        return restore

    def _state(self) -> Iterator[Tensor]:
        """Every tensor that a mini-batch changes for good."""
        for parameter in self.network.parameters():
            yield parameter.detach()
        yield from self._momenta()
        for optimizer in self.learner.sgds:
            yield from (state["clamped"] for state in optimizer.state.values() if state)
        yield from (self.flips, self.totals)

    def _momenta(self) -> Iterator[Tensor]:
        states = [self._bop.state[group["params"][0]] for group in self._groups()]
        yield from (state["momentum"] for state in states if state)

    # --- one mini-batch

    @torch.no_grad()
    def _train(self, size: int, x: Tensor, labels: Tensor) -> None:
        for row, *part in zip(self.rows, x.split(size), labels.split(size), strict=False):
            self.numbers.row.copy_(row)
            self._train_one(*part)

    def _train_one(self, x: Tensor, labels: Tensor) -> None:
        sides, span = self._relax_all(x, labels)
        self.learner.fill_and_flip(x, *sides, span)
        self.learner.step()
        for n, fast in enumerate(self.couplings):
            if not self.learner.flips_copies(n, x):
                fast.refresh()

    def _relax_all(self, x: Tensor, labels: Tensor) -> tuple[tuple[Any, ...], float]:
        """Run and count all phases; what `Learner` takes of them, and the plan's span."""
        assert isinstance(self.learning, EquilibriumPropagation)
        plan, numbers = self.learning.plan(), self._input(x)
        first, switches = self._clamp(x, numbers)
        ends: list[Phase] = []
        for phase in plan.phases:
            origin = None if phase.start is None else ends[phase.start]
            ends.append(self.relaxer.relax(first, phase, origin, labels))
        count(self.network, labels, ends, self.totals)
        plus, minus = ends[plan.plus], ends[plan.minus]
        places = [self.relaxer.switches(phase) for phase in (plus, minus)]
        return (numbers, switches, plus, minus, places), plan.span

    # --- a part of one: contrasts, what the others add, Bop

    def _train_part(self, part: Part) -> None:
        self._send([self._new_numbers()])
        self._run(("contrast", len(part.x)), self._fill_contrasts, (part.x, part.labels))
        self._parts.append((part, self.totals.clone()))
        self.totals.zero_()
        bits, real = self.network.neuron.binary, part.x.is_floating_point()
        found = [(c, not bits or (n == 0 and real)) for n, c in enumerate(self._contrasts)]
        add_up_all(part, found)
        self._run(("learn", part.batch, levels(part.x)), self._learn_from(part), ())

    @torch.no_grad()
    def _fill_contrasts(self, x: Tensor, labels: Tensor) -> None:
        self.numbers.row.copy_(self.rows[0])
        sides, _ = self._relax_all(x, labels)
        for place, found in zip(self._contrasts, self.learner.contrasts(x, *sides), strict=True):
            place.copy_(found)

    def _learn_from(self, part: Part) -> Callable[[], None]:
        span, steps = self.learning.plan().span * part.batch, levels(part.x)

        @torch.no_grad()
        def learn() -> None:
            self.learner.learn_from(self._contrasts, span, steps)
            self.learner.step()
            for fast in self.couplings:
                fast.refresh()

        return learn

    @cached_property
    def _contrasts(self) -> list[Tensor]:
        """The contrasts of all couplings, then of biases, while processes sum them."""
        couplings = self.network.couplings
        kernels = [torch.zeros_like(c.synapses.kernel.detach()) for c in couplings]
        biases = [torch.zeros_like(c.bias.detach()) for c in couplings if c.bias is not None]
        return [*kernels, *biases]

    @torch.no_grad()
    def _evaluate(self, x: Tensor, labels: Tensor) -> None:
        phase = PhasePlan(self.learning.free_steps)
        free = self.relaxer.relax(self._clamp(x, self._input(x))[0], phase, None, None)
        count(self.network, labels, [free], self.totals)

    def _clamp(self, x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        """The constant drive on the first layer, and its pool's switches."""
        for fast in self.couplings:
            fast.begin()
        coupling, fast = self.network.couplings[0], self.couplings[0]
        # Real inputs are summed in full precision: once a mini-batch it costs nothing.
        with tensor_cores(not x.is_floating_point()):
            sums, switches = fast.up(numbers)
        drive = coupling.per_output(gain_of(coupling.synapses, x)) * sums
        if coupling.bias is not None:
            drive = drive + coupling.per_output(coupling.bias)
        return in_order(drive), switches

    def _input(self, x: Tensor) -> Tensor:
        """The input in the layout of activities: pixels in their dtype, real numbers in float32."""
        if x.is_floating_point():
            return in_order(x.float())
        return in_order(x.to(torch.float16 if self.dtype == torch.int8 else self.dtype))
