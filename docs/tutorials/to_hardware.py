# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
# ---

# %% [markdown]
# # From a trained network to C and Verilog
#
# A network of binary weights and neurons is trained on the small digits, written as a C program and as a core in
# SystemVerilog, and both are compared with Python. Nothing is rounded on the way that was not rounded before: all of them
# work in the same integers.

# %%
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from binep import data
from binep.deploy.export import Options, export, learning_rule, store
from binep.deploy.fixed import FixedNetwork
from binep.deploy.learning import FixedLearner, FixedRule
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.progress import Watcher

folder = Path(tempfile.mkdtemp())
small = ["network.dense=[128]", "training.epochs=10"]
run = runs.train(recipes.load("digits-1fc-wa", small), out=folder, device="cpu", watcher=Watcher())
print(f"{run.metrics[-1]['test_error']['average']:.1f} % test error")

# %% [markdown]
# ## In integers
#
# Sums over synapses are popcounts; scales and biases have 40 fractional bits, states 24. `FixedNetwork` is that network in
# Python: the definition that C and Verilog are held to. How often does it send another bit than the float32 network?

# %%
test = data.load("digits").test
images, labels = test.images.numpy(), test.labels.numpy()
network = store(run.network("cpu"), run.recipe)
whole = FixedNetwork(network)
predicted = whole.predict(images)
print(f"{100 * np.mean(predicted != labels):.1f} % test error in integers")

widths = range(2, 13)
errors = [100 * np.mean(FixedNetwork(network, bits).predict(images) != labels) for bits in widths]
plt.figure(figsize=(5, 3))
plt.plot(widths, errors, "o-")
plt.xlabel("fractional bits of a state")
_ = plt.ylabel("test error, %")

# %% [markdown]
# A few bits per state are enough; `binep export --state-bits` sets them.
#
# ## C
#
# The folder holds C99 without allocation or floating point, test vectors, and a Makefile whose `check` compares all
# predictions with Python's.

# %%
written = export(run, folder / "c", "c", Options(vectors=0, momentum_bits=16))
print(*sorted(path.name for path in written))
if shutil.which("make") and shutil.which("cc"):
    done = subprocess.run(
        ["make", "-s", "-C", folder / "c", "check"], capture_output=True, text=True
    )
    print(done.stdout)
    assert "360 vectors, 0 differ" in done.stdout

# %% [markdown]
# ## It goes on learning
#
# With momenta of 16 bits (`--learning`) the program learns an image at a time: two phases, ternary gradients, an integer
# momentum per synapse that flips it. This is the same rule in Python, with weights that were spoilt before: a tenth of them
# is inverted, and 1,200 images repair most of it.

# %%
generator = np.random.default_rng(0)
learner = FixedLearner(FixedNetwork(network), FixedRule(learning_rule(run.recipe), 16))
spoilt = [
    np.where(generator.random(c.signs.shape) < 0.1, -c.signs, c.signs) for c in network.couplings
]
couplings = [
    replace(c, signs=signs.astype(np.int8))
    for c, signs in zip(network.couplings, spoilt, strict=True)
]
learner.fixed.network = replace(network, couplings=couplings)

train = data.load("digits").train
errors = [100 * np.mean(learner.fixed.predict(images) != labels)]
for n in range(1200):
    learner.learn(train.images[n].numpy(), int(train.labels[n]))
    if n % 200 == 199:
        errors.append(100 * np.mean(learner.fixed.predict(images) != labels))
plt.figure(figsize=(5, 3))
plt.plot(range(0, 1201, 200), errors, "o-")
plt.xlabel("images learnt")
_ = plt.ylabel("test error, %")

# %% [markdown]
# ## Verilog
#
# The same network as a core: memories of bits, adders, one-bit neurons beside their states, and a testbench that compares
# states, classes and learnt weights with the golden model. `--parallel N` says how many synapses are summed in a cycle.

# %%
core = export(run, folder / "verilog", "verilog", Options(vectors=4, parallel=16))
print(*sorted(path.name for path in core))
if shutil.which("iverilog") and shutil.which("make"):
    command = ["make", "-s", "-C", folder / "verilog", "check", "SIMULATOR=icarus"]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout[-400:])
    assert done.returncode == 0, done.stderr

# %% [markdown]
# [Ship a trained network](../../howto/ship/) has the commands, [Hardware](../../hardware/) what such a core costs.
