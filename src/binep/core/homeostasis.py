"""Homeostasis: biases that keep neurons active for a share of samples while a network learns.

A layer whose neurons are all off, or all on whatever the input, has nothing to learn from. After
each mini-batch, and after the optimizers,

    b <- b + rate (share - mean activity)

with the mean over samples, and for a channel over positions, of what it sent in the free phase.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from binep.core.network import Network
from binep.core.relaxation import Relaxation
from binep.errors import BinepError, one_each

PerLayer = float | Sequence[float]


@dataclass(frozen=True)
class Homeostasis:
    """How fast biases follow, and which share they hold: `b <- b + rate (share - mean activity)`.

    Args:
        rate: of the biases of each layer that relaxes, one number or one each; 0 leaves a layer
            alone.
        share: that each layer's neurons are active for, above 0 and at most 1; likewise.

    >>> from binep import Dense, EquilibriumPropagation, Network
    >>> ep = EquilibriumPropagation(20, 5, 0.3, homeostasis=Homeostasis(rate=[0.1, 0], share=0.2))
    >>> net = Network((4,), [Dense(4, 8), Dense(8, 2)], classes=2)
    >>> phases = ep.backward(net, torch.rand(3, 4), torch.tensor([0, 1, 0]))
    >>> ep.homeostasis.step(net, phases.activity, 3)
    """

    rate: PerLayer
    share: PerLayer

    def check(self, network: Network) -> None:
        """An error that says why, if a network's biases cannot follow."""
        if network.cost != "mse":
            raise BinepError(f"homeostasis with cost={network.cost!r}: allowed is cost='mse'")
        rates, shares = self._of_layers(network)
        if not all(0 < share <= 1 for share in shares):
            raise BinepError(f"homeostasis share={self.share}: allowed is above 0, at most 1")
        for n, (rate, coupling) in enumerate(zip(rates, network.relaxing, strict=True)):
            if not 0 <= rate < math.inf:
                raise BinepError(f"homeostasis rate={self.rate}: allowed is a number of at least 0")
            if rate and coupling.bias is None:
                raise BinepError(
                    f"homeostasis rate={rate} in layer {n + 1}: coupling {n} has no bias, allowed "
                    "is 0"
                )

    @torch.no_grad()
    def step(self, network: Network, activity: Sequence[Tensor], samples: int) -> None:
        """Move all biases.

        Args:
            activity: of each layer, see `activity_of`.
            samples: number of samples of the mini-batch.
        """
        rates, shares = self._of_layers(network)
        for n, coupling in enumerate(network.relaxing):
            if rates[n] and coupling.bias is not None:
                places = math.prod(network.layer_shapes[n]) // len(activity[n])
                coupling.bias.add_(shares[n] - activity[n] / (samples * places), alpha=rates[n])

    def _of_layers(self, network: Network) -> tuple[list[float], list[float]]:
        """The rate and the share of each layer that relaxes."""
        layers = len(network.layer_shapes)
        shares = one_each("homeostasis share", self.share, layers, "layers")
        return one_each("homeostasis rate", self.rate, layers, "layers"), shares


def activity_of(network: Network, free: Relaxation) -> list[Tensor]:
    """What each neuron, or channel, has sent: summed over samples and positions, one per bias."""
    sent = network.activity(free.state)
    return [
        coupling.correlate_bias(each) for coupling, each in zip(network.relaxing, sent, strict=True)
    ]
