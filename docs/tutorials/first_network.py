# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
# ---

# %% [markdown]
# # First network
#
# A network of 64-256-10 neurons with binary weights learns to read 8x8 digits by Equilibrium Propagation.

# %%
import matplotlib.pyplot as plt
import torch

import binep
from binep import data

torch.manual_seed(0)
digits = data.load("digits")
print(digits.train.images.shape, digits.test.images.shape, digits.train.images.dtype)

# %%
figure, axes = plt.subplots(1, 8, figsize=(8, 1.4))
for axis, image, label in zip(axes, digits.train.images, digits.train.labels, strict=False):
    axis.imshow(image[0], cmap="gray_r")
    axis.set_title(int(label))
    axis.axis("off")

# %% [markdown]
# ## The network
#
# A network is a chain of couplings. Each is used in both directions, so there is no separate "backward" part.
# By default weights are binary: one sign per synapse and one scale per coupling.

# %%
net = binep.Network(
    input_shape=(64,),
    couplings=[binep.Dense(64, 256, learn_scale=True), binep.Dense(256, 10, learn_scale=True)],
)
print(net.couplings[0].signs.detach()[:3, :8])
print("scales", [round(coupling.scale.item(), 4) for coupling in net.couplings])

# %% [markdown]
# ## Relaxation
#
# To read an image, clamp it and let the network settle. `residuals` says how far the neuron that moved most has moved in
# each step: it goes to zero.

# %%
images, labels = digits.train.images[:100], digits.train.labels[:100]
free = binep.relax(net, images, net.initial(images), steps=30)
plt.figure(figsize=(5, 2.5))
plt.semilogy(free.residuals + 1e-9)
plt.xlabel("step")
_ = plt.ylabel("largest change")
# %% [markdown]
# ## Learning
#
# `EquilibriumPropagation` says how gradients are found: how many free and nudged steps, how strong the nudge is, and
# which signs it has. `assign_optimizers` gives every parameter to one optimizer: signs to Bop, biases and scales to
# plain gradient descent.

# %%
ep = binep.EquilibriumPropagation(free_steps=30, nudged_steps=10, beta=0.3, sign="centered")
optimizers = binep.assign_optimizers(
    net, gamma=[1e-3, 1e-4], tau=[5e-5, 5e-6], lr_bias=[0.05, 0.025], lr_scale=1e-3
)

phases = ep.backward(net, images, labels)
print(phases)
print(net.couplings[0].signs.grad.shape)
net.zero_grad()

# %% [markdown]
# `binep.train` does the loop on the fastest engine that this network runs on, and returns one line of metrics per epoch.

# %%
lines = binep.train(net, digits, ep, optimizers, epochs=8, batch_size=16)
plt.figure(figsize=(5, 2.5))
plt.plot([line["epoch"] for line in lines], [line["train_error"]["average"] for line in lines])
plt.plot([line["epoch"] for line in lines], [line["test_error"]["average"] for line in lines])
plt.legend(["training", "test"])
plt.xlabel("epoch")
_ = plt.ylabel("error, %")
# %% [markdown]
# ## Look inside
#
# Which images does it get wrong?

# %%
predicted = net.predict_images(digits.test.images)
wrong = (predicted != digits.test.labels).nonzero()[:, 0]
print(f"{len(wrong)} of {len(predicted)} wrong")
figure, axes = plt.subplots(1, 6, figsize=(7, 1.6))
for axis in axes:
    axis.axis("off")
for axis, n in zip(axes, wrong, strict=False):
    axis.imshow(digits.test.images[n, 0], cmap="gray_r")
    axis.set_title(f"{int(digits.test.labels[n])}, read as {int(predicted[n])}", fontsize=8)
