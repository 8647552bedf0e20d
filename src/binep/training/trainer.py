"""Training: mini-batches, epochs, and a state that can be interrupted anywhere."""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from binep.core import metrics
from binep.core.metrics import Tally
from binep.core.network import READOUTS, Network
from binep.core.optim import Optimizers
from binep.data import Augmentation, Dataset, Split, shuffled
from binep.engines.base import Engine, TakesMany

# Read out in larger mini-batches than training: nothing is learnt from them.
TEST_BATCH = 500
# A neuron that a free phase's last step moves so far is not at rest. The recipes that ship stay
# below it.
RESTLESS = 0.035
# Where states are between 0 and 1, a bias or a weight this large decides alone.
RUNAWAY = 1e3

# What is random in a run, each with a generator of its own so that none disturbs another.
STREAMS = ("init", "sign", "noise", "shuffle", "augment")

Streams = dict[str, torch.Generator]


def random_streams(seed: int) -> Streams:
    """The generators of a run, all determined by its seed.

    They draw on the CPU, whatever device trains: a seed is the same run everywhere.
    """
    return {name: torch.Generator().manual_seed(_stream_seed(seed, name)) for name in STREAMS}


def _stream_seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big")


@dataclass
class Progress:
    """Where in training a run stands: between two mini-batches.

    Attributes:
        epoch: epochs finished.
        position: samples of the current epoch already trained on.
        order: the current epoch's order of samples, (count,); None between epochs.
        tally: what was counted in the current epoch so far.
        seconds: time spent training in the current epoch so far.
    """

    epoch: int = 0
    position: int = 0
    order: Tensor | None = None
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0


class Trainer:
    """Takes an engine through epochs of a data set.

    Args:
        drop_last: whether an epoch leaves out the samples that do not fill a mini-batch.
        set_rates: called with the number of finished epochs before each epoch begins.
    """

    def __init__(
        self,
        engine: Engine,
        network: Network,
        optimizers: Optimizers,
        dataset: Dataset,
        *,
        batch_size: int,
        augmentation: Augmentation,
        streams: Streams,
        drop_last: bool = False,
        set_rates: Callable[[Optimizers, int], None] | None = None,
    ) -> None:
        self.engine, self.network, self.optimizers = engine, network, optimizers
        self.dataset, self.batch_size, self.augmentation = dataset, batch_size, augmentation
        self.streams, self.set_rates = streams, set_rates
        count = len(dataset.train)
        self.samples = count - count % batch_size if drop_last else count
        self.progress = Progress()
        self._clock = time.perf_counter()

    @property
    def batches(self) -> int:
        """Mini-batches per epoch, the last one possibly smaller."""
        return math.ceil(self.samples / self.batch_size)

    def epoch(self, keep_going: Callable[[], bool] = lambda: True) -> dict[str, Any] | None:
        """Train to the end of the current epoch and measure it; None if told to stop before.

        `keep_going` is asked after each mini-batch, or after as many as the engine takes at once.
        A stopped epoch goes on where it was.
        """
        progress, train = self.progress, self.dataset.train
        if self.set_rates is not None:
            self.set_rates(self.optimizers, progress.epoch)
        if progress.order is None:
            order = shuffled(len(train), self.streams["shuffle"])
            progress.order = order.to(train.labels.device)
        self._clock = time.perf_counter()
        while progress.position < self.samples:
            chosen = progress.order[progress.position : self.samples][: self._samples_at_once()]
            augment = self.streams["augment"]
            images = self.augmentation(train.images[chosen], augment, self.batch_size)
            inputs, labels = self.dataset.inputs(images), train.labels[chosen]
            if isinstance(self.engine, TakesMany):
                self.engine.train_many(inputs, labels, self.batch_size)
            else:
                self.engine.train(inputs, labels)
            progress.position += len(chosen)
            if not keep_going():
                self.settle()
                return None
        self.settle()
        measured = self._measure()
        self.progress = Progress(epoch=progress.epoch + 1)
        return measured

    def _samples_at_once(self) -> int:
        """How many samples to hand over: one mini-batch, or as many as the engine takes at once."""
        if not isinstance(self.engine, TakesMany):
            return self.batch_size
        many = self.engine.at_once * self.batch_size
        left = self.samples - self.progress.position
        return many if left >= many else self.batch_size

    def collect(self) -> None:
        """Bring the epoch's tally up to date."""
        self.progress.tally += self.engine.collect()

    def settle(self) -> None:
        """Bring progress up to date, so that a checkpoint can be taken."""
        self.collect()
        now = time.perf_counter()
        self.progress.seconds += now - self._clock
        self._clock = now

    def _measure(self) -> dict[str, Any]:
        """The epoch's line of metrics; errors in per cent."""
        progress, tally = self.progress, self.progress.tally
        started = time.perf_counter()
        test = evaluate(self.engine, self.dataset, self.dataset.test)
        binary = [coupling for coupling in self.network.couplings if coupling.binary]
        sizes = [coupling.signs.numel() for coupling in binary]
        scales = [coupling.scale.detach() for coupling in binary]
        scale_sgd = self.optimizers.scale_sgd
        return {
            "epoch": progress.epoch + 1,
            "train_error": {r: tally.error(r) for r in READOUTS},
            "test_error": {r: test.error(r) for r in READOUTS},
            "loss": tally.loss / tally.samples,
            "test_loss": test.loss / test.samples,
            "flips": tally.flips,
            "pi": [metrics.pi(f, n) for f, n in zip(tally.flips, sizes, strict=True)],
            "alpha": [float(scale.mean()) for scale in scales],
            "alpha_range": [[float(scale.min()), float(scale.max())] for scale in scales],
            "alpha_clamped": scale_sgd.clamped if scale_sgd is not None else 0,
            "largest": _largest(self.network),
            "residual": tally.residual / tally.batches,
            "free_steps": tally.free_steps / tally.batches,
            "nudged_steps": tally.nudged_steps / tally.batches,
            "undecided": 100 * test.undecided / test.samples,
            "seconds": progress.seconds,
            "test_seconds": time.perf_counter() - started,
        }


