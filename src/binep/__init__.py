"""binep: dynamical binary neural networks, trained by Equilibrium Propagation."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from binep.couplings import ConvPool, Dense
    from binep.deploy.runtime import load
    from binep.errors import BinepError
    from binep.gradients import BackpropThroughTime, EquilibriumPropagation, Phases
    from binep.network import Network
    from binep.neurons import HardSigmoid, Heaviside
    from binep.optim import Bop, assign_optimizers
    from binep.relaxation import Nudge, Relaxation, relax

__version__ = "0.1.0"

__all__ = [
    "BackpropThroughTime",
    "BinepError",
    "Bop",
    "ConvPool",
    "Dense",
    "EquilibriumPropagation",
    "HardSigmoid",
    "Heaviside",
    "Network",
    "Nudge",
    "Phases",
    "Relaxation",
    "assign_optimizers",
    "load",
    "relax",
]

# Names are imported when first used: `binep --help` and a deployed model need no torch.
_HOME = {
    "BackpropThroughTime": "gradients",
    "BinepError": "errors",
    "Bop": "optim",
    "ConvPool": "couplings",
    "Dense": "couplings",
    "EquilibriumPropagation": "gradients",
    "HardSigmoid": "neurons",
    "Heaviside": "neurons",
    "Network": "network",
    "Nudge": "relaxation",
    "Phases": "gradients",
    "Relaxation": "relaxation",
    "assign_optimizers": "optim",
    "load": "deploy.runtime",
    "relax": "relaxation",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"binep.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"binep.{name}") is not None:
        return import_module(f"binep.{name}")
    raise AttributeError(f"module 'binep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
