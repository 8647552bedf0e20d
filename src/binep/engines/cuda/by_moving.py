# pyright: reportCallIssue=false, reportArgumentType=false
"""Relaxing convolutional networks of real activations by what changes; see `moving`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from binep.couplings import ConvPool, Dense
from binep.dynamics import Prototypical
from binep.engines.cuda.couplings import FastConv, Tensors, Tile, flat
from binep.engines.cuda.moving import SPREAD, compact_kernel, convolve_kernel, pool_and_top_kernel
from binep.engines.cuda.packing import padded
from binep.engines.cuda.phases import Phase, Relaxing, in_order, power_of_two
from binep.errors import BinepError
from binep.network import Network
from binep.neurons import HardSigmoid

THIN = 16  # outputs at most
UP = Tile(rows=64, outputs=128, depth=64)  # what a program adds up at most, upwards
DOWN = Tile(rows=64, outputs=64, depth=64)
TERMS = 1 << 20  # of a sum that one program adds up
TERMS_FEW = 1600  # where most samples rest
BLOCK = 512  # neurons that a program pools
EVERY = 2  # steps after which samples at rest are left out
UNIT = 2.0**-12  # less is not sent in a free phase
FINEST = 2.0**-18  # nor in a nudged one, whose first layers move by 2^-14, nor by winners' places
PLACES = 2**31 - 1  # that kernels can count


class Task(NamedTuple):
    """One convolution, up or down, of one coupling; places are those of a sample.

    Attributes:
        read, target: where what it reads and where its sums begin; of downs, the layer that moves.
        weights: where its kernel begins. channel_at: the first channel's gain and bias.
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
    """All of one direction, in one launch."""

    def __init__(
        self, tasks: Sequence[Task], kernel: int, largest: Tile, device: torch.device
    ) -> None:
        self.tasks, self.kernel = tasks, kernel
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
            TASKS=len(self.tasks),
            KERNEL=self.kernel,
            ROWS=self.tile.rows,
            OUTPUTS=self.tile.outputs,
            DEPTH=self.tile.depth,
            enable_fp_fusion=False,
            **self.tile.options,
            **arguments,
        )


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
class Moving(Relaxing):
    """Convolutional networks of real, prototypical neurons below a few outputs."""

    real_precision = "float16 differences, float32"

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
        *self.channel_at, _ = accumulate((shape[0] for shape in shapes[:-1]), initial=0)
        map_sizes = (fast.coupling.above * prod(fast.map_shape) for fast in self.inner)
        *self.map_at, self.map_total = accumulate(map_sizes, initial=0)
        self.weights = _joined(self.inner)
        # From the outputs down: the longest sums first, so that none is begun last.
        tasks = [self._tasks(n, fast) for n, fast in enumerate(self.inner, 1)][::-1]
        self.ups, self.downs = (
            Convolutions(way, self.inner[0].coupling.kernel, largest, self.device)
            for way, largest in zip(zip(*tasks, strict=True), (UP, DOWN), strict=True)
        )

    def _tasks(self, n: int, fast: FastConv) -> tuple[Task, Task]:
        """The convolutions of coupling n, up and down."""
        coupling, below, maps = fast.coupling, fast.below_shape[1:], fast.map_shape
        taps, map_at = coupling.kernel**2, self.map_at[n - 1]
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
            rows=maps[0],
            columns=maps[1],
            layer_at=self.offsets[n],
            **_splits(taps * coupling.below),
        )
        down = Task(
            read=map_at,
            weights=fast.turned.storage_offset(),
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
            **_splits(taps * coupling.above),
        )
        return up, down

    # --- phases

    def free(self, first: Tensor, steps: int) -> Phase:
        """All neurons start alike; what they first send is rounded once."""
        batch, most = len(first), PLACES // max(self.total, self.map_total)
        if batch > most:
            raise BinepError(
                f"engine 'cuda': {batch} samples at once are too many for this network, allowed "
                f"are up to {most}"
            )
        state = torch.cat([flat(layer) for layer in self.start(batch)[0]], 1)
        state = F.pad(state, (0, self.total - state.shape[1]))
        delta = (self.network.neuron(state) * SPREAD.value).half()
        maps = torch.zeros(batch, self.map_total, device=self.device)
        start = Standing(
            state,
            delta.float() / SPREAD.value,
            maps,
            torch.zeros_like(maps),
            torch.zeros_like(state),
        )
        return self._run(first, start, delta, steps)

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
        delta = torch.zeros_like(rest.sent, dtype=torch.float16)
        return self._run(first, rest.clone(), delta, self.learning.nudged_steps, held, **nudge)

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
        first: Tensor,
        now: Standing,
        delta: Tensor,
        steps: int,
        held: Tensor | None = None,
        **nudge: Any,
    ) -> Phase:
        """Some steps from where a mini-batch stands.

        Args:
            delta: f16, (batch, total), spread: of what was sent the sums do not know yet.
            held: (batch, total), in the nudged phase: what is not sent.
            nudge: arguments of `pool_and_top_kernel`, in the nudged phase.
        """
        batch, integer = len(first), {"dtype": torch.int32, "device": self.device}
        order, count = torch.arange(batch, **integer), torch.full((1,), batch, **integer)
        changed, ran = torch.zeros(steps, batch, **integer), torch.full((batch,), steps, **integer)
        field_delta = torch.zeros_like(now.fields, dtype=torch.float16)
        pooled = torch.empty_like(now.state)
        pooled[:, : self.sizes[0]] = flat(first)
        gain, bias = self._scales()
        neurons = {
            "pooled": pooled,
            "gain": gain,
            "bias": bias,
            "state": now.state,
            "order": order,
            "count": count,
            "held": now.state if held is None else held,
            "unit": UNIT if held is None else FINEST,
        }
        ways = (self.ups, self.downs)
        convolving = {
            "HOLD": held is not None,
            "weights": self.weights,
            "delta": delta,
            "parts": torch.empty(max(way.room(batch) for way in ways), device=self.device),
            "arrived": torch.zeros(max(way.programs(batch) for way in ways), **integer),
        }
        outputs = self._outputs(now) | nudge
        sent, new_sent, before = now.sent, now.sent.clone(), now.state
        neurons |= {"sent": sent, "new_sent": new_sent, "changed": changed[0]}
        self.ups.launch(delta, now.maps, SEND=False, **convolving, **neurons)
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
            self.downs.launch(field_delta, now.down, SEND=True, **convolving, **neurons)
            self.ups.launch(delta, now.maps, SEND=False, **convolving, **neurons)
            if t % EVERY == EVERY - 1 and held is None:
                compact_kernel[(1,)](
                    order, count, changed[t], ran, t, BATCH=power_of_two(batch), num_warps=1
                )
            sent, new_sent = new_sent, sent
        now.sent = sent
        residual = (now.state - before).abs().amax(1)
        return Phase(self._layers(now.state), self._layers(sent), residual, ran, now)

    def _outputs(self, now: Standing) -> dict[str, Any]:
        """Arguments of `pool_and_top_kernel` that stay the same during a free phase."""
        network, top, inner = self.network, self.couplings[-1], self.network.couplings[1]
        assert isinstance(inner, ConvPool) and isinstance(network.dynamics, Prototypical)
        bias = top.coupling.bias
        return {
            "tasks": self.ups.table,
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
            "TASKS": len(self.ups.tasks),
            "BLOCK": BLOCK,
        }

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

    def _layers(self, joined: Tensor) -> list[Tensor]:
        """The layers that lie side by side, (batch, *layer) each."""
        parts = joined[:, : sum(self.sizes)].split(self.sizes, 1)
        shapes = self.network.layer_shapes
        return [*map(_image, parts[:-1], shapes[:-1]), parts[-1]]


def _image(values: Tensor, shape: Sequence[int]) -> Tensor:
    """(batch, units), channels last, as (batch, *shape)."""
    channels, height, width = shape
    return values.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def _splits(terms: int) -> dict[str, int]:
    """Into how many parts sums of so many terms are split."""
    return {"split": -(-terms // TERMS), "split_few": -(-terms // TERMS_FEW)}


def _joined(inner: list[FastConv]) -> Tensor:
    """All kernels, in both directions, moved into one array that one launch can read."""
    sizes = [fast.kernel.numel() for fast in inner for _ in range(2)]
    joined = inner[0].kernel.new_empty(sum(sizes))
    parts = joined.split(sizes)
    for fast, kernel, turned in zip(inner, parts[::2], parts[1::2], strict=True):
        fast.kernel, fast.turned = kernel.view_as(fast.kernel), turned.view_as(fast.turned)
    return joined
