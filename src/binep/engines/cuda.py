"""The same mini-batch on a GPU, as one CUDA graph: nothing is launched or read back one by one.

A relaxation is hundreds of small steps, so that eager torch spends its time launching kernels. Here
a whole mini-batch (both phases, gradients, Bop, biases, scales, counters) is recorded once and then
replayed. Between two matrix products stands one Triton kernel (see `cuda_kernels`).

Numbers. Real activations are sent in float16, 11 bits, and products added up in float32. Bits are
multiplied as int8 (dense) or in TF32 (convolutions), where signs, bits and pixels are exact, so
that everything agrees with the reference bit for bit, as long as sums stay below 2**24. States,
momenta and all element-wise arithmetic are float32, and so are gradients of real activations.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from binep.couplings import ConvPool, Coupling, Dense, Shape, levels
from binep.dynamics import EnergyBased, Prototypical
from binep.engines.cuda_kernels import (
    BLOCK,
    advance_kernel,
    bop_kernel,
    pool_kernel,
    unpool_kernel,
)
from binep.engines.reference import tensor_cores
from binep.errors import BinepError
from binep.gradients import EquilibriumPropagation, Learning
from binep.metrics import Tally
from binep.network import READOUTS, Network
from binep.neurons import HardSigmoid, Heaviside
from binep.optim import Bop, Optimizers
from binep.weights import BinaryWeight

EXACT_SUM = 2**24
DIGIT_BITS = 10
DIGITS = 3


def unsupported(network: Network, learning: Learning) -> str | None:
    """Why this engine cannot run a network, or None if it can."""
    if not isinstance(learning, EquilibriumPropagation):
        return "it only runs EquilibriumPropagation"
    if learning.tolerance is not None:
        return "it runs every step: learning.tolerance must not be set"
    if network.cost != "mse":
        return f"it has no readout for cost={network.cost!r}"
    if not isinstance(network.neuron, HardSigmoid | Heaviside):
        return f"it does not know {network.neuron}"
    if isinstance(network.dynamics, EnergyBased) and network.dynamics.dt != 0.5:
        return f"it only steps by dt=0.5, not {network.dynamics.dt}"
    return None


# --- couplings in the layout of the GPU ---------------------------------------------------------


def _dtype_of_bits(network: Network) -> torch.dtype:
    """int8 halves the traffic of wide layers, but its products want multiples of 8."""
    sizes = [size for shape in network.layer_shapes for size in shape]
    return torch.int8 if all(size % 8 == 0 for size in sizes) else torch.float16


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, added up in float32 or int32, whatever the inputs' precision."""
    if a.dtype == b.dtype == torch.int8:
        # The integer product wants more than 16 rows, and 8 columns at a time.
        if a.is_cuda and len(a) > 16 and a.shape[1] % 8 == 0 and b.shape[1] % 8 == 0:
            return torch._int_mm(a, b)  # type: ignore[attr-defined]
        a, b = a.half(), b.half()
    if a.is_cuda and a.dtype == b.dtype == torch.float16:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


class FastDense:
    """A dense coupling: its kernel in the dtype of activities, columns in their memory order."""

    def __init__(self, coupling: Dense, below_shape: Shape, dtype: torch.dtype) -> None:
        self.coupling, self.below_shape = coupling, below_shape
        kernel = coupling.synapses.kernel.detach()
        self.kernel = torch.empty_like(kernel, dtype=dtype)
        # An image below lies in memory channels last; the reference numbers it channels first.
        self.permuted = len(below_shape) == 3
        # Integer products want their second factor by columns: a copy for each direction.
        self.turned = (
            torch.empty_like(kernel.T.contiguous(), dtype=dtype) if dtype == torch.int8 else None
        )

    def begin(self) -> None:
        """Nothing to prepare for a mini-batch."""

    def refresh(self) -> None:
        """Copy the kernel from the coupling's parameter."""
        kernel = self.coupling.synapses.kernel.detach()
        if self.permuted:
            kernel = kernel.unflatten(1, self.below_shape).permute(0, 2, 3, 1).flatten(1)
        self.kernel.copy_(kernel)
        if self.turned is not None:
            self.turned.copy_(kernel.T)

    def up(self, below: Tensor) -> tuple[Tensor, None]:
        return product(_flat(below), self.kernel.T), None

    def down(self, above: Tensor, switches: Tensor | None) -> Tensor:
        """Unscaled sums: the scale is applied where the drive is put together."""
        return product(above, self.kernel if self.turned is None else self.turned.T)

    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None) -> Tensor:
        if below.dtype == torch.int8:
            below = below.half()
        above = above.to(below.dtype)
        contrast = product(above.T, _flat(below))
        if not self.permuted:
            return contrast
        channels, height, width = self.below_shape
        contrast = contrast.unflatten(1, (height, width, channels))
        return contrast.permute(0, 3, 1, 2).flatten(1).contiguous()


