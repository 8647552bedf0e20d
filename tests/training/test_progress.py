"""What a person or TensorBoard gets to see of a run."""

import sys

import pytest

from binep.errors import BinepError
from binep.training import runs
from binep.training.progress import (
    BarWatcher,
    PlainWatcher,
    TensorBoardWatcher,
    Watchers,
    usual_watcher,
)
from conftest import small_recipe


def test_plain_lines_one_an_epoch(tmp_path, capsys: pytest.CaptureFixture):
    runs.train(small_recipe("digits-1fc-w"), out=tmp_path, watcher=PlainWatcher())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits-1fc-w-seed0: epoch 1 to 2"
    assert len(lines) == 3
    for line in lines[1:]:
        assert all(word in line for word in ("train", "test", "loss", "pi"))


def test_the_bar_shows_errors_flips_and_speed(tmp_path, capsys: pytest.CaptureFixture):
    watcher = BarWatcher()
    watcher.REFRESH = 0.0
    run = runs.train(small_recipe("digits-1fc-w"), out=tmp_path, watcher=watcher)
    shown = capsys.readouterr().out
    assert "epoch   1" in shown and "epoch   2" in shown
    assert watcher.bars.tasks[0].completed == 2
    note = watcher.bars.tasks[1].fields["note"]
    assert "batches/s" in note and "train" in note and "flips" in note
    # Looking at a run does not change what it counts.
    plain = runs.train(small_recipe("digits-1fc-w"), out=tmp_path / "plain")
    for seen, unseen in zip(run.metrics, plain.metrics, strict=True):
        assert seen["flips"] == unseen["flips"] and seen["train_error"] == unseen["train_error"]


def test_tensorboard_gets_every_epoch(tmp_path):
    pytest.importorskip("tensorboard")
    watcher = Watchers(PlainWatcher(), TensorBoardWatcher(tmp_path / "board"))
    runs.train(small_recipe("digits-1fc-w"), out=tmp_path, watcher=watcher)
    assert list((tmp_path / "board" / "tensorboard").glob("events*"))


def test_a_missing_tensorboard_is_told(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BinepError, match="pip install"):
        TensorBoardWatcher(tmp_path)


def test_without_a_terminal_lines_are_plain():
    assert isinstance(usual_watcher(), PlainWatcher)


def test_words_before_the_bar_are_not_lost(capsys: pytest.CaptureFixture):
    BarWatcher().say("engine reference")
    assert "engine reference" in capsys.readouterr().err
