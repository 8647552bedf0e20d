"""Engines on the CPU, compiled by Numba: `packed` for bits, `delta` for real activations."""

import math
from collections.abc import Iterable

import torch

from binep.core.couplings import ConvPool
from binep.core.dynamics import EnergyBased, Hopfield, Prototypical
from binep.core.gradients import EquilibriumPropagation, Learning
from binep.core.network import Network
from binep.core.neurons import HardSigmoid, Heaviside
from binep.core.weights import BinaryWeight
from binep.engines.base import Capabilities
from binep.engines.fixed_point import sums_fit

EXACT_SUM = 2**24  # float32 holds the integers below it


def _limits_of_bits(network: Network, learning: Learning) -> Iterable[str]:
    if not all(math.frexp(d)[0] == 0.5 for d in network.energy_factors):
        yield f"powers of two as feedback, not {network.feedback}"
    for n, coupling in enumerate(network.couplings):
        kernel = coupling.synapses.kernel
        fan_in = kernel[0].numel()
        largest = (fan_in + 8) * (255 if n == 0 else 1)
        if largest >= EXACT_SUM:
            yield (
                f"sums below {EXACT_SUM}, so that they are exact in float32: those of coupling "
                f"{n} reach {largest}"
            )


def _differences(network: Network, learning: Learning) -> Iterable[str]:
    if not torch.backends.mkldnn.is_available():
        yield "torch with oneDNN"
    if not sums_fit(network, learning):
        yield "a smaller beta, where nudged outputs send states"
    for n, coupling in enumerate(network.couplings):
        if isinstance(coupling, ConvPool) and coupling.padding >= coupling.kernel:
            yield f"padding below kernel={coupling.kernel}: coupling {n} has {coupling.padding}"


PACKED = Capabilities(
    weights=frozenset({BinaryWeight}),
    neurons=frozenset({Heaviside}),
    dynamics=frozenset({EnergyBased, Hopfield}),
    updates=frozenset({"simultaneous", "alternating"}),
    feedback=True,
    learning=frozenset({EquilibriumPropagation}),
    homeostasis=True,
    device="cpu",
    limits=_limits_of_bits,
)
DELTA = Capabilities(
    weights=frozenset({BinaryWeight}),
    neurons=frozenset({HardSigmoid}),
    dynamics=frozenset({Prototypical}),
    updates=frozenset({"simultaneous", "alternating"}),
    learning=frozenset({EquilibriumPropagation}),
    margin=frozenset(),
    device="cpu",
    limits=_differences,
)
