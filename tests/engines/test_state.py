"""The network and its optimizers hold the state of training, whatever an engine keeps besides.

Engines pack signs and keep what they have found out. Others may change parameters and momenta at
any time, as a checkpoint does, and another engine may go on.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import CUDA, Built, Case, build, make

from binep.data import load
from binep.training import checkpoints
from binep.training.runs import build_trainer
from binep.training.trainer import Trainer
from conftest import small_recipe

CONV = ({"above": 9, "kernel": 3, "padding": 1, "pool": 2},)
FLAT = ({"above": 9, "kernel": 3, "padding": 1, "pool": 1},)  # nothing that rounding decides
RATES = {"gamma": 0.1, "tau": 1e-4}
BITS = Case(2, (30,), dense=(70,), per_class=5, rates=RATES, sizes=(8,) * 6)
REAL = replace(BITS, bits=False, norm=0.35, learning={"free_steps": 40})
ALONE = replace(BITS, threshold=0.1, options={"dynamics": "hopfield"}, learning={"beta": 1.0})
SHORT = {"free_steps": 4, "nudged_steps": 2}
CASES = {
    "packed": (
        BITS,
        replace(BITS, input_shape=(1, 8, 9), convs=CONV),
        ALONE,
        replace(ALONE, input_shape=(1, 8, 9), convs=CONV),
    ),
    "delta": (
        REAL,
        replace(REAL, dense=(50, 40)),
        replace(REAL, input_shape=(1, 8, 9), convs=FLAT, dense=(40,)),
        replace(REAL, options={"updates": "alternating"}, dense=(50, 40)),
    ),
    "cuda": (
        replace(BITS, input_shape=(12,), dense=(10,), learning=SHORT, sizes=(2,) * 5),
        replace(REAL, input_shape=(12,), dense=(10, 6), learning=SHORT, sizes=(2,) * 5),
    ),
}
PAIRS = [
    pytest.param(engine, case, id=f"{engine}-{case}")
    for engine, some in CASES.items()
    for case in some
]


def built(engine: str, case: Case, name: str | None = None) -> Built:
    """The case on the device of an engine, by that one or by the one named."""
    pytest.importorskip("triton" if engine == "cuda" else "numba")
    return build(case, name or engine, device=place(engine))


def place(engine: str) -> torch.device:
    return CUDA if engine == "cuda" else torch.device("cpu")


@pytest.mark.parametrize(("engine", "case"), PAIRS)
def test_what_someone_else_changes_is_seen(engine: str, case: Case):
    """Signs, momenta, scales and biases changed between mini-batches."""
    pair = built(engine, case, "reference"), built(engine, case)
    for n, (x, labels) in enumerate(case.batches(place(engine))):
        for each in pair:
            first, second = each.network.couplings[:2]
            with torch.no_grad():
                if n == 2:
                    first.signs.neg_()
                    second.signs.neg_()
                    second.scale.mul_(1.5)
                if n == 3 and second.bias is not None:
                    second.bias.add_(0.1)
                if n == 4:
                    state = each.momenta()[1]
                    state.update(momentum=state["momentum"].flip(0) * 9, decay=0.7)
            each.engine.train(x, labels)
        one, two = (each.engine.collect() for each in pair)
        assert two.loss == pytest.approx(one.loss, rel=1e-6 if case.bits else 5e-3)
        assert two.flips == one.flips or not case.bits


@pytest.mark.parametrize(("engine", "case"), PAIRS)
def test_an_engine_that_comes_later_sees_the_same_network(engine: str, case: Case):
    """After many flips, made one by one: no copy of the signs has missed any."""
    trained, shown = built(engine, case), [*case.batches(place(engine))]
    for x, labels in shown:
        trained.engine.train(x, labels)
    counted = trained.engine.collect().flips
    assert sum(counted) > 3
    assert counted == [state["flips"] for state in trained.momenta()]
    assert all(bool((c.signs.abs() == 1).all()) for c in trained.network.couplings)
    fresh = make(engine, trained.network, trained.learning, trained.optimizers)
    assert fresh.evaluate(*shown[0]) == trained.engine.evaluate(*shown[0])


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [2, 5], indirect=True)
@pytest.mark.parametrize(("engine", "case"), [pair for pair in PAIRS if "cuda" not in str(pair.id)])
def test_any_number_of_threads_learns_the_same(engine: str, case: Case, threads: None):
    found = []
    for count in (torch.get_num_threads(), 1):
        torch.set_num_threads(count)
        one = built(engine, replace(case, sizes=(3, 4)))
        for x, labels in replace(case, sizes=(3, 4)).batches():
            one.engine.train(x, labels)
        found.append([*(state["momentum"] for state in one.momenta()), *one.network.parameters()])
    for a, b in zip(*found, strict=True):
        # Threads add up shares of real gradients, in another order.
        least = 0.0 if case.bits else 1e-5 * float(a.detach().abs().max())
        torch.testing.assert_close(a, b, rtol=0, atol=least)


RECIPES = {
    "packed": ("digits-conv-wa", ()),
    "delta": (
        "digits-1fc-w",
        (
            "network.dense=[24, 20]",
            "optimizer.gamma=1e-3",
            "optimizer.tau=1e-5",
            "optimizer.lr_bias=1e-2",
        ),
    ),
}


@pytest.mark.parametrize(
    ("engine", "other"), [("packed", "packed"), ("packed", "reference"), ("delta", "delta")]
)
def test_a_run_resumes_bit_for_bit(tmp_path: Any, engine: str, other: str):
    """A checkpoint taken amid an epoch goes on as if nothing had happened, under either engine."""
    pytest.importorskip("numba")
    name, overrides = RECIPES[engine]
    recipe = small_recipe(name, "training.batch_size=64", *overrides)
    dataset = load("digits")

    def trainer(chosen: str) -> Trainer:
        return build_trainer(recipe, dataset, 0, torch.device("cpu"), chosen)

    whole = trainer(other)
    whole.epoch()
    part, count = trainer(engine), itertools.count(1)
    assert part.epoch(lambda: next(count) < 9) is None
    checkpoints.save(tmp_path, part)
    rest = trainer(other)
    found = checkpoints.load(tmp_path, warn=pytest.fail)
    assert found is not None
    checkpoints.restore(rest, *found)
    rest.epoch()
    for a, b in zip(whole.network.parameters(), rest.network.parameters(), strict=True):
        assert torch.equal(a, b)
    assert whole.optimizers.bop is not None and rest.optimizers.bop is not None
    for a, b in zip(whole.network.couplings, rest.network.couplings, strict=True):
        mine, its = whole.optimizers.bop.state[a.signs], rest.optimizers.bop.state[b.signs]
        assert torch.equal(mine["momentum"], its["momentum"])
        assert (mine["decay"], mine["flips"]) == (its["decay"], its["flips"])
