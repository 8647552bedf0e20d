"""One image on one core: the exported C program, the numpy runtime, and eager PyTorch.

    python benchmarks/latency.py runs/mnist-1fc-wa-seed0 --data-dir DATA

Exports a run, compiles the C program with `gcc -O3`, for this machine and for any, checks that all
runtimes predict the same for every test image, and then measures them in turn, round after round:
the median over rounds of the mean over images, and its ratio to eager PyTorch. Times are those of
the processor, so that waiting for a core does not count. Torch and numpy get one thread. "bare
loop" is the same PyTorch network without the record of residuals that `binep.relax` keeps.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import binep
from binep.core.relaxation import step
from binep.deploy import c_program
from binep.deploy.export import Options, export
from binep.training import provenance, runs

BUILDS = {"C, this machine": ["-O3", "-march=native"], "C, any x86-64": ["-O3"]}
EAGER = "PyTorch, eager"


def compiled(folder: Path, options: list[str]) -> Path:
    program = folder / f"binep{''.join(options)}"
    sources = sorted(map(str, folder.glob("*.c")))
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off"]
    subprocess.run(["gcc", *strict, *options, "-o", str(program), *sources], check=True)
    return program


def c_predictions(program: Path, vectors: Path) -> np.ndarray:
    done = subprocess.run([program, vectors], capture_output=True, text=True)
    return np.array([int(line.split()[1]) for line in done.stdout.splitlines()[:-1]])


def c_seconds(program: Path, vectors: Path) -> float:
    done = subprocess.run([program, vectors, "time", "1"], capture_output=True, text=True)
    return float(done.stdout.split()[0]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description="one image on one core")
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--images", type=int, default=100, help="timed in each round")
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    torch.set_num_threads(1)

    run = runs.open_run(words.run)
    test = run.dataset(device="cpu", data_dir=words.data_dir).test
    network, steps = run.network("cpu"), run.recipe.learning.free_steps
    pixels = test.images.numpy()

    @torch.inference_mode()
    def relaxed(x: torch.Tensor) -> torch.Tensor:
        return network.predict(binep.relax(network, x, network.initial(x), steps).state)

    @torch.inference_mode()
    def bare(x: torch.Tensor) -> torch.Tensor:
        clamped = network.clamp(x)
        state = network.initial(clamped)
        for _ in range(steps):
            state = step(network, clamped, state)
        return network.predict(state)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (file,) = export(run, folder)
        export(run, folder / "c", "c", Options(vectors=0), data_dir=words.data_dir)
        programs = {title: compiled(folder / "c", flags) for title, flags in BUILDS.items()}
        fast, plain = binep.load(file), binep.load(file, kernels=False)

        expected = torch.cat([relaxed(x) for x in test.images.split(500)]).numpy()
        found = {
            title: c_predictions(program, folder / "c" / "vectors.bin")
            for title, program in programs.items()
        }
        found |= {"numpy, kernels": fast.predict(pixels), "numpy, plain": plain.predict(pixels)}
        for title, classes in found.items():
            print(f"{title}: {(classes != expected).sum()} of {len(expected)} predictions differ")
        print(f"file: {file.stat().st_size} bytes")

        few = folder / "few.bin"
        count = words.images
        few.write_bytes(c_program.vectors(pixels[:count], test.labels[:count], expected[:count]))

        def each(predict: Callable, images) -> Callable[[], float]:
            def seconds() -> float:
                begin = time.process_time()
                for n in range(count):
                    predict(images[n : n + 1])
                return (time.process_time() - begin) / count

            return seconds

        contenders: dict[str, Callable[[], float]] = {
            title: lambda program=program: c_seconds(program, few)
            for title, program in programs.items()
        }
        contenders |= {
            "numpy, kernels": each(fast.predict, pixels),
            "numpy, plain": each(plain.predict, pixels),
            "PyTorch, bare loop": each(bare, test.images),
            EAGER: each(relaxed, test.images),
        }
        times: dict[str, list[float]] = {title: [] for title in contenders}
        for _ in range(words.rounds):
            for title, seconds in contenders.items():
                times[title].append(seconds())

    eager = statistics.median(times[EAGER])
    print("\n| one image, one core | ms: median (range) | eager PyTorch / this |")
    print("|---|---|---|")
    for title, taken in times.items():
        middle = statistics.median(taken)
        spread = f"{1e3 * min(taken):.3f} to {1e3 * max(taken):.3f}"
        print(f"| {title} | {1e3 * middle:.3f} ({spread}) | {eager / middle:.1f} |")
    print(
        f"\n{count} images x {words.rounds} rounds; {provenance.environment(torch.device('cpu'))}"
    )


if __name__ == "__main__":
    main()
