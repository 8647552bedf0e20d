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
from binep.errors import BinepError

PerLayer = float | Sequence[float]


@dataclass(frozen=True)
class Homeostasis:
    """How fast biases follow, and which share they hold: `b <- b + rate (share - mean activity)`.

    Args:
        rate: of the biases of each layer, at least 0; 0 leaves a layer alone. share: above 0,
            at most 1. Either is one number, or one for each layer that relaxes.

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
        layers = len(network.layer_shapes)
        shares = _each("homeostasis share", self.share, layers)
        rates = _each("homeostasis rate", self.rate, layers)
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
            activity: of each layer, see `activity_of`. samples: of the mini-batch.
        """
        layers = len(network.layer_shapes)
        rates, shares = (_each("", given, layers) for given in (self.rate, self.share))
        for n, coupling in enumerate(network.relaxing):
            if rates[n] and coupling.bias is not None:
                places = math.prod(network.layer_shapes[n]) // len(activity[n])
                coupling.bias.add_(shares[n] - activity[n] / (samples * places), alpha=rates[n])


def activity_of(network: Network, free: Relaxation) -> list[Tensor]:
    """What each neuron, or channel, has sent: summed over samples and positions, one per bias."""
    sent = network.activity(free.state)
    return [
        coupling.correlate_bias(each) for coupling, each in zip(network.relaxing, sent, strict=True)
    ]


def _each(name: str, given: PerLayer, layers: int) -> Sequence[float]:
    """One number for each layer."""
    values = [*given] if isinstance(given, Sequence) else [given] * layers
    if len(values) != layers:
        raise BinepError(
            f"{name}={values}: {len(values)} values for {layers} layers, allowed are 1 or {layers}"
        )
    return values
