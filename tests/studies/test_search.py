"""Search by Optuna: begun by the rule of pi, shared by processes, gone on with."""

import subprocess
import sys
from pathlib import Path

import pytest

from binep import BinepError
from binep.studies.search import search
from binep.studies.tune import rates_by_pi
from binep.studies.workbench import Workbench
from conftest import small_recipe

pytest.importorskip("optuna", reason="pip install 'binep[tune]'")

RECIPE = ("digits-1fc-w", "training.batch_size=100")
OPTIONS = {"batches": 8, "epochs": 2}

PROGRAM = f"""
import sys
from conftest import small_recipe
from binep.studies.search import search
from binep.studies.workbench import Workbench
bench = Workbench.of(small_recipe(*{RECIPE!r}), device="cpu", engine="reference")
found = search(bench, trials=7, storage=sys.argv[1], **{OPTIONS!r})
print(len(found.trials))
"""


def test_the_first_trial_has_the_rates_of_the_rule_and_others_are_near(tmp_path):
    recipe, told = small_recipe(*RECIPE), []
    bench = Workbench.of(recipe, device="cpu", engine="reference")
    found = search(bench, trials=3, storage=tmp_path / "study", watch=told.append, **OPTIONS)
    rule = rates_by_pi(bench, batches=8)
    first, *others = found.trials
    assert first.gamma == pytest.approx(rule.gamma, rel=0.05)
    assert first.tau == pytest.approx(rule.tau, rel=0.05)
    for trial in others:
        assert all(0.095 < g / r < 10.5 for g, r in zip(trial.gamma, rule.gamma, strict=True))
    best = min(found.trials, key=lambda trial: trial.validation_error)
    assert found.recipe.optimizer.gamma == pytest.approx(best.gamma, rel=0.05)
    assert found.recipe.optimizer.tau == pytest.approx(best.tau, rel=0.05)
    assert found.recipe.data.validation == recipe.data.validation == 0
    assert told[-1] == found.trials[-1]
    # Asked again, only what is missing is trained.
    again = search(bench, trials=4, storage=tmp_path / "study", **OPTIONS)
    assert [trial.what for trial in again.trials[:3]] == [trial.what for trial in found.trials]
    assert len(again.trials) == 4


def test_a_study_whose_beginner_was_killed_is_begun_again(tmp_path, monkeypatch):
    import optuna
    from optuna.storages.journal import JournalFileBackend

    bench = Workbench.of(small_recipe(*RECIPE), device="cpu", engine="reference")
    whole = search(bench, trials=1, storage=tmp_path / "whole", **OPTIONS)
    journals = [
        optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / name)))
        for name in ("whole", "begun")
    ]
    (name,) = optuna.get_all_study_names(journals[0])
    optuna.create_study(storage=journals[1], study_name=name)
    monkeypatch.setattr("binep.studies.search.PATIENCE", 0.1)
    again = search(bench, trials=1, storage=tmp_path / "begun", **OPTIONS)
    assert [trial.gamma for trial in again.trials] == [trial.gamma for trial in whole.trials]


def test_two_processes_search_in_one_journal(tmp_path):
    here = Path(__file__).parents[1]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "study")],
            cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in running:
        said, wrong = process.communicate(timeout=300)
        assert process.returncode == 0, wrong
        # Each may have one under way when the other finishes the last.
        assert int(said.splitlines()[-1]) in (7, 8)
    import optuna
    from optuna.storages.journal import JournalFileBackend

    journal = JournalFileBackend(str(tmp_path / "study"))
    kept = optuna.storages.JournalStorage(journal)
    (name,) = optuna.get_all_study_names(kept)
    trials = optuna.load_study(study_name=name, storage=kept).trials
    assert len({tuple(trial.params.values()) for trial in trials}) == len(trials)


def test_what_cannot_be_searched_is_told(tmp_path):
    bench = Workbench.of(small_recipe(*RECIPE), device="cpu", engine="reference")
    with pytest.raises(BinepError, match="trials=0"):
        search(bench, trials=0, storage=tmp_path / "study")
    with pytest.raises(BinepError, match="--storage nonsense://"):
        search(bench, trials=1, storage="nonsense://", **OPTIONS)
