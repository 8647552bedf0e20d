"""The pictures of `docs/what-is-ep.md`, from real relaxations: python docs/figures/make.py."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import binep
from binep import data
from binep.core import metrics
from binep.core.network import Network
from binep.core.optim import Optimizers

HERE = Path(__file__).parent
INK, ACCENT, OTHER, QUIET = "#555f6b", "#3f51b5", "#e07a3f", "#b8c0c8"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "binep",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def save(name: str) -> None:
    """Write the current figure, without a date and on no background."""
    plt.tight_layout()
    plt.savefig(HERE / f"{name}.svg", transparent=True, metadata={"Date": None})
    plt.close()


def small_network() -> tuple[Network, binep.EquilibriumPropagation, Optimizers]:
    """64-128-10 neurons for the digits, with what trains them."""
    generator = torch.Generator().manual_seed(0)
    couplings = [
        binep.Dense(64, 128, generator=generator),
        binep.Dense(128, 10, generator=generator),
    ]
    network = Network((64,), couplings)
    learning = binep.EquilibriumPropagation(30, 10, 0.3, "centered")
    optimizers = binep.assign_optimizers(
        network, gamma=[1e-3, 1e-4], tau=[5e-5, 5e-6], lr_bias=[0.05, 0.025]
    )
    return network, learning, optimizers


def outputs(network: Network, x: Tensor, label: int, free: int, nudged: int, beta: float) -> Tensor:
    """States of the output neurons after every step, (1 + free + nudged, classes)."""
    state = network.initial(x)
    target = network.target(torch.tensor([label]))
    seen = [state[-1][0]]
    for step in range(free + nudged):
        nudge = binep.Nudge(target, beta) if step >= free else None
        state = binep.relax(network, x, state, 1, nudge).state
        seen.append(state[-1][0])
    return torch.stack(seen)


def draw_relaxation() -> None:
    """Output states of a trained network: free, then nudged."""
    network, learning, optimizers = small_network()
    digits = data.load("digits")
    binep.train(network, digits, learning, optimizers, epochs=5, watcher=_silent())
    network.cpu()
    n = 3
    label, free, nudged = int(digits.test.labels[n]), 12, 10
    x = digits.test.images[n : n + 1].flatten(1)
    states = outputs(network, x, label, free, nudged, 0.5)
    plt.figure(figsize=(7, 3))
    first_other = int(label == 0)
    for k in range(10):
        right = k == label
        name = f"class {k}, the right one" if right else "other classes"
        plt.plot(
            states[:, k],
            color=ACCENT if right else QUIET,
            lw=2.2 if right else 1.2,
            zorder=3 if right else 2,
            label=name if right or k == first_other else None,
        )
    plt.axvline(free, color=INK, lw=1, ls=":")
    plt.text(free - 0.3, 1.06, "free", ha="right")
    plt.text(free + 0.3, 1.06, "nudged")
    plt.xlabel("step")
    plt.ylabel("state of output neurons")
    plt.ylim(-0.05, 1.15)
    plt.legend(loc="center right")
    save("relaxation")


def draw_order() -> None:
    """How EP's gradient approaches that of backpropagation through time."""
    digits = data.load("digits")
    x, labels = digits.train.images[:16].flatten(1), digits.train.labels[:16]
    network = small_network()[0].double()
    with torch.no_grad():  # outputs in the middle of their range, where rho is smooth
        for coupling, middle in zip(network.couplings, (0.3, 0.4), strict=True):
            coupling.scale.mul_(0.3)
            coupling.bias.fill_(middle)  # type: ignore[union-attr]
    inputs = x.double() / 255
    binep.BackpropThroughTime(200, 30).backward(network, inputs, labels)
    reference = metrics.gradients(network)["couplings.0.synapses.signs"]
    betas = [2.0**-k for k in range(1, 11)]
    plt.figure(figsize=(5, 3.2))
    for sign, colour, name in (
        ("positive", OTHER, "one nudge"),
        ("centered", ACCENT, "two opposite nudges"),
    ):
        distances = []
        for beta in betas:
            binep.EquilibriumPropagation(200, 30, beta, sign).backward(network, inputs, labels)
            found = metrics.gradients(network)["couplings.0.synapses.signs"]
            distances.append(float((found - reference).norm() / reference.norm()))
        plt.loglog(betas, distances, "o-", color=colour, ms=4, label=name)
    plt.xlabel("beta")
    plt.ylabel("relative distance to BPTT")
    plt.legend()
    save("order")


def draw_flips() -> None:
    """One synapse's averaged gradient over 600 mini-batches."""
    network, learning, optimizers = small_network()
    assert optimizers.bop is not None
    digits = data.load("digits")
    signs = network.couplings[0].signs
    generator = torch.Generator().manual_seed(1)
    momenta, weights = [], []
    for _ in range(600):
        chosen = torch.randint(len(digits.train), (16,), generator=generator)
        learning.backward(network, digits.train.images[chosen], digits.train.labels[chosen])
        optimizers.step()
        momenta.append(optimizers.bop.momentum(signs).flatten().clone())
        weights.append(signs.detach().flatten().clone())
    averages, values = torch.stack(momenta), torch.stack(weights)
    flips = (values[1:] != values[:-1]).sum(0)
    one = int((flips == 4).nonzero()[0])
    tau = 5e-5
    plt.figure(figsize=(7, 3))
    plt.plot(averages[:, one] / tau, color=ACCENT, lw=1.4)
    plt.plot(values[:, one], color=INK, lw=1, ls="--", drawstyle="steps-post")
    when = (values[1:, one] != values[:-1, one]).nonzero()[:, 0] + 1
    plt.plot(when, averages[when, one] / tau, "o", color=OTHER)
    plt.xlabel("mini-batch")
    plt.ylabel("averaged gradient / tau")
    save("bop")


def _silent():
    from binep.training.progress import Watcher

    return Watcher()


if __name__ == "__main__":
    with plt.rc_context(STYLE):
        draw_relaxation()
        draw_order()
        draw_flips()
