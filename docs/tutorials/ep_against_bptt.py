# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
# ---

# %% [markdown]
# # EP against BPTT, and where it fails
#
# Backpropagation through time (BPTT) computes the gradient of the loss at the end of the relaxation exactly. EP estimates
# it from two relaxations. How close do they come?

# %%
import matplotlib.pyplot as plt
import torch

import binep
from binep import data
from binep.core import metrics

torch.manual_seed(0)
digits = data.load("digits")
images, labels = digits.train.images[:32].flatten(1).double() / 255, digits.train.labels[:32]


def network() -> binep.Network:
    """64-64-10 in float64, whose outputs stand in the middle of their range."""
    couplings = [binep.Dense(64, 64), binep.Dense(64, 10)]
    net = binep.Network((64,), couplings).double()
    with torch.no_grad():
        for coupling, middle in zip(net.couplings, (0.3, 0.4), strict=True):
            coupling.scale.mul_(0.3)
            coupling.bias.fill_(middle)
    return net


def gradient(net: binep.Network, learning, layer: int = 0) -> torch.Tensor:
    """What a way to learn finds for the weights of a coupling."""
    learning.backward(net, images, labels)
    return net.couplings[layer].signs.grad.clone()


# %% [markdown]
# ## The nudge should be small
#
# The distance to BPTT falls with beta: in proportion to beta with one nudge, and to beta squared with two opposite ones,
# whose errors of first order cancel.

# %%
net = network()
exact = gradient(net, binep.BackpropThroughTime(free_steps=200, steps=30))
betas = [2.0**-k for k in range(1, 10)]
plt.figure(figsize=(5, 3))
for sign in ("positive", "centered"):
    distances = []
    for beta in betas:
        found = gradient(net, binep.EquilibriumPropagation(200, 30, beta, sign))
        distances.append(float((found - exact).norm() / exact.norm()))
    plt.loglog(betas, distances, "o-", label=sign)
    slope = torch.log(torch.tensor(distances[4] / distances[8])) / torch.log(torch.tensor(16.0))
    print(f"{sign}: slope {float(slope):.2f}")
plt.xlabel("beta")
plt.ylabel("relative distance to BPTT")
_ = plt.legend()
# %% [markdown]
# ## The network should be at rest
#
# EP compares two states of rest. If the free phase stops too early, the nudged phase goes on relaxing as well as
# following the nudge, and what is compared is a mixture of both. (`cosine` is 1 for parallel gradients.)

# %%
for steps in (3, 5, 10, 20, 40):
    found = gradient(net, binep.EquilibriumPropagation(steps, 30, 0.001, "positive"))
    cosine = float((found * exact).sum() / found.norm() / exact.norm())
    print(f"{steps:3d} free steps: cosine {cosine:+.4f}")

# %% [markdown]
# With both signs of the nudge most of that error cancels, since both phases go on relaxing alike:

# %%
for steps in (3, 5, 10, 20, 40):
    found = gradient(net, binep.EquilibriumPropagation(steps, 30, 0.001, "centered"))
    cosine = float((found * exact).sum() / found.norm() / exact.norm())
    print(f"{steps:3d} free steps: cosine {cosine:+.4f}")

# %% [markdown]
# ## Where they differ for good
#
# In prototypical dynamics the nudge stands outside of the activation: `s <- rho(drive) + beta (y - s)`. An output that
# is saturated, with a drive beyond [0, 1], still feels it. The loss of its clamped state has no gradient there. So EP is
# the gradient of a loss that pulls at the *drive*, `pulls_at="drive"`, and not that of the loss at the state.

# %%
saturated = network()
with torch.no_grad():
    saturated.couplings[1].bias.fill_(-0.6)  # every output is off
found = gradient(saturated, binep.EquilibriumPropagation(200, 30, 0.001, "centered"))
for pulls_at in ("state", "drive"):
    exact = gradient(saturated, binep.BackpropThroughTime(200, 30, pulls_at=pulls_at))
    cosine = metrics.cosine({"weights": found}, {"weights": exact})["weights"]
    print(f"BPTT at the {pulls_at}: norm {float(exact.norm()):.2e}, cosine with EP {cosine:+.3f}")

# %% [markdown]
# `binep gradcheck RECIPE` makes this comparison for any recipe, coupling by coupling, with a figure.
