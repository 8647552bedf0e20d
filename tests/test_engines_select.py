"""Which engine is taken, and what is said when a faster one cannot be had."""

import sys

import pytest
import torch

from binep import BackpropThroughTime, Dense, EquilibriumPropagation, Network, assign_optimizers
from binep.engines.select import select_device, select_engine
from binep.gradients import Learning
from binep.neurons import HardSigmoid, Heaviside

EP = EquilibriumPropagation(4, 2, 2.0)


def parts(bits: bool, learning: Learning = EP):
    neuron, dynamics = (Heaviside(), "energy") if bits else (HardSigmoid(), "prototypical")
    net = Network((6,), [Dense(6, 8), Dense(8, 3)], neuron, dynamics, classes=3)
    return net, learning, assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2)


def test_auto_takes_the_fastest_engine_for_the_network():
    assert select_engine("auto", *parts(bits=True)).name == "packed"
    assert select_engine("auto", *parts(bits=False)).name == "delta"
    assert select_engine("reference", *parts(bits=True)).name == "reference"


def test_falling_back_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    for module in [name for name in sys.modules if name.startswith("binep.engines.packed")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "numba", None)
    said: list[str] = []
    assert select_engine("auto", *parts(bits=True), said.append).name == "reference"
    assert len(said) == 1 and "binep[fast]" in said[0] and "'reference'" in said[0]
    with pytest.raises(ValueError, match=r"needs numba: pip install 'binep\[fast\]'"):
        select_engine("packed", *parts(bits=True))


def test_an_engine_asked_for_by_name_is_never_replaced():
    with pytest.raises(ValueError, match="engine 'packed'"):
        select_engine("packed", *parts(bits=False))
    with pytest.raises(ValueError, match="engine 'packed'"):
        select_engine("packed", *parts(False, BackpropThroughTime(4, 2)))
    with pytest.raises(ValueError, match="engine 'cuda' needs a GPU"):
        select_engine("cuda", *parts(bits=True))
    with pytest.raises(ValueError, match="unknown engine 'warp'"):
        select_engine("warp", *parts(bits=True))


def test_auto_device_is_the_gpu_if_there_is_one():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert select_device("auto").type == expected
    assert select_device("cpu").type == "cpu"
