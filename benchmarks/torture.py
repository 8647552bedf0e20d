"""Kill trainings a thousand times, and compare their ends with one that was left alone.

    python benchmarks/torture.py [--kills 1000] [--seed 0] [--jobs 4] [--out torture.json]
    python benchmarks/torture.py --processes 2 --kills 100

A training is forked, ended, and resumed until it is through; then weights, momenta, random streams
and metrics must be those of a training that was left alone, bit for bit, and nothing half-written
may lie about. It is ended in one of these ways, drawn at random each time:

    moment                           SIGKILL from outside after a random time
    kill, power, fail, full, short   at a random system call of those that write, see `faults`

After each the run is opened as any reader would. A training whose writes fail says so in one line;
none may refuse to go on. In between the disk is as a power cut leaves it where that is the fault.

With `--processes 2` each training is one of two processes that torchrun's agent forks, joins by
gloo and starts anew whenever one has ended: the one that writes, in any of these ways, or either by
a SIGKILL at a random moment. The end must be that of two that were left alone and, with bits, of
one process.
"""

import argparse
import json
import logging
import math
import os
import platform
import random
import signal
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
from binep.training import checkpoints, launch, runs, signals
from binep.training import recipe as recipes
from binep.training.recipe import Recipe

RECIPES = {
    "digits-1fc-w": ["network.dense=[24]", "learning.free_steps=8", "learning.nudged_steps=3"],
    "digits-1fc-wa": [
        *("network.dense=[24]", "learning.free_steps=6", "learning.nudged_steps=3"),
        "optimizer.gamma=0.05",  # so that Bop's decay is folded into the momenta now and then
    ],
}
EPOCHS = ["training.epochs=4", "training.batch_size=200"]
MOST_CALLS = 400  # of those that write, in a whole training with many checkpoints
MOST_STARTS = 1000  # of one training
WAYS = ("moment", "moment", *KINDS)
FINISHED, REFUSED, OFF, SHORTENED, STOPPED = 0, 2, 3, 4, 5  # exit codes of a child
NAMES = {
    FINISHED: "finished",
    REFUSED: "refused",
    OFF: "off",
    SHORTENED: "shortened",
    STOPPED: "stopped",
}


def train(recipe: Recipe, out: Path, seconds: float) -> runs.Run:
    return runs.train(recipe, out=out, resume=True, device="cpu", checkpoint_seconds=seconds)


def child(recipe: Recipe, out: Path, way: str, rng: random.Random) -> int:
    """What a forked process does; how it ends, if it is not killed."""
    seconds = rng.choice([0.0, 0.005])
    return ended(recipe, out, seconds) if way == "moment" else hit(recipe, out, way, rng, seconds)


def ended(recipe: Recipe, out: Path, seconds: float) -> int:
    """How a training ends that nothing hits from within."""
    try:
        run = train(recipe, out, seconds)
    except BinepError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return FINISHED if run.finished else STOPPED


def hit(recipe: Recipe, out: Path, way: str, rng: random.Random, seconds: float) -> int:
    """How a training ends of which one system call goes wrong, if there are so many."""
    faults = Faults(out, rng.randrange(MOST_CALLS), way, rng.randrange(2**32))
    try:
        with faults:
            code = ended(recipe, out, seconds)
    except PowerCutError:
        faults.forget()
        return OFF
    # Otherwise finished all the same: a write took half of its bytes.
    return SHORTENED if faults.happened and code == FINISHED else code


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
    code = os.waitstatus_to_exitcode(status)
    if code not in NAMES:
        raise SystemExit(f"{way}: exit code {code}")
    return NAMES[code]


# --- several processes ----------------------------------------------------------------------------


