"""What runs are called, and what becomes of one that is there already."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from binep import BinepError
from binep.cli import app
from binep.training.naming import run_name, variant_name
from binep.training.recipe import LONGEST_NAME, NAMES

QUICK = ["--device", "cpu", "--engine", "reference", "--epochs", "1", "--json"]
SMALL = ["network.dense=[8]", "learning.free_steps=2", "training.batch_size=400"]


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "digits-1fc-w"),
        (["learning.beta=0.3"], "digits-1fc-w"),  # as it is
        (["training.epochs=3"], "digits-1fc-w"),
        (["learning.beta=0.5"], "digits-1fc-w+beta=0.5"),
        (["learning.beta=0.4", "learning.beta=0.5"], "digits-1fc-w+beta=0.5"),
        (["network.dense=8,9", "learning.sign=centered", "optimizer.gamma=1e-3",
          "optimizer.tau=5e-5", "optimizer.lr_bias=0.1"],
         "digits-1fc-w+dense=8,9+sign=centered+gamma=0.001+tau=5e-05+lr_bias=0.1"),
        (["schedule.tau.every=2", "schedule.tau.factor=2", "schedule.gamma.every=3",
          "schedule.gamma.factor=0.5"], None),
    ],
)  # fmt: skip
def test_a_variant_is_called_after_what_it_changes(overrides: list[str], name: str | None):
    found = variant_name("digits-1fc-w", overrides)
    assert found == name or (name is None and found.startswith("digits-1fc-w+"))
    assert NAMES.fullmatch(found) and len(found) < 100


def test_what_is_long_is_told_by_a_hash():
    long = [f"network.dense={list(range(100, 130))}", *rates(31)]
    one = variant_name("digits-1fc-w", long)
    assert len(one) == len("digits-1fc-w+01234567")
    assert variant_name("digits-1fc-w", [*long, "learning.beta=0.7"]) != one


def rates(couplings: int) -> list[str]:
    values = {"gamma": 1e-3, "tau": 5e-5, "lr_bias": 0.05}
    return [f"optimizer.{key}={[value] * couplings}" for key, value in values.items()]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "x" * (LONGEST_NAME + 1)])
def test_a_name_is_what_a_folder_can_be_called(name: str):
    from binep.training import recipe as recipes

    with pytest.raises(BinepError, match=r"name=.*what a folder can be called"):
        run_name(recipes.load("digits-1fc-w"), 0, name)


def train(*words: str) -> Path:
    """Train from the command line; the folder of the run."""
    small = [part for text in SMALL for part in ("--set", text)]
    command = ["train", *QUICK, *small, *words]
    result = CliRunner().invoke(app, command, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return Path(json.loads(result.stdout)[0]["run"])


def test_runs_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    one = train()
    assert one.name == "digits-1fc-w+dense=8+free_steps=2+batch_size=400-seed0"
    other = train("--set", "learning.beta=0.5")
    named = train("--set", "learning.beta=0.5", "--name", "mine")
    assert len({one, other, named}) == 3 and named == Path("runs/mine-seed0")
    with pytest.raises(BinepError, match=r"mine-seed0 already holds a run: .*--overwrite"):
        train("--name", "mine")
    before = (named / "record.json").read_text()
    train("--name", "mine", "--overwrite")
    assert (named / "record.json").read_text() != before and "beta = 0.3" in (
        named / "recipe.toml"
    ).read_text()


def test_resume_without_a_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BinepError, match="mine-seed0 holds no run to resume"):
        train("--name", "mine", "--resume")
    assert not any(tmp_path.iterdir())
    assert train("--name", "mine") == train("--name", "mine", "--resume")
    with pytest.raises(BinepError, match="resume and overwrite: allowed is one of the two"):
        train("--name", "mine", "--resume", "--overwrite")


def test_a_folder_that_is_no_run_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "runs" / "mine-seed0" / "notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    train("--name", "mine", "--overwrite")
    assert kept.read_text() == "mine"
