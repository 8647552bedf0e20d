"""Training a network of your own on data of your own, on the fastest engine that runs it."""

from collections.abc import Callable
from typing import Any

from binep.core.gradients import Learning
from binep.core.network import Network
from binep.core.optim import Optimizers
from binep.data import Augmentation, Dataset
from binep.engines.select import select_engine
from binep.errors import BinepError
from binep.training.progress import Watcher, usual_watcher
from binep.training.trainer import Trainer, random_streams


def train(
    network: Network,
    dataset: Dataset | Any,
    learning: Learning,
    optimizers: Optimizers,
    *,
    epochs: int = 1,
    batch_size: int = 64,
    seed: int = 0,
    drop_last: bool = False,
    augmentation: Augmentation | None = None,
    engine: str = "auto",
    watcher: Watcher | None = None,
    keep_going: Callable[[], bool] = lambda: True,
) -> list[dict[str, Any]]:
    """Train a network where it is, and return one line of metrics per epoch.

    Args:
        dataset: a `Dataset` of `binep.data`, a torch `Dataset` or `DataLoader`, or a pair of
            arrays (samples, labels), of which a fifth is kept for testing.
        seed: of the order of samples and of augmentation.
        watcher: hears of every epoch; by default a progress bar, or plain lines.
        keep_going: asked after every mini-batch whether to go on.

    >>> import torch
    >>> from binep import Dense, EquilibriumPropagation, assign_optimizers, data
    >>> net = Network((64,), [Dense(64, 32), Dense(32, 10)])
    >>> rates = {"gamma": 1e-3, "tau": 5e-5, "lr_bias": 0.05}
    >>> ep, digits = EquilibriumPropagation(10, 5, 0.3), data.load("digits")
    >>> lines = train(net, digits, ep, assign_optimizers(net, **rates), watcher=Watcher())
    >>> len(lines), net.free_steps
    (1, 10)
    """
    if epochs < 1 or batch_size < 1:
        raise BinepError(f"epochs={epochs}, batch_size={batch_size}: allowed is at least 1")
    watcher, data = watcher or usual_watcher(), as_dataset(dataset)
    if batch_size > len(data.train):
        raise BinepError(
            f"batch_size={batch_size}: allowed is at most {len(data.train)}, the training samples"
        )
    trainer = Trainer(
        select_engine(engine, network, learning, optimizers, watcher.say),
        network,
        optimizers,
        data.to(next(network.parameters()).device),
        batch_size=batch_size,
        drop_last=drop_last,
        augmentation=augmentation or Augmentation(),
        streams=random_streams(seed),
    )
    network.free_steps = learning.free_steps
    lines: list[dict[str, Any]] = []

    def after_batch() -> bool:
        watcher.batch(trainer)
        return keep_going()

    watcher.begin("training", trainer, epochs)
    try:
        while len(lines) < epochs and (line := trainer.epoch(after_batch)) is not None:
            lines.append(line)
            watcher.epoch(line)
    finally:
        watcher.end()
    return lines


def as_dataset(source: Dataset | Any) -> Dataset:
    """A data set of whatever holds samples and labels."""
    from binep.data import own

    if isinstance(source, Dataset):
        return source
    if isinstance(source, tuple):
        return own.from_arrays(*source)
    return own.from_torch(source)
