"""Layers of a recipe, one table each: any order, any registered coupling, neurons of their own."""

import json
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from binep import BinepError, ConvPool, Dense, HardSigmoid, Heaviside
from binep.studies.evidence import recipe_hash, without_none
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.sections import CHAIN

RATES = ["optimizer.gamma=1e-3", "optimizer.tau=1e-5", "optimizer.lr_bias=0.01"]


def layered(*layers: str, more: tuple[str, ...] = ()) -> recipes.Recipe:
    inline = f"network.layers=[{', '.join(layers)}]"
    return recipes.load("digits-1fc-w", [inline, *RATES, *more])


@pytest.mark.parametrize("name", ["digits-1fc-w", "digits-conv-w", "digits-conv-wa"])
def test_layers_build_what_conv_and_dense_build(name: str):
    short = recipes.load(name)
    text = recipes.dumps(short).splitlines()
    kept = [line for line in text if line.partition(" =")[0] not in CHAIN]
    at = kept.index("[learning]") - 1
    for layer in short.network.chain:
        rows = [f"{key} = {recipes.toml(value)}" for key, value in layer.items()]
        kept[at:at] = ["", "[[network.layers]]", *rows]
        at += len(rows) + 2
    long = recipes.from_table(tomllib.loads("\n".join(kept)))
    networks = [each.build_network(torch.Generator().manual_seed(3)) for each in (short, long)]
    one, other = (network.state_dict() for network in networks)
    assert networks[0].shapes == networks[1].shapes and one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_any_order_and_neurons_of_their_own():
    recipe = layered(
        "{coupling='conv', size=4, kernel=3, padding=1, pool=2, neuron='heaviside'}",
        "{size=20, binary=false, neuron={name='heaviside', threshold=0.3, sigma=0.2}}",
        "{}",
        more=("network.dynamics=energy", "optimizer.lr_weight=0.1", "network.sigma=0.4"),
    )
    network = recipe.build_network()
    assert [type(each) for each in network.couplings] == [ConvPool, Dense, Dense]
    assert [each.binary for each in network.couplings] == [True, False, True]
    assert network.neurons == [Heaviside(0.5, 0.4), Heaviside(0.3, 0.2), HardSigmoid()]
    assert recipe.network.sends_bits


def test_a_recipe_with_layers_is_written_and_read_back():
    recipe = layered("{size=20, neuron={name='heaviside', threshold=0.3}}", "{}",
                     more=("network.dynamics=energy",))  # fmt: skip
    assert recipes.from_table(tomllib.loads(recipes.dumps(recipe))) == recipe
    assert recipes.from_table(json.loads(json.dumps(without_none(asdict(recipe))))) == recipe


def test_a_recipe_in_a_file_says_layers_in_place_of_its_parents(tmp_path: Path):
    path = tmp_path / "mine.toml"
    text = 'extends = "digits-conv-w"\n[optimizer]\ngamma = 1e-3\ntau = 1e-5\nlr_bias = 0.01\n'
    path.write_text(f"{text}[[network.layers]]\nsize = 30\n[[network.layers]]\n")
    recipe = recipes.load(path)
    assert recipe.network.conv == [] and [n for (n,) in recipe.build_network().layer_shapes] == [
        30,
        10,
    ]
    assert recipes.load(path, ["network.dense=[8]"]).network.layers is None
    assert recipes.load(path, ["network.per_class=3"]).build_network().layer_shapes[-1] == (30,)


def test_layers_are_trained_and_opened_again(tmp_path: Path):
    recipe = layered(
        "{size=24, neuron='heaviside'}",
        "{}",
        more=("network.dynamics=energy", "training.epochs=1", "learning.free_steps=5"),
    )
    told = []
    run = runs.train(recipe, out=tmp_path, device="cpu", watcher=Heard(told))
    assert run.recipe == recipe and any("taking engine 'reference'" in text for text in told)
    assert run.evaluate().error("average") == run.last["test_error"]["average"]


class Heard(runs.Watcher):
    def __init__(self, told: list[str]) -> None:
        self.told = told

    def say(self, text: str) -> None:
        self.told.append(text)


@pytest.mark.parametrize(
    ("layers", "more", "told"),
    [
        ((), (), r"network\.layers=\[\]: allowed is at least the output layer"),
        (("{}", "{}"), (), r"network\.layers\[0\]\.size is missing: only the last"),
        (("{size=0}", "{}"), (), r"network\.layers\[0\]\.size=0: allowed is an integer, at least"),
        (("3",), (), r"network\.layers\[0\]=3: it must be a table"),
        (("{size=9, coupling='dens'}", "{}"), (), "unknown coupling 'dens': did you mean 'dense'"),
        (("{size=9, kernel=3}", "{}"), (), "layer 1 of 2: unknown argument of coupling 'dense'"),
        (("{size=9, coupling='conv'}", "{}"), (), "coupling 'conv': .*'kernel'"),
        (("{size=9}", "{coupling='conv', size=4, kernel=3}"), (), "layer 2 of 2: .*not connect"),
        (("{size=9, neuron='heavside'}", "{}"), (), "unknown neuron 'heavside'"),
        (("{size=9, neuron={threshold=1}}", "{}"), (), "neuron"),
        (("{size=9, neuron='heaviside'}", "{}"), (), "binary activations need dynamics='energy'"),
        (("{size=9}", "{size=7}"), (), "classes=10 do not fit an output layer of 7"),
        (("{size=9}", "{}"), ("network.kernel=3",), r"network\.layers with network\.kernel=3"),
        (
            ("{size=9}", "{neuron='hard-sigmoid'}"),
            ("network.cost=cross_entropy",),
            "a softmax readout has no neuron",
        ),
        (("{size=9}", "{}"), ("optimizer.tau=[1e-5]",), "one for each of the 2 couplings"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(layers, more, told: str):
    with pytest.raises(BinepError, match=told) as error:
        layered(*layers, more=more)
    assert "\n" not in str(error.value)


def test_layers_are_part_of_what_is_hashed_and_loggers_are_not():
    one, other = layered("{size=20}", "{}"), layered("{size=21}", "{}")
    assert recipe_hash(one) != recipe_hash(other)
    assert recipe_hash(one) == recipe_hash(replace(one, loggers=["tensorboard"]))
