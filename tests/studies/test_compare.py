"""Choices: made on validation images, kept with their evidence, gone on with where they stopped."""

import itertools
import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from binep.data import load as load_dataset
from binep.errors import BinepError
from binep.report.figures import DASH
from binep.studies import compare as choices
from binep.studies.compare import compare, held_out, make_variants, read_choice, render, standing
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.trials import Outcome
from binep.training.trials.here import Here
from binep.training.trials.local import Local
from conftest import small_recipe


def variants(*changed: str) -> list[choices.Variant]:
    """A small recipe, each time with one key changed, or none."""
    small = {text: small_recipe("digits-1fc-w", *([text] if text else [])) for text in changed}
    return [choices.Variant(text or "base", held_out(small[text]), []) for text in changed]


def test_validation_images_are_the_last_of_the_training_set():
    assert held_out(recipes.load("mnist-1fc-w")).data.validation == 5000
    assert held_out(recipes.load("cifar10-conv-w")).data.validation == 5000
    recipe = held_out(recipes.load("digits-1fc-w"))
    whole = load_dataset("digits")
    data = recipe.hold_out(whole)
    count = recipe.data.validation
    assert len(data.train) + count == len(whole.train) and count == 287
    assert torch.equal(data.test.images, whole.train.images[-count:])


def test_variants_are_labelled_by_what_is_changed():
    found = make_variants("digits-1fc-w", ["learning.beta=0.5; optimizer.tau=1e-5"])
    assert [v.label for v in found] == ["as it is", "learning.beta=0.5; optimizer.tau=1e-5"]
    assert found[1].recipe.learning.beta == 0.5 and found[1].recipe.optimizer.tau == [1e-5] * 2
    assert len(make_variants("digits-1fc-w", ["learning.beta=0.5"], base=False)) == 1


@pytest.mark.parametrize("elsewhere", [Here(at_once=2), Local(at_once=2)])
def test_variants_trained_elsewhere_come_out_as_one_after_the_other(elsewhere):
    both = variants("", "learning.beta=1.0")
    options = {"epochs": 1, "seeds": 2, "device": "cpu", "engine": "reference"}
    beside, after = (
        {
            (variant.label, trial["seed"]): trial["validation_error"]
            for variant in compare("?", both, executor=executor, **options).variants
            for trial in variant.trials
        }
        for executor in (elsewhere, None)
    )
    assert beside == after and len(beside) == 4


def test_a_variant_that_is_stopped_leaves_no_trial(tmp_path: Path):
    class Stopped:
        def run(self, trials):
            yield Outcome(trials[0], None)

    path = tmp_path / "choice.json"
    with pytest.raises(KeyboardInterrupt):
        compare("?", variants(""), epochs=1, to=path, executor=Stopped())
    assert not path.exists()


def test_every_variant_is_trained_with_every_seed_and_the_lowest_named(tmp_path: Path):
    said: list[str] = []
    path = tmp_path / "choices" / "beta.json"
    options = {"epochs": 2, "device": "cpu", "to": path, "say": said.append}
    choice = compare("Which beta?", variants("", "learning.beta=1.0"), seeds=2, **options)
    for variant in choice.variants:
        assert [trial["seed"] for trial in variant.trials] == [0, 1]
        errors = [trial["validation_error"] for trial in variant.trials]
        assert [len(error) for error in errors] == [2, 2]
        assert variant.error(2).mean == pytest.approx(sum(e[1] for e in errors) / 2)
        assert {"torch", "commit", "device_name", "engine", "precision"} <= variant.trials[0].keys()
    means = [variant.error(2).mean for variant in choice.variants]
    assert choice.best is choice.variants[means.index(min(means))]
    lines = render(choice).splitlines()
    assert lines[0] == "Which beta?" and "last 287 training images" in lines[-1]
    (best,) = [line for line in lines if line.endswith("lowest")]
    assert best.startswith(choice.best.label) and f"{min(means):.2f} ± " in best
    assert len(said) == 4

    # What is in the file is not trained again, and what is only there stays.
    again = compare("Which beta?", variants("", "learning.beta=2.0"), seeds=2, **options)
    assert len(said) == 6 and said[-1].startswith("learning.beta=2.0, seed 1")
    assert [v.label for v in again.variants] == ["base", "learning.beta=2.0", "learning.beta=1.0"]
    found = read_choice(path)
    assert [len(v.trials) for v in found.variants] == [2, 2, 2]
    kept, original = (each.variants[0].trials[0] for each in (found, choice))
    assert kept["validation_error"] == pytest.approx(original["validation_error"], rel=1e-4)
    assert kept["pi"][1] == pytest.approx(original["pi"][1], rel=1e-4)
    compare("Which beta?", variants(""), **{**options, "epochs": 3})
    assert len(said) == 7  # longer than what is there: trained anew
    longer, *others = read_choice(path).variants
    assert [len(trial["validation_error"]) for trial in longer.trials] == [3, 2]
    assert [len(v.trials) for v in others] == [2, 2]  # and nothing is lost
    assert longer.error(3).n == 1 and longer.error(2).n == 2


