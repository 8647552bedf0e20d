"""A saved network is the same network, whatever it is made of; a wrong file is told in one line."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import binep
from binep import BinepError, ConvPool, Dense, HardSigmoid, Heaviside, Network, registry
from binep.core.imperfect import Imperfections, ImperfectNetwork


def images(net: Network) -> torch.Tensor:
    return torch.rand(5, *net.input_shape, generator=torch.Generator().manual_seed(1))


def conv() -> Network:
    chain = [ConvPool(1, 4, kernel=3, padding=1, pool=2, learn_scale=True), Dense(64, 6)]
    return Network((1, 8, 8), chain, classes=3, per_class=2, initial_state=0.25)


def bits() -> Network:
    chain = [Dense(9, 7, bias=False), Dense(7, 5), Dense(5, 4)]
    return Network((9,), chain, Heaviside(0.4, 0.3), "energy", classes=4, dt=0.25)


def mixed() -> Network:
    chain = [Dense(9, 7), Dense(7, 4, binary=False)]
    return Network((9,), chain, [Heaviside(), HardSigmoid()], "energy", classes=4)


def readout() -> Network:
    chain = [Dense(9, 7, binary=False), Dense(7, 4, binary=False)]
    return Network((9,), chain, cost="cross_entropy", classes=4).double()


@pytest.mark.parametrize("made", [conv, bits, mixed, readout])
def test_a_saved_network_is_the_same_network(made, tmp_path: Path):
    torch.manual_seed(0)
    net = made()
    net.free_steps = 17
    binep.save(net, tmp_path / "net.safetensors")
    same = binep.load(tmp_path / "net.safetensors")
    assert same.describe() == net.describe() and same.free_steps == 17
    x = images(net).to(net.couplings[0].weight.dtype)
    assert torch.equal(net(x), same(x))
    found = dict(same.named_parameters())
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, found[name])
        assert parameter.requires_grad == found[name].requires_grad


@registry.neurons.register
@dataclass(frozen=True)
class Leaky(HardSigmoid):
    leak: float = 0.1

    name = "test-leaky"

    def __call__(self, state):
        return state.clamp(0, 1) * (1 - self.leak)


@registry.couplings.register
class Masked(Dense):
    """Some synapses are not there: `mask`, drawn once, is part of what is stored."""

    name = "test-masked"
    mask: torch.Tensor

    def __init__(self, below, above, *, share=0.5, generator=None, **options):
        super().__init__(below, above, generator=generator, **options)
        self.share = share
        self.register_buffer("mask", (torch.rand(above, below) < share).float())

    def sum_up(self, below):
        return self.numbers(below).flatten(1) @ (self.mask * self.synapses.kernel).T, None


def test_registered_pieces_of_ones_own_are_saved_with_all_they_keep(tmp_path: Path):
    masked = Masked(9, 4, share=0.3, bias=False, learn_scale=True)
    net = Network((9,), [masked], Leaky(leak=0.2), classes=4)
    binep.save(net, tmp_path / "net.safetensors")
    same = binep.load(tmp_path / "net.safetensors")
    assert same.neuron == Leaky(leak=0.2) and torch.equal(net(images(net)), same(images(net)))


class Unknown(Dense):
    pass


def test_what_cannot_be_saved_is_told(tmp_path: Path):
    stranger = Network((9,), [Unknown(9, 10)])
    with pytest.raises(BinepError, match="Unknown is not registered"):
        binep.save(stranger, tmp_path / "net.safetensors")
    faulty = ImperfectNetwork(Network((9,), [Dense(9, 10)]), Imperfections(stuck=0.1))
    with pytest.raises(BinepError, match="imperfect hardware"):
        binep.save(faulty, tmp_path / "net.safetensors")
    broken = Network((9,), [Dense(9, 10)])
    torch.nn.init.constant_(broken.couplings[0].bias, torch.nan)
    with pytest.raises(BinepError, match=r"couplings\.0\.bias holds NaN"):
        binep.save(broken, tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())


def resealed(path: Path, change) -> bytes:
    """The file with another description, and a seal that fits."""
    from binep.core.saving import FORMAT

    opened = FORMAT.open(path.read_bytes())
    facts = opened.facts()
    change(facts)
    kinds = {np.dtype(np.uint8): "U8", np.dtype("<f4"): "F32"}
    rows = [(name, kinds[a.dtype], a) for name, a in opened.arrays().items()]
    return FORMAT.dumps(facts, rows)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda facts: facts.pop("classes"), "does not fit|classes"),
        (lambda facts: facts.update(surprise=1), "surprise"),
        (lambda facts: facts.update(classes="3"), "classes='3'"),
        (lambda facts: facts.update(free_steps=0), "free_steps=0"),
        (lambda facts: facts.update(precision="float8"), "precision"),
        (lambda facts: facts["couplings"][0].update(name="sparse"), "unknown coupling 'sparse'"),
        (lambda facts: facts["couplings"][0].update(above=2**40), "does not|is torch"),
        (lambda facts: facts["couplings"][0].update(above="4"), "above='4'"),
        (lambda facts: facts["neuron"].update(slope=2), "argument of neuron 'hard-sigmoid'"),
        (lambda facts: facts.update(couplings=[]), "without couplings"),
        (lambda facts: facts.update(couplings=7), "not a valid saved network"),
    ],
)
def test_a_file_that_says_something_else_is_refused_in_one_line(change, told, tmp_path: Path):
    path = tmp_path / "net.safetensors"
    binep.save(Network((9,), [Dense(9, 4), Dense(4, 3)], classes=3), path)
    path.write_bytes(resealed(path, change))
    with pytest.raises(BinepError, match=told) as error:
        binep.load(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_a_damaged_file_is_refused(tmp_path: Path):
    path = tmp_path / "net.safetensors"
    binep.save(bits(), path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BinepError, match="damaged, truncated or altered"):
        binep.load(path)
    with pytest.raises(BinepError, match="no such file"):
        binep.load(tmp_path / "none.safetensors")
