"""Time mini-batches of a convolutional network for several ways to cut up its sums, on a GPU.

    python benchmarks/moving.py [RECIPE or RUN] [--batches 40] [--data-dir DIR]

Of the tiles upwards, the tiles downwards (those of float8, in which most steps are sent) and the
terms that one program adds up, one is changed at a time; then the best of each are put together.
A RUN is taken from its last checkpoint, nothing of it is written: samples of a trained network rest
later than those of a fresh one.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from binep import checkpoints, runs
from binep import recipe as recipes
from binep.bench import mini_batches, time_batches
from binep.data import Dataset, load
from binep.engines.cuda import by_moving
from binep.engines.cuda.couplings import Tile

GPU = torch.device("cuda")
PROCESSES = 8  # that compile


class Cut(NamedTuple):
    up: Tile = by_moving.EIGHT.up
    down: Tile = by_moving.EIGHT.down
    terms: tuple[int, int] = (by_moving.TERMS_UP, by_moving.TERMS_DOWN)

    def __str__(self) -> str:
        tiles = (
            f"{tile.rows} x {tile.outputs} x {tile.depth}, {tile.warps} warps, {tile.stages} "
            f"stages, {tile.registers or 'any'} registers"
            for tile in (self.up, self.down)
        )
        return f"up {next(tiles)}; down {next(tiles)}; {self.terms[0]} and {self.terms[1]} terms"


SHIPPED = Cut()


def changed() -> Iterator[Cut]:
    """What ships with one of its three parts changed."""
    for stages, registers in ((4, None), (3, 168), (3, 128)):
        yield SHIPPED._replace(up=SHIPPED.up._replace(stages=stages, registers=registers))
        yield SHIPPED._replace(down=SHIPPED.down._replace(stages=stages, registers=registers))
    yield SHIPPED._replace(up=SHIPPED.up._replace(outputs=64))
    yield SHIPPED._replace(down=SHIPPED.down._replace(depth=64))
    for terms in ((1 << 20, 1 << 20), (3200, 3200), (1600, 1600)):
        yield SHIPPED._replace(terms=terms)


def best_of_each(times: dict[Cut, float]) -> Cut:
    """The fastest of each part put together."""

    def fastest(part: str) -> Cut:
        others = [name for name in Cut._fields if name != part]
        alike = [
            cut for cut in times if all(getattr(cut, o) == getattr(SHIPPED, o) for o in others)
        ]
        return min(alike, key=times.__getitem__)

    return Cut(fastest("up").up, fastest("down").down, fastest("terms").terms)


class Job(NamedTuple):
    source: str
    data_dir: Path | None
    batches: int
    cut: Cut

    def milliseconds(self) -> float:
        """Of a mini-batch, the median."""
        run = runs.open_run(self.source) if Path(self.source).is_dir() else None
        recipe = run.recipe if run else recipes.load(self.source)
        dataset = images(recipe.data.name, self.data_dir)
        up, down, (by_moving.TERMS_UP, by_moving.TERMS_DOWN) = self.cut
        by_moving.EIGHT = by_moving.EIGHT._replace(up=up, down=down)
        trainer = runs.build_trainer(recipe, dataset, 0, GPU, "cuda")
        found = checkpoints.load(run.folder, warn=print) if run else None
        if found is not None:
            checkpoints.restore(trainer, *found)
        batches = list(islice(mini_batches(recipe, dataset, trainer.streams), self.batches))
        return time_batches(trainer.engine, batches, self.batches).milliseconds


@cache
def images(name: str, data_dir: Path | None) -> Dataset:
    return load(name, data_dir=data_dir).to(GPU)


def compile_kernels(job: Job) -> None:
    """Leave them in Triton's cache, for the process that times them."""
    job._replace(batches=1).milliseconds()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", default="cifar10-conv-w-a", metavar="RECIPE or RUN")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    cuts = [SHIPPED, *changed()]
    jobs = {cut: Job(given.source, given.data_dir, given.batches, cut) for cut in cuts}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_kernels, jobs.values()))
    times = dict[Cut, float]()
    for cut, job in jobs.items():
        times[cut] = job.milliseconds()
        print(f"{times[cut]:6.2f} ms  {cut}", flush=True)
    best = best_of_each(times)
    took = Job(given.source, given.data_dir, given.batches, best).milliseconds()
    print(f"{took:6.2f} ms  {best}, the best of each together")


if __name__ == "__main__":
    main()
