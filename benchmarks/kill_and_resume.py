"""Kill training at random moments, resume it each time, and compare the end to the bit.

    python benchmarks/kill_and_resume.py [--kills 30] [--recipe digits-conv-wa] [--seed 0]

One run is left alone. Another is ended by SIGKILL at random moments (while it trains, or writes a
checkpoint: it does so several times a second) and resumed after each. Both must end with the same
weights, momenta and random streams, and the same metrics. The moments are counted in epochs, so
that a fast machine is killed as often as a slow one: training needs 3 epochs for each kill.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import safetensors.torch
import torch

from binep.training import runs


def command(recipe: str, out: Path, overrides: list[str]) -> list[str]:
    words = [sys.executable, "-m", "binep", "train", recipe, "--out", str(out), "--continue"]
    words += ["--checkpoint-every", "0.1", "--device", "cpu"]
    return words + [word for override in overrides for word in ("--set", override)]


def run_and_kill(words: list[str], epochs: int, seconds: float) -> bool:
    """Train for some epochs and seconds more, then kill; False if training ended before."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    begun = process.stdout.readline()
    for _ in range(epochs):
        process.stdout.readline()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    rest = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"training failed: {begun}{rest}")
    return False


def end_of(out: Path) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """The tensors of the last checkpoint, and the metrics without their times."""
    run = runs.open_run(out)
    newest = max(run.folder.glob("checkpoint-*.safetensors"))
    lines = [{k: v for k, v in m.items() if not k.endswith("seconds")} for m in run.metrics]
    return safetensors.torch.load_file(newest), lines


def compare(recipe: str, overrides: list[str], kills: int, seed: int, folder: Path) -> int:
    """Returns how many times training was killed; stops with an error where the ends differ."""
    rng = random.Random(seed)
    straight, torn = folder / "straight", folder / "torn"
    subprocess.run(command(recipe, straight, overrides), check=True, stdout=subprocess.DEVNULL)
    epoch = statistics.median(m["seconds"] for m in runs.open_run(straight).metrics)
    words = command(recipe, torn, overrides)
    killed = 0
    while killed < kills and run_and_kill(words, rng.randint(0, 2), rng.uniform(0, epoch)):
        killed += 1
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    (tensors, lines), (other_tensors, other_lines) = end_of(straight), end_of(torn)
    different = [n for n in tensors if not torch.equal(tensors[n], other_tensors[n])]
    if different or lines != other_lines or tensors.keys() != other_tensors.keys():
        raise SystemExit(f"after {killed} kills the ends differ: {different or 'metrics'}")
    if list(torn.rglob("*.part")):
        raise SystemExit("a half-written file was left behind")
    return killed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--recipe", default="digits-conv-wa")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        count = compare(options.recipe, options.set, options.kills, options.seed, Path(name))
        seconds = time.monotonic() - began
    print(f"{options.recipe}: {count} times killed, the end is identical ({seconds:.0f} s)")
