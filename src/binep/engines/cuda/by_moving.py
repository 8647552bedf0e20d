# pyright: reportCallIssue=false, reportArgumentType=false
"""Relaxer convolutional networks of real activations by what changes; see `moving`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from binep.core.couplings import ConvPool, Dense
from binep.core.dynamics import Prototypical
from binep.core.network import Network
from binep.core.neurons import HardSigmoid
from binep.engines.cuda.convolution import Tile
from binep.engines.cuda.layout import FastConv, Tensors, flat
from binep.engines.cuda.moving import compact_kernel, convolve_kernel, pool_and_top_kernel
from binep.engines.cuda.packing import padded
from binep.engines.cuda.relaxers.base import Phase, Relaxer, in_order, power_of_two
from binep.errors import BinepError

THIN = 16  # outputs at most
TERMS_UP, TERMS_DOWN = 3200, 1 << 20  # of a sum that one program adds up
TERMS_FEW = 1600  # where most samples rest
POSITIONS, CHANNELS = 8, 64  # of the neurons that a program pools, at most
BLOCK = 512  # terms of the outputs that are added up at a time
EVERY = 2  # steps after which samples at rest are left out
UNIT = 2.0**-12  # less is not sent in a free phase
FINEST = 2.0**-18  # nor in a nudged one, whose first layers move by 2^-14, nor by winners' places
LAST = 4  # steps of a free phase that send in float16 what float8 has left
PLACES = 2**31 - 1  # that kernels can count
POSITIONS_IN_ALL = 2**20  # of which they find the sample, see `moving.quotient`


class Precision(NamedTuple):
    """In what differences are sent.

    Attributes:
        spread: factor on those of activities, which would else sink below what the dtype can hold.
            field_spread: the same of what goes down, which is as small as scales are.
        up, down: what a program adds up at most.
        multiple: of channels that its products want.
    """

    dtype: torch.dtype
    spread: float
    field_spread: float
    up: Tile
    down: Tile
    multiple: int


HALF = Precision(
    torch.float16,
    spread=1024.0,
    field_spread=1024.0,
    up=Tile(64, 128, 64),
    down=Tile(64, 64, 64),
    multiple=16,
)
EIGHT = Precision(
    torch.float8_e4m3fn,
    spread=256.0,
    field_spread=8192.0,
    up=Tile(64, 128, 64, stages=3),
    down=Tile(64, 64, 128, stages=3),
    multiple=32,
)


class Task(NamedTuple):
    """One convolution, up or down, of one coupling; places are those of a sample.

    Attributes:
        read, target: where what it reads and where its sums begin; of downs, the layer that moves.
        weights: where its kernel begins. channel_at: gain and bias of the first channel above.
        channels, height, width: of what is read. outputs, rows, columns: of the sums.
        layer_at: the layer that the sums drive.
        split: how many programs share a sum. split_few: where most samples rest.
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
    split: int
    split_few: int


