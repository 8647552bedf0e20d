# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
# ---

# %% [markdown]
# # Bits alone, and an energy that only falls
#
# The binary neurons of the paper keep a real state that leaks towards their drive; what they send is one bit. Can a neuron
# do without the state, and be nothing but its bit?
#
# If all bits change at once they may never settle: two neurons that inhibit each other, both off, both switch on, both
# switch off. Layers that move *in turn* cannot do that. Odd layers listen only to even ones, and the other way round, so that
# a neuron that moves does what is best for it while everything it listens to stands still:
#
#     a <- 1 if drive >= 1/2 else 0
#
# "Best" can be made a number. The energy
#
#     E(a) = sum a / 2 - sum over couplings <a_above, W a_below + b>
#
# changes by `1/2 - drive` when a bit switches on. Each move lowers it or leaves it, there are finitely many states, and a
# network therefore comes to rest.

# %%
import matplotlib.pyplot as plt
import torch

import binep
from binep import data
from binep.core.energy import energy
from binep.training.progress import Watcher

digits = data.load("digits")
images, labels = digits.test.images[:8].flatten(1), digits.test.labels[:8]


def network(dynamics: str) -> binep.Network:
    """64-256-100 binary neurons."""
    torch.manual_seed(0)
    couplings = [binep.Dense(64, 256), binep.Dense(256, 100)]
    return binep.Network(
        (64,), couplings, binep.Heaviside(), dynamics, per_class=10, initial_state=0.0
    )


def learn(net: binep.Network, epochs: int = 6) -> list[float]:
    """Test errors per epoch; every mini-batch has 16 images."""
    ep = binep.EquilibriumPropagation(free_steps=20, nudged_steps=10, beta=1.0)
    optimizers = binep.assign_optimizers(net, gamma=1e-4, tau=[1e-4, 3e-5], lr_bias=1e-7)
    lines = binep.train(
        net, digits, ep, optimizers, epochs=epochs, batch_size=16, watcher=Watcher()
    )
    return [line["test_error"]["average"] for line in lines]


# %% [markdown]
# ## It learns
#
# The nudge is `beta (y - 1/2)`, added to the drive of the outputs; everything else of Equilibrium Propagation stays.

# %%
curves, networks = {}, {}
for dynamics in ("hopfield", "energy"):
    networks[dynamics] = network(dynamics)
    curves[dynamics] = learn(networks[dynamics])

plt.figure(figsize=(5, 3))
for dynamics, name in (("hopfield", "bits alone"), ("energy", "bits with a state")):
    plt.plot(range(1, len(curves[dynamics]) + 1), curves[dynamics], "o-", label=name)
plt.xlabel("epoch")
plt.ylabel("test error, %")
_ = plt.legend()

# %% [markdown]
# ## It falls
#
# Eight images relax, sweep by sweep. A sweep moves the odd layers and then the even ones; the line ends where nothing
# changes any more.

# %%
net = networks["hopfield"]
clamped = net.clamp(images)
state, energies = net.initial(images), []
for _ in range(8):
    energies.append(energy(net, clamped, net.activity(state)))
    state = binep.relax(net, images, state, steps=1).state
energies = torch.stack(energies)

plt.figure(figsize=(5, 3))
plt.plot(energies - energies[-1])
plt.xlabel("sweep")
plt.ylabel("energy above rest")

assert bool((energies.diff(dim=0) <= 0).all())  # it never rises
assert bool((energies[-1] == energies[-2]).all())  # and every image has come to rest

# %% [markdown]
# ## The nudge
#
# A nudge adds `beta / 2 |y - a|^2` to the energy of the outputs. That lifts the state at rest, and the network slides into
# another minimum. Here the images are nudged towards the class after their own, so that it has far to go.

# %%
nudge = binep.Nudge(net.target((labels + 1) % 10), beta=1.0)
falls = [energy(net, clamped, net.activity(state), nudge)]
for _ in range(6):
    state = binep.relax(net, images, state, 1, nudge).state
    falls.append(energy(net, clamped, net.activity(state), nudge))
falls = torch.stack(falls)
assert bool((falls.diff(dim=0) <= 0).all())
assert bool((falls[-1] < falls[0]).any())

plt.figure(figsize=(5, 3))
plt.plot(falls - falls[-1])
plt.xlabel("nudged sweep")
_ = plt.ylabel("energy above rest, with the nudge's")

# %% [markdown]
# `beta / 2` acts as a margin: an output whose drive is further than that on the right side of 1/2 does not move, and teaches
# nothing. One bit per neuron is all that has to be stored, in both phases.
