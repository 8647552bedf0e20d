"""Which parts somebody knows who computes them in their own way: an engine, an export, a count.

They write `Dense` or `HardSigmoid` out for themselves, so they must not take a subclass of it,
whose methods they would ignore: types are compared exactly, with `kind_of`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from binep.core.couplings import ConvPool, Dense
from binep.core.dynamics import EnergyBased, Hopfield, Prototypical
from binep.core.imperfect import ImperfectNetwork, ImperfectWeight
from binep.core.kinds import is_one_of, name_of
from binep.core.network import Network
from binep.core.neurons import HardSigmoid, Heaviside
from binep.core.turns import UPDATES
from binep.core.weights import BinaryWeight, RealWeight
from binep.errors import BinepError

Part = tuple[str, object, frozenset[type]]  # its place, itself, what it may be exactly


@dataclass(frozen=True)
class Known:
    """The exact types of the parts of a network, and the orders in which its layers move.

    Attributes:
        feedback: whether what is sent down may be scaled, see `Network`.
    """

    networks: frozenset[type] = frozenset({Network})
    couplings: frozenset[type] = frozenset({Dense, ConvPool})
    weights: frozenset[type] = frozenset({BinaryWeight, RealWeight})
    neurons: frozenset[type] = frozenset({HardSigmoid, Heaviside})
    dynamics: frozenset[type] = frozenset({Prototypical, EnergyBased})
    updates: frozenset[str] = frozenset({"simultaneous"})
    feedback: bool = False

    def strangers(self, network: Network) -> Iterator[str]:
        """What of a network is not known, each as it would follow "does not run ..."."""
        yield from strangers(self.parts(network))
        yield from self.strange_values(network)

    def strange_values(self, network: Network) -> Iterator[str]:
        """Likewise, of what is no part with a type."""
        if network.updates not in self.updates:
            yield f"updates={network.updates!r}: allowed is {one_of(self.updates)}"
        if not self.feedback and any(d != 1 for d in network.energy_factors):
            yield f"feedback={network.feedback}: allowed is 1"

    def parts(self, network: Network) -> Iterator[Part]:
        yield "network", network, self.networks
        yield "neuron", network.neuron, self.neurons
        yield "dynamics", network.dynamics, self.dynamics
        for n, coupling in enumerate(network.couplings):
            yield f"coupling {n}", coupling, self.couplings
            yield f"weight of coupling {n}", coupling.synapses, self.weights


def strangers(parts: Iterable[Part]) -> Iterator[str]:
    """What is not exactly of one of its types, each as it would follow "does not run ..."."""
    for place, part, kinds in parts:
        if not is_one_of(part, kinds):
            yield f"{name_of(part)} ({place}): allowed is {one_of(kinds)}"


def one_of(kinds: Iterable[type | str]) -> str:
    return " or ".join(sorted(k if isinstance(k, str) else k.__name__ for k in kinds))


# On imperfect hardware the stored weights are what is exported and counted.
_STORED = Known(
    networks=frozenset({Network, ImperfectNetwork}),
    weights=frozenset({BinaryWeight, RealWeight, ImperfectWeight}),
    dynamics=frozenset({Prototypical, EnergyBased, Hopfield}),
    updates=frozenset(UPDATES),
)


def check_known(network: Network, task: str) -> None:
    """Refuse to export or count a network with a part that is not exactly one of binep's own."""
    for stranger in strangers(_STORED.parts(network)):
        raise BinepError(
            f"{task} does not know {stranger}, or a class that declares `computes_like` one of them"
        )
    for stranger in _STORED.strange_values(network):
        raise BinepError(f"{task} does not know {stranger}")
