"""Networks made of binep's own parts only: what an export, or a count of operations, relies on."""

from binep.core.couplings import ConvPool, Dense
from binep.core.dynamics import EnergyBased, Prototypical
from binep.core.imperfect import ImperfectNetwork, ImperfectWeight
from binep.core.kinds import is_one_of
from binep.core.network import Network
from binep.core.neurons import HardSigmoid, Heaviside
from binep.core.weights import BinaryWeight, RealWeight
from binep.errors import BinepError


def check_known(network: Network, task: str) -> None:
    """Refuse a network with a part that is not exactly one of binep's own: a subclass is not.

    On imperfect hardware the stored weights are what is exported and counted.
    """
    parts: list[tuple[str, object, tuple[type, ...]]] = [
        ("the network", network, (Network, ImperfectNetwork)),
        ("its neuron", network.neuron, (HardSigmoid, Heaviside)),
        ("its dynamics", network.dynamics, (Prototypical, EnergyBased)),
    ]
    for n, coupling in enumerate(network.couplings):
        weights = (BinaryWeight, RealWeight, ImperfectWeight)
        parts.append((f"coupling {n}", coupling, (Dense, ConvPool)))
        parts.append((f"the weight of coupling {n}", coupling.synapses, weights))
    for place, part, allowed in parts:
        if not is_one_of(part, allowed):
            names = " and ".join(kind.__name__ for kind in allowed)
            raise BinepError(
                f"{task}: {place} is of class {type(part).__name__}, of which it is not known what "
                f"it computes; allowed are exactly {names}, and classes that declare "
                "`computes_like` one of them"
            )
