"""EP against BPTT: how close the two gradients are, and how that depends on beta."""

import torch

import binep
from binep import data
from binep.core import metrics

torch.manual_seed(0)
digits = data.load("digits")
images, labels = digits.train.images[:32], digits.train.labels[:32]

net = binep.Network((64,), [binep.Dense(64, 128), binep.Dense(128, 10)]).double()
binep.BackpropThroughTime(free_steps=100, steps=15).backward(net, images, labels)
bptt = metrics.gradients(net)

print("cosine of EP's gradient with BPTT's, for each parameter")
for sign in ("positive", "centered"):
    for beta in (1.0, 0.1, 0.01):
        ep = binep.EquilibriumPropagation(100, 15, beta, sign)
        ep.backward(net, images, labels)
        found = metrics.cosine(metrics.true_gradients(net), bptt)
        row = "  ".join(f"{name.removeprefix('couplings.')} {c:.4f}" for name, c in found.items())
        print(f"{sign:>8} beta {beta:<5} {row}")
