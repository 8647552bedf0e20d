"""Ways of relaxing a mini-batch on the GPU, and the choice between them."""

from typing import Protocol

import torch
from torch import Tensor

from binep.couplings import ConvPool, Dense
from binep.dynamics import Prototypical
from binep.engines.cuda.by_events import ConvEvents
from binep.engines.cuda.couplings import FastConv, FastDense
from binep.engines.cuda.phases import Phase
from binep.engines.cuda.sample_by_sample import OUTPUTS, WIDTH, Events, Thin
from binep.engines.cuda.stepwise import Settling, Stepwise
from binep.gradients import EquilibriumPropagation
from binep.network import Network


class Relaxer(Protocol):
    """Takes a mini-batch through its phases; `direction` multiplies beta."""

    def free(self, first: Tensor, batch: int) -> Phase: ...
    def nudged(self, first: Tensor, free: Phase, labels: Tensor, direction: int) -> Phase: ...


def choose_relaxer(
    network: Network,
    learning: EquilibriumPropagation,
    couplings: list[FastDense | FastConv],
    beta: Tensor,
    dtype: torch.dtype,
) -> "Relaxer":
    """The fastest relaxer that can run a network."""
    arguments = (network, learning, couplings, beta, dtype)
    if learning.tolerance is not None:
        return Settling(*arguments)
    dense = all(isinstance(coupling, Dense) for coupling in network.couplings)
    if dense and len(couplings) > 1 and network.neuron.binary:
        return Events(*arguments)
    if (
        dense
        and len(couplings) == 2
        and network.layer_shapes[-1][0] <= OUTPUTS
        and network.layer_shapes[0][0] <= WIDTH
        and network.couplings[1].binary
        and isinstance(network.dynamics, Prototypical)
    ):
        return Thin(*arguments)
    convolutions = [c for c in network.couplings if isinstance(c, ConvPool)]
    if network.neuron.binary and len(convolutions) > 1 and all(c.pool <= 3 for c in convolutions):
        return ConvEvents(*arguments)
    return Stepwise(*arguments)