def _largest(network: Network) -> float:
    """The largest weight, bias or scale, all signs apart, in absolute value."""
    found = [
        parameter.detach().abs().max()
        for name, parameter in network.named_parameters()
        if not name.endswith(".signs")
    ]
    return float(torch.stack(found).max()) if found else 0.0


def evaluate(engine: Engine, dataset: Dataset, split: Split) -> Tally:
    """Read all of a split out of the free phase."""
    tally = Tally()
    for images, labels in zip(
        split.images.split(TEST_BATCH), split.labels.split(TEST_BATCH), strict=True
    ):
        tally += engine.evaluate(dataset.inputs(images), labels)
    return tally


def diagnose(history: list[dict[str, Any]], binary: bool = False) -> dict[str, str]:
    """Signs of a training that has failed or is about to, by kind, each with what to try.

    Args:
        history: the lines of metrics so far.
        binary: whether activations are bits, whose states may go on moving without changing any.
    """
    found = {}
    last = history[-1]
    if not all(math.isfinite(last[key]) for key in ("loss", "test_loss", "residual")):
        found["nan"] = (
            "the loss is not a finite number: lower optimizer.lr_bias and optimizer.lr_scale"
        )
    elif last.get("largest", 0.0) > RUNAWAY:
        found["diverging"] = (
            f"a weight, bias or scale has grown to {last['largest']:.2g}: the network diverges; "
            "lower optimizer.lr_bias, lr_scale or lr_weight"
        )
    recent = history[-2:]
    for n, pi in enumerate(last["pi"]):
        if len(recent) == 2 and all(line["pi"][n] >= 0 for line in recent):
            found[f"flipping {n}"] = (
                f"coupling {n} flips all of its weights every epoch (pi {pi:.1f}): raise its "
                "optimizer.tau or lower its optimizer.gamma"
            )
    if last["undecided"] >= 99:
        found["dead"] = (
            "the output says the same for every class: it is dead or saturated; try another "
            "network.gain or network.bias, a smaller optimizer.lr_bias, or more network.per_class"
        )
    if not binary and RESTLESS <= last["residual"] < math.inf:
        found["restless"] = (
            "free phases end before the network rests (their last step still moves a neuron by "
            f"{last['residual']:.2g}): raise learning.free_steps; until then learning.sign="
            "'centered' learns better than 'random'"
        )
    return found
