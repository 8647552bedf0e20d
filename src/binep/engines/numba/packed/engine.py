"""The packed engine: mini-batches of binary activations, bit for bit as the reference has them."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from binep.core import metrics
from binep.core.couplings import ConvPool, Dense, levels
from binep.core.dynamics import EnergyBased
from binep.core.gradients import Learning
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.neurons import Heaviside
from binep.core.optim import Optimizers
from binep.core.relaxation import Relaxation
from binep.engines.activity import Activity
from binep.engines.numba.cpu_engine import InPlaceEngine
from binep.engines.numba.jit import announce, kernel_threads, run_shares
from binep.engines.numba.packed import learning as learn
from binep.engines.numba.packed.layout import Layout, fan_in
from binep.engines.numba.packed.relaxing import Found, Motion, Synapses, relax_share
from binep.engines.numba.pixels import convolve_share
from binep.errors import BinepError

Array = Any

# Sums stay exact in float32, as the reference's do, below this.
LARGEST_SUM = 2**24


class Input(NamedTuple):
    """A clamped mini-batch and what it exerts on the first layer, in its packed order.

    Attributes:
        x: (batch, *input_shape).
        drive: float32, (batch, cells); nothing where relaxing sums the pixels itself.
        switches: int32, (batch, cells), those of a pool; nothing where there is none. Pixels have
            them for every convolution: each neuron's own place if none pools.
    """

    x: Tensor
    drive: Array
    switches: Array


class PackedEngine(InPlaceEngine):
    """Trains networks of binary weights and activations on the CPU; see `ReferenceEngine`.

    The packed weights are a copy; signs, momenta, biases and scales are changed where they are, in
    the network and its optimizers, which so hold the state of training at any time. If someone else
    changes them, the copy is made anew.

    `activity` counts what it has done: steps in which bits of a sample changed or might have (in
    the others only nudged outputs are stepped), bits that changed, entries of momenta touched.

    Args:
        early_stop: let neurons rest whose bits cannot change; the results are the same without.
    """

    name = "packed"
    precision = "bits, float32"

    def __init__(
        self,
        network: Network,
        learning: Learning,
        optimizers: Optimizers,
        *,
        early_stop: bool = True,
    ) -> None:
        needs = {
            "binary activations, neuron=Heaviside(...)": isinstance(network.neuron, Heaviside),
            "dynamics='energy'": isinstance(network.dynamics, EnergyBased),
        }
        super().__init__(network, learning, optimizers, needs)
        _check_sums(network)
        self.early_stop = early_stop
        self._layout = Layout(network)
        self._bits = np.zeros(self._layout.words, np.uint64)
        self._motion = _motion(network)
        self._scaled: list[Any] = [None] * len(network.couplings)
        # The thresholds at which all momenta have been found not to flip anything (more).
        self._tested: dict[int, tuple[Any, float]] = {}
        self._samples = None
        # Of each dense coupling: where its columns stand in the packed layer below, and the way
        # back; and lists of active neurons below.
        self._columns = [
            np.empty(0, np.int64) if conv else self._layout.columns(n)
            for n, conv in enumerate(self._layout.wiring.conv)
        ]
        self._synapse = [
            _inverse(columns, self._layout.below(n).cells)
            for n, columns in enumerate(self._columns)
        ]
        self._lists: dict[int, Array] = {}
        # Only convolutions of a real input are left to torch's own threads.
        self.own_threads = all(isinstance(coupling, Dense) for coupling in network.couplings)
        neurons = self._layout.cells
        self._synapses = Synapses(self._bits, *(np.zeros(neurons, np.float32) for _ in range(3)))

    # --- what every engine offers ---------------------------------------------------------------

    @torch.no_grad()
    def train(self, x: Tensor, labels: Tensor) -> None:
        """One training step on a mini-batch, (batch, *input_shape), with labels, (batch,)."""
        ep = self.learning
        beta = ep.beta * (ep.draw_sign() if ep.sign == "random" else 1)
        clamped, target = self._clamp(x), self.network.target(labels)
        found, steps = self._phases(clamped, target, beta)
        seen = metrics.tally(self.network, self._free(found, steps), labels, target)
        span, base = (2 * beta, 2) if ep.sign == "centered" else (beta, 0)
        flips = self._learn(clamped, found, base, span)
        self._step_the_rest()
        self._tally += seen.having(flips=flips, nudged_steps=steps[1] + steps[2])

    @torch.no_grad()
    def evaluate(self, x: Tensor, labels: Tensor) -> Tally:
        """Read a mini-batch out of the free phase, without learning from it."""
        target = self.network.target(labels)
        found, steps = self._phases(self._clamp(x), target, None)
        return metrics.tally(self.network, self._free(found, steps), labels, target)

    @torch.no_grad()
    def relax(self, x: Tensor, labels: Tensor, beta: float) -> list[list[Tensor]]:
        """The states s1..sN after the free phase, nudged by beta and, if centered, by -beta."""
        target = self.network.target(labels)
        found, steps = self._phases(self._clamp(x), target, beta, keep=True)
        return [
            [
                torch.from_numpy(
                    layer.gather(found.states[phase, :, layer.start : layer.start + layer.cells])
                ).reshape(len(x), *shape)
                for layer, shape in zip(self._layout.layers, self.network.layer_shapes, strict=True)
            ]
            for phase in range(3)
            if steps[phase]
        ]

    # --- relaxation -----------------------------------------------------------------------------

    def _clamp(self, x: Tensor) -> Input:
        """What does not change while a mini-batch relaxes, with the signs as they are now."""
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
            run_shares(
                convolve_share,
                x.to(torch.uint8).contiguous().numpy(),
                np.pad(signs, [(0, 0)] * 3 + [(0, cells - first.channels)]),
                (coupling.padding, coupling.pool, first.rows, first.cols),
                self._pixel_gain(x)[:cells],
                self._synapses.bias[:cells],
                drive,
                switches,
            )
        return Input(x, drive, switches)

    def _pixel_gain(self, x: Tensor) -> Array:
        """What sums over the input are scaled with, a neuron of the first layer."""
        first = self._layout.layers[0]
        gain = self.network.couplings[0].scale.detach() / levels(x)
        return first.spread(np.broadcast_to(gain.numpy(), (first.channels,)))

    def _load(self) -> None:
        """Pack the signs again where the network's have been changed by someone else."""
        for n in self._changed_signs():
            self._layout.pack_signs(n, self.network.couplings[n].signs, self._bits)
            self._tested.pop(n, None)
        for n, (coupling, layer) in enumerate(
            zip(self.network.couplings, self._layout.layers, strict=True)
        ):
            here = slice(layer.start, layer.start + layer.cells)
            if coupling.bias is not None:
                self._synapses.bias[here] = layer.spread(coupling.bias.detach().numpy())
            version = (coupling.scale.data_ptr(), coupling.scale._version)
            if self._scaled[n] == version:
                continue
            self._scaled[n] = version
            scale = coupling.scale.detach().numpy().reshape(-1)
            gain = np.broadcast_to(scale, (layer.channels,))
            self._synapses.gain[here] = layer.spread(gain)
            if n and not self._layout.wiring.conv[n]:
                below = self._layout.layers[n - 1]
                ones = np.full(below.channels, scale[0], np.float32)
                self._synapses.gain_down[below.start : below.start + below.cells] = below.spread(
                    ones
                )

    def _phases(
        self, clamped: Input, target: Tensor, beta: float | None, *, keep: bool = False
    ) -> tuple[Found, list[int]]:
        """Run the free phase and, with a beta, the nudged ones; and how many steps each took."""
        ep = self.learning
        steps = [ep.free_steps, ep.nudged_steps, ep.nudged_steps]
        if beta is None:
            steps[1:] = 0, 0
        elif ep.sign != "centered":
            steps[2] = 0
        tolerance = ep.tolerance
        if tolerance is None:
            return self._run(clamped, target, beta, steps, keep, False), steps
        # A mini-batch settles as a whole: see when each phase does, then run it so far.
        for phase, count in enumerate(steps):
            if count:
                tried = [*steps[: phase + 1], *[0] * (2 - phase)]
                trace = self._run(clamped, target, beta, tried, False, True).residuals[phase]
                settled = np.flatnonzero(trace[:, :count].max(0) <= np.float32(tolerance))
                steps[phase] = int(settled[0]) + 1 if len(settled) else count
        return self._run(clamped, target, beta, steps, keep, False), steps

    def _run(
        self,
        clamped: Input,
        target: Tensor,
        beta: float | None,
        steps: list[int],
        keep: bool,
        trace: bool,
    ) -> Found:
        announce(relax_share)
        layout, batch = self._layout, len(target)
        threads = kernel_threads()
        if self._samples is None or len(self._samples.s) != 3 * threads:
            self._samples = layout.samples(3 * threads)
        cells, x = layout.cells, clamped.x
        # Where there is no drive yet, the kernel sums the pixels.
        summed = len(clamped.drive) > 0
        pixels = np.empty((0, 0), np.uint8) if summed else _pixels(x)
        pixel_gain = np.empty(0, np.float32) if summed else self._pixel_gain(x)
        found = Found(
            bits=np.empty((3, batch, cells // 64), np.uint64),
            switches=np.empty((3, batch if layout.hidden_conv else 0, cells), np.int32),
            top=np.empty((batch, layout.layers[-1].channels), np.float32),
            states=np.empty((3, batch if keep else 0, cells), np.float32),
            residuals=np.zeros((3, batch, max(2, *steps) if trace else 1), np.float32),
            events=np.zeros(batch, np.int64),
            steps=np.zeros(batch, np.int64),
        )
        run_shares(
            relax_share,
            layout.wiring,
            self._synapses,
            self._motion,
            self._samples,
            clamped.drive,
            pixels,
            pixel_gain,
            target.contiguous().numpy(),
            np.float32(0 if beta is None else beta),
            self.learning.nudge == "live",
            np.float32(0 if beta is None else self.learning.margin),
            np.array(steps, np.int64),
            self.early_stop and not trace,
            found,
        )
        self.activity += Activity(
            samples=batch, steps=int(found.steps.sum()), events=int(found.events.sum())
        )
        return found

    def _free(self, found: Found, steps: list[int]) -> Relaxation:
        """The free phase as far as it is read out: the output neurons and the last residual."""
        residuals = torch.zeros(steps[0])
        residuals[-1] = float(found.residuals[0].max())
        return Relaxation([torch.from_numpy(found.top)], [], residuals)

    # --- learning -------------------------------------------------------------------------------

    def _learn(self, clamped: Input, found: Found, base: int, span: float) -> list[int]:
        """Step Bop on every coupling and leave the gradients of biases and scales in `.grad`."""
        plus, minus, batch = found.bits[1], found.bits[base], len(clamped.x)
        contrast = learn.contrast_bits(plus, minus)
        flips = []
        for n, coupling in enumerate(self.network.couplings):
            layer = self._layout.layers[n]
            factor = -1 / (span * batch * (levels(clamped.x) if n == 0 else 1))
            flips.append(self._bop(n, clamped, found, base, factor))
            if coupling.bias is not None:
                here = layer.gather(contrast[layer.start : layer.start + layer.cells])
                here = here.reshape(layer.channels, -1).sum(1)
                difference = torch.from_numpy(here.astype(np.float32))
                coupling.bias.grad = -1 / (span * batch) * difference
        return self._in_order(flips)

    def _bop(self, n: int, clamped: Input, found: Found, base: int, factor: float) -> int:
        coupling, layer = self.network.couplings[n], self._layout.layers[n]
        if n == 0 and clamped.x.is_floating_point():
            return self._bop_real(clamped, found, base, factor)
        wiring, signs = self._layout.wiring, coupling.signs
        bop, group = self._bop_of(n)
        at_rest = not bop.state[signs] and group["noise"] == 0
        rate, bound = bop.prepare(signs, group)
        state = bop.state[signs]
        if not state["momentum"].is_contiguous():
            state["momentum"] = state["momentum"].contiguous()
        momentum = state["momentum"]
        # Momenta without a gradient cannot flip anything, unless they have never been compared
        # with a threshold as low as this one.
        known, tested = self._tested.get(n, (None, math.inf))
        if at_rest:
            tested = -math.inf
        elif known != (momentum.data_ptr(), momentum._version):
            tested = math.inf
        bopping = learn.Bopping(
            momentum.numpy().reshape(layer.channels, -1),
            signs.detach().numpy().reshape(layer.channels, -1),
            self._bits,
            int(wiring.up_at[n]),
            int(wiring.up_words[n]),
            int(wiring.down_at[n]),
            int(wiring.down_words[n]),
            np.float32(factor),
            np.float32(rate),
            np.float32(bound),
        )
        overlaps = np.zeros((kernel_threads(), layer.channels), np.int64)
        flips, touched = self._coincide(n, bopping, clamped, found, base, overlaps)
        if np.float32(bound) < tested:
            columns = self._columns[n]
            taps = int(wiring.kernel[n] ** 2)
            flips += sum(run_shares(learn.flip_share, bopping, columns, taps))
        self._tested[n] = ((momentum.data_ptr(), momentum._version), float(np.float32(bound)))
        state["flips"] += int(flips)
        self._set_scale_gradient(n, torch.from_numpy(overlaps.sum(0)), factor)
        self.activity += Activity(coincidences=int(touched))
        return int(flips)

    def _coincide(
        self,
        n: int,
        bopping: learn.Bopping,
        clamped: Input,
        found: Found,
        base: int,
        overlaps: Array,
    ) -> tuple[int, int]:
        """Add coupling n's contrast to its momentum and flip; flips and entries touched."""
        layout, layer = self._layout, self._layout.layers[n]
        plus, minus = found.bits[1], found.bits[base]
        if not layout.wiring.conv[n]:
            columns = self._columns[n]
            if n == 0:
                pixels = _pixels(clamped.x)
                args = (bopping, pixels, plus, minus, layer.span, columns, overlaps[0])
                return _sums(run_shares(learn.learn_pixels_share, *args))
            below = layout.below(n)
            shape, lists = (len(overlaps), 4 * len(plus) * below.cells), self._lists.get(n)
            if lists is None or lists.shape != shape:
                # Pages that are never written to take no memory.
                lists = self._lists[n] = np.empty(shape, np.int32)
            spans = (below.span, layer.span, self._synapse[n], columns)
            in_order = below.places == 1
            args = (bopping, plus, minus, *spans, in_order, lists, overlaps)
            return _sums(run_shares(learn.learn_dense_share, *args))
        below, pixels = layout.below(n), np.empty((0, 0, 0, 0), np.uint8)
        if n == 0:
            pixels = clamped.x.to(torch.uint8).numpy()
            plus_switches = minus_switches = clamped.switches
        else:
            plus_switches, minus_switches = found.switches[1], found.switches[base]
        window = learn.Window(
            kernel=int(layout.wiring.kernel[n]),
            padding=int(layout.wiring.padding[n]),
            rows=below.rows,
            cols=below.cols,
            channels=below.channels,
            words=below.words,
            map_cols=int(layout.wiring.map_cols[n]),
        )
        shares = run_shares(
            learn.learn_conv_share,
            bopping,
            window,
            pixels,
            plus,
            minus,
            plus_switches,
            minus_switches,
            below.span if n else (0, 0),
            layer.span,
            overlaps[0],
        )
        return _sums(shares)

    def _bop_real(self, clamped: Input, found: Found, base: int, factor: float) -> int:
        """The first coupling's step for real inputs: sums of real numbers, as the reference's."""
        coupling, layer = self.network.couplings[0], self._layout.layers[0]
        bop, group = self._bop_of(0)
        first, last = layer.span
        shape, switches = (len(clamped.x), *self.network.layer_shapes[0]), None
        if len(clamped.switches):
            switches = torch.from_numpy(layer.gather(clamped.switches)).long().reshape(shape)

        def correlate(bits: Array) -> Tensor:
            words = np.ascontiguousarray(bits[:, first:last])
            cells = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
            above = torch.from_numpy(layer.gather(cells)).bool()
            return coupling.correlate(clamped.x, above.reshape(shape), switches)

        contrast = correlate(found.bits[1])
        contrast -= correlate(found.bits[base])
        coupling.synapses.set_gradient_from_contrast(contrast, factor)
        flips = bop._flip(coupling.signs, group)
        coupling.signs.grad = None
        return flips


def _sums(shares: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(share[0] for share in shares), sum(share[1] for share in shares)


def _pixels(x: Tensor) -> Array:
    """Pixels, or bits, as bytes, (batch, features)."""
    return x.flatten(1).to(torch.uint8).contiguous().numpy()


def _inverse(places: Array, size: int) -> Array:
    """Which entry of `places` holds each of the numbers below `size`; 0 where none does."""
    inverse = np.zeros(size, np.int64)
    inverse[places] = np.arange(len(places))
    return inverse


def _motion(network: Network) -> Motion:
    """The network's dynamics in the numbers that torch computes with: float32."""
    neuron, dynamics = network.neuron, network.dynamics
    assert isinstance(neuron, Heaviside) and isinstance(dynamics, EnergyBased)
    threshold, sigma = np.float32(neuron.threshold), np.float32(neuron.sigma)
    slope = np.float32(1 / (2 * neuron.sigma))
    reach = np.array([0, 1, network.initial_state], np.float32)
    listening = bool((np.abs(reach - threshold) <= sigma).all())
    return Motion(
        keep=np.float32(1 - dynamics.dt),
        take=np.float32(dynamics.dt),
        threshold=threshold,
        sigma=sigma,
        slope=slope,
        windowed=not (listening and slope == 1),
        initial=np.float32(network.initial_state),
        below=np.nextafter(threshold, np.float32(-np.inf)),
    )


def _check_sums(network: Network) -> None:
    """Refuse sums that are too large."""
    for n, coupling in enumerate(network.couplings):
        largest = (fan_in(coupling) + 8) * (255 if n == 0 else 1)
        if largest >= LARGEST_SUM:
            raise BinepError(
                f"engine 'packed': sums of coupling {n} reach {largest}: allowed is less than "
                f"{LARGEST_SUM}, so that they are exact in float32"
            )
