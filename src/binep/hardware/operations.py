"""Operations that a network takes: counted, from the shapes of its layers.

*Clocked* hardware computes every sum at every step; *event-driven* hardware adds only what changed.
A multiply-accumulate of bits is counted as in the paper, `popcount(a & w+) - popcount(a & w-)`: two
ANDs and two counted bits a synapse, one subtraction a sum; a gradient as two ANDs and a
subtraction a synapse. A sum is scaled once, by a shift where all scales are powers of two; down a
convolution there is one sum for each neuron below and each channel above, since every channel
has a scale of its own.
"""

import math
from dataclasses import dataclass, fields

from binep.core.couplings import ConvPool, Coupling
from binep.core.kinds import kind_of
from binep.core.network import Network
from binep.core.plan import ContrastPlan, Plan
from binep.core.weights import is_power_of_two
from binep.training.recipe import Recipe

REAL_BITS = 32
PIXEL_BITS = 8


@dataclass(frozen=True)
class Operations:
    """How many of each; `ands` and `popcount_bits` of one bit, the others of 32 bits.

    Attributes:
        memory_bits: of weights and momenta that are read or written.
        neuron_bits: of states, biases, drives and pixels that are.
    """

    ands: float = 0.0
    popcount_bits: float = 0.0
    adds: float = 0.0
    shifts: float = 0.0
    multiplies: float = 0.0
    float_adds: float = 0.0
    float_multiplies: float = 0.0
    memory_bits: float = 0.0
    neuron_bits: float = 0.0

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(*(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    def __mul__(self, factor: float) -> "Operations":
        return Operations(*(count * factor for count in self.counts))

    @property
    def counts(self) -> list[float]:
        return [getattr(self, name) for name in KINDS]


KINDS = [field.name for field in fields(Operations)]


def scalings(coupling: Coupling, count: float) -> Operations:
    """So many integer sums scaled: by shifts where every scale is a power of two."""
    shift = bool(is_power_of_two(coupling.scale).all())
    return Operations(shifts=count) if shift else Operations(multiplies=count)


def sum_operations(
    network: Network, coupling: Coupling, used: float, on: int, scales: int = 1
) -> Operations:
    """All sums through a coupling in one direction.

    Args:
        used: synapses, one at every place where a convolution uses it.
        on: neurons that are summed on. scales: how many stand inside each of their sums.
    """
    if not coupling.binary:
        # A bit times a real weight is that weight or nothing.
        products = 0.0 if network.neuron.binary else used
        return Operations(float_multiplies=products, float_adds=used, memory_bits=REAL_BITS * used)
    if network.neuron.binary:
        sums = on * scales
        # Each sum is a subtraction; beyond the first of a neuron they are added up.
        counted = Operations(
            ands=2 * used, popcount_bits=2 * used, adds=sums + (sums - on), memory_bits=used
        )
        return counted + scalings(coupling, sums)
    return Operations(float_adds=used, float_multiplies=on * scales, memory_bits=used)


def event_operations(network: Network, coupling: Coupling, used: float, on: int) -> Operations:
    """Sums through a coupling in one direction that follow the changes of what is sent.

    Each synapse reads its target's sum, adds to it (+1 or -1, or its channel's scale), and writes
    it back.
    """
    traffic = Operations(
        memory_bits=used * (1 if coupling.binary else REAL_BITS), neuron_bits=2 * REAL_BITS * used
    )
    if not network.neuron.binary:
        factors = on if coupling.binary else used
        return traffic + Operations(float_adds=used, float_multiplies=factors)
    if not coupling.binary:
        return traffic + Operations(float_adds=used)
    return traffic + Operations(adds=used) + scalings(coupling, on)


def step_operations(network: Network, changed: list[float] | None = None) -> Operations:
    """Operations of one time step.

    With `changed`, the share of each layer that sends something new: only those that follow.
    """
    shapes, total = network.shapes, Operations()
    add = "adds" if network.neuron.binary else "float_adds"
    for n, coupling in enumerate(network.relaxing):
        below, above = math.prod(shapes[n]), math.prod(shapes[n + 1])
        # bias + up + down, and the step of the state; a bit alone is a comparison.
        total += Operations(**{add: (3 if network.dynamics.bits else 4) * above})
        total += _neuron_traffic(network, above)
        if n == 0:
            continue
        used = coupling.products(shapes[n])
        channels = shapes[n + 1][0] if kind_of(coupling) is ConvPool else 1
        if changed is None:
            total += sum_operations(network, coupling, used, above)
            total += sum_operations(network, coupling, used, below, channels)
            continue
        up, down = changed[n - 1], changed[n]
        if up:
            total += event_operations(network, coupling, up * used, above)
        if down:
            # A channel's scale is what is added: only a dense sum is scaled afterwards.
            total += event_operations(network, coupling, down * used, below * (channels == 1))
    return total


def _neuron_traffic(network: Network, neurons: int) -> Operations:
    """Of each neuron: its state read and written, its bias read, its drive written and read.

    A bit alone is written, and compared with the drive as it is summed, which nobody keeps.
    """
    bits = 2 + REAL_BITS if network.dynamics.bits else 2 * REAL_BITS + REAL_BITS + 2 * REAL_BITS
    return Operations(neuron_bits=neurons * bits)


def input_operations(network: Network) -> Operations:
    """Operations of the drive of an image, once: sums of 8-bit pixels, or of real numbers."""
    first, outputs = network.couplings[0], math.prod(network.shapes[1])
    used = first.products(network.input_shape)
    pixels = PIXEL_BITS * math.prod(network.input_shape)
    traffic = Operations(neuron_bits=pixels + REAL_BITS * outputs)
    if first.binary:
        # Pixels stand for 0..1 in steps of 1/255, which makes no power of two of their scale.
        return traffic + Operations(adds=used, multiplies=outputs, memory_bits=used)
    return traffic + Operations(
        float_multiplies=used, float_adds=used, memory_bits=REAL_BITS * used
    )


def learning_operations(recipe: Recipe, network: Network) -> Operations:
    """Operations of the gradient and the optimizer, for one training sample."""
    total, momentum = Operations(), recipe.hardware.momentum_bits or REAL_BITS
    for n, coupling in enumerate(network.couplings):
        used, synapses = coupling.products(network.shapes[n]), coupling.weight.numel()
        if network.neuron.binary:
            # From pixels the difference of two bits chooses +x, 0 or -x: an addition as well.
            total += Operations(ands=2 * used, adds=used)
        else:
            total += Operations(float_multiplies=2 * used, float_adds=used)
        if coupling.binary:
            # One addition and one comparison; the momentum is read and written, and leaks.
            total += Operations(adds=2 * synapses, memory_bits=2 * momentum * synapses)
        else:
            total += Operations(
                float_multiplies=synapses,
                float_adds=synapses,
                memory_bits=2 * REAL_BITS * synapses,
            )
        biases = 0 if coupling.bias is None else coupling.bias.numel()
        # What each neuron sent is kept from one phase to the other; biases move.
        kept = stored_bits(network) * math.prod(network.shapes[n + 1])
        total += Operations(neuron_bits=2 * (kept + REAL_BITS * biases))
    return total


def stored_bits(network: Network) -> int:
    """What a neuron keeps from the first phase to the second."""
    return 1 if network.neuron.binary else REAL_BITS


def neuron_memory(network: Network) -> int:
    """Bits of all neurons while they relax: state, bias and drive of each, and the image.

    Of a bit alone that and its bias; outputs are read from their drives.
    """
    neurons = sum(math.prod(shape) for shape in network.layer_shapes)
    image = PIXEL_BITS * math.prod(network.input_shape)
    if network.dynamics.bits:
        return (1 + REAL_BITS) * neurons + REAL_BITS * math.prod(network.shapes[-1]) + image
    return 3 * REAL_BITS * neurons + image


def steps_of(plan: Plan) -> int:
    """Time steps of a training sample; a step backwards is counted as one."""
    if isinstance(plan, ContrastPlan):
        return sum(phase.steps for phase in plan.phases)
    return 2 * plan.last + (0 if plan.settle is None else plan.settle.steps)
