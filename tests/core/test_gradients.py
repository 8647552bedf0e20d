"""Gradients: EP's theorem as a test, exact ternary gradients, and where the theorem ends."""

import math

import pytest
import torch
from torch import Tensor

from binep import (
    BackpropThroughTime,
    ConvPool,
    Dense,
    EquilibriumPropagation,
    Heaviside,
    Network,
    Nudge,
    relax,
)
from binep.core import metrics
from binep.core.couplings import Coupling

T, K = 300, 6
CASES = [
    *("dense", "dense energy", "conv", "conv energy", "real", "cross-entropy"),
    # Three layers and four: the top one moves first, or last.
    *("dense alternating", "conv alternating"),
    *("dense feedback", "dense energy feedback", "conv energy feedback", "cross-entropy feedback"),
]


def interior_network(case: str, seed: int = 0) -> tuple[Network, Tensor, Tensor]:
    """A float64 network on which EP's theorem holds.

    Its free phase converges, all neurons stay well inside (0, 1), so that no kink of the hard
    sigmoid, no clamp and (conv) no change of switches comes into play.
    """
    torch.manual_seed(seed)
    words = case.split()
    binary = case != "real"
    if "conv" in words:
        shape = (2, 8, 8)
        chain: list[Coupling] = [
            ConvPool(2, 3, kernel=3, padding=1, pool=2, learn_scale=True),
            ConvPool(3, 4, kernel=3, pool=2, learn_scale=True),
            Dense(4, 5, learn_scale=True),
            Dense(5, 3, learn_scale=True),
        ]
    else:
        shape = (6,)
        sizes = [(6, 5), (5, 4), (4, 3)]
        chain = [Dense(a, b, binary=binary, learn_scale=binary) for a, b in sizes]
    net = Network(
        shape,
        chain,
        dynamics="energy" if "energy" in words else "prototypical",
        classes=3,
        cost="cross_entropy" if "cross-entropy" in words else "mse",
        updates="alternating" if "alternating" in words else "simultaneous",
        feedback=[1, 0.3, 0.6, 1.5][: len(chain)] if "feedback" in words else 1,
    ).double()
    for coupling in chain:
        coupling.synapses.get_parameter("scale" if binary else "weight").data.mul_(0.5)
        assert coupling.bias is not None
        coupling.bias.data.fill_(0.5)
    x, labels = torch.rand(4, *shape, dtype=torch.float64), torch.tensor([0, 2, 1, 2])
    return net, x, labels


def ep_gradients(net, x, labels, beta: float, steps: int, sign: str) -> dict[str, Tensor]:
    EquilibriumPropagation(T, steps, beta, sign).backward(net, x, labels)
    return metrics.true_gradients(net)


def bptt_gradients(net, x, labels, steps: int, pulls_at: str = "state") -> dict[str, Tensor]:
    BackpropThroughTime(T, steps, pulls_at=pulls_at).backward(net, x, labels)
    return metrics.gradients(net)


@pytest.mark.parametrize("case", CASES)
def test_the_networks_meet_the_theorems_conditions(case: str):
    net, x, labels = interior_network(case)
    free = relax(net, x, net.initial(x), T)
    assert free.residuals[-1] < 1e-14
    assert all(s.min() > 0.1 and s.max() < 0.9 for s in free.state)
    for beta in (0.05, -0.05):
        nudged = relax(net, x, free.state, K, Nudge(net.target(labels), beta))
        assert all(s.min() > 0 and s.max() < 1 for s in nudged.state)
        for before, after in zip(free.switches, nudged.switches, strict=True):
            assert before is after is None or torch.equal(before, after)


@pytest.mark.parametrize("steps", range(1, K + 1))
@pytest.mark.parametrize("case", CASES)
def test_truncated_ep_is_truncated_bptt(case: str, steps: int):
    """For W, b and alpha of every coupling, centered, at beta = 1e-4."""
    net, x, labels = interior_network(case)
    bptt = bptt_gradients(net, x, labels, steps)
    ep = ep_gradients(net, x, labels, 1e-4, steps, "centered")
    assert len(bptt) == len(list(net.parameters()))
    assert min(metrics.cosine(ep, bptt).values()) > 0.9999
    # Centered estimates err at order beta^2 = 1e-8; where BPTT has not yet arrived, EP has not.
    assert max(metrics.relative_distance(ep, bptt).values()) < 1e-5
    reached = {name for name, gradient in bptt.items() if gradient.any()}
    assert reached == {name for name, gradient in ep.items() if gradient.any()}


