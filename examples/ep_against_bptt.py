"""EP against BPTT: a network where the theory holds, and two where it does not, with the reason.

The nudge `s <- rho(drive) + beta (y - s)` stands outside of rho, so BPTT's loss pulls at the drive
of the outputs (`pulls_at="drive"`). Cosines of the two gradients, parameter by parameter: 1 is
perfect.
"""

import torch

import binep
from binep import data
from binep.core import metrics

digits = data.load("digits")
images, labels = digits.train.images[:32], digits.train.labels[:32]


def compare(clamp_nudged: bool = False, free_steps: int = 100, beta: float = 0.01) -> None:
    """Print how parallel the two gradients are in a fresh network, 64-128-10, for each sign."""
    torch.manual_seed(0)
    layers = [binep.Dense(64, 128), binep.Dense(128, 10)]
    net = binep.Network((64,), layers, clamp_nudged=clamp_nudged).double()
    binep.BackpropThroughTime(100, 15, pulls_at="drive").backward(net, images, labels)
    bptt = metrics.gradients(net)
    for sign in ("positive", "centered"):
        binep.EquilibriumPropagation(free_steps, 15, beta, sign).backward(net, images, labels)
        found = metrics.cosine(metrics.true_gradients(net), bptt)
        row = "  ".join(f"{name.removeprefix('couplings.')} {c:.4f}" for name, c in found.items())
        print(f"{sign:>8} {row}")


print("The theory holds: at rest, a small beta, nudged outputs that may leave [0, 1]")
compare()
print("Nudged outputs clamped to [0, 1]: one that rests on 0 cannot be pushed below it, so the")
print("negative half of a centered estimate is missing; a positive nudge is not changed by it")
compare(clamp_nudged=True)
print("A free phase of 2 steps: the network is not at rest, and goes on relaxing while nudged,")
print("which a single nudge takes for a gradient; in a centered estimate it cancels")
compare(free_steps=2)
