"""The packed engine agrees with the reference in every bit, after every mini-batch."""

import itertools
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binep import (
    BinepError,
    Dense,
    EquilibriumPropagation,
    HardSigmoid,
    Heaviside,
    Network,
    assign_optimizers,
    relax,
)
from binep.core.relaxation import Nudge
from binep.data import load
from binep.engines.torch.engine import ReferenceEngine
from binep.training import checkpoints
from binep.training.runs import build_trainer
from conftest import assert_compiled_once, small_recipe
from engine_cases import batches, chain, momenta

pytest.importorskip("numba")
from binep.engines.numba.packed import PackedEngine

WIDTHS = [1, 31, 32, 33, 63, 64, 65, 511, 512, 513]
BATCHES = [1, 2, 63, 64, 65]
RATES: dict[str, Any] = {"gamma": 1e-2, "tau": 1e-4, "lr_bias": 1e-3}

Built = tuple[Network, EquilibriumPropagation, Any]


def build(
    seed: int,
    input_shape: tuple[int, ...],
    convs: list[dict[str, Any]],
    dense: list[int],
    *,
    classes: int = 3,
    per_class: int = 5,
    learn_scale: bool = False,
    bias: bool = True,
    threshold: float = 0.5,
    sigma: float = 0.5,
    dt: float = 0.5,
    initial_state: float | None = None,
    rates: dict[str, Any] | None = None,
    noise: float = 0.0,
    **learning: Any,
) -> Built:
    """A network, how it learns and its optimizers: the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"generator": generator, "learn_scale": learn_scale, "bias": bias}
    net = Network(
        input_shape,
        chain(input_shape, convs, [*dense, classes * per_class], **options),
        Heaviside(threshold, sigma),
        "energy",
        per_class,
        classes,
        initial_state,
        dt=dt,
    )
    usual = {"free_steps": 12, "nudged_steps": 7, "beta": 2.0, "sign": "random"}
    source = torch.Generator().manual_seed(seed + 1)
    ep = EquilibriumPropagation(**(usual | learning), generator=source)
    source = torch.Generator().manual_seed(seed + 2)
    chosen = {**RATES, **(rates or {})}
    scale = {"lr_scale": 1e-5} if learn_scale else {}
    return net, ep, assign_optimizers(net, **chosen, **scale, noise=noise, generator=source)


def assert_same(reference: Built, packed: Built) -> None:
    """Signs, scales, biases and their gradients; momenta, decays, flips."""
    for (name, a), (_, b) in zip(
        reference[0].named_parameters(), packed[0].named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        if not name.endswith("signs"):
            assert torch.equal(a.grad, b.grad), name
    for a, b in zip(momenta(reference[2]), momenta(packed[2]), strict=True):
        assert torch.equal(a["momentum"], b["momentum"])
        assert (a["decay"], a["flips"]) == (b["decay"], b["flips"])


def assert_parity(
    batch: int,
    count: int,
    *args: Any,
    kind: str = "pixels",
    early_stop: bool = True,
    **options: Any,
) -> int:
    """Train both engines from the same seed; returns how many weights have flipped."""
    reference, packed = build(*args, **options), build(*args, **options)
    slow = ReferenceEngine(*reference)
    fast = PackedEngine(*packed, early_stop=early_stop)
    flips = 0
    for x, labels in batches(reference[0], batch, count, kind):
        slow.train(x, labels)
        fast.train(x, labels)
        expected = slow.collect()
        assert fast.collect() == expected
        assert_same(reference, packed)
        assert fast.evaluate(x, labels) == slow.evaluate(x, labels)
        flips += sum(expected.flips)
    return flips


def assert_same_states(batch: int, *args: Any, kind: str = "pixels", **options: Any) -> None:
    """Compare every state at the end of every phase."""
    net, ep, _ = reference = build(*args, **options)
    engine = PackedEngine(*reference)
    for x, labels in batches(net, batch, 2, kind):
        clamped = replace(net.clamp(x), handicap=ep.handicap(net.target(labels)))
        settled = partial(relax, net, clamped, tolerance=ep.tolerance)
        free = settled(net.initial(x), ep.free_steps)
        expected = [free.state]
        for beta in (ep.beta, -ep.beta)[: 2 if ep.sign == "centered" else 1]:
            nudge = Nudge(net.target(labels), beta, ep.nudge)
            expected.append(settled(free.state, ep.nudged_steps, nudge).state)
        found = engine.relax(x, labels, ep.beta)
        assert len(found) == len(expected)
        for phase, states in zip(found, expected, strict=True):
            for a, b in zip(phase, states, strict=True):
                assert torch.equal(a, b)


learnings = st.fixed_dictionaries(
    {
        "sign": st.sampled_from(["positive", "random", "centered"]),
        "nudge": st.sampled_from(["live", "constant"]),
        "beta": st.sampled_from([2.0, 1.0, 0.7, -1.5]),
        "margin": st.sampled_from([0.0, 0.3]),
        "learn_scale": st.booleans(),
        "bias": st.booleans(),
        "noise": st.sampled_from([0.0, 2.0]),
        "early_stop": st.booleans(),
        "kind": st.sampled_from(["pixels", "pixels", "bits", "real"]),
    }
)
relaxed = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@relaxed
@given(
    seed=st.integers(0, 10**6),
    batch=st.sampled_from(BATCHES),
    below=st.sampled_from(WIDTHS),
    dense=st.lists(st.sampled_from(WIDTHS), max_size=2),
    learning=learnings,
)
def test_dense_networks_of_any_width(seed, batch, below, dense, learning):
    assert_parity(batch, 3, seed, (below,), [], dense, **learning)


conv_layers = st.fixed_dictionaries(
    {
        "above": st.sampled_from([1, 3, 33, 64, 65]),
        "kernel": st.integers(1, 4),
        "padding": st.integers(0, 2),
        "pool": st.integers(1, 3),
    }
)


@relaxed
@given(
    seed=st.integers(0, 10**6),
    batch=st.sampled_from([1, 3, 16]),
    channels=st.integers(1, 3),
    side=st.integers(7, 11),
    convs=st.lists(conv_layers, min_size=1, max_size=2),
    dense=st.lists(st.sampled_from([17, 65]), max_size=1),
    learning=learnings,
)
def test_conv_networks_of_any_shape(seed, batch, channels, side, convs, dense, learning):
    shape = (channels, side, side + 1)
    try:
        build(seed, shape, convs, dense)
    except BinepError:
        return  # the layers do not fit into each other
    assert_parity(batch, 2, seed, shape, convs, dense, **learning)


CONVS = [
    {"above": 9, "kernel": 3, "padding": 1, "pool": 2},
    {"above": 70, "kernel": 3, "padding": 1, "pool": 3},
]


@pytest.mark.parametrize("convs", [[], CONVS], ids=["dense", "conv"])
@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.3, "sigma": 0.2},
        {"threshold": 0.5, "sigma": 0.25},
        {"threshold": 0.7, "sigma": 3.0},
        {"threshold": -0.1},
        {"threshold": 1.5},
        {"dt": 0.3},
        {"dt": 1.0},
        {"initial_state": 0.0},
        {"initial_state": -0.5},
        {"initial_state": 0.5},
        {"margin": 0.1},
        {"margin": 0.4, "initial_state": 0.0},
        {"free_steps": 1, "nudged_steps": 1},
        {"free_steps": 90, "nudged_steps": 60},
    ],
    ids=str,
)
def test_every_dynamics(options, convs):
    shape, dense = ((1, 8, 9), [40]) if convs else ((30,), [130, 40])
    for sign, nudge in (("centered", "live"), ("random", "constant")):
        chosen = {"sign": sign, "nudge": nudge, **options}
        assert_same_states(7, 3, shape, convs, dense, **chosen)
    assert_parity(7, 2, 3, shape, convs, dense, **options)


@pytest.mark.parametrize("convs", [[], CONVS], ids=["dense", "conv"])
@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.3])
def test_a_mini_batch_ends_when_all_of_it_has_settled(tolerance, convs):
    shape, dense = ((1, 8, 9), []) if convs else ((30,), [130])
    options = {"tolerance": tolerance, "free_steps": 40, "nudged_steps": 30, "sign": "centered"}
    assert_same_states(9, 11, shape, convs, dense, **options)
    assert_parity(9, 3, 11, shape, convs, dense, **options)


@pytest.mark.parametrize("convs", [[], CONVS], ids=["dense", "conv"])
def test_fifty_mini_batches(convs):
    shape, dense = ((1, 8, 9), [64]) if convs else ((30,), [130, 65])
    assert assert_parity(16, 50, 4, shape, convs, dense, learn_scale=True) > 500


def test_momentum_folds_and_thresholds_fall():
    """Decays that shrink below 1/2 soon, thresholds that untouched momenta then exceed."""
    args = (9, (30,), [], [90])
    options = {"rates": {"gamma": 0.2, "tau": 3e-2}, "noise": 0.3}
    reference, packed = build(*args, **options), build(*args, **options)
    slow, fast = ReferenceEngine(*reference), PackedEngine(*packed)
    taus = [3e-2, 3e-2, 6e-2, 6e-2, 1e-2, 1e-2, 1e-3, 0.0, 1e-2, 0.0]
    flips = []
    for tau, (x, labels) in zip(taus, batches(reference[0], 8, len(taus)), strict=True):
        for engine, (_, _, optimizers) in ((slow, reference), (fast, packed)):
            optimizers.set_rates({"tau": [tau, tau], "gamma": [0.2 + tau, 0.3]})
            engine.train(x, labels)
        flips.append(slow.collect().flips)
        assert fast.collect().flips == flips[-1]
        assert_same(reference, packed)
    assert sum(flips[4]) > sum(flips[3])


def test_what_someone_else_changes_is_seen():
    """Signs, momenta, scales and biases changed between mini-batches, as by a checkpoint."""
    args = (2, (30,), [], [70])
    reference, packed = build(*args), build(*args)
    slow, fast = ReferenceEngine(*reference), PackedEngine(*packed)
    for n, (x, labels) in enumerate(batches(reference[0], 8, 6)):
        for engine, (net, _, optimizers) in ((slow, reference), (fast, packed)):
            with torch.no_grad():
                if n == 2:
                    net.couplings[0].signs.neg_()
                    net.couplings[1].scale.mul_(1.5)
                if n == 3:
                    momenta(optimizers)[1]["momentum"].mul_(50)
                if n == 4:
                    state = momenta(optimizers)[0]
                    state.update(momentum=state["momentum"].flip(0) * 9, decay=0.7)
            engine.train(x, labels)
        assert fast.collect() == slow.collect()
        assert_same(reference, packed)


@pytest.mark.parametrize("resumed", ["reference", "packed"])
def test_a_run_resumes_bit_for_bit(tmp_path, resumed):
    """A checkpoint of the packed engine, taken amid an epoch, goes on under either engine."""
    recipe = small_recipe("digits-conv-wa", "training.batch_size=64")
    dataset, cpu = load("digits"), torch.device("cpu")

    def trainer(engine: type) -> Any:
        made = build_trainer(recipe, dataset, 0, cpu)
        network, optimizers = made.network, made.optimizers
        learning = recipe.build_learning(made.streams["sign"])
        made.engine = engine(network, learning, optimizers)
        return made

    whole = trainer(ReferenceEngine)
    whole.epoch()
    part, count = trainer(PackedEngine), itertools.count(1)
    assert part.epoch(lambda: next(count) < 9) is None
    checkpoints.save(tmp_path, part)
    rest = trainer(PackedEngine if resumed == "packed" else ReferenceEngine)
    found = checkpoints.load(tmp_path, warn=pytest.fail)
    assert found is not None
    checkpoints.restore(rest, *found)
    rest.epoch()
    for a, b in zip(whole.network.parameters(), rest.network.parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(momenta(whole.optimizers), momenta(rest.optimizers), strict=True):
        assert torch.equal(a["momentum"], b["momentum"])
        assert (a["decay"], a["flips"]) == (b["decay"], b["flips"])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_parity(3, 2, 8, (1, 8, 9), CONVS, [130])
    finally:
        torch.set_num_threads(before)


def test_quiet_stretches_are_taken_at_once():
    args, options = (3, (30,), [], [130]), {"free_steps": 200, "nudged_steps": 100}
    taken = {}
    for early_stop in (True, False):
        built = build(*args, **options)
        engine = PackedEngine(*built, early_stop=early_stop)
        for x, labels in batches(built[0], 8, 1):
            engine.train(x, labels)
        taken[early_stop] = engine.activity
    assert taken[False].steps == 8 * 300
    assert taken[True].steps < 8 * 60
    assert taken[True].events == taken[False].events > 0


def test_what_it_does_not_compute_is_refused_by_name():
    net, ep, optimizers = build(0, (8,), [], [16])
    real = Network((8,), [Dense(8, 15)], HardSigmoid(), classes=15)
    with pytest.raises(BinepError, match="does not run HardSigmoid"):
        PackedEngine(real, ep, assign_optimizers(real, **RATES))
    with pytest.raises(BinepError, match="float32"):
        PackedEngine(net.double(), ep, optimizers)


def test_kernels_are_compiled_once():
    """Where one process has compiled them, the next finds them and says nothing."""
    program = (
        "import torch; from binep import *; from binep.engines.numba.packed import PackedEngine\n"
        "net = Network((4,), [Dense(4, 3)], Heaviside(), 'energy', classes=3)\n"
        "engine = PackedEngine(net, EquilibriumPropagation(2, 2, 1.0),"
        " assign_optimizers(net, gamma=1e-2, tau=1e-4, lr_bias=1e-3))\n"
        "engine.evaluate(torch.zeros(1, 4, dtype=torch.uint8), torch.tensor([0]))\n"
    )
    assert_compiled_once(program)


def test_training_starts_without_importing_the_compiler_of_torch():
    """That takes a second, and several calls in torch do so in passing."""
    program = (
        "import sys, torch; from binep import recipe; from binep.data import load\n"
        "from binep.training.runs import build_trainer\n"
        "for name in ('digits-1fc-wa', 'digits-conv-wa'):\n"
        "    chosen = recipe.load(name, ['network.learn_scale=true', 'optimizer.lr_scale=1e-6'])\n"
        "    made = build_trainer(chosen, load('digits'), 0, torch.device('cpu'), 'packed')\n"
        "    made.epoch(lambda: False)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
