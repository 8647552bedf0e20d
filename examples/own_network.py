"""Your own network: two convolutions, two dense layers, and a training loop you can see."""

import torch

import binep
from binep import data
from binep.core import metrics

torch.manual_seed(0)
digits = data.load("digits")

net = binep.Network(
    input_shape=(1, 8, 8),
    couplings=[
        binep.ConvPool(1, 16, kernel=3, padding=1, pool=2, learn_scale=True),
        binep.ConvPool(16, 32, kernel=3, padding=1, pool=2, learn_scale=True),
        binep.Dense(128, 64, learn_scale=True),
        binep.Dense(64, 10, learn_scale=True),
    ],
)
ep = binep.EquilibriumPropagation(free_steps=40, nudged_steps=10, beta=0.3, sign="centered")
optimizers = binep.assign_optimizers(
    net, gamma=1e-4, tau=3e-6, lr_bias=[0.1, 0.05, 0.025, 0.01], lr_scale=1e-3
)

for step in range(150):
    chosen = torch.randint(len(digits.train), (16,))
    images, labels = digits.train.images[chosen], digits.train.labels[chosen]
    phases = ep.backward(net, images, labels)
    flips = optimizers.step()
    if step % 25 == 0:
        wrong = metrics.errors(net, phases.free.state, labels)["average"]
        print(f"step {step:3d}: {wrong:2d} of 16 wrong, flips {flips}")

free = binep.relax(net, digits.test.images, net.initial(digits.test.images), steps=40)
wrong = metrics.errors(net, free.state, digits.test.labels)["average"]
print(f"test images read wrongly: {wrong} of {len(digits.test)}")
