"""The rules, written once a language, are torch's on the same numbers: ties and thresholds too."""

from itertools import product

import numpy as np
import pytest
from languages import LANGUAGES, REFERENCE, STATE_BITS, missing

from binep import HardSigmoid, Heaviside
from binep.core.dynamics import EnergyBased, Hopfield, Prototypical

NEURONS = [HardSigmoid(), Heaviside(), Heaviside(0.5, 0.25), Heaviside(0.4, 0.3)]
SYSTEMS = [
    (HardSigmoid(), Prototypical(True)),
    (HardSigmoid(), Prototypical(False)),
    *((neuron, EnergyBased(0.5)) for neuron in NEURONS),
    (Heaviside(0.4, 0.3), EnergyBased(0.3)),
    (Heaviside(), Hopfield()),
]


def who(rule: str, *, nudged: bool = False) -> list:
    """The languages that have a rule; with the systems that they run, of a step."""
    found = []
    for name, rules in LANGUAGES.items():
        reason = missing(name)
        marks = pytest.mark.skipif(reason is not None, reason=str(reason))
        if rule == "step" and (hasattr(rules, "nudge") or not nudged):
            for system in SYSTEMS:
                if rules.runs(*system):
                    ident = f"{name}, {system[0]}, {system[1]}"
                    found.append(pytest.param(rules, *system, id=ident, marks=marks))
        elif rule != "step" and hasattr(rules, rule):
            found.append(pytest.param(rules, id=name, marks=marks))
    return found


def around(*values: float) -> np.ndarray:
    """Numbers, and the float32 just below and just above each of them."""
    exact = np.array(values, np.float32)
    low, high = (np.nextafter(exact, np.float32(to)) for to in (-np.inf, np.inf))
    return np.concatenate([exact, low, high])


def states(neuron) -> np.ndarray:
    """In [0, 1], with both zeros, the threshold, the window's edges, and their neighbours."""
    threshold, sigma = getattr(neuron, "threshold", 0.5), getattr(neuron, "sigma", 0.5)
    edges = around(threshold, threshold - sigma, threshold + sigma, 0, 1, 0.25, 0.7)
    return np.append(edges[(edges >= 0) & (edges <= 1)], np.float32(-0.0))


DRIVES = np.append(around(0.5, 0, 1, -1, 2, 0.3, -0.5, 3e4), np.float32(-0.0))
PULLS = np.append(around(0, 0.5, -0.5, 1e-3, -2), np.float32(-0.0))


def every(*values: np.ndarray) -> list[np.ndarray]:
    """All combinations of some numbers, each as one array."""
    return [grid.reshape(-1).copy() for grid in np.meshgrid(*values, indexing="ij")]


@pytest.mark.parametrize("neuron", NEURONS, ids=repr)
@pytest.mark.parametrize("rules", who("send"))
def test_what_a_neuron_sends(rules, neuron):
    s = np.concatenate([states(neuron), around(-0.5, 1.5)])
    found = rules.send(neuron, s)
    assert len(np.unique(found)) > 1
    np.testing.assert_array_equal(found, REFERENCE.send(neuron, s))


@pytest.mark.parametrize(("rules", "neuron", "dynamics"), who("step"))
def test_a_free_step(rules, neuron, dynamics):
    s, drive = every(states(neuron), DRIVES)
    expected = REFERENCE.step(neuron, dynamics, s, drive, None)
    np.testing.assert_array_equal(rules.step(neuron, dynamics, s, drive, None), expected)


@pytest.mark.parametrize(("rules", "neuron", "dynamics"), who("step", nudged=True))
def test_a_nudged_step(rules, neuron, dynamics):
    s, drive, pull = every(states(neuron), DRIVES, PULLS)
    expected = REFERENCE.step(neuron, dynamics, s, drive, pull)
    np.testing.assert_array_equal(rules.step(neuron, dynamics, s, drive, pull), expected)


@pytest.mark.parametrize("beta", [0.1, -0.1, 2.0])
@pytest.mark.parametrize("rules", who("nudge"))
def test_the_nudge(rules, beta: float):
    target, s = every(np.array([0, 1], np.float32), around(0, 0.5, 1, -0.25, 1.5, 0.3))
    expected = REFERENCE.nudge(beta, target, s)
    np.testing.assert_array_equal(rules.nudge(beta, target, s), expected)