def fitted_order(betas: list[float], distances: list[float]) -> float:
    """Slope of log(distance) against log(beta)."""
    xs, ys = [math.log(b) for b in betas], [math.log(d) for d in distances]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mx) ** 2 for x in xs
    )


@pytest.mark.parametrize(("sign", "order"), [("positive", 1), ("centered", 2)])
@pytest.mark.parametrize("case", CASES)
def test_ep_approaches_bptt_at_its_order(case: str, sign: str, order: int):
    net, x, labels = interior_network(case)
    betas = [0.04, 0.02, 0.01, 0.005]
    for steps in (2, K):
        bptt = bptt_gradients(net, x, labels, steps)
        distances = [
            metrics.relative_distance(ep_gradients(net, x, labels, beta, steps, sign), bptt)
            for beta in betas
        ]
        for name in bptt:
            trace = [distance[name] for distance in distances]
            # At float64's floor the estimate is exact (a readout, or a layer not yet reached).
            if max(trace) > 1e-11:
                assert abs(fitted_order(betas, trace) - order) < 0.15, (name, steps, trace)


def test_scale_gradients_carry_the_papers_factor():
    """EP's alpha is rule * alpha * dL/dalpha: a half for dense couplings, one for conv."""
    net, x, labels = interior_network("conv")
    BackpropThroughTime(T, K).backward(net, x, labels)
    true = [coupling.scale.grad.clone() for coupling in net.couplings]
    EquilibriumPropagation(T, K, 1e-4, "centered").backward(net, x, labels)
    for coupling, gradient in zip(net.couplings, true, strict=True):
        rule = 0.5 if isinstance(coupling, Dense) else 1.0
        expected = rule * coupling.scale.detach() * gradient
        torch.testing.assert_close(coupling.scale.grad, expected, rtol=1e-5, atol=1e-12)


