# pyright: reportCallIssue=false, reportArgumentType=false
"""The same mini-batch on a GPU, as one CUDA graph: nothing is launched or read back one by one.

A relaxation is hundreds of small steps, so that eager torch spends its time launching kernels. Here
a whole mini-batch (both phases, gradients, Bop, biases, scales, counters) is recorded once and then
replayed; small or quiet networks relax inside one kernel (see `relaxing`).

Numbers. Activities are sent in float16 (real ones rounded to 11 bits; bits, signs and pixels are
exact in it) or int8 (bits, or differences of real ones, see `deltas`), and products added up in
float32 or int32, so that with bits everything agrees with the reference bit for bit, as long as
sums stay below 2**24. States, momenta and all element-wise arithmetic are float32.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from binep.core.couplings import ConvPool, levels
from binep.core.dynamics import EnergyBased
from binep.core.gradients import EquilibriumPropagation, Learning
from binep.core.metrics import Tally
from binep.core.network import READOUTS, Network
from binep.core.neurons import HardSigmoid, Heaviside
from binep.core.optim import Bop, Optimizers
from binep.engines.cuda.layout import DIGIT_BITS, lay_out
from binep.engines.cuda.learning import count_kernel, tally_kernel
from binep.engines.cuda.relaxers.base import Phase, in_order, power_of_two, record
from binep.engines.cuda.relaxing import choose_relaxer
from binep.engines.cuda.updating import Updater
from binep.engines.torch.engine import tensor_cores
from binep.errors import BinepError

EXACT_SUM = 2**24
SLOTS = 64
AT_ONCE = 16


def unsupported(network: Network, learning: Learning) -> str | None:
    """Why this engine cannot run a network, or None if it can."""
    if not isinstance(learning, EquilibriumPropagation):
        return "it only runs EquilibriumPropagation"
    if network.cost != "mse":
        return f"it has no readout for cost={network.cost!r}"
    if not isinstance(network.neuron, HardSigmoid | Heaviside):
        return f"it does not know {network.neuron}"
    if isinstance(network.dynamics, EnergyBased) and network.dynamics.dt != 0.5:
        return f"it only steps by dt=0.5, not {network.dynamics.dt}"
    if learning.margin and not network.neuron.binary:
        return "it learns with a margin only where activations are binary"
    return None


# --- the engine ---------------------------------------------------------------------------------


class CudaEngine:
    """Runs mini-batches of EP as CUDA graphs, one for each batch size and rate."""

    name = "cuda"

    def __init__(self, network: Network, learning: Learning, optimizers: Optimizers) -> None:
        reason = unsupported(network, learning)
        if reason is not None:
            raise BinepError(f"engine 'cuda': {reason}")
        assert isinstance(learning, EquilibriumPropagation)
        self.network, self.learning, self.optimizers = network, learning, optimizers
        self.device = network.couplings[0].synapses.kernel.device
        self.bits = network.neuron.binary
        relaxer = choose_relaxer(network, learning)
        copies = relaxer.copies(network)
        self.dtype, self.couplings = copies.first, lay_out(network, copies)
        self._check_exact()
        count = len(network.couplings)
        # One array, so that all numbers of a mini-batch travel in one copy.
        self.scalars = torch.zeros(1 + 3 * count, device=self.device)
        self.beta, self.rates = self.scalars[:1], self.scalars[1:].view(count, 3)
        self.flips = torch.zeros(count, dtype=torch.int64, device=self.device)
        self.totals = torch.zeros(7, dtype=torch.float64, device=self.device)
        self.relaxer = relaxer(network, learning, self.couplings, self.beta, self.dtype)
        self.precision = "exact" if self.bits else self.relaxer.real_precision
        # A mini-batch that is one launch a phase is over before the next one could be launched.
        self.at_once = AT_ONCE if relaxer.one_launch else 1
        self.rows = self.scalars.new_zeros(self.at_once, len(self.scalars))
        pinned = self.device.type == "cuda"
        self._pinned = torch.empty(SLOTS, *self.rows.shape, pin_memory=pinned)
        self._slot = 0
        self.updater = Updater(
            network, self.couplings, optimizers.bop, self.beta, self.rates, self.flips
        )
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self._versions: list[int] = []
        self._tested: dict[int, tuple[int, float]] = {}
        self._tally = Tally()

    def _check_exact(self) -> None:
        """With bits, no sum may reach the integers that float32 cannot hold."""
        if not self.bits:
            return
        for n, coupling in enumerate(self.network.couplings):
            weight = coupling.synapses.kernel
            widest = max(weight[0].numel(), weight.shape[0] * weight[0, 0].numel())
            largest = widest * (2**DIGIT_BITS if isinstance(coupling, ConvPool) else 1)
            largest = max(largest, weight[0].numel() * 255 if n == 0 else 0)
            if largest >= EXACT_SUM:
                raise BinepError(
                    f"engine 'cuda': sums of coupling {n} can reach {largest}, exact are those "
                    f"below {EXACT_SUM}; use engine 'reference'"
                )

    # --- what every engine offers

    def train(self, x: Tensor, labels: Tensor) -> None:
        """One training step on a mini-batch; nothing is read back."""
        self.train_many(x, labels, len(x))

    def train_many(self, x: Tensor, labels: Tensor, size: int) -> None:
        """The same on up to `at_once` mini-batches of `size`, in one launch."""
        if len(x) > size and self._folds_within(len(x) // size):
            for part in zip(x.split(size), labels.split(size), strict=True):
                self.train(*part)
            return
        self._take_up()
        count = -(-len(x) // size)
        self._send([self._numbers() for _ in range(count)])
        self._run("train", partial(self._train, size), self.network.check(x), labels, size)
        self._tally += Tally(samples=len(x), batches=count)

    def evaluate(self, x: Tensor, labels: Tensor) -> Tally:
        """Read a mini-batch out of the free phase, without learning from it."""
        self._take_up()
        before = self.totals.clone()
        self._run("evaluate", self._evaluate, self.network.check(x), labels, len(x))
        found = self._read(self.totals - before)
        self.totals.copy_(before)
        return found.having(samples=len(x), batches=1)

    def collect(self) -> Tally:
        """What was counted over the mini-batches trained on since the last call."""
        flips = self.flips.tolist()
        binary = [flips[group["coupling"]] for group in self._groups()]
        found = self._tally + self._read(self.totals).having(flips=binary)
        for group in self._groups():
            state = self._bop.state[group["params"][0]]
            if state:
                state["flips"] += flips[group["coupling"]]
        for counter in (self.flips, self.totals):
            counter.zero_()
        self._tally = Tally()
        return found

    def sync(self) -> None:
        """Parameters and momenta live in the network and the optimizers already."""

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

    def _take_up(self) -> None:
        """Follow what others, such as a restored checkpoint, did to parameters and momenta."""
        versions = [c.synapses.kernel._version for c in self.network.couplings]
        if versions != self._versions:
            for fast in self.couplings:
                fast.refresh()
            self._versions = versions
            self._tested.clear()

    def _numbers(self) -> list[float]:
        """Beta's sign, gamma and tau of the next mini-batch; lets the momenta decay."""
        sign = self.learning.draw_sign() if self.learning.sign == "random" else 1
        numbers = [self.learning.beta * sign] + [0.0] * (len(self.scalars) - 1)
        for group in self._groups():
            at, signs = 1 + 3 * group["coupling"], group["params"][0]
            rate, threshold = self._bop.prepare(signs, group)
            # A momentum without a gradient can only flip its weight if it was never compared with
            # a threshold as low as this one.
            known = self._bop.state[signs]["momentum"].data_ptr(), group["tau"]
            numbers[at : at + 3] = rate, threshold, 0.0 if self._tested.get(at) == known else -1.0
            self._tested[at] = known
        return numbers

    def _folds_within(self, count: int) -> bool:
        """Whether Bop will rescale a momentum before all of `count` mini-batches are done."""
        for group in self._groups():
            state = self._bop.state[group["params"][0]]
            decay = state["decay"] if state else 1.0
            if decay * (1 - group["gamma"] * group["lr"]) ** (count + 1) <= 0.5:
                return True
        return False

    def _send(self, rows: list[list[float]]) -> None:
        """Copy numbers to the device without waiting for it: from pinned memory, used in turn."""
        slot = self._slot % SLOTS
        if slot == 0 and self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._pinned[slot, : len(rows)] = torch.tensor(rows)
        self.rows.copy_(self._pinned[slot], non_blocking=True)
        self._slot += 1

    # --- graphs

    def _run(
        self, kind: str, function: Callable[..., None], x: Tensor, labels: Tensor, size: int
    ) -> None:
        """Replay the graph for inputs of this shape, recording it first if there is none."""
        inputs = (x, labels)
        if self.device.type != "cuda" or self.learning.tolerance is not None:
            with tensor_cores(self.precision != "float32"):
                function(*inputs)
            return
        key: tuple[Any, ...] = (kind, size, x.shape, x.dtype)
        if kind == "train":
            # What a graph has fixed: where the momenta lie, and SGD's rates.
            key += tuple(momentum.data_ptr() for momentum in self._momenta())
            key += tuple(g["lr"] for o in self._sgds() for g in o.param_groups)
        if key not in self._graphs:
            self._graphs[key] = self._record(function, inputs)
        graph, places = self._graphs[key]
        for place, values in zip(places, inputs, strict=True):
            place.copy_(values)
        graph.replay()

    def _record(
        self, function: Callable[..., None], inputs: Sequence[Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        """Record a graph; the warm-up that this needs leaves no trace in the state of training."""
        places = [x.clone() for x in inputs]
        kept = [(t, t.clone()) for t in self._state()]

        def restore() -> None:
            for tensor, before in kept:
                tensor.copy_(before)
            for fast in self.couplings:
                fast.refresh()

        with tensor_cores(self.precision != "float32"):
            graph = record(lambda: function(*places), restore)
        self._versions = [c.synapses.kernel._version for c in self.network.couplings]
        return graph, places

    def _state(self) -> Iterator[Tensor]:
        """Every tensor that a mini-batch changes and that outlives it."""
        for parameter in self.network.parameters():
            yield parameter.detach()
        yield from self._momenta()
        for optimizer in self._sgds():
            yield from (state["clamped"] for state in optimizer.state.values() if state)
        yield from (self.flips, self.totals)

    def _momenta(self) -> Iterator[Tensor]:
        states = [self._bop.state[group["params"][0]] for group in self._groups()]
        yield from (state["momentum"] for state in states if state)

    def _sgds(self) -> list[torch.optim.Optimizer]:
        return [o for o in (self.optimizers.sgd, self.optimizers.scale_sgd) if o is not None]

    # --- one mini-batch

    @torch.no_grad()
    def _train(self, size: int, x: Tensor, labels: Tensor) -> None:
        for numbers, *part in zip(self.rows, x.split(size), labels.split(size), strict=False):
            self.scalars.copy_(numbers)
            self._train_one(*part)

    def _train_one(self, x: Tensor, labels: Tensor) -> None:
        learning, numbers = self.learning, self._input(x)
        first, switches = self._clamp(x, numbers)
        if learning.margin:
            free = self.relaxer.held_back(first, learning.free_steps, labels)
        else:
            free = self.relaxer.free(first, learning.free_steps)
        nudged = self.relaxer.nudged(first, free, labels, 1)
        base, span = free, learning.beta
        if learning.sign == "centered":
            base = self.relaxer.nudged(first, free, labels, -1)
            span = 2 * learning.beta
        self._count(labels, free, nudged, base)
        places = [self.relaxer.switches(phase) for phase in (nudged, base)]
        self.updater.update(x, numbers, switches, nudged, base, places, abs(span))
        for optimizer in self._sgds():
            optimizer.step()
        for n, fast in enumerate(self.couplings):
            if not self.updater.flips_copies(n, x):
                fast.refresh()

    @torch.no_grad()
    def _evaluate(self, x: Tensor, labels: Tensor) -> None:
        free = self.relaxer.free(self._clamp(x, self._input(x))[0], self.learning.free_steps)
        self._count(labels, free, free, free, learning=False)

    def _clamp(self, x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        """The constant drive on the first layer, and its pool's switches."""
        for fast in self.couplings:
            fast.begin()
        coupling, fast = self.network.couplings[0], self.couplings[0]
        # Real inputs are summed in full precision: once a mini-batch it costs nothing.
        with tensor_cores(not x.is_floating_point()):
            sums, switches = fast.up(numbers)
        gain = coupling.synapses.gain / levels(x)
        drive = coupling._per_output(gain) * sums
        if coupling.bias is not None:
            drive = drive + coupling._per_output(coupling.bias)
        return in_order(drive), switches

    def _input(self, x: Tensor) -> Tensor:
        """The input in the layout of activities: pixels in their dtype, real numbers in float32."""
        if x.is_floating_point():
            return in_order(x.float())
        return in_order(x.to(torch.float16 if self.dtype == torch.int8 else self.dtype))

    def _count(
        self, labels: Tensor, free: Phase, nudged: Phase, base: Phase, learning: bool = True
    ) -> None:
        """Add the mini-batch to the totals."""
        network, batch, top = self.network, len(labels), free.state[-1]
        found = torch.empty(batch, 4, dtype=torch.float64, device=self.device)
        count_kernel[(batch,)](
            top,
            top.stride(0),
            labels,
            found,
            network.classes,
            network.per_class,
            CLASSES=power_of_two(network.classes),
            PER_CLASS=power_of_two(network.per_class),
        )
        tally_kernel[(1,)](
            found,
            free.residual,
            free.ran,
            nudged.ran,
            base.ran,
            self.totals,
            batch,
            len(free.residual),
            LEARNING=learning,
            CENTERED=self.learning.sign == "centered",
            BATCH=power_of_two(batch),
        )
