"""EP against BPTT: near where the theorem holds, step by step, and refused where it does not."""

import json
import math

import pytest
import torch

from binep import EquilibriumPropagation
from binep.core import metrics
from binep.core.network import Network
from binep.data import load as load_dataset
from binep.data import shuffled
from binep.errors import BinepError
from binep.report import figures
from binep.studies import gradcheck as checks
from binep.studies.gradcheck import Agreement, GradCheck, gradcheck
from binep.training import provenance
from binep.training import recipe as recipes
from binep.training.recipe import Recipe
from binep.training.trainer import random_streams

BATCH, STEPS = 6, 5
CPU = torch.device("cpu")


def small(name: str = "digits-1fc-w", *overrides: str) -> Recipe:
    sizes = {
        "digits-1fc-w": ["network.dense=[12]"],
        "digits-conv-w": ["network.conv=[3, 4]"],
    }
    usual = ["learning.free_steps=60", f"learning.nudged_steps={STEPS}"]
    return recipes.load(name, [*sizes[name], *usual, *overrides])


def interior(recipe: Recipe) -> Network:
    """A network of the recipe in which no neuron is saturated, so that the theorem holds."""
    network = recipe.build_network(torch.Generator().manual_seed(0))
    for coupling in network.couplings:
        coupling.synapses.get_parameter("scale").data.mul_(0.15)
        coupling.bias.data.fill_(0.5)
    return network


def check(recipe: Recipe, **options) -> GradCheck:
    return gradcheck(recipe, **{"batch": BATCH, "device": "cpu", "dtype": "float64"} | options)


def of_sign(result: GradCheck, sign: str, beta: float) -> list[Agreement]:
    return [a for a in result.agreements if a.sign == sign and a.beta == beta]


@pytest.fixture(scope="module", params=["digits-1fc-w", "digits-conv-w"])
def ideal(request) -> GradCheck:
    recipe = small(request.param, "learning.free_steps=150")
    return check(recipe, network=interior(recipe), betas=[1e-2, 1e-3])


def test_centered_ep_is_bptt_where_the_theorem_holds(ideal: GradCheck):
    assert ideal.residual < 1e-12
    assert all(layer.saturated == 0 for layer in ideal.layers)
    found = of_sign(ideal, "centered", 1e-3)
    assert {a.parameter for a in found} == {"W", "b", figures.ALPHA}
    assert len(found) == 3 * len(ideal.couplings)
    for agreement in found:
        assert len(agreement.cosine) == len(agreement.distance) == STEPS
        assert min(agreement.cosine) > 1 - 1e-9
        assert max(agreement.distance) < 1e-5


def test_distance_falls_with_beta_at_the_order_of_the_sign(ideal: GradCheck):
    """From 1e-2 to 1e-3: by 10 for one sign, by 100 for both."""
    for sign, factor in (("positive", 10), ("negative", 10), ("centered", 100)):
        large, little = (of_sign(ideal, sign, beta) for beta in (1e-2, 1e-3))
        for one, other in zip(large, little, strict=True):
            if one.distance[-1] > 1e-8:
                ratio = one.distance[-1] / other.distance[-1]
                assert 0.7 * factor < ratio < 1.4 * factor, (sign, one)


def test_a_beta_and_its_opposite_are_one_strength():
    result = check(small("digits-1fc-w"), betas=[0.2, -0.2, 0.1])
    assert result.betas == [0.2, 0.1]
    assert all(len(found.cosine) == STEPS for found in result.agreements)


