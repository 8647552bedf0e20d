"""Bop's flip rule on single weights, momenta of tiny gamma, and who owns which parameter."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from binep import Bop, ConvPool, Dense, Network, assign_optimizers
from binep.core.optim import PositiveSGD, SecondOrderBop, check_claims


def one(w: float, **options) -> tuple[nn.Parameter, Bop]:
    weight = nn.Parameter(torch.tensor([w]))
    return weight, Bop([weight], **options)


@pytest.mark.parametrize("w", [1.0, -1.0])
@pytest.mark.parametrize("m", [1.0, -1.0])
@pytest.mark.parametrize("size", ["below", "at", "above"])
@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.125])
def test_a_weight_flips_above_tau_where_it_agrees_with_the_momentum(w, m, size, gamma):
    tau = 0.25
    at = torch.tensor(tau / gamma)
    gradient = {"below": at.nextafter(at * 0), "at": at, "above": at.nextafter(at * 2)}[size]
    weight, bop = one(w, gamma=gamma, tau=tau)
    weight.grad = m * gradient.reshape(1)
    flips = size == "above" and m == w
    assert bop.step() == [int(flips)]
    assert weight.item() == (-w if flips else w)


def test_no_gradient_no_flip_even_at_tau_zero():
    weight, bop = one(1.0, gamma=0.5, tau=0.0)
    weight.grad = torch.zeros(1)
    assert bop.step() == [0]
    weight.grad = None
    assert bop.step() == [0]


def test_momentum_after_several_steps_by_hand():
    # gamma = 1/2: m = 1/2, then 1/4 + 1/2 = 3/4 at tau, then 3/8 + 1/2 = 7/8 above it.
    weight, bop = one(1.0, gamma=0.5, tau=0.75)
    weight.grad = torch.ones(1)
    assert [bop.step() for _ in range(3)] == [[0], [0], [1]]
    assert bop.momentum(weight).item() == 0.875
    # Flipped, it disagrees with m and stays: 15/16, 31/32 ... until the gradient turns.
    assert [bop.step() for _ in range(5)] == [[0]] * 5
    assert weight.item() == -1 and bop.state[weight]["flips"] == 1
    weight.grad = -torch.ones(1)
    # m: 127/128 - ... falls through 0 to below -3/4 after three steps.
    assert [bop.step() for _ in range(3)] == [[0], [0], [1]]
    assert weight.item() == 1 and bop.state[weight]["flips"] == 2


def test_second_order_bop_is_its_formula():
    """Against the printed rule in float64, weight by weight, over many steps."""
    torch.manual_seed(0)
    gamma, sigma, tau = 0.1, 0.05, 0.25
    w = nn.Parameter(torch.randint(2, (50,)).double() * 2 - 1)
    bop = SecondOrderBop([w], sigma, gamma=gamma, tau=tau)
    signs, m, v = w.detach().clone(), torch.zeros(50).double(), torch.zeros(50).double()
    sizes, counted = torch.logspace(-6, 3, 50).double(), 0
    for _ in range(200):
        g = torch.randn(50).double() * sizes
        m, v = (1 - gamma) * m + gamma * g, (1 - sigma) * v + sigma * g**2
        due = (m.abs() / (v.sqrt() + 1e-10) > tau) & (m.sign() == signs)
        signs = torch.where(due, -signs, signs)
        w.grad = g
        assert bop.step() == [int(due.sum())]
        counted += int(due.sum())
        assert torch.equal(w, signs)
        torch.testing.assert_close(bop.compared(w), m / (v.sqrt() + 1e-10))
    assert counted > 200 and bop.state[w]["flips"] == counted


def test_second_order_bop_does_not_mind_the_size_of_gradients():
    torch.manual_seed(0)
    start, gradients, found = torch.randint(2, (40,)) * 2.0 - 1, torch.randn(30, 40), []
    for size in (1.0, 2.0**-20):
        w = nn.Parameter(start.clone())
        bop = SecondOrderBop([w], 0.05, gamma=0.1, tau=0.25)
        flips = []
        for g in gradients:
            w.grad = g * size
            flips += bop.step()
        found.append((w.tolist(), flips))
    assert found[0] == found[1] and sum(found[0][1]) > 20


@pytest.mark.parametrize("sigma", [0.0, -0.1, 1.5, float("nan")])
def test_second_order_bop_needs_a_rate(sigma: float):
    with pytest.raises(ValueError, match=f"Bop sigma={sigma}"):
        SecondOrderBop([nn.Parameter(torch.ones(1))], sigma, gamma=0.1, tau=0.1)


def test_tiny_gamma_accumulates_and_flips_in_the_right_step():
    """gamma = 5e-8, tau = 1e-6: a steady gradient of 1 flips in step 21, as in exact arithmetic."""
    gamma, tau = 5e-8, 1e-6
    steps = math.ceil(math.log(1 - tau) / math.log(1 - gamma))
    weight, bop = one(1.0, gamma=gamma, tau=tau)
    weight.grad = torch.ones(1)
    flips = [bop.step()[0] for _ in range(steps + 5)]
    assert flips.index(1) in (steps - 1, steps)
    assert sum(flips) == 1


def test_tiny_gamma_decays_as_it_should():
    """10,000 steps without gradient: (1 - gamma)^n, where plain float32 decays twice as fast."""
    gamma, steps = 5e-8, 10_000
    weight, bop = one(-1.0, gamma=gamma, tau=1.0)
    weight.grad = torch.tensor([1.0])
    bop.step()
    weight.grad = torch.zeros(1)
    for _ in range(steps):
        bop.step()
    expected = gamma * (1 - gamma) ** steps
    assert math.isclose(bop.momentum(weight).item(), expected, rel_tol=2e-7)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    gamma=st.sampled_from([1.0, 0.9, 0.5, 0.3, 1e-2, 1e-4, 5e-8]),
    steps=st.integers(1, 60),
)
def test_flips_are_those_of_exact_arithmetic(seed: int, gamma: float, steps: int):
    """Against float64's textbook rule; they may differ only where | |m| - tau | < 1e-6 tau."""
    generator = torch.Generator().manual_seed(seed)
    tau = 0.5 * gamma
    weight = nn.Parameter(torch.where(torch.rand(50, generator=generator) < 0.5, 1.0, -1.0))
    bop = Bop([weight], gamma=gamma, tau=tau)
    m, w = torch.zeros(50, dtype=torch.float64), weight.detach().clone()
    close, largest = torch.zeros(50, dtype=torch.bool), 0.0
    for _ in range(steps):
        weight.grad = torch.randn(50, generator=generator)
        m = (1 - gamma) * m + gamma * weight.grad.double()
        largest = max(largest, m.abs().max().item())
        flip = (m.abs() > tau) & (m.sign() == w)
        w = torch.where(flip, -w, w)
        close |= (m.abs() - tau).abs() < 1e-6 * tau
        before = weight.detach().clone()
        assert bop.step() == [int((before != weight).sum())]
    assert torch.equal(weight[~close], w[~close])
    assert close.sum() <= 2
    # Each step may round once, relative to the largest momentum at most.
    rounded = steps * largest * 2.0**-24
    torch.testing.assert_close(bop.momentum(weight).double(), m, rtol=1e-5, atol=rounded)


