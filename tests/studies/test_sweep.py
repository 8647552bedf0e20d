"""Sweeps: what a file describes, trained where it is asked, once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from binep import BinepError
from binep.studies.evidence import open_evidence
from binep.studies.sweep import Board, read_sweep, sweep
from binep.training.trials import Options, Outcome, Trial, place

FILE = """
recipe = "digits-1fc-w"
seeds = 2
set = ["network.dense=[12]", "training.epochs=1", "training.batch_size=200"]

[grid]
learning.beta = [0.3, 0.5]
"optimizer.tau" = [1e-5]

[[trial]]
set = ["learning.free_steps=5"]
seeds = [7]
"""


def described(text: str, folder: Path) -> list[Trial]:
    path = folder / "sweep.toml"
    path.write_text(text)
    return read_sweep(path, folder / "runs", Options(device="cpu", engine="reference"))


def test_a_file_describes_a_grid_and_single_trials_seed_by_seed(tmp_path):
    found = described(FILE, tmp_path)
    told = [(t.seed, t.recipe.learning.beta, t.recipe.learning.free_steps) for t in found]
    usual = found[0].recipe.learning.free_steps
    assert told == [
        (0, 0.3, usual), (0, 0.5, usual), (7, 0.3, 5), (1, 0.3, usual), (1, 0.5, usual)
    ]  # fmt: skip
    assert all(trial.recipe.network.dense == [12] for trial in found)
    assert found[0].recipe.optimizer.tau == [1e-5, 1e-5]
    assert len({trial.folder for trial in found}) == 5


@pytest.mark.parametrize(
    "text, reason",
    [
        ("recipe = 'digits-1fc-w'\nsedes = 3", "unknown key sedes: allowed are grid, recipe"),
        ("recipe = 'digits-1fc-w'\nseeds = 0", "seeds=0: allowed is a number of seeds"),
        ("seeds = 3", "no trial is described"),
        ("[grid]\nlearning.beta = [1]", "a grid needs a recipe"),
        ("recipe = 'digits-1fc-w'\n[grid]\nlearning.beta = 1", "allowed is a list of values"),
        ("recipe = 'digits-1fc-w'\n[grid]\nlearning.bta = [1]", "bta"),
        ("recipe = 'digits-1fc-w'\nset = 'a'", "allowed is a list as"),
        ("[[trial]]\nseeds = [1]", "recipe=None: allowed is a name"),
        ("recipe = ", "not valid TOML"),
    ],
)
def test_mistakes_in_a_file_are_told_in_one_line(text, reason, tmp_path):
    with pytest.raises(BinepError) as error:
        described(text, tmp_path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


class Failing:
    """Trains here, but cannot train trials of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.asked = seed, list[Trial]()

    def run(self, trials: list[Trial]) -> Iterator[Outcome]:
        self.asked.extend(trials)
        for trial in trials:
            if trial.seed == self.seed:
                yield Outcome(trial, None, "the disk is full")
            else:
                yield from place("here").run([trial])


def test_a_failure_stops_no_other_and_asking_again_trains_what_is_missing(tmp_path):
    trials, evidence = described(FILE, tmp_path), tmp_path / "evidence"
    board, executor = Board(trials), Failing(7)
    for outcome in sweep(trials, executor, evidence=evidence):
        board.add(outcome)
    assert len(executor.asked) == 5
    assert [outcome.trial.seed for outcome in board.failed] == [7]
    states = {row[0]: row[1] for row in board.rows()}
    assert sorted(states.values())[0] == "failed: the disk is full"
    assert list(states.values()).count("finished") == 4
    assert sum(len(group) for group in open_evidence(evidence).groups) == 4

    again = Failing(99)
    outcomes = list(sweep(trials, again, evidence=evidence))
    assert [trial.seed for trial in again.asked] == [7]
    assert all(outcome.finished for outcome in outcomes) and len(outcomes) == 5
    assert (evidence / "index.csv").read_text().count("\n") >= 5
    for outcome in outcomes:
        line = json.loads((outcome.trial.folder / "metrics.jsonl").read_text().splitlines()[0])
        assert line["epoch"] == 1
