"""Which engine is taken, and what is said when a faster one cannot be had."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from binep import (
    BackpropThroughTime,
    ConvPool,
    Dense,
    EquilibriumPropagation,
    Network,
    assign_optimizers,
)
from binep.core.gradients import Learning
from binep.core.neurons import HardSigmoid, Heaviside, Winners
from binep.engines.select import select_device, select_engine

EP = EquilibriumPropagation(4, 2, 0.5)


def parts(bits: bool, learning: Learning = EP):
    neuron, dynamics = (Heaviside(), "energy") if bits else (HardSigmoid(), "prototypical")
    net = Network((6,), [Dense(6, 8), Dense(8, 3)], neuron, dynamics, classes=3)
    return net, learning, assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2)


def test_auto_takes_the_fastest_engine_for_the_network():
    assert select_engine("auto", *parts(bits=True)).name == "packed"
    assert select_engine("auto", *parts(bits=False)).name == "delta"
    assert select_engine("reference", *parts(bits=True)).name == "reference"


def test_falling_back_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    for module in [name for name in sys.modules if name.startswith("binep.engines.numba.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "numba", None)
    said: list[str] = []
    assert select_engine("auto", *parts(bits=True), said.append).name == "reference"
    assert len(said) == 1 and "binep[fast]" in said[0] and "'reference'" in said[0]
    with pytest.raises(ValueError, match=r"needs numba: pip install 'binep\[fast\]'"):
        select_engine("packed", *parts(bits=True))


@pytest.mark.parametrize("broken", ["missing", "other arguments", "wrong sums"])
def test_a_torch_without_convolutions_of_bytes_falls_back(
    broken: str, monkeypatch: pytest.MonkeyPatch
):
    """The ops that engine 'delta' convolves with are not public: they may go, or change."""
    relaxing = pytest.importorskip("binep.engines.numba.delta.sign_bytes")
    chain = [ConvPool(1, 2, kernel=3), ConvPool(2, 2, kernel=3), Dense(8, 3)]
    net = Network((1, 6, 6), chain, HardSigmoid(), "prototypical", classes=3)
    built = net, EP, assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2)
    assert select_engine("auto", *built).name == "delta"
    ops: dict[str, Any] = {
        "missing": SimpleNamespace(qconv_prepack=torch.ops.onednn.qconv_prepack),
        "other arguments": SimpleNamespace(
            qconv_prepack=torch.ops.onednn.qconv_prepack,
            qconv2d_pointwise=lambda image: image,
        ),
        "wrong sums": SimpleNamespace(
            qconv_prepack=torch.ops.onednn.qconv_prepack,
            qconv2d_pointwise=lambda *args: torch.ops.onednn.qconv2d_pointwise(*args) + 1,
        ),
    }
    monkeypatch.setattr(relaxing, "_onednn", lambda: ops[broken])
    relaxing.convolves_bytes.cache_clear()
    said: list[str] = []
    try:
        assert select_engine("auto", *built, said.append).name == "reference"
        assert len(said) == 1 and "convolutions of bytes" in said[0] and "'reference'" in said[0]
        with pytest.raises(ValueError, match="convolutions of bytes"):
            select_engine("delta", *built)
        # Nothing is convolved in a dense network.
        assert select_engine("auto", *parts(bits=False), said.append).name == "delta"
    finally:
        relaxing.convolves_bytes.cache_clear()


def test_an_engine_asked_for_by_name_is_never_replaced():
    unknown = r"'packed' does not run HardSigmoid \(neuron\): allowed is Heaviside"
    with pytest.raises(ValueError, match=unknown):
        select_engine("packed", *parts(bits=False))
    with pytest.raises(ValueError, match="engine 'packed'"):
        select_engine("packed", *parts(False, BackpropThroughTime(4, 2)))
    with pytest.raises(ValueError, match="engine 'cuda' needs a GPU"):
        select_engine("cuda", *parts(bits=True))
    with pytest.raises(ValueError, match="unknown engine 'warp'"):
        select_engine("warp", *parts(bits=True))


def test_feedback_runs_where_it_is_exact():
    def parts(feedback: list[float], dynamics: str, neuron: HardSigmoid | Heaviside):
        chain = [Dense(6, 8), Dense(8, 3)]
        net = Network((6,), chain, neuron, dynamics, classes=3, feedback=feedback)
        return net, EP, assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2)

    bits = "hopfield", Heaviside()
    assert select_engine("auto", *parts([1, 0.25], *bits)).name == "packed"
    # What the first coupling would send down nobody hears, but that of the second is heard.
    assert select_engine("auto", *parts([0.5, 1], "prototypical", HardSigmoid())).name == "delta"
    with pytest.raises(ValueError, match=r"powers of two as feedback, not \[1.0, 0.3\]"):
        select_engine("packed", *parts([1, 0.3], *bits))
    with pytest.raises(ValueError, match=r"does not run feedback=\[1.0, 0.5\]: allowed is 1"):
        select_engine("delta", *parts([1, 0.5], "prototypical", HardSigmoid()))


def test_competing_neurons_and_bop_of_second_order_run_on_the_reference():
    bits, chain = Heaviside(), [Dense(6, 8), Dense(8, 3)]
    for neuron, sigma, what in (
        ([Winners(k=2), bits], None, r"a neuron of its own in each layer \(neuron\)"),
        (Winners(), None, r"Winners \(neuron\): allowed is Heaviside"),
        (bits, 0.1, r"SecondOrderBop \(optimizer bop\): allowed is Bop"),
    ):
        net = Network((6,), chain, neuron, "hopfield", classes=3)
        optimizers = assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2, sigma=sigma)
        with pytest.raises(ValueError, match=f"'packed' does not run {what}"):
            select_engine("packed", net, EP, optimizers)
        reference = select_engine("auto", net, EP, optimizers)
        assert reference.name == "reference"
        reference.train(torch.rand(4, 6), torch.tensor([0, 1, 2, 0]))
        assert reference.collect().samples == 4


class Sparse(Dense):
    """Half of its synapses are not there."""

    def sum_up(self, below):
        return super().sum_up(below * (torch.arange(below.shape[1]) % 2))


class Softer(HardSigmoid):
    """A neuron of its own."""


class Renamed(Dense):
    computes_like = Dense


def with_pieces(coupling: type[Dense] = Dense, neuron: Any = None, learning: Any = EP):
    net = Network((6,), [Dense(6, 8), coupling(8, 3)], neuron or HardSigmoid(), classes=3)
    return net, learning, assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2)


class OtherLearning(EquilibriumPropagation):
    pass


@pytest.mark.parametrize(
    ("pieces", "named"),
    [
        ({"coupling": Sparse}, "Sparse"),
        ({"neuron": Softer()}, "Softer"),
        ({"neuron": [Softer(), HardSigmoid()]}, "a neuron of its own in each layer"),
        ({"learning": OtherLearning(4, 2, 0.5)}, "OtherLearning"),
    ],
)
def test_what_an_engine_does_not_know_exactly_runs_on_the_reference(pieces: dict, named: str):
    said: list[str] = []
    assert select_engine("auto", *with_pieces(**pieces), said.append).name == "reference"
    assert len(said) == 1 and named in said[0] and "'reference'" in said[0]
    for name in ("delta", "packed"):
        with pytest.raises(ValueError, match=f"engine '{name}'"):
            select_engine(name, *with_pieces(**pieces))


def test_a_subclass_may_say_that_it_computes_like_its_parent():
    assert select_engine("auto", *with_pieces(Renamed)).name == "delta"


def test_a_mask_of_the_users_own_is_heeded_in_training():
    """Trained on `auto`, a coupling with overrides learns what its own methods say."""
    losses = []
    for coupling in (Sparse, Dense):
        torch.manual_seed(0)
        engine = select_engine("auto", *with_pieces(coupling))
        torch.manual_seed(1)
        for _ in range(3):
            engine.train(torch.rand(4, 6), torch.arange(4) % 3)
        losses.append(engine.collect().loss)
    assert losses[0] != losses[1]


def test_auto_device_is_the_gpu_if_there_is_one():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert select_device("auto").type == expected
    assert select_device("cpu").type == "cpu"
