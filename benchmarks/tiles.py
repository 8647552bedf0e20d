"""Time the tiles that the convolutions of a recipe can be cut into on a GPU.

    python benchmarks/tiles.py [RECIPE...] [--batch 64] [--show 4]

For each convolution between layers that relax, up and down, alone on the GPU: microseconds a launch
for the fastest tiles, and for the one that `fitting_tile` chooses.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

import torch

from binep.core.couplings import ConvPool
from binep.engines.cuda.convolution import Tile, channels_last, convolve, fitting_tile
from binep.engines.cuda.graph import record
from binep.training import recipe as recipes

SHARED = 200_000  # bytes of a multiprocessor's memory that tiles may fill
LAUNCHES = 40  # in one graph
PROCESSES = 8  # that compile


class Convolution(NamedTuple):
    """What is read, (channels, height, width), and how it is added up."""

    name: str
    read: tuple[int, ...]
    outputs: int
    kernel: int
    padding: int

    @property
    def map_shape(self) -> list[int]:
        return [side + 2 * self.padding - self.kernel + 1 for side in self.read[1:]]

    @property
    def terms(self) -> int:
        return self.kernel**2 * self.read[0]

    def rows(self, batch: int) -> int:
        return batch * self.map_shape[0] * self.map_shape[1]

    def chosen(self, batch: int) -> Tile:
        return fitting_tile(self.rows(batch), self.outputs, self.terms)

    def tiles(self, batch: int) -> Iterator[Tile]:
        """Those that fit into memory and leave work for half of the multiprocessors."""
        yield self.chosen(batch)
        for rows, outputs, depth, warps in product((64, 128), (16, 32, 64, 128), (64, 128), (4, 8)):
            fits = [s for s in (3, 4) if 2 * s * depth * (rows + outputs) <= SHARED]
            tile = Tile(rows, outputs, depth, warps, max(fits, default=0))
            enough = tile.programs(self.rows(batch), self.outputs) >= 60
            if fits and enough and outputs <= self.outputs and tile != self.chosen(batch):
                yield tile

    def launch(self, batch: int, tile: Tile) -> "torch.cuda.CUDAGraph":
        device = torch.device("cuda")
        x = channels_last(batch, self.read, torch.float16, device).uniform_()
        weights = torch.ones(
            self.kernel, self.kernel, self.read[0], self.outputs, dtype=x.dtype, device=device
        )
        sums = channels_last(batch, (self.outputs, *self.map_shape), torch.float32, device)

        def launches() -> None:
            for _ in range(LAUNCHES):
                convolve(x, weights, self.padding, sums, tile=tile)

        return record(launches)


def convolutions(name: str) -> Iterator[Convolution]:
    """Those of a recipe whose both layers relax, in both directions."""
    network = recipes.load(name).build_network()
    for n, coupling in enumerate(network.couplings):
        if n > 0 and isinstance(coupling, ConvPool):
            up = Convolution(
                f"{name} {n} up",
                network.layer_shapes[n - 1],
                coupling.above,
                coupling.kernel,
                coupling.padding,
            )
            yield up
            yield Convolution(
                f"{name} {n} down",
                (coupling.above, *up.map_shape),
                coupling.below,
                coupling.kernel,
                coupling.kernel - 1 - coupling.padding,
            )


def compile_tile(job: tuple[Convolution, int, Tile]) -> None:
    """Leave the kernel in Triton's cache, for the process that times it."""
    convolution, batch, tile = job
    convolution.launch(batch, tile)


def microseconds(graph: "torch.cuda.CUDAGraph") -> float:
    """The shortest of five, a launch."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times) / LAUNCHES * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Time tiles of convolutions.")
    parser.add_argument("recipes", nargs="*", default=["cifar10-conv-w", "mnist-conv-w"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--show", type=int, default=4)
    given = parser.parse_args()
    found = [each for name in given.recipes for each in convolutions(name)]
    jobs = [(each, given.batch, tile) for each in found for tile in each.tiles(given.batch)]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_tile, jobs))
    for convolution in found:
        tiles = list(convolution.tiles(given.batch))
        timed = [(microseconds(convolution.launch(given.batch, tile)), tile) for tile in tiles]
        chosen = timed[0]
        work = 2 * convolution.rows(given.batch) * convolution.outputs * convolution.terms
        print(f"{convolution.name}: {work / 1e9:.2f} GFLOP, {len(tiles)} tiles")
        for mark, (took, tile) in [
            ("chosen", chosen),
            *(("", each) for each in sorted(timed)[: given.show]),
        ]:
            programs = tile.programs(convolution.rows(given.batch), convolution.outputs)
            shape = " x ".join(map(str, tile[:3]))
            print(
                f"  {took:6.1f} us {work / took / 1e6:5.0f} TFLOP/s  {shape:15} {tile.warps} warps "
                f"{tile.stages} stages {programs:4} programs {mark}",
                flush=True,
            )


if __name__ == "__main__":
    main()
