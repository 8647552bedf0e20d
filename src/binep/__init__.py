"""binep: dynamical binary neural networks, trained by Equilibrium Propagation."""

from binep.couplings import ConvPool, Dense
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
    "relax",
]
