"""Baselines: backpropagation through bits, the same Bop and seeds, and what training costs."""

from dataclasses import replace

import pytest
import torch

from binep.core.couplings import Dense
from binep.data import Split, load
from binep.errors import BinepError
from binep.studies.baselines import Baseline, binary, cost_of_baseline, cost_of_recipe, train
from binep.training import recipe as recipes
from binep.training.trainer import random_streams

SMALL = Baseline(
    hidden=(64,), activations="real", gamma=(1e-2, 1e-2), tau=(3e-4, 3e-4), lr_bias=(0.1, 0.1)
)


def test_gradients_pass_binary_neurons_inside_their_window_only():
    s = torch.tensor([-0.5, -1e-3, 0.0, 0.5, 1.0, 1.1], requires_grad=True)
    sent = binary(s)
    (sent * torch.arange(1.0, 7.0)).sum().backward()
    assert sent.tolist() == [0, 0, 0, 1, 1, 1]
    assert s.grad.tolist() == [0, 0, 3, 4, 5, 0]


@pytest.mark.parametrize("activations", ["real", "binary"])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_a_baseline_learns_and_a_seed_is_one_run(activations: str, loss: str):
    baseline = replace(SMALL, activations=activations, loss=loss)
    digits = load("digits")
    lines = train(baseline, digits, seed=0, epochs=3)
    assert lines[-1]["test_error"] < 40  # 90 by chance
    again, other = (train(baseline, digits, seed=seed, epochs=1)[0] for seed in (0, 1))
    assert again["flips"] == lines[0]["flips"] != other["flips"]


def test_it_starts_from_the_weights_of_a_recipe_with_that_seed():
    recipe = recipes.load("digits-1fc-w", ["network.dense=[64]"])
    ours = recipe.build_network(random_streams(3)["init"])
    theirs = SMALL.build(64, 10, random_streams(3)["init"])
    for one, other in zip(ours.couplings, theirs.couplings, strict=True):
        assert torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)


def test_bop_gets_the_gradient_of_the_weight_and_flips_by_its_sign():
    """One image, no bias: a weight from a lit pixel flips where it takes its output off target."""
    image = torch.full((1, 1, 1, 2), 255, dtype=torch.uint8)
    dataset = replace(
        load("digits"), train=Split(image, torch.tensor([1])), test=Split(image, torch.tensor([1]))
    )
    wide = replace(SMALL, hidden=(), gamma=(1.0,), tau=(0.05,), lr_bias=(0.0,), batch_size=1)
    before = wide.build(2, 10, random_streams(0)["init"]).couplings[0]
    assert isinstance(before, Dense) and before.bias is not None
    outputs = (before.weight.sum(1) + before.bias).clamp(0, 1)
    error = outputs - torch.nn.functional.one_hot(torch.tensor(1), 10)
    due = (error.abs() > 0.05)[:, None] & (error.sign()[:, None] == before.signs.sign())
    (line,) = train(wide, dataset, seed=0, epochs=1)
    assert line["flips"] == [int(due.sum())] and due.any()


def test_costs_are_counted_by_the_same_rules():
    first, last = 784 * 512, 512 * 10
    real = Baseline(hidden=(512,), activations="real", gamma=(1, 1), tau=(0, 0), lr_bias=(0, 0))
    found = cost_of_baseline(real, 784, 10)
    assert (found.neuron_bits, found.sums, found.products) == (64, first + 2 * last, first + last)
    assert cost_of_baseline(replace(real, activations="binary"), 784, 10).neuron_bits == 34
    ep = cost_of_recipe(recipes.load("mnist-1fc-w", ["network.dense=[512]"]))
    assert (ep.neuron_bits, ep.sums) == (64, first + 2 * 60 * last)
    assert ep.products == 2 * (first + last)
    bits = ["network.dense=[512]", "network.dynamics=hopfield", "network.initial_state=0.0"]
    alone = cost_of_recipe(recipes.load("mnist-1fc-wa", bits), steps=7)
    assert (alone.synapse_bits, alone.neuron_bits) == (33, 2)
    assert alone.sums == first + 2 * 7 * 512 * 100
    assert cost_of_recipe(recipes.load("mnist-1fc-w-bptt")).neuron_bits == 11 * 32


def test_unknown_settings_are_named():
    with pytest.raises(BinepError, match="unknown activations 'ternary'"):
        replace(SMALL, activations="ternary")
    with pytest.raises(BinepError, match="unknown loss 'hinge'"):
        replace(SMALL, loss="hinge")
