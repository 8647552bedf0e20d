# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
# ---

# %% [markdown]
# # Binary weights and Bop
#
# A weight of one bit cannot move a little. The binary optimizer keeps an average of each synapse's gradient and flips the
# sign once that average passes a threshold:
#
# ```text
# m <- (1 - gamma) m + gamma g
# flip w   where  |m| > tau  and  sign(m) = sign(w)
# ```

# %%
import matplotlib.pyplot as plt
import torch

import binep
from binep import data
from binep.training.progress import Watcher

digits = data.load("digits")

# %% [markdown]
# ## The rule, by hand
#
# One synapse, `w = +1`, whose gradient is always `+1`: the loss falls if the weight does. With `gamma = 0.1` its average
# grows to 0.1, 0.19, 0.271, ...; with `tau = 0.25` it flips at the third step. After the flip the average points where
# the weight already is, and nothing more happens.

# %%
weight = torch.nn.Parameter(torch.ones(1))
bop = binep.Bop([weight], gamma=0.1, tau=0.25)
for step in range(5):
    weight.grad = torch.ones(1)
    flips = bop.step()
    m = bop.momentum(weight).item()
    print(f"step {step + 1}: m = {m:.3f}, w = {weight.item():+.0f}, flips {flips}")


# %% [markdown]
# ## Reading pi
#
# `pi = ln(flips / weights + e^-9)` says how busy a coupling was in an epoch. Here are three values of tau for the same
# network. Too low: everything keeps flipping, and nothing is remembered. Too high: nothing flips.


# %%
def train(tau: float, epochs: int = 6):
    """Metrics of a network of 64-128-10 neurons."""
    torch.manual_seed(0)
    net = binep.Network((64,), [binep.Dense(64, 128), binep.Dense(128, 10)])
    ep = binep.EquilibriumPropagation(30, 10, 0.3, "centered")
    optimizers = binep.assign_optimizers(
        net, gamma=[1e-3, 1e-4], tau=[tau, tau / 10], lr_bias=[0.05, 0.025]
    )
    return binep.train(net, digits, ep, optimizers, epochs=epochs, watcher=Watcher())


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
for tau in (5e-7, 5e-5, 5e-3):
    lines = train(tau)
    epochs = [line["epoch"] for line in lines]
    left.plot(epochs, [line["pi"][0] for line in lines], "o-", label=f"tau = {tau:g}")
    right.plot(epochs, [line["test_error"]["average"] for line in lines], "o-")
left.set(xlabel="epoch", ylabel="pi of the first coupling")
right.set(xlabel="epoch", ylabel="test error, %")
_ = left.legend()

# %% [markdown]
# A good value starts between -2 and -4 and falls as the network settles. `binep tune RECIPE` looks for gamma and tau that
# do so.
#
# ## gamma and tau
#
# `1 / gamma` mini-batches is how far back the average remembers. If a gradient points the same way for a long time, the
# average goes to it, whatever gamma is; if it changes its sign, the average stays near zero. tau is compared with that
# average. In binep a schedule can let tau grow towards the end of training (`schedule.tau`): the network cools down.
