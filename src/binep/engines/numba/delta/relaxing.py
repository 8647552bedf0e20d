"""Relaxation of real activations: how a network's layers and couplings lie in memory, and a step.

`Shallow` relaxes networks of one hidden layer, `Deep` all others; see `Relaxer`.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from binep.core.couplings import ConvPool, Dense, Shape
from binep.core.gradients import EquilibriumPropagation
from binep.core.network import Clamped, Network
from binep.engines.fixed_point import field_unit, sent_units
from binep.engines.numba.delta import kernels
from binep.engines.numba.delta.kernels import Nudging
from binep.engines.numba.jit import run_shares
from binep.errors import BinepError

Array = Any

WIDEST_OUTPUT = 64  # of a shallow network: its synapses are float32 and should stay in the cache
ZERO_POINT = 128  # the byte that convolutions take for 0

FREE = Nudging(False, False, np.float32(0), clamped=False, raw=False)


@dataclass
class Settled:
    """How a phase went: steps that it stands for, steps run, and the last largest change."""

    steps: int
    taken: int
    residual: float


class Relaxer(Protocol):
    """How a network relaxes. A *phase* is where a mini-batch stands, in a layout of its own."""

    def refresh(self, n: int) -> None:
        """Copy coupling n's signs anew."""

    def take_scales(self) -> None:
        """Read scales and biases, which stay as they are during a mini-batch."""

    def inner(self, n: int) -> "Synapses | None":
        """Coupling n's bytes, if flips can be made in them one by one."""

    def begin(self, clamped: Clamped) -> Any:
        """A phase at t = 0."""

    def copy(self, phase: Any) -> Any: ...

    def states(self, phase: Any) -> list[Tensor]:
        """s1..sN, (batch, *layer)."""
        ...

    def run(
        self, phase: Any, steps: int, tolerance: float | None, target: Array, nudging: Nudging
    ) -> Settled:
        """Take a phase `steps` further, in place, fewer if it settles within the tolerance."""
        ...


class Synapses:
    """A dense coupling's signs as bytes, in both directions, in the order of layers.

    An image below lies channels last; the weight numbers it channels first: `columns` tells where
    each of the weight's columns stands.
    """

    def __init__(self, coupling: Dense, below_shape: Shape, *, both: bool = True) -> None:
        self.coupling, self.both = coupling, both
        places = torch.arange(coupling.below)
        if len(below_shape) == 3:
            channels, height, width = below_shape
            places = places.reshape(height, width, channels).permute(2, 0, 1).flatten()
        self.columns = places.numpy()
        self.down_bytes = torch.empty(coupling.above, coupling.below, dtype=torch.int8)
        self.up_bytes = torch.empty(
            (coupling.below, coupling.above) if both else (0, 0), dtype=torch.int8
        )

    def refresh(self) -> None:
        """Copy the signs from the coupling's parameter."""
        signs = self.coupling.signs.detach().to(torch.int8)
        self.down_bytes[:, torch.from_numpy(self.columns)] = signs
        if self.both:
            self.up_bytes.copy_(self.down_bytes.T)

    def up(self, delta: Tensor) -> Tensor:
        return product(delta.view(torch.int8), self.up_bytes)

    def down(self, delta: Tensor) -> Tensor:
        return product(delta.view(torch.int8), self.down_bytes)


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of int8 matrices, in int32."""
    if a.shape[1] < 4:
        # For a sum of a single product torch's own leaves the result unset.
        return (a.float() @ b.float()).to(torch.int32)
    return torch._int_mm(a, b)  # type: ignore[attr-defined]


class Filters:
    """A convolution's signs as oneDNN wants them, for both directions."""

    def __init__(self, coupling: ConvPool, below_shape: Shape) -> None:
        self.coupling, self.below_shape = coupling, below_shape
        self.above_shape = coupling.above_shape(below_shape)
        self.map_shape = (coupling.above, *(coupling._map_side(side) for side in below_shape[1:]))
        side, padding = coupling.kernel, coupling.padding
        if padding > side - 1:
            raise BinepError(
                f"engine 'delta': padding={padding} with kernel={side}: allowed is at most "
                f"{side - 1}"
            )
        self.packed: list[tuple[Tensor, Tensor, int]] = []
        if not convolves_bytes():
            raise BinepError(
                "engine 'delta' needs torch's oneDNN convolutions of bytes, and this torch "
                f"({torch.__version__}) does not have them as expected; the reference engine runs "
                "the rest"
            )

    @property
    def pool(self) -> kernels.Pool:
        channels, height, width = self.map_shape
        _, rows, cols = self.above_shape
        return kernels.Pool(height, width, rows, cols, channels, self.coupling.pool)

    def refresh(self) -> None:
        """Pack the signs from the coupling's parameter; down is a convolution with them turned."""
        signs = self.coupling.signs.detach().to(torch.int8)
        side, padding = self.coupling.kernel, self.coupling.padding
        turned = signs.transpose(0, 1).flip(2, 3).contiguous()
        self.packed = [
            _packed_filters(signs, padding, self.below_shape),
            _packed_filters(turned, side - 1 - padding, self.map_shape),
        ]

    def up(self, delta: Tensor) -> Tensor:
        return _convolve(delta, self.below_shape, *self.packed[0])

    def down(self, delta: Tensor) -> Tensor:
        return _convolve(delta, self.map_shape, *self.packed[1])


