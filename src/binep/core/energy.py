"""The energy of a network of bits, which no move of a layer raises."""

from collections.abc import Sequence

import torch
from torch import Tensor

from binep.core.couplings import gain_of
from binep.core.network import Clamped, Network
from binep.core.relaxation import Nudge


@torch.no_grad()
def energy(
    network: Network, clamped: Clamped, activity: Sequence[Tensor], nudge: Nudge | None = None
) -> Tensor:
    """`E(a)` of each sample, (batch,), in float64.

        E(a) = sum over couplings d <a_above, theta - pool(W a_below) - b>

    with the neurons' thresholds theta, and under a nudge `beta / 2 |y - a_top|^2` besides. The
    factors d of the layers (`Network.energy_factors`) are 1 unless feedback is scaled. A layer
    that moves minimises it with the others held; through a max-pool it minimises an upper bound
    that touches it at the current switches, since `-max` is concave.
    """
    total = torch.stack(energy_parts(network, clamped, activity)).sum(0)
    if nudge is not None:
        distance = (nudge.target.double() - activity[-1].double()).square().sum(1)
        total += nudge.beta / 2 * distance
    return total


@torch.no_grad()
def energy_parts(network: Network, clamped: Clamped, activity: Sequence[Tensor]) -> list[Tensor]:
    """What each layer and the coupling below it add to the energy, (batch,) each, in float64."""
    found, below = [], clamped.x
    parts = network.relaxing, network.neurons, network.energy_factors, activity
    for coupling, neuron, d, above in zip(*parts, strict=True):
        sums, _ = coupling.sum_up(below)
        drive = coupling.per_output(gain_of(coupling.synapses, below).double()) * sums.double()
        if coupling.bias is not None:
            drive = drive + coupling.per_output(coupling.bias.double())
        threshold = getattr(neuron, "threshold", 0.5)
        found.append(d * ((threshold - drive) * above.double()).flatten(1).sum(1))
        below = above
    if clamped.handicap is not None:
        found[-1] = found[-1] - (clamped.handicap.double() * activity[-1].double()).sum(1)
    return found
