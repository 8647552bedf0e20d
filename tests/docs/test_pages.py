"""What the pages and README.md show works: blocks marked to run are run, commands are parsed.

A fenced block behind `<!-- run -->` is run, page by page and from top to bottom, in an empty
folder; one behind `<!-- file: NAME -->` is written there first. Every other line that begins with
`binep` goes through the command line's parser: what a page names has to exist.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from binep import registry
from binep.cli import app
from binep.deploy import c_program
from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.engines import select
from binep.studies.evidence import reached
from binep.training import recipe as recipes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (run|file): ?(\S*) ?-->\n|^<!-- (run) -->\n)?^```(\w+)\n(.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    mark: str | None
    file: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [Block(m[1] or m[3], m[2] or "", m[4], m[5]) for m in found]


def commands(text: str) -> list[list[str]]:
    """The `binep` commands of a shell block, as lists of words."""
    lines = [part.strip() for line in text.splitlines() for part in line.split("&&")]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("binep ")]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


MARKED = [page for page in PAGES if any(block.mark for block in blocks(page))]
SPEAKING = [
    page for page in PAGES if any(b.language == "sh" and commands(b.text) for b in blocks(page))
]


@pytest.fixture
def registries() -> Iterator[None]:
    """What a page registers is forgotten behind it: other tests count what there is."""
    every = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]
    before = [set(each) for each in every]
    yield
    for each, names in zip(every, before, strict=True):
        for name in set(each) - names:
            each.remove(name)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", MARKED, ids=name_of)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(select, "BACKENDS", {**select.BACKENDS})  # pages add to them
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.mark == "file":
            Path(block.file).write_text(block.text)
        elif block.mark == "run" and block.language == "python":
            exec(compile(block.text, name_of(page), "exec"), names)
        elif block.mark == "run":
            found = commands(block.text)
            assert found, block.text
            for words in found:
                result = CliRunner().invoke(app, words)
                assert result.exit_code == 0, (words, result.output, result.exception)


@pytest.mark.parametrize("page", SPEAKING, ids=name_of)
def test_commands_that_a_page_names_exist(page: Path):
    group: Any = typer.main.get_command(app)
    for block in blocks(page):
        for words in commands(block.text) if block.language == "sh" else []:
            command, context, rest = group, group.make_context("binep", [*words]), words
            while hasattr(command, "resolve_command"):
                name, command, rest = command.resolve_command(context, rest)
                assert command is not None, words
                context = command.make_context(name, [*rest], parent=context)


def test_a_command_that_does_not_exist_is_seen():
    group: Any = typer.main.get_command(app)
    name, command, rest = group.resolve_command(
        group.make_context("binep", ["train", "--sed", "1"]), ["train", "--sed", "1"]
    )
    with pytest.raises(Exception, match="--sed"):
        command.make_context(name, rest)


def test_what_the_readme_reaches_is_the_evidence():
    """Mean and standard deviation of every recipe that its table names, and the seeds."""
    section = README.split("## What it reaches", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"([\d.]+) ± ([\d.]+) \(`([\w-]+)`\)(?: \| (\d+))?", section)
    assert len(found) == 8
    for mean, deviation, recipe, seeds in found:
        known = reached(recipe)
        assert (mean, deviation) == (f"{known.test:.2f}", f"{known.test_sd:.2f}"), recipe
        assert not seeds or int(seeds) == known.n


def test_the_errors_of_pretrained_networks_are_the_evidence():
    """All that a release takes are listed; what has no evidence yet is of one run."""
    page = (ROOT / "docs" / "howto" / "pretrained.md").read_text("utf-8")
    found = re.findall(r"^\| `([\w-]+)` \|[^|]*\| ([\d.]+)(?: ± ([\d.]+))? \| (\d+) \|", page, re.M)
    release = (
        (ROOT / "release" / "models.py").read_text("utf-8").split("BEST = (")[1].split("\n)")[0]
    )
    assert sorted(name for name, *_ in found) == sorted(re.findall(r'"([\w-]+)"', release))
    for recipe, mean, deviation, seeds in found:
        if known := reached(recipe):
            spread = "" if known.test_sd is None else f"{known.test_sd:.2f}"
            told = (f"{known.test:.2f}", spread, str(known.n))
            assert (mean, deviation, seeds) == told, recipe
        else:
            assert recipe.startswith("digits") and seeds == "1"


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="needs arm-none-eabi-gcc")
def test_what_the_page_on_microcontrollers_compiles(tmp_path: Path):
    """Its commands for a Cortex-M4, without a warning, in a folder that was exported as it says."""
    recipe = recipes.load("digits-1fc-wa", ["network.dense=[16]"])
    network = recipe.build_network(torch.Generator().manual_seed(0))
    images, labels = np.zeros((1, 1, 8, 8), np.uint8), np.zeros(1, int)
    rule = FixedRule(learning_rule(recipe))
    c_program.write(store(network, recipe), tmp_path, images, labels, learning=rule)
    page = (ROOT / "docs" / "howto" / "microcontroller.md").read_text("utf-8")
    lines = re.findall(r"^arm-none-eabi-\S+ .*$", page, re.M)
    assert len(lines) == 2
    said = ""
    for line in lines:
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
        said = done.stdout
    assert "learn.o" in said
