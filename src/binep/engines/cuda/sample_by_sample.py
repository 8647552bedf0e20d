# pyright: reportCallIssue=false
"""Relaxer a sample from its first step to its last in one launch, see `settling`."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from binep.core.dynamics import Prototypical
from binep.core.network import Network
from binep.engines.cuda.layout import Copies
from binep.engines.cuda.relaxers.base import (
    Phase,
    Relaxer,
    Sums,
    all_dense,
    per_sample,
    power_of_two,
)
from binep.engines.cuda.settling import events_kernel, thin_kernel
from binep.engines.cuda.stepwise import BUSY_STEPS, Stepwise

OUTPUTS = 16  # as many as a word has room for
WIDTH = 16384  # hidden neurons that fit into the registers of a program
WIDE = 1024  # from here on a flip's row of weights costs more than a share of a matrix product


class Thin(Relaxer):
    """One hidden layer and few outputs, binary weights, real activations: a phase is one launch."""

    one_launch = True

    @staticmethod
    def fits(network: Network) -> bool:
        return (
            all_dense(network)
            and len(network.couplings) == 2
            and network.layer_shapes[0][0] <= WIDTH
            and network.layer_shapes[1][0] <= OUTPUTS
            and network.couplings[1].binary
            and isinstance(network.dynamics, Prototypical)
        )

    def free(self, first: Tensor, steps: int) -> Phase:
        return self._run(first, steps)

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        return self._run(first, self.learning.nudged_steps, free, labels, direction)

    def _run(
        self,
        first: Tensor,
        steps: int,
        start: Phase | None = None,
        labels: Tensor | None = None,
        direction: int = 1,
    ) -> Phase:
        coupling, dynamics = self.network.couplings[1], self.network.dynamics
        gain, bias = coupling.synapses.gain.detach(), coupling.bias
        (batch, width), outputs = first.shape, self.network.layer_shapes[-1][0]
        hidden, top = torch.empty_like(first), first.new_empty(batch, outputs)
        residual, ran = per_sample(first)
        thin_kernel[(batch,)](
            first,
            self.couplings[1].kernel,
            gain,
            gain if bias is None else bias.detach(),
            ran if labels is None else labels,
            self.beta,
            *((hidden, top) if start is None else start.state),
            hidden,
            top,
            residual,
            ran,
            width,
            self.network.initial_state,
            steps,
            self.network.per_class,
            direction,
            HAS_BIAS=bias is not None,
            NUDGED=start is not None,
            CONSTANT=self.learning.nudge == "constant",
            CLAMPED=isinstance(dynamics, Prototypical) and dynamics.clamp_nudged,
            RAW=start is not None and self.network.sends_state,
            OUTPUTS=outputs,
            WIDTH=power_of_two(width),
            num_warps=8 if width > 1024 else 4,
        )
        return Phase([hidden, top], [hidden, top], residual, ran)


@dataclass
class Events(Relaxer):
    """Dense networks of bits: after a few busy steps, only neurons that flip cause work."""

    sizes: list[int] = field(init=False)
    table: Tensor = field(init=False)

    one_launch = True

    @staticmethod
    def copies(network: Network) -> Copies:
        # int8 halves the traffic of wide layers, but its products want multiples of 8.
        sizes = [size for shape in network.layer_shapes for size in shape]
        dtype = torch.int8 if all(size % 8 == 0 for size in sizes) else torch.float16
        return Copies(dtype, dtype, turned=True)

    @staticmethod
    def fits(network: Network) -> bool:
        return all_dense(network) and len(network.couplings) > 1 and network.neuron.binary

    def __post_init__(self) -> None:
        self.sizes = [shape[0] for shape in self.network.layer_shapes]
        rows, neuron = [], 0
        for size, fast in zip(self.sizes, self.couplings, strict=True):
            rows.append([size, neuron, fast.room.at])
            neuron += size
        self.kernels, self.turned, _ = self.couplings[1].room
        self.table = torch.tensor(rows, dtype=torch.int32, device=self.device)
        self.busy_steps = BUSY_STEPS if min(self.sizes) >= WIDE else 2
        self.stepwise = Stepwise(self.network, self.learning, self.couplings, self.beta, self.dtype)

    def free(self, first: Tensor, steps: int) -> Phase:
        return self._start(first, steps, None)

    def held_back(self, first: Tensor, steps: int, labels: Tensor) -> Phase:
        return self._start(first, steps, labels)

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        sums: Sums = free.carried.clone()
        rest = free.state[-1].contiguous()
        return self._run(first, sums, self.learning.nudged_steps, labels, direction, rest)

    def _start(self, first: Tensor, steps: int, labels: Tensor | None) -> Phase:
        state, activity = self.start(len(first))
        handicap = None if labels is None else self.handicap(labels)
        busy = min(self.busy_steps, steps - 1)
        for _ in range(busy):
            state, activity = self.stepwise.step(first, state, activity, handicap=handicap)
        return self._run(first, self._add_up(state, activity), steps - busy, labels, already=busy)

    def _add_up(self, state: list[Tensor], activity: list[Tensor]) -> Sums:
        """All sums at some activity, from scratch."""
        batch, integer = len(state[0]), torch.int32
        none = [torch.zeros(batch, size, dtype=integer, device=self.device) for size in self.sizes]
        ups, downs = [none[0]], []
        for n, fast in enumerate(self.couplings[1:]):
            ups.append(fast.up(activity[n])[0].to(integer))
            downs.append(fast.down(activity[n + 1], None).to(integer))
        return Sums(*(torch.cat(parts, 1) for parts in (ups, [*downs, none[-1]], state, activity)))

    def _run(
        self,
        first: Tensor,
        sums: Sums,
        steps: int,
        labels: Tensor | None,
        direction: int = 1,
        rest: Tensor | None = None,
        already: int = 0,
    ) -> Phase:
        """Steps from some sums: nudged, if there is a `rest`; held back, if there is a margin."""
        couplings, (batch, total) = self.network.couplings, sums.state.shape
        residual, ran = per_sample(first)
        events = torch.empty_like(sums.up)
        counts = torch.zeros(batch, 2, len(self.sizes), dtype=torch.int32, device=self.device)
        gains = torch.stack([coupling.synapses.gain.detach() for coupling in couplings])
        events_kernel[(batch,)](
            first,
            sums.up,
            sums.down,
            sums.state,
            sums.bits,
            events,
            counts,
            gains,
            self._biases(),
            self.kernels,
            self.turned,
            self.table,
            ran if labels is None else labels,
            self.beta,
            sums.state if rest is None else rest,
            residual,
            ran,
            total,
            steps,
            self.network.per_class,
            direction,
            self.learning.margin,
            *self.neuron_numbers.values(),
            LAYERS=len(self.sizes),
            NUDGED=rest is not None,
            HELD=labels is not None and self.learning.margin > 0,
            CONSTANT=self.learning.nudge == "constant",
            PACKED=self.dtype == torch.int8,
            BLOCK=min(4096, power_of_two(max(self.sizes))),
            num_warps=16,
            enable_fp_fusion=False,
        )
        return Phase(
            list(sums.state.split(self.sizes, 1)),
            list(sums.bits.split(self.sizes, 1)),
            residual,
            ran + already,
            sums,
        )

    def _biases(self) -> Tensor:
        parts = []
        for size, coupling in zip(self.sizes, self.network.couplings, strict=True):
            bias = coupling.bias
            parts.append(torch.zeros(size, device=self.device) if bias is None else bias.detach())
        return torch.cat(parts)
