# pyright: reportCallIssue=false
"""Relaxer networks of real activations by what changes, until nothing does; see `deltas`."""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from binep.core.dynamics import Prototypical
from binep.core.network import Network
from binep.core.neurons import HardSigmoid
from binep.engines.cuda.deltas import product_kernel, send_kernel
from binep.engines.cuda.layout import Copies, FastDense, Tensors
from binep.engines.cuda.packing import Layout, padded
from binep.engines.cuda.relaxers.base import Phase, Relaxer, all_dense, power_of_two
from binep.engines.fixed_point import sent_units

OUTPUTS = 128  # of a tile
WIDEST = 8192  # neurons of a layer that fit into the registers of a program


class Tile(NamedTuple):
    """What one program of `product_kernel` adds up: some outputs, over a part of the terms.

    Attributes:
        source, terms: first neuron that sends, and how many.
        weights, stride, width: first byte of the first output's row, bytes from row to row, bytes
            of the part. plane, target, outputs: where the first sum goes, and how many.
    """

    source: int
    terms: int
    weights: int
    stride: int
    width: int
    plane: int
    target: int
    outputs: int


@dataclass
class Traffic(Tensors):
    """Where a mini-batch stands, all layers side by side, see `send_kernel`."""

    state: Tensor
    sent: Tensor
    delta: Tensor
    headers: Tensor
    up: Tensor
    down: Tensor