def one_of_many(recipe: Recipe, out: Path, usual: float | None, seed: int, log: Path) -> None:
    """What torchrun's agent starts: a process of a training, one of which something hits.

    Args:
        usual: seconds that it takes; None if nothing is to hit it.
    """
    launch.join.cache_clear()  # whoever forked this one was alone
    for number in (*signals.STOPS, *signals.SAVES):  # those of the agent are not for its processes
        signal.signal(number, signal.SIG_DFL)
    again = os.environ["TORCHELASTIC_RESTART_COUNT"]
    rank, count = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    rng = random.Random(f"{seed}/{again}")
    way, delay, seconds = rng.choice(WAYS), rng.random(), rng.choice([0.0, 0.005])
    victim = rng.randrange(count) if way == "moment" else 0
    if usual is None:
        way, victim = "nothing", 0
    if rank == 0 and list(out.glob("*/record.json")):
        runs.open_run(out)  # whoever looks at it now can read it
    if rank == victim:
        note(log, f"{again} {way} victim")
    if way == "moment" and rank == victim:
        kill_later(delay * (usual or 0))
    code = 70
    try:
        if way in KINDS and rank == victim:
            code = hit(recipe, out, way, rng, seconds)
        else:
            code = ended(recipe, out, seconds)
    finally:
        if rank == victim:
            note(log, f"{again} {way} {NAMES.get(code, code)}")
        if code not in (FINISHED, SHORTENED):
            os._exit(code)
    torch.distributed.destroy_process_group()


def note(log: Path, line: str) -> None:
    """Add a line to a file that several processes write."""
    with log.open("a") as stream:
        stream.write(line + "\n")


def kill_later(delay: float) -> None:
    """Fork somebody who kills this process after a while, if it is still there."""
    victim = os.getpid()
    if os.fork() == 0:
        time.sleep(delay)
        if os.getppid() == victim:
            os.kill(victim, signal.SIGKILL)
        os._exit(0)


