"""Backpropagation through time on a GPU: a free phase, its last steps and the way back, one graph.

In prototypical dynamics the adjoint of a step is a step, too: errors `e = dL/d drive` travel
through the same couplings, with the switches of that step, and pass where its drive was inside of
the clamp. With layers n = 1..N and steps t = 1..K:

    s_n^t    = clamp(up_n(s_{n-1}^{t-1}) + down_{n+1}(s_{n+1}^{t-1}))
    e_n^t    = inside_n^t (up_n(e_{n-1}^{t+1}) + down_{n+1}(e_{n+1}^{t+1}))      no bias
    dL/dW_n  = sum over t of correlate(s_{n-1}^{t-1}, e_n^t) + correlate(e_{n-1}^t, s_n^{t-1})

Layers and times are a chessboard: the loss, at (N, K), depends on squares of its own colour alone.
So of the two correlations of a step one is zero, and an error may take the place of its layer's
activity one step before, which is of the other colour. What is left behind are the factors of both
correlations, side by side: all steps of a coupling are one product.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from binep.core.couplings import levels
from binep.core.dynamics import Prototypical
from binep.core.gradients import BackpropThroughTime
from binep.core.kinds import is_one_of
from binep.core.network import Network
from binep.core.optim import Optimizers
from binep.engines.cuda.convolution import Pooling, largest_in_pool, launch, pool_corner
from binep.engines.cuda.engine import CudaEngine
from binep.engines.cuda.layout import FastConv, FastDense, flat
from binep.engines.cuda.learning import count
from binep.engines.cuda.relaxers.base import Phase, all_dense, in_order, largest_change
from binep.engines.cuda.relaxers.stepwise import Down, Up, from_above, scaled
from binep.engines.cuda.rules import clamp
from binep.engines.processes import Processes
from binep.engines.torch.engine import tensor_cores
from binep.errors import BinepError


class Moved(NamedTuple):
    """A layer at some places of the tape, (places * batch, rows, columns, channels).

    Attributes:
        state: f32: on the way back errors.
        inside: uint8: whether the drive is in [0, 1]; written, or on the way back read.
        switches: uint8, the same of the pool below, if there is one.
    """

    state: Tensor
    inside: Tensor
    switches: Tensor | None


@triton.jit
def move_kernel(
    up,  # sums before pooling, if there are any; without a gain the whole drive
    down,
    moved,
    pooling,  # see `Pooling`; of a layer below which nothing is pooled only the channels
    period,  # after which the drive of the first layer begins again
    count,
    ADJOINT: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of one layer by what its neighbours send, forward or back."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = index < count
    channels, width = pooling.channels, pooling.width
    channel = index % channels
    drive = tl.zeros((BLOCK,), tl.float32)
    if up.sums is not None:
        if moved.switches is not None:
            corner = pool_corner(index, pooling, POOL)
            if ADJOINT:
                winner = tl.load(moved.switches + index, mask=there, other=0).to(tl.int32)
                corner += (winner // POOL * width + winner % POOL) * channels
                sums = tl.load(up.sums + corner, mask=there, other=0.0)
            else:
                sums, winner = largest_in_pool(up.sums + corner, there, width, channels, POOL)
                tl.store(moved.switches + index, winner.to(tl.uint8), mask=there)
        else:
            place = index if up.gain is not None else index % period
            sums = tl.load(up.sums + place, mask=there, other=0.0)
        drive = scaled(up, sums, channel, there)
    if down.sums is not None:
        drive = drive + from_above(down, tl.load(down.sums + index, mask=there, other=0.0))
    if ADJOINT:
        passes = tl.load(moved.inside + index, mask=there, other=0) > 0
        drive = tl.where(passes, drive, 0.0)
    else:
        state = clamp(drive)
        tl.store(moved.inside + index, (state == drive).to(tl.uint8), mask=there)
        drive = state
    tl.store(moved.state + index, drive, mask=there)


# --- products in float32, or TF32 where the caller allows it ------------------------------------


class Products:
    """Sums of a coupling for one mini-batch; columns and channels in the order of memory."""

    def __init__(self, fast: FastDense | FastConv) -> None:
        self.fast, self.gain = fast, fast.coupling.synapses.gain.detach()

    @cached_property
    def kernel(self) -> Tensor:
        if isinstance(self.fast, FastDense):
            return self.fast.in_memory_order()
        return in_order(self.fast.coupling.synapses.kernel.detach())

    def up(self, below: Tensor) -> Tensor:
        """Sums, before pooling."""
        if isinstance(self.fast, FastDense):
            return flat(below) @ self.kernel.T
        return in_order(F.conv2d(below, self.kernel, padding=self.fast.coupling.padding))

    def down(self, above: Tensor, switches: Tensor | None) -> Down:
        """Sums of a dense coupling, the drive of a convolution."""
        fast = self.fast
        if isinstance(fast, FastDense):
            return Down(above @ self.kernel, self.gain)
        maps = fast.unpool(above, fast.gain, switches, torch.float32)
        drive = F.conv_transpose2d(maps, self.kernel, padding=fast.coupling.padding)
        return Down(in_order(drive))


NO_UP = Up(None, None, None, tl.constexpr(False))


# --- forth and back -----------------------------------------------------------------------------


@dataclass
class Tape:
    """What the last steps of a mini-batch leave behind, one entry a layer or coupling.

    Attributes:
        first: the constant drive of the first layer.
        values: f32, (places, batch, *layer): activities, then errors as well.
        inside: uint8, like values: whether the drive that led there was in [0, 1].
        switches: uint8, (steps, batch, *layer above); None where nothing is pooled.
    """

    products: list[Products]
    first: Tensor
    values: list[Tensor]
    inside: list[Tensor]
    switches: list[Tensor | None]

    def switches_at(self, n: int, places: slice) -> Tensor | None:
        """Those that coupling n took at the steps after some places, one mini-batch."""
        switches = self.switches[n]
        return None if switches is None else switches[places].flatten(0, 1)


class Adjoint:
    """Runs the last steps of prototypical, hard-sigmoid layers and fills `.grad` through them.

    At place t of a tape lie the activities of time t. Dense layers never meet those of the other
    colour: there both colours move side by side, one step apart, as a mini-batch of twice the size.
    Place t then holds time t of the loss's colour, and the place after it time t - 1 of the other.
    Pools join the colours, since `down` takes its switches from the layer below.
    """

    def __init__(
        self,
        network: Network,
        couplings: Sequence[FastDense | FastConv],
        learning: BackpropThroughTime,
    ) -> None:
        self.network, self.couplings, self.learning = network, couplings, learning
        self.steps, self.top = learning.steps, len(couplings) - 1
        self.two_coloured = all_dense(network)

    @torch.no_grad()
    def differentiate(
        self,
        x: Tensor,
        numbers: Tensor,
        first: Tensor,
        switches: Tensor | None,
        state: Sequence[Tensor],
        target: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run the last steps and fill every `.grad`; returns the outputs and the residual, (1,).

        Args:
            x: the input. numbers: the same in the products' layout.
            first, switches: the first layer's constant drive, and those of its pool.
            state: s1..sN, where the last steps begin. target: (batch, outputs).
        """
        with tensor_cores(True):
            tape = self._tape(first, state)
            self._forth(tape)
            outputs = tape.values[-1][self.steps]
            residual = self._residual(tape)
            self._back(tape, outputs, target)
            self._fill_gradients(tape, x, numbers, switches)
        return outputs, residual

    def _coloured(self, n: int, time: int) -> bool:
        """Whether layer n has the loss's colour at a time."""
        return (self.steps - time - (self.top - n)) % 2 == 0

    def _reached(self, n: int, time: int) -> bool:
        """Whether an error can have come from the outputs to layer n by then."""
        return 0 <= n <= self.top and self.top - n <= self.steps - time

    def _tape(self, first: Tensor, state: Sequence[Tensor]) -> Tape:
        products = [Products(fast) for fast in self.couplings]
        places = self.steps + (3 if self.two_coloured else 1)
        values = [_in_order(places, s.shape, torch.float32, s.device) for s in state]
        inside = [torch.empty_like(v, dtype=torch.uint8) for v in values]
        switches = [
            _in_order(self.steps, s.shape, torch.uint8, s.device)
            if n > 0 and self.network.couplings[n].pool > 1
            else None
            for n, s in enumerate(state)
        ]
        for n, s in enumerate(state):
            late = self.two_coloured and not self._coloured(n, 0)
            torch.clamp(s, 0, 1, out=values[n][2 if late else 0])
        return Tape(products, first, values, inside, switches)

    def _schedule(self) -> Iterator[tuple[range, slice]]:
        """Layers that move, from the top, and the places they move to."""
        if not self.two_coloured:
            for t in range(1, self.steps + 1):
                yield range(self.top, -1, -1), slice(t, t + 1)
            return
        for t in range(1, self.steps + 2):
            highest = self.top if self._coloured(self.top, t) else self.top - 1
            # In the beginning the other colour waits, in the end the loss's is through.
            yield range(highest, -1, -2), slice(t + (t > self.steps), t + 1 + (t > 1))

    def _forth(self, tape: Tape) -> None:
        """Activities of all places."""
        for layers, places in self._schedule():
            before = slice(places.start - 1, places.stop - 1)
            for n in layers:
                self._move(tape, n, before, places, adjoint=False)

    def _residual(self, tape: Tape) -> Tensor:
        """The largest change in the last step."""
        last, after, before = self.steps, [], []
        for n, values in enumerate(tape.values):
            if not self.two_coloured:
                ends = last, last - 1
            else:
                ends = (last, last + 1) if self._coloured(n, last) else (last + 2, last - 1)
            after.append(values[ends[0]])
            before.append(values[ends[1]])
        return largest_change(after, before)

    def _back(self, tape: Tape, outputs: Tensor, target: Tensor) -> None:
        """Errors of time t at place t - 1, for all layers that have the loss's colour then."""
        for t in range(self.steps, 0, -1):
            for n, values in enumerate(tape.values):
                if not self._coloured(n, t):
                    continue
                if t == self.steps and n == self.top:
                    error = torch.sub(outputs, target, out=values[t - 1]).div_(len(target))
                    if self.learning.pulls_at == "state":
                        error.mul_(tape.inside[n][t])
                elif self._reached(n - 1, t + 1) or self._reached(n + 1, t + 1):
                    self._move(tape, n, slice(t, t + 1), slice(t - 1, t), adjoint=True)
                else:
                    values[t - 1].zero_()

    def _move(self, tape: Tape, n: int, before: slice, after: slice, *, adjoint: bool) -> None:
        """One step of layer n by its neighbours, from places of the tape to others.

        Args:
            adjoint: whether errors move, back through the step after `before`.
        """
        fast, moved, products = self.couplings[n], tape.values[n][after], tape.products
        up, down = NO_UP, Down()
        if n == 0 and not adjoint:
            up = NO_UP._replace(sums=tape.first)
        elif n > 0 and (not adjoint or self._reached(n - 1, before.stop)):
            sums = products[n].up(tape.values[n - 1][before].flatten(0, 1))
            gain, bias = products[n].gain, fast.coupling.bias
            bias = None if bias is None or adjoint else bias.detach()
            up = Up(sums, gain, bias, tl.constexpr(gain.dim() > 0))
        if n < self.top and (not adjoint or self._reached(n + 1, before.stop)):
            sent = tape.values[n + 1][before].flatten(0, 1)
            down = products[n + 1].down(sent, tape.switches_at(n + 1, before))
        switches = tape.switches_at(n, before)
        pooling, pool = Pooling(1, 1, 1, 1, moved.shape[2]), 1
        if isinstance(fast, FastConv) and switches is not None:
            pooling, pool = fast.pooling, fast.coupling.pool
        launch(
            move_kernel,
            moved.numel(),
            up,
            down,
            Moved(moved, tape.inside[n][before if adjoint else after], switches),
            pooling,
            tape.first.numel(),
            moved.numel(),
            ADJOINT=adjoint,
            POOL=pool,
        )

    def _fill_gradients(
        self, tape: Tape, x: Tensor, numbers: Tensor, switches: Tensor | None
    ) -> None:
        for n, coupling in enumerate(self.network.couplings):
            errors = tape.values[n][0 if self._coloured(n, 1) else 1 : self.steps : 2]
            if n == 0:
                # The input and its switches stay as they are.
                total = _in_order(1, errors.shape[1:], errors.dtype, errors.device)
                errors = torch.sum(errors, 0, keepdim=True, out=total)
                factors = numbers, errors[0] / levels(x), switches
            else:
                below, above = (v[: self.steps].flatten(0, 1) for v in tape.values[n - 1 : n + 1])
                factors = below, above, tape.switches_at(n, slice(self.steps))
            coupling.synapses.set_gradient(self.couplings[n].correlate(*factors))
            if coupling.bias is not None:
                coupling.bias.grad = errors.sum((0, 1, *range(3, errors.dim())))