@dataclass
class Deltas(Relaxer):
    """Dense networks of binary weights and real, prototypical neurons."""

    @property
    def real_precision(self) -> str:
        return "int8 differences, float32"

    @staticmethod
    def copies(network: Network) -> Copies:
        return Copies(inner=torch.int8, packed=True)

    def __post_init__(self) -> None:
        self.sizes = [shape[0] for shape in self.network.layer_shapes]
        *self.offsets, self.total = accumulate(map(padded, self.sizes), initial=0)
        self.units = sent_units(self.network)
        self.unit_values = torch.tensor(self.units, device=self.device)
        inner = [fast for fast in self.couplings[1:] if isinstance(fast, FastDense)]
        self.packed = [fast.packed for fast in inner if fast.packed is not None]
        self._make_tiles()

    @staticmethod
    def fits(network: Network) -> bool:
        return (
            all_dense(network)
            and len(network.couplings) > 1
            and max(shape[0] for shape in network.layer_shapes) <= WIDEST
            and all(coupling.binary for coupling in network.couplings)
            and isinstance(network.neuron, HardSigmoid)
            and isinstance(network.dynamics, Prototypical)
            and not network.sends_state
        )

    def _make_tiles(self) -> None:
        """What the programs of `product_kernel` do, and where `send_kernel` finds their sums."""
        parts = [Layout.of(size).parts for size in self.sizes]
        self.down_plane = max(parts[:-1])
        self.planes = self.down_plane + max(parts[1:])
        tiles: list[Tile] = []
        for n, packed in enumerate(self.packed):
            tiles += self._tiles(n, n + 1, packed.up_at, packed.up, 0)
            tiles += self._tiles(n + 1, n, packed.down_at, packed.down, self.down_plane)
        # The longest first, so that none is begun last.
        tiles.sort(key=lambda tile: -tile.terms)
        self.tiles = torch.tensor(tiles, dtype=torch.int32, device=self.device)
        ups, downs = [0, *parts[:-1]], [*parts[1:], 0]
        rows = zip(map(padded, self.sizes), self.offsets, ups, downs, strict=True)
        self.table = torch.tensor(list(rows), dtype=torch.int32, device=self.device)

    def _tiles(
        self, source: int, target: int, weights: int, layout: Layout, plane: int
    ) -> list[Tile]:
        """The product of one coupling in one direction."""
        terms, outputs, span = padded(self.sizes[source]), padded(self.sizes[target]), layout.width
        return [
            Tile(
                source=self.offsets[source] + part * 8 * span,
                terms=min(8 * span, terms - part * 8 * span),
                weights=weights + start * layout.stride + part * span,
                stride=layout.stride,
                width=span,
                plane=plane + part,
                target=self.offsets[target] + start,
                outputs=min(OUTPUTS, outputs - start),
            )
            for part in range(layout.parts)
            for start in range(0, outputs, OUTPUTS)
        ]

    # --- phases

    def free(self, first: Tensor, steps: int) -> Phase:
        return self._run(first, self._begin(len(first)), steps)

    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase:
        rest: Traffic = free.carried
        return self._run(
            first, rest.clone(), self.learning.nudged_steps, labels, direction, rest.state
        )

    def _begin(self, batch: int) -> Traffic:
        """t = 0. All neurons start alike: what they first send is one number, sent exactly."""

        def room(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(batch, *shape or (self.total,), dtype=dtype, device=self.device)

        integer, initial = torch.int32, self.network.initial_state
        start = Traffic(
            state=room(torch.float32).fill_(initial),
            sent=room(integer),
            delta=room(torch.int8),
            headers=room(integer, len(self.sizes), 2),
            up=room(integer),
            down=room(integer),
        )
        for n, unit in enumerate(self.units):
            whole = round(min(max(initial, 0.0), 1.0) * unit)
            shift = max(0, whole.bit_length() - 7)
            if whole:
                layer = slice(self.offsets[n], self.offsets[n] + self.sizes[n])
                start.headers[:, n, 0] = shift
                start.headers[:, n, 1] = self.sizes[n] * (whole >> shift)
                start.delta[:, layer] = whole >> shift
                start.sent[:, layer] = whole >> shift << shift
        return start

    def _run(
        self,
        first: Tensor,
        now: Traffic,
        steps: int,
        labels: Tensor | None = None,
        direction: int = 1,
        rest: Tensor | None = None,
    ) -> Phase:
        batch, layers, integer = len(first), len(self.sizes), torch.int32
        # Rows of four, since kernels want addresses that are multiples of 16. A nudged output also
        # moves by itself: that nothing is sent does not mean that nothing will be.
        moving = torch.zeros(steps + 1, 4, dtype=integer, device=self.device)
        (moving[0] if labels is None else moving).fill_(1)
        sums = torch.empty(self.planes, batch, self.total, dtype=integer, device=self.device)
        changes = torch.zeros(batch, layers, device=self.device)
        headers, new_headers = now.headers, torch.empty_like(now.headers)
        gains, down_gains, bias = self._scales()
        drive = F.pad(first, (0, padded(first.shape[1]) - first.shape[1]))
        rows = min(64, max(16, power_of_two(batch)))
        for t in range(steps):
            product_kernel[(len(self.tiles), -(-batch // rows))](
                now.delta,
                self.packed[0].memory,
                sums,
                self.tiles,
                moving[t],
                batch,
                self.total,
                INTERPRETED=self.device.type == "cpu",
                ROWS=rows,
                OUTPUTS=OUTPUTS,
                DEPTH=64,
                num_warps=8,
                num_stages=2,
            )
            send_kernel[(batch, layers)](
                drive,
                sums,
                now.up,
                now.down,
                gains,
                down_gains,
                bias,
                self.unit_values,
                now.state,
                now.sent,
                now.delta,
                headers,
                new_headers,
                self.table,
                headers if labels is None else labels,
                self.beta,
                now.state if rest is None else rest,
                changes,
                moving[t],
                batch,
                self.total,
                self.network.per_class,
                direction,
                NUDGED=labels is not None,
                CONSTANT=self.learning.nudge == "constant",
                CLAMPED=self.network.dynamics.clamp_nudged,  # type: ignore[union-attr]
                MEASURED=t + 1 == steps,
                LAYERS=layers,
                DOWN=self.down_plane,
                BLOCK=power_of_two(max(self.sizes)),
                num_warps=16 if max(self.sizes) > 2048 else 4,
            )
            headers, new_headers = new_headers, headers
        now.headers = headers
        layer_states = [
            now.state[:, offset : offset + size]
            for offset, size in zip(self.offsets, self.sizes, strict=True)
        ]
        ran = (moving[:-1, 0] > 0).sum(dtype=integer).reshape(1)
        return Phase(layer_states, [], changes.max().reshape(1), ran, now)

    def _scales(self) -> tuple[Tensor, Tensor, Tensor]:
        """`send_kernel`'s gains, down_gains and bias, as they are in this mini-batch."""
        couplings = self.network.couplings[1:]
        scales = [coupling.synapses.gain.detach() for coupling in couplings]
        none = torch.zeros((), device=self.device)
        ups = [scale / unit for scale, unit in zip(scales, self.units[:-1], strict=True)]
        downs = [scale / unit for scale, unit in zip(scales, self.units[1:], strict=True)]
        bias = torch.zeros(self.total, device=self.device)
        for offset, coupling in zip(self.offsets[1:], couplings, strict=True):
            if coupling.bias is not None:
                bias[offset : offset + len(coupling.bias)] = coupling.bias.detach()
        return torch.stack([none, *ups]), torch.stack([*downs, none]), bias
