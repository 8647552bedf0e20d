"""The packed engine: binary activations, bit for bit as in the reference."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from binep.core.couplings import ConvPool, Dense, gain_of
from binep.core.network import Network
from binep.core.plan import ContrastPlan, PhasePlan
from binep.engines.activity import Activity
from binep.engines.numba import PACKED
from binep.engines.numba.cpu_engine import CpuEngine, Ends, Rates
from binep.engines.numba.jit import announce, kernel_threads, run_shares
from binep.engines.numba.packed import coincidences as learn
from binep.engines.numba.packed.dense_events import Synapses
from binep.engines.numba.packed.layout import Layout
from binep.engines.numba.packed.relaxing import Found, Net, Phases, relax_share
from binep.engines.numba.packed.sample import new_sample
from binep.engines.numba.packed.settling import Chain, settle_share
from binep.engines.numba.packed.stepping import Motion
from binep.engines.numba.pixels import convolve_share

Array = Any


class Input(NamedTuple):
    """A clamped mini-batch and its drive on the first layer, in packed order.

    Attributes:
        x: (batch, *input_shape).
        drive: float32, (batch, cells); nothing where relaxing sums the pixels itself.
        switches: int32, (batch, cells), those of a pool; nothing where there is none. Pixels have
            them for every convolution: each neuron's own place if none pools.
    """

    x: Tensor
    drive: Array
    switches: Array


@dataclass
class PackedEnds(Ends):
    found: Found


class Sides(NamedTuple):
    """The two ends of phases that are contrasted.

    Attributes:
        plus, minus: packed activities, (batch, words), and switches of the hidden pools.
        difference: `sum over samples of (plus - minus)`, one per neuron.
    """

    clamped: Input
    plus: Array
    minus: Array
    plus_switches: Array
    minus_switches: Array
    difference: Array


class PackedEngine(CpuEngine):
    """Trains networks of binary weights and activations on the CPU; see `ReferenceEngine`.

    The packed signs are a copy. `activity` counts steps in which bits of a sample changed or could
    have (in the others only nudged outputs are stepped), bits that changed, and momentum entries
    touched.
    """

    name = "packed"
    precision = "bits, float32"
    capabilities = PACKED

    def _set_up(self) -> None:
        network = self.network
        layout = self._layout = Layout(network)
        self._scaled: list[Any] = [None] * len(network.couplings)
        # The thresholds at which all momenta have been found not to flip anything (more).
        self._tested: dict[int, tuple[Any, float]] = {}
        self._rooms: list[tuple[Any, Array]] = []
        # Of each dense coupling: where its columns stand in the packed layer below, and the way
        # back; and lists of active neurons below.
        below = [layout.below(n) for n in range(len(layout.layers))]
        self._columns = [
            np.empty(0, np.int64) if conv else layer.neurons
            for layer, conv in zip(below, layout.wiring.conv, strict=True)
        ]
        self._synapse = [
            _inverse(columns, layer.cells)
            for layer, columns in zip(below, self._columns, strict=True)
        ]
        self._lists: dict[int, Array] = {}
        self._contrasts: dict[int, Tensor] = {}
        # Only convolutions of a real input are left to torch's own threads.
        self.own_threads = all(isinstance(coupling, Dense) for coupling in network.couplings)
        gain, bias, gain_down = (np.zeros(layout.cells, np.float32) for _ in range(3))
        # Powers of two, so that it does not matter where they are multiplied with.
        feedback = np.array(network.feedback, np.float64)
        bits = np.zeros(layout.words, np.uint64)
        self._synapses = Synapses(bits, gain, bias, gain_down, feedback)
        still = layout.wiring, self._synapses
        self._net: Net | Chain = (
            Chain(*still, *_levels(network))
            if network.dynamics.bits
            else Net(*still, _motion(network))
        )

    # --- relaxation -----------------------------------------------------------------------------

    def _clamp(self, x: Tensor) -> Input:
        self._load()
        x = self.network.check(x)
        first, coupling = self._layout.layers[0], self.network.couplings[0]
        drive, switches = np.empty((0, 0), np.float32), np.empty((0, 0), np.int32)
        if x.is_floating_point():
            real_drive, real_switches = coupling.up(x)
            drive = first.spread(real_drive.flatten(1).numpy())
            if real_switches is not None:
                switches = first.spread(real_switches.flatten(1).numpy().astype(np.int32))
        elif isinstance(coupling, ConvPool):
            drive = np.empty((len(x), first.cells), np.float32)
            switches = np.empty((len(x), first.cells), np.int32)
            cells, signs = 64 * first.words, coupling.signs.detach().movedim(0, -1).numpy()
            signs = np.pad(signs, [(0, 0)] * 3 + [(0, cells - first.channels)])
            shape = coupling.padding, coupling.pool, first.rows, first.cols
            scales = self._pixel_gain(x)[:cells], self._synapses.bias[:cells]
            images = x.to(torch.uint8).contiguous().numpy()
            run_shares(convolve_share, images, signs, shape, *scales, drive, switches)
        return Input(x, drive, switches)

    def _pixel_gain(self, x: Tensor) -> Array:
        """What sums over the input are scaled with, a neuron of the first layer."""
        first = self._layout.layers[0]
        gain = gain_of(self.network.couplings[0].synapses, x).detach()
        return first.spread(np.broadcast_to(gain.numpy(), (first.channels,)))

    def _load(self) -> None:
        """Pack signs and spread scales again where the network's have changed; and biases."""
        layers, synapses = self._layout.layers, self._synapses
        for n in self._changed_signs():
            self._layout.pack_signs(n, self.network.couplings[n].signs, synapses.bits)
            self._tested.pop(n, None)
        for n, (coupling, layer) in enumerate(zip(self.network.couplings, layers, strict=True)):
            here = slice(layer.start, layer.start + layer.cells)
            if coupling.bias is not None:
                synapses.bias[here] = layer.spread(coupling.bias.detach().numpy())
            version = (coupling.scale.data_ptr(), coupling.scale._version)
            if self._scaled[n] == version:
                continue
            self._scaled[n] = version
            scale = coupling.scale.detach().numpy().reshape(-1)
            synapses.gain[here] = layer.spread(np.broadcast_to(scale, (layer.channels,)))
            if n and not self._layout.wiring.conv[n]:
                below = layers[n - 1]
                sent = np.float32(scale[0] * synapses.feedback[n])
                gain = below.spread(np.full(below.channels, sent, np.float32))
                synapses.gain_down[below.start : below.start + below.cells] = gain

    def _run(self, clamped: Input, target: Tensor, plan: ContrastPlan) -> PackedEnds:
        phases, bits_alone = list(plan.phases), self.network.dynamics.bits
        # A mini-batch settles as a whole: see when each phase does, then run it so far.
        waits = plan.tolerance is not None and not bits_alone
        for n, phase in enumerate(phases if waits else []):
            tried = self._relax(clamped, target, plan.margin, phases[: n + 1], trace=True)
            trace = tried.residuals[n, :, : phase.steps].max(0)
            settled = np.flatnonzero(trace <= np.float32(plan.tolerance))
            if len(settled):
                phases[n] = replace(phase, steps=int(settled[0]) + 1)
        found = self._relax(clamped, target, plan.margin, phases)
        residual = float(found.residuals[0].max())
        steps = found.steps.max(1).tolist() if bits_alone else [phase.steps for phase in phases]
        return PackedEnds(clamped.x, steps, torch.from_numpy(found.top), residual, found)

    def _relax(
        self, clamped: Input, target: Tensor, margin: float, phases: list[PhasePlan], *,
        trace: bool = False,
    ) -> Found:  # fmt: skip
        layout, batch, count = self._layout, len(target), len(phases)
        cells, x = layout.cells, clamped.x
        steps = [phase.steps for phase in phases]
        # Where there is no drive yet, the kernel sums the pixels.
        pixels = np.empty((0, 0), np.uint8), np.empty(0, np.float32)
        if not len(clamped.drive):
            pixels = _pixels(x), self._pixel_gain(x)
        plan = Phases(
            np.array(steps, np.int64),
            np.array([-1 if phase.start is None else phase.start for phase in phases], np.int64),
            np.array([phase.beta for phase in phases], np.float32),
            np.array([not phase.constant for phase in phases], np.float32),
        )
        found = Found(
            bits=np.empty((count, batch, cells // 64), np.uint64),
            switches=np.empty((count, batch if layout.hidden_conv else 0, cells), np.int32),
            top=np.empty((batch, layout.layers[-1].channels), np.float32),
            residuals=np.zeros((count, batch, max(2, *steps, 0) if trace else 1), np.float32),
            events=np.zeros(batch, np.int64),
            steps=np.zeros((count, batch), np.int64),
        )
        targets, own = target.contiguous().numpy(), self._own(count + 1)
        args = clamped.drive, *pixels, targets, np.float32(margin), plan
        if isinstance(self._net, Chain):
            announce(settle_share)
            run_shares(settle_share, self._net, *args, found, own=own)
        else:
            announce(relax_share)
            early = self.early_stop and not trace
            run_shares(relax_share, self._net, *args, early, found, own=own)
        self.activity += Activity(
            samples=batch, steps=int(found.steps.sum()), events=int(found.events.sum())
        )
        return found

    def _own(self, kept: int) -> list[tuple[Any, Array]]:
        """Each thread's workspace: a sample, and so many states of samples."""
        threads = kernel_threads()
        if len(self._rooms) != threads or len(self._rooms[0][1]) < kept:
            bits_alone = self.network.dynamics.bits
            samples = [new_sample(self._layout, bits_alone) for _ in range(threads)]
            self._rooms = [(s, np.zeros((kept, len(s.state)), np.uint64)) for s in samples]
        return self._rooms

    # --- learning -------------------------------------------------------------------------------

    def _prepare(self, clamped: Input, ends: PackedEnds, plan: ContrastPlan) -> Sides:
        found, both = ends.found, [plan.plus, plan.minus]
        plus, minus = found.bits[both[0]], found.bits[both[1]]
        switches = found.switches[both[0]], found.switches[both[1]]
        return Sides(clamped, plus, minus, *switches, learn.contrast_bits(plus, minus))

    def _contrast_bias(self, n: int, sides: Sides) -> Tensor:
        return self._by_channel(n, sides.difference)

    def _activity(self, ends: PackedEnds) -> list[Tensor]:
        bits = ends.found.bits[0]
        counts = learn.contrast_bits(bits, np.zeros_like(bits))
        return [self._by_channel(n, counts) for n in range(len(self._layout.layers))]

    def _by_channel(self, n: int, counts: Array) -> Tensor:
        """Of numbers, one per cell, the sums over the positions of each of layer n's channels."""
        layer = self._layout.layers[n]
        here = layer.gather(counts[layer.start : layer.start + layer.cells])
        return torch.from_numpy(here.reshape(layer.channels, -1).sum(1).astype(np.float32))

    def _step_bop(self, n: int, sides: Sides, factor: float, contrast: Tensor | None) -> int:
        if n == 0 and sides.clamped.x.is_floating_point():
            return self._step_bop_on_real_input(sides, factor, contrast)
        return super()._step_bop(n, sides, factor, contrast)

    def _flip(
        self, n: int, sides: Sides, rates: Rates, contrast: Tensor | None
    ) -> tuple[int, Tensor]:
        momentum = self._momentum(n)
        # Momenta without a gradient cannot flip anything, unless they have never been compared
        # with a threshold as low as this one.
        known, tested = self._tested.get(n, (None, math.inf))
        if rates.at_rest:
            tested = -math.inf
        elif known != (momentum.data_ptr(), momentum._version):
            tested = math.inf
        bound = np.float32(rates.bound)
        bop = self._bop(n, momentum, rates)
        overlaps = np.zeros((kernel_threads(), self._layout.layers[n].channels), np.int64)
        if contrast is None:
            shares = self._coincide(n, bop, sides, overlaps)
        else:
            whole = contrast.numpy().reshape(len(bop.signs), -1)
            shares = run_shares(learn.learn_contrast_share, bop, whole, overlaps[0])
        flips, touched = (int(sum(counts)) for counts in zip(*shares, strict=True))
        if bound < tested:
            flips += sum(run_shares(learn.flip_share, bop))
        self._tested[n] = ((momentum.data_ptr(), momentum._version), float(bound))
        self.activity += Activity(coincidences=touched)
        return flips, torch.from_numpy(overlaps.sum(0))

    def _bop(self, n: int, momentum: Tensor, rates: Rates) -> learn.Bop:
        """Coupling n's synapses, their momenta and the numbers of a step, for the kernels."""
        channels, wiring = self._layout.layers[n].channels, self._layout.wiring
        return learn.Bop(
            momentum.numpy().reshape(channels, -1),
            self.network.couplings[n].signs.detach().numpy().reshape(channels, -1),
            self._synapses.bits,
            int(wiring.up_at[n]),
            int(wiring.up_words[n]),
            int(wiring.down_at[n]),
            int(wiring.down_words[n]),
            self._columns[n],
            int(wiring.kernel[n] ** 2),
            np.float32(rates.factor),
            np.float32(rates.rate),
            np.float32(rates.bound),
        )

    def _contrast(self, n: int, sides: Sides) -> Tensor:
        if n == 0 and sides.clamped.x.is_floating_point():
            return self._contrast_of_real_input(sides)
        # A step of rate 1 moves momenta from 0 by the contrast; nothing is beyond the bound.
        if n not in self._contrasts:
            self._contrasts[n] = torch.empty_like(self.network.couplings[n].signs)
        contrast = self._contrasts[n].zero_()
        overlaps = np.zeros((kernel_threads(), self._layout.layers[n].channels), np.int64)
        bop = self._bop(n, contrast, Rates(1.0, 1.0, math.inf, at_rest=True))
        self._coincide(n, bop, sides, overlaps)
        return contrast

    def _coincide(self, n: int, bop: learn.Bop, sides: Sides, overlaps: Array) -> list[Any]:
        """Add coupling n's contrast to its momentum and flip; flips and entries touched."""
        layout, x, (plus, minus) = self._layout, sides.clamped.x, sides[1:3]
        below, span, wiring = layout.below(n), layout.layers[n].span, layout.wiring
        if not wiring.conv[n] and n == 0:
            args = bop, _pixels(x), plus, minus, span, overlaps[0]
            return run_shares(learn.learn_pixels_share, *args)
        if not wiring.conv[n]:
            shape, lists = (len(overlaps), 4 * len(plus) * below.cells), self._lists.get(n)
            if lists is None or lists.shape != shape:
                # Pages that are never written to take no memory.
                lists = self._lists[n] = np.empty(shape, np.int32)
            in_order = below.places == 1
            args = bop, plus, minus, below.span, span, self._synapse[n], in_order, lists, overlaps
            return run_shares(learn.learn_dense_share, *args)
        pixels, switches = np.empty((0, 0, 0, 0), np.uint8), sides[3:5]
        if n == 0:
            pixels, switches = x.to(torch.uint8).numpy(), (sides.clamped.switches,) * 2
        window = learn.Window(
            int(wiring.kernel[n]), int(wiring.padding[n]), below.rows, below.cols, below.channels,
            below.words, int(wiring.map_cols[n]),
        )  # fmt: skip
        spans = below.span if n else (0, 0), span
        args = bop, window, pixels, plus, minus, *switches, *spans, overlaps[0]
        return run_shares(learn.learn_conv_share, *args)

    def _step_bop_on_real_input(self, sides: Sides, factor: float, contrast: Tensor | None) -> int:
        """The first coupling's step for real inputs: sums of real numbers, as the reference's."""
        coupling, (bop, group) = self.network.couplings[0], self._bop_of(0)
        if contrast is None:
            contrast = self._contrast_of_real_input(sides)
        coupling.synapses.set_gradient_from_contrast(contrast, factor)
        flips = bop._flip(coupling.signs, group)
        coupling.signs.grad = None
        return flips

    def _contrast_of_real_input(self, sides: Sides) -> Tensor:
        coupling, layer, x = self.network.couplings[0], self._layout.layers[0], sides.clamped.x
        shape, switches = (len(x), *self.network.layer_shapes[0]), None
        if len(sides.clamped.switches):
            places = torch.from_numpy(layer.gather(sides.clamped.switches))
            switches = places.long().reshape(shape)

        def correlate(bits: Array) -> Tensor:
            words = np.ascontiguousarray(bits[:, slice(*layer.span)])
            cells = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
            above = torch.from_numpy(layer.gather(cells)).bool()
            return coupling.correlate(x, above.reshape(shape), switches)

        contrast = correlate(sides.plus)
        contrast -= correlate(sides.minus)
        return contrast


def _pixels(x: Tensor) -> Array:
    """Pixels, or bits, as bytes, (batch, features)."""
    return x.flatten(1).to(torch.uint8).contiguous().numpy()


def _inverse(places: Array, size: int) -> Array:
    """Which entry of `places` holds each of the numbers below `size`; 0 where none does."""
    inverse = np.zeros(size, np.int64)
    inverse[places] = np.arange(len(places))
    return inverse


def _levels(network: Network) -> tuple[Any, Any]:
    """The threshold, and the state at t = 0, in float32."""
    neuron: Any = network.neuron
    return np.float32(neuron.threshold), np.float32(network.initial_state)


def _motion(network: Network) -> Motion:
    """The network's dynamics in the numbers that torch computes with: float32."""
    neuron: Any = network.neuron
    dynamics: Any = network.dynamics
    (threshold, initial), sigma = _levels(network), np.float32(neuron.sigma)
    height = np.float32(1 / (2 * neuron.sigma))
    reach = np.array([0, 1, network.initial_state], np.float32)
    listening = bool((np.abs(reach - threshold) <= sigma).all())
    return Motion(
        keep=np.float32(1 - dynamics.dt),
        take=np.float32(dynamics.dt),
        threshold=threshold,
        sigma=sigma,
        height=height,
        windowed=not (listening and height == 1),
        initial=initial,
        below=np.nextafter(threshold, np.float32(-np.inf)),
    )
