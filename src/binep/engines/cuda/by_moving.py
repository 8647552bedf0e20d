# pyright: reportCallIssue=false, reportArgumentType=false
"""Relaxing convolutional networks of real activations, sample by sample until rest; see `moving`."""

from dataclasses import dataclass
from itertools import accumulate
from math import gcd, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from binep.couplings import ConvPool, Dense
from binep.dynamics import Prototypical
from binep.engines.cuda.couplings import FastConv, Tensors, flat
from binep.engines.cuda.moving import compact_kernel, convolve_kernel, pool_and_top_kernel
from binep.engines.cuda.packing import padded
from binep.engines.cuda.phases import Phase, Relaxing, power_of_two
from binep.network import Network
from binep.neurons import HardSigmoid

THIN = 16  # outputs at most
UNIT = 2.0**-11  # between neighbouring numbers of float16 just below 1: less is not sent
BLOCK = 512  # neurons that a program pools
EVERY = 2  # steps after which samples at rest are left out


class Task(NamedTuple):
    """One convolution, up or down, of one coupling; places are those of a sample.

    Attributes:
        read, target: where what it reads and where its sums begin; of downs, the layer that moves.
        weights: where its kernel begins. channel_at: the first channel's gain and bias.
        channels, height, width: of what is read. outputs, rows, columns: of the sums.
        layer_at: of ups, the layer above.
    """

    read: int
    weights: int
    target: int
    channel_at: int
    channels: int
    outputs: int
    height: int
    width: int
    padding: int
    rows: int
    columns: int
    layer_at: int


