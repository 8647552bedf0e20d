"""Results: what is written is read back, and nothing passes for what it is not."""

import csv
import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import pytest

from binep.errors import BinepError
from binep.studies.compare import read_choice
from binep.studies.evidence import (
    Evidence,
    open_evidence,
    reached,
    read_result,
    recipe_hash,
    without_none,
    write_index,
    write_result,
)
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.recipe import Recipe
from binep.training.runs import Run
from binep.training.sections import LearningKeys, PaperKeys
from conftest import small_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return runs.train(small_recipe("digits-1fc-w"), seed=3, out=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def path(run: Run, tmp_path: Path) -> Path:
    return write_result(run, tmp_path)


def test_a_run_is_read_back_with_its_evidence(run: Run, path: Path):
    found = read_result(path)
    assert found.recipe == run.recipe and found.record == run.record and found.finished
    for line, original in zip(found.metrics, run.metrics, strict=True):
        assert line.keys() == original.keys()
        assert line["flips"] == original["flips"]
        for split in ("train_error", "test_error"):
            assert line[split] == pytest.approx(original[split], rel=1e-4)


def test_a_file_has_one_line_an_epoch_and_short_numbers(run: Run, path: Path):
    text = path.read_text()
    assert sum(line.startswith('{"epoch"') for line in text.splitlines()) == 2
    lines = json.loads(text)["metrics"]
    numbers = [value for line in lines for value in line.values() if isinstance(value, float)]
    assert numbers and all(value == float(f"{value:.5g}") for value in numbers)


def test_an_unfinished_run_says_so(run: Run, tmp_path: Path):
    record = {**run.record, "status": "interrupted"}
    found = read_result(write_result(replace(run, record=record, metrics=[]), tmp_path))
    assert not found.finished and found.record["status"] == "interrupted" and not found.metrics


def test_what_a_recipe_trains_names_its_folder_not_what_it_is_called():
    shipped = recipes.load("digits-1fc-w")
    known = recipe_hash(shipped)
    for same in (
        replace(shipped, name="mine", summary="Mine", paper=PaperKeys(test=1.0)),
        recipes.load("digits-1fc-w", ["training.epochs=2"]),
        recipes.load("digits-1fc-w", ["network.gain=[1.0, 1.0]"]),
        recipes.from_table(without_none(asdict(shipped))),
    ):
        assert recipe_hash(same) == known
    others = ["data.validation=200", "learning.beta=0.7", "network.gain=[1.0, 2.0]"]
    hashes = {recipe_hash(recipes.load("digits-1fc-w", [change])) for change in others}
    assert len(hashes) == 3 and known not in hashes


def test_a_new_key_with_a_default_renames_nothing():
    """As if a later version had one key more: in a section, and in a section of its own."""

    @dataclass(frozen=True, kw_only=True)
    class LaterLearning(LearningKeys):
        noise: float = 0.0
        way: str | None = field(default=None, metadata={"before": "usual"})

    @dataclass(frozen=True, kw_only=True)
    class LaterKeys:
        pattern: list[int] = field(default_factory=list)

    @dataclass(frozen=True, kw_only=True)
    class LaterRecipe(Recipe):
        extra: LaterKeys = field(default_factory=LaterKeys)

    now = recipes.load("digits-1fc-w")
    learning = {key.name: getattr(now.learning, key.name) for key in fields(now.learning)}
    sections = {key.name: getattr(now, key.name) for key in fields(now)}
    later = LaterRecipe(**{**sections, "learning": LaterLearning(**learning, way="usual")})
    assert recipe_hash(later) == recipe_hash(now)
    others = [replace(later, learning=LaterLearning(**learning, way="other"))]
    others += [replace(later, extra=LaterKeys(pattern=pattern)) for pattern in ([1], [1, 1])]
    assert len({recipe_hash(each) for each in (now, *others)}) == 4


def test_own_data_are_known_by_their_file_name_not_by_where_it_lies(tmp_path: Path):
    hashes = set()
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "mine.csv"
        path.write_text("a,b,label\n" + "\n".join(f"{n},{n % 3},{n % 2}" for n in range(40)))
        hashes.add(recipe_hash(recipes.load("digits-1fc-w", [f"data.path={path}"])))
    assert len(hashes) == 1 and recipe_hash(recipes.load("digits-1fc-w")) not in hashes


def test_a_shorter_run_replaces_nothing(run: Run, path: Path, tmp_path: Path):
    before = path.read_text()
    with pytest.raises(BinepError, match="holds 2 epochs, .* only 1: remove it"):
        write_result(replace(run, metrics=run.metrics[:1]), tmp_path)
    assert path.read_text() == before and write_result(run, tmp_path) == path


def test_a_file_grows_by_later_epochs_and_is_replaced_by_no_other_run(run: Run, tmp_path: Path):
    short = write_result(replace(run, metrics=run.metrics[:1]), tmp_path)
    slower = [line | {"seconds": line["seconds"] + 1} for line in run.metrics]
    assert write_result(replace(run, metrics=slower), tmp_path) == short
    assert len(read_result(short).metrics) == 2
    before, other = short.read_text(), [line | {"loss": line["loss"] * 1.01} for line in slower]
    with pytest.raises(BinepError, match="another run of this recipe and seed .* epoch 1; remove"):
        write_result(replace(run, metrics=other), tmp_path)
    assert short.read_text() == before


def test_the_index_has_a_line_a_run_and_a_column_for_what_runs_set(run: Run, tmp_path: Path):
    other = replace(run, recipe=small_recipe("digits-1fc-w", "learning.beta=0.7"))
    for each in (run, other):
        write_result(each, tmp_path)
    text = write_index(Evidence(tmp_path)).read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["learning.beta"] for row in rows} == {"0.7", str(run.recipe.learning.beta)}
    for row in rows:
        assert (tmp_path / row["file"]).parent.name == row["hash"]
        assert row["seed"] == "3" and row["epochs"] == "2" and row["engine"] == run.record["engine"]
        error = run.metrics[-1]["test_error"]["average"]
        assert float(row["test_error"]) == pytest.approx(error, rel=1e-4)
    assert rows[0]["network.dense"] == json.dumps(run.recipe.network.dense)
    assert "hardware.stuck" not in rows[0] and "training.epochs" not in rows[0]


