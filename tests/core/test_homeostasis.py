"""Biases that follow activity: by hand, by channel, and until a silent layer is awake."""

from dataclasses import replace

import pytest
import torch

from binep import (
    BinepError,
    ConvPool,
    Dense,
    EquilibriumPropagation,
    Heaviside,
    Homeostasis,
    Network,
    assign_optimizers,
    relax,
)
from binep.core.gradients import Learning
from binep.engines.select import select_engine

EP = EquilibriumPropagation(20, 20, 1.0)


def bits(*couplings, shape: tuple[int, ...] = (6,), per_class: int = 2, **options) -> Network:
    options = {"dynamics": "hopfield", "classes": 2} | options
    return Network(shape, couplings, per_class=per_class, **options)


def train(net: Network, learning: Learning, batches: int, lr_bias: float = 0.0) -> None:
    optimizers = assign_optimizers(net, gamma=1e-3, tau=10.0, lr_bias=lr_bias)
    engine, source = select_engine("reference", net, learning, optimizers), torch.Generator()
    for n in range(batches):
        x = torch.rand(32, *net.input_shape, generator=source.manual_seed(n))
        engine.train(x, torch.arange(32) % 2)


@pytest.mark.parametrize("shape", [(6,), (1, 6, 6)], ids=["dense", "conv"])
def test_a_step_moves_biases_by_what_is_missing(shape: tuple[int, ...]):
    torch.manual_seed(0)
    first = Dense(6, 7) if len(shape) == 1 else ConvPool(1, 7, kernel=3, pool=2)
    net = bits(first, Dense(7 if len(shape) == 1 else 28, 4), shape=shape)
    x, labels = torch.rand(5, *shape), torch.tensor([0, 1, 0, 1, 1])
    first.bias.data.copy_(torch.linspace(-0.3, 0.9, 7))
    ep = replace(EP, homeostasis=Homeostasis([0.5, 0], 0.25))
    before = [coupling.bias.detach().clone() for coupling in net.couplings]
    phases = ep.backward(net, x, labels)
    ep.homeostasis.step(net, phases.activity, len(x))
    on = net.activity(phases.free.state)[0].double()
    share = on.transpose(0, 1).flatten(1).mean(1)
    assert 0 < share.mean() < 1 and share.min() < share.max()
    expected = before[0] + 0.5 * (0.25 - share)
    torch.testing.assert_close(net.couplings[0].bias.double(), expected, rtol=0, atol=1e-7)
    assert torch.equal(net.couplings[1].bias, before[1])


def test_it_comes_on_top_of_the_gradient():
    nets = []
    for homeostasis in (None, Homeostasis(0.1, 0.5)):
        torch.manual_seed(1)
        nets.append(bits(Dense(6, 9), Dense(9, 4)))
        train(nets[-1], replace(EP, homeostasis=homeostasis), 1, lr_bias=0.2)
    plain, moved = ([c.bias.detach() for c in net.couplings] for net in nets)
    for one, two in zip(plain, moved, strict=True):
        # All of the mini-batch's activities are multiples of 1 / 32.
        steps = (two - one) / 0.1 * 32
        assert (steps - steps.round()).abs().max() < 1e-3
        assert 0 < steps.abs().max() < 16.01


@pytest.mark.parametrize("start", [-2.0, 2.0])
@pytest.mark.parametrize("dynamics", ["hopfield", "energy"])
def test_a_layer_that_is_silent_or_always_on_comes_to_its_share(dynamics: str, start: float):
    torch.manual_seed(2)
    options = {"neuron": Heaviside()} if dynamics == "energy" else {}
    net = bits(Dense(6, 40), Dense(40, 4), dynamics=dynamics, **options)
    net.couplings[0].bias.data.add_(start)

    def share() -> float:
        x = torch.rand(200, 6, generator=torch.Generator().manual_seed(99))
        free = relax(net, x, net.initial(x), EP.free_steps)
        return float(net.activity(free.state)[0].float().mean())

    train(net, EP, 20)
    assert share() == (start > 0)
    train(net, replace(EP, homeostasis=Homeostasis([0.2, 0], 0.3)), 60)
    assert share() == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(
    ("rate", "share", "options", "message"),
    [
        ([0.1], 0.1, {}, r"homeostasis rate=\[0.1\]: 1 values for 2 layers"),
        (0.1, [0.1, 0.2, 0.3], {}, "homeostasis share=.*3 values for 2 layers"),
        (-0.1, 0.1, {}, "homeostasis rate=-0.1: allowed is a number of at least 0"),
        (0.1, 0.0, {}, "homeostasis share=0.0: allowed is above 0, at most 1"),
        ([0, 0.1], 0.1, {}, "homeostasis rate=0.1 in layer 2: coupling 1 has no bias"),
        (
            0.1,
            0.1,
            {"cost": "cross_entropy", "dynamics": "prototypical", "per_class": 1},
            "homeostasis with cost='cross_entropy'",
        ),
    ],
)
def test_what_cannot_follow_is_told(rate, share, options: dict, message: str):
    outputs = 2 if "cost" in options else 4
    net = bits(Dense(6, 3), Dense(3, outputs, bias=False), **options)
    ep = replace(EP, homeostasis=Homeostasis(rate, share))
    with pytest.raises(BinepError, match=message):
        ep.backward(net, torch.rand(1, 6), torch.tensor([0]))
