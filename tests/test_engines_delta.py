"""The delta engine follows the reference, closely where a network has one fixed point.

Sent activities are multiples of 2**-18 or finer, and differences of less than one are not sent: so
states may differ by some 1e-5. Bounds below leave room for what a deep network makes of that.
"""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from binep import (
    BackpropThroughTime,
    BinepError,
    Dense,
    EquilibriumPropagation,
    Heaviside,
    Network,
    assign_optimizers,
    relax,
)
from binep.core.metrics import Tally
from binep.core.network import READOUTS
from binep.core.relaxation import Nudge, step
from binep.data import load
from binep.engines.torch.engine import ReferenceEngine
from binep.training import checkpoints
from binep.training.runs import build_trainer
from conftest import assert_compiled_once, small_recipe
from engine_cases import batches, chain, momenta

pytest.importorskip("numba")
from binep.engines.numba.delta import DeltaEngine

WIDTHS = [1, 31, 32, 33, 64, 65, 257]
RATES: dict[str, Any] = {"gamma": 1e-2, "tau": 1e-3, "lr_bias": 1e-2}
CONVS = [
    {"above": 9, "kernel": 3, "padding": 1, "pool": 2},
    {"above": 17, "kernel": 3, "padding": 1, "pool": 2},
]

Built = tuple[Network, EquilibriumPropagation, Any]


def build(
    seed: int,
    input_shape: tuple[int, ...],
    convs: list[dict[str, Any]],
    dense: list[int],
    *,
    classes: int = 3,
    per_class: int = 2,
    learn_scale: bool = False,
    bias: bool = True,
    clamp_nudged: bool | None = None,
    nudged_sends: str = "activity",
    initial_state: float | None = None,
    rates: dict[str, Any] | None = None,
    weak: bool = True,
    **learning: Any,
) -> Built:
    """A network, how it learns and its optimizers: the same ones for the same seed.

    In a `weak` network a step brings any two states closer together, so that it has one fixed
    point. In others rounding alone can decide where they go.
    """
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"generator": generator, "learn_scale": learn_scale, "bias": bias}
    net = Network(
        input_shape,
        chain(input_shape, convs, [*dense, classes * per_class], **options),
        per_class=per_class,
        classes=classes,
        initial_state=initial_state,
        clamp_nudged=clamp_nudged,
        nudged_sends=nudged_sends,
    )
    if weak:
        weaken(net)
    usual = {"free_steps": 60, "nudged_steps": 7, "beta": 0.4, "sign": "random"}
    source = torch.Generator().manual_seed(seed + 1)
    ep = EquilibriumPropagation(**(usual | learning), generator=source)
    scale = {"lr_scale": 1e-3} if learn_scale else {}
    rates = {**RATES, **(rates or {})}
    if not bias:
        del rates["lr_bias"]
    return net, ep, assign_optimizers(net, **rates, **scale)


@torch.no_grad()
def weaken(net: Network) -> None:
    """Scale inner couplings to a norm of about 0.35 (of random signs: sqrt(fans) summed up)."""
    for coupling in net.couplings[1:]:
        signs = coupling.signs
        fans = signs[0].numel() ** 0.5 + (signs.numel() / signs.shape[1]) ** 0.5
        coupling.scale.copy_(coupling.scale / coupling.scale.mean() * 0.35 / fans)


def assert_close(
    a: Tensor, b: Tensor, what: str, cosine: float = 0.999, floor: float = 1e-4
) -> None:
    """`b` points where `a` points, unless all of it drowns in rounding."""
    a, b = a.double().flatten(), b.double().flatten()
    if max(float(a.norm()), float(b.norm())) > floor * len(a) ** 0.5:
        assert float(a @ b / (a.norm() * b.norm())) > cosine, what
    assert float((a - b).norm()) <= 0.1 * float(a.norm()) + floor * len(a) ** 0.5, what


def assert_same_tally(a: Tally, b: Tally, close: int = 0) -> None:
    """Equal counts; `close` samples, whose best classes are nearly equal, may be read otherwise."""
    for key in ("samples", "batches", "free_steps", "nudged_steps"):
        assert getattr(a, key) == getattr(b, key), key
    for readout, wrong in a.wrong.items():
        assert abs(wrong - b.wrong[readout]) <= close, readout
    assert abs(a.undecided - b.undecided) <= close
    assert b.loss == pytest.approx(a.loss, rel=1e-3)
    assert b.residual == pytest.approx(a.residual, abs=1e-4)


