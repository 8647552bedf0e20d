"""What layers in turn save: seconds per epoch of a recipe as it is and with them, in one run.

    python benchmarks/turns.py [RECIPE ...] [--train 400] [--engine auto] [--device auto]
    python benchmarks/turns.py cifar10-conv-w-a --cut 800 1600 3200

Real neurons take half of the steps in turn; bits lose their inner state (`hopfield`). Both networks
first train, on the recipe's own images with `--data-dir`, otherwise on digits (those that come with
binep, stretched to the size that the recipe asks for), since samples of an untrained network rest
sooner; then they take turns, and the table has the median mini-batch times the mini-batches of an
epoch. "CPU" is processor time, of all threads: on a machine that others use, too, its ratio says
more. `--json` keeps every round. `--cut` compares how finely the convolutions of a turn are cut up
on a GPU; `--profile` adds its longest kernels.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from binep.core.metrics import Tally
from binep.data import Dataset, Split, load
from binep.engines.base import Engine, TakesMany
from binep.engines.select import DEVICES, select_device, select_engine
from binep.errors import BinepError
from binep.files import write_whole
from binep.studies.bench import mini_batches
from binep.training import recipe as recipes
from binep.training.provenance import environment
from binep.training.recipe import Recipe
from binep.training.trainer import random_streams

RECIPES = (
    "mnist-1fc-w",
    "mnist-2fc-w",
    "mnist-conv-w",
    "cifar10-conv-w-a",
    "mnist-1fc-wa",
    "mnist-2fc-wa",
    "mnist-conv-wa",
)
# Gains and taus with which bits learn something, so that they are as busy as in a training.
BITS = {
    "mnist-1fc-wa": ["network.gain=[2.0, 1.0]", "optimizer.tau=[1e-6, 8e-7]"],
}
PROFILED = 32  # mini-batches


def in_turn(recipe: Recipe) -> list[str]:
    """What makes a recipe's layers move in turn."""
    if recipe.network.activations == "binary":
        more = ["network.dynamics=hopfield", "learning.sign=positive", "learning.beta=1"]
        return [*more, "learning.free_steps=100", "learning.nudged_steps=50"]
    steps = recipe.learning.free_steps // 2, recipe.learning.nudged_steps // 2
    return [
        "network.updates=alternating",
        *(f"learning.{kind}_steps={n}" for kind, n in zip(("free", "nudged"), steps, strict=True)),
    ]


def stretched(recipe: Recipe, device: torch.device) -> Dataset:
    """The digits as images of the size and colours of a recipe's own."""
    source, digits = recipe.source, load("digits")
    colours, *size = source.image_shape
    images = F.interpolate(digits.train.images.float(), size, mode="bilinear")
    split = Split(images.round().byte().expand(-1, colours, -1, -1), digits.train.labels)
    made = Dataset(recipe.data.name, split, split, source.classes, source.mean, source.std)
    return made.to(device)


