"""What all ways of relaxing share: where a phase ends, where it begins, how it is recorded."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from binep.core.couplings import Dense
from binep.core.gradients import EquilibriumPropagation
from binep.core.network import Network
from binep.core.neurons import Heaviside
from binep.engines.cuda.layout import Copies, FastConv, FastDense, Tensors

Nudge = tuple[Tensor, Tensor, Tensor]  # target, signed beta, the state a constant nudge pulls at


@dataclass
class Phase:
    """Where a phase ended.

    Attributes:
        state: s1..sN. activity: what they send, in the products' dtype.
        residual: f32, the last step's largest change, one for each sample or one for all.
        ran: int32, like `residual`: steps after which nothing moved any more.
        carried: what `Events` (`Sums`), `ConvEvents` (`Kept`, `KeptSums`), `Deltas` (`Traffic`) and
            `Moving` (`Standing`) go on with.
    """

    state: list[Tensor]
    activity: list[Tensor]
    residual: Tensor
    ran: Tensor
    carried: Any = None


@dataclass
class Sums(Tensors):
    """Sums over signs and bits, int32, (batch, total), kept from step to step."""

    up: Tensor
    down: Tensor
    state: Tensor
    bits: Tensor


@dataclass
class Relaxer:
    """A network's layers in the layout of the GPU, ready to relax."""

    network: Network
    learning: EquilibriumPropagation
    couplings: list[FastDense | FastConv]
    beta: Tensor  # f32, (1,), signed
    dtype: torch.dtype

    one_launch: ClassVar[bool] = False  # whether a phase is

    @property
    def real_precision(self) -> str:
        """In what real activities are sent."""
        return "float16"

    @staticmethod
    def copies(network: Network) -> Copies:
        """Those of the kernels that it reads."""
        return Copies()

    @staticmethod
    def fits(network: Network) -> bool:
        """Whether this way of relaxing can run a network."""
        raise NotImplementedError

    def free(self, first: Tensor, steps: int) -> Phase:
        """Let a mini-batch settle, driven by `first`, (batch, *layer)."""
        raise NotImplementedError

    def held_back(self, first: Tensor, steps: int, labels: Tensor) -> Phase:
        """The same with the right class held back by a margin: for networks of bits."""
        raise NotImplementedError

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        """Go on from there under a nudge; `direction` multiplies beta."""
        raise NotImplementedError

    def switches(self, phase: Phase) -> dict[int, Tensor | None]:
        """Winners' places at a phase's end, of each convolution between layers that relax."""
        return {
            n: fast.up(phase.activity[n - 1])[1]
            for n, fast in enumerate(self.couplings)
            if n > 0 and isinstance(fast, FastConv)
        }

    @property
    def device(self) -> torch.device:
        return self.beta.device

    def start(self, batch: int) -> tuple[list[Tensor], list[Tensor]]:
        """States and activities at t = 0."""
        states, activities = [], []
        for shape in self.network.layer_shapes:
            state = torch.full((batch, *shape), self.network.initial_state, device=self.device)
            states.append(in_order(state))
            activities.append(in_order(self.network.neuron(state).to(self.dtype)))
        return states, activities

    def target(self, labels: Tensor) -> Tensor:
        one_hot = torch.zeros(len(labels), self.network.classes, device=self.device)
        one_hot.scatter_(1, labels[:, None], 1.0)
        return one_hot.repeat_interleave(self.network.per_class, dim=1)

    def handicap(self, labels: Tensor) -> Tensor | None:
        """What the outputs have to win against while the network learns, if there is a margin."""
        return self.learning.handicap(self.target(labels))

    @cached_property
    def neuron_numbers(self) -> dict[str, float]:
        """The window of the neuron, as the kernels want it."""
        neuron = self.network.neuron
        binary = isinstance(neuron, Heaviside)
        return {
            "threshold": neuron.threshold if binary else 0.5,
            "sigma": neuron.sigma if binary else 0.5,
            "slope": 1 / (2 * neuron.sigma) if binary else 1.0,
        }


# Recording in two threads at once would mix their launches.
_recording = threading.Lock()


def record(
    function: Callable[[], None], restore: Callable[[], None] = lambda: None
) -> torch.cuda.CUDAGraph:
    """A graph of what a function launches, after a warm-up that compiles its kernels.

    Args:
        restore: undoes what the warm-up changed.
    """
    with _recording:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        restore()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            function()
    return graph


def all_dense(network: Network) -> bool:
    return all(isinstance(coupling, Dense) for coupling in network.couplings)


def per_sample(first: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the residual and the number of steps of every sample."""
    residual = first.new_empty(len(first))
    return residual, torch.empty_like(residual, dtype=torch.int32)


def largest_change(after: list[Tensor], before: list[Tensor]) -> Tensor:
    """The largest change of any neuron in any sample, (1,)."""
    changes = [(a - b).abs().max() for a, b in zip(after, before, strict=True)]
    return torch.stack(changes).max().reshape(1)


def in_order(values: Tensor) -> Tensor:
    """Channels last for images, rows for the rest."""
    layout = torch.channels_last if values.dim() == 4 else torch.contiguous_format
    return values.contiguous(memory_format=layout)


def power_of_two(count: int) -> int:
    """The next power of two, as the sizes of Triton's blocks are."""
    return 1 << (count - 1).bit_length()
