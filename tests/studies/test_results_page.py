"""RESULTS.md: its text follows from the files, and the one in the repository is up to date."""

import json
import random
from pathlib import Path

import pytest
from matplotlib.image import imread

from binep.errors import BinepError
from binep.studies import compare as choices
from binep.studies.evidence import Evidence, open_evidence, write_result
from binep.studies.reproduce import BEYOND, GOALS, render
from binep.studies.results_page import TUNING, overview, write_overview
from binep.training import recipe as recipes
from binep.training.runs import Run

ROOT = Path(__file__).parents[2]


def made_up(name: str, seed: int, test: float, epochs: int, *overrides: str) -> Run:
    """A run with errors that fall to `test` per cent."""
    recipe, rng = recipes.load(name, overrides), random.Random(seed)
    couplings = 0 if recipe.network.weights == "real" else len(recipe.optimizer.lr_bias)
    alphas = [0.02 * (n + 1) for n in range(couplings)]

    def line(epoch: int) -> dict:
        error = test + 10 / epoch**2 - 10 / epochs**2 + (0 if epoch == epochs else rng.random() / 9)
        return {
            "epoch": epoch,
            "train_error": {"average": error / 2, "single": error / 2 + 0.3 / epoch},
            "test_error": {"average": error, "single": error + 0.5 / epoch},
            "loss": error / 100,
            "test_loss": error / 90,
            "flips": [1000 // epoch] * couplings,
            "pi": [-2 - 4 * epoch / epochs - n for n in range(couplings)],
            "alpha": alphas,
            "alpha_range": [[alpha, alpha] for alpha in alphas],
            "alpha_clamped": 0,
            "residual": 1e-3,
            "undecided": 0.0,
            "seconds": 60.0,
            "test_seconds": 1.0,
        }

    record = {"seed": seed, "status": "finished", "device_name": "A GPU", "engine": "cuda"}
    record |= {"precision": "float16", "torch": "2.11.0"}
    return Run(Path(name), recipe, record, [line(n) for n in range(1, epochs + 1)])


@pytest.fixture(scope="module")
def evidence(tmp_path_factory) -> Evidence:
    """Some cells in every state, a variant of two figures, a run on validation images."""
    folder = tmp_path_factory.mktemp("repository") / "evidence"
    for seed, error in enumerate((2.0, 2.1)):
        write_result(made_up("mnist-1fc-w", seed, error, 50), folder)
        write_result(made_up("mnist-1fc-w-a", seed, error - 0.8, 50), folder)
        write_result(made_up("mnist-1fc-w-a-schedule", seed, error - 1, 50), folder)
        write_result(made_up("mnist-1fc-wa", seed, 4.0, 100), folder)
        write_result(made_up("mnist-1fc-wa-schedule", seed, 2.8, 100), folder)
        write_result(made_up("mnist-1fc-wa-shifted", seed, 2.0, 100), folder)  # other images
    write_result(made_up("cifar10-conv-w-a", 0, 17.6, 100), folder)
    write_result(made_up("mnist-1fc512-fp", 0, 2.02, 30), folder)
    write_result(made_up("mnist-1fc-w", 0, 3.0, 50, "network.scale=0.02"), folder)
    write_result(made_up("mnist-1fc-w", 5, 0.5, 50, "data.validation=5000"), folder)
    changed = ("learning.beta=0.5", "optimizer.tau=1e-6")
    write_result(made_up("mnist-2fc-w", 0, 3.5, 50, *changed), folder)
    variants = choices.make_variants("mnist-2fc-w", ["optimizer.lr_bias=[0.2, 0.1, 0.05]"])
    for error, variant in zip((5.0, 4.0), variants, strict=True):
        trial = {"seed": 0, "validation_error": [9.0, error], "seconds": [1.0, 1.0]}
        variant.trials.append(trial)
    choice = choices.Choice("Which bias rates?", 2, variants)
    choices.write_choice(choice, folder / "choices" / "biases.json")
    (folder / "commentary.md").write_text("## Comments\n\nWritten by hand.\n")
    return open_evidence(folder)


def test_variants_are_shown_beside_the_studies(evidence: Evidence):
    """What a study has a place for is not repeated, and validation's errors are left out."""
    section = overview(evidence).split("## Variants")[1].split("## Training")[0]
    rows = [line for line in section.splitlines() if line.startswith("| mnist")]
    changed = "learning.beta=0.5, optimizer.tau=1e-06,1e-06,1e-06"
    assert rows == [f"| mnist-2fc-w | {changed} | 3.50 | 1.75 | 1 | 50 |"]


def test_cells_are_sorted_by_how_they_stand_to_the_paper(evidence: Evidence):
    lines = {
        line.split("**")[1]: line for line in overview(evidence).splitlines() if "- **" in line
    }
    assert (
        "(1): MNIST 1fc, EP, learnt alpha: 1.25 ± 0.07 (n = 2) against 1.70 ± 0.04."
        in (lines["Better than the paper"])
    )
    assert "MNIST 1fc, EP, fixed alpha: 2.05 ± 0.07" in lines["As in the paper"]
    assert "MNIST 1fc, EP, real weights: 2.02 (n = 1) against 2.00" in lines["As in the paper"]
    worse = "(1): MNIST 1fc, EP, binary activations: 4.00 ± 0.00 (n = 2) against 2.83 ± 0.06 "
    remedy = "(`mnist-1fc-wa-schedule`, on the same images: 2.80 ± 0.00, n = 2, as in the paper)."
    assert worse + remedy in lines["Worse than the paper"]
    short = "(1): CIFAR-10 conv, EP, learnt alpha: 17.60 (n = 1) against 15.66 ± 0.28 "
    so_far = "(after 100 epochs, when the paper has 17.60)."
    assert short + so_far in lines["Trained for fewer epochs than the paper, not judged"]
    assert "(14): " in lines["Not run"]
    assert "Of 19 cells 4 were trained as long as the paper's, and 3 of these" in overview(evidence)


def test_short_runs_stand_in_the_table_with_their_epochs(evidence: Evidence):
    row = next(line for line in overview(evidence).splitlines() if "100 of 500" in line)
    assert "17.60" in row and "fewer epochs" in row and "1 h 41 min" in row


def test_validation_runs_and_variants_stay_out_of_test_tables(evidence: Evidence):
    table = render("table1", evidence)
    assert "2.05 ± 0.07" in table and "validation" not in table
    assert "0.50" not in overview(evidence) and "3.00" not in table
    assert "3.00" in render("fig-alpha", evidence)


def test_goals_stand_beside_the_best_recipe_with_binary_synapses(evidence: Evidence):
    rows = [line for line in overview(evidence).splitlines() if "| below" in line]
    assert rows == [
        "| MNIST 1fc, w | mnist-1fc-w-a-schedule | below 1.60 | 1.05 ± 0.07 | 2 | 50 | reached |",
        "| MNIST 1fc, wa | mnist-1fc-wa-shifted | below 2.40 | 2.00 ± 0.00 | 2 | 100 | reached |",
        "| CIFAR-10 conv, w | cifar10-conv-w-a | below 15.66 | 17.60 | 1 | 100 of 500 "
        "| not reached |",
    ]


def test_every_goal_is_of_a_network_that_is_compared():
    assert list(GOALS) == list(dict.fromkeys(cell.row for cell in BEYOND.cells))


def test_choices_tell_the_lowest_and_what_ships(evidence: Evidence):
    text = overview(evidence)
    row = next(line for line in text.splitlines() if "[0.2, 0.1, 0.05]" in line)
    assert row.endswith("| 4.00 | 1 | 2.0 s | lowest |")
    assert "The recipe that ships trains as in: as it is." in text


def test_commentary_is_taken_over_and_all_figures_are_there(evidence: Evidence):
    path = write_overview(evidence)
    text = path.read_text("utf-8")
    assert path == evidence.folder.parent / "RESULTS.md" and text == overview(evidence)
    assert "\n## Comments\n\nWritten by hand.\n" in text
    linked = [line.rpartition("(")[2].rstrip(")") for line in text.splitlines() if "![" in line]
    names = {Path(link).stem for link in linked}
    assert {"fig-alpha", "fig-readouts", "fig-hidden", "mnist-1fc-w", "cifar10-conv-w-a"} <= names
    assert "fig-outputs" not in names
    for link in linked:
        assert imread(path.parent / link).shape[0] > 200


def test_tuning_shows_what_was_found_from_each_start(tmp_path: Path):
    spread = {"mean": 4.0, "sd": None, "n": 1}
    start = {
        "recipe": "mnist-1fc-wa",
        "start": "tau too small",
        "started": {**spread, "mean": 30.0},
        "tuned": {**spread, "mean": 4.2},
        "shipped": spread,
        "gamma": [2e-6, 2e-6],
        "tau": [6e-8, 2.3e-7],
        "seconds": 90.0,
    }
    path = tmp_path / "tuning.json"
    table = {"format": TUNING, "factor": 30.0, "epochs": 5, "starts": [start]}
    path.write_text(json.dumps(table))
    text = overview(Evidence(tmp_path))
    row = "| 2e-06 2e-06 | 6e-08 2.3e-07 | 30.00 | 4.20 | 4.00 | +0.20 | 1 | 1 min 30 s |"
    assert row in text and "At worst it ends +0.20 from" in text
    path.write_text(json.dumps({**table, "starts": [{}]}))
    with pytest.raises(BinepError, match="not what benchmarks/tune.py writes"):
        overview(Evidence(tmp_path))


def test_an_empty_folder_says_so(tmp_path: Path):
    text = overview(Evidence(tmp_path))
    assert "There are no runs yet." in text and "![" not in text


def test_the_repositorys_page_is_what_the_command_generates():
    evidence = open_evidence(ROOT / "evidence")
    text = (ROOT / "RESULTS.md").read_text("utf-8")
    assert text == overview(evidence), "run: binep reproduce --from evidence"
    for line in text.splitlines():
        if line.startswith("!["):
            assert (ROOT / line.rpartition("(")[2].rstrip(")")).is_file(), line