class Subject:
    """An engine, and the mini-batches that it trains on, several in one call if it wants them."""

    def __init__(
        self, recipe: Recipe, engine: str, device: torch.device, train: int, data_dir: Path | None
    ) -> None:
        streams = random_streams(0)
        network = recipe.build_network(streams["init"]).to(device)
        optimizers = recipe.build_optimizers(network, streams["noise"])
        learning = recipe.build_learning(streams["sign"])
        self.engine: Engine = select_engine(engine, network, learning, optimizers, print)
        self.at_once = self.engine.at_once if isinstance(self.engine, TakesMany) else 1
        self.size, self.device = recipe.training.batch_size, device
        made = (
            stretched(recipe, device) if data_dir is None else recipe.load_data(data_dir=data_dir)
        )
        self.source = mini_batches(recipe, made.to(device), streams)
        self.epoch = math.ceil(recipe.source.train_count / self.size)
        self.milliseconds: list[float] = []
        self.processor: list[float] = []
        self.time(max(1, train))
        self.milliseconds.clear()
        self.processor.clear()

    def time(self, count: int) -> Tally:
        """Train on so many mini-batches, and note how long one took."""
        chosen = list(islice(self.source, -(-count // self.at_once) * self.at_once))
        calls = [
            [torch.cat(parts) for parts in zip(*chosen[n : n + self.at_once], strict=True)]
            for n in range(0, len(chosen), self.at_once)
        ]
        self._wait()
        start, busy = time.perf_counter(), time.process_time()
        for x, labels in calls:
            if isinstance(self.engine, TakesMany):
                self.engine.train_many(x, labels, self.size)
            else:
                self.engine.train(x, labels)
        self._wait()
        self.milliseconds.append(1e3 * (time.perf_counter() - start) / len(chosen))
        self.processor.append(1e3 * (time.process_time() - busy) / len(chosen))
        return self.engine.collect()

    def profile(self, count: int) -> Iterator[str]:
        """The kernels that take longest, and how often they are launched, in a mini-batch."""
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            self.time(PROFILED)
        self.milliseconds.pop()
        self.processor.pop()
        events = sorted(found.key_averages(), key=lambda each: -each.self_device_time_total)
        for event in events[:count]:
            taken, launches = event.self_device_time_total / PROFILED, event.count / PROFILED
            yield f"{taken:.1f} us in {launches:g}: {event.key[:60]}"

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(
    name: str, subjects: Sequence[tuple[str, Recipe]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Print a line for each subject; they are timed one after the other, several times."""
    device, made = select_device(options.device), []
    for label, recipe in subjects:
        try:
            common = options.engine, device, options.train, options.data_dir
            made.append((label, Subject(recipe, *common)))
        except BinepError as error:
            print(f"| {name} | {label} | {error} |", flush=True)
    tallies: dict[str, Tally] = {}
    for _ in range(options.rounds):
        for label, subject in made:
            tallies[label] = subject.time(options.batches)
    first, found = None, []
    for label, subject in made:
        middle, seen = statistics.median(subject.milliseconds), tallies[label]
        busy = statistics.median(subject.processor)
        first = first or (middle, busy)
        steps = (f"{n / seen.batches:.1f}" for n in (seen.free_steps, seen.nudged_steps))
        print(
            f"| {name} | {label} | {middle:.3f} | {max(subject.milliseconds):.3f} | "
            f"{middle * subject.epoch / 1e3:.2f} | {first[0] / middle:.2f} | {busy:.3f} | "
            f"{first[1] / busy:.2f} | {' + '.join(steps)} | "
            f"{100 * seen.wrong['average'] / seen.samples:.1f} | {subject.engine.precision} |",
            flush=True,
        )
        for line in subject.profile(options.profile) if options.profile else ():
            print(f"  {line}", flush=True)
        found.append(
            {"recipe": name, "layers": label, "engine": subject.engine.name}
            | {"ms": subject.milliseconds, "cpu_ms": subject.processor}
            | {"free": seen.free_steps / seen.batches, "nudged": seen.nudged_steps / seen.batches}
        )
    return found


def keep(
    options: argparse.Namespace, load: list[tuple[float, ...]], found: list[dict[str, Any]]
) -> None:
    """Write what was measured so far, where, and what the machine was doing (its load average)."""
    here = environment(select_device(options.device))
    chosen = {
        "train": options.train,
        "batches": options.batches,
        "images": "digits, stretched" if options.data_dir is None else "the recipes' own",
    }
    told = {"environment": here, "processors": os.cpu_count(), "load": load, **chosen}
    rows = ",\n".join(json.dumps(row) for row in found)
    write_whole(options.json, f'{json.dumps(told)[:-1]}, "rows": [\n{rows}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--train", type=int, default=400, help="mini-batches before the timing")
    parser.add_argument("--batches", type=int, default=64, help="timed in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="of the recipes' own images")
    parser.add_argument("--json", type=Path, help="keep what was measured here")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument("--cut", type=int, nargs="*", help="terms of a sum in one program")
    parser.add_argument("--profile", type=int, default=0, help="kernels to be shown, on a GPU")
    options = parser.parse_args()
    head = "recipe | layers | ms | slowest | s/epoch | ratio | CPU, ms | ratio | steps | wrong %"
    print(f"| {head} | precision |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    load, found = [os.getloadavg()], []
    for name in options.recipes:
        recipe = recipes.load(name)
        turned = recipes.load(name, [*in_turn(recipe), *BITS.get(name, [])])
        found += measure(name, [("as they are", recipe), ("in turn", turned)], options)
        if options.json:
            keep(options, [*load, os.getloadavg()], found)
        for terms in options.cut or ():
            from binep.engines.cuda.relaxers import conv_delta

            conv_delta.TERMS_IN_TURN = terms
            measure(name, [(f"in turn, {terms} terms", turned)], options)


if __name__ == "__main__":
    main()
