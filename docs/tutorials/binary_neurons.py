# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
# ---

# %% [markdown]
# # Binary neurons, and why the output grows
#
# A binary neuron sends one bit: 1 if its state is at least one half. A sum over a layer is then a count. What does a nudge
# do in such a network?

# %%
import matplotlib.pyplot as plt
import torch

import binep
from binep import data
from binep.training.progress import Watcher

digits = data.load("digits")
images, labels = digits.train.images[:64].flatten(1), digits.train.labels[:64]


def network(per_class: int) -> binep.Network:
    """64-256-(10 per_class) binary neurons with energy-based dynamics."""
    torch.manual_seed(0)
    couplings = [binep.Dense(64, 256), binep.Dense(256, 10 * per_class)]
    return binep.Network((64,), couplings, binep.Heaviside(), "energy", per_class)


# %% [markdown]
# ## A small nudge moves nothing
#
# A bit changes only if its state crosses one half. Count the hidden bits that differ between the free and the nudged
# phase, for nudges of growing strength and outputs of growing size.


# %%
def moved(net: binep.Network, beta: float) -> float:
    """Share of hidden bits, in per cent, that a nudge changes."""
    free = binep.relax(net, images, net.initial(images), steps=20)
    nudge = binep.Nudge(net.target(labels), beta)
    nudged = binep.relax(net, images, free.state, 10, nudge)
    before, after = net.activity(free.state)[0], net.activity(nudged.state)[0]
    return 100 * float((before != after).float().mean())


betas = [0.1, 0.25, 0.5, 1.0, 2.0]
plt.figure(figsize=(5, 3))
for per_class in (1, 5, 20, 50):
    net = network(per_class)
    plt.plot(betas, [moved(net, beta) for beta in betas], "o-", label=f"{per_class} per class")
plt.xlabel("beta")
plt.ylabel("hidden bits that change, %")
_ = plt.legend()

# %% [markdown]
# With one output neuron per class hardly any hidden neuron hears of the error. With many, their drives add up: that is why
# the paper's networks have 10 to 700 output neurons per class, and betas of 1 and 2.
#
# ## It learns
#
# Each sample's gradient at a synapse is -1, 0 or +1 (over beta): two ANDs and a subtraction. What is averaged is still a
# real number.


# %%
def learning_curve(per_class: int) -> list[float]:
    """Test errors per epoch."""
    net = network(per_class)
    ep = binep.EquilibriumPropagation(20, 10, 2.0)
    optimizers = binep.assign_optimizers(net, gamma=1e-4, tau=[1e-4, 3e-5], lr_bias=1e-7)
    lines = binep.train(net, digits, ep, optimizers, epochs=6, batch_size=16, watcher=Watcher())
    return [line["test_error"]["average"] for line in lines]


plt.figure(figsize=(5, 3))
for per_class in (1, 10):
    plt.plot(range(1, 7), learning_curve(per_class), "o-", label=f"{per_class} per class")
plt.xlabel("epoch")
plt.ylabel("test error, %")
_ = plt.legend()

# %% [markdown]
# ## How it is read
#
# The class is that whose output neurons have the highest average state (`readout="average"`), or whose first neuron has
# the highest state (`"single"`). binep always reports both.