def test_scale_rule_is_the_one_of_the_paper():
    """-(1/(2 beta)) D(a_above^T W a_below) and its conv form, computed from the states."""
    net, x, labels = interior_network("conv")
    phases = EquilibriumPropagation(T, K, 0.1).backward(net, x, labels)
    assert phases.nudged is not None and phases.beta is not None
    difference = [0.0] * 4
    for sign, phase in ((1, phases.nudged), (-1, phases.free)):
        below = [x, *phase.state]
        for n, coupling in enumerate(net.couplings):
            drive = coupling.up(below[n])[0]
            product = below[n + 1] * (drive - coupling.per_output(coupling.bias))
            per_scale = product.sum() if coupling.scale.dim() == 0 else product.sum((0, 2, 3))
            difference[n] = difference[n] + sign * per_scale / len(x)
    for n, rule in enumerate((1.0, 1.0, 0.5, 0.5)):
        expected = -rule / phases.beta * difference[n]
        torch.testing.assert_close(net.couplings[n].scale.grad, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("clamped", "sends"),
    [(True, "activity"), (True, "state"), (False, "activity"), (False, "state")],
)
def test_saturated_output_breaks_the_theorem(sign: int, clamped: bool, sends: str):
    """An output at rest below 0 has no gradient: BPTT says so, EP only where the clamp forbids.

    The class of the label is saturated at s = 0 (its drive is below zero) while its target is 1.
    Pulled (beta > 0) it leaves 0 and EP reports an error signal that BPTT does not have: useful in
    practice, since it wakes a dead output, but not the gradient of the state; it is what BPTT finds
    when the loss pulls at the drive. Pushed away (beta < 0) it goes below 0, where its activity is
    still 0, clamped or not: EP then reports nothing, unless the output sends its state.
    """
    net, x, _ = interior_network("dense")
    net = Network((6,), list(net.couplings), classes=3, clamp_nudged=clamped, nudged_sends=sends)
    top = net.couplings[-1]
    assert top.bias is not None
    top.bias.data[0] = -2.0
    labels = torch.zeros(4, dtype=torch.long)
    free = relax(net, x, net.initial(x), T)
    assert free.state[-1][:, 0].tolist() == [0.0] * 4

    of_top = "couplings.2.synapses.signs"
    bptt = bptt_gradients(net, x, labels, K)[of_top]
    gradients = ep_gradients(net, x, labels, sign * 1e-3, K, "positive")
    ep = gradients[of_top]
    assert not bptt[0].any()
    if sign > 0 or net.sends_state:
        # One nudged step moves s by beta (1 - 0), the next ones by beta (1 - s): to first order
        # the estimate is -mean(a_below), the gradient of an output that is not saturated.
        torch.testing.assert_close(ep[0], -free.state[-2].mean(0), rtol=1e-2, atol=0)
        # The signal that should not be there spreads to the other outputs through the layer below.
        assert (ep[1:] - bptt[1:]).norm() > 0.1 * bptt[1:].norm()
        at_drive = bptt_gradients(net, x, labels, K, "drive")
        assert max(metrics.relative_distance(gradients, at_drive).values()) < 1e-2
    else:
        assert not ep[0].any()
        # The other outputs are inside (0, 1): there the theorem holds.
        torch.testing.assert_close(ep[1:], bptt[1:], rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize(("sends", "closer_than"), [("state", 1e-7), ("activity", None)])
def test_ep_is_bptt_at_the_drive_where_outputs_saturate(sends: str, closer_than: float | None):
    """The default where nudged outputs are not clamped, and the variant that is no gradient.

    Half of a fresh network's outputs are at rest below 0. With centered signs and beta = 3e-5 what
    is left is of order beta^2; where activities are sent, a difference of order 1 is.
    """
    torch.manual_seed(0)
    chain = [ConvPool(1, 8, kernel=3, padding=1, pool=2), ConvPool(8, 16, kernel=3, pool=2)]
    chain.append(Dense(16, 10))
    net = Network((1, 8, 8), chain, **({} if sends == "state" else {"nudged_sends": sends}))
    net, x, labels = net.double(), torch.rand(8, 1, 8, 8).double(), torch.arange(8)
    free = relax(net, x, net.initial(x), T)
    assert (free.state[-1] == 0).any() and free.residuals[-1] < 1e-14
    at_drive = bptt_gradients(net, x, labels, K, "drive")
    distance = metrics.relative_distance(
        ep_gradients(net, x, labels, 3e-5, K, "centered"), at_drive
    )
    if closer_than is None:
        assert max(distance.values()) > 0.1
    else:
        assert max(distance.values()) < closer_than


def binary_network(seed: int = 0) -> tuple[Network, Tensor, Tensor]:
    torch.manual_seed(seed)
    chain = [
        ConvPool(1, 12, kernel=3, padding=1, pool=2),
        ConvPool(12, 16, kernel=3, pool=2),
        Dense(64, 30),
    ]
    net = Network((1, 12, 12), chain, Heaviside(), "energy", per_class=3)
    return net, torch.randint(256, (6, 1, 12, 12), dtype=torch.uint8), torch.arange(6)


@pytest.mark.parametrize("beta", [2.0, 0.3])
def test_a_samples_gradient_is_ternary_with_binary_activations(beta: float):
    torch.manual_seed(1)
    net = Network((20,), [Dense(20, 64), Dense(64, 64), Dense(64, 30)], Heaviside(), "energy", 3)
    allowed = torch.tensor([-1 / beta, 0.0, 1 / beta])
    seen = set()
    for sample in torch.rand(8, 1, 20):
        EquilibriumPropagation(20, 10, beta).backward(net, sample, torch.tensor([3]))
        for coupling in net.couplings[1:]:
            for gradient in (coupling.signs.grad, coupling.bias.grad):
                assert gradient is not None and torch.isin(gradient, allowed).all()
                seen |= set(gradient.unique().tolist())
    assert len(seen) == 3


def test_gradients_of_bits_and_pixels_are_scaled_integers():
    net, pixels, labels = binary_network()
    phases = EquilibriumPropagation(20, 10, 2.0).backward(net, pixels, labels)
    assert any(coupling.signs.grad.any() for coupling in net.couplings)
    for n, coupling in enumerate(net.couplings):
        unit = 1 / (2.0 * len(pixels) * (255 if n == 0 else 1))
        counts = coupling.signs.grad / unit
        torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-2)
    again = EquilibriumPropagation(20, 10, 2.0).backward(net, pixels / 255, labels)
    # As real numbers the pixels' sums round, so states agree closely, not exactly.
    torch.testing.assert_close(again.free.state[0], phases.free.state[0], rtol=0, atol=1e-5)


