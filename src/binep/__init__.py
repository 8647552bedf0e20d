"""binep: dynamical binary neural networks, trained by Equilibrium Propagation."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from binep.moved import forward_old_paths

if TYPE_CHECKING:
    from binep.classifier import Classifier as Classifier
    from binep.core.couplings import ConvPool, Dense
    from binep.core.gradients import BackpropThroughTime, EquilibriumPropagation, Phases
    from binep.core.homeostasis import Homeostasis
    from binep.core.network import Network
    from binep.core.neurons import HardSigmoid, Heaviside, Winners
    from binep.core.optim import Bop, SecondOrderBop, assign_optimizers
    from binep.core.relaxation import Nudge, Relaxation, relax
    from binep.core.saving import save
    from binep.deploy.runtime import load
    from binep.errors import BinepError
    from binep.training.fit import train

__version__ = "0.1.0"

forward_old_paths()

__all__ = [
    "BackpropThroughTime",
    "BinepError",
    "Bop",
    "ConvPool",
    "Dense",
    "EquilibriumPropagation",
    "HardSigmoid",
    "Heaviside",
    "Homeostasis",
    "Network",
    "Nudge",
    "Phases",
    "Relaxation",
    "SecondOrderBop",
    "Winners",
    "assign_optimizers",
    "load",
    "relax",
    "save",
    "train",
]

# Names are imported when first used: `binep --help` and a deployed model need no torch.
# `Classifier` needs scikit-learn, so that it is not among those of `from binep import *`.
_HOME = {
    "BackpropThroughTime": "core.gradients",
    "BinepError": "errors",
    "Bop": "core.optim",
    "Classifier": "classifier",
    "ConvPool": "core.couplings",
    "Dense": "core.couplings",
    "EquilibriumPropagation": "core.gradients",
    "HardSigmoid": "core.neurons",
    "Heaviside": "core.neurons",
    "Homeostasis": "core.homeostasis",
    "Network": "core.network",
    "Nudge": "core.relaxation",
    "Phases": "core.gradients",
    "Relaxation": "core.relaxation",
    "SecondOrderBop": "core.optim",
    "Winners": "core.neurons",
    "assign_optimizers": "core.optim",
    "load": "deploy.runtime",
    "relax": "core.relaxation",
    "save": "core.saving",
    "train": "training.fit",
}


def _module(name: str) -> Any:
    """A module of binep, which binep-runtime may not have."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            f"{name} is not part of binep-runtime, which only runs packed files: pip install binep",
            name=name,
        ) from None


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(_module(f"binep.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"binep.{name}") is not None:
        return import_module(f"binep.{name}")
    raise AttributeError(f"module 'binep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
