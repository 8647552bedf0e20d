"""Baselines: feed-forward binary networks trained by backpropagation, to hold EP against.

The same binary weights, the same Bop, the same images in the same order as a recipe's run with that
seed; gradients by backpropagation, through binary neurons by a straight-through estimator. What
training costs is counted, for them and for a recipe, by the same rules.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from binep.core.couplings import Dense
from binep.core.optim import Bop, PlainSGD
from binep.data import Dataset, Split, shuffled
from binep.errors import choose
from binep.training.recipe import Recipe
from binep.training.trainer import TEST_BATCH, random_streams

FLOAT = 32  # bits of a real number
THRESHOLD = WINDOW = 0.5  # of a binary neuron, as in the recipes


class StraightThrough(torch.autograd.Function):
    """`1 if s >= 1/2 else 0`; backwards as if it was s where |s - 1/2| <= 1/2, a constant beyond.

    >>> s = torch.tensor([-0.2, 0.4, 0.6, 1.2], requires_grad=True)
    >>> bits = binary(s)
    >>> bits.sum().backward()
    >>> bits.tolist(), s.grad.tolist()
    ([0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0])
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        ctx.save_for_backward((s - THRESHOLD).abs() <= WINDOW)
        return (s >= THRESHOLD).to(s.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (passes,) = ctx.saved_tensors
        return gradients[0] * passes


def binary(s: Tensor) -> Tensor:
    """What binary neurons send, with a gradient."""
    sent = StraightThrough.apply(s)
    assert isinstance(sent, Tensor)
    return sent


def _squared(scores: Tensor, labels: Tensor) -> Tensor:
    """`1/2 |y - clamp(s, 0, 1)|^2`, batch mean; it pulls at s beyond [0, 1], too, as EP's nudge."""
    target = functional.one_hot(labels, scores.shape[1]).to(scores.dtype)
    outputs = scores + (scores.clamp(0, 1) - scores).detach()
    return (target - outputs).square().sum(1).mean() / 2


LOSSES = {"mse": _squared, "cross_entropy": functional.cross_entropy}


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A feed-forward network and how Bop trains it.

    Attributes:
        hidden: neurons of each hidden layer. activations: "real" (hard sigmoid) or "binary".
        gamma, tau: Bop's. lr_bias: of the biases, by SGD. One value a coupling each.
        loss: "mse" as in the recipes, or "cross_entropy" of the last drive.
    """

    hidden: tuple[int, ...]
    activations: str
    gamma: tuple[float, ...]
    tau: tuple[float, ...]
    lr_bias: tuple[float, ...]
    loss: str = "mse"
    batch_size: int = 64

    def __post_init__(self) -> None:
        choose(self.activations, ("real", "binary"), "activations")
        choose(self.loss, LOSSES, "loss")

    def build(self, inputs: int, classes: int, generator: torch.Generator) -> "FeedForward":
        """A fresh network, drawn as a recipe's is."""
        widths = (inputs, *self.hidden, classes)
        chain = [Dense(*pair, generator=generator) for pair in pairwise(widths)]
        return FeedForward(chain, binary if self.activations == "binary" else _hard_sigmoid)


def _hard_sigmoid(s: Tensor) -> Tensor:
    return s.clamp(0, 1)


class FeedForward(nn.Module):
    """Dense couplings one after the other: scores of the classes are the last drive."""

    def __init__(self, chain: list[Dense], activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(chain)
        self.activation = activation

    def forward(self, images: Tensor) -> Tensor:
        a = images.flatten(1).float() / 255
        for n, coupling in enumerate(self.couplings):
            assert isinstance(coupling, Dense)
            s = functional.linear(a, coupling.weight, coupling.bias)
            a = s if n == len(self.couplings) - 1 else self.activation(s)
        return a


def train(
    baseline: Baseline,
    dataset: Dataset,
    *,
    seed: int,
    epochs: int,
    watch: Callable[[dict[str, Any]], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Train by backpropagation and Bop; returns a line of metrics an epoch, errors in per cent.

    Bop gets dL/dW, as from EP. `train_error` is read before each update.
    """
    streams = random_streams(seed)
    inputs = math.prod(dataset.image_shape)
    network = baseline.build(inputs, dataset.classes, streams["init"])
    chain = [coupling for coupling in network.couplings if isinstance(coupling, Dense)]
    bop = Bop(
        {"params": [each.synapses.kernel], "gamma": gamma, "tau": tau}
        for each, gamma, tau in zip(chain, baseline.gamma, baseline.tau, strict=True)
    )
    biases = PlainSGD(
        {"params": [each.bias], "lr": lr} for each, lr in zip(chain, baseline.lr_bias, strict=True)
    )
    lines = []
    for epoch in range(1, epochs + 1):
        began, wrong, flips = time.perf_counter(), 0, torch.zeros(len(chain), dtype=torch.int64)
        order = shuffled(len(dataset.train), streams["shuffle"])
        for part in order.split(baseline.batch_size):
            labels = dataset.train.labels[part]
            scores = network(dataset.train.images[part])
            wrong += int((scores.argmax(1) != labels).sum())
            network.zero_grad()
            LOSSES[baseline.loss](scores, labels).backward()
            for coupling in chain:
                kernel = coupling.synapses.kernel
                assert kernel.grad is not None
                coupling.synapses.set_gradient_from_kernel(kernel.grad)
            flips += torch.tensor(bop.step())
            biases.step()
        line = {
            "epoch": epoch,
            "train_error": 100 * wrong / len(order),
            "test_error": error(network, dataset.test),
            "flips": flips.tolist(),
            "seconds": time.perf_counter() - began,
        }
        watch(line)
        lines.append(line)
    return lines


@torch.no_grad()
def error(network: FeedForward, split: Split) -> float:
    """Share of images that are misread, in per cent."""
    wrong = 0
    for images, labels in zip(
        split.images.split(TEST_BATCH), split.labels.split(TEST_BATCH), strict=True
    ):
        wrong += int((network(images).argmax(1) != labels).sum())
    return 100 * wrong / len(split)


# --- what training costs ------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingCost:
    """What training needs, counted for one sample with batches of one.

    Attributes:
        synapse_bits: per synapse, the weight and what its optimizer remembers.
        neuron_bits: per hidden neuron, what has to be kept until the gradient is made.
        sums: synaptic additions of drives or errors. products: synaptic products of the gradient.
        of: what one of these adds or multiplies.
    """

    synapse_bits: int
    neuron_bits: int
    sums: int
    products: int
    of: str


def cost_of_baseline(baseline: Baseline, inputs: int, classes: int) -> TrainingCost:
    """Forward, backward but for the first coupling, and one product a synapse.

    A real neuron keeps its activity and its error; a binary one the bit that it sent, whether its
    window is open, and its error, which is real.
    """
    widths = (inputs, *baseline.hidden, classes)
    used = [below * above for below, above in pairwise(widths)]
    is_binary = baseline.activations == "binary"
    return TrainingCost(
        synapse_bits=1 + FLOAT,
        neuron_bits=2 + FLOAT if is_binary else 2 * FLOAT,
        sums=sum(used) + sum(used[1:]),
        products=sum(used),
        of="real errors" + (" and bits" if is_binary else " and activities"),
    )


def cost_of_recipe(recipe: Recipe, steps: float | None = None) -> TrainingCost:
    """Every step of every phase up and down, the input's drive once, two products a synapse.

    A real neuron keeps its state and that of the free phase; one of bits the bit that it sent at
    the end of the free phase, besides its state: real, or with Hopfield dynamics the bit itself.
    Through time a neuron keeps its states of all steps that are gone back through, and its error.

    Args:
        steps: steps of both phases, where fewer are taken than the recipe allows.
    """
    keys = recipe.learning
    with torch.device("meta"):
        network = recipe.build_network()
    used = [
        coupling.products(shape)
        for coupling, shape in zip(network.couplings, network.shapes[:-1], strict=True)
    ]
    if keys.method == "bptt":
        back = keys.nudged_steps
        return TrainingCost(
            synapse_bits=1 + FLOAT,
            neuron_bits=(back + 1) * FLOAT,
            sums=used[0] + 2 * (keys.free_steps + back) * sum(used[1:]),
            products=used[0] + 2 * back * sum(used[1:]),
            of="real errors and activities",
        )
    phases = 2 if keys.sign == "centered" else 1
    taken = keys.free_steps + phases * keys.nudged_steps if steps is None else steps
    state = 1 if recipe.network.dynamics == "hopfield" else FLOAT
    kept = 1 if network.neuron.binary else FLOAT
    return TrainingCost(
        synapse_bits=1 + FLOAT,
        neuron_bits=state + kept,
        sums=round(used[0] + 2 * taken * sum(used[1:])),
        products=2 * sum(used),
        of="bits" if network.neuron.binary else "real activities",
    )