def test_pixels_and_the_numbers_they_stand_for_have_the_same_gradients():
    net, _, labels = interior_network("dense")
    pixels = torch.randint(256, (4, 6), dtype=torch.uint8)
    of_pixels = ep_gradients(net, pixels, labels, 0.05, K, "positive")
    of_numbers = ep_gradients(net, pixels.double() / 255, labels, 0.05, K, "positive")
    for name, gradient in of_numbers.items():
        torch.testing.assert_close(of_pixels[name], gradient, rtol=1e-9, atol=1e-12)


def test_each_phase_is_correlated_through_its_own_switches():
    torch.manual_seed(0)
    chain = [ConvPool(1, 4, kernel=3, pool=2), ConvPool(4, 6, kernel=2, pool=2), Dense(6, 3)]
    net = Network((1, 8, 8), chain, classes=3)
    x, labels = torch.rand(8, 1, 8, 8), torch.arange(8) % 3
    phases = EquilibriumPropagation(20, 10, 1.0).backward(net, x, labels)
    free, nudged = phases.free, phases.nudged
    assert not torch.equal(free.switches[1], nudged.switches[1])
    at_rest, at_end = net.activity(free.state), net.activity(nudged.state)
    contrast = chain[1].correlate(at_end[0], at_end[1], nudged.switches[1])
    contrast -= chain[1].correlate(at_rest[0], at_rest[1], free.switches[1])
    torch.testing.assert_close(chain[1].signs.grad, -contrast / 8)


@pytest.mark.parametrize("case", [case for case in CASES if "cross" not in case])
@pytest.mark.parametrize("sign", ["positive", "centered"])
def test_a_margin_is_a_bias_against_the_right_class(case: str, sign: str):
    net, x, _ = interior_network(case)
    labels, margin = torch.full((len(x),), 1), 0.05
    phases = EquilibriumPropagation(T, K, 0.1, sign, margin=margin).backward(net, x, labels)
    held = metrics.gradients(net)
    net.couplings[-1].bias.data += margin * torch.tensor([1.0, -1.0, 1.0]).double()
    biased = EquilibriumPropagation(T, K, 0.1, sign).backward(net, x, labels)
    for found, expected in zip(phases.free.state, biased.free.state, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for name, gradient in metrics.gradients(net).items():
        torch.testing.assert_close(held[name], gradient, rtol=1e-9, atol=1e-12)


def test_with_a_margin_there_is_something_to_learn_from_a_sample_that_is_just_right():
    """One output a class, driven by 1.1 and -0.1: saturated, until they are held back by more."""
    net = Network((1,), [Dense(1, 2)], classes=2)
    net.couplings[0].signs.data.fill_(0)
    net.couplings[0].bias.data = torch.tensor([1.1, -0.1])
    gradients = []
    for margin in (0.0, 0.09, 0.2):
        ep = EquilibriumPropagation(3, 3, 0.3, "positive", "constant", margin=margin)
        ep.backward(net, torch.ones(1, 1), torch.tensor([0]))
        gradients.append(net.couplings[0].bias.grad.tolist())
    assert gradients[:2] == [[0, 0], [0, 0]]
    # 1.1 - 0.2 = 0.9 and -0.1 + 0.2 = 0.1: both 0.1 from their targets.
    assert gradients[2] == pytest.approx([-0.1, 0.1])


def test_gradient_is_the_batch_mean():
    net, x, labels = interior_network("dense")
    whole = ep_gradients(net, x, labels, 0.1, K, "positive")
    parts = [
        ep_gradients(net, x[i : i + 1], labels[i : i + 1], 0.1, K, "positive") for i in range(4)
    ]
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, torch.stack([p[name] for p in parts]).mean(0))


def test_random_sign_is_drawn_for_each_mini_batch_from_the_generator():
    net, x, labels = interior_network("dense")

    def signs(seed: int) -> list[float | None]:
        generator = torch.Generator().manual_seed(seed)
        ep = EquilibriumPropagation(5, 2, 0.25, "random", generator=generator)
        return [ep.backward(net, x, labels).beta for _ in range(12)]

    assert set(signs(0)) == {0.25, -0.25}
    assert signs(0) == signs(0) != signs(1)


def test_centered_runs_both_signs_from_the_same_free_state():
    net, x, labels = interior_network("dense")
    phases = EquilibriumPropagation(T, K, 0.1, "centered").backward(net, x, labels)
    target = net.target(labels)
    assert phases.nudged is not None and phases.opposite is not None
    for beta, phase in ((0.1, phases.nudged), (-0.1, phases.opposite)):
        expected = relax(net, x, phases.free.state, K, Nudge(target, beta)).state
        assert all(torch.equal(a, b) for a, b in zip(expected, phase.state, strict=True))