def close_calls(net: Network, state: list[Tensor]) -> int:
    """How many samples a readout could read otherwise after a small change."""
    calls = torch.zeros(len(state[0]), dtype=torch.bool)
    for readout in READOUTS:
        best = net.scores(state, readout).topk(2).values
        calls |= best[:, 0] - best[:, 1] < 1e-4
    return int(calls.sum())


def assert_parity(
    batch: int, *args: Any, kind: str = "pixels", cosine: float = 0.999, **options: Any
) -> None:
    """Compare states of both phases, and what a mini-batch does to all parameters."""
    reference, delta = build(*args, **options), build(*args, **options)
    net, ep, _ = reference
    slow, fast = ReferenceEngine(*reference), DeltaEngine(*delta)
    ((x, labels),) = batches(net, batch, 1, kind)
    free = relax(net, x, net.initial(x), ep.free_steps)
    nudge = Nudge(net.target(labels), ep.beta, ep.nudge)
    nudged = relax(net, x, free.state, ep.nudged_steps, nudge)
    for mine, its in zip(fast.relax(x, labels, ep.beta)[:2], (free, nudged), strict=True):
        for a, b in zip(mine, its.state, strict=True):
            assert a.shape == b.shape
            assert float((a - b).abs().max()) < 2e-3
    close = close_calls(net, free.state)
    assert_same_tally(slow.evaluate(x, labels), fast.evaluate(x, labels), close)
    slow.train(x, labels)
    fast.train(x, labels)
    assert_same_tally(slow.collect(), fast.collect(), close)
    for n, (a, b) in enumerate(zip(momenta(reference[2]), momenta(delta[2]), strict=True)):
        assert a["decay"] == b["decay"]
        gradients = (state["momentum"] / RATES["gamma"] for state in (a, b))
        assert_close(*gradients, f"signs {n}", cosine)
    for (name, a), (_, b) in zip(
        reference[0].named_parameters(), delta[0].named_parameters(), strict=True
    ):
        if not name.endswith("signs"):
            assert_close(a.grad, b.grad, name, cosine)
            assert torch.allclose(a, b, atol=1e-4), name


learnings = st.fixed_dictionaries(
    {
        "sign": st.sampled_from(["positive", "random", "centered"]),
        "nudge": st.sampled_from(["live", "constant"]),
        "beta": st.sampled_from([0.3, 0.5, -0.4]),
        "learn_scale": st.booleans(),
        "bias": st.booleans(),
        "clamp_nudged": st.sampled_from([None, True, False]),
        "nudged_sends": st.sampled_from(["activity", "state"]),
        "initial_state": st.sampled_from([None, 0.5, 1.0, -0.5]),
        "kind": st.sampled_from(["pixels", "bits", "real"]),
    }
)
relaxed = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@relaxed
@given(
    seed=st.integers(0, 10**6),
    batch=st.sampled_from([1, 2, 63, 65]),
    below=st.sampled_from(WIDTHS),
    dense=st.lists(st.sampled_from(WIDTHS), max_size=3),
    learning=learnings,
)
def test_dense_networks_of_any_width(seed, batch, below, dense, learning):
    assert_parity(batch, seed, (below,), [], dense, **learning)


@relaxed
@given(
    seed=st.integers(0, 10**6),
    batch=st.sampled_from([1, 3, 9]),
    kernel=st.integers(1, 4),
    padding=st.integers(0, 2),
    channels=st.sampled_from([1, 5, 16, 33]),
    dense=st.lists(st.sampled_from([17, 65]), max_size=1),
    learning=learnings,
)
def test_convolutions_without_a_pool(seed, batch, kernel, padding, channels, dense, learning):
    """Without switches there is one fixed point, and gradients can be compared."""
    convs = [
        {"above": c, "kernel": kernel, "padding": min(padding, kernel - 1)} for c in (4, channels)
    ]
    # Through four layers, one of them on the map of a convolution, the nudge gets small.
    assert_parity(batch, seed, (2, 7, 8), convs, dense, cosine=0.99, **learning)