def test_groups_have_their_own_gamma_and_tau():
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    bop = Bop([{"params": [a], "gamma": 0.5}, {"params": [b], "gamma": 0.5, "tau": 1.0}], tau=0.1)
    a.grad = b.grad = torch.ones(3)
    assert bop.step() == [3, 0]


def test_state_dict_round_trip_continues_bit_for_bit():
    def start() -> tuple[nn.Parameter, Bop]:
        weight = nn.Parameter(torch.ones(200))
        return weight, Bop([{"params": [weight], "gamma": 1e-3, "noise": 1.0}], tau=2e-3)

    def train(weight: nn.Parameter, bop: Bop, steps: range) -> None:
        for t in steps:
            weight.grad = torch.randn(200, generator=torch.Generator().manual_seed(t)) + 0.5
            bop.step()

    torch.manual_seed(0)
    straight, bop = start()
    train(straight, bop, range(40))
    saved, weights = copy.deepcopy(bop.state_dict()), straight.detach().clone()
    train(straight, bop, range(40, 80))

    resumed, other = start()
    other.load_state_dict(saved)
    resumed.data.copy_(weights)
    train(resumed, other, range(40, 80))
    assert torch.equal(straight, resumed)
    assert torch.equal(bop.momentum(straight), other.momentum(resumed))
    assert bop.state[straight]["flips"] == other.state[resumed]["flips"] > 0


def test_torchs_schedulers_act_on_gamma():
    weight, bop = one(-1.0, gamma=0.5, tau=9.0)
    schedule = torch.optim.lr_scheduler.StepLR(bop, step_size=1, gamma=0.5)
    weight.grad = torch.ones(1)
    bop.step()
    assert bop.momentum(weight).item() == 0.5
    schedule.step()
    bop.step()  # gamma is now 1/4
    assert bop.momentum(weight).item() == 0.75 * 0.5 + 0.25