def test_bptt_through_all_steps_is_autograd():
    net, x, labels = interior_network("dense")
    BackpropThroughTime(7, 7).backward(net, x, labels)
    found = metrics.gradients(net)
    weights = [c.weight.detach().clone().requires_grad_() for c in net.couplings]
    biases = [c.bias.detach().clone().requires_grad_() for c in net.couplings]
    s = net.initial(x)
    for _ in range(7):
        a = [x, *s]
        s = [
            (a[n] @ weights[n].T + biases[n] + (a[n + 2] @ weights[n + 1] if n < 2 else 0)).clamp(
                0, 1
            )
            for n in range(3)
        ]
    loss = 0.5 * (net.target(labels) - s[-1]).square().sum() / len(x)
    loss.backward()
    for n in range(3):
        torch.testing.assert_close(found[f"couplings.{n}.synapses.signs"], weights[n].grad)
        torch.testing.assert_close(found[f"couplings.{n}.bias"], biases[n].grad)


@pytest.mark.parametrize("case", ["dense", "conv", "dense alternating", "conv alternating"])
@pytest.mark.parametrize("steps", [1, 2, K])
def test_inside_the_clamp_it_makes_no_difference_where_the_loss_pulls(case: str, steps: int):
    net, x, labels = interior_network(case)
    at_state, at_drive = (bptt_gradients(net, x, labels, steps, at) for at in ("state", "drive"))
    for name, gradient in at_state.items():
        torch.testing.assert_close(at_drive[name], gradient, rtol=1e-10, atol=1e-14)


def test_bptt_leaves_frozen_parameters_frozen():
    net, x, labels = interior_network("dense")
    net.couplings[0].signs.requires_grad_(False)
    with torch.no_grad():
        phases = BackpropThroughTime(20, 5).backward(net, x, labels)
    assert not net.couplings[0].signs.requires_grad
    assert net.couplings[0].signs.grad is not None
    assert phases.free.steps == 20 and not phases.free.state[0].requires_grad


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EquilibriumPropagation(0, 10, 0.3), "free_steps=0"),
        (lambda: EquilibriumPropagation(50, 0, 0.3), "nudged_steps=0"),
        (lambda: EquilibriumPropagation(50, 10, 0.0), "beta=0"),
        (lambda: EquilibriumPropagation(50, 10, float("inf")), "beta=inf"),
        (lambda: EquilibriumPropagation(50, 10, 0.3, "centred"), "'centred'.*'centered'"),
        (lambda: EquilibriumPropagation(50, 10, 0.3, nudge="dead"), "'dead'.*live, constant"),
        (lambda: EquilibriumPropagation(50, 10, 0.3, margin=-0.1), "margin=-0.1.*at least 0"),
        (lambda: EquilibriumPropagation(50, 10, 0.3, margin=float("nan")), "margin=nan"),
        (
            lambda: EquilibriumPropagation(5, 5, 0.3, margin=0.1).backward(
                *interior_network("cross-entropy")
            ),
            "margin=0.1 with cost='cross_entropy'.*mse",
        ),
        (lambda: BackpropThroughTime(10, 11), "steps=11.*10"),
        (lambda: BackpropThroughTime(10, 0), "steps=0"),
        (lambda: BackpropThroughTime(5, 5).backward(*binary_network()), "real activations"),
        (lambda: BackpropThroughTime(5, 5, pulls_at="output"), "'output'.*state, drive"),
        (
            lambda: BackpropThroughTime(5, 5, pulls_at="drive").check(
                Network((4,), [Dense(4, 2)], classes=2, dynamics="energy")
            ),
            "pulls_at='drive'.*prototypical",
        ),
    ],
)
def test_impossible_estimates_are_refused(build, message: str):
    with pytest.raises(ValueError, match=message):
        build()


def test_labels_must_match_the_batch():
    net, x, _ = interior_network("dense")
    for margin in (0.0, 0.1):
        with pytest.raises(ValueError, match=r"\(3, 3\).*\(4, 3\)"):
            ep = EquilibriumPropagation(5, 5, 0.3, margin=margin)
            ep.backward(net, x, torch.tensor([0, 1, 2]))
