"""RESULTS.md and the pages of docs/results: their text follows from the files and the claims."""

import json
import random
from pathlib import Path

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from binep.cli import app
from binep.errors import BinepError
from binep.report.figures import DASH
from binep.studies import compare as choices
from binep.studies.claims import read_claims
from binep.studies.detail_pages import TUNING, outdated, pages, write_pages
from binep.studies.evidence import Evidence, open_evidence, recipe_hash, write_result
from binep.studies.paper import AS_PRINTED, BEYOND, GOALS, STUDIES
from binep.studies.reproduce import entries, render
from binep.studies.results_page import LIMIT, overview
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
        write_result(made_up("mnist-1fc-wa", seed, 4.0 + error / 100, 100), folder)
        printed = AS_PRINTED["mnist-1fc-wa"]
        write_result(made_up("mnist-1fc-wa", seed, 2.8 + error / 100, 100, *printed), folder)
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
    printed = recipe_hash(recipes.load("mnist-1fc-wa", AS_PRINTED["mnist-1fc-wa"]))
    ours = recipe_hash(recipes.load("mnist-1fc-wa"))
    (folder / "claims.toml").write_text(
        f"[mnist-1fc-wa]\nruns = {printed!r}\n"
        f"[[mnist-1fc-wa.ours]]\nname = 'from 0'\nruns = {ours!r}\n"
        "differs = 'starts from 0'\nafter_test = 'the start'\n"
        "[mnist-1fc-wa-schedule]\nafter_test = 'the start'\n"
    )
    return open_evidence(folder)


