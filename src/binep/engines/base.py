"""What a backend is, and what it declares that it runs.

For speed, a backend implements the rules of the core itself. It may therefore only take what it
knows exactly (see `core.known`). What types cannot declare (sums that must stay exact, an operation
that this torch lacks) is in its `limits`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from binep.core.gradients import BackpropThroughTime, EquilibriumPropagation, Learning
from binep.core.kinds import is_one_of, name_of
from binep.core.known import Known, Part, one_of, strangers
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.neurons import HardSigmoid, Heaviside
from binep.core.optim import Bop, Optimizers, PlainSGD, PositiveSGD
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
    """An engine that takes up to `at_once` mini-batches of `size` in one call."""

    at_once: int

    def train_many(self, x: Tensor, labels: Tensor, size: int) -> None: ...


@runtime_checkable
class CountsActivity(Protocol):
    """An engine that skips work that changes nothing, and counts the rest."""

    activity: Activity


@runtime_checkable
class BringsThreads(Protocol):
    """An engine with threads of its own (`own_threads`), which then needs all cores."""

    own_threads: bool


@runtime_checkable
class RunsKernels(Protocol):
    """An engine whose kernels have threads of their own, `kernel_threads` of them."""

    @property
    def kernel_threads(self) -> int: ...


Limits = Callable[[Network, Learning], Iterable[str]]


def no_limits(network: Network, learning: Learning) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Capabilities(Known):
    """What a backend runs: for each part of a training, the exact types or values that it knows.

    Attributes:
        margin: types of neurons whose networks may learn with a margin.
        homeostasis: whether it lets biases follow activity.
        own_sgd: whether it updates biases and scales itself, without their optimizers.
        dt: the only time step of energy-based dynamics that it takes; None: any.
        device: where parameters have to be; None: anywhere.
        limits: other requirements, each worded to follow "needs ...".
    """

    learning: frozenset[type] = frozenset({EquilibriumPropagation, BackpropThroughTime})
    costs: frozenset[str] = frozenset({"mse"})
    margin: frozenset[type] = frozenset({HardSigmoid, Heaviside})
    homeostasis: bool = False
    own_sgd: bool = False
    dt: float | None = None
    device: str | None = None
    limits: Limits = no_limits

    def _of_training(self, learning: Learning, optimizers: Optimizers) -> Iterator[Part]:
        yield "learning", learning, self.learning
        exactly = {"bop": Bop} | (
            {"sgd": PlainSGD, "scale_sgd": PositiveSGD} if self.own_sgd else {}
        )
        for place, kind in exactly.items():
            if (optimizer := getattr(optimizers, place)) is not None:
                yield f"optimizer {place}", optimizer, frozenset({kind})

    def missing(
        self, network: Network, learning: Learning, optimizers: Optimizers
    ) -> Iterator[str]:
        """What a training needs and this backend does not run, most important first."""
        found = chain(self.strangers(network), strangers(self._of_training(learning, optimizers)))
        yield from (f"does not run {stranger}" for stranger in found)
        if network.cost not in self.costs:
            yield f"does not run cost={network.cost!r}: allowed is {one_of(self.costs)}"
        if getattr(learning, "margin", 0) and not is_one_of(network.neuron, self.margin):
            yield f"does not learn with a margin where neurons are {name_of(network.neuron)}"
        if getattr(learning, "homeostasis", None) is not None and not self.homeostasis:
            yield "does not let biases follow activity, as learning.homeostasis asks"
        dt = getattr(network.dynamics, "dt", None)
        if self.dt is not None and dt not in (None, self.dt):
            yield f"does not run dt={dt}: allowed is {self.dt}"
        parameters = list(network.parameters())
        if self.device is not None and any(p.device.type != self.device for p in parameters):
            yield f"needs parameters on device {self.device!r}"
        if any(p.dtype != torch.float32 for p in parameters):
            yield "needs parameters in float32"

    def reasons(self, network: Network, learning: Learning, optimizers: Optimizers) -> list[str]:
        """All reasons why this backend cannot run a training; empty if it can."""
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
