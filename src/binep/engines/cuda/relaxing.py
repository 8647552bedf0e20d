"""The choice between the ways of relaxing a mini-batch on the GPU."""

from binep.core.gradients import EquilibriumPropagation
from binep.core.network import Network
from binep.engines.cuda.by_deltas import Deltas
from binep.engines.cuda.by_moving import Moving
from binep.engines.cuda.relaxers.base import Relaxer
from binep.engines.cuda.relaxers.conv_events import ConvEvents
from binep.engines.cuda.sample_by_sample import Events, Thin
from binep.engines.cuda.stepwise import Settling, Stepwise

# The fastest first; the last one fits everything.
RELAXERS: list[type[Relaxer]] = [Thin, Events, ConvEvents, Deltas, Moving, Stepwise]


def choose_relaxer(network: Network, learning: EquilibriumPropagation) -> type[Relaxer]:
    """The fastest relaxer that can run a network."""
    if learning.tolerance is not None:
        return Settling
    return next(relaxer for relaxer in RELAXERS if relaxer.fits(network))