def row_of(text: str, start: str) -> list[str]:
    """The cells of the one line of a page's tables that begins so."""
    (line,) = (line for line in text.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_cell_holds_the_papers_algorithm_and_ours_stands_beside_it(evidence: Evidence):
    text = overview(evidence)
    # Of Table 2, whose row of MNIST 1fc is the one with binary activations.
    cell = row_of(text, "| MNIST 1fc | EP, binary activations |")
    assert cell[2:7] == ["2.83 ± 0.06", "2.82 ± 0.00", "2", "100", "p = 0.74"]
    ours = row_of(text, "|  | ours: from 0 † |")
    assert ours[2:7] == [DASH, "4.02 ± 0.00", "2", "100", "worse, p < 0.001"]
    assert ours[7] == "starts from 0" and "1 h 41 min A GPU" in ours[8]
    in_short = text.split("Of the 19 cells:")[1].split("| |")[0]
    assert "worse: MNIST 1fc binary activations, from 0" in in_short
    assert "- Worse" not in in_short


def test_cells_are_counted_by_a_test_and_one_seed_is_not_judged(evidence: Evidence):
    text = overview(evidence)
    assert "- Better: 1: MNIST 1fc learnt alpha" in text
    assert "- No difference shown: 2" in text
    assert "- One seed, not judged: 1: MNIST 1fc real weights" in text
    assert "not judged: 1: CIFAR-10 conv learnt alpha" in text and "- Not run: 14" in text
    assert row_of(text, "|  | EP, real weights | 2.00")[6] == "one seed"
    short = row_of(text, "|  | EP, learnt alpha | 15.66")
    assert short[3:7] == ["17.60", "1", "100 of 500", "fewer epochs"]


def test_what_was_set_when_test_errors_were_known_is_marked_and_told(evidence: Evidence):
    text = overview(evidence)
    assert "- mnist-1fc-wa, mnist-1fc-wa-schedule: the start." in text
    assert row_of(text, "| MNIST 1fc, wa |")[1:4] == ["mnist-1fc-wa-schedule †", "2.80 ± 0.00", "2"]


def test_variants_are_shown_beside_the_studies(evidence: Evidence):
    """What a study has a place for is not repeated, and validation's errors are left out."""
    text = pages(evidence)[Path("docs/results/index.md")]
    rows = [line for line in text.split("## Variants")[1].splitlines() if "| mnist" in line]
    changed = "learning.beta=0.5, optimizer.tau=1e-06,1e-06,1e-06"
    assert rows == [f"| mnist-2fc-w | {changed} | 3.50 | 1.75 | 1 | 50 |"]


def test_validation_runs_and_variants_stay_out_of_test_tables(evidence: Evidence):
    table = render("table1", evidence)
    assert "2.05 ± 0.07" in table and "validation" not in table
    for text in pages(evidence).values():
        assert "| 0.50 |" not in text
    assert "3.00" not in table and "3.00" in render("fig-alpha", evidence)


def test_goals_stand_beside_the_best_recipe_with_binary_synapses(evidence: Evidence):
    text = pages(evidence)[Path("docs/results/index.md")]
    rows = [line for line in text.splitlines() if "| below" in line]
    assert rows == [
        "| MNIST 1fc, w | mnist-1fc-w-a-schedule | below 1.60 | 1.05 ± 0.07 | 2 | 50 | reached |",
        "| MNIST 1fc, wa | mnist-1fc-wa-shifted | below 2.40 | 2.00 ± 0.00 | 2 | 100 | reached |",
        "| CIFAR-10 conv, w | cifar10-conv-w-a | below 15.66 | 17.60 | 1 | 100 of 500 "
        "| not reached, one seed |",
    ]


def test_every_goal_is_of_a_network_that_is_compared():
    assert list(GOALS) == list(dict.fromkeys(cell.row for cell in BEYOND.cells))


def test_errors_by_epoch_are_means_over_the_seeds_that_came_so_far(evidence: Evidence):
    text = pages(evidence)[Path("docs/results/epochs.md")]
    row = row_of(text.split("## Training")[0], "| mnist-1fc-w-a |")
    assert row[-3:] == ["1.25 ± 0.07", DASH, "2"]


def test_choices_tell_the_lowest_and_what_ships(evidence: Evidence):
    text = pages(evidence)[Path("docs/results/choices.md")]
    row = next(line for line in text.splitlines() if "[0.2, 0.1, 0.05]" in line)
    assert row.endswith("| 4.00 | 1 | 2.0 s | lowest |")
    assert "The recipe that ships trains as in: as it is." in text


def test_pages_are_written_with_their_figures_and_are_seen_to_be_out_of_date(tmp_path: Path):
    write_result(made_up("mnist-1fc-w", 0, 2.0, 50), tmp_path / "evidence")
    (tmp_path / "evidence" / "commentary.md").write_text("## Comments\n\nWritten by hand.\n")
    evidence = open_evidence(tmp_path / "evidence")
    check = ["reproduce", "--from", str(evidence.folder), "--check"]
    told = CliRunner().invoke(app, check)
    assert told.exit_code == 1 and "RESULTS.md" in told.output
    paths = write_pages(evidence)
    assert tmp_path / "RESULTS.md" in paths and outdated(evidence) == []
    assert CliRunner().invoke(app, check).exit_code == 0
    assert "\n## Comments\n\nWritten by hand.\n" in (tmp_path / "RESULTS.md").read_text("utf-8")
    curves = tmp_path / "docs" / "results" / "curves.md"
    links = [
        line.rpartition("(")[2][:-1] for line in curves.read_text().splitlines() if "![" in line
    ]
    assert {Path(link).stem for link in links} >= {"fig-alpha", "fig-hidden", "mnist-1fc-w"}
    for link in links:
        assert imread(curves.parent / link).shape[0] > 200
    (curves.parent / links[0]).unlink()
    curves.write_text("Something else.")
    assert outdated(evidence) == [f"docs/results/{name}" for name in ("curves.md", links[0])]


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
    text = pages(Evidence(tmp_path))[Path("docs/results/choices.md")]
    row = "| 2e-06 2e-06 | 6e-08 2.3e-07 | 30.00 | 4.20 | 4.00 | +0.20 | 1 | 1 min 30 s |"
    assert row in text and "At worst it ends +0.20 from" in text
    path.write_text(json.dumps({**table, "starts": [{}]}))
    with pytest.raises(BinepError, match="not what benchmarks/tune.py writes"):
        pages(Evidence(tmp_path))


# --- the claims ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mnist-1fc-w", "not valid TOML"),
        ("[mnist-1fc-w]\nruns = 'abc'", "there is no such folder in runs/"),
        ("[mnist-1fc-w]\nnotes = 'x'", "unknown key 'notes'"),
        ("[mnist-1fc-w]\nnote = 3", "note=3: allowed is a text"),
        ("[[mnist-1fc-w.ours]]\nname = 'x'", "differs, runs is missing"),
    ],
)
def test_claims_that_cannot_be_are_refused_in_one_line(text: str, message: str, tmp_path: Path):
    (tmp_path / "claims.toml").write_text(text)
    with pytest.raises(BinepError, match=message) as caught:
        read_claims(Evidence(tmp_path))
    assert "\n" not in str(caught.value)


def test_the_repositorys_claims_put_only_the_papers_algorithm_into_its_cells():
    """A cell's runs were trained exactly as it says; ours differ, and say how."""
    evidence = open_evidence(ROOT / "evidence")
    claims, cells = read_claims(evidence), dict[str, str]()
    for cell in (cell for study in STUDIES.values() for cell in study.cells if cell.printed):
        cells[cell.recipe] = recipe_hash(cell.resolve())
    assert all(claim.runs in ("", cells.get(name)) for name, claim in claims.items())
    beside = [(name, each) for name, claim in claims.items() for each in claim.ours]
    assert len(beside) >= 10
    for name, each in beside:
        assert each.runs != cells[name] and each.differs
    for cell in BEYOND.cells:
        (entry,) = entries(cell, evidence)
        apart = recipe_hash(cell.resolve()) != cells.get(cell.recipe, recipe_hash(cell.resolve()))
        assert bool(entry.differs) == (apart and bool(entry.found.counted)), cell.recipe


def test_the_repositorys_page_is_short():
    assert len(overview(open_evidence(ROOT / "evidence")).encode()) < LIMIT
