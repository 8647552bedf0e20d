"""Kill trainings a thousand times, and compare their ends with one that was left alone.

    python benchmarks/torture.py [--kills 1000] [--seed 0] [--jobs 4] [--out torture.json]

A training is forked, ended, and resumed until it is through; then weights, momenta, random streams
and metrics must be those of a training that was left alone, bit for bit, and nothing half-written
may lie about. It is ended in one of these ways, drawn at random each time:

    moment                           SIGKILL from outside after a random time
    kill, power, fail, full, short   at a random system call of those that write, see `faults`

After each the run is opened as any reader would. A training whose writes fail says so in one line;
none may refuse to go on. In between the disk is as a power cut leaves it where that is the fault.
"""

import argparse
import json
import math
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads do not survive a fork

import torch
from faults import KINDS, Faults, PowerCutError

from binep.errors import BinepError
from binep.training import checkpoints, runs
from binep.training import recipe as recipes
from binep.training.recipe import Recipe

RECIPES = {
    "digits-1fc-w": ["network.dense=[24]", "learning.free_steps=8", "learning.nudged_steps=3"],
    "digits-1fc-wa": ["network.dense=[24]", "learning.free_steps=6", "learning.nudged_steps=3"],
}
EPOCHS = ["training.epochs=4", "training.batch_size=200"]
MOST_CALLS = 400  # of those that write, in a whole training with many checkpoints
FINISHED, REFUSED, OFF, SHORTENED = 0, 2, 3, 4  # exit codes of a child


def train(recipe: Recipe, out: Path, seconds: float) -> None:
    runs.train(recipe, out=out, resume=True, device="cpu", checkpoint_seconds=seconds)


def child(recipe: Recipe, out: Path, way: str, rng: random.Random) -> int:
    """What a forked process does; how it ends, if it is not killed."""
    seconds = rng.choice([0.0, 0.005])
    try:
        if way == "moment":
            train(recipe, out, seconds)
            return FINISHED
        faults = Faults(out, rng.randrange(MOST_CALLS), way, rng.randrange(2**32))
        try:
            with faults:
                train(recipe, out, seconds)
        except PowerCutError:
            faults.forget()
            return OFF
        if faults.happened:  # a write that took half of its bytes
            return SHORTENED
    except BinepError as error:
        print(f"{way}: {error}", file=sys.stderr)
        return REFUSED
    return FINISHED


def attempt(recipe: Recipe, out: Path, way: str, rng: random.Random, usual: float) -> str:
    """Fork a training and let it end in some way; how it ended: 'finished' if nothing hit it."""
    delay, seed = rng.uniform(0, usual), rng.randrange(2**32)
    process = os.fork()
    if process == 0:
        code = 70  # anything unforeseen
        try:
            code = child(recipe, out, way, random.Random(seed))
        except BaseException as error:
            print(f"{way}: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    if way == "moment":
        time.sleep(delay)
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"{way}: ended by {signal.Signals(os.WTERMSIG(status)).name}")
        return "killed"
    names = {FINISHED: "finished", REFUSED: "refused", OFF: "off", SHORTENED: "shortened"}
    code = os.waitstatus_to_exitcode(status)
    if code not in names:
        raise SystemExit(f"{way}: exit code {code}")
    return names[code]


def end_of(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The tensors of the newest checkpoint, and the metrics without their times."""
    run = runs.open_run(folder)
    found = checkpoints.load(run.folder, warn=print, newest=True)
    assert found is not None
    lines = [{k: v for k, v in m.items() if not k.endswith("seconds")} for m in run.metrics]
    return found[0], lines


def compare(torn: Path, straight: Path) -> None:
    """Stop with an error where two trainings did not end alike, or something was left behind."""
    (tensors, lines), (others, other_lines) = end_of(torn), end_of(straight)
    different = [n for n in tensors if not torch.equal(tensors[n], others[n])]
    if different or tensors.keys() != others.keys() or lines != other_lines:
        raise SystemExit(f"{torn}: the ends differ: {different or 'metrics'}")
    # What could not be removed when it was due is removed when a training starts again.
    for folder in torn.iterdir():
        checkpoints.tidy(folder)
    stems = Counter(path.stem for path in torn.glob("*/checkpoint-*"))
    if list(torn.rglob("*.part")) or set(stems.values()) != {2} or len(stems) > checkpoints.KEPT:
        raise SystemExit(f"{torn}: left behind: {sorted(p.name for p in torn.rglob('*'))}")


def torture(kills: int, seed: int, folder: Path, until: float = math.inf) -> dict[str, Any]:
    """Until so many trainings were ended, or time is up: counts of how, and what became of them."""
    rng, ended, outcomes, trainings = random.Random(seed), Counter(), Counter(), 0
    times: list[float] = []
    for n, (name, overrides) in enumerate(RECIPES.items()):
        recipe = recipes.load(name, [*overrides, *EPOCHS])
        straight = folder / f"straight-{name}"
        train(recipe, straight, 300)  # compiles kernels, too
        began = time.monotonic()
        train(recipe, folder / f"timed-{name}", 0)
        usual = time.monotonic() - began
        while sum(ended.values()) < kills * (n + 1) // len(RECIPES) and time.monotonic() < until:
            torn, outcome = folder / f"torn-{trainings}", ""
            while outcome not in ("finished", "shortened"):
                way = rng.choice(["moment", "moment", *KINDS])
                began = time.monotonic()
                outcome = attempt(recipe, torn, way, rng, usual)
                times.append(time.monotonic() - began)
                outcomes[outcome] += 1
                ended[way] += outcome in ("killed", "off", "refused")
                if list(torn.glob("*/record.json")):
                    runs.open_run(torn)  # whoever looks at it now can read it
            compare(torn, straight)
            trainings += 1
    return {
        "kills": sum(ended.values()),
        "by": dict(sorted(ended.items())),
        "outcomes": dict(sorted(outcomes.items())),
        "trainings_finished_bit_identical": trainings,
        "seconds_an_attempt": round(statistics.mean(times), 3),
    }


def side_by_side(kills: int, seed: int, folder: Path, minutes: float, jobs: int) -> dict[str, Any]:
    """The same in several processes, each with a seed of its own; counts are added up."""
    words = [sys.executable, __file__, "--kills", str(-(-kills // jobs)), "--minutes", str(minutes)]
    outs = [folder / f"{n}.json" for n in range(jobs)]
    begun = [
        subprocess.Popen([*words, "--seed", str(seed + n), "--out", str(out)])
        for n, out in enumerate(outs)
    ]
    if sum(process.wait() for process in begun):
        raise SystemExit("not all of them came through")
    found = [json.loads(out.read_text()) for out in outs]
    return {
        "kills": sum(each["kills"] for each in found),
        **{
            key: dict(sorted(sum((Counter(each[key]) for each in found), Counter()).items()))
            for key in ("by", "outcomes")
        },
        "trainings_finished_bit_identical": sum(
            each["trainings_finished_bit_identical"] for each in found
        ),
        "jobs": jobs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        run = (options.kills, options.seed, Path(name))
        found = (
            torture(*run, began + 60 * options.minutes)
            if options.jobs == 1
            else side_by_side(*run, options.minutes, options.jobs)
        )
    found |= {
        "seconds": round(time.monotonic() - began, 1),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "torch": torch.__version__,
        "seed": options.seed,
    }
    text = json.dumps(found, indent=1) + "\n"
    if options.out is not None:
        options.out.write_text(text)
    sys.__stdout__.write(text)  # pyright: ignore[reportOptionalMemberAccess]


if __name__ == "__main__":
    main()
