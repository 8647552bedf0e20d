"""Your own network: a convolution, two dense layers, and a training loop you can see.

`binep.train(net, digits, ep, optimizers, epochs=6)` is the same loop on the fastest engine that
runs the network, with a progress bar.
"""

import torch

import binep
from binep import data

EPOCHS, BATCH = 6, 16

torch.manual_seed(0)
digits = data.load("digits")

net = binep.Network(
    input_shape=(1, 8, 8),
    couplings=[
        binep.ConvPool(1, 32, kernel=3, padding=1, pool=2, learn_scale=True),
        binep.Dense(32 * 4 * 4, 128, learn_scale=True),
        binep.Dense(128, 10, learn_scale=True),
    ],
)
ep = binep.EquilibriumPropagation(free_steps=40, nudged_steps=10, beta=0.3, sign="centered")
optimizers = binep.assign_optimizers(
    net,
    gamma=[1e-4, 1e-4, 3e-5],
    tau=1e-5,
    lr_bias=[0.05, 0.025, 0.0125],
    lr_scale=1e-3,
)
net.free_steps = ep.free_steps


def test_error() -> float:
    """Test images read wrongly, in per cent."""
    read = net.predict_images(digits.test.images)
    return 100 * float((read != digits.test.labels).double().mean())


for epoch in range(EPOCHS):
    flips = torch.zeros(len(net.couplings), dtype=torch.int64)
    for chosen in torch.randperm(len(digits.train)).split(BATCH):
        ep.backward(net, digits.train.images[chosen], digits.train.labels[chosen])
        flips += torch.tensor(optimizers.step())
    print(f"epoch {epoch + 1}: test error {test_error():.2f} %, flips {flips.tolist()}")
