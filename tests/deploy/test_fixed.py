"""The network in integers: what it approximates, where it is exact, and how it learns."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_runtime import BINARY, REAL, build, images

from binep import EquilibriumPropagation
from binep.deploy.export import store
from binep.deploy.fixed import FixedNetwork, _first, compare_decisions, compare_on_images, why_not
from binep.deploy.learning import FixedLearner, FixedRule, Rule
from binep.deploy.runtime import Runtime
from binep.errors import BinepError


def rule(
    layers: int = 3,
    *,
    beta: float = 2.0,
    sign: str = "random",
    nudge: str = "live",
    margin: float = 0.0,
    gamma: float = 1e-2,
    tau: float | tuple[float, ...] = 1e-3,
) -> Rule:
    """A small one, with the same rates for all couplings."""
    plan = EquilibriumPropagation(20, 4, beta, sign, nudge, margin=margin).plan()
    taus = tau if isinstance(tau, tuple) else (tau,) * layers
    return Rule(plan, sign == "random", (gamma,) * layers, taus, (1e-3,) * layers, batch_size=16)


def fixed(case: str, state_bits: int = 24) -> FixedNetwork:
    recipe, network = build(*BINARY[case])
    return FixedNetwork(store(network, recipe), state_bits)


@pytest.mark.parametrize("case", ["dense", "conv", "two conv"])
def test_states_are_close_to_float32_and_predictions_equal(case: str):
    whole = fixed(case)
    runtime, x = Runtime(whole.network), images(build(*BINARY[case])[0], 100).numpy()
    assert np.array_equal(whole.predict(x), runtime.predict(x))
    assert np.array_equal(whole.predict(x, "single"), runtime.predict(x, "single"))
    for mine, theirs in zip(whole.relax(x), runtime.relax(x), strict=True):
        # Two roundings of float32 at 2^-24, halved and added up over the steps, or a bit that
        # differs: then the prediction would most likely, too.
        np.testing.assert_allclose(mine / 2**24, theirs, atol=1e-6)


def test_every_bit_on_images_is_compared():
    whole = fixed("conv")
    x = images(build(*BINARY["conv"])[0], 300).numpy()
    found = compare_on_images(whole, x)
    neurons = sum(np.prod(shape) for shape in whole.network.layer_shapes)
    assert found.bits == 300 * neurons * (whole.network.steps + 1)
    assert np.array_equal(found.classes, whole.predict(x))
    assert (found.differ, found.bits_differ) == (0, 0)
    rough = compare_on_images(FixedNetwork(whole.network, 2), x)
    assert rough.bits_differ > 0
    assert rough.differ == int((rough.classes != Runtime(whole.network).predict(x)).sum()) > 0


def test_a_step_by_hand():
    """F = 4: s = floor((s + D) / 2) in units of 1/16, D kept in [-16, 32]."""
    whole = fixed("dense", 4)
    drive = np.array([0.5, -3.0, 7.0, 0.30]) * 2**40
    step = whole.advance(np.array([16, 3, 1, 7]), drive.astype(np.int64))
    assert step.tolist() == [12, 0, 16, 5]  # (16+8)/2, (3-16)/2, (1+32)/2, floor((7+4)/2)
    assert whole.activity(np.array([7, 8])).tolist() == [False, True]
    nudged = whole.advance(np.array([0]), drive[:1].astype(np.int64), nudge=np.array([3]))
    assert nudged.tolist() == [5]


def test_saturating_the_drive_changes_nothing():
    whole = fixed("dense")
    one = 1 << 24
    s = np.arange(0, one + 1, 4099)
    for force in (-5 * one, -one - 1, 2 * one + 1, 9 * one):
        expected = ((s + force) >> 1).clip(0, one)
        assert np.array_equal(whole.advance(s, np.full_like(s, force) << 16), expected)


def test_all_resting_decisions_are_compared_with_float32():
    recipe, network = build("digits-1fc-wa", ["network.dense=[20]", "network.per_class=2"])
    whole = FixedNetwork(store(network, recipe))
    hidden, top = compare_decisions(whole)
    assert (hidden.cases, top.cases) == (20 * 41 * (2 * 64 * 255 + 1), 20 * 41)
    assert top.differ == 0 and hidden.differ <= 1e-6 * hidden.cases
    # Biases that put every neuron's drive at 1/2 for some sum, up to rounding: by brute force.
    scale = np.float32(0.1)
    bias = (np.float32(0.5) - scale * np.arange(-10, 10)).astype(np.float32)
    top_coupling = replace(whole.network.couplings[1], scale=scale, bias=bias)
    couplings = [whole.network.couplings[0], top_coupling]
    near = FixedNetwork(replace(whole.network, couplings=couplings))
    sums = np.arange(-20, 21)[:, None]
    floating = scale * sums.astype(np.float32) + bias >= np.float32(0.5)
    integer = near.gains[1] * sums + near.biases[1] >= 1 << 39
    found = compare_decisions(near)[1]
    assert found.differ == int((floating != integer).sum()) > 0
    assert 0 < found.margin < 1e-6


def test_thresholds_are_found_exactly():
    """Every one there can be, and 8 where none of -7..7 will do."""
    wanted = np.arange(-7, 9)
    assert np.array_equal(_first(lambda sums: sums >= wanted, 7, wanted.shape), wanted)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (REAL["dense"], "activations are real"),
        (BINARY["dense, narrow window"], "pseudo-derivative"),
        (BINARY["dense, other dt and threshold"], "dt = 1/2"),
    ],
)
def test_what_cannot_run_in_integers_says_why(case, reason: str):
    recipe, network = build(*case)
    assert reason in str(why_not(store(network, recipe)))
    with pytest.raises(BinepError, match=reason):
        FixedNetwork(store(network, recipe))


def test_widths_are_checked():
    with pytest.raises(BinepError, match="state bits 30: allowed are 2 to 29"):
        fixed("dense", 30)
    with pytest.raises(BinepError, match=r"momentum bits 4: coupling 1 .* at least 11 bits"):
        FixedRule(rule(tau=(1e-4, 0.2, 1e-4)), 4)
    with pytest.raises(BinepError, match="momentum bits 1: allowed are 2 to 31"):
        FixedRule(rule(), 1)
    with pytest.raises(BinepError, match=r"margin 1e\+07: .* does not fit into 64 bits"):
        FixedLearner(fixed("dense"), FixedRule(rule(margin=1e7)))


def test_narrow_momenta_take_the_highest_bits_of_pixels():
    wide, narrow = (FixedRule(rule(tau=(1e-2, 1e-3, 1e-3)), bits) for bits in (16, 8))
    assert wide.flip_above == [32 * 255, 3, 3] and wide.pixel_shift == 0
    assert narrow.pixel_shift == 7 and narrow.flip_above[0] == 63


@pytest.mark.parametrize("margin", [0.0, 0.1])
@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("dense", {"nudge": "constant", "sign": "centered"}),
        ("conv", {"beta": -1.5}),
        ("bits", {"beta": 0.6}),
        ("bits, conv", {"beta": 1.5, "sign": "centered"}),
    ],
)
def test_an_image_teaches_what_it_teaches_the_training_network(
    case: str, changes: dict, margin: float
):
    """Momenta are the reference's gradients, in units that make them integers."""
    recipe, network = build(*BINARY[case])
    stored, x = store(network, recipe), images(recipe, 12)
    once = rule(len(network.couplings), tau=9.0, margin=margin, **{"sign": "positive"} | changes)
    plan = once.plan
    reference = EquilibriumPropagation(
        20,
        4,
        plan.phases[1].beta,
        changes.get("sign", "positive"),
        plan.phases[1].nudge,
        margin=margin,
    )
    seen = list[int]()
    for n, image in enumerate(x):
        learner = FixedLearner(FixedNetwork(stored), FixedRule(once, 31))
        learner.learn(image.numpy(), n % 10)
        reference.backward(network, image[None], torch.tensor([n % 10]))
        for k, (momentum, coupling) in enumerate(
            zip(learner.momenta, network.couplings, strict=True)
        ):
            signs = coupling.signs.grad
            assert signs is not None
            gradient = signs * abs(plan.span) * (255 if k == 0 else 1)
            assert np.array_equal(momentum, gradient.round().long().numpy()), (n, k)
            seen.append(int(np.abs(momentum).sum()))
    assert sum(map(bool, seen)) > len(seen) / 3


