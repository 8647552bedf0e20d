"""The only place that chooses an engine and a device. It never falls back silently."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from binep.core.gradients import BackpropThroughTime, Learning
from binep.core.network import Network
from binep.core.optim import Optimizers
from binep.engines.base import Capabilities, Engine
from binep.engines.cuda import CUDA
from binep.engines.numba import DELTA, PACKED
from binep.engines.torch.engine import ReferenceEngine
from binep.errors import BinepError, choose

Make = Callable[[Network, Learning, Optimizers], Engine]


@dataclass(frozen=True)
class Backend:
    """An engine that can be chosen.

    Attributes:
        capabilities: what it runs; None: everything.
        make: imports it and makes one.
        device: where `auto` considers it; None: only if nothing else runs.
        packages: what it is compiled with, and how to install it.
    """

    capabilities: Capabilities | None
    make: Make
    device: str | None = None
    packages: tuple[str, ...] = ()
    hint: str = ""

    def build(
        self, name: str, network: Network, learning: Learning, optimizers: Optimizers
    ) -> Engine:
        """The engine, or an error that says why it cannot run this."""
        if self.capabilities is not None:
            self.capabilities.check(name, network, learning, optimizers)
        try:
            return self.make(network, learning, optimizers)
        except ModuleNotFoundError as error:
            if error.name not in self.packages:
                raise
            raise BinepError(f"engine {name!r} {self.hint}") from None


def _cuda(network: Network, learning: Learning, optimizers: Optimizers) -> Engine:
    if not next(network.parameters()).is_cuda:
        raise BinepError("engine 'cuda' needs a GPU: device must be cuda, not cpu")
    from binep.engines.cuda.engine import CudaEngine
    from binep.engines.cuda.through_time import ThroughTimeEngine

    if isinstance(learning, BackpropThroughTime):
        return ThroughTimeEngine(network, learning, optimizers)
    return CudaEngine(network, learning, optimizers)


def _packed(network: Network, learning: Learning, optimizers: Optimizers) -> Engine:
    from binep.engines.numba.packed.engine import PackedEngine

    return PackedEngine(network, learning, optimizers)


def _delta(network: Network, learning: Learning, optimizers: Optimizers) -> Engine:
    from binep.engines.numba.delta.engine import DeltaEngine

    return DeltaEngine(network, learning, optimizers)


_NUMBA = ("numba", "llvmlite"), "needs numba: pip install 'binep[fast]'"
BACKENDS: dict[str, Backend] = {
    "reference": Backend(None, ReferenceEngine),
    "cuda": Backend(
        CUDA, _cuda, "cuda", ("triton",), "needs triton, which comes with torch for CUDA"
    ),
    "packed": Backend(PACKED, _packed, "cpu", *_NUMBA),
    "delta": Backend(DELTA, _delta, "cpu", *_NUMBA),
}
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
MEANT = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps", "apple": "mps", "intel": "xpu"}


def select_device(name: str = "auto") -> torch.device:
    """The device that `name` stands for: with `auto` CUDA's if there is one, else the CPU.

    On Apple's (mps) and Intel's GPUs (xpu) the reference engine runs, if it is asked for one.
    """
    if name in MEANT:
        raise BinepError(
            f"unknown device {name!r}: did you mean {MEANT[name]!r}? Allowed: {', '.join(DEVICES)}"
        )
    usable = {"cpu": True, "cuda": torch.cuda.is_available()}
    usable |= {"mps": torch.backends.mps.is_available(), "xpu": torch.xpu.is_available()}
    if choose(name, DEVICES, "device") == "auto":
        return torch.device("cuda" if usable["cuda"] else "cpu")
    if not usable[name]:
        there = ", ".join(each for each in DEVICES if usable.get(each, True))
        raise BinepError(
            f"device {name!r}: this machine has no usable GPU of that kind, allowed here: {there}"
        )
    return torch.device(name)


def select_engine(
    name: str,
    network: Network,
    learning: Learning,
    optimizers: Optimizers,
    say: Callable[[str], None] = lambda text: None,
) -> Engine:
    """The engine that `name` stands for; `auto` takes the fastest that runs this network here.

    Where `auto` takes the reference although a faster engine exists, `say` gets the reason.
    """
    choose(name, ("auto", *BACKENDS), "engine")
    parts = network, learning, optimizers
    if name != "auto":
        return BACKENDS[name].build(name, *parts)
    nearest = _nearest(*parts)
    if nearest is not None:
        try:
            return BACKENDS[nearest].build(nearest, *parts)
        except BinepError as error:
            say(f"{error}; taking engine 'reference' instead")
    return ReferenceEngine(*parts)


def _nearest(network: Network, learning: Learning, optimizers: Optimizers) -> str | None:
    """Of the engines for the network's device, the one that lacks least."""
    device = next(network.parameters()).device.type
    reasons = {
        name: len(backend.capabilities.reasons(network, learning, optimizers))
        for name, backend in BACKENDS.items()
        if backend.capabilities is not None and backend.device == device
    }
    return min(reasons, key=lambda name: reasons[name], default=None)
