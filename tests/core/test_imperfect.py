"""Imperfect hardware: each fault does what it says, to nothing else, and training goes on."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import binep.training.progress
from binep.core.imperfect import ImperfectBop, Imperfections, ImperfectNetwork, ImperfectWeight
from binep.data import load as load_data
from binep.engines.select import select_engine
from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training import runs

SMALL = [
    "network.dense=[40]",
    "network.per_class=2",
    "training.batch_size=100",
    "training.epochs=2",
    "learning.free_steps=8",
    "learning.nudged_steps=4",
]


def recipe(*overrides: str, name: str = "digits-1fc-wa"):
    return recipes.load(name, [*SMALL, *overrides])


def network(*overrides: str) -> ImperfectNetwork:
    made = recipe(*overrides).build_network(torch.Generator().manual_seed(1))
    assert isinstance(made, ImperfectNetwork)
    return made


def pixels(count: int = 6) -> torch.Tensor:
    return torch.randint(0, 256, (count, 64), dtype=torch.uint8)


def test_perfect_hardware_is_the_ordinary_network():
    plain = recipe("hardware.device=3")
    assert type(plain.build_network()) is binep.Network
    assert type(plain.build_optimizers(plain.build_network()).bop) is binep.Bop
    assert plain.imperfections.names == []


def test_without_faults_an_imperfect_network_relaxes_as_the_ordinary_one():
    ordinary = recipe().build_network(torch.Generator().manual_seed(1))
    same = recipe().build_network(torch.Generator().manual_seed(1))
    wrapped, x = ImperfectNetwork(same, Imperfections()), pixels()
    for a, b in zip(
        binep.relax(ordinary, x, ordinary.initial(x), 8).state,
        binep.relax(wrapped, x, wrapped.initial(x), 8).state,
        strict=True,
    ):
        assert torch.equal(a, b)
    assert set(dict(wrapped.named_parameters())) == set(dict(ordinary.named_parameters()))
    assert wrapped.state_dict().keys() == ordinary.state_dict().keys()


def test_weights_are_read_wrongly_for_a_mini_batch_and_stored_rightly():
    made = network("hardware.weight_errors=0.25")
    synapses = made.couplings[0].synapses
    assert isinstance(synapses, ImperfectWeight)
    stored = synapses.signs.clone()
    made.clamp(pixels())
    first = synapses.kernel.clone()
    assert torch.equal(synapses.kernel, first)
    made.clamp(pixels())
    wrong = (first != stored).float().mean()
    # 2560 draws: a standard deviation of 0.0086.
    assert abs(float(wrong) - 0.25) < 0.04
    assert not torch.equal(synapses.kernel, first) and torch.equal(synapses.signs, stored)
    # The wrong weight is what both directions see, and what `weight` shows.
    assert torch.equal(made.couplings[0].weight, synapses.scale * synapses.kernel)


def test_what_is_read_follows_a_weight_that_flips():
    made = network("hardware.weight_errors=0.25")
    made.clamp(pixels())
    synapses = made.couplings[1].synapses
    before = synapses.kernel.clone()
    with torch.no_grad():
        synapses.signs.mul_(-1)
    assert torch.equal(synapses.kernel, -before)


def test_stuck_synapses_belong_to_the_device():
    one, again = network("hardware.stuck=0.3"), network("hardware.stuck=0.3")
    other = network("hardware.stuck=0.3", "hardware.device=1")
    synapses = one.couplings[0].synapses
    assert isinstance(synapses, ImperfectWeight)
    share = float(synapses.stuck.float().mean())
    high = float((synapses.stuck_at[synapses.stuck] > 0).float().mean())
    assert abs(share - 0.3) < 0.04 and abs(high - 0.5) < 0.1
    assert torch.equal(synapses.stuck, again.couplings[0].synapses.stuck)
    assert not torch.equal(synapses.stuck, other.couplings[0].synapses.stuck)
    with torch.no_grad():
        synapses.signs.fill_(1)
    assert bool((synapses.kernel[~synapses.stuck] == 1).all())
    assert torch.equal(synapses.kernel[synapses.stuck], synapses.stuck_at[synapses.stuck])


def test_bits_are_sent_wrongly_anew_at_every_read():
    made = network("hardware.activation_errors=0.1")
    state = [torch.ones(200, 40), torch.zeros(200, 20)]
    first, second = made.activity(state), made.activity(state)
    assert abs(float((~first[0]).float().mean()) - 0.1) < 0.02
    assert abs(float(first[1].float().mean()) - 0.1) < 0.02
    assert not torch.equal(first[0], second[0])


def test_thresholds_spread_around_one_half():
    made = network("hardware.threshold_spread=0.1")
    levels = torch.linspace(0, 1, 1001)[:, None].expand(-1, 40)
    sent = made.activity([levels, torch.zeros(1001, 20)])[0]
    thresholds = 1 - sent.float().mean(0)
    assert 0.05 < float(thresholds.std()) < 0.15 and abs(float(thresholds.mean()) - 0.5) < 0.06
    assert torch.equal(made.activity([levels, torch.zeros(1001, 20)])[0], sent)


def bop(**wrong) -> tuple[nn.Parameter, ImperfectBop]:
    weight = nn.Parameter(torch.ones(4000))
    groups = [{"params": [weight], "gamma": 1e-3, "tau": 1e-2}]
    generator = torch.Generator().manual_seed(0)
    return weight, ImperfectBop(groups, Imperfections(**wrong), generator=generator)


def test_narrow_momenta_take_few_values_without_bias():
    weight, optimizer = bop(momentum_bits=4)
    for _ in range(20):
        weight.grad = torch.full_like(weight, -0.1)
        optimizer.step()
    momentum = optimizer.momentum(weight)
    unit = 2 * 1e-2 / 7
    values = (momentum / unit).round().unique()
    # Decay between two roundings moves values off the grid by at most gamma.
    assert torch.allclose(momentum / unit, (momentum / unit).round(), atol=1e-2)
    assert values.abs().max() <= 7 and len(values) <= 8
    expected = -0.1 * (1 - (1 - 1e-3) ** 20)
    # 4000 sums of random roundings of one unit at most: a standard deviation below unit / 20.
    assert abs(float(momentum.mean()) - expected) < unit / 10


def test_narrow_momenta_saturate_at_twice_tau():
    weight, optimizer = bop(momentum_bits=3)
    for _ in range(200):
        weight.grad = torch.full_like(weight, -1.0)
        optimizer.step()
    assert float(optimizer.momentum(weight).min()) == pytest.approx(-2e-2, rel=1e-3)
    weight.grad = torch.zeros_like(weight)
    assert optimizer.step() == [0]  # momentum and weight disagree in sign


def test_leaking_momenta_decay_faster():
    weight, optimizer = bop(momentum_leak=0.5)
    for _ in range(30):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    # m <- (1 - gamma)(1 - leak) m + gamma settles at gamma / (1 - (1 - gamma)(1 - leak)).
    assert torch.allclose(
        optimizer.momentum(weight), torch.tensor(1e-3 / (1 - 0.999 * 0.5)), rtol=1e-4
    )


@pytest.mark.parametrize(
    "fault",
    [
        "weight_errors=0.02",
        "activation_errors=0.01",
        "stuck=0.1",
        "threshold_spread=0.05",
        "momentum_bits=6",
        "momentum_leak=0.01",
    ],
)
def test_a_run_on_imperfect_hardware_resumes_bit_for_bit(fault: str, tmp_path):
    chosen = recipe(f"hardware.{fault}", "training.batch_size=400")
    heard: list[str] = []

    class Ears(binep.training.progress.Watcher):
        def say(self, text: str) -> None:
            heard.append(text)

    whole = runs.train(chosen, out=tmp_path / "whole", device="cpu", watcher=Ears())
    part = replace(chosen, training=replace(chosen.training, epochs=1))
    runs.train(part, out=tmp_path / "part", device="cpu")
    resumed = runs.train(chosen, out=tmp_path / "part", device="cpu", resume=True)
    assert whole.record["engine"] == "reference"
    assert fault.split("=")[0] in heard[0]
    for a, b in zip(whole.metrics, resumed.metrics, strict=True):
        assert {k: v for k, v in a.items() if "seconds" not in k} == {
            k: v for k, v in b.items() if "seconds" not in k
        }


def test_other_engines_refuse_with_the_reason():
    chosen = recipe("hardware.stuck=0.1")
    made = chosen.build_network()
    parts = made, chosen.build_learning(), chosen.build_optimizers(made)
    with pytest.raises(BinepError, match=r"'packed' does not run imperfect hardware \(stuck=0.1\)"):
        select_engine("packed", *parts)
    assert select_engine("auto", *parts).name == "reference"
    narrow = recipe("hardware.momentum_bits=4")
    made = narrow.build_network()
    parts = made, narrow.build_learning(), narrow.build_optimizers(made)
    with pytest.raises(BinepError, match="momentum_bits=4"):
        select_engine("packed", *parts)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("digits-1fc-wa", ["weight_errors=1.5"], "hardware.weight_errors=1.5: allowed is a number"),
        ("digits-1fc-wa", ["momentum_bits=1"], "hardware.momentum_bits=1"),
        ("digits-1fc-wa", ["momentum_bits=4", "tau=0"], "tau=0"),
        ("digits-1fc-w", ["activation_errors=0.1"], "allowed are binary activations"),
        ("digits-1fc-w", ["threshold_spread=0.1"], "allowed are binary activations"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, overrides: list[str], message: str):
    keys = [f"optimizer.{o}" if o.startswith("tau") else f"hardware.{o}" for o in overrides]
    with pytest.raises(BinepError, match=message):
        recipes.load(name, keys)


def test_real_weights_and_bptt_are_refused():
    with pytest.raises(BinepError, match="real weights"):
        recipes.load("mnist-1fc512-fp", ["hardware.stuck=0.1"])
    with pytest.raises(BinepError, match="no momentum"):
        recipes.load("mnist-1fc512-fp", ["hardware.momentum_bits=4"])
    with pytest.raises(BinepError, match="bptt"):
        recipes.load("mnist-1fc-w-bptt", ["hardware.stuck=0.1"])


def test_training_bears_some_errors():
    """Weights that are read wrongly once in a hundred times: the digits are learnt all the same."""
    small = ["network.dense=[256]", "learning.free_steps=10", "learning.nudged_steps=5"]
    chosen = recipes.load("digits-1fc-wa", [*small, "hardware.weight_errors=0.01"])
    trainer = runs.build_trainer(chosen, load_data("digits"), 0, torch.device("cpu"))
    assert trainer.epoch()["test_error"]["average"] < 40
