"""Relaxation: trajectories worked out by hand, clamps, nudges, stopping."""

import pytest
import torch
from torch import Tensor

from binep import ConvPool, Dense, HardSigmoid, Heaviside, Network, Nudge, relax


def two_neurons(**options) -> Network:
    """x -(w1 = +1/4, b1 = 1/2)- h -(w2 = -1/2, b2 = 3/4)- y: drives
    h: x/4 + 1/2 - y/2, y: -h/2 + 3/4."""
    net = Network((1,), [Dense(1, 1), Dense(1, 1)], classes=1, **options)
    for coupling, sign, scale, bias in zip(
        net.couplings, (1, -1), (0.25, 0.5), (0.5, 0.75), strict=True
    ):
        coupling.signs.data.fill_(sign)
        coupling.scale.data.fill_(scale)
        coupling.bias.data.fill_(bias)
    return net


def trajectory(net: Network, start: list[Tensor], steps: int, nudge: Nudge | None = None):
    """(h, y) after each of the steps, with x = 1."""
    states = [relax(net, torch.ones(1, 1), start, t, nudge).state for t in range(1, steps + 1)]
    return [(h.item(), y.item()) for h, y in states]


X, ZERO, ONE = torch.ones(1, 1), torch.zeros(1, 1), torch.ones(1, 1)


def test_prototypical_free_phase_by_hand():
    # h <- clamp(3/4 - y/2), y <- clamp(3/4 - h/2), from 0, 0.
    assert trajectory(two_neurons(), [ZERO, ZERO], 4) == [
        (0.75, 0.75),
        (0.375, 0.375),
        (0.5625, 0.5625),
        (0.46875, 0.46875),
    ]


def test_prototypical_nudged_phase_by_hand():
    # y <- clamp(3/4 - h/2) + beta (1 - y) with beta = 1/2, from h = y = 1/2, then clamped.
    start = [torch.full((1, 1), 0.5)] * 2
    live = trajectory(two_neurons(), start, 3, Nudge(ONE, 0.5))
    assert live == [(0.5, 0.75), (0.375, 0.625), (0.4375, 0.75)]
    constant = trajectory(two_neurons(), start, 3, Nudge(ONE, 0.5, "constant"))
    assert constant == [(0.5, 0.75), (0.375, 0.75), (0.375, 0.8125)]


def test_energy_based_free_phase_by_hand():
    # s <- (s + drive)/2, from 1, 1: h: (1 + 3/4 - 1/2)/2 and y: (1 + 3/4 - 1/2)/2.
    net = two_neurons(dynamics="energy")
    assert trajectory(net, [ONE, ONE], 3) == [
        (0.625, 0.625),
        (0.53125, 0.53125),
        (0.5078125, 0.5078125),
    ]


def test_energy_based_time_step_by_hand():
    # s <- 3/4 s + 1/4 drive, from 1, 1: both drives are 3/4 - s/2.
    net = two_neurons(dynamics="energy", dt=0.25)
    assert trajectory(net, [ONE, ONE], 2) == [(0.8125, 0.8125), (0.6953125, 0.6953125)]


def test_energy_based_nudged_phase_by_hand():
    # y <- clamp((y + 3/4 - h/2 + beta (0 - y))/2), beta = 1/2, from h = y = 1/2.
    net, start = two_neurons(dynamics="energy"), [torch.full((1, 1), 0.5)] * 2
    assert trajectory(net, start, 2, Nudge(ZERO, 0.5)) == [(0.5, 0.375), (0.53125, 0.34375)]
    constant = trajectory(net, start, 2, Nudge(ZERO, 0.5, "constant"))
    assert constant == [(0.5, 0.375), (0.53125, 0.3125)]


def test_binary_activations_by_hand():
    # Bits a = [s >= 1/2]: h <- (h + 3/4 - a_y/2)/2, y <- (y + 3/4 - a_h/2)/2, from 1, 1.
    net = two_neurons(neuron=Heaviside(), dynamics="energy")
    assert trajectory(net, [ONE, ONE], 4) == [
        (0.625, 0.625),  # both bits 1
        (0.4375, 0.4375),  # both bits 1, now silent
        (0.59375, 0.59375),  # both bits 0: drive 3/4
        (0.421875, 0.421875),  # both bits 1 again: they never settle, changing at once
    ]
    nudged = trajectory(net, [ONE, ONE], 2, Nudge(ZERO, 0.5))
    # y: (1 + 3/4 - 1/2 - 1/2)/2 = 3/8, then its bit is 0 and h's is 1.
    assert nudged == [(0.625, 0.375), (0.6875, 0.21875)]


def test_narrow_window_stops_a_neuron_from_listening():
    # sigma = 1/8: at s = 1 the slope is 0, so states only decay; inside the window it is 4.
    net = two_neurons(neuron=Heaviside(sigma=0.125), dynamics="energy")
    assert trajectory(net, [ONE, ONE], 2) == [
        (0.5, 0.5),  # 1/2 + 0
        (0.75, 0.75),  # 1/4 + 1/2 * 4 * (3/4 - 1/2)
    ]


