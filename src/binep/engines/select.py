"""The only place that chooses an engine and a device. It never falls back silently."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from binep.core.gradients import BackpropThroughTime, Learning
from binep.core.imperfect import why_only_reference
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.optim import Optimizers
from binep.engines.activity import Activity
from binep.engines.torch.engine import ReferenceEngine
from binep.errors import BinepError, choose


class Engine(Protocol):
    """Runs mini-batches of one (network, learning, optimizers); see `ReferenceEngine`.

    An engine that cannot run them raises a `BinepError` that says why when it is made. What only
    some engines offer are protocols of their own, below.
    """

    name: str
    precision: str

    def train(self, x: Tensor, labels: Tensor) -> None: ...
    def evaluate(self, x: Tensor, labels: Tensor) -> Tally: ...
    def collect(self) -> Tally: ...
    def sync(self) -> None: ...


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


def _cuda(network: Network, learning: Learning, optimizers: Optimizers) -> Engine:
    if not next(network.parameters()).is_cuda:
        raise BinepError("engine 'cuda' needs a GPU: device must be cuda, not cpu")
    try:
        from binep.engines.cuda import CudaEngine, ThroughTimeEngine
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise BinepError("engine 'cuda' needs triton, which comes with torch for CUDA") from None
    if isinstance(learning, BackpropThroughTime):
        return ThroughTimeEngine(network, learning, optimizers)
    return CudaEngine(network, learning, optimizers)


def _packed(network: Network, learning: Learning, optimizers: Optimizers) -> Engine:
    try:
        from binep.engines.numba.packed import PackedEngine
    except ModuleNotFoundError as error:
        if error.name not in ("numba", "llvmlite"):
            raise
        raise BinepError("engine 'packed' needs numba: pip install 'binep[fast]'") from None
    return PackedEngine(network, learning, optimizers)


def _delta(network: Network, learning: Learning, optimizers: Optimizers) -> Engine:
    try:
        from binep.engines.numba.delta import DeltaEngine
    except ModuleNotFoundError as error:
        if error.name not in ("numba", "llvmlite"):
            raise
        raise BinepError("engine 'delta' needs numba: pip install 'binep[fast]'") from None
    return DeltaEngine(network, learning, optimizers)


ENGINES: dict[str, Callable[[Network, Learning, Optimizers], Engine]] = {
    "reference": ReferenceEngine,
    "cuda": _cuda,
    "packed": _packed,
    "delta": _delta,
}
DEVICES = ("auto", "cpu", "cuda")


def select_device(name: str = "auto") -> torch.device:
    """The device that `name` stands for: a GPU if there is one and `auto` or `cuda` is asked."""
    choose(name, DEVICES, "device")
    if name == "cuda" and not torch.cuda.is_available():
        raise BinepError("device 'cuda': this machine has no usable GPU, allowed are auto and cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def select_engine(
    name: str,
    network: Network,
    learning: Learning,
    optimizers: Optimizers,
    say: Callable[[str], None] = lambda text: None,
) -> Engine:
    """The engine that `name` stands for; `auto` takes the fastest that runs this network here.

    Where `auto` has to take the reference although there is a faster one, `say` is told why.
    """
    choose(name, ("auto", *ENGINES), "engine")
    reason = why_only_reference(network, optimizers)
    if reason is not None and name != "reference":
        if name != "auto":
            raise BinepError(f"engine {name!r} does not run {reason}: allowed is 'reference'")
        say(f"only engine 'reference' runs {reason}")
        name = "reference"
    if name != "auto":
        return ENGINES[name](network, learning, optimizers)
    if next(network.parameters()).is_cuda:
        fast = "cuda"
    else:
        fast = "packed" if network.neuron.binary else "delta"
    try:
        return ENGINES[fast](network, learning, optimizers)
    except BinepError as error:
        say(f"{error}; taking engine 'reference' instead")
        return ReferenceEngine(network, learning, optimizers)
