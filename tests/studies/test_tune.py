"""Tuning by pi: each coupling on its own, from far away, on validation images only."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from binep.core import metrics
from binep.data import Dataset, load
from binep.errors import BinepError
from binep.report.figures import MINUS
from binep.studies import tune
from binep.studies.compare import held_out
from binep.studies.tune import (
    AIMS,
    BAND,
    CLOSE,
    Rates,
    Tuned,
    Tuner,
    combinations,
    render,
    write_recipe,
)
from binep.studies.workbench import Workbench
from binep.training import recipe as recipes
from binep.training import runs

CPU = torch.device("cpu")
QUICK = ["network.dense=[128]", "learning.free_steps=15", "training.batch_size=32"]


def misplaced(gamma: float, tau: float) -> recipes.Recipe:
    recipe = recipes.load("digits-1fc-w", QUICK)
    rates = Rates.of(recipe)
    moved = Rates([g * gamma for g in rates.gamma], [t * tau for t in rates.tau])
    return moved.put_into(recipe)


def on_cpu(recipe: recipes.Recipe) -> Workbench:
    return Workbench.of(recipe, device="cpu")


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return tune.tune(on_cpu(misplaced(1, 30)), epochs=2)


@pytest.mark.parametrize(("asked", "taken"), [(20, 20), (1000, 36)])
def test_a_probe_extrapolates_its_busier_half_to_an_epoch(asked: int, taken: int):
    """Also one of a whole epoch, whose last mini-batch is smaller than others."""
    recipe = held_out(misplaced(1, 1))
    data = recipe.hold_out(load("digits"))
    tuner = Tuner(Workbench(recipe, data, 3, CPU, "auto", print), asked)
    pi = tuner.probe(Rates.of(recipe), -2.5)

    trainer, flips = runs.build_trainer(recipe, data, 3, CPU), []

    def keep_going() -> bool:
        trainer.collect()
        flips.append(trainer.progress.tally.flips)
        return len(flips) < taken

    trainer.epoch(keep_going)
    half = taken // 2
    first, both = flips[half - 1], flips[taken - 1]
    halves = first, [b - a for a, b in zip(first, both, strict=True)]
    sizes = [64 * 128, 128 * 10]
    for n, size in enumerate(sizes):
        busiest = max(flipped[n] for flipped in halves)
        assert pi[n] == metrics.pi(round(busiest * trainer.batches / half), size)
        assert pi[n] > metrics.pi(both[n], size)
    (trial,) = tuner.trials
    assert trial.pi == pi and math.isnan(trial.validation_error)


def test_of_equally_good_rates_the_calmest_then_those_that_remember_longest_are_taken(monkeypatch):
    """On 287 images, errors of 5.0 and 5.2 % differ by chance, 5.0 and 9.0 % do not."""
    recipe = held_out(misplaced(1, 1))
    data = recipe.hold_out(load("digits"))
    tuner = Tuner(Workbench(recipe, data, 0, CPU, "auto", print))
    # (Validation error, pi) by tau; validation error by gamma.
    by_tau = {1.0: (5.0, -1.0), 2.0: (5.2, -3.0), 3.0: (9.0, -4.0)}
    by_gamma = {0.01: 5.0, 0.001: 5.2, 0.0001: 9.0, 0.1: 5.1}

    def train_epoch(rates, trainer, epoch):
        error, pi = by_tau[rates.tau[0]]
        return tune.Trial("trained", rates.gamma, rates.tau, [pi], 0.0, error)

    def train(rates, epochs):
        error = by_gamma[rates.gamma[0]]
        return tune.Trial("trained", rates.gamma, rates.tau, [-3.0], 0.0, error)

    monkeypatch.setattr(tuner, "_train_epoch", train_epoch)
    monkeypatch.setattr(tuner, "_trainer", lambda rates: None)
    monkeypatch.setattr(tuner, "_train", train)
    calmest = tuner.compare([Rates([0.01], [tau]) for tau in by_tau], epochs=1)
    assert calmest == Rates([0.01], [2.0])
    assert tuner.best_memory(calmest, epochs=1) == Rates([0.001], [0.2])
    # However little worse than where it began, it is not recommended; as good as that, it is.
    start, worse, as_good = (Rates([gamma], [1.0]) for gamma in (0.01, 0.1, 0.01))
    assert tuner.better(start, worse, epochs=1) == start
    assert tuner.better(worse, start, epochs=1) == start
    assert tuner.better(start, as_good, epochs=1) == as_good


def test_couplings_come_into_the_band_and_learn_again(tuned: Tuned):
    probes = [trial for trial in tuned.trials if math.isnan(trial.validation_error)]
    trained = [trial for trial in tuned.trials if not math.isnan(trial.validation_error)]
    assert min(probes[0].pi) < BAND[0]
    near = [max(abs(pi - AIMS[0]) for pi in trial.pi) for trial in probes]
    assert min(near) <= CLOSE
    found, wrong = Rates.of(tuned.recipe), trained[0]
    chosen = [t for t in trained if Rates(t.gamma, t.tau) == found][-1]
    assert chosen.what == "trained for 2 epochs" and not tuned.start
    begun = [t for t in trained if Rates(t.gamma, t.tau) == Rates.of(misplaced(1, 30))][-1]
    assert begun.what == chosen.what and begun.validation_error >= chosen.validation_error
    assert chosen.validation_error < 20 and wrong.validation_error > 40
    assert wrong.tau == Rates.of(misplaced(1, 30)).tau


def test_the_start_does_not_matter(tuned: Tuned):
    """From the other side the same thresholds tau / gamma are found, but for a factor."""
    other = tune.tune(on_cpu(misplaced(1 / 30, 1 / 900)), epochs=1)
    found = [Rates.of(each.recipe) for each in (tuned, other)]
    first, second = ([t / g for g, t in zip(r.gamma, r.tau, strict=True)] for r in found)
    for one, two in zip(first, second, strict=True):
        assert 1 / 12 < one / two < 12


def test_no_test_image_is_looked_at(monkeypatch):
    whole = load("digits")
    test = replace(whole.test, images=whole.test.images[:0], labels=whole.test.labels[:0])
    blind = replace(whole, test=test)
    monkeypatch.setattr(recipes.Recipe, "load_data", lambda self, **options: blind)
    seen: list[Dataset] = []
    build = runs.build_trainer

    def watched(recipe, dataset, *rest):
        seen.append(dataset)
        return build(recipe, dataset, *rest)

    monkeypatch.setattr(tune.runs, "build_trainer", watched)
    tune.tune(on_cpu(misplaced(1, 1)), batches=6, epochs=1)
    assert seen and all(len(data.test) == 287 for data in seen)
    assert all(torch.equal(d.test.images, whole.train.images[-287:]) for d in seen)


def test_the_recipe_found_is_written_and_can_be_loaded(tuned: Tuned, tmp_path: Path):
    path = tmp_path / "deep" / "mine.toml"
    write_recipe(tuned.recipe, path)
    found = recipes.load(path)
    assert found == tuned.recipe and found.name == "digits-1fc-w-tuned"
    # The whole training set again: the validation images were for tuning.
    assert found.data.validation == 0 and found.paper.test is None
    assert found.network == misplaced(1, 30).network


def test_everything_that_was_tried_is_shown(tuned: Tuned):
    lines = render(tuned).splitlines()
    assert len(lines) == 2 + len(tuned.trials) + 3
    first = f"probe, pi near {MINUS}2.5"
    assert "found: gamma = " in lines[-1] and "last 287 training images" in lines[-2]
    assert "trained for 2 epochs" in lines[-4] and lines[2].startswith(first)
    assert tune.line(tuned.trials[0]).startswith(f"{first}: gamma 0.001 0.0001, tau")


@given(
    st.floats(-20, 0), st.floats(0.3, 4.0), st.floats(-8, 8), st.sampled_from([-1.5, -2.5, -4.5])
)
def test_a_bracket_closes_in_on_any_falling_pi(at: float, slope: float, off: float, aim: float):
    """pi falls linearly in ln tau, to -9 at the least, steeper or less steep than expected."""
    bracket, tau = tune._Bracket(), math.exp(at + off)

    def pi() -> float:
        return max(aim - slope * (math.log(tau) - at), -9.0)

    for _ in range(25):
        factor = bracket.factor(tau, pi(), aim)
        assert 1 / 10.001 <= factor <= 10.001
        tau *= factor
    assert abs(pi() - aim) <= CLOSE


def test_no_coupling_is_busier_than_those_above_it():
    gamma = [1.0, 1.0, 1.0]
    found = {-1.5: Rates(gamma, [1e-3] * 3), -3.5: Rates(gamma, [1e-1, 1e-1, 1e-2])}
    assert [rates.tau for rates in combinations(found)] == [
        [1e-1, 1e-1, 1e-2],
        [1e-1, 1e-2, 1e-3],
        [1e-3, 1e-3, 1e-3],
    ]


def test_memory_is_lengthened_with_the_threshold_kept():
    rates = Rates([1e-3, 1e-4], [5e-5, 0.0])
    longer = rates.remembering(10)
    assert longer == Rates([1e-4, 1e-5], [5e-6, 0.0])


def test_a_tau_of_0_can_be_moved_too():
    recipe = recipes.load("digits-1fc-w", ["optimizer.tau=0"])
    assert all(tau > 0 for tau in Rates.of(recipe).tau)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist-1fc512-fp", {}, "mnist-1fc512-fp has real weights"),
        ("digits-1fc-w", {"batches": 1}, "batches=1"),
        ("digits-1fc-w", {"epochs": 0}, "epochs=0"),
    ],
)
def test_mistakes_are_told(name: str, options: dict, message: str):
    with pytest.raises(BinepError, match=message):
        bench = Workbench(recipes.load(name), load("digits"), 0, CPU, "auto", print)
        tune.tune(bench, **options)