def test_initial_momentum_is_noise_in_units_of_gamma():
    weight = nn.Parameter(torch.ones(40_000))
    generator = torch.Generator().manual_seed(0)
    bop = Bop([weight], gamma=5e-8, tau=1.0, noise=2.0, generator=generator)
    weight.grad = torch.zeros(40_000)
    bop.step()
    momentum = bop.momentum(weight)
    # 40,000 samples: the standard deviation is known to 0.4 %, the mean to 0.005 of it.
    assert abs(momentum.std() / 1e-7 - 1) < 0.02
    assert abs(momentum.mean() / 1e-7) < 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0, "tau": 1.0}, "gamma=0.0.*above 0 and at most 1"),
        ({"gamma": 1.5, "tau": 1.0}, "gamma=1.5"),
        ({"tau": 1.0}, "gamma=None"),
        ({"gamma": 0.1}, "tau=None"),
        ({"gamma": 0.1, "tau": -1.0}, "tau=-1.0.*at least 0"),
        ({"gamma": 0.1, "tau": float("nan")}, "tau=nan"),
        ({"gamma": 0.1, "tau": 1.0, "noise": -1.0}, "noise=-1.0"),
    ],
)
def test_impossible_rates_are_refused(options, message: str):
    with pytest.raises(ValueError, match=message):
        one(1.0, **options)


def test_half_precision_signs_are_refused():
    with pytest.raises(ValueError, match=r"float16.*float32"):
        Bop([nn.Parameter(torch.ones(2, dtype=torch.float16))], gamma=0.1, tau=0.1)


def test_scales_are_stopped_at_a_floor_and_counted():
    scale = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))
    sgd = PositiveSGD([scale], lr=1.0, floor=1e-6)
    scale.grad = torch.tensor([0.5, 0.1, 0.3])
    sgd.step()
    torch.testing.assert_close(scale.detach(), torch.tensor([1e-6, 0.1, 1e-6]), rtol=1e-6, atol=0)
    assert sgd.clamped == 2


# --- who owns which parameter ---------------------------------------------------------------


def network(**options) -> Network:
    chain = [ConvPool(1, 2, kernel=3, **options), Dense(8, 10, **options)]
    return Network((1, 4, 4), chain)


RATES = {"gamma": [1e-4, 1e-5], "tau": 5e-7, "lr_bias": [0.1, 0.05]}


def test_every_parameter_gets_its_optimizer_and_its_rate():
    net = network(learn_scale=True)
    optimizers = assign_optimizers(net, **RATES, lr_scale=1e-3)
    assert optimizers.bop is not None and optimizers.sgd is not None
    assert [(g["gamma"], g["tau"]) for g in optimizers.bop.param_groups] == [
        (1e-4, 5e-7),
        (1e-5, 5e-7),
    ]
    assert [g["lr"] for g in optimizers.sgd.param_groups] == [0.1, 0.05]
    assert optimizers.scale_sgd is not None
    assert [g["lr"] for g in optimizers.scale_sgd.param_groups] == [1e-3, 1e-3]


def test_fixed_scales_need_no_optimizer():
    assert assign_optimizers(network(), **RATES).scale_sgd is None


def test_real_weights_go_to_sgd():
    optimizers = assign_optimizers(network(binary=False), lr_weight=0.1, lr_bias=0.1)
    assert optimizers.bop is None and optimizers.sgd is not None
    assert len(optimizers.sgd.param_groups) == 4
    assert optimizers.step() == []


@pytest.mark.parametrize(
    ("missing", "orphan"),
    [
        ("gamma", "couplings.0.synapses.signs"),
        ("tau", "couplings.0.synapses.signs"),
        ("lr_bias", "couplings.0.bias"),
        ("lr_scale", "couplings.0.synapses.scale"),
    ],
)
def test_orphans_are_named(missing: str, orphan: str):
    rates = {**RATES, "lr_scale": 1e-3, missing: None}
    with pytest.raises(ValueError, match=f"{orphan} is claimed by no optimizer"):
        assign_optimizers(network(learn_scale=True), **rates)


def test_doubles_are_named():
    net = network()
    optimizers = list(assign_optimizers(net, **RATES))
    greedy = torch.optim.SGD([net.couplings[1].signs], lr=0.1)
    with pytest.raises(ValueError, match=r"couplings\.1\.synapses\.signs is claimed 2 times"):
        check_claims(net, [*optimizers, greedy])


def test_frozen_and_foreign_parameters_are_refused():
    net = network()
    optimizers = list(assign_optimizers(net, **RATES))
    with pytest.raises(ValueError, match=r"couplings\.0\.synapses\.scale is frozen"):
        check_claims(net, [*optimizers, torch.optim.SGD([net.couplings[0].scale], lr=0.1)])
    with pytest.raises(ValueError, match=r"\(7,\).*not the network's"):
        check_claims(net, [*optimizers, torch.optim.SGD([nn.Parameter(torch.ones(7))], lr=0.1)])


def test_wrong_number_of_rates_is_refused():
    with pytest.raises(ValueError, match=r"gamma=\[0.1, 0.1, 0.1\]: 3 values for 2 couplings"):
        assign_optimizers(network(), gamma=[0.1] * 3, tau=1.0, lr_bias=0.1)