def test_only_dense_chains_clamp_the_nudged_output():
    x, target = torch.rand(2, 1, 4, 4), torch.zeros(2, 10)
    dense = Network((1, 4, 4), [Dense(16, 10)])
    chain = Network((1, 4, 4), [ConvPool(1, 3, kernel=3), Dense(12, 10)])
    for net in (dense, chain):
        net.couplings[-1].bias.data.fill_(-9)
    push = Nudge(target + 1, -0.3)
    assert relax(dense, x, dense.initial(x), 1, push).state[-1].unique().tolist() == [0]
    # From 1/2: rho(drive) = 0, minus 0.3 (1 - 1/2).
    torch.testing.assert_close(
        relax(chain, x, chain.initial(x), 1, push).state[-1], torch.full((2, 10), -0.15)
    )
    chosen = Network((1, 4, 4), list(chain.couplings), clamp_nudged=True)
    assert relax(chosen, x, chosen.initial(x), 1, push).state[-1].unique().tolist() == [0]


def test_all_layers_move_at_once():
    net = two_neurons()
    together = relax(net, X, [ZERO, ONE], 1).state
    assert (together[0].item(), together[1].item()) == (0.25, 0.75)


def test_residuals_trace_the_largest_change():
    found = relax(two_neurons(), X, [ZERO, ZERO], 4)
    assert found.residuals.tolist() == [0.75, 0.375, 0.1875, 0.09375]
    assert found.steps == 4


def test_tolerance_stops_once_the_whole_batch_has_settled():
    net, start = two_neurons(), [torch.zeros(2, 1), torch.zeros(2, 1)]
    x = torch.tensor([[1.0], [-9.0]])  # the second sample is silent after two steps
    full = relax(net, x, start, 50)
    early = relax(net, x, start, 50, tolerance=0.1)
    assert early.steps == 4
    assert early.residuals.tolist() == full.residuals[:4].tolist()
    assert relax(net, x, start, 50, tolerance=0.0).steps <= 50


def test_settled_states_are_fixed_points():
    torch.manual_seed(0)
    net = Network((6,), [Dense(6, 8), Dense(8, 4)], classes=4).double()
    x = torch.rand(3, 6)
    found = relax(net, x, net.initial(x), 500)
    assert found.residuals[-1] < 1e-12


def test_switches_belong_to_the_final_state():
    torch.manual_seed(0)
    chain = [ConvPool(1, 4, kernel=3, padding=1, pool=2), ConvPool(4, 4, kernel=3, pool=2)]
    net = Network((1, 12, 12), [*chain, Dense(16, 10)], initial_state=0.0)
    x = torch.rand(2, 1, 12, 12)
    found = relax(net, x, net.initial(x), 1)
    first, second, third = found.switches
    assert torch.equal(first, chain[0].up(x)[1])
    assert torch.equal(second, chain[1].up(HardSigmoid()(found.state[0]))[1])
    # At the start all were zero and every pool's first position won: the test could see those.
    assert not torch.equal(second, chain[1].up(torch.zeros_like(found.state[0]))[1])
    assert third is None


def test_start_is_left_alone_and_no_graph_is_kept():
    net, start = two_neurons(), [ZERO.clone(), ZERO.clone()]
    found = relax(net, X, start, 3)
    assert start[0].item() == 0
    assert not found.state[0].requires_grad
    assert relax(net, X, start, 3, track_gradients=True).state[0].requires_grad


def test_couplings_receive_only_bits(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    chain = [ConvPool(1, 8, kernel=3, padding=1, pool=2), Dense(128, 20), Dense(20, 30)]
    net = Network((1, 8, 8), chain, Heaviside(), "energy", per_class=3)
    seen = []

    def spy(name):
        original = getattr(Dense, name)

        def call(self, values, *rest):
            seen.append(values)
            return original(self, values, *rest)

        return call

    for name in ("up", "down"):
        monkeypatch.setattr(Dense, name, spy(name))
    x = torch.rand(4, 1, 8, 8)
    relax(net, x, net.initial(x), 10, Nudge(net.target(torch.arange(4)), 2.0))
    assert len(seen) == 2 * 2 * 10
    assert all(set(values.unique().tolist()) <= {0, 1} for values in seen)
    assert any(len(values.unique()) == 2 for values in seen)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net: relax(net, X, [ZERO, ZERO], 0), "steps=0"),
        (lambda net: relax(net, X, [ZERO, ZERO], 1.5), "steps=1.5"),
        (lambda net: relax(net, X, [ZERO], 1), r"allowed is \[\(1, 1\), \(1, 1\)\]"),
        (lambda net: relax(net, X, [ZERO, torch.zeros(2, 1)], 1), r"\(2, 1\)"),
        (lambda net: relax(net, X, [ZERO, ZERO], 1, Nudge(torch.ones(2, 1), 1.0)), r"\(2, 1\)"),
        (lambda net: relax(net, X, [ZERO, ZERO], 1, tolerance=-1.0), "tolerance=-1"),
        (lambda net: Nudge(ONE, 0.0), "beta=0"),
        (lambda net: Nudge(ONE, float("nan")), "beta=nan"),
        (lambda net: Nudge(ONE, 0.3, "lively"), "'lively'.*live, constant"),
    ],
)
def test_impossible_relaxations_are_refused(call, message: str):
    with pytest.raises(ValueError, match=message):
        call(two_neurons())
