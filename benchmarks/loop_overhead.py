"""How much the training loop adds to the engine's own mini-batches.

    python benchmarks/loop_overhead.py [RECIPE] [--batches 60]

Times the same mini-batches of made-up images twice, alternating: through `Trainer.epoch` with all a
run does between mini-batches (shuffling, gathering, watching, asking whether to stop), and as bare
calls of the engine. Prints the ratio of the medians over the rounds.
"""

import argparse
import statistics
import time

import torch

from binep.data import DATASETS, Dataset, Split
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.progress import Watcher


def timed(rounds: int, batches: int, name: str) -> tuple[list[float], list[float]]:
    recipe = recipes.load(name)
    source, size = DATASETS[recipe.data.name], recipe.training.batch_size
    images = torch.randint(256, (size * batches, *source.image_shape), dtype=torch.uint8)
    train = Split(images, torch.randint(source.classes, (len(images),)))
    tiny = Split(train.images[:1], train.labels[:1])
    dataset = Dataset(source.name, train, tiny, source.classes, source.mean, source.std)
    trainer = runs.build_trainer(recipe, dataset, 0, torch.device("cpu"))
    engine, watcher = trainer.engine, Watcher()
    ready = [
        (dataset.inputs(x), y)
        for x, y in zip(images.split(size), train.labels.split(size), strict=True)
    ]

    def keep_going() -> bool:
        watcher.batch(trainer)
        return True

    bare, looped = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        for x, labels in ready:
            engine.train(x, labels)
        engine.collect()
        bare.append(time.perf_counter() - began)
        line = trainer.epoch(keep_going)
        assert line is not None
        looped.append(line["seconds"])
    return bare[1:], looped[1:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="digits-1fc-w")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    bare, looped = timed(options.rounds, options.batches, options.recipe)
    ratio = statistics.median(b / a for a, b in zip(bare, looped, strict=True))
    print(
        f"{options.recipe}: engine {1e3 * statistics.median(bare) / options.batches:.3f} ms, "
        f"loop {1e3 * statistics.median(looped) / options.batches:.3f} ms a mini-batch, "
        f"ratio {ratio:.3f} (median of {len(bare)} rounds of {options.batches})"
    )