@pytest.mark.parametrize("pool", [1, 2, 3])
@pytest.mark.parametrize("learn_scale", [False, True])
def test_where_a_convolutional_network_rests_the_reference_would_rest_too(pool, learn_scale):
    """With pools rounding decides between near equals; either way the end is a fixed point."""
    convs = [{**conv, "pool": pool if n else 2} for n, conv in enumerate(CONVS)]
    net, ep, optimizers = build(
        3, (2, 18, 20), convs, [40], learn_scale=learn_scale, free_steps=300, weak=False
    )
    if learn_scale:
        with torch.no_grad():
            for coupling in net.couplings[:2]:
                coupling.scale.mul_(torch.linspace(0.5, 1.5, len(coupling.scale)))
    engine = DeltaEngine(net, ep, optimizers)
    ((x, labels),) = batches(net, 20, 1)
    free, _ = engine.relax(x, labels, ep.beta)
    moved = step(net, net.clamp(x), free)
    for a, b in zip(free, moved, strict=True):
        # A pool whose two best are equal within rounding may have another winner.
        assert float(((a - b).abs() > 1e-4).float().mean()) < 1e-3
        assert float((a - b).abs().detach().median()) < 1e-5
    assert engine.activity.steps < 20 * (300 + 7)


def test_pools_learn_as_the_reference_does():
    """Gradients taken at the same two states: with the same switches, over the same positions."""
    built = build(4, (2, 9, 8), CONVS, [], learn_scale=True, sign="positive")
    other = build(4, (2, 9, 8), CONVS, [], learn_scale=True, sign="positive")
    fast, slow = DeltaEngine(*built), ReferenceEngine(*other)
    for x, labels in batches(built[0], 30, 4):
        fast.train(x, labels)
        slow.train(x, labels)
    a, b = slow.collect(), fast.collect()
    assert b.loss == pytest.approx(a.loss, rel=0.02)
    # The top coupling does not pool; those below feel the switches.
    assert_close(
        momenta(other[2])[-1]["momentum"] * 100, momenta(built[2])[-1]["momentum"] * 100, ""
    )
    for mine, its in zip(momenta(built[2]), momenta(other[2]), strict=True):
        x, y = mine["momentum"].flatten(), its["momentum"].flatten()
        assert float(torch.cosine_similarity(x, y, dim=0)) > 0.9