def _in_order(places: int, shape: Sequence[int], dtype: torch.dtype, device: object) -> Tensor:
    """Room for mini-batches one after the other, images channels last: (places, *shape)."""
    batch, channels, *sides = shape
    room = torch.empty(places, batch, *sides, channels, dtype=dtype, device=device)
    return room.movedim(-1, 2)


class ThroughTimeEngine(CudaEngine):
    """Runs mini-batches of BPTT: they settle as in EP's free phase, then come the last steps.

    Prototypical dynamics have their adjoint written out, others are left to autograd.
    """

    def __init__(
        self, network: Network, learning: BackpropThroughTime, optimizers: Optimizers
    ) -> None:
        super().__init__(network, learning, optimizers)
        self.through_time, self.adjoint = learning, None
        if is_one_of(network.dynamics, {Prototypical}):
            self.adjoint = Adjoint(network, self.couplings, learning)
        self.precision += f", last steps {'float32' if self.adjoint is None else 'TF32'}"
        self.at_once = 1

    def join(self, processes: Processes) -> None:
        raise BinepError(
            f"engine 'cuda' trains by BPTT in one process, not {processes.count}; engine "
            "'reference' does"
        )

    def _draw_sign(self) -> int:
        return 1

    @torch.no_grad()
    def _train_one(self, x: Tensor, labels: Tensor) -> None:
        plan, numbers = self.through_time.plan(), self._input(x)
        first, switches = self._clamp(x, numbers)
        if plan.settle is not None:
            settled = self.relaxer.relax(first, plan.settle, None, None)
        else:
            none = torch.zeros(1, dtype=torch.int32, device=self.device)
            settled = Phase(self.relaxer.start(len(first))[0], [], none, none)
        # A target in place of labels: they would be checked, which a graph cannot wait for.
        target = self.relaxer.target(labels)
        if self.adjoint is not None:
            outputs, residual = self.adjoint.differentiate(
                x, numbers, first, switches, settled.state, target
            )
        else:
            with tensor_cores(False):
                last = self.through_time.differentiate(self.network, x, settled.state, target)
            outputs, residual = last.state[-1], last.residuals[-1:]
        free = Phase([outputs], [], residual, settled.ran.max().reshape(1) + plan.last)
        count(self.network, labels, [free], self.totals)
        for n, coupling in enumerate(self.network.couplings):
            if coupling.binary:
                assert coupling.signs.grad is not None
                self.learner.flip(n, coupling.signs.grad.contiguous(), 1.0)
        self.learner.step()
        for fast in self.couplings:
            fast.refresh()
