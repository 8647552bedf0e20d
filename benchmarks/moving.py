"""Time the convolutions of a step of a network whose samples move, cut up in several ways (GPU).

    python benchmarks/moving.py [RECIPE] [--batch 64] [--moves 64 40 8]

All convolutions of one direction are one launch: microseconds for several numbers of samples that
still move, in float8 and in float16, for the tiles that ship and for others, and the registers that
a thread takes. What is read is made up; how long it takes does not depend on it.
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from tiles import LAUNCHES, PROCESSES, microseconds

from binep.engines.cuda import by_moving
from binep.engines.cuda.by_moving import EIGHT, HALF, Convolutions, Moving, Precision, Ways
from binep.engines.cuda.couplings import Tile
from binep.engines.cuda.engine import CudaEngine
from binep.engines.cuda.graph import record
from binep.engines.cuda.moving import convolve_kernel
from binep.training import recipe as recipes

GPU = torch.device("cuda")


class Cut(NamedTuple):
    """How one direction is cut up: its tiles, and the terms that one program adds up."""

    precision: Precision
    up: bool
    tile: Tile
    terms: int

    def __str__(self) -> str:
        kind = "float8 " if self.precision.dtype == EIGHT.dtype else "float16"
        rows, outputs, depth, warps, stages, registers = self.tile
        return (
            f"{kind} {'up  ' if self.up else 'down'} {rows} x {outputs} x {depth}, {warps} warps, "
            f"{stages} stages, {registers or 'any'} registers, {self.terms} terms"
        )


def cuts() -> Iterator[Cut]:
    """What ships, then with one part of it changed."""
    for precision in (EIGHT, HALF):
        for up, tile, terms in (
            (True, precision.up, by_moving.TERMS_UP),
            (False, precision.down, by_moving.TERMS_DOWN),
        ):
            shipped = Cut(precision, up, tile, terms)
            yield shipped
            for other in (1 << 20, 3200, 1600):
                if other != terms:
                    yield shipped._replace(terms=other)
            for change in (
                {"stages": 7 - tile.stages},
                {"registers": 168},
                {"registers": 128},
                {"rows": 128, "warps": 8},
                {"outputs": tile.outputs // 2},
                {"depth": tile.depth // 2},
            ):
                yield shipped._replace(tile=tile._replace(**change))


class Watched:
    """The kernel, which tells what its last launch was compiled to."""

    last: Any = None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(**arguments: Any) -> None:
            self.last = convolve_kernel[grid](**arguments)

        return launch


class Job(NamedTuple):
    recipe: str
    batch: int
    moves: Sequence[int]
    cut: Cut

    def run(self) -> tuple[list[float], str]:
        """Microseconds of a launch, and what a thread of it takes."""
        kernel = Watched()
        by_moving.convolve_kernel = kernel  # type: ignore[assignment]
        relaxer, ways, way = self._built()
        wide, summed = relaxer.total, relaxer.map_total
        wide, summed = (wide, summed) if self.cut.up else (summed, wide)
        dtype, integer = ways.precision.dtype, {"dtype": torch.int32, "device": GPU}
        read = (20 * torch.randn(self.batch, wide, device=GPU)).to(dtype)
        sums = torch.zeros(self.batch, summed, device=GPU)
        whole = torch.zeros(self.batch, relaxer.total, device=GPU)
        count = torch.zeros(1, **integer)
        arguments = {
            "weights": ways.weights,
            "parts": torch.empty(way.room(self.batch), device=GPU),
            "arrived": torch.zeros(way.programs(self.batch), **integer),
            "order": torch.arange(self.batch, **integer),
            "count": count,
            "changed": torch.zeros(self.batch, **integer),
            "delta": whole.to(dtype),
            "unit": by_moving.UNIT,
            "SEND": not self.cut.up,
            "HOLD": False,
        }
        arguments |= dict.fromkeys(("pooled", "state", "sent", "new_sent", "held"), whole)

        def launches() -> None:
            for _ in range(LAUNCHES):
                way.launch(read, sums, **arguments)

        graph, times = record(launches), []
        for each in self.moves:
            count.fill_(each)
            times.append(microseconds(graph))
        return times, f"{kernel.last.n_regs} registers, {kernel.last.n_spills} spilled"

    def _built(self) -> tuple[Moving, Ways, Convolutions]:
        recipe = recipes.load(self.recipe)
        direction = "up" if self.cut.up else "down"
        eight = self.cut.precision.dtype == EIGHT.dtype
        changed = self.cut.precision._replace(**{direction: self.cut.tile})
        setattr(by_moving, "EIGHT" if eight else "HALF", changed)
        setattr(by_moving, f"TERMS_{direction.upper()}", self.cut.terms)
        network = recipe.build_network(torch.Generator().manual_seed(0)).to(GPU)
        optimizers = recipe.build_optimizers(network)
        relaxer = CudaEngine(network, recipe.build_learning(), optimizers).relaxer
        if not isinstance(relaxer, Moving) or relaxer.eight is None:
            raise SystemExit(f"{self.recipe} does not send differences in float8")
        ways = relaxer.eight if eight else relaxer.half
        for fast in relaxer.couplings:
            fast.refresh()
        ways.weights.copy_(relaxer.weights)
        return relaxer, ways, ways.ups if self.cut.up else ways.downs


def compile_kernel(job: Job) -> None:
    """Leave it in Triton's cache, for the process that times it."""
    job._replace(moves=()).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", nargs="?", default="cifar10-conv-w-a")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--moves", type=int, nargs="+", default=[64, 40, 8])
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    if not all(1 <= each <= given.batch for each in given.moves):
        parser.error(f"--moves {given.moves}: allowed are numbers from 1 to {given.batch}")
    jobs = [Job(given.recipe, given.batch, given.moves, cut) for cut in cuts()]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_kernel, jobs))
    moving = ", ".join(map(str, given.moves))
    print(f"microseconds where {moving} of {given.batch} samples move")
    for job in jobs:
        times, taken = job.run()
        print(" ".join(f"{each:6.1f}" for each in times), f" {job.cut} ({taken})", flush=True)


if __name__ == "__main__":
    main()
