"""One training step after another: repeatable to the bit, and it learns."""

import pytest
import torch

from binep import (
    ConvPool,
    Dense,
    EquilibriumPropagation,
    HardSigmoid,
    Heaviside,
    Network,
    assign_optimizers,
    relax,
)
from binep.core.metrics import Tally
from binep.engines.torch.engine import ReferenceEngine


def train(case: str, seed: int, steps: int) -> tuple[Network, list[Tally]]:
    """Train a small network on random images, everything drawn from one seed."""
    torch.manual_seed(seed)
    bits = case.endswith("wa")
    per_class = 8 if bits else 1
    if case.startswith("conv"):
        convs = [
            ConvPool(1, 8, kernel=3, padding=1, pool=2, learn_scale=True),
            ConvPool(8, 16, kernel=3, padding=1, pool=2, learn_scale=True),
        ]
        chain = [*convs, Dense(64, 4 * per_class, learn_scale=True)]
    else:
        chain = [Dense(64, 96, learn_scale=True), Dense(96, 4 * per_class, learn_scale=True)]
    net = Network(
        (1, 8, 8),
        chain,
        Heaviside() if bits else HardSigmoid(),
        "energy" if bits else "prototypical",
        per_class,
        classes=4,
    )
    ep = EquilibriumPropagation(20, 8, 2.0 if bits else 0.3, sign="random")
    optimizers = assign_optimizers(net, gamma=1e-2, tau=1e-4, lr_bias=1e-3, lr_scale=1e-6, noise=1)
    engine = ReferenceEngine(net, ep, optimizers)
    x = torch.randint(256, (16, 1, 8, 8), dtype=torch.uint8)
    labels = torch.randint(4, (16,))
    tallies = []
    for _ in range(steps):
        engine.train(x, labels)
        tallies.append(engine.collect())
    return net, tallies


@pytest.mark.parametrize("case", ["dense-w", "dense-wa", "conv-w", "conv-wa"])
def test_the_same_seed_gives_the_same_bits(case: str):
    first, batches = train(case, seed=3, steps=20)
    second, again = train(case, seed=3, steps=20)
    other, _ = train(case, seed=4, steps=20)
    assert sum(sum(batch.flips) for batch in batches) > 0
    assert batches == again
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(
        not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True)
    )


def test_sixteen_images_are_learnt_by_heart():
    _, batches = train("dense-w", seed=0, steps=60)
    assert batches[0].wrong["average"] > 4
    assert min(batch.wrong["average"] for batch in batches[-10:]) <= 1


def test_a_step_reports_what_it_did():
    net, (batch, *_) = train("conv-wa", seed=1, steps=1)
    assert len(batch.flips) == len(net.couplings) == 3
    assert set(batch.wrong) == {"average", "single"}
    assert (batch.samples, batch.batches) == (16, 1)
    assert batch.loss > 0 and batch.residual >= 0
    assert (batch.free_steps, batch.nudged_steps) == (20, 8)


def test_evaluation_reads_the_free_phase_and_changes_nothing():
    torch.manual_seed(0)
    net = Network((64,), [Dense(64, 32), Dense(32, 4)], classes=4)
    optimizers = assign_optimizers(net, gamma=1e-2, tau=1e-4, lr_bias=1e-3)
    engine = ReferenceEngine(net, EquilibriumPropagation(30, 8, 0.3), optimizers)
    x, labels = torch.rand(10, 64), torch.randint(4, (10,))
    before = [p.clone() for p in net.parameters()]
    found = engine.evaluate(x, labels)
    free = relax(net, x, net.initial(x), 30)
    assert found.wrong["average"] == int((net.predict(free.state) != labels).sum())
    assert found.residual == free.residuals[-1]
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert engine.collect() == Tally()
