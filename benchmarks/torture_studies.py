"""Kill sweeps and searches, ask for them again, and see that they end as ones left alone.

    python benchmarks/torture_studies.py [--kills 6] [--seed 0] --out torture-studies.json

So many kills of sweeps (two trials in two processes of this machine), and as many of searches (six
trials by Optuna): SIGKILL after a random time, and the same is asked for again until it is through;
then the next one is begun. Each trial of a sweep then has the weights, momenta, random streams and
metrics of one that was left alone, and its result among the evidence. A search has as many trials
as were asked for, all of them different; one that was under way at a kill does not count.
"""

import argparse
import json
import math
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads do not survive a fork

import torch
import torture

from binep.studies.search import search
from binep.studies.sweep import read_sweep, sweep
from binep.studies.workbench import Workbench
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.trials.local import Local

SWEEP = f"""
recipe = "digits-1fc-wa"
seeds = 2
set = {json.dumps([*torture.RECIPES["digits-1fc-wa"], "training.epochs=200"])}
"""
TRIALS = 6


def run_sweep(folder: Path) -> None:
    path = folder / "sweep.toml"
    path.write_text(SWEEP)
    trials = read_sweep(path, folder / "runs")
    outcomes = list(sweep(trials, Local(2), evidence=folder / "evidence"))
    assert all(outcome.finished for outcome in outcomes), [o.failure for o in outcomes]


def compare_sweeps(torn: Path, alone: Path) -> None:
    for each in sorted((alone / "runs").iterdir()):
        torture.compare_ends(torn / "runs" / each.name, each)
    kept = [len(list((each / "evidence").rglob("seed*.json"))) for each in (torn, alone)]
    if kept != [2, 2]:
        raise SystemExit(f"{torn}: results among the evidence: {kept}")


def run_search(folder: Path) -> list[list[float]]:
    recipe = recipes.load("digits-1fc-wa", [*torture.RECIPES["digits-1fc-wa"], *torture.EPOCHS])
    bench = Workbench.of(recipe, device="cpu", engine="reference")
    found = search(bench, trials=TRIALS, storage=folder / "study", batches=8, epochs=3)
    return [[*trial.gamma, *trial.tau] for trial in found.trials]


def check_search(torn: Path, alone: Path) -> None:
    rates = [run_search(each) for each in (torn, alone)]  # asked again, nothing is missing
    if any(len({tuple(each) for each in found}) != TRIALS for found in rates):
        raise SystemExit(f"{torn}: {rates}")


def struck(job: Callable[[Path], Any], folder: Path, seconds: float) -> bool:
    """Fork a job and kill it after a while; whether it was still at work."""
    process = os.fork()
    if process == 0:
        code = 70
        try:
            job(folder)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    found, status = 0, 0
    while not found:
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
            until = math.inf
        time.sleep(0.01)
        found, status = os.waitpid(process, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"{folder}: exit code {code}")
    return code != 0


def torment(
    job: Callable[[Path], Any],
    check: Callable[[Path, Path], None],
    folder: Path,
    kills: int,
    rng: random.Random,
) -> dict[str, int]:
    """Until so many were killed: how many were, and how many came through, as `check` sees."""
    alone = folder / "alone"
    alone.mkdir(parents=True)
    began = time.monotonic()
    job(alone)
    usual, left, through = time.monotonic() - began, kills, 0
    while left:
        torn = folder / f"torn-{through}"
        torn.mkdir()
        while struck(job, torn, rng.uniform(0, usual) if left else math.inf):
            left -= 1
        check(torn, alone)
        through += 1
    return {"kills": kills, "came_through": through}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng, began = random.Random(options.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sweeps = torment(run_sweep, compare_sweeps, folder / "sweep", options.kills, rng)
        searches = torment(run_search, check_search, folder / "search", options.kills, rng)
    found = {
        "sweeps": sweeps,
        "searches": searches,
        "seconds": round(time.monotonic() - began, 1),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "torch": torch.__version__,
        "commit": runs.commit(),
        "seed": options.seed,
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