class FastConv:
    """A convolution and its pool, channels last, with switches of one byte."""

    def __init__(
        self, coupling: ConvPool, below_shape: Shape, dtype: torch.dtype, exact: bool
    ) -> None:
        self.coupling, self.dtype, self.exact = coupling, dtype, exact
        self.map_shape = [
            side + 2 * coupling.padding - coupling.kernel + 1 for side in below_shape[1:]
        ]
        self.above_shape = coupling.above_shape(below_shape)
        kernel = coupling.synapses.kernel.detach()
        self.kernel = torch.empty_like(kernel, dtype=dtype, memory_format=torch.channels_last)
        # The transposed convolution is a plain one with the kernel turned: cuDNN does those faster.
        self.turned = torch.empty_like(
            kernel.transpose(0, 1).contiguous(), dtype=dtype, memory_format=torch.channels_last
        )
        self.factors: list[Tensor] = []
        self.unit: Tensor | None = None

    def begin(self) -> None:
        """Take up the scales, which stay as they are during a mini-batch."""
        gain = self.coupling.synapses.gain.detach().expand(self.coupling.above)
        if self.exact:
            self.unit, self.factors = _digits(gain)
        else:
            self.factors = [gain.contiguous()]

    def refresh(self) -> None:
        """Copy the kernel from the coupling's parameter, once for each direction."""
        kernel = self.coupling.synapses.kernel.detach()
        self.kernel.copy_(kernel)
        self.turned.copy_(kernel.transpose(0, 1).flip(2, 3))

    def up(self, below: Tensor) -> tuple[Tensor, Tensor | None]:
        """Pooled sums and the winners' places, both (batch, *above), channels last."""
        kernel = (
            self.kernel if below.dtype == self.dtype else self.coupling.synapses.kernel.detach()
        )
        maps = F.conv2d(below, kernel, padding=self.coupling.padding)
        maps = maps.contiguous(memory_format=torch.channels_last)
        if self.coupling.pool == 1:
            return maps, None
        pooled = _channels_last(len(below), self.above_shape, torch.float32, maps.device)
        switches = _channels_last(len(below), self.above_shape, torch.uint8, maps.device)
        self._launch(pool_kernel, pooled.numel(), maps, pooled, switches)
        return pooled, switches

    def down(self, above: Tensor, switches: Tensor | None) -> Tensor:
        """The drive on the layer below, scales included."""
        if self.unit is None:
            return self._transpose(self._unpool(above, self.factors[0], switches, self.dtype))
        # Sums of float32 scales are exact in parts: three digits of each scale, added up apart as
        # integers, and put together in float64. See `ConvPool.down`.
        fields = [self._unpool(above, digit, switches, self.dtype) for digit in self.factors]
        parts = self._transpose(torch.cat(fields)).double().chunk(DIGITS)
        total = parts[0]
        for part in parts[1:]:
            total = total * 2**DIGIT_BITS + part
        return (total * self.unit).float().contiguous(memory_format=torch.channels_last)

    def correlate(self, below: Tensor, above: Tensor, switches: Tensor | None) -> Tensor:
        maps = self._unpool(above, None, switches, torch.float32)
        shape, padding = self.kernel.shape, self.coupling.padding
        return conv2d_weight(below.float(), shape, maps, padding=padding).contiguous()

    def _transpose(self, maps: Tensor) -> Tensor:
        padding = self.coupling.kernel - 1 - self.coupling.padding
        if padding < 0:
            drive = F.conv_transpose2d(maps, self.kernel, padding=self.coupling.padding)
        else:
            drive = F.conv2d(maps, self.turned, padding=padding)
        return drive.contiguous(memory_format=torch.channels_last)

    def _unpool(
        self, above: Tensor, factor: Tensor | None, switches: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        maps = _channels_last(
            len(above), (self.coupling.above, *self.map_shape), dtype, above.device
        )
        unused = maps if factor is None else factor
        place = above if switches is None else switches
        scaled = factor is not None
        self._launch(unpool_kernel, maps.numel(), above, unused, place, maps, SCALED=scaled)
        return maps

    def _launch(self, kernel: Any, count: int, *tensors: Tensor, **flags: Any) -> None:
        (height, width), (channels, rows, columns) = self.map_shape, self.above_shape
        launch(kernel, count, *tensors, count, height, width, rows, columns, channels,
               POOL=self.coupling.pool, **flags)  # fmt: skip


def _digits(gain: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A unit, (), and integers below 2**10 whose number in base 2**10 times the unit is `gain`.

    Exact for scales down to 1/64 of the largest, whose 24 bits fit into the 30 of three digits.
    """
    wide = gain.double()
    unit = torch.exp2(wide.max().log2().floor() + 1 - DIGIT_BITS * DIGITS)
    rest, digits = wide / unit, []
    for place in reversed(range(DIGITS)):
        digit = torch.floor(rest / 2 ** (DIGIT_BITS * place))
        rest = rest - digit * 2 ** (DIGIT_BITS * place)
        digits.append(digit.float())
    return unit, [digit.contiguous() for digit in digits]


def _channels_last(batch: int, shape: Sequence[int], dtype: torch.dtype, device: Any) -> Tensor:
    return torch.empty(
        (batch, *shape), dtype=dtype, device=device, memory_format=torch.channels_last
    )


def _flat(images: Tensor) -> Tensor:
    """(batch, features) in the order of memory."""
    return images if images.dim() == 2 else images.permute(0, 2, 3, 1).flatten(1)


def launch(kernel: Any, count: int, *arguments: Any, **flags: Any) -> None:
    """Run an element-wise kernel over `count` entries, without contracting multiply-adds."""
    grid = (-(-count // BLOCK),)
    kernel[grid](*arguments, BLOCK=BLOCK, enable_fp_fusion=False, **flags)


# --- the engine ---------------------------------------------------------------------------------


@dataclass
class Phase:
    """Layers on their way: states, activities, and the states of the step before."""

    state: list[Tensor]
    activity: list[Tensor]
    before: list[Tensor]


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
        convolutional = any(isinstance(c, ConvPool) for c in network.couplings)
        self.dtype = torch.float16
        if self.bits:
            self.dtype = torch.float32 if convolutional else _dtype_of_bits(network)
        self.precision = "exact" if self.bits else "float16"
        self.couplings = [
            self._fast(coupling, shape)
            for coupling, shape in zip(network.couplings, network.shapes[:-1], strict=True)
        ]
        self._check_exact()
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self._versions: list[int] = []
        count, integer = len(network.couplings), torch.int64
        # One array, so that all numbers of a mini-batch travel in one copy.
        self.scalars = torch.zeros(1 + 2 * count, device=self.device)
        self.beta, self.rates = self.scalars[:1], self.scalars[1:].view(count, 2)
        self.flips = torch.zeros(count, dtype=integer, device=self.device)
        self.counts = torch.zeros(len(READOUTS) + 1, dtype=integer, device=self.device)
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._tally = Tally()

    def _fast(self, coupling: Coupling, below_shape: Shape) -> FastDense | FastConv:
        if isinstance(coupling, ConvPool):
            return FastConv(coupling, below_shape, self.dtype, self.bits)
        assert isinstance(coupling, Dense)
        return FastDense(coupling, below_shape, self.dtype)

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
        self._take_up()
        self._set_scalars()
        self._run("train", self._train, self.network.check(x), labels)
        self._tally += Tally(
            samples=len(x),
            batches=1,
            free_steps=self.learning.free_steps,
            nudged_steps=self.learning.nudged_steps
            * (2 if self.learning.sign == "centered" else 1),
        )

    def evaluate(self, x: Tensor, labels: Tensor) -> Tally:
        """Read a mini-batch out of the free phase, without learning from it."""
        self._take_up()
        counts, sums = self.counts.clone(), self.sums.clone()
        self._run("evaluate", self._evaluate, self.network.check(x), labels)
        found = self._read(self.counts - counts, self.sums - sums, [])
        self.counts.copy_(counts)
        self.sums.copy_(sums)
        return found.having(samples=len(x), batches=1, free_steps=self.learning.free_steps)

    def collect(self) -> Tally:
        """What was counted over the mini-batches trained on since the last call."""
        flips = self.flips.tolist()
        binary = [flips[group["coupling"]] for group in self._groups()]
        found = self._tally + self._read(self.counts, self.sums, binary)
        for group in self._groups():
            state = self._bop.state[group["params"][0]]
            if state:
                state["flips"] += flips[group["coupling"]]
        for counter in (self.flips, self.counts, self.sums):
            counter.zero_()
        self._tally = Tally()
        return found

    def sync(self) -> None:
        """Parameters and momenta live in the network and the optimizers already."""

    def _read(self, counts: Tensor, sums: Tensor, flips: list[int]) -> Tally:
        *wrong, undecided = counts.tolist()
        loss, residual = sums.tolist()
        return Tally(
            loss=loss,
            wrong=dict(zip(READOUTS, wrong, strict=True)),
            undecided=undecided,
            residual=residual,
            flips=flips,
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

    def _set_scalars(self) -> None:
        """Beta's sign, gamma and tau of this mini-batch; the decay of the momenta."""
        sign = self.learning.draw_sign() if self.learning.sign == "random" else 1
        scalars = torch.zeros(len(self.scalars))
        scalars[0] = self.learning.beta * sign
        for group in self._groups():
            at = 1 + 2 * group["coupling"]
            scalars[at], scalars[at + 1] = self._bop.prepare(group["params"][0], group)
        self.scalars.copy_(scalars)

    # --- graphs

    def _run(self, kind: str, function: Callable[..., None], *inputs: Tensor) -> None:
        """Replay the graph for inputs of this shape, recording it first if there is none."""
        if self.device.type != "cuda":
            with tensor_cores(self.precision != "float32"):
                function(*inputs)
            return
        key: tuple[Any, ...] = (kind, *((tuple(x.shape), x.dtype) for x in inputs))
        if kind == "train":
            # What a graph has fixed: where the momenta lie, and SGD's rates.
            key += tuple(momentum.data_ptr() for momentum in self._momenta())
            key += tuple(g["lr"] for o in self._sgds() for g in o.param_groups)
        if key not in self._graphs:
            self._graphs[key] = self._record(function, inputs)
        graph, places = self._graphs[key]
        for place, x in zip(places, inputs, strict=True):
            place.copy_(x)
        graph.replay()

    def _record(
        self, function: Callable[..., None], inputs: Sequence[Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        """Record a graph; the warm-up that this needs leaves no trace in the state of training."""
        places = [x.clone() for x in inputs]
        kept = [(t, t.clone()) for t in self._state()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), tensor_cores(self.precision != "float32"):
            for _ in range(2):
                function(*places)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, before in kept:
            tensor.copy_(before)
        for fast in self.couplings:
            fast.refresh()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), tensor_cores(self.precision != "float32"):
            function(*places)
        self._versions = [c.synapses.kernel._version for c in self.network.couplings]
        return graph, places

    def _state(self) -> Iterator[Tensor]:
        """Every tensor that a mini-batch changes and that outlives it."""
        for parameter in self.network.parameters():
            yield parameter.detach()
        yield from self._momenta()
        for optimizer in self._sgds():
            yield from (state["clamped"] for state in optimizer.state.values() if state)
        yield from (self.flips, self.counts, self.sums)

    def _momenta(self) -> Iterator[Tensor]:
        states = [self._bop.state[group["params"][0]] for group in self._groups()]
        yield from (state["momentum"] for state in states if state)

    def _sgds(self) -> list[torch.optim.Optimizer]:
        return [o for o in (self.optimizers.sgd, self.optimizers.scale_sgd) if o is not None]

    # --- one mini-batch

    @torch.no_grad()
    def _train(self, x: Tensor, labels: Tensor) -> None:
        learning, target = self.learning, self._target(labels)
        self._begin_mini_batch()
        first, switches = self._clamp(x)
        free = self._relax(first, self._begin(len(x)), learning.free_steps)
        self._count(free, labels, target)
        nudged = self._relax(first, free, learning.nudged_steps, target, self.beta)
        base, span = free, learning.beta
        if learning.sign == "centered":
            base = self._relax(first, free, learning.nudged_steps, target, -self.beta)
            span = 2 * learning.beta
        self._learn(x, switches, nudged, base, abs(span))

    @torch.no_grad()
    def _evaluate(self, x: Tensor, labels: Tensor) -> None:
        self._begin_mini_batch()
        first, _ = self._clamp(x)
        free = self._relax(first, self._begin(len(x)), self.learning.free_steps)
        self._count(free, labels, self._target(labels))

    def _begin_mini_batch(self) -> None:
        for fast in self.couplings:
            fast.begin()

    def _target(self, labels: Tensor) -> Tensor:
        one_hot = torch.zeros(len(labels), self.network.classes, device=self.device)
        one_hot.scatter_(1, labels[:, None], 1.0)
        return one_hot.repeat_interleave(self.network.per_class, dim=1)

    def _clamp(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The constant drive on the first layer, and its pool's switches."""
        coupling, fast = self.network.couplings[0], self.couplings[0]
        # Real inputs are summed in full precision: once a mini-batch it costs nothing.
        with tensor_cores(not x.is_floating_point()):
            sums, switches = fast.up(self._input(x))
        gain = coupling.synapses.gain / levels(x)
        drive = coupling._per_output(gain) * sums
        if coupling.bias is not None:
            drive = drive + coupling._per_output(coupling.bias)
        return self._in_order(drive), switches

    def _input(self, x: Tensor) -> Tensor:
        """The input in the layout of activities: pixels in their dtype, real numbers in float32."""
        if x.is_floating_point():
            return self._in_order(x.float())
        return self._in_order(x.to(torch.float16 if self.dtype == torch.int8 else self.dtype))

    @staticmethod
    def _in_order(values: Tensor) -> Tensor:
        layout = torch.channels_last if values.dim() == 4 else torch.contiguous_format
        return values.contiguous(memory_format=layout)

    def _begin(self, batch: int) -> Phase:
        states, activities = [], []
        for shape in self.network.layer_shapes:
            state = torch.full((batch, *shape), self.network.initial_state, device=self.device)
            states.append(self._in_order(state))
            activities.append(self._in_order(self.network.neuron(state).to(self.dtype)))
        return Phase(states, activities, states)

    def _relax(
        self,
        first: Tensor,
        start: Phase,
        steps: int,
        target: Tensor | None = None,
        beta: Tensor | None = None,
    ) -> Phase:
        phase = start
        for _ in range(steps):
            phase = self._step(first, phase, target, beta, start.state[-1])
        return phase

    def _step(
        self, first: Tensor, now: Phase, target: Tensor | None, beta: Tensor | None, rest: Tensor
    ) -> Phase:
        """All layers move at once, from the states of the step before."""
        ups: list[tuple[Tensor, Tensor | None]] = [(first, None)]
        for fast, below in zip(self.couplings[1:], now.activity, strict=False):
            ups.append(fast.up(below))
        states, activities = [], []
        for n, (up, _) in enumerate(ups):
            above = self.couplings[n + 1] if n + 1 < len(ups) else None
            down = above.down(now.activity[n + 1], ups[n + 1][1]) if above is not None else None
            top = target is not None and above is None
            state, activity = torch.empty_like(now.state[n]), torch.empty_like(now.activity[n])
            self._advance(n, up, down, now.state[n], state, activity,
                          (target, beta, rest) if top else None)  # fmt: skip
            states.append(state)
            activities.append(activity)
        return Phase(states, activities, now.state)

    def _advance(
        self,
        n: int,
        up: Tensor,
        down: Tensor | None,
        state: Tensor,
        new_state: Tensor,
        activity: Tensor,
        nudge: tuple[Any, Any, Tensor] | None,
    ) -> None:
        coupling, network = self.network.couplings[n], self.network
        neuron, dynamics = network.neuron, network.dynamics
        gain, bias = coupling.synapses.gain.detach(), coupling.bias
        dense_down = down is not None and isinstance(self.couplings[n + 1], FastDense)
        down_gain = network.couplings[n + 1].synapses.gain.detach() if dense_down else gain
        target, beta, rest = nudge if nudge is not None else (state, gain, state)
        binary = isinstance(neuron, Heaviside)
        launch(
            advance_kernel,
            state.numel(),
            up,
            gain,
            gain if bias is None else bias.detach(),
            up if down is None else down,
            down_gain,
            state,
            target,
            rest,
            beta,
            new_state,
            activity,
            state.numel(),
            state.shape[1],
            neuron.threshold if binary else 0.5,
            neuron.sigma if binary else 0.5,
            1 / (2 * neuron.sigma) if binary else 1.0,
            FIRST=n == 0,
            CHANNEL_GAIN=gain.dim() > 0,
            HAS_BIAS=bias is not None,
            HAS_DOWN=down is not None,
            DENSE_DOWN=dense_down,
            ENERGY=isinstance(dynamics, EnergyBased),
            BINARY=binary,
            NUDGED=nudge is not None,
            CONSTANT=self.learning.nudge == "constant",
            CLAMPED=isinstance(dynamics, Prototypical) and dynamics.clamp_nudged,
        )

    def _count(self, free: Phase, labels: Tensor, target: Tensor) -> None:
        network, top = self.network, [free.state[-1]]
        scores = network.scores(top)
        counts = [(network.predict(top, readout) != labels).sum() for readout in READOUTS]
        self.counts += torch.stack([*counts, (scores == scores[:, :1]).all(1).sum()])
        changes = [(a - b).abs().max() for a, b in zip(free.state, free.before, strict=True)]
        loss = network.loss(top, target).double() * len(labels)
        self.sums += torch.stack([loss, torch.stack(changes).max().double()])

    def _learn(
        self, x: Tensor, first_switches: Tensor | None, nudged: Phase, base: Phase, span: float
    ) -> None:
        """Gradients of both phases in one product each, then every optimizer's step."""
        sign = torch.sign(self.beta)
        numbers = self._input(x if self.bits else x.float())
        plus, minus = ([numbers, *self._sent(side)] for side in (nudged, base))
        for n, coupling in enumerate(self.network.couplings):
            below = torch.cat([plus[n], minus[n]])
            above = torch.cat([plus[n + 1], -minus[n + 1]])
            known = first_switches if n == 0 else None
            exact = self.bits and not (n == 0 and x.is_floating_point())
            contrast = self._correlate(self.couplings[n], below, above, known, exact) * sign
            factor = -1 / (span * len(x) * (levels(x) if n == 0 else 1))
            self._apply(n, coupling, contrast, factor)
            if coupling.bias is not None:
                difference = coupling.correlate_bias(plus[n + 1]) - coupling.correlate_bias(
                    minus[n + 1]
                )
                coupling.bias.grad = -1 / (span * len(x)) * (difference * sign)
        for optimizer in self._sgds():
            optimizer.step()
        for fast in self.couplings:
            if not self._copied(fast):
                fast.refresh()

    def _sent(self, phase: Phase) -> list[Tensor]:
        """What learning reads: bits as they were sent, real activities in full precision."""
        return phase.activity if self.bits else [self.network.neuron(s) for s in phase.state]

    def _correlate(
        self,
        fast: FastDense | FastConv,
        below: Tensor,
        above: Tensor,
        known: Tensor | None,
        exact: bool,
    ) -> Tensor:
        """Both phases' correlations at once; in TF32 where that is exact, for bits and pixels."""
        with tensor_cores(exact):
            if isinstance(fast, FastDense):
                return fast.correlate(below, above, None)
            switches = torch.cat([known, known]) if known is not None else fast.up(below)[1]
            return fast.correlate(below, above, switches)

    def _apply(self, n: int, coupling: Coupling, contrast: Tensor, factor: float) -> None:
        synapses = coupling.synapses
        if not isinstance(synapses, BinaryWeight):
            synapses.set_gradient_from_contrast(contrast, factor)
            return
        if synapses.scale.requires_grad:
            synapses.set_scale_gradient(contrast, factor)
        fast, signs = self.couplings[n], synapses.signs.detach()
        copied = self._copied(fast)
        turned = fast.turned if copied and fast.turned is not None else fast.kernel
        launch(
            bop_kernel,
            signs.numel(),
            signs,
            fast.kernel,
            turned,
            self._bop.state[synapses.signs]["momentum"],
            contrast,
            self.rates[n],
            self.flips[n:],
            signs.numel(),
            signs[0].numel(),
            factor,
            COPY=copied,
            TURN=copied and fast.turned is not None,
        )

    @staticmethod
    def _copied(fast: FastDense | FastConv) -> bool:
        """Whether Bop can write the kernel's copy itself: it lies in memory as the signs do."""
        return isinstance(fast, FastDense) and not fast.permuted and fast.coupling.binary