def test_runs_come_by_seed_and_other_files_are_left_alone(run: Run, tmp_path: Path):
    for seed in (10, 9):
        path = write_result(replace(run, record={**run.record, "seed": seed}), tmp_path)
    (path.parent / "seed1.json.part").write_text("cut off")
    (tmp_path / "runs" / "figures").mkdir()
    (tmp_path / "notes.json").write_text("{}")
    assert Evidence(tmp_path).hashes == [recipe_hash(run.recipe)]
    assert [r.record["seed"] for r in Evidence(tmp_path).runs_of(run.recipe)] == [9, 10]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.pop("format"), 'format=null: allowed is "binep results 1"'),
        (lambda table: table.pop("recipe"), "recipe is missing or damaged: allowed is an object"),
        (lambda table: table.update(metrics={}), "metrics is missing or damaged.*a list"),
        (lambda table: table["metrics"].append({"epoch": 3}), "line 3 is not one that binep"),
        (lambda table: table["recipe"]["learning"].update(beta=0), "learning.beta=0"),
        (lambda table: table["recipe"]["learning"].update(beta=0.7), "moved or changed"),
        (lambda table: table["record"].update(seed=4), "it is runs/.*/seed4.json: it was moved"),
    ],
)
def test_damaged_files_are_refused_in_one_line(change, message: str, path: Path):
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(BinepError, match=message) as caught:
        read_result(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_what_is_not_json_and_what_is_not_there_is_refused(path: Path, tmp_path: Path):
    path.write_text(path.read_text()[:-20])
    with pytest.raises(BinepError, match="not readable as JSON"):
        read_result(path)
    with pytest.raises(BinepError, match="is not a folder"):
        open_evidence(tmp_path / "nowhere")


def test_a_run_moved_into_another_recipes_folder_is_found_out(path: Path, tmp_path: Path):
    shipped = recipes.load("digits-1fc-w")
    folder = tmp_path / "runs" / recipe_hash(shipped)
    folder.mkdir()
    shutil.copy(path, folder)
    with pytest.raises(BinepError, match="moved or changed"):
        Evidence(tmp_path).runs_of(shipped)


def test_a_run_without_a_seed_is_refused(run: Run, tmp_path: Path):
    with pytest.raises(BinepError, match="seed=None: allowed is an integer"):
        write_result(replace(run, record={}), tmp_path)


def test_what_was_reached_is_told_of_recipes_that_ship_and_of_no_others():
    found = {name: reached(name) for name in recipes.names()}
    told = [each for each in found.values() if each is not None]
    assert told and reached("nothing of that name") is None
    for each in told:
        assert each.n >= 1 and each.epochs >= 1 and each.seconds > 0 and each.device
        assert each.best <= each.test + 1e-3 and (each.test_sd is None) == (each.n == 1)


# --- what the repository keeps ------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
CARRIED = json.loads(Path(__file__).with_name("carried_over.json").read_text())


def digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_every_metric_of_the_first_221_runs_is_where_its_recipes_hash_says():
    """`carried_over.json` was made of the files of `results/`, last in the commit that it names."""
    assert len(CARRIED["runs"]) == 221
    for old, new, epochs, metrics, recipe, record in CARRIED["runs"]:
        found = json.loads((ROOT / new).read_text("utf-8"))
        kept = {key: v for key, v in found["record"].items() if key != "commit_filled_in"}
        assert digest(found["metrics"][:epochs]) == metrics, old
        assert digest(found["recipe"]) == recipe and digest(kept) == record, old


def test_every_trial_of_the_first_39_choices_is_kept():
    assert len(CARRIED["choices"]) == 39
    for old, new, trials in CARRIED["choices"]:
        found = json.loads((ROOT / new).read_text("utf-8"))["variants"]
        kept = {digest([v["label"], v["recipe"], t]) for v in found for t in v["trials"]}
        assert set(trials) <= kept, old
    for old, new, bytes_ in CARRIED["others"]:
        assert hashlib.sha256((ROOT / new).read_bytes()).hexdigest()[:16] == bytes_, old


def test_the_repositorys_evidence_can_be_read_and_its_paths_are_short():
    evidence = open_evidence(ROOT / "evidence")
    found = [run for runs in evidence.groups for run in runs]
    assert len(found) >= 221
    assert sum(1 for _ in (evidence.folder / "runs").glob("*/*.json")) == len(found)
    for path in evidence.folder.rglob("*"):
        assert len(path.relative_to(ROOT).as_posix()) <= 100
    for path in (evidence.folder / "choices").glob("*.json"):
        assert read_choice(path).variants