class Tile(NamedTuple):
    """What one program of `convolve_kernel` adds up: rows x outputs, by `depth` terms at a time."""

    rows: int
    outputs: int
    depth: int
    warps: int
    stages: int

    @classmethod
    def fitting(cls, tasks: list[Task]) -> "Tile":
        """One that divides the outputs and channels of all tasks."""
        outputs = gcd(128, *(task.outputs for task in tasks))
        return cls(64, outputs, gcd(64, *(task.channels for task in tasks)), 4, 4)

    def programs(self, tasks: list[Task], batch: int) -> int:
        return sum(
            -(-batch * task.rows * task.columns // self.rows) * (task.outputs // self.outputs)
            for task in tasks
        )


@dataclass
class Standing(Tensors):
    """Where a mini-batch stands, all layers side by side; see `moving`."""

    state: Tensor
    sent: Tensor


@dataclass
class Moving(Relaxing):
    """Convolutional networks of real, prototypical neurons below a few outputs."""

    real_precision = "float16 until rest"

    def __post_init__(self) -> None:
        shapes = self.network.layer_shapes
        self.sizes = [prod(shape) for shape in shapes]
        *self.offsets, total = accumulate(self.sizes, initial=0)
        self.total = padded(total)
        inner = [fast for fast in self.couplings[1:-1] if isinstance(fast, FastConv)]
        *self.map_at, self.map_total = accumulate(
            (fast.coupling.above * prod(fast.map_shape) for fast in inner), initial=0
        )
        self.kernel, self.pool = inner[0].coupling.kernel, inner[0].coupling.pool
        *self.channel_at, _ = accumulate((shape[0] for shape in shapes[:-1]), initial=0)
        self.weights = self._join_kernels(inner)
        # From the outputs down: the longest sums first, so that none is begun last.
        pairs = [self._tasks(n, fast) for n, fast in enumerate(inner, 1)][::-1]
        self.ups, self.downs = ([pair[way] for pair in pairs] for way in (0, 1))
        self.up_table, self.down_table = (
            torch.tensor(tasks, dtype=torch.int32, device=self.device)
            for tasks in (self.ups, self.downs)
        )

    @staticmethod
    def fits(network: Network) -> bool:
        first, *inner, last = network.couplings
        pictures = [c for c in (first, *inner) if isinstance(c, ConvPool)]
        return (
            len(inner) > 0
            and len(pictures) == len(network.couplings) - 1
            and isinstance(last, Dense)
            and network.layer_shapes[-1][0] <= THIN
            and all(c.above % 16 == 0 for c in pictures)
            and len({(c.kernel, c.pool) for c in pictures[1:]}) == 1
            and isinstance(network.neuron, HardSigmoid)
            and isinstance(network.dynamics, Prototypical)
        )

    def _join_kernels(self, inner: list[FastConv]) -> Tensor:
        """All kernels, in both directions, in one array that one launch can read."""
        sizes = [fast.kernel.numel() for fast in inner]
        joined = inner[0].kernel.new_empty(2 * sum(sizes))
        parts = joined.split([size for size in sizes for _ in range(2)])
        for fast, kernel, turned in zip(inner, parts[::2], parts[1::2], strict=True):
            fast.kernel, fast.turned = kernel.view_as(fast.kernel), turned.view_as(fast.turned)
        return joined

    def _tasks(self, n: int, fast: FastConv) -> tuple[Task, Task]:
        """The convolutions of coupling n, up and down."""
        coupling, (_, *below), above = fast.coupling, fast.below_shape, fast.map_shape
        map_at = self.map_at[n - 1]
        up = Task(
            read=self.offsets[n - 1],
            weights=fast.kernel.storage_offset(),
            target=map_at,
            channel_at=self.channel_at[n],
            channels=coupling.below,
            outputs=coupling.above,
            height=below[0],
            width=below[1],
            padding=coupling.padding,
            rows=above[0],
            columns=above[1],
            layer_at=self.offsets[n],
        )
        down = Task(
            read=map_at,
            weights=fast.turned.storage_offset(),
            target=self.offsets[n - 1],
            channel_at=self.channel_at[n - 1],
            channels=coupling.above,
            outputs=coupling.below,
            height=above[0],
            width=above[1],
            padding=coupling.kernel - 1 - coupling.padding,
            rows=below[0],
            columns=below[1],
            layer_at=self.offsets[n - 1],
        )
        return up, down

    # --- phases

    def free(self, first: Tensor, steps: int) -> Phase:
        states, activities = self.start(len(first))
        now = Standing(self._side_by_side(states), self._side_by_side(activities))
        return self._run(first, now, steps)

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        rest: Standing = free.carried
        return self._run(first, rest.clone(), self.learning.nudged_steps, labels, direction, rest)

    def _run(
        self,
        first: Tensor,
        now: Standing,
        steps: int,
        labels: Tensor | None = None,
        direction: int = 1,
        rest: Standing | None = None,
    ) -> Phase:
        batch = len(first)
        where = {"dtype": torch.int32, "device": self.device}
        order, count = torch.arange(batch, **where), torch.full((1,), batch, **where)
        changed = torch.zeros(steps, batch, **where)
        ran = torch.full((batch,), steps, **where)
        maps = torch.empty(batch, self.map_total, device=self.device)
        fields = torch.zeros_like(maps, dtype=torch.float16)
        pooled = torch.empty_like(now.state)
        pooled[:, : self.sizes[0]] = flat(first)
        lag = now.state
        if rest is not None:
            lag = rest.sent - self.network.neuron(rest.state)
        sent, new_sent, before = now.sent, now.sent.clone(), now.state
        top = self.couplings[-1]
        gain, bias = self._scales()
        output_bias = top.coupling.bias
        if output_bias is None:
            output_bias = torch.zeros(self.sizes[-1], device=self.device)
        shared = {
            "pooled": pooled,
            "gain": gain,
            "bias": bias,
            "state": now.state,
            "lag": lag,
            "order": order,
            "count": count,
            "unit": UNIT,
            "NUDGED": labels is not None,
            "TASKS": len(self.ups),
            "TASK": len(Task._fields),
            "enable_fp_fusion": False,
        }
        for t in range(steps):
            if t + 1 == steps:
                before = now.state.clone()
            now_shared = shared | {"sent": sent, "new_sent": new_sent, "changed": changed[t]}
            self._convolve(self.ups, self.up_table, sent, maps, batch, now_shared, send=False)
            pool_and_top_kernel[(self._pool_programs(batch),)](
                maps=maps,
                fields=fields,
                tasks=self.up_table,
                output_weights=top.kernel,
                output_gain=top.coupling.synapses.gain.detach(),
                output_bias=output_bias.detach(),
                labels=order if labels is None else labels,
                rest=now.state if rest is None else rest.state,
                beta=self.beta,
                map_stride=self.map_total,
                total=self.total,
                batch=batch,
                per_class=self.network.per_class,
                direction=direction,
                CONSTANT=self.learning.nudge == "constant",
                CLAMPED=self.network.dynamics.clamp_nudged,
                RAW=labels is not None and self.network.sends_state,
                THIN=self.sizes[-1],
                POOL=self.pool,
                BLOCK=BLOCK,
                **now_shared,
            )
            self._convolve(self.downs, self.down_table, fields, maps, batch, now_shared, send=True)
            if labels is None and t % EVERY == EVERY - 1:
                compact_kernel[(1,)](
                    order, count, changed[t], ran, t, BATCH=power_of_two(batch), num_warps=1
                )
            sent, new_sent = new_sent, sent
        now.sent = sent
        residual = (now.state - before).abs().amax(1)
        return Phase(self._layers(now.state), self._layers(sent), residual, ran, now)

    def _convolve(
        self,
        tasks: list[Task],
        table: Tensor,
        read: Tensor,
        maps: Tensor,
        batch: int,
        shared: dict[str, Any],
        send: bool,
    ) -> None:
        tile = Tile.fitting(tasks)
        convolve_kernel[(tile.programs(tasks, batch),)](
            read=read,
            weights=self.weights,
            maps=maps,
            tasks=table,
            read_stride=read.shape[1],
            write_stride=self.total if send else self.map_total,
            SEND=send,
            KERNEL=self.kernel,
            ROWS=tile.rows,
            OUTPUTS=tile.outputs,
            DEPTH=tile.depth,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **(shared | {"NUDGED": shared["NUDGED"] and send}),
        )

    def _pool_programs(self, batch: int) -> int:
        """One for each sample's outputs, then those that pool."""
        return batch + sum(-(-batch * size // BLOCK) for size in self.sizes[1:-1])

    def _scales(self) -> tuple[Tensor, Tensor]:
        """Gain and bias of all channels; the first drive has both already."""
        gains, biases = [], []
        for n, coupling in enumerate(self.network.couplings[:-1]):
            gain, bias = coupling.synapses.gain.detach(), coupling.bias
            one, none = torch.ones_like(gain), torch.zeros(coupling.above, device=self.device)
            gains.append((one if n == 0 else gain).expand(coupling.above))
            biases.append(none if n == 0 or bias is None else bias.detach())
        return torch.cat(gains), torch.cat(biases)

    def _side_by_side(self, layers: list[Tensor]) -> Tensor:
        """(batch, total), images channels last."""
        batch, missing = len(layers[0]), self.total - sum(self.sizes)
        return torch.cat([*map(flat, layers), layers[0].new_zeros(batch, missing)], 1)

    def _layers(self, joined: Tensor) -> list[Tensor]:
        """The layers that lie side by side, (batch, *layer) each."""
        found = []
        for at, size, shape in zip(
            self.offsets, self.sizes, self.network.layer_shapes, strict=True
        ):
            layer = joined[:, at : at + size]
            if len(shape) == 3:
                channels, height, width = shape
                layer = layer.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)
            found.append(layer)
        return found
