"""Train several recipes side by side, each in a process of its own.

    python benchmarks/train_many.py 'mnist-conv-wa --seed 1' 'mnist-2fc-wa --seed 3' ...
                                    [--at-once 4] [--out runs] [--data-dir DIR] [--device auto]

Each RUN is what `binep train` is given. They begin in this order, so many at once, and go on from
their last checkpoint where there is one; what a training says goes to a file beside its run. Small
networks leave most of a GPU idle; NVIDIA's MPS (`nvidia-cuda-mps-control -d`, before this) lets the
kernels of several run at the same time.
"""

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def command(run: str, common: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "binep", "train", *shlex.split(run), "--continue", *common]


def train_many(runs: Sequence[str], common: Sequence[str], at_once: int, logs: Path) -> list[str]:
    """Train all of them; returns those that failed or were interrupted."""
    logs.mkdir(parents=True, exist_ok=True)
    waiting, running, failed = list(runs), dict[str, subprocess.Popen[bytes]](), []
    while waiting or running:
        while waiting and len(running) < at_once:
            run = waiting.pop(0)
            with (logs / f"{'-'.join(shlex.split(run))}.log").open("ab") as log:
                running[run] = subprocess.Popen(command(run, common), stdout=log, stderr=log)
        for run, process in list(running.items()):
            if process.poll() is not None:
                del running[run]
                failed += [run] if process.returncode else []
                print(
                    f"{run}: {'failed, see its log' if process.returncode else 'done'}", flush=True
                )
        time.sleep(0.2)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.at_once < 1:
        parser.error(f"--at-once {options.at_once}: allowed is at least 1")
    words = ["--out", str(options.out), "--device", options.device]
    if options.data_dir is not None:
        words += ["--data-dir", str(options.data_dir)]
    sys.exit(1 if train_many(options.runs, words, options.at_once, options.out) else 0)
