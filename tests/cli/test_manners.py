"""How the command line treats people: mistakes told precisely, help in groups, quiet if asked."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from binep import BinepError
from binep.cli import app
from binep.registry import BUILT_IN
from binep.studies.evidence import reached
from binep.studies.times import minutes
from binep.training import recipe as recipes

SMALL = ["--set", "network.dense=[8]", "--set", "learning.free_steps=2", "--engine", "reference"]
QUICK = ["--device", "cpu", "--epochs", "1", "--name", "quick", *SMALL]


def binep(*words: object):
    """A command; its error is raised here."""
    result = CliRunner(env={"COLUMNS": "160"}).invoke(
        app, [str(word) for word in words], standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return result


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "gpu"], r"unknown device 'gpu': did you mean 'cuda'\? Allowed: auto, cpu"),
        (["--device", "mps"], r"device 'mps': this machine has no usable GPU.*here: auto, cpu"),
        (["--device", "xpu"], r"device 'xpu': this machine has no usable GPU"),
        (["--seed", -1], "seed=-1: allowed is an integer of at least 0"),
        (["--set", "training.batch_size=1438"],
         "training.batch_size=1438: allowed is at most 1437, the training images of digits"),
        (["--set", "training.batch_size=1438", "--set", "data.validation=400"],
         "allowed is at most 1037"),
        (["--engine", "packd"], "unknown engine 'packd': did you mean 'packed'"),
        (["--threads", 0], "--threads 0: allowed is at least 1"),
        (["--logger", "tensorbord"], "unknown logger 'tensorbord': did you mean 'tensorboard'"),
        (["--name", "a/b"], "name='a/b': allowed is what a folder can be called"),
        (["--resume"], "holds no run to resume"),
        (["--data", "nowhere.csv"], "nowhere.csv: there is no such file"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line_and_leaves_nothing(words: list, told: str, here: Path):
    with pytest.raises(BinepError, match=told) as error:
        binep("train", "digits-1fc-w", *words)
    assert "\n" not in str(error.value) and not any(here.iterdir())


def test_a_missing_parent_is_told_with_its_child(here: Path):
    (here / "mine").mkdir()
    child = here / "mine" / "child.toml"
    child.write_text('extends = "parent.toml"\n')
    with pytest.raises(BinepError, match=r"child\.toml: extends='parent\.toml': there is no such"):
        binep("recipes", child)
    child.write_text('extends = "digits-1fc-x"\n')
    with pytest.raises(BinepError, match="unknown recipe 'digits-1fc-x': did you mean"):
        binep("recipes", child)
    # A parent is looked for beside its child, wherever the command is given.
    child.write_text('extends = "parent.toml"\n')
    (here / "mine" / "parent.toml").write_text('extends = "digits-1fc-w"\n[learning]\nbeta = 0.7\n')
    assert "beta = 0.7" in binep("recipes", child).stdout


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(BinepError, match="unknown recipe 'mnist-1fc-q': did you mean '.*', '") as e:
        binep("recipes", "mnist-1fc-q")
    assert len(str(e.value)) < 200
    with pytest.raises(BinepError, match="unknown data set 'mnits': did you mean 'mnist'"):
        binep("data", "check", "mnits")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--readout", "mean"], "unknown readout 'mean'.*Allowed: average, single"),
        (["--format", "onnx"], "unknown export format 'onnx'.*Allowed: packed, c, mem"),
        (["--vectors", -2], "vectors=-2: allowed is at least 0"),
        (["--data", "digits"], "a run has its data already"),
    ],
)
def test_an_export_that_cannot_be_is_told(words: list, told: str, here: Path):
    binep("train", *QUICK, "-q")
    with pytest.raises(BinepError, match=told):
        binep("export", "runs", "--to", "shipped", *words)
    assert not (here / "shipped").exists()


def test_a_network_that_diverges_is_noticed(here: Path):
    with pytest.raises(BinepError, match="quick-seed0 diverges: after epoch 1 its .* lower"):
        real = ["--set", "network.weights=real", "--set", "optimizer.lr_weight=3e38"]
        binep("train", *QUICK, "-q", *real)
    assert not (here / "runs" / "quick-seed0" / "metrics.jsonl").read_text()
    found = binep("train", *QUICK, "--overwrite", "--set", "optimizer.lr_bias=1e9")
    assert "has grown to" in found.stderr and "network diverges" in found.stderr


def test_quiet_says_nothing_but_the_result(here: Path):
    loud = binep("train", *QUICK)
    assert "epoch   1" in loud.stdout and "see it" in loud.stdout
    quiet = binep("train", *QUICK, "--overwrite", "--quiet")
    assert re.fullmatch(r"runs/quick-seed0: test error .* after 1 epoch\n", quiet.stdout)
    words = ["--variant", "learning.beta=0.5", "--epochs", "1", "--device", "cpu"]
    chosen = binep("choose", "digits-1fc-w", *words, "--quiet")
    assert chosen.stderr == "" and "learning.beta=0.5" in chosen.stdout


def test_help_comes_in_groups_and_flags_have_no_type():
    shown = binep("--help").stdout
    titles = [shown.index(title) for title in ("Every day", "Research", "Shipping")]
    assert titles == sorted(titles)
    for title, command in (("Every day", "train"), ("Research", "tune"), ("Shipping", "export")):
        end = shown.index("╰", shown.index(title))
        assert f"│ {command} " in shown[shown.index(title) : end]
    for command in ("train", "eval", "export", "tune"):
        assert "<bool>" not in binep(command, "--help").stdout


@pytest.mark.parametrize(
    ("command", "choices"),
    [
        ("train", ["auto", "cpu", "cuda", "mps", "xpu", "reference", "packed", "delta"]),
        ("eval", ["average", "single", "test", "train"]),
        ("gradcheck", ["float32", "float64"]),
        ("export", [*BUILT_IN["binep.exporters"]]),
    ],
)
def test_every_choice_is_listed(command: str, choices: list[str]):
    shown = binep(command, "--help").stdout
    assert all(re.search(rf"\b{choice}\b", shown) for choice in choices)


def test_a_recipe_without_a_summary_is_still_json(here: Path):
    (here / "mine.toml").write_text('extends = "digits-1fc-w"\n')
    assert json.loads(binep("recipes", "mine.toml", "--json").stdout)["name"] == "mine"


def test_recipes_are_listed_in_one_line_each_with_what_they_reached():
    lines = binep("recipes").stdout.splitlines()
    assert len(lines) == 2 + len(recipes.names()) + 2
    row = next(line for line in lines if line.split()[:1] == ["mnist-1fc-w"])
    found = reached("mnist-1fc-w")
    assert found is not None and f"{found.test:.2f} ± {found.test_sd:.2f} ({found.n})" in row
    took = minutes(recipes.load("mnist-1fc-w"))
    assert took.h200 == pytest.approx(found.seconds / 60) and "784-4096-10" in row
    assert took.cpu is not None and f" {took.cpu:.0f} " in row  # that of a benchmark
    filtered = binep("recipes", "--filter", "mnist-1fc512-fp").stdout.splitlines()
    assert len(filtered) == 2 + 1 + 2 and filtered[2].startswith("mnist-1fc512-fp ")


def test_a_time_is_told_only_of_what_computes_as_much():
    wider = recipes.load("mnist-1fc-w", ["network.dense=[8192]"])
    other = minutes(replace(wider, name="mine"))
    assert other.cpu is None and other.h200 is None
    longer = recipes.load("mnist-1fc-w", ["training.epochs=100", "learning.beta=0.5"])
    usual = minutes(recipes.load("mnist-1fc-w")).cpu
    assert usual is not None and minutes(longer).cpu == pytest.approx(2 * usual)
