"""Bits alone and states, in C: time per image in one run, and memory on a Cortex-M4.

    python benchmarks/bits_in_c.py runs/mnist-1fc-wa-bits-seed0 runs/mnist-1fc-wa-seed0

Exports each run as C, with and without learning, compiles it with `gcc -O3 -march=native` and takes
turns, round after round: the median over rounds of the mean over the first test images, in
processor time. `arm-none-eabi-gcc -Os -mcpu=cortex-m4`, where it is installed, says what the
program takes without `main.c`: flash is text and data, RAM data and bss. Weights that learn are
data.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from binep.deploy.export import Options, export
from binep.training import runs

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off"]
ARM = ["arm-none-eabi-gcc", "-Os", "-mcpu=cortex-m4", "-mthumb", "-ffunction-sections"]
MOMENTUM_BITS = 8


def compiled(folder: Path) -> Path:
    sources = sorted(map(str, folder.glob("*.c")))
    program = folder / "binep"
    subprocess.run(
        ["gcc", *STRICT, "-O3", "-march=native", "-o", str(program), *sources], check=True
    )
    return program


def nanoseconds(program: Path) -> float:
    words = [program, program.with_name("vectors.bin"), "time", "1"]
    return float(
        subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]
    )


def on_cortex_m4(folder: Path) -> tuple[int, int] | None:
    """Bytes of flash and RAM; None where there is no compiler."""
    if shutil.which(ARM[0]) is None:
        return None
    text = data = bss = 0
    for source in sorted(folder.glob("*.c")):
        if source.name == "main.c":
            continue
        to = folder / f"{source.stem}.m4.o"
        subprocess.run([*ARM, *STRICT, "-c", "-o", str(to), str(source)], check=True)
        said = subprocess.run(
            ["arm-none-eabi-size", str(to)], capture_output=True, text=True, check=True
        )
        sizes = [int(word) for word in said.stdout.splitlines()[1].split()[:3]]
        text, data, bss = text + sizes[0], data + sizes[1], bss + sizes[2]
    return text + data, data + bss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--to", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as place:
        programs: list[Path] = []
        for n, path in enumerate(options.runs):
            run = runs.open_run(path)
            row = {
                "run": path.name,
                "dynamics": run.recipe.network.dynamics,
                "layers": [784, *run.recipe.network.dense, 10 * run.recipe.network.per_class],
                "test_error": None if run.last is None else run.last["test_error"]["average"],
                "epochs": len(run.metrics),
            }
            for learning in (False, True):
                folder = Path(place) / f"{n}{'-learning' * learning}"
                bits = MOMENTUM_BITS if learning else None
                try:
                    export(
                        run, folder, "c", Options(vectors=options.images, momentum_bits=bits),
                        data_dir=options.data_dir, offline=True,
                    )  # fmt: skip
                except ValueError as error:
                    row["learning_refused"] = str(error)
                    continue
                row["learning" if learning else "running"] = on_cortex_m4(folder)
                if not learning:
                    programs.append(compiled(folder))
            found.append(row)
        times: list[list[float]] = [[] for _ in programs]
        for _ in range(options.rounds):
            for each, program in zip(times, programs, strict=True):
                each.append(nanoseconds(program))
    for row, each in zip(found, times, strict=True):
        row |= {"microseconds": [round(ns / 1000, 1) for ns in each]}
        row["median"] = statistics.median(row["microseconds"])
    last = found[-1]["median"]
    print("| run | µs per image | ratio | flash, RAM | flash, RAM with learning |")
    print("|---|--:|--:|--:|--:|")
    for row in found:
        sizes = (row.get(kind) for kind in ("running", "learning"))
        cells = (
            " - " if s is None else f"{s[0] / 1000:,.1f}, {s[1] / 1000:,.1f} kB" for s in sizes
        )
        ratio = last / row["median"]
        print(f"| {row['run']} | {row['median']:.0f} | {ratio:.2f} | {' | '.join(cells)} |")
    if options.to is not None:
        options.to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