@pytest.mark.parametrize(
    "overrides", [[], ["learning.nudge=constant"], ["network.cost=cross_entropy"]]
)
def test_truncated_estimates_are_those_of_fewer_nudged_steps(overrides: list[str], monkeypatch):
    """One trajectory, taken step by step, serves all t."""
    recipe, seen = small("digits-1fc-w", *overrides), []

    def spy(ep, bptt):
        seen.append(ep)
        return original(ep, bptt)

    original = metrics.cosine
    monkeypatch.setattr(metrics, "cosine", spy)
    check(recipe, seed=2, betas=[0.2], pulls_at="state")
    network, x, labels = first_batch(recipe, seed=2)
    expected = []
    for t in range(1, STEPS + 1):
        for sign, beta in (("positive", 0.2), ("positive", -0.2), ("centered", 0.2)):
            ep = EquilibriumPropagation(60, t, beta, sign, recipe.learning.nudge)
            ep.backward(network, x, labels)
            expected.append(metrics.true_gradients(network))
    assert len(seen) == len(expected)
    for one, other in zip(seen, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def first_batch(recipe: Recipe, seed: int) -> tuple[Network, torch.Tensor, torch.Tensor]:
    """The network that training begins with and its first images, in float64."""
    streams, train = random_streams(seed), load_dataset("digits").train
    chosen = shuffled(len(train), streams["shuffle"])[:BATCH]
    network = recipe.build_network(streams["init"]).double()
    return network, train.images[chosen], train.labels[chosen]


def test_traces_follow_single_synapses_and_the_projection(ideal: GradCheck):
    for n in range(len(ideal.couplings)):
        mine = [trace for trace in ideal.traces if trace.coupling == n]
        assert mine[0].name == "projection" and len(mine) == 1 + checks.SYNAPSES_DRAWN
        for trace in mine:
            assert trace.ep == pytest.approx(trace.bptt, rel=1e-2, abs=1e-9)
            assert trace.bptt[-1] != 0
    # Through one step the error reaches only the last coupling.
    first = [trace for trace in ideal.traces if trace.coupling == 0]
    assert all(trace.ep[0] == trace.bptt[0] == 0 for trace in first)


def test_saturated_neurons_are_counted():
    recipe = small()
    network = interior(recipe)
    network.couplings[-1].bias.data[:4] = -5.0
    network.couplings[-1].bias.data[4:5] = 5.0
    top = check(recipe, network=network, steps=1).layers[-1]
    assert (top.neurons, top.at_zero, top.at_one) == (10, 0.4, 0.1)


def test_binary_activations_are_refused_with_the_reason():
    with pytest.raises(BinepError, match="a step has no derivative"):
        gradcheck(recipes.load("digits-1fc-wa"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"batch": 0}, "batch=0"),
        ({"steps": 0}, "steps=0"),
        ({"betas": [0.1, 0.0]}, "other than 0"),
        ({"steps": 61}, "free_steps=60"),
    ],
)
def test_mistakes_are_told_in_one_line(options: dict, message: str):
    with pytest.raises(BinepError, match=message):
        check(small(), **options)


def test_the_network_given_is_not_changed():
    recipe = small()
    network = interior(recipe)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    check(recipe, network=network, steps=1)
    assert all(torch.equal(before[name], p) for name, p in network.named_parameters())
    assert all(p.dtype == torch.float32 and p.grad is None for p in network.parameters())


def test_table_says_under_what_conditions_it_holds(ideal: GradCheck):
    text = checks.table(ideal)
    for words in ("trained network", "seed 0", "n = 6 images", "float64", "T = 150", "K = 5"):
        assert words in text
    assert f"last residual {ideal.residual:.1e}" in text and "output 0% of 10" in text
    for agreement in ideal.agreements:
        assert f"{agreement.distance[-1]:.1e}" in text


def test_json_is_plain_and_strict(ideal: GradCheck):
    broken = GradCheck(**{**vars(ideal), "residual": math.inf})
    plain = json.loads(broken.to_json(), parse_constant=pytest.fail)
    assert plain["residual"] is None
    assert plain["betas"] == [1e-2, 1e-3] and plain["samples"] == BATCH
    assert plain["agreements"][0]["cosine"] == ideal.agreements[0].cosine
    assert plain["environment"].keys() == provenance.environment(CPU).keys()


def test_figure_has_a_column_a_coupling(ideal: GradCheck):
    drawing = checks.figure(ideal)
    assert len(drawing.axes) == 3 * len(ideal.couplings)
    assert [axes.get_title(loc="left") for axes in drawing.axes[: len(ideal.couplings)]] == (
        ideal.couplings
    )
    assert all(axes.get_lines() for axes in drawing.axes)


def test_a_saturated_output_is_compared_at_its_drive():
    """Fresh outputs are saturated: the theorem holds at the drive, where they are not clamped."""
    recipe = small("digits-1fc-w", "network.dense=[512]")
    result = check(recipe, betas=[1e-2])
    assert result.pulls_at == "drive" and result.layers[-1].saturated > 0.3
    assert result.unclamped is not None and result.unclamped.unclamped is None
    for agreement in result.unclamped.agreements:
        assert agreement.cosine[-1] > 0.99
    worst = {sign: min(a.cosine[-1] for a in of_sign(result, sign, 1e-2)) for sign in checks.MARKS}
    assert worst["positive"] > 0.99 > worst["centered"] > 0.9 > worst["negative"]
    assert "clamped to [0, 1]" in checks.table(result)
    asked = check(recipe, betas=[1e-2], pulls_at="state")
    assert asked.pulls_at == "state" and asked.unclamped is None
    assert min(a.cosine[-1] for a in of_sign(asked, "positive", 1e-2)) < 0.9
    assert "BPTT at the state" in checks.table(asked)


def test_what_a_recipe_learns_by_is_what_it_is_compared_with():
    backward = small("digits-1fc-w", "learning.method=bptt")
    assert check(backward, steps=1).pulls_at == "state"
    energy = small("digits-1fc-w", "network.dynamics=energy")
    assert check(energy, steps=1).pulls_at == "state"
