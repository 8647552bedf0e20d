"""The packed engine against the reference: binary activations on the CPU, one mini-batch.

    python benchmarks/packed.py [RECIPE ...] [--batches 20] [--train 300] [--reference 1]
                                [--threads N] [--data-dir DIR]

For each recipe a network is first trained for `--train` mini-batches by the packed engine, since
what an event-driven engine costs depends on how silent the network is. Then `--batches` of them
are timed, and `--reference` more by the reference engine, from the same state. Times are the best
and the median of a mini-batch; per sample: steps taken by all neurons (the rest are taken at
constant drives), bits that changed, entries of momenta touched.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator

# Torch's idle threads would otherwise spin for milliseconds on the cores that kernels need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor

from binep import data, recipe
from binep.data import Dataset
from binep.engines.packed import PackedEngine
from binep.engines.reference import ReferenceEngine
from binep.engines.select import Engine
from binep.runs import build_trainer

RECIPES = ["mnist-1fc-wa", "mnist-1fc-wa-a", "mnist-2fc-wa", "mnist-conv-wa"]


def mini_batches(dataset: Dataset, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless shuffled mini-batches of the training set."""
    source = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(dataset.train), generator=source)
        for chosen in order.split(size):
            yield dataset.inputs(dataset.train.images[chosen]), dataset.train.labels[chosen]


def timed(engine: Engine, batches: Iterator[tuple[Tensor, Tensor]], count: int) -> list[float]:
    """Milliseconds of each of so many mini-batches of training."""
    times = []
    for _ in range(count):
        x, labels = next(batches)
        began = time.perf_counter()
        engine.train(x, labels)
        times.append(1e3 * (time.perf_counter() - began))
    return times


def measure(name: str, args: argparse.Namespace) -> str:
    """One line of the table."""
    chosen = recipe.load(name)
    dataset = data.load(chosen.data.name, data_dir=args.data_dir)
    trainer = build_trainer(chosen, dataset, 0, torch.device("cpu"), "reference")
    network, optimizers = trainer.network, trainer.optimizers
    learning = chosen.build_learning(trainer.streams["sign"])
    packed = PackedEngine(network, learning, optimizers)
    batches = mini_batches(dataset, chosen.training.batch_size)
    timed(packed, batches, args.train + 1)
    packed.collect()
    before = packed.activity
    times = timed(packed, batches, args.batches)
    error = packed.collect().error("average")
    after = packed.activity
    samples = after.samples - before.samples
    steps, events, coincidences = (
        (getattr(after, key) - getattr(before, key)) / samples
        for key in ("steps", "events", "coincidences")
    )
    reference = timed(ReferenceEngine(network, learning, optimizers), batches, args.reference)
    best, median = min(times), statistics.median(times)
    nanoseconds = 1e6 * best / (samples / args.batches) / (events + coincidences)
    ratio = f"{min(reference):9.0f} {min(reference) / best:7.0f}" if reference else " " * 17
    return (
        f"{name:16} {ratio} {best:8.2f} {median:8.2f} {steps:7.1f} {events:8.0f} "
        f"{coincidences:9.0f} {nanoseconds:7.1f} {error:7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The packed engine against the reference.")
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--reference", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--data-dir")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    print(
        f"{torch.get_num_threads()} threads; milliseconds a mini-batch; a sample: steps, events, "
        "coincidences; training error in %"
    )
    print(
        f"{'recipe':16} {'reference':>9} {'ratio':>7} {'packed':>8} {'median':>8} {'steps':>7} "
        f"{'events':>8} {'coincid.':>9} {'ns/ev.':>7} {'error':>7}"
    )
    for name in args.recipes:
        print(measure(name, args), flush=True)


if __name__ == "__main__":
    main()
