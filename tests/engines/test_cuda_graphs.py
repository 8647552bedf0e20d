"""Graphs of the engine on a GPU, with a stand-in that records nothing and runs all again."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from binep import Dense, EquilibriumPropagation, HardSigmoid, Heaviside, Network, assign_optimizers
from binep.core.optim import Optimizers
from binep.engines.cuda.engine import CudaEngine
from binep.engines.cuda.graph import Graphs
from binep.engines.torch.engine import ReferenceEngine
from binep.errors import BinepError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Again:
    """Replays by running the function; a graph could not look at the optimizers' rates then."""

    def __init__(self, function, optimizers: Optimizers) -> None:
        self.function = function
        self.groups = [group for o in optimizers for group in o.param_groups]

    def replay(self) -> None:
        rates = [group["lr"] for group in self.groups]
        for group in self.groups:
            group["lr"] = float("nan")
        self.function()
        for group, rate in zip(self.groups, rates, strict=True):
            group["lr"] = rate


def trained(engine_of, *, bits: bool) -> tuple[Network, Any]:
    """A small network on its engine; its CUDA graphs are stand-ins."""
    torch.manual_seed(7)
    chain = [Dense(9, 8, learn_scale=True), Dense(8, 4, learn_scale=True)]
    neuron, dynamics = (Heaviside(), "energy") if bits else (HardSigmoid(), "prototypical")
    net = Network((9,), chain, neuron, dynamics, classes=4).to(DEVICE)
    optimizers = assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2, lr_scale=1e-3)
    engine = engine_of(net, EquilibriumPropagation(5, 3, 0.3), optimizers)
    if isinstance(engine, CudaEngine):
        engine.graphs = Graphs(lambda function, restore: Again(function, optimizers))
    return net, engine


def mini_batch(size: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (size, 9), generator=generator, dtype=torch.uint8)
    return x.to(DEVICE), torch.randint(4, (size,), generator=generator).to(DEVICE)


def train_by_schedule(engine, steps: int) -> None:
    for step in range(steps):
        rate = 0.02 / (1 + step)
        engine.optimizers.set_rates({"lr_bias": [rate, rate / 2], "lr_scale": [rate / 10] * 2})
        engine.train(*mini_batch(3, step))


def test_a_schedule_of_rates_is_followed_by_one_graph():
    (net, engine), (other, fast) = (trained(of, bits=True) for of in (ReferenceEngine, CudaEngine))
    for subject in (engine, fast):
        train_by_schedule(subject, 4)
    assert fast.graphs.recordings == len(fast.graphs) == 1
    for (name, p), q in zip(net.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p, q[1]), name


def test_a_graph_is_recorded_for_each_shape_and_kind():
    _, engine = trained(CudaEngine, bits=False)
    for _ in range(2):
        for size in (3, 2):
            engine.train(*mini_batch(size))
            engine.evaluate(*mini_batch(size))
    assert engine.graphs.recordings == 4


def test_a_resumed_momentum_is_followed_in_place_of_the_old_one():
    """A checkpoint brings tensors of its own; the graph that wrote to the old ones is let go."""
    (net, engine), (other, fast) = (trained(of, bits=True) for of in (ReferenceEngine, CudaEngine))
    for subject in (engine, fast):
        subject.train(*mini_batch(3))
        bop = subject.optimizers.bop
        bop.load_state_dict({**bop.state_dict()})
        for state in bop.state.values():
            state["momentum"] = state["momentum"].clone()
        subject.train(*mini_batch(3, seed=1))
    assert fast.graphs.recordings == 2 and len(fast.graphs) == 1
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_only_so_many_graphs_are_kept():
    graphs, seen = (
        Graphs(lambda function, restore: Again(function, Optimizers(None, None, None)), 2),
        [],
    )
    for size in (1, 2, 1, 3, 1, 2):
        graphs.run("kind", lambda x: seen.append(len(x)), [torch.zeros(size)], lambda: lambda: None)
        assert len(graphs) <= 2
    assert seen == [1, 2, 1, 3, 1, 2]
    assert graphs.recordings == 4  # the second 2 came after 1 and 3 had been used later


def test_one_hidden_layer_relaxes_in_float32_and_says_so():
    _, engine = trained(CudaEngine, bits=False)
    x, labels = mini_batch(4)
    torch.manual_seed(7)
    net = Network((9,), [Dense(9, 8), Dense(8, 6), Dense(6, 4)], classes=4).to(DEVICE)
    deep = CudaEngine(
        net,
        EquilibriumPropagation(5, 3, 0.3),
        assign_optimizers(net, gamma=1e-2, tau=1e-3, lr_bias=1e-2),
    )
    assert engine.precision == "float32"
    assert deep.precision == "int8 differences, float32"
    reference = ReferenceEngine(engine.network, engine.learning, engine.optimizers)
    # In float16 the cost would differ by 1e-4 or so.
    expected = reference.evaluate(x, labels).loss
    assert engine.evaluate(x, labels).loss == pytest.approx(expected, rel=1e-6)


def test_an_optimizer_that_is_not_known_is_refused():
    net, engine = trained(ReferenceEngine, bits=False)
    known = engine.optimizers
    adam = torch.optim.SGD(known.sgd.param_groups[0]["params"], lr=0.1, momentum=0.9)
    with pytest.raises(
        BinepError, match=r"does not run SGD \(optimizer sgd\): allowed is PlainSGD"
    ):
        CudaEngine(net, engine.learning, Optimizers(known.bop, adam, known.scale_sgd))