@pytest.mark.parametrize("convs", [[], CONVS], ids=["dense", "conv"])
@pytest.mark.parametrize("hidden", [[40], [60, 40]], ids=["shallow", "deep"])
def test_steps_that_change_nothing_are_not_run(hidden, convs):
    """Early stop leaves every bit of every state as it is."""
    shape = (1, 8, 9) if convs else (30,)
    found, taken = {}, {}
    for early_stop in (True, False):
        net, ep, optimizers = build(7, shape, convs, hidden, free_steps=201, nudged_steps=9)
        engine = DeltaEngine(net, ep, optimizers, early_stop=early_stop)
        ((x, labels),) = batches(net, 12, 1)
        found[early_stop] = engine.relax(x, labels, ep.beta)
        taken[early_stop] = engine.activity.steps
    assert taken[False] == 12 * 210
    assert taken[True] < 12 * 150
    for a, b in zip(*found.values(), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("hidden", [[40], [60, 40]], ids=["shallow", "deep"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3])
def test_a_mini_batch_ends_when_all_of_it_has_settled(tolerance, hidden):
    options = {"tolerance": tolerance, "free_steps": 90, "nudged_steps": 40, "sign": "centered"}
    reference, delta = (build(11, (30,), [], hidden, **options) for _ in range(2))
    slow, fast = ReferenceEngine(*reference), DeltaEngine(*delta)
    for x, labels in batches(reference[0], 9, 3):
        slow.train(x, labels)
        fast.train(x, labels)
        a, b = slow.collect(), fast.collect()
        assert_same_tally(a, b)
        assert a.free_steps < 90


@pytest.mark.parametrize("hidden", [[40], [60, 40]], ids=["shallow", "deep"])
def test_with_tolerance_zero_a_settled_network_still_ends(hidden):
    net, ep, optimizers = build(11, (30,), [], hidden, tolerance=0.0, free_steps=400)
    engine = DeltaEngine(net, ep, optimizers)
    ((x, labels),) = batches(net, 9, 1)
    found = engine.evaluate(x, labels)
    assert found.free_steps < 400 and found.residual == 0


@pytest.mark.parametrize("convs", [[], CONVS[:1]], ids=["dense", "conv"])
@pytest.mark.parametrize("hidden", [[130], [60, 40]], ids=["shallow", "deep"])
def test_copies_of_the_signs_follow_every_flip(hidden, convs):
    """After many flips, made one by one, an engine of its own sees the same network."""
    shape = (1, 8, 9) if convs else (30,)
    built = build(4, shape, convs, hidden, rates={"tau": 1e-6, "gamma": 0.1})
    engine = DeltaEngine(*built)
    x, labels = next(batches(built[0], 16, 1))
    for images, classes in batches(built[0], 16, 12):
        engine.train(images, classes)
    flips = engine.collect().flips
    assert min(flips) > 10
    assert flips == [state["flips"] for state in momenta(built[2])]
    assert all(bool((c.signs.abs() == 1).all()) for c in built[0].couplings)
    fresh = DeltaEngine(*built)
    for a, b in zip(engine.relax(x, labels, 0.3), fresh.relax(x, labels, 0.3), strict=True):
        assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def test_flips_are_those_of_bop():
    """On the same gradients, down to the last one: momenta, thresholds and signs."""
    built, other = (build(6, (40,), [], [50], rates={"tau": 1e-5}) for _ in range(2))
    slow, fast = ReferenceEngine(*other), DeltaEngine(*built)
    for x, labels in batches(built[0], 16, 10):
        slow.train(x, labels)
        fast.train(x, labels)
    a, b = slow.collect().flips, fast.collect().flips
    assert all(abs(m - n) <= 0.01 * m + 2 for m, n in zip(a, b, strict=True)) and min(a) > 50
    for c, d in zip(other[0].couplings, built[0].couplings, strict=True):
        assert float((c.signs != d.signs).float().mean()) < 5e-3


def test_what_someone_else_changes_is_seen():
    """Signs, scales and momenta changed between mini-batches, as by a checkpoint."""
    for hidden in ([70], [50, 40]):
        reference, delta = (build(2, (30,), [], hidden) for _ in range(2))
        slow, fast = ReferenceEngine(*reference), DeltaEngine(*delta)
        for n, (x, labels) in enumerate(batches(reference[0], 8, 5)):
            for engine, (net, _, optimizers) in ((slow, reference), (fast, delta)):
                with torch.no_grad():
                    if n == 2:
                        net.couplings[0].signs.neg_()
                        net.couplings[-1].signs.neg_()
                        net.couplings[1].scale.mul_(1.5)
                    if n == 3:
                        state = momenta(optimizers)[1]
                        state.update(momentum=state["momentum"] * 9, decay=0.7)
                engine.train(x, labels)
            assert fast.collect().loss == pytest.approx(slow.collect().loss, rel=1e-3)


def test_a_run_resumes_bit_for_bit(tmp_path):
    """A checkpoint taken amid an epoch goes on as if nothing had happened."""
    recipe = small_recipe(
        "digits-1fc-w",
        "training.batch_size=64",
        "network.dense=[24, 20]",
        "optimizer.gamma=1e-3",
        "optimizer.tau=1e-5",
        "optimizer.lr_bias=1e-2",
    )
    dataset, cpu = load("digits"), torch.device("cpu")

    def trainer() -> Any:
        made = build_trainer(recipe, dataset, 0, cpu, "delta")
        assert made.engine.name == "delta"
        return made

    whole = trainer()
    whole.epoch()
    part, count = trainer(), itertools.count(1)
    assert part.epoch(lambda: next(count) < 9) is None
    checkpoints.save(tmp_path, part)
    rest = trainer()
    found = checkpoints.load(tmp_path, warn=pytest.fail)
    assert found is not None
    checkpoints.restore(rest, *found)
    rest.epoch()
    for a, b in zip(whole.network.parameters(), rest.network.parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(momenta(whole.optimizers), momenta(rest.optimizers), strict=True):
        assert torch.equal(a["momentum"], b["momentum"])


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_any_number_of_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_parity(3, 8, (30,), [], [64])
        assert_parity(3, 8, (2, 8, 9), [{"above": 9, "kernel": 3, "padding": 1}], [33])
    finally:
        torch.set_num_threads(before)


def test_what_it_does_not_compute_is_refused_by_name():
    net, ep, optimizers = build(0, (8,), [], [16])
    bits = Network((8,), [Dense(8, 6)], Heaviside(), "energy", classes=6)
    real = Network((8,), [Dense(8, 6, binary=False)], classes=6)
    energy = Network((8,), [Dense(8, 6)], dynamics="energy", classes=6)
    for other, rates, words in (
        (bits, RATES, "Heaviside"),
        (real, {"lr_weight": 0.1, "lr_bias": 0.1}, "RealWeight"),
        (energy, RATES, "EnergyBased"),
    ):
        with pytest.raises(BinepError, match=f"engine 'delta' does not run {words}"):
            DeltaEngine(other, ep, assign_optimizers(other, **rates))
    with pytest.raises(BinepError, match="BackpropThroughTime"):
        DeltaEngine(net, BackpropThroughTime(4, 2), optimizers)
    with pytest.raises(BinepError, match="does not learn with a margin"):
        DeltaEngine(net, EquilibriumPropagation(4, 2, 0.3, margin=0.1), optimizers)
    wide, ep, optimizers = build(0, (1, 6, 6), [{"above": 4, "kernel": 2}], [])
    padded = build(
        0, (1, 6, 6), [{"above": 4, "kernel": 3}, {"above": 4, "kernel": 2, "padding": 2}], []
    )
    with pytest.raises(BinepError, match="needs padding below kernel=2: coupling 1 has 2"):
        DeltaEngine(*padded)
    with pytest.raises(BinepError, match="float32"):
        DeltaEngine(wide.double(), ep, optimizers)


def test_kernels_are_compiled_once():
    """Where one process has compiled them, the next finds them and says nothing."""
    program = (
        "import torch; from binep import *; from binep.engines.numba.delta import DeltaEngine\n"
        "net = Network((4,), [Dense(4, 3), Dense(3, 3)], classes=3)\n"
        "engine = DeltaEngine(net, EquilibriumPropagation(2, 2, 1.0),"
        " assign_optimizers(net, gamma=1e-2, tau=1e-4, lr_bias=1e-3))\n"
        "engine.train(torch.zeros(1, 4, dtype=torch.uint8), torch.tensor([0]))\n"
    )
    assert_compiled_once(program)


@pytest.mark.parametrize(("convs", "dense"), [([], [33]), ([], [33, 17]), (CONVS, [])])
def test_outputs_pushed_below_0_are_felt_by_the_layer_below(convs: list, dense: list[int]):
    """Saturated at 0 they have no activity to lose, but a state that can be sent."""
    shape = (2, 18, 20) if convs else (20,)
    built = build(
        0,
        shape,
        convs,
        dense,
        clamp_nudged=False,
        nudged_sends="state",
        weak=False,
        sign="positive",
    )
    net, ep, _ = built
    with torch.no_grad():
        for coupling in net.couplings[1:]:
            coupling.bias.fill_(-9 if coupling is net.couplings[-1] else 0.2)
    ((x, labels),) = batches(net, 4, 1)
    free, nudged = DeltaEngine(*built).relax(x, labels, -ep.beta)
    nudge = Nudge(net.target(labels), -ep.beta, ep.nudge)
    expected = relax(net, x, free, ep.nudged_steps, nudge).state
    assert float((expected[-2] - free[-2]).abs().max()) > 0.02
    assert float((expected[-2] - nudged[-2]).abs().max()) < 2e-3


@pytest.mark.parametrize(
    ("beta", "nudge", "runs"),
    [(0.3, "live", True), (0.99, "live", False), (-1.0, "live", False), (2.0, "constant", True)],
)
def test_states_that_could_overflow_integers_are_refused(beta: float, nudge: str, runs: bool):
    built = build(
        0, (9,), [], [8, 8], clamp_nudged=False, nudged_sends="state", beta=beta, nudge=nudge
    )
    if runs:
        DeltaEngine(*built)
    else:
        with pytest.raises(BinepError, match="needs a smaller beta"):
            DeltaEngine(*built)
