"""What a backend is, and what it declares that it runs.

A backend writes the rules of the core out for itself, for speed. So it may only take what it knows
exactly: types are compared with `kind_of`, and a user's subclass, whose methods it would ignore,
is not its parent. What no declaration of types can say (sums that must stay exact, an operation
that this torch lacks) a backend gives as its `limits`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from binep.core.couplings import ConvPool, Dense
from binep.core.dynamics import EnergyBased, Prototypical
from binep.core.gradients import BackpropThroughTime, EquilibriumPropagation, Learning
from binep.core.kinds import is_one_of, name_of
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.neurons import HardSigmoid, Heaviside
from binep.core.optim import Bop, Optimizers
from binep.core.weights import BinaryWeight, RealWeight
from binep.engines.activity import Activity
from binep.errors import BinepError


class Engine(Protocol):
    """Runs mini-batches of one (network, learning, optimizers); see `ReferenceEngine`.

    The network and the optimizers hold the state of training at any time. An engine that cannot run
    them raises a `BinepError` that says why when it is made. What only some engines offer are
    protocols of their own, below.
    """

    name: str
    precision: str

    def train(self, x: Tensor, labels: Tensor) -> None: ...
    def evaluate(self, x: Tensor, labels: Tensor) -> Tally: ...
    def collect(self) -> Tally: ...


@runtime_checkable
class TakesMany(Protocol):
    """An engine so quick that it wants up to `at_once` mini-batches of `size` in one call."""

    at_once: int

    def train_many(self, x: Tensor, labels: Tensor, size: int) -> None: ...


@runtime_checkable
class CountsActivity(Protocol):
    """An engine that skips what changes nothing, and counts what it did."""

    activity: Activity


@runtime_checkable
class BringsThreads(Protocol):
    """An engine that may do without torch's threads, `own_threads`, and then wants them all."""

    own_threads: bool


@runtime_checkable
class RunsKernels(Protocol):
    """An engine whose kernels have threads of their own: how many."""

    @property
    def kernel_threads(self) -> int: ...


Limits = Callable[[Network, Learning], Iterable[str]]


def no_limits(network: Network, learning: Learning) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Capabilities:
    """What a backend runs: for each part of a training, the exact types or values that it knows.

    Attributes:
        margin: neurons of networks that it lets learn with a margin.
        dt: the only time step of energy-based dynamics that it takes; None: any.
        device: where parameters have to be; None: anywhere.
        limits: what else it asks for, each as it would follow "needs ...".
    """

    couplings: frozenset[type] = frozenset({Dense, ConvPool})
    weights: frozenset[type] = frozenset({BinaryWeight, RealWeight})
    neurons: frozenset[type] = frozenset({HardSigmoid, Heaviside})
    dynamics: frozenset[type] = frozenset({Prototypical, EnergyBased})
    learning: frozenset[type] = frozenset({EquilibriumPropagation, BackpropThroughTime})
    costs: frozenset[str] = frozenset({"mse"})
    margin: frozenset[type] = frozenset({HardSigmoid, Heaviside})
    dt: float | None = None
    device: str | None = None
    limits: Limits = no_limits

    def missing(
        self, network: Network, learning: Learning, optimizers: Optimizers
    ) -> Iterator[str]:
        """What a training would need of this backend that it does not run, most telling first."""
        known = (
            ("networks", [network], {Network}),
            ("neurons", [network.neuron], self.neurons),
            ("dynamics", [network.dynamics], self.dynamics),
            ("learning", [learning], self.learning),
            ("couplings", network.couplings, self.couplings),
            ("weights", [c.synapses for c in network.couplings], self.weights),
            ("optimizers of signs", [optimizers.bop] if optimizers.bop else [], {Bop}),
        )
        for what, things, kinds in known:
            for thing in things:
                if not is_one_of(thing, kinds):
                    yield f"does not run {name_of(thing)}: its {what} are {_listed(kinds)}"
                    break
        if network.cost not in self.costs:
            yield f"does not run cost={network.cost!r}: allowed is {_listed(self.costs)}"
        if getattr(learning, "margin", 0) and not is_one_of(network.neuron, self.margin):
            yield f"does not learn with a margin where neurons are {name_of(network.neuron)}"
        dt = getattr(network.dynamics, "dt", None)
        if self.dt is not None and dt not in (None, self.dt):
            yield f"does not run dt={dt}: allowed is {self.dt}"
        parameters = list(network.parameters())
        if self.device is not None and any(p.device.type != self.device for p in parameters):
            yield f"needs parameters on device {self.device!r}"
        if any(p.dtype != torch.float32 for p in parameters):
            yield "needs parameters in float32"

    def reasons(self, network: Network, learning: Learning, optimizers: Optimizers) -> list[str]:
        """All that keeps this backend from running a training; empty if it can."""
        found = list(self.missing(network, learning, optimizers))
        # Limits are about what is known: of an unknown network they cannot tell.
        return found or [f"needs {need}" for need in self.limits(network, learning)]

    def check(
        self, name: str, network: Network, learning: Learning, optimizers: Optimizers
    ) -> None:
        """Refuse, by name, what a backend does not run."""
        for reason in self.reasons(network, learning, optimizers):
            raise BinepError(f"engine {name!r} {reason}; engine 'reference' runs everything")
        learning.check(network)


def _listed(kinds: Iterable[type | str]) -> str:
    names = sorted(kind if isinstance(kind, str) else kind.__name__ for kind in kinds)
    return " or ".join(names)
