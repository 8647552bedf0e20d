"""The only place that chooses an engine and a device. It never falls back silently."""

from typing import Protocol

import torch
from torch import Tensor

from binep.engines.reference import ReferenceEngine
from binep.errors import BinepError, choose
from binep.gradients import Learning
from binep.metrics import Tally
from binep.network import Network
from binep.optim import Optimizers


def _packed(network: Network, learning: Learning, optimizers: Optimizers) -> "Engine":
    try:
        from binep.engines.packed import PackedEngine
    except ModuleNotFoundError as error:
        if error.name not in ("numba", "llvmlite"):
            raise
        raise BinepError("engine 'packed' needs numba: pip install 'binep[fast]'") from None
    return PackedEngine(network, learning, optimizers)


ENGINES = {"reference": ReferenceEngine, "packed": _packed}
DEVICES = ("auto", "cpu", "cuda")


class Engine(Protocol):
    """Runs mini-batches of one (network, learning, optimizers); see `ReferenceEngine`."""

    name: str
    precision: str

    def train(self, x: Tensor, labels: Tensor) -> None: ...
    def evaluate(self, x: Tensor, labels: Tensor) -> Tally: ...
    def collect(self) -> Tally: ...
    def sync(self) -> None: ...


def select_device(name: str = "auto") -> torch.device:
    """The device that `name` stands for: a GPU if there is one and `auto` or `cuda` is asked."""
    choose(name, DEVICES, "device")
    if name == "cuda" and not torch.cuda.is_available():
        raise BinepError("device 'cuda': this machine has no usable GPU, allowed are auto and cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def select_engine(
    name: str, network: Network, learning: Learning, optimizers: Optimizers
) -> Engine:
    """The engine that `name` stands for; `auto` takes the fastest that runs this network here."""
    choose(name, ("auto", *ENGINES), "engine")
    engine = ENGINES["reference" if name == "auto" else name]
    return engine(network, learning, optimizers)
