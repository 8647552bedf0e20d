"""What only the engines of the CPU do: skip what is quiet, end phases, refuse, compile once."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from cases import Case, build
from test_parity import assert_bits_agree

from binep import BinepError, Homeostasis
from binep.engines.base import CountsActivity
from conftest import assert_compiled_once

pytest.importorskip("numba")

CONVS = (
    {"above": 9, "kernel": 3, "padding": 1, "pool": 2},
    {"above": 33, "kernel": 3, "padding": 1, "pool": 3},
)
CONV = ({"above": 9, "kernel": 3, "padding": 1, "pool": 2},)
RATES = {"gamma": 1e-2, "tau": 1e-4, "lr_bias": 1e-3}
BITS = Case(3, (30,), dense=(130,), per_class=5)
REAL = replace(BITS, bits=False, per_class=2, norm=0.35)
IN_TURN = {"updates": "alternating"}
ALONE = replace(BITS, threshold=0.1, options={"dynamics": "hopfield"}, learning={"beta": 1.0})


# --- packed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BITS, ALONE], ids=["energy", "hopfield"])
@pytest.mark.parametrize("convs", [(), CONVS], ids=["dense", "conv"])
def test_many_mini_batches_keep_their_bits(convs: tuple, kind: Case):
    shape, dense = ((1, 8, 9), (64,)) if convs else ((30,), (130, 65))
    case = replace(kind, input_shape=shape, convs=convs, dense=dense, learn_scale=True)
    case = replace(case, rates={"lr_scale": 1e-5, "lr_bias": 1e-3}, sizes=(8,) * 30)
    assert assert_bits_agree(case, "packed") > 100


@pytest.mark.parametrize("kind", [BITS, ALONE], ids=["energy", "hopfield"])
@pytest.mark.parametrize("convs", [(), CONVS], ids=["dense", "conv"])
def test_feedback_differs_from_coupling_to_coupling(convs: tuple, kind: Case):
    shape, dense, feedback = (30,), (130, 65), [1.0, 0.25, 2.0]
    if convs:
        shape, dense, feedback = (1, 8, 9), (64,), [1.0, 0.25, 0.5, 2.0]
    case = replace(kind, input_shape=shape, convs=convs, dense=dense, learn_scale=True)
    case = replace(case, options={**kind.options, "feedback": feedback}, sizes=(8,) * 10)
    assert assert_bits_agree(replace(case, rates={"lr_scale": 1e-5}), "packed") > 20


@pytest.mark.parametrize("kind", [BITS, ALONE], ids=["energy", "hopfield"])
@pytest.mark.parametrize("convs", [(), CONVS], ids=["dense", "conv"])
def test_biases_follow_activity(convs: tuple, kind: Case):
    shape, dense = ((1, 8, 9), (64,)) if convs else ((30,), (130, 65))
    follow = {"homeostasis": Homeostasis(1e-2, 0.2), "sign": "centered"}
    case = replace(kind, input_shape=shape, convs=convs, dense=dense, sizes=(8,) * 10)
    case = replace(case, learning={**kind.learning, **follow}, rates={"lr_bias": 1e-3})
    assert assert_bits_agree(case, "packed") > 0


def test_momentum_folds_and_thresholds_fall():
    """Decays that shrink below 1/2 soon, thresholds that untouched momenta then exceed."""
    taus = [3e-2, 3e-2, 6e-2, 6e-2, 1e-2, 1e-2, 1e-3, 0.0, 1e-2, 0.0]
    case = replace(
        BITS, dense=(90,), rates={"gamma": 0.2, "tau": 3e-2}, noise=0.3, sizes=(8,) * len(taus)
    )
    pair = build(case, "reference"), build(case, "packed")
    flips = []
    for tau, (x, labels) in zip(taus, case.batches(), strict=True):
        for each in pair:
            each.optimizers.set_rates({"tau": [tau, tau], "gamma": [0.2 + tau, 0.3]})
            each.engine.train(x, labels)
        flips.append(pair[0].engine.collect().flips)
        assert pair[1].engine.collect().flips == flips[-1]
        for a, b in zip(*(each.momenta() for each in pair), strict=True):
            assert torch.equal(a["momentum"], b["momentum"]) and a["decay"] == b["decay"]
    assert sum(flips[4]) > sum(flips[3])


# --- both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("convs", [(), CONV], ids=["dense", "conv"])
@pytest.mark.parametrize(
    ("engine", "case", "part"),
    [
        ("packed", BITS, 0.2),
        ("packed", ALONE, 0.2),
        ("delta", REAL, 0.6),
        ("delta", replace(REAL, dense=(60, 40)), 0.6),
        ("delta", replace(REAL, options=IN_TURN), 0.4),
        ("delta", replace(REAL, options=IN_TURN, dense=(60, 40)), 0.4),
    ],
)
def test_steps_that_change_nothing_are_not_taken(
    engine: str, case: Case, part: float, convs: tuple
):
    shape = (1, 8, 9) if convs else (30,)
    steps = {"free_steps": 201, "nudged_steps": 9}
    learning = {**case.learning, **steps}
    case = replace(case, input_shape=shape, convs=convs, learning=learning, sizes=(12,))
    one = build(case, engine).engine
    assert isinstance(one, CountsActivity)
    for x, labels in case.batches():
        one.train(x, labels)
    assert one.activity.samples == 12
    assert 0 < one.activity.steps < part * 12 * 210
    assert (one.activity.events > 0) == case.bits


@pytest.mark.parametrize("options", [{}, IN_TURN], ids=["at-once", "in-turn"])
@pytest.mark.parametrize("hidden", [(40,), (60, 40)], ids=["shallow", "deep"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3])
def test_delta_ends_a_mini_batch_when_the_reference_does(
    tolerance: float, hidden: tuple, options: dict
):
    steps = {"tolerance": tolerance, "free_steps": 90, "nudged_steps": 40, "sign": "centered"}
    case = replace(REAL, options=options, dense=hidden, learning=steps, sizes=(9, 9))
    pair = build(case, "reference"), build(case, "delta")
    for x, labels in case.batches():
        for each in pair:
            each.engine.train(x, labels)
        a, b = (each.engine.collect() for each in pair)
        assert (a.free_steps, a.nudged_steps) == (b.free_steps, b.nudged_steps)
        assert a.free_steps < 90


@pytest.mark.parametrize("hidden", [(40,), (60, 40)], ids=["shallow", "deep"])
def test_with_tolerance_zero_a_settled_network_still_ends(hidden: tuple):
    steps = {"tolerance": 0.0, "free_steps": 400}
    case = replace(REAL, dense=hidden, learning=steps, sizes=(9,))
    ((x, labels),) = case.batches()
    found = build(case, "delta").engine.evaluate(x, labels)
    assert found.free_steps < 400 and found.residual == 0


# --- what they refuse ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "case", "words"),
    [
        ("packed", REAL, "HardSigmoid"),
        ("delta", BITS, "Heaviside"),
        ("delta", replace(REAL, binary=False), "RealWeight"),
        ("delta", replace(REAL, options={"dynamics": "energy"}), "EnergyBased"),
        ("delta", replace(REAL, learning={"free_steps": 4, "steps": 2}), "BackpropThroughTime"),
        ("delta", replace(REAL, learning={"margin": 0.1}), "margin"),
        ("delta", replace(REAL, learning={"homeostasis": Homeostasis(0.1, 0.1)}), "homeostasis"),
        (
            "delta",
            replace(
                REAL,
                input_shape=(1, 6, 6),
                convs=(
                    {"above": 4, "kernel": 3},
                    {"above": 4, "kernel": 2, "padding": 2},
                ),
            ),
            "padding below kernel=2",
        ),
    ],
)
def test_what_it_does_not_compute_is_refused_by_name(engine: str, case: Case, words: str):
    with pytest.raises(BinepError, match=words) as caught:
        build(case, engine)
    assert engine in str(caught.value)


@pytest.mark.parametrize(("engine", "case"), [("packed", BITS), ("delta", REAL)])
def test_numbers_of_64_bits_are_refused(engine: str, case: Case):
    with pytest.raises(BinepError, match="float32"):
        build(case, engine, dtype=torch.float64)


@pytest.mark.parametrize(
    ("beta", "nudge", "runs"),
    [(0.3, "live", True), (0.99, "live", False), (-1.0, "live", False), (2.0, "constant", True)],
)
def test_states_that_could_overflow_integers_are_refused(beta: float, nudge: str, runs: bool):
    case = replace(
        REAL,
        dense=(8, 8),
        options={"clamp_nudged": False, "nudged_sends": "state"},
        learning={"beta": beta, "nudge": nudge},
    )
    if runs:
        build(case, "delta")
    else:
        with pytest.raises(BinepError, match="needs a smaller beta"):
            build(case, "delta")


# --- compiling ----------------------------------------------------------------------------------

SMALLEST = {
    "packed": "Network((4,), [Dense(4, 3)], Heaviside(), 'energy', classes=3)",
    "delta": "Network((4,), [Dense(4, 3), Dense(3, 3)], classes=3)",
}


@pytest.mark.parametrize("engine", SMALLEST)
def test_kernels_are_compiled_once(engine: str):
    """Where one process has compiled them, the next finds them and says nothing."""
    program = (
        "import torch; from binep import *; from binep.engines.select import select_engine\n"
        f"net = {SMALLEST[engine]}\n"
        f"engine = select_engine('{engine}', net, EquilibriumPropagation(2, 2, 0.5),"
        " assign_optimizers(net, gamma=1e-2, tau=1e-4, lr_bias=1e-3))\n"
        "engine.evaluate(torch.zeros(1, 4, dtype=torch.uint8), torch.tensor([0]))\n"
    )
    assert_compiled_once(program)


def test_training_starts_without_importing_the_compiler_of_torch():
    """That takes a second, and several calls in torch do so in passing."""
    program = (
        "import sys, torch; from binep.training import recipe; from binep.data import load\n"
        "from binep.training.runs import build_trainer\n"
        "for name in ('digits-1fc-wa', 'digits-conv-wa'):\n"
        "    chosen = recipe.load(name, ['network.learn_scale=true', 'optimizer.lr_scale=1e-6'])\n"
        "    made = build_trainer(chosen, load('digits'), 0, torch.device('cpu'), 'packed')\n"
        "    made.epoch(lambda: False)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
