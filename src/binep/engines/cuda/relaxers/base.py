"""What all relaxers share: what they declare, where a phase begins, and where it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
import triton.language as tl
from torch import Tensor

from binep.core.couplings import Dense
from binep.core.network import Network
from binep.core.plan import PhasePlan
from binep.engines.base import Capabilities
from binep.engines.cuda.layout import Copies, FastConv, FastDense
from binep.engines.cuda.rules import Neuron, Target


@dataclass
class Phase:
    """Where a phase ended.

    Attributes:
        state: s1..sN; of bits alone only sN is a state, the others are bits. activity: what they
            send, in the products' dtype.
        residual: f32, the last step's largest change, one for each sample or one for all.
        ran: int32, like `residual`: steps after which nothing moved any more.
        carried: what the relaxer keeps for the next phase.
    """

    state: list[Tensor]
    activity: list[Tensor]
    residual: Tensor
    ran: Tensor
    carried: Any = None


@dataclass
class Relaxer:
    """A way to relax a network's layers on the GPU.

    Attributes:
        takes: the networks that it can relax.
        one_launch: whether a phase is one launch. real_precision: of real activities as sent.
        couplings: in the layout of the GPU. dtype: of what the first layers send.
        sign: f32, (1,): the drawn sign of beta. margin: see `ContrastPlan`.
    """

    network: Network
    couplings: list[FastDense | FastConv]
    sign: Tensor
    dtype: torch.dtype
    margin: float = 0.0

    takes: ClassVar[Capabilities] = Capabilities()
    one_launch: ClassVar[bool] = False
    real_precision = "float16"

    def __post_init__(self) -> None:
        """Prepare what a phase reads; nothing by default."""

    @staticmethod
    def copies(network: Network) -> Copies:
        """Which copies of the kernels it reads."""
        return Copies()

    def relax(
        self, first: Tensor, phase: PhasePlan, origin: Phase | None, labels: Tensor | None
    ) -> Phase:
        """Run a phase of a mini-batch, driven by `first`, (batch, *layer).

        Args:
            origin: the end of the phase in which this one begins; None: the initial state.
            labels: (batch,), of a mini-batch to learn; None where it is only read out.
        """
        raise NotImplementedError

    def switches(self, phase: Phase) -> dict[int, Tensor | None]:
        """Winners' positions at a phase's end, for each convolution between layers that relax."""
        return {
            n: fast.up(phase.activity[n - 1])[1]
            for n, fast in enumerate(self.couplings)
            if n > 0 and isinstance(fast, FastConv)
        }

    @property
    def device(self) -> torch.device:
        return self.sign.device

    def start(self, batch: int) -> tuple[list[Tensor], list[Tensor]]:
        """States and activities at t = 0."""
        states, activities = [], []
        for shape in self.network.layer_shapes:
            state = torch.full((batch, *shape), self.network.initial_state, device=self.device)
            states.append(in_order(state))
            activities.append(in_order(self.network.neuron(state).to(self.dtype)))
        return states, activities

    @cached_property
    def neuron(self) -> Neuron:
        return Neuron.of(self.network)

    def target_of(self, phase: PhasePlan, origin: Phase | None, labels: Tensor | None) -> Target:
        """The effect of labels on the outputs in a phase."""
        margin = self.margin or None
        if labels is None or (margin is None and not phase.nudged):
            return Target()
        bits = self.network.dynamics.bits
        target = Target(labels, self.network.per_class, margin, BITS=tl.constexpr(bits))
        if not phase.nudged:
            return target
        assert origin is not None
        rest = origin.state[-1] if phase.constant and not bits else None
        return target._replace(beta=phase.beta, sign=self.sign, rest=rest)

    def target(self, labels: Tensor) -> Tensor:
        one_hot = torch.zeros(len(labels), self.network.classes, device=self.device)
        one_hot.scatter_(1, labels[:, None], 1.0)
        return one_hot.repeat_interleave(self.network.per_class, dim=1)


def all_dense(network: Network) -> bool:
    return all(isinstance(coupling, Dense) for coupling in network.couplings)


def per_sample(first: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the residual and the number of steps of every sample."""
    residual = first.new_empty(len(first))
    return residual, torch.empty_like(residual, dtype=torch.int32)


def rest_of_bits(changed: Tensor) -> tuple[Tensor, Tensor]:
    """Residual and steps of every sample, from whether a bit changed: int32, (steps, batch)."""
    ran = (changed.sum(0, dtype=torch.int32) + 1).clamp(max=len(changed))
    return changed[-1].float(), ran


def largest_change(after: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
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