class Convolutions:
    """All of one direction, in one launch.

    Args:
        spreads: factors on the differences that are read, and on those that are sent on.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        kernel: int,
        largest: Tile,
        spreads: tuple[float, float],
        device: torch.device,
    ) -> None:
        self.tasks, self.kernel, self.spreads = tasks, kernel, spreads
        self.table = torch.tensor(tasks, dtype=torch.int32, device=device)
        # One that divides all of their outputs and channels.
        self.tile = largest._replace(
            outputs=gcd(largest.outputs, *(task.outputs for task in tasks)),
            depth=gcd(largest.depth, *(task.channels for task in tasks)),
        )

    def programs(self, batch: int) -> int:
        """As many as any number of samples that move needs."""

        def needed(samples: int, few: bool) -> int:
            return sum(
                self.tile.programs(samples * task.rows * task.columns, task.outputs)
                * (task.split_few if few else task.split)
                for task in self.tasks
            )

        return max(needed(batch, few=False), needed(batch // 2, few=True))

    def room(self, batch: int) -> int:
        """How many numbers the parts of sums take."""
        return self.programs(batch) * self.tile.rows * self.tile.outputs

    def launch(self, read: Tensor, sums: Tensor, **arguments: Any) -> None:
        """Bring sums over all that was sent up to date, see `convolve_kernel`."""
        convolve_kernel[(self.programs(len(read)),)](
            read=read,
            sums=sums,
            tasks=self.table,
            batch=len(read),
            read_stride=read.shape[1],
            sum_stride=sums.shape[1],
            SPREAD=self.spreads[0],
            SPREAD_ON=self.spreads[1],
            TASKS=len(self.tasks),
            KERNEL=self.kernel,
            ROWS=self.tile.rows,
            OUTPUTS=self.tile.outputs,
            DEPTH=self.tile.depth,
            enable_fp_fusion=False,
            **self.tile.options,
            **arguments,
        )


class Ways(NamedTuple):
    """Both directions in one precision, and the kernels that they read."""

    precision: Precision
    ups: Convolutions
    downs: Convolutions
    weights: tuple[Tensor, Tensor]  # in its dtype: those that are read upwards, and downwards


@dataclass
class Standing(Tensors):
    """Where a mini-batch stands, all layers or all maps side by side; see `moving`.

    Attributes:
        state, sent: of all neurons. maps: sums before pooling. fields: what goes down through the
            winners' places, as sent. down: the drive that comes of it.
    """

    state: Tensor
    sent: Tensor
    maps: Tensor
    fields: Tensor
    down: Tensor


@dataclass
class Moving(Relaxer):
    """Convolutional networks of real, prototypical neurons below a few outputs."""

    @staticmethod
    def fits(network: Network) -> bool:
        *images, last = network.couplings
        inner = [coupling for coupling in images[1:] if isinstance(coupling, ConvPool)]
        return (
            len(inner) > 0
            and all(isinstance(c, ConvPool) and c.above % 16 == 0 for c in images)
            and len({(coupling.kernel, coupling.pool) for coupling in inner}) == 1
            and isinstance(last, Dense)
            and network.layer_shapes[-1][0] <= THIN
            and isinstance(network.neuron, HardSigmoid)
            and isinstance(network.dynamics, Prototypical)
        )

    def __post_init__(self) -> None:
        shapes = self.network.layer_shapes
        self.inner = [fast for fast in self.couplings[1:-1] if isinstance(fast, FastConv)]
        self.sizes = [prod(shape) for shape in shapes]
        *self.offsets, total = accumulate(self.sizes, initial=0)
        self.total = padded(total)
        *self.channel_at, _ = accumulate((shape[0] for shape in shapes[1:-1]), initial=0)
        map_sizes = (fast.coupling.above * prod(fast.map_shape) for fast in self.inner)
        *self.map_at, self.map_total = accumulate(map_sizes, initial=0)
        self.pool_channels = gcd(CHANNELS, *(fast.coupling.above for fast in self.inner))
        self.weights = self.inner[0].room[:2]
        # From the outputs down: the longest sums first, so that none is begun last.
        tasks = [self._tasks(n, fast) for n, fast in enumerate(self.inner, 1)][::-1]
        self.half = self._ways(tasks, HALF)
        self.eight = self._ways(tasks, EIGHT) if self._sends_float8() else None

    @property
    def real_precision(self) -> str:
        return f"{'float16' if self.eight is None else 'float8'} differences, float32"

    def _sends_float8(self) -> bool:
        """Whether signs and differences are multiplied in float8, by tensor cores that can."""
        sides = [side for fast in self.inner for side in fast.kernel.shape[2:]]
        return (
            all(fast.coupling.binary for fast in self.inner)
            and all(side % EIGHT.multiple == 0 for side in sides)
            and (self.device.type != "cuda" or torch.cuda.get_device_capability() >= (9, 0))
        )

    def _ways(self, tasks: Sequence[tuple[Task, Task]], precision: Precision) -> Ways:
        ups, downs = zip(*tasks, strict=True)
        kernel, spread = self.inner[0].coupling.kernel, precision.spread
        return Ways(
            precision,
            Convolutions(ups, kernel, precision.up, (spread, spread), self.device),
            Convolutions(
                downs, kernel, precision.down, (precision.field_spread, spread), self.device
            ),
            tuple(weights.to(precision.dtype) for weights in self.weights),
        )

    def _tasks(self, n: int, fast: FastConv) -> tuple[Task, Task]:
        """The convolutions of coupling n, up and down."""
        coupling, below, maps = fast.coupling, fast.below_shape[1:], fast.map_shape
        taps, map_at = coupling.kernel**2, self.map_at[n - 1]
        up = Task(
            read=self.offsets[n - 1],
            weights=fast.room.at,
            target=map_at,
            channel_at=self.channel_at[n - 1],
            channels=coupling.below,
            outputs=coupling.above,
            height=below[0],
            width=below[1],
            padding=coupling.padding,
            rows=maps[0],
            columns=maps[1],
            layer_at=self.offsets[n],
            **_splits(taps * coupling.below, TERMS_UP),
        )
        down = Task(
            read=map_at,
            weights=fast.room.at,
            target=self.offsets[n - 1],
            channel_at=self.channel_at[n - 1],
            channels=coupling.above,
            outputs=coupling.below,
            height=maps[0],
            width=maps[1],
            padding=coupling.kernel - 1 - coupling.padding,
            rows=below[0],
            columns=below[1],
            layer_at=self.offsets[n - 1],
            **_splits(taps * coupling.above, TERMS_DOWN),
        )
        return up, down

    # --- phases

    def free(self, first: Tensor, steps: int) -> Phase:
        """All neurons start alike; what they first send is rounded once.

        Where all weights are signs most steps send in float8, until samples rest. What its rounding
        has left is then sent in float16, so that the nudged phase has nothing of it.
        """
        batch = len(first)
        self._check_size(batch)
        state = torch.cat([flat(layer) for layer in self.start(batch)[0]], 1)
        state = F.pad(state, (0, self.total - state.shape[1]))
        ways = self.half if self.eight is None or steps <= LAST else self.eight
        precision = ways.precision
        delta = (self.network.neuron(state) * precision.spread).to(precision.dtype)
        maps = torch.zeros(batch, self.map_total, device=self.device)
        start = Standing(
            state,
            delta.float() / precision.spread,
            maps,
            torch.zeros_like(maps),
            torch.zeros_like(state),
        )
        if ways is self.half:
            return self._run(ways, first, start, delta, steps)
        for copy, weights in zip(ways.weights, self.weights, strict=True):
            copy.copy_(weights)
        nearly = self._run(ways, first, start, delta, steps - LAST)
        rest = self._run(self.half, first, nearly.carried, None, LAST)
        rest.ran += nearly.ran
        return rest

    def _check_size(self, batch: int) -> None:
        sides = (task for way in (self.half.ups, self.half.downs) for task in way.tasks)
        positions = max(task.rows * task.columns for task in sides)
        most = min(PLACES // max(self.total, self.map_total), POSITIONS_IN_ALL // positions)
        if batch > most:
            raise BinepError(
                f"engine 'cuda': {batch} samples at once are too many for this network, allowed "
                f"are up to {most}"
            )

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        rest: Standing = free.carried
        nudge = {
            "NUDGED": True,
            "RAW": self.network.sends_state,
            "labels": labels,
            "rest": rest.state,
            "direction": direction,
        }
        held = self.network.neuron(rest.state) - rest.sent
        steps = self.learning.nudged_steps
        return self._run(self.half, first, rest.clone(), None, steps, held, **nudge)

    def switches(self, phase: Phase) -> dict[int, Tensor | None]:
        now: Standing = phase.carried
        found = {}
        for n, (fast, at) in enumerate(zip(self.inner, self.map_at, strict=True), 1):
            shape = (fast.coupling.above, *fast.map_shape)
            maps = _image(now.maps[:, at : at + prod(shape)], shape)
            found[n] = fast.pool(in_order(maps))[1]
        return found

    def _run(
        self,
        ways: Ways,
        first: Tensor,
        now: Standing,
        delta: Tensor | None,
        steps: int,
        held: Tensor | None = None,
        **nudge: Any,
    ) -> Phase:
        """Some steps from where a mini-batch stands.

        Args:
            delta: (batch, total), spread: of what was sent the sums do not know yet, if anything.
            held: (batch, total), in the nudged phase: what is not sent.
            nudge: arguments of `pool_and_top_kernel`, in the nudged phase.
        """
        batch, integer = len(first), {"dtype": torch.int32, "device": self.device}
        order, count = torch.arange(batch, **integer), torch.full((1,), batch, **integer)
        changed, ran = torch.zeros(steps, batch, **integer), torch.full((batch,), steps, **integer)
        precision, ups, downs, weights = ways
        field_delta = torch.zeros_like(now.fields, dtype=precision.dtype)
        new_delta = torch.zeros_like(now.sent, dtype=precision.dtype)
        pooled = torch.empty_like(now.state)
        pooled[:, : self.sizes[0]] = flat(first)
        neurons = {
            "pooled": pooled,
            "state": now.state,
            "order": order,
            "count": count,
            "held": now.state if held is None else held,
            "unit": UNIT if held is None else FINEST,
        }
        convolving = {
            "HOLD": held is not None,
            "delta": new_delta,
            "parts": torch.empty(max(ups.room(batch), downs.room(batch)), device=self.device),
            "arrived": torch.zeros(max(ups.programs(batch), downs.programs(batch)), **integer),
        }
        outputs = self._outputs(now) | {"SPREAD": precision.field_spread} | nudge
        sent, new_sent, before = now.sent, now.sent.clone(), now.state
        neurons |= {"sent": sent, "new_sent": new_sent, "changed": changed[0]}
        if delta is not None:
            ups.launch(delta, now.maps, weights=weights[1], SEND=False, **convolving, **neurons)
        for t in range(steps):
            if t + 1 == steps:
                before = now.state.clone()
            neurons |= {"sent": sent, "new_sent": new_sent, "changed": changed[t]}
            pool_and_top_kernel[(self._pool_programs(batch),)](
                maps=now.maps,
                fields=now.fields,
                field_delta=field_delta,
                batch=batch,
                enable_fp_fusion=False,
                **outputs,
                **neurons,
            )
            downs.launch(
                field_delta, now.down, weights=weights[0], SEND=True, **convolving, **neurons
            )
            ups.launch(new_delta, now.maps, weights=weights[1], SEND=False, **convolving, **neurons)
            if t % EVERY == EVERY - 1 and held is None:
                compact_kernel[(1,)](
                    order, count, changed[t], ran, t, BATCH=power_of_two(batch), num_warps=1
                )
            sent, new_sent = new_sent, sent
        now.sent = sent
        residual = (now.state - before).abs().amax(1)
        return Phase(self._layers(now.state), self._layers(sent), residual, ran, now)

    def _outputs(self, now: Standing) -> dict[str, Any]:
        """Arguments of `pool_and_top_kernel` that stay the same during a phase."""
        network, top, inner = self.network, self.couplings[-1], self.network.couplings[1]
        assert isinstance(inner, ConvPool) and isinstance(network.dynamics, Prototypical)
        bias, (gains, biases) = top.coupling.bias, self._scales()
        return {
            "gain": gains,
            "bias": biases,
            "tasks": self.half.ups.table,
            "output_weights": top.kernel,
            "output_gain": top.coupling.synapses.gain.detach(),
            "output_bias": now.state.new_zeros(self.sizes[-1]) if bias is None else bias.detach(),
            "labels": now.state,
            "rest": now.state,
            "beta": self.beta,
            "direction": 1,
            "per_class": network.per_class,
            "map_stride": self.map_total,
            "total": self.total,
            "finest": FINEST,
            "NUDGED": False,
            "CONSTANT": self.learning.nudge == "constant",
            "CLAMPED": network.dynamics.clamp_nudged,
            "RAW": False,
            "THIN": self.sizes[-1],
            "POOL": inner.pool,
            "TASKS": len(self.half.ups.tasks),
            "POSITIONS": POSITIONS,
            "CHANNELS": self.pool_channels,
            "BLOCK": BLOCK,
        }

    def _pool_programs(self, batch: int) -> int:
        """One for each sample's outputs, then those that pool."""
        shapes = self.network.layer_shapes[1:-1]
        return batch + sum(
            -(-batch * height * width // POSITIONS) * (channels // self.pool_channels)
            for channels, height, width in shapes
        )

    def _scales(self) -> tuple[Tensor, Tensor]:
        """Gain and bias of all channels that are pooled."""
        gains, biases = [], []
        for coupling in (fast.coupling for fast in self.inner):
            none = torch.zeros(coupling.above, device=self.device)
            gains.append(coupling.synapses.gain.detach().expand(coupling.above))
            biases.append(none if coupling.bias is None else coupling.bias.detach())
        return torch.cat(gains), torch.cat(biases)

    def _layers(self, joined: Tensor) -> list[Tensor]:
        """The layers that lie side by side, (batch, *layer) each."""
        parts = joined[:, : sum(self.sizes)].split(self.sizes, 1)
        shapes = self.network.layer_shapes
        return [*map(_image, parts[:-1], shapes[:-1]), parts[-1]]


def _image(values: Tensor, shape: Sequence[int]) -> Tensor:
    """(batch, units), channels last, as (batch, *shape)."""
    channels, height, width = shape
    return values.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def _splits(terms: int, most: int) -> dict[str, int]:
    """Into how many parts sums of so many terms are split."""
    return {"split": -(-terms // most), "split_few": -(-terms // TERMS_FEW)}
