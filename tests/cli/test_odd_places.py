"""Too long paths, pipes, names that steer terminals, output that nobody takes: one line each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from binep.cli import main
from binep.errors import printable
from binep.training import runs
from conftest import small_recipe

LONG, DEEP = "x" * 300, "d/" * 3000


def ended(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["binep", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--epochs", "1", "--branch", LONG],
        ["train", "--epochs", "1", "--out", DEEP],
        ["train", "--data", DEEP],
        ["train", DEEP],
        ["results", DEEP],
        ["eval", LONG],
        ["report", DEEP],
        ["runs", LONG],
        ["predict", LONG, LONG],
        ["export", DEEP, "--to", "shipped"],
        ["hardware", "digits-1fc-w", "--costs", LONG],
        ["eval", "zero\0byte"],
    ],
)
def test_a_path_that_cannot_be_is_told_in_one_line(words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert ended(monkeypatch, *words) == 2
    told = capsys.readouterr().err
    assert told.startswith("binep: ") and told.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders on this system")
@pytest.mark.parametrize(
    "words",
    [
        ["train", "pipe.toml"],
        ["train", "--data", "pipe.csv"],
        ["predict", "pipe.safetensors", "pipe.png"],
        ["hardware", "digits-1fc-w", "--costs", "pipe.toml"],
        ["eval", "pipe.toml"],
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("toml", "csv", "safetensors", "png"):
        os.mkfifo(tmp_path / f"pipe.{name}")
    assert ended(monkeypatch, *words) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture(scope="module")
def odd_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a folder whose name would clear the screen, and is not UTF-8."""
    out = tmp_path_factory.mktemp("odd") / os.fsdecode(b"a\x1b[2J\x9b2J\xff")
    try:
        out.mkdir()
    except OSError:
        pytest.skip("this file system takes no such names")
    return runs.train(small_recipe("digits-1fc-w", "training.epochs=1"), out=out).folder


@pytest.mark.parametrize("words", [["eval"], ["runs"], ["results"], ["export"]])
def test_a_name_does_not_reach_the_terminal_as_it_is(words, odd_run, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    where = odd_run.parent if words == ["runs"] else odd_run
    more = {"results": ["--to", "kept"], "export": ["--to", "shipped"]}.get(words[0], [])
    assert ended(monkeypatch, *words, str(where), *more) == 0
    shown = capsys.readouterr().out
    assert shown and "\x1b[2J" not in shown and "\x9b" not in shown


def test_an_error_names_it_without_steering_the_terminal(monkeypatch, capsys):
    assert ended(monkeypatch, "eval", "no\x1b[2J run") == 2
    assert r"no\x1b[2J run is not a run" in capsys.readouterr().err


@pytest.mark.parametrize("letter", ["\x1b", "\x7f", "\x9b", "\u202e", "\u2028", "\ud800", "\x00"])
def test_nothing_that_steers_is_printable(letter: str):
    assert letter not in printable(f"a{letter}b") and printable(f"a{letter}b").startswith("a\\")


def test_a_text_that_steers_nothing_stays_as_it_is():
    assert printable("Größe\u00a05 \u00b1 1 \u6570\u5b57 \u221e") == "Größe\u00a05 ± 1 数字 ∞"


@pytest.mark.parametrize(
    ("redirection", "code", "told"),
    [(">&-", (0,), ""), ("> /dev/full", (2,), "the disk is full"), ("| head -n 1", (0, 1), "")],
)
def test_output_may_go_nowhere(redirection: str, code: tuple[int, ...], told: str):
    if "full" in redirection and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    command = f'set -o pipefail; "{sys.executable}" -m binep recipes --keys {redirection}'
    variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["bash", "-c", command], env=variables, capture_output=True, text=True)
    assert done.returncode in code and "Traceback" not in done.stderr
    assert told in done.stderr and done.stderr.count("\n") <= 1


def test_a_stream_that_cannot_write_a_letter_gets_it_escaped():
    program = "from binep.cli import main; main()"
    words = [sys.executable, "-c", program, "eval", "nowhere \u221e"]
    variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, env=variables, capture_output=True, text=True)
    assert done.returncode == 2 and r"nowhere \u221e is not a run" in done.stderr
