"""The engine on a GPU: mini-batches as CUDA graphs, with Triton kernels."""

from collections.abc import Iterator

from binep.core.couplings import ConvPool
from binep.core.dynamics import EnergyBased, Hopfield, Prototypical
from binep.core.gradients import BackpropThroughTime, EquilibriumPropagation, Learning
from binep.core.network import Network
from binep.core.neurons import Heaviside
from binep.core.turns import UPDATES
from binep.engines.base import Capabilities
from binep.engines.fixed_point import largest_state

EXACT_SUM = 2**24  # float32 holds the integers below
SPREAD = 1024  # times which changes of real activities are sent, see `learning`
LARGEST_CHANGE = 65504 / SPREAD  # so that it is a float16
DIGIT_BITS = 10  # of the parts in which scales are added up, see `layout.split_digits`


def _limits(network: Network, learning: Learning) -> Iterator[str]:
    if learning.tolerance is not None:
        yield f"all steps of a phase, not tolerance={learning.tolerance}"
    if isinstance(learning, BackpropThroughTime) and len(network.turns) > 1:
        yield f"layers that move at once, not updates={network.updates!r}, to go back through time"
    if network.sends_state and isinstance(learning, EquilibriumPropagation):
        largest = largest_state(learning) * (2 if learning.sign == "centered" else 1)
        if largest >= LARGEST_CHANGE:
            yield f"a smaller beta: outputs can change by {largest:g}, at most {LARGEST_CHANGE:g}"
    if not network.neuron.binary:
        return
    for n, coupling in enumerate(network.couplings):
        weight = coupling.synapses.kernel
        widest = max(weight[0].numel(), weight.shape[0] * weight[0, 0].numel())
        largest = widest * (2**DIGIT_BITS if isinstance(coupling, ConvPool) else 1)
        largest = max(largest, weight[0].numel() * 255 if n == 0 else 0)
        if largest >= EXACT_SUM:
            yield f"sums below {EXACT_SUM} to be exact, those of coupling {n} can reach {largest}"


CUDA = Capabilities(
    dynamics=frozenset({Prototypical, EnergyBased, Hopfield}),
    updates=frozenset(UPDATES),
    own_sgd=True,
    dt=0.5,
    margin=frozenset({Heaviside}),
    limits=_limits,
)