def test_runs_are_taken_for_what_they_have_trained(tmp_path: Path, monkeypatch):
    one, other = variants("", "learning.beta=1.0")
    anew = compare("?", [replace(one, trials=[])], epochs=2, device="cpu").variants[0].trials[0]
    longer = replace(one.recipe, training=replace(one.recipe.training, epochs=3))
    run = runs.train(longer, out=tmp_path / "runs", device="cpu")
    monkeypatch.setattr(runs, "train", None)  # nothing may be trained
    path = tmp_path / "beta.json"
    compare("?", [one], trained=[run], to=path, epochs=2)
    (kept,) = read_choice(path).variants[0].trials
    assert kept.keys() == anew.keys()
    assert kept["validation_error"] == pytest.approx(anew["validation_error"], rel=1e-4)
    assert kept["commit"] == anew["commit"] and kept["engine"] == anew["engine"]
    compare("?", [one], trained=[run], to=path, epochs=2)
    assert len(read_choice(path).variants[0].trials) == 1  # the same seed
    compare("?", [one], trained=[run], to=path, epochs=1)
    assert read_choice(path).variants[0].error(2).n == 1  # the longer one is kept
    with pytest.raises(BinepError, match="has 3 epochs: allowed are at least 4"):
        compare("?", [one], trained=[run], epochs=4)
    with pytest.raises(BinepError, match="of none of the variants.*data.validation=287"):
        compare("?", [other], trained=[run], epochs=2)


def test_what_ships_is_recognised():
    found = make_variants("digits-1fc-w", ["learning.beta=0.5", "learning.beta=0.3"], base=False)
    choice = choices.Choice("beta?", 1, found)
    assert standing(choice) == "The recipe that ships trains as in: learning.beta=0.3."
    assert choice.best is None and DASH in render(choice)


def test_what_ships_otherwise_is_told():
    """A question that was asked before its recipe was changed, or of a recipe of one's own."""
    changed = ["optimizer.tau=0.1; learning.beta=0.5", "learning.beta=0.6; optimizer.tau=0.1"]
    found = make_variants("digits-1fc-w", changed, base=False)
    says = "None of these is exactly the recipe as it ships"
    both = standing(choices.Choice("beta?", 1, found))
    assert both == f"{says}: all of them have optimizer.tau=[0.1, 0.1]."
    mine = [replace(v, recipe=replace(v.recipe, name="mine")) for v in found]
    assert standing(choices.Choice("beta?", 1, mine)) == f"{says}."
    assert standing(choices.Choice("beta?", 1, [found[0], mine[1]])) == f"{says}."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(format="else"), 'allowed is "binep choice 1"'),
        (lambda t: t["variants"][0].pop("trials"), "not what binep choose writes.*trials"),
        (lambda t: t["variants"][0]["recipe"]["data"].update(validation=0), "test images"),
        (lambda t: t["variants"][0]["recipe"]["learning"].update(beta=0), "learning.beta=0"),
    ],
)
def test_damaged_files_are_refused(change, message: str, tmp_path: Path):
    path = tmp_path / "beta.json"
    trial = {"seed": 0, "validation_error": [3.0], "seconds": [1.0]}
    found = [replace(v, trials=[trial]) for v in make_variants("digits-1fc-w", [])]
    choices.write_choice(choices.Choice("beta?", 1, found), path)
    assert read_choice(path).best is not None
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(BinepError, match=message):
        read_choice(path)


def test_mistakes_are_told():
    with pytest.raises(BinepError, match="epochs=0"):
        compare("?", variants(""), epochs=0)
    with pytest.raises(BinepError, match="two variants train the same: 'base' and 'learning.beta"):
        compare("?", variants("", "learning.beta=0.3"), epochs=1)
    with pytest.raises(BinepError, match="data.validation is the same for all"):
        make_variants("digits-1fc-w", ["learning.beta=1; data.validation=100"])


def test_the_projects_questions_can_all_be_asked():
    asked = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "choose.py"))
    for question in asked["QUESTIONS"].values():
        found = make_variants(question.recipe, question.variants, base=False)
        recipes_ = [choices.settings(variant.recipe) for variant in found]
        assert all(a != b for a, b in itertools.combinations(recipes_, 2))