@pytest.mark.parametrize("beta", [0.1, -0.1, 2.0])
@pytest.mark.parametrize("rules", who("nudge_bit"))
def test_the_nudge_of_a_bit_alone(rules, beta: float):
    """It does not follow the state; targets may be softened."""
    target = around(0, 1, 0.5, 0.3)
    expected = REFERENCE.nudge_bit(beta, target)
    assert len(np.unique(expected)) > 3
    np.testing.assert_array_equal(rules.nudge_bit(beta, target), expected)


@pytest.mark.parametrize("rules", who("handicap"))
def test_what_a_margin_drives_outputs_by(rules):
    target = around(0, 1, 0.5, 0.3)
    expected = REFERENCE.handicap(0.1, target)
    np.testing.assert_array_equal(rules.handicap(0.1, target), expected)


@pytest.mark.parametrize("tau", [0.0, 0.25, 1e-7])
@pytest.mark.parametrize("rules", who("flip"))
def test_a_flip(rules, tau: float):
    """Above tau and of the weight's sign; exactly at tau not."""
    m = np.append(around(tau, -tau, 2 * tau, -2 * tau, 0), np.float32(-0.0))
    w, m = every(np.array([-1, 1], np.float32), m)
    expected = REFERENCE.flip(w, m, tau)
    assert not expected[np.abs(m) == np.float32(tau)].any() and expected.any()
    np.testing.assert_array_equal(rules.flip(w, m, tau), expected)


@pytest.mark.parametrize("rules", who("winner"))
def test_of_equals_the_first_wins_a_pool(rules):
    pools = np.array(list(product([-1, -0.0, 0.0, 2], repeat=4)), np.float32)
    np.testing.assert_array_equal(rules.winner(pools), REFERENCE.winner(pools))


# --- integers -----------------------------------------------------------------------------------

ONE = 1 << STATE_BITS


@pytest.mark.parametrize("rules", who("whole_step"))
def test_a_step_in_integers_is_torchs_rounded_down(rules):
    """Every state, drives from below -1 to above 2, with parts of a unit, and nudges."""
    below = np.array([-1, 0, 1]) + np.arange(-3 * ONE, 4 * ONE)[:, None] * (1 << 40 - STATE_BITS)
    pull = np.array([-3 * ONE, -1, 0, 1, ONE, 3 * ONE])
    s, drive, pull = every(np.arange(ONE + 1), below.reshape(-1), pull)
    floor = drive >> (40 - STATE_BITS)
    exact = REFERENCE.step(Heaviside(), EnergyBased(0.5), s / ONE, floor / ONE, pull / ONE)
    np.testing.assert_array_equal(rules.whole_step(s, drive, pull), np.floor(exact * ONE))


@pytest.mark.parametrize("rules", who("whole_nudge"))
@pytest.mark.parametrize("beta", [0.1, -0.1, 2.0])
def test_a_nudge_in_integers_is_torchs_rounded_down(rules, beta: float):
    target, s = every(np.array([0, ONE]), np.arange(ONE + 1))
    units = round(beta * 2**16)
    exact = REFERENCE.nudge(units / 2**16, target / ONE, s / ONE)
    np.testing.assert_array_equal(rules.whole_nudge(units, target, s), np.floor(exact * ONE))


@pytest.mark.parametrize("rules", who("whole_handicap"))
@pytest.mark.parametrize("margin", [0.1, 0.5, 3.0])
def test_a_margin_in_integers_is_torchs_rounded_down(rules, margin: float):
    target, units = np.array([0, ONE]), round(margin * 2**16)
    exact = REFERENCE.handicap(units / 2**16, target / ONE)
    np.testing.assert_array_equal(rules.whole_handicap(units, target), np.floor(exact * ONE))


@pytest.mark.parametrize("rules", who("whole_flip"))
@pytest.mark.parametrize("tau", [0, 1, 6])
def test_a_flip_in_integers(rules, tau: int):
    w, m = every(np.array([-1, 1]), np.arange(-9, 10))
    expected = REFERENCE.flip(w.astype(np.float32), m.astype(np.float32), tau)
    np.testing.assert_array_equal(rules.whole_flip(w, m, tau), expected)


@pytest.mark.parametrize("rules", who("whole_momentum"))
def test_a_momentum_saturates(rules):
    m, gradient = every(np.arange(-7, 8), np.arange(-20, 21))
    expected = np.minimum(np.maximum(m + gradient, -7), 7)
    np.testing.assert_array_equal(rules.whole_momentum(m, gradient, 7), expected)
