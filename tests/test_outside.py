"""A package outside of binep brings a piece of each kind; one recipe uses them all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OUTSIDE = Path(__file__).parent / "outside"


def binep(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command, where the package is installed: its folder is on Python's path."""
    paths = [str(OUTSIDE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "binep", *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=120
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a recipe made of the package's pieces was trained."""
    folder = tmp_path_factory.mktemp("outside")
    result = binep("train", OUTSIDE / "bars.toml", "--device", "cpu", cwd=folder)
    assert result.returncode == 0, result.stderr
    [said] = result.stderr.splitlines()
    assert "taking engine 'reference' instead" in said and "of its own in each layer" in said
    return folder


def test_a_recipe_of_its_pieces_is_trained_on_the_reference(trained: Path):
    run = trained / "runs" / "bars-seed0"
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["epoch"] == 4 and last["test_error"]["average"] < 10  # guessing: 50 %
    record = json.loads((run / "record.json").read_text())
    assert record["engine"] == "reference" and len(record["data_fingerprint"]) == 64


def test_its_logger_hears_of_every_epoch(trained: Path):
    lines = (trained / "runs" / "bars-seed0" / "lines.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["1", "2", "3", "4"]


def test_its_run_is_evaluated_reported_and_exported_by_its_format(trained: Path):
    run = trained / "runs" / "bars-seed0"
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    found = json.loads(binep("eval", run, "--json", "--device", "cpu", cwd=trained).stdout)
    assert found["error"] == last["test_error"] and found["n"] == 80
    assert "report.html" in binep("report", run, "--device", "cpu", cwd=trained).stdout
    assert "upper" in (trained / "report.html").read_text()
    written = binep("export", run, "--to", "text", "--format", "text", cwd=trained)
    assert written.returncode == 0, written.stderr
    rows = (trained / "text" / "bars-seed0-0.txt").read_text().splitlines()
    assert len(rows) == len(rows[0].split()) == 36
    refused = binep("export", run, "--to", "packed", cwd=trained)
    assert refused.returncode == 2 and "export does not know" in refused.stderr


def test_its_run_goes_on(trained: Path):
    words = ["train", OUTSIDE / "bars.toml", "--device", "cpu", "--epochs", "5", "--resume"]
    assert binep(*words, cwd=trained).returncode == 0
    other = [*words[:-3], "--epochs", "6", "--resume", "--name", "bars"]
    other += ["--set", "network.activations=binary"]
    assert "was begun with another recipe" in binep(*other, cwd=trained).stderr


def test_where_it_is_not_installed_its_names_are_unknown(tmp_path: Path):
    command = [sys.executable, "-m", "binep", "recipes", str(OUTSIDE / "bars.toml")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith("binep: data.name='bars': ") and "mnist" in result.stderr
