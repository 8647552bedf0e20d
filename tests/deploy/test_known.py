"""What is not exactly one of binep's own parts is not exported or counted as if it were."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from binep import ConvPool, Dense, HardSigmoid, Heaviside, Network
from binep.core.couplings import Coupling
from binep.core.dynamics import EnergyBased
from binep.core.neurons import Winners
from binep.core.weights import BinaryWeight
from binep.deploy.export import store
from binep.deploy.stored import StoredCoupling
from binep.errors import BinepError
from binep.hardware import costs
from binep.training import recipe as recipes


class Sparse(Dense):
    """Half of its synapses are not there."""

    def sum_up(self, below):
        return super().sum_up(below[:, ::2].repeat_interleave(2, 1))


class Labelled(Dense):
    """A name, and what its parent computes."""

    computes_like = Dense
    label = "hidden"


class LabelledSparse(Labelled):
    """Below a class that computes like Dense, one that says nothing about itself."""


class Blurred(ConvPool):
    pass


class Flipped(BinaryWeight):
    @property
    def kernel(self):
        return -self.signs


class Doubled(Network):
    def activity(self, state, *, nudged=False):
        return [2 * a for a in super().activity(state, nudged=nudged)]


class Tanh:
    binary = False

    def __call__(self, state):
        return state.tanh()

    def slope(self, state):
        return 1 - state.tanh().square()


class Soft(HardSigmoid):
    pass


class Late(Heaviside):
    pass


@dataclass(frozen=True)
class Slow(EnergyBased):
    pass


def change(name: str, value: object) -> Callable[[Network], None]:
    return lambda network: setattr(network, name, value)


def of_class(kind: type, part: Callable[[Network], object]) -> Callable[[Network], None]:
    """A part that is the same but for its class."""
    return lambda network: setattr(part(network), "__class__", kind)


def dense(network: Network) -> Coupling:
    return network.couplings[1]


STRANGERS = {
    "real neuron": ("digits-1fc-w", change("neuron", Tanh()), r"does not know Tanh \(neuron\)"),
    "hard sigmoid": ("digits-1fc-w", change("neuron", Soft()), r"Soft \(neuron\)"),
    "binary neuron": ("digits-1fc-wa", change("neuron", Late()), r"Late \(neuron\)"),
    "dynamics": ("digits-1fc-wa", change("dynamics", Slow(0.5)), r"Slow \(dynamics\)"),
    "dense": (
        "digits-1fc-wa",
        of_class(Sparse, dense),
        r"Sparse \(coupling 1\): allowed is ConvPool or Dense",
    ),
    "grandchild": (
        "digits-1fc-wa",
        of_class(LabelledSparse, dense),
        r"LabelledSparse \(coupling 1\)",
    ),
    "conv": (
        "digits-conv-wa",
        of_class(Blurred, lambda n: n.couplings[0]),
        r"Blurred \(coupling 0\)",
    ),
    "weight": (
        "digits-1fc-wa",
        of_class(Flipped, lambda n: n.couplings[0].synapses),
        r"Flipped \(weight of coupling 0\)",
    ),
    "winners": ("digits-1fc-wa", change("neuron", Winners()), r"Winners \(neuron\)"),
    "feedback": (
        "digits-1fc-wa",
        change("feedback", [1.0, 0.5]),
        r"does not know feedback=\[1.0, 0.5\]: allowed is 1$",
    ),
    "network": ("digits-1fc-wa", of_class(Doubled, lambda n: n), r"Doubled \(network\)"),
}


def build(name: str, *overrides: str):
    recipe = recipes.load(name, ["learning.free_steps=3", *overrides])
    return recipe, recipe.build_network(torch.Generator().manual_seed(0))


def count(recipe, network):
    x = torch.zeros(2, *network.input_shape)
    return costs.report(recipe, network, x, costs.load_costs())


@pytest.mark.parametrize("case", STRANGERS)
def test_strangers_are_neither_exported_nor_counted(case: str):
    name, disguise, message = STRANGERS[case]
    recipe, network = build(name)
    store(network, recipe)
    count(recipe, network)
    disguise(network)
    for use in (lambda: store(network, recipe), lambda: count(recipe, network)):
        with pytest.raises(BinepError, match=message):
            use()


def test_a_class_that_says_it_computes_like_its_parent_is_exported_as_it():
    recipe, network = build("digits-1fc-wa")
    expected, counted = store(network, recipe), count(recipe, network)
    of_class(Labelled, dense)(network)
    found = store(network, recipe)
    assert found.couplings[1].kind == "dense"
    assert np.array_equal(found.couplings[1].signs, expected.couplings[1].signs)
    assert count(recipe, network) == counted


def test_of_imperfect_hardware_the_stored_weights_are_exported():
    recipe, perfect = build("digits-1fc-wa")
    worse, network = build("digits-1fc-wa", "hardware.stuck=0.5")
    assert not torch.equal(network.couplings[0].synapses.kernel, network.couplings[0].signs)
    mine, theirs = store(network, worse), store(perfect, recipe)
    for a, b in zip(mine.couplings, theirs.couplings, strict=True):
        assert np.array_equal(a.signs, b.signs)
    assert count(worse, network).work[0] == count(recipe, perfect).work[0]


def test_a_stored_coupling_is_of_a_known_kind():
    with pytest.raises(BinepError, match="unknown kind of a coupling 'sparse'"):
        StoredCoupling("sparse", 2, 3)
