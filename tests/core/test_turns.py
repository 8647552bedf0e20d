"""Layers in turn: one of two trajectories of real neurons, and bits whose energy never rises."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from binep import (
    BinepError,
    ConvPool,
    Dense,
    EquilibriumPropagation,
    HardSigmoid,
    Heaviside,
    Network,
    Nudge,
    relax,
)
from binep.core import metrics
from binep.core.couplings import Coupling
from binep.core.energy import energy
from binep.core.imperfect import Imperfections, ImperfectNetwork
from binep.core.neurons import Winners

# --- real neurons -------------------------------------------------------------------------------


def real_network(case: str, seed: int = 0) -> tuple[Network, Tensor]:
    torch.manual_seed(seed)
    if case == "dense":
        shape, chain = (12,), [Dense(12, 10), Dense(10, 8), Dense(8, 3)]
    else:
        shape = (2, 6, 6)
        chain = [ConvPool(2, 3, kernel=3), ConvPool(3, 4, kernel=3), Dense(16, 6), Dense(6, 3)]
    net = Network(shape, chain, classes=3).double()
    for coupling in chain:
        coupling.scale.data.mul_(0.7)
    return net, torch.rand(5, *shape, dtype=torch.float64)


def alternating(net: Network) -> Network:
    """The same couplings, with layers that move in turn."""
    kind = type(net)
    chain = list(net.couplings)
    return kind(net.input_shape, chain, classes=net.classes, updates="alternating")


@pytest.mark.parametrize("case", ["dense", "conv"])
def test_sweeps_are_one_of_the_two_trajectories_of_simultaneous_steps(case: str):
    net, x = real_network(case)
    swept = relax(alternating(net), x, net.initial(x), 7).state
    odd, even = relax(net, x, net.initial(x), 13).state, relax(net, x, net.initial(x), 14).state
    for n, s in enumerate(swept):
        assert torch.equal(s, (odd if n % 2 == 0 else even)[n])
    assert any(not torch.equal(a, b) for a, b in zip(odd, even, strict=True))


@pytest.mark.parametrize("case", ["dense", "conv"])
def test_both_orders_rest_at_the_same_states_and_gradients(case: str):
    net, x = real_network(case)
    labels, found = torch.tensor([0, 1, 2, 1, 0]), []
    for each, sweeps in ((net, 2), (alternating(net), 1)):
        free = relax(each, x, each.initial(x), 400 * sweeps, tolerance=1e-9)
        EquilibriumPropagation(400 * sweeps, 200 * sweeps, 0.01).backward(each, x, labels)
        found.append((free.state, metrics.gradients(each)))
    for a, b in zip(found[0][0], found[1][0], strict=True):
        assert float((a - b).abs().max()) < 1e-4
    assert min(metrics.cosine(found[0][1], found[1][1]).values()) > 0.999


def test_a_sweep_costs_a_step_and_brings_a_network_as_far_as_two():
    net, x = real_network("dense")
    steps = relax(net, x, net.initial(x), 1000, tolerance=1e-6).steps
    sweeps = relax(alternating(net), x, net.initial(x), 1000, tolerance=1e-6).steps
    assert steps // 2 - 1 <= sweeps <= steps // 2 + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamics": "energy", "updates": "alternating"}, "allowed is 'simultaneous'"),
        ({"dynamics": "hopfield", "updates": "simultaneous"}, "allowed is 'alternating'"),
        ({"dynamics": "hopfield", "neuron": HardSigmoid()}, "allowed are binary activations"),
        ({"updates": "in-turn"}, "simultaneous"),
    ],
)
def test_orders_that_do_not_go_together_are_refused(options: dict, message: str):
    with pytest.raises(BinepError, match=message):
        Network((4,), [Dense(4, 3)], classes=3, **options)


# --- bits ---------------------------------------------------------------------------------------


@st.composite
def networks_of_bits(draw) -> tuple[Network, Tensor]:
    """Dense and convolutional chains in float64 with weights and biases in eighths: many ties."""
    shape: tuple[int, ...] = (draw(st.integers(1, 9)),)
    chain: list[Coupling] = []
    if draw(st.booleans()):
        side = draw(st.integers(4, 8))
        shape = (draw(st.integers(1, 2)), side, side)
    here = shape
    while len(here) == 3 and len(chain) < 2:
        kernel, padding = draw(st.integers(1, 3)), draw(st.integers(0, 1))
        pool = draw(st.integers(1, 3))
        if here[1] + 2 * padding - kernel + 1 < pool:
            break
        chain.append(
            ConvPool(here[0], draw(st.integers(1, 3)), kernel=kernel, padding=padding, pool=pool)
        )
        here = chain[-1].above_shape(here)
    for _ in range(draw(st.integers(0, 2))):
        size = draw(st.integers(1, 6))
        chain.append(Dense(torch.Size(here).numel(), size))
        here = (size,)
    chain.append(Dense(torch.Size(here).numel(), 4))
    threshold = draw(st.sampled_from([0.5, 0.25, 1.0]))
    neurons = [draw(st.sampled_from([Heaviside(threshold), Winners(threshold)])) for _ in chain]
    feedback = [draw(st.sampled_from([1, 0.5, 0.125, 2])) for _ in chain]
    outputs = {"per_class": 2, "classes": 2}
    net = Network(shape, chain, neurons, "hopfield", **outputs, feedback=feedback).double()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    for coupling in chain:
        signs = torch.randint(2, coupling.signs.shape, generator=generator)
        coupling.signs.data.copy_(2.0 * signs - 1)
        scale = torch.randint(1, 9, coupling.scale.shape, generator=generator)
        coupling.scale.data.copy_(scale / 8)
        bias = torch.randint(-8, 9, coupling.bias.shape, generator=generator)
        coupling.bias.data.copy_(bias / 8)
    images = torch.randint(2, (3, *shape), generator=generator).bool()
    pixels = torch.randint(256, (3, *shape), generator=generator).to(torch.uint8)
    return net, images if draw(st.booleans()) else pixels


@settings(max_examples=60, deadline=None)
@given(case=networks_of_bits(), beta=st.sampled_from([0.0, 0.25, 0.5, 1.0, -0.5, 2.0]))
def test_energy_never_rises_and_every_relaxation_ends_at_rest(
    case: tuple[Network, Tensor], beta: float
):
    net, x = case
    clamped = net.clamp(x)
    nudge = Nudge(net.target(torch.tensor([0, 1, 0])), beta) if beta else None
    force = beta * net.pull(net.initial(x), nudge.target) if nudge else None
    state = net.initial(x)
    before = energy(net, clamped, net.activity(state), nudge)
    for _ in range(1000):
        start = net.activity(state)
        for layers in net.turns:
            # One layer at a time: those of a turn do not listen to each other.
            for n in layers:
                drive = net.drives(clamped, net.activity(state), [n])[0]
                state = [*state]
                state[n] = net.dynamics.advance(
                    net.neurons[n], state[n], drive, force if n == len(state) - 1 else None
                )
                after = energy(net, clamped, net.activity(state), nudge)
                # Sums of eighths are exact; pixels stand for 1/255, rounded.
                assert (after <= before + (0 if x.dtype == torch.bool else 1e-12)).all()
                before = after
        if all(torch.equal(a, b) for a, b in zip(start, net.activity(state), strict=True)):
            break
    else:
        raise AssertionError("no rest after 1,000 sweeps")
    # A fixed point of every layer, and where `relax` ends.
    for n, bits in enumerate(net.activity(state)):
        drive = net.drives(clamped, net.activity(state), [n])[0]
        if n == len(state) - 1 and force is not None:
            drive = drive + force
        assert torch.equal(net.neurons[n](drive), bits)
    ended = relax(net, x, net.initial(x), 1001, nudge)
    assert ended.steps < 1001 and ended.residuals[-1] == 0
    for a, b in zip(ended.state, state, strict=True):
        assert torch.equal(a, b)


def test_bits_by_hand():
    """x - h - y with w = 1, b = 0: h turns on with x, then y with h; a tie turns a bit on."""
    net = Network((1,), [Dense(1, 1), Dense(1, 1)], dynamics="hopfield", classes=1)
    for coupling, scale in zip(net.couplings, (0.5, 0.75), strict=True):
        coupling.signs.data.fill_(1)
        coupling.scale.data.fill_(scale)
        coupling.bias.data.zero_()
    on, zero = torch.ones(1, 1), net.initial(torch.ones(1, 1))
    states = [relax(net, on, zero, t).state for t in (1, 2, 3)]
    # Drives: h 1/2 (a tie), y 3/4; then h 1/2 + 3/4, and no bit changes any more.
    assert [(h.item(), y.item()) for h, y in states] == [(0.5, 0.75), (1.25, 0.75), (1.25, 0.75)]
    assert relax(net, on, zero, 50).residuals.tolist() == [1, 0]
    # Pushed away by beta = -1: y falls to 3/4 - 1/2 and turns off, which h survives, at a tie.
    pushed = relax(net, on, states[1], 50, Nudge(torch.ones(1, 1), -1.0))
    assert [s.item() for s in pushed.state] == [0.5, 0.25]
    assert not net.activity(pushed.state)[1].item()
    # Outputs are read from their drives.
    assert net.scores(states[1]).item() == 0.75 and net.loss(states[1], on).item() == 0


def test_a_nudge_moves_an_output_within_half_beta_of_its_threshold():
    """Further on the right side it teaches nothing; further on the wrong one it cannot yet."""
    net = Network((1,), [Dense(1, 2)], dynamics="hopfield", classes=2)
    net.couplings[0].signs.data.copy_(torch.tensor([[1.0], [-1.0]]))
    net.couplings[0].scale.data.fill_(1)
    for bias, taught in ((-0.4, False), (-0.55, True), (-0.7, False)):
        net.couplings[0].bias.data.copy_(torch.tensor([bias, 0.0]))
        EquilibriumPropagation(5, 5, 0.2).backward(net, torch.ones(1, 1), torch.tensor([0]))
        assert bool(net.couplings[0].signs.grad.any()) == taught


def test_uneven_thresholds_act_on_bits_and_noise_never_rests():
    torch.manual_seed(0)
    net = Network((8,), [Dense(8, 6), Dense(6, 4)], dynamics="hopfield", classes=4)
    x = torch.rand(3, 8)
    uneven = ImperfectNetwork(net, Imperfections(threshold_spread=0.5))
    ended = relax(uneven, x, uneven.initial(x), 100)
    offset = uneven.get_buffer("offset0")
    assert torch.equal(uneven.activity(ended.state)[0], ended.state[0] - offset >= 0.5)
    assert ended.steps < 100
    noisy = ImperfectNetwork(net, Imperfections(activation_errors=0.1))
    assert relax(noisy, x, noisy.initial(x), 20).steps == 20
