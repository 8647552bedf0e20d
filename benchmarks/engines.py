"""The reference engine against the fastest one, recipe by recipe, on the device present.

    python benchmarks/engines.py [RECIPE...] [--engine auto] [--device auto] [--batches 20]

Both engines train the same mini-batches of made-up images (the digits recipes excepted, none of
the data is needed; made-up images are busier than real ones, so engines whose cost follows activity
do better in training). The first mini-batch of each engine, with what it compiles or records, is
not counted. Prints a Markdown table: milliseconds a mini-batch, their ratio, and seconds an epoch.
"""

import argparse
import math
import time

import torch

from binep import recipe as recipes
from binep import runs
from binep.data import DATASETS
from binep.engines.select import Engine, select_device, select_engine
from binep.recipe import Recipe
from binep.training import random_streams

PAPER = [
    "mnist-1fc-w",
    "mnist-2fc-w",
    "mnist-conv-w",
    "cifar10-conv-w",
    "mnist-1fc-wa",
    "mnist-2fc-wa",
    "mnist-conv-wa",
]


def build(recipe: Recipe, engine: str, device: torch.device) -> Engine:
    streams = random_streams(0, device)
    network = recipe.build_network(streams["init"]).to(device)
    optimizers = recipe.build_optimizers(network, streams["noise"])
    return select_engine(engine, network, recipe.build_learning(streams["sign"]), optimizers, print)


def milliseconds(engine: Engine, images: torch.Tensor, labels: torch.Tensor, count: int) -> float:
    """Mean over `count` mini-batches, after one that is not counted; `collect` waits for all."""
    engine.train(images[0], labels[0])
    engine.collect()
    began = time.perf_counter()
    for n in range(count):
        engine.train(images[n % len(images)], labels[n % len(labels)])
    engine.collect()
    return 1e3 * (time.perf_counter() - began) / count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=PAPER)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--reference-batches", type=int, default=2)
    options = parser.parse_args()
    device = select_device(options.device)
    where = runs.environment(device)
    print(f"{where['device_name']}, torch {where['torch']}, commit {where['commit']}\n")
    print("| recipe | engine | reference, ms | engine, ms | ratio | s an epoch |")
    print("|---|---|---|---|---|---|")
    for name in options.recipes:
        recipe = recipes.load(name)
        source, size = DATASETS[recipe.data.name], recipe.training.batch_size
        generator = torch.Generator(device).manual_seed(0)
        shape = (8, size, *source.image_shape)
        images = torch.randint(256, shape, generator=generator, device=device, dtype=torch.uint8)
        labels = torch.randint(10, shape[:2], generator=generator, device=device)
        slow = milliseconds(
            build(recipe, "reference", device), images, labels, options.reference_batches
        )
        engine = build(recipe, options.engine, device)
        fast = milliseconds(engine, images, labels, options.batches)
        epoch = fast * math.ceil(source.train_count / size) / 1e3
        print(
            f"| {name} | {engine.name} | {slow:.1f} | {fast:.3f} | {slow / fast:.1f} "
            f"| {epoch:.2f} |",
            flush=True,
        )
