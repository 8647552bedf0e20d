"""Let one of two processes of a training hang, and see how soon torchrun ends them, and with what.

    python benchmarks/hang.py --out hang.json

Processes wait for one another as long as they do by default (`launch.PATIENCE`). Each in turn is
stopped by SIGSTOP in the middle of a training; the other one has to name it, torchrun has to end
both, and the run has to go on when it is started again. Needs Linux (/proc).
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from binep.training import launch, runs

RECIPE = "digits-1fc-wa"
LIMIT = 120.0  # seconds


def children(parent: int) -> dict[int, int]:
    """The processes that torchrun has started, by their rank."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    ranks = {}
    for number in map(int, found):
        words = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        rank = next((word[5:] for word in words if word.startswith(b"RANK=")), None)
        if rank is not None:
            ranks[int(rank)] = number
    return ranks


def wait_for_epochs(run: Path, epochs: int) -> None:
    while not (run / "metrics.jsonl").is_file() or len(runs.read_metrics(run)) < epochs:
        time.sleep(0.2)


def hang(victim: int, out: Path) -> dict[str, Any]:
    """Stop one process; seconds until torchrun has ended, and the line that names it."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words += ["-m", "binep", "train", RECIPE, "--epochs", "100000", "--out", str(out)]
    environment = {name: word for name, word in os.environ.items() if name != "BINEP_PATIENCE"}
    job = subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    folder = out / f"{RECIPE}-seed0"
    wait_for_epochs(folder, 1)
    workers = children(job.pid)
    os.kill(workers[victim], signal.SIGSTOP)
    began = time.monotonic()
    _, said = job.communicate()
    seconds = time.monotonic() - began
    line = next((line for line in said.splitlines() if "it hangs" in line), said)
    left = [number for number in workers.values() if Path(f"/proc/{number}").exists()]
    if f"process {victim} of 2" not in line or left or seconds > LIMIT or job.returncode == 0:
        raise SystemExit(f"process {victim}: {seconds:.0f} s, left {left}, said: {line}")
    epochs = len(runs.open_run(folder).metrics)
    again = [sys.executable, "-m", "binep", "train", RECIPE, "--resume", "--out", str(out)]
    subprocess.run([*again, "--epochs", str(epochs + 1)], check=True, stdout=subprocess.DEVNULL)
    return {
        "hangs": victim,
        "seconds": round(seconds, 1),
        "said": line,
        "epochs": epochs,
        "epochs_after_resuming": len(runs.open_run(folder).metrics),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    found = []
    for victim in [0, 1] * options.times:
        with tempfile.TemporaryDirectory() as name:
            found.append(hang(victim, Path(name)))
    facts = {
        "patience_seconds": launch.PATIENCE,
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "torch": torch.__version__,
        "commit": runs.commit(),
        "hung": found,
    }
    options.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