def together(
    recipe: Recipe, out: Path, processes: int, usual: float | None, seed: int = 0
) -> list[tuple[str, str]]:
    """Train until torchrun's agent is through; of each start the way, and how the hit one ended."""
    log = out.with_suffix(".log")
    agent = os.fork()  # it has threads, and forks: it gets a process of its own
    if agent == 0:
        code = 70
        try:
            from torch.distributed.launcher.api import LaunchConfig, elastic_launch

            logging.disable()  # each failure is told over and over
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=processes,
                run_id=out.name,
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                max_restarts=MOST_STARTS,
                monitor_interval=0.02,
                start_method="fork",
            )
            elastic_launch(config, one_of_many)(recipe, out, usual, seed, log)
            code = FINISHED
        except BaseException as error:
            print(f"{out}: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    _, status = os.waitpid(agent, 0)
    if status != 0:
        raise SystemExit(f"{out}: the agent ended with {status}: {log.read_text()}")
    found: dict[tuple[str, str], str] = {}
    for line in log.read_text().splitlines():
        again, way, end = line.split()
        found[again, way] = "killed" if end == "victim" else end
    return [(way, end) for (_, way), end in found.items()]


# --- what must be so at the end -------------------------------------------------------------------


def end_of(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The tensors of the newest checkpoint, and the metrics without their times."""
    run = runs.open_run(folder)
    found = checkpoints.load(run.folder, warn=print, newest=True)
    assert found is not None
    lines = [{k: v for k, v in m.items() if not k.endswith("seconds")} for m in run.metrics]
    return found[0], lines


def compare_ends(torn: Path, straight: Path) -> None:
    """Stop with an error where two trainings did not end alike."""
    (tensors, lines), (others, other_lines) = end_of(torn), end_of(straight)
    different = [n for n in tensors if not torch.equal(tensors[n], others[n])]
    if different or tensors.keys() != others.keys() or lines != other_lines:
        raise SystemExit(f"{torn}: the ends differ: {different or 'metrics'}")


def compare(torn: Path, straight: Path) -> None:
    """Stop with an error, too, where something was left behind."""
    compare_ends(torn, straight)
    # What could not be removed when it was due is removed when a training starts again.
    for folder in torn.iterdir():
        checkpoints.tidy(folder)
    stems = Counter(path.stem for path in torn.glob("*/checkpoint-*"))
    if list(torn.rglob("*.part")) or set(stems.values()) != {2} or len(stems) > checkpoints.KEPT:
        raise SystemExit(f"{torn}: left behind: {sorted(p.name for p in torn.rglob('*'))}")


def alone(recipe: Recipe, out: Path, rng: random.Random, usual: float) -> list[tuple[str, str]]:
    """Train until nothing hits a training any more; of each start the way, and how it ended."""
    found = []
    while not found or found[-1][1] not in ("finished", "shortened"):
        way = rng.choice(WAYS)
        found.append((way, attempt(recipe, out, way, rng, usual)))
        if list(out.glob("*/record.json")):
            runs.open_run(out)  # whoever looks at it now can read it
    return found


def torture(
    kills: int, seed: int, folder: Path, processes: int = 1, until: float = math.inf
) -> dict[str, Any]:
    """Until so many trainings were ended, or time is up: counts of how, and what became of them."""
    rng, ended, outcomes, trainings = random.Random(seed), Counter(), Counter(), 0
    for n, (name, overrides) in enumerate(RECIPES.items()):
        recipe = recipes.load(name, [*overrides, *EPOCHS])
        straight, timed = folder / f"straight-{name}", folder / f"timed-{name}"
        train(recipe, straight, 300)  # compiles kernels, too
        began = time.monotonic()
        if processes > 1:
            together(recipe, timed, processes, None)
            if any(neuron.binary for neuron in recipe.build_network().neurons):
                compare(timed, straight)
            straight = timed
        else:
            train(recipe, timed, 0)
        usual = time.monotonic() - began
        while sum(ended.values()) < kills * (n + 1) // len(RECIPES) and time.monotonic() < until:
            torn = folder / f"torn-{trainings}"
            if processes > 1:
                found = together(recipe, torn, processes, usual, rng.randrange(2**32))
            else:
                found = alone(recipe, torn, rng, usual)
            outcomes.update(outcome for _, outcome in found)
            ended.update(way for way, outcome in found if outcome in ("killed", "off", "refused"))
            compare(torn, straight)
            trainings += 1
    return {
        "processes": processes,
        "kills": sum(ended.values()),
        "by": dict(sorted(ended.items())),
        "outcomes": dict(sorted(outcomes.items())),
        "trainings_finished_bit_identical": trainings,
    }


def side_by_side(
    kills: int, seed: int, folder: Path, processes: int, minutes: float, jobs: int
) -> dict[str, Any]:
    """The same several times at once, each with a seed of its own; counts are added up."""
    words = [sys.executable, __file__, "--kills", str(-(-kills // jobs)), "--minutes", str(minutes)]
    words += ["--processes", str(processes)]
    outs = [folder / f"{n}.json" for n in range(jobs)]
    begun = [
        subprocess.Popen([*words, "--seed", str(seed + n), "--out", str(out)])
        for n, out in enumerate(outs)
    ]
    if sum(process.wait() for process in begun):
        raise SystemExit("not all of them came through")
    found = [json.loads(out.read_text()) for out in outs]
    return {
        "processes": processes,
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
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        run = (options.kills, options.seed, Path(name), options.processes)
        found = (
            torture(*run, began + 60 * options.minutes)
            if options.jobs == 1
            else side_by_side(*run, options.minutes, options.jobs)
        )
    found |= {
        "seconds": round(time.monotonic() - began, 1),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "torch": torch.__version__,
        "commit": runs.commit(),
        "seed": options.seed,
    }
    text = json.dumps(found, indent=1) + "\n"
    if options.out is not None:
        options.out.write_text(text)
    sys.__stdout__.write(text)  # pyright: ignore[reportOptionalMemberAccess]


if __name__ == "__main__":
    main()
