"""How finely real activities are sent as integers, so that sums over them stay exact."""

import math

from binep.core.couplings import Coupling
from binep.core.gradients import EquilibriumPropagation, Learning
from binep.core.network import Network

SUM_BITS = 31  # of int32, less its sign
MOST_BITS = 22  # float32 holds an activity to 24


def sent_units(network: Network) -> list[float]:
    """For each layer, the number of units in an activity of one."""
    return [_unit(_fan_out(network, n)) for n in range(len(network.couplings))]


def field_unit(coupling: Coupling) -> float:
    """The same for what a convolution sends down."""
    kernel = coupling.synapses.kernel
    return _unit(kernel.shape[0] * kernel[0, 0].numel())


def sums_fit(network: Network, learning: Learning) -> bool:
    """Whether sums over what nudged outputs send fit, even where that is beyond [0, 1]."""
    if not network.sends_state or not isinstance(learning, EquilibriumPropagation):
        return True
    outputs = network.shapes[-1][0]
    return outputs * largest_state(learning) * _unit(outputs) < 2**SUM_BITS


def largest_state(learning: EquilibriumPropagation) -> float:
    """Bound on a nudged output that is not clamped, `s = rho + beta (y - s)`."""
    beta = abs(learning.beta)
    if learning.nudge == "constant":
        return 1 + beta
    return (1 + beta) / (1 - beta) if beta < 1 else math.inf


def _unit(fan: int) -> float:
    return 2.0 ** min(MOST_BITS, SUM_BITS - fan.bit_length())


def _fan_out(network: Network, n: int) -> int:
    """Number of neurons of layer n in a sum: up through coupling n+1, or down through n."""
    widest = network.couplings[n].synapses.kernel.shape[0]
    if n + 1 < len(network.couplings):
        widest = max(widest, network.couplings[n + 1].synapses.kernel[0].numel())
    return widest
