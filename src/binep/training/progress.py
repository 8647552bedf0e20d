"""Watching a run: a progress bar on a terminal, plain lines elsewhere, TensorBoard on demand."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from binep import registry
from binep.errors import BinepError
from binep.training.trainer import Trainer


class Watcher:
    """Is told of everything that happens in a run; does nothing by default."""

    def begin(self, name: str, trainer: Trainer, epochs: int) -> None:
        """Training (again) begins; `trainer.progress` says where."""

    def batch(self, trainer: Trainer) -> None:
        """A mini-batch is done; called after each one, so it must be quick."""

    def epoch(self, line: dict[str, Any]) -> None:
        """An epoch is done; `line` is its line of metrics."""

    def say(self, text: str) -> None:
        """A message for the user."""

    def end(self) -> None:
        """Training has ended or stopped."""


def summary(line: dict[str, Any]) -> str:
    """An epoch's metrics in one line."""
    train, test = line["train_error"]["average"], line["test_error"]["average"]
    pi = " ".join(f"{value:.1f}" for value in line["pi"])
    return (
        f"epoch {line['epoch']:3d}  train {train:5.2f} %  test {test:5.2f} %  "
        f"loss {line['loss']:.4f}" + (f"  pi {pi}" if pi else "") + f"  {line['seconds']:.1f} s"
    )


class QuietWatcher(Watcher):
    """Prints messages for the user only."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class PlainWatcher(QuietWatcher):
    """One plain line an epoch, after a label where several runs are watched at once."""

    def __init__(self, label: str = "") -> None:
        self.label = label

    def begin(self, name: str, trainer: Trainer, epochs: int) -> None:
        done = trainer.progress.epoch
        left = f"epoch {done + 1} to {epochs}" if done < epochs else "no epoch is left to train"
        print(f"{name}: {left}", flush=True)

    def epoch(self, line: dict[str, Any]) -> None:
        print(self.label + summary(line), flush=True)


class BarWatcher(Watcher):
    """A progress bar for the epoch and one for the run, with errors, flips and batches a second."""

    REFRESH = 0.25

    def begin(self, name: str, trainer: Trainer, epochs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>5.0f}/{task.total:.0f}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(),
        )
        done = trainer.progress.epoch
        self.run = self.bars.add_task(f"[bold]{name}", total=epochs, completed=done, note="")
        self.current = self.bars.add_task("epoch", total=trainer.batches, note="")
        self.last, self.last_batches = time.monotonic(), self._batches(trainer)
        self.bars.start()

    def batch(self, trainer: Trainer) -> None:
        now = time.monotonic()
        if now - self.last < self.REFRESH:
            return
        batches = self._batches(trainer)
        speed = (batches - self.last_batches) / (now - self.last)
        trainer.collect()
        tally = trainer.progress.tally
        note = f"{max(speed, 0):.1f} batches/s  train {tally.error('average'):.2f} %"
        if tally.flips:
            note += f"  flips {sum(tally.flips):,}"
        self.bars.update(self.current, completed=batches, note=note)
        self.last, self.last_batches = now, batches

    def epoch(self, line: dict[str, Any]) -> None:
        test = line["test_error"]["average"]
        self.bars.update(self.run, completed=line["epoch"], note=f"test {test:.2f} %")
        self.bars.update(self.current, completed=0)
        self.bars.console.print(summary(line), highlight=False)
        self.last_batches = 0

    def say(self, text: str) -> None:
        if hasattr(self, "bars"):
            self.bars.console.print(f"[yellow]{text}", highlight=False)
        else:
            print(text, file=sys.stderr)

    def end(self) -> None:
        self.bars.stop()

    @staticmethod
    def _batches(trainer: Trainer) -> int:
        return -(-trainer.progress.position // trainer.batch_size)


class TensorBoardWatcher(Watcher):
    """Writes the numbers of every epoch for TensorBoard, into the run's folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BinepError(
                "logger 'tensorboard' needs the package tensorboard: "
                "pip install 'binep[tensorboard]'"
            ) from None
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def epoch(self, line: dict[str, Any]) -> None:
        for split in ("train", "test"):
            for readout, value in line[f"{split}_error"].items():
                self.writer.add_scalar(f"error/{split} ({readout})", value, line["epoch"])
        for key in ("loss", "test_loss", "residual", "seconds"):
            self.writer.add_scalar(key, line[key], line["epoch"])
        for key in ("pi", "alpha", "flips"):
            for n, value in enumerate(line[key]):
                self.writer.add_scalar(f"{key}/coupling {n}", value, line["epoch"])

    def end(self) -> None:
        self.writer.close()


class Watchers(Watcher):
    """Several watchers as one."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def begin(self, name: str, trainer: Trainer, epochs: int) -> None:
        for watcher in self.watchers:
            watcher.begin(name, trainer, epochs)

    def batch(self, trainer: Trainer) -> None:
        for watcher in self.watchers:
            watcher.batch(trainer)

    def epoch(self, line: dict[str, Any]) -> None:
        for watcher in self.watchers:
            watcher.epoch(line)

    def say(self, text: str) -> None:
        for watcher in self.watchers:
            watcher.say(text)

    def end(self) -> None:
        for watcher in self.watchers:
            watcher.end()


def start_loggers(names: Iterable[str], folder: Path) -> list[Watcher]:
    """Registered loggers, by name, each at work in a run's folder."""
    found = []
    for name in names:
        logger = registry.loggers[name](folder)
        if not isinstance(logger, Watcher):
            raise BinepError(
                f"logger {name!r} is {type(logger).__name__}: allowed is a class of "
                "binep.training.progress.Watcher, made with the run's folder"
            )
        found.append(logger)
    return found


def usual_watcher() -> Watcher:
    """A progress bar if a person is watching, plain lines if not."""
    return BarWatcher() if sys.stdout.isatty() else PlainWatcher()