def _onednn() -> Any:
    return torch.ops.onednn


def _packed_filters(signs: Tensor, padding: int, below: Shape) -> tuple[Tensor, Tensor, int]:
    ones = torch.ones(len(signs))
    shape = [1, *below]
    packed = _onednn().qconv_prepack(
        signs, ones, 1.0, ZERO_POINT, [1, 1], [padding] * 2, [1, 1], 1, shape
    )
    return packed, ones, padding


def _convolve(delta: Tensor, shape: Shape, packed: Tensor, ones: Tensor, padding: int) -> Tensor:
    """Bytes, (rows, places * channels), channels last, to sums in float32, laid out likewise."""
    channels, height, width = shape
    images = delta.view(len(delta), height, width, channels).permute(0, 3, 1, 2)
    zeros = torch.zeros(len(ones), dtype=torch.int32)
    sums = _onednn().qconv2d_pointwise(
        images, 1.0, ZERO_POINT, packed, ones, zeros, None, [1, 1], [padding] * 2, [1, 1], 1,
        1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return sums.permute(0, 2, 3, 1).reshape(len(delta), -1)


@functools.cache
def convolves_bytes() -> bool:
    """Whether torch has these convolutions and they give the right sums: its ops are not public."""
    signs = torch.tensor([[[[1, -1], [1, 1]]], [[[-1, 1], [1, -1]]]], dtype=torch.int8)
    delta = torch.arange(-4, 5) + ZERO_POINT
    try:
        found = _convolve(
            delta.to(torch.uint8)[None], (1, 3, 3), *_packed_filters(signs, 1, (1, 3, 3))
        )
    except (AttributeError, RuntimeError, TypeError):
        return False
    image = (delta - ZERO_POINT).reshape(1, 1, 3, 3).float()
    expected = torch.nn.functional.conv2d(image, signs.float(), padding=1)
    return torch.equal(found, channels_last(expected))


def channels_last(values: Tensor) -> Tensor:
    """(batch, *layer) as (batch, places * channels), channels last."""
    return values.permute(0, 2, 3, 1).flatten(1) if values.dim() == 4 else values


def channels_first(values: Tensor, shape: Shape) -> Tensor:
    """The inverse of `channels_last`: (batch, *layer)."""
    if len(shape) == 1:
        return values
    channels, height, width = shape
    return values.reshape(-1, height, width, channels).permute(0, 3, 1, 2)


# --- one hidden layer ---------------------------------------------------------------------------


@dataclass
class ShallowPhase:
    """Where a shallow network stands; see `kernels.settle_share`."""

    first: Array
    hidden: Array
    top: Array


class Shallow:
    """Networks of two dense couplings, the upper one thin."""

    @staticmethod
    def fits(network: Network) -> bool:
        return (
            len(network.couplings) == 2
            and all(isinstance(coupling, Dense) for coupling in network.couplings)
            and network.shapes[-1][0] <= WIDEST_OUTPUT
        )

    def __init__(self, network: Network, early_stop: bool) -> None:
        self.network, self.upper, self.early_stop = network, network.couplings[1], early_stop
        outputs = network.shapes[-1][0]
        rows = -(-outputs // kernels.ROWS) * kernels.ROWS
        self.synapses = np.zeros((rows, network.shapes[1][0]), np.float32)

    def refresh(self, n: int) -> None:
        """Nothing is copied that outlives a mini-batch."""

    def take_scales(self) -> None:
        """They are read where they are."""

    def inner(self, n: int) -> None:
        return None

    def begin(self, clamped: Clamped) -> ShallowPhase:
        signs = self.upper.signs.detach().numpy()
        self.synapses[: len(signs)] = signs
        batch, start = len(clamped.x), np.float32(self.network.initial_state)
        return ShallowPhase(
            clamped.drive.numpy(),
            np.full((batch, self.synapses.shape[1]), start),
            np.full((batch, len(signs)), start),
        )

    def copy(self, phase: ShallowPhase) -> ShallowPhase:
        return replace(phase, hidden=phase.hidden.copy(), top=phase.top.copy())

    def states(self, phase: ShallowPhase) -> list[Tensor]:
        return [torch.from_numpy(phase.hidden), torch.from_numpy(phase.top)]

    def run(
        self,
        phase: ShallowPhase,
        steps: int,
        tolerance: float | None,
        target: Array,
        nudging: Nudging,
    ) -> Settled:
        """Take a phase `steps` further, in place, fewer if it settles within the tolerance."""
        if tolerance is not None and steps > 1:
            # A mini-batch settles as a whole: see when it does, then run it so far.
            trial = self.copy(phase)
            trace, _ = self._settle(trial, steps, target, nudging, steps)
            settled = np.flatnonzero(trace.max(0) <= np.float32(tolerance))
            if len(settled):
                steps = int(settled[0]) + 1
        trace, taken = self._settle(phase, steps, target, nudging, 1)
        return Settled(steps, int(taken.sum()), float(trace[:, -1].max()))

    def _settle(
        self, phase: ShallowPhase, steps: int, target: Array, nudging: Nudging, traced: int
    ) -> tuple[Array, Array]:
        bias = self.upper.bias
        batch, outputs = phase.top.shape
        trace, taken = np.zeros((batch, traced), np.float32), np.zeros(batch, np.int64)
        run_shares(
            kernels.settle_share,
            phase.first,
            self.synapses,
            np.float32(self.upper.scale.item()),
            np.zeros(outputs, np.float32) if bias is None else bias.detach().numpy(),
            phase.hidden,
            phase.top,
            steps,
            target,
            nudging,
            self.early_stop,
            trace,
            taken,
        )
        return trace, taken


# --- several layers -----------------------------------------------------------------------------

NO_BYTES = np.empty((0, 0), np.uint8)
NO_SUMS = np.empty((0, 0), np.int32)
NO_FLOATS = np.empty((0, 0), np.float32)
NO_SHIFT = np.empty(0, np.int32)


@dataclass
class Layer:
    """A layer on its way; see `kernels.advance_share`."""

    state: Array
    sent: Array
    shift: Array
    delta: Tensor


@dataclass
class Link:
    """What has come through an inner coupling, up and down.

    Attributes:
        sums: of what came up, on the map of a convolution. pooled, winners: what its pool made of
            them; for a dense coupling `sums` itself, and nothing.
        down: sums of what came down.
        field, shift: what the layer above has sent down onto the map, and the shift of the last
            difference; empty for a dense coupling, which sends the same both ways.
    """

    sums: Array
    pooled: Array
    winners: Array
    down: Array
    field: Array
    shift: Array


@dataclass
class DeepPhase:
    """Where a deep network stands. `order`: the samples that still move, one a row of deltas."""

    first: Array
    order: Array
    layers: list[Layer]
    links: list[Link]


class Deep:
    """Chains of dense couplings and convolutions."""

    def __init__(self, network: Network, early_stop: bool) -> None:
        self.network, self.early_stop = network, early_stop
        self.couplings: list[Synapses | Filters | None] = [None]
        for coupling, shape in zip(network.couplings[1:], network.shapes[1:-1], strict=True):
            if isinstance(coupling, ConvPool):
                self.couplings.append(Filters(coupling, shape))
            else:
                assert isinstance(coupling, Dense)
                self.couplings.append(Synapses(coupling, shape))
        self.units = sent_units(network)
        self.sizes = [torch.Size(shape).numel() for shape in network.layer_shapes]
        maps = [torch.Size(c.map_shape).numel() for c in self.couplings if isinstance(c, Filters)]
        self.largest = max([*self.sizes, *maps])

    def refresh(self, n: int) -> None:
        """Copy coupling n's signs anew."""
        coupling = self.couplings[n]
        if coupling is not None:
            coupling.refresh()

    def inner(self, n: int) -> Synapses | None:
        """Coupling n's bytes, if flips can be made in them one by one."""
        coupling = self.couplings[n]
        return coupling if isinstance(coupling, Synapses) else None

    def begin(self, clamped: Clamped) -> DeepPhase:
        batch, top = len(clamped.x), len(self.sizes) - 1
        first = channels_last(clamped.drive).contiguous().numpy()
        layers = [
            Layer(
                state=np.full((batch, size), self.network.initial_state, np.float32),
                sent=np.zeros((batch, size), np.int32),
                shift=np.zeros(batch, np.int32),
                delta=torch.empty((batch, size), dtype=torch.uint8),
            )
            for size in self.sizes
        ]
        links = []
        for n in range(1, top + 1):
            coupling, below, above = self.couplings[n], self.sizes[n - 1], self.sizes[n]
            conv = isinstance(coupling, Filters)
            size = torch.Size(coupling.map_shape).numel() if conv else above
            sums = np.zeros((batch, size), np.int32)
            links.append(
                Link(
                    sums=sums,
                    pooled=np.zeros((batch, above), np.int32) if conv else sums,
                    winners=np.zeros((batch, above), np.uint8) if conv else NO_BYTES,
                    down=np.zeros((batch, below), np.int32),
                    field=np.zeros((batch, size), np.int32) if conv else NO_SUMS,
                    shift=np.zeros(batch, np.int32) if conv else NO_SHIFT,
                )
            )
        phase = DeepPhase(first, np.arange(batch), layers, links)
        activity = min(max(self.network.initial_state, 0.0), 1.0)
        for n, layer in enumerate(layers):
            # All neurons start alike: what they first send is one number, sent exactly.
            whole, shift = int(activity * self.units[n] + 0.5), 0
            while whole >> shift > 127:
                shift += 1
            byte = whole >> shift
            layer.shift[:], layer.sent[:] = shift, byte << shift
            layer.delta.fill_(byte + self._offset(n))
        return phase

    def _offset(self, n: int) -> int:
        """What is added to the bytes that layer n sends up."""
        above = self.couplings[n + 1] if n + 1 < len(self.couplings) else None
        return ZERO_POINT if isinstance(above, Filters) else 0

    def copy(self, phase: DeepPhase) -> DeepPhase:
        return DeepPhase(
            phase.first,
            phase.order.copy(),
            [
                Layer(x.state.copy(), x.sent.copy(), x.shift.copy(), x.delta.clone())
                for x in phase.layers
            ],
            [_copied(link) for link in phase.links],
        )

    def states(self, phase: DeepPhase) -> list[Tensor]:
        """s1..sN, (batch, *layer)."""
        return [
            channels_first(torch.from_numpy(layer.state), shape)
            for layer, shape in zip(phase.layers, self.network.layer_shapes, strict=True)
        ]

    def run(
        self,
        phase: DeepPhase,
        steps: int,
        tolerance: float | None,
        target: Array,
        nudging: Nudging,
    ) -> Settled:
        """Take a phase `steps` further, in place, fewer if it settles within the tolerance."""
        self._wake(phase)
        rest = phase.layers[-1].state.copy()
        threads = torch.get_num_threads()
        scratch = np.empty((2 * threads, self.largest), np.float32)
        taken, residual = 0, 0.0
        for t in range(1, steps + 1):
            measured = tolerance is not None or t == steps
            taken += len(phase.order)
            still, changes = self._step(phase, target, rest, nudging, measured, scratch)
            if measured:
                residual = float(changes.max())
                if tolerance is not None and residual <= np.float32(tolerance):
                    return Settled(t, taken, residual)
            if nudging.on or not self.early_stop:
                # The output also moves by itself: silence does not mean that it has settled.
                continue
            moving = np.flatnonzero(still == 0)
            if not len(moving):
                # Every step from now on would find everything as it is.
                residual = residual if t == steps else 0.0
                return Settled(steps if tolerance is None else min(t + 1, steps), taken, residual)
            if 16 * len(moving) <= 15 * len(still):
                self._keep(phase, moving)
        return Settled(steps, taken, residual)

    def _wake(self, phase: DeepPhase) -> None:
        """Let all samples move again; those that had come to rest have nothing to send."""
        batch = len(phase.layers[0].state)
        if len(phase.order) == batch:
            return
        rows = torch.from_numpy(phase.order)
        for n, layer in enumerate(phase.layers):
            delta = torch.full((batch, self.sizes[n]), self._offset(n), dtype=torch.uint8)
            delta[rows] = layer.delta
            layer.delta = delta
        phase.order = np.arange(batch)

    def _keep(self, phase: DeepPhase, rows: Array) -> None:
        """Go on with some of the rows only."""
        phase.order = phase.order[rows]
        for layer in phase.layers:
            layer.delta = layer.delta[torch.from_numpy(rows)]

    def _step(
        self,
        phase: DeepPhase,
        target: Array,
        rest: Array,
        nudging: Nudging,
        measured: bool,
        scratch: Array,
    ) -> tuple[Array, Array]:
        """All layers move at once. Returns which rows have come to rest, and their changes."""
        order, layers, links = phase.order, phase.layers, phase.links
        still = np.ones(len(order), np.int64)
        changes = np.zeros(len(order) if measured else 0, np.float32)
        ups: list[Array] = [NO_SUMS]
        downs: list[Array] = []
        for n, link in enumerate(links, start=1):
            coupling, below, above = self.couplings[n], layers[n - 1], layers[n]
            assert coupling is not None
            risen = coupling.up(below.delta).numpy()
            if isinstance(coupling, Filters):
                field = torch.empty((len(order), link.field.shape[1]), dtype=torch.uint8)
                run_shares(
                    kernels.pool_share,
                    order,
                    coupling.pool,
                    risen,
                    below.shift,
                    link.sums,
                    link.pooled,
                    link.winners,
                    above.sent,
                    self._shares(n),
                    link.field,
                    field.numpy(),
                    link.shift,
                    still,
                    scratch,
                )
                downs.append(coupling.down(field).numpy())
                ups.append(NO_SUMS)
            else:
                downs.append(coupling.down(above.delta).numpy())
                ups.append(risen)
        # Those of what has just come through; the layers now choose the next ones.
        shifts = [layer.shift.copy() for layer in layers]
        for n, layer in enumerate(layers):
            link = links[n - 1] if n else None
            over = links[n] if n < len(links) else None
            gain, bias = self._gains(n)
            top = over is None
            run_shares(
                kernels.advance_share,
                order,
                phase.first if link is None else NO_FLOATS,
                NO_SUMS if link is None else link.pooled,
                ups[n],
                shifts[n - 1] if n else NO_SHIFT,
                gain,
                bias,
                downs[n] if over is not None else NO_SUMS,
                over.down if over is not None else NO_SUMS,
                NO_SHIFT if over is None else (over.shift if len(over.shift) else shifts[n + 1]),
                np.float32(0 if over is None else self._down_gain(n + 1)),
                layer.state,
                layer.sent,
                layer.delta.numpy(),
                layer.shift,
                np.float32(self.units[n]),
                self._offset(n),
                target,
                rest,
                nudging if top else FREE,
                still,
                changes,
                scratch,
            )
        return still, changes

    # --- scales, as they are in this mini-batch

    def take_scales(self) -> None:
        """Read the couplings' scales and biases, which stay as they are during a mini-batch."""
        self._up_gains, self._share, self._down_gains = [], [], []
        for n, coupling in enumerate(self.network.couplings):
            shape = self.network.shapes[n + 1]
            channels, places = shape[0], torch.Size(shape[1:]).numel()
            scale = coupling.scale.detach().numpy().reshape(-1)
            unit = self.units[n - 1] if n else 1.0
            gain = np.tile(np.broadcast_to(scale / np.float32(unit), (channels,)), places)
            bias = np.zeros(channels, np.float32)
            if coupling.bias is not None:
                bias = coupling.bias.detach().numpy()
            self._up_gains.append((gain, np.tile(bias, places)))
            largest = scale.max()
            conv = isinstance(self.couplings[n], Filters)
            sent_down = field_unit(coupling) if conv else self.units[n]
            self._share.append((scale / largest * sent_down / self.units[n]).astype(np.float32))
            self._down_gains.append(float(largest) / sent_down)

    def _gains(self, n: int) -> tuple[Array, Array]:
        return self._up_gains[n]

    def _shares(self, n: int) -> Array:
        return self._share[n]

    def _down_gain(self, n: int) -> float:
        return self._down_gains[n]


def _copied(link: Link) -> Link:
    sums = link.sums.copy()
    pooled = sums if link.pooled is link.sums else link.pooled.copy()
    return Link(
        sums,
        pooled,
        link.winners,
        link.down.copy(),
        link.field.copy(),
        link.shift.copy(),
    )


def nudging(network: Network, learning: EquilibriumPropagation, beta: float) -> Nudging:
    """The nudge of a mini-batch, in the numbers of kernels."""
    clamped = bool(getattr(network.dynamics, "clamp_nudged", True))
    live = learning.nudge == "live"
    return Nudging(True, live, np.float32(beta), clamped, network.sends_state)