def test_learning_flips_weights_and_finds_the_label():
    """One image shown often: the momentum grows with the wrong synapses until they flip."""
    whole = fixed("dense")
    x = images(build(*BINARY["dense"])[0], 1).numpy()
    label = int(whole.predict(x)[0] + 1) % 10
    learner = FixedLearner(whole, FixedRule(rule(sign="positive")))
    before = [c.signs.copy() for c in whole.network.couplings]
    for _ in range(60):
        learner.learn(x[0], label)
    changed = sum(
        int((b != c.signs).sum()) for b, c in zip(before, learner.network.couplings, strict=True)
    )
    assert 0 < changed <= learner.flips
    assert learner.fixed.predict(x)[0] == label


def test_momenta_saturate_and_leak():
    whole = fixed("dense")
    x = images(build(*BINARY["dense"])[0], 1).numpy()
    narrow = FixedRule(rule(sign="positive", tau=(1e-4, 1e-3, 1e-3)), 6)
    learner = FixedLearner(whole, narrow)
    for _ in range(30):
        learner.learn(x[0], 3)
    assert max(int(np.abs(m).max()) for m in learner.momenta) <= narrow.most
    leaky = FixedLearner(fixed("dense"), FixedRule(rule(gamma=0.99, tau=9.0), 31))
    for _ in range(30):
        leaky.learn(x[0], 3)
    # Halved every 11 images, a momentum from bits stays below 2 * 11 images' worth.
    assert narrow.half_life[0] > 1000 and leaky.rule.half_life == [11] * 3
    assert 0 < np.abs(leaky.momenta[1]).max() <= 22
