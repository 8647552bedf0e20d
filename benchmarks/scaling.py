"""Strong and weak scaling over processes of this machine, bytes a mini-batch, memory by size.

    python benchmarks/scaling.py time mnist-1fc-wa --processes 1 2 4 --batches 20
    python benchmarks/scaling.py memory --engine packed --synapses 1e6 1e7 1e8
    python benchmarks/scaling.py predict

Times are ratios within one run: the counts of processes take turns, and the fastest of each is
compared. CPU seconds of the busiest process tell what an idle core would need, where cores are
shared with other programs.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

THREADS = "OMP_NUM_THREADS"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(count: int, words: list[str]) -> list[dict[str, Any]]:
    """Run this script as `count` processes of one training; returns what each says."""
    port = str(free_port())
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *words],
            env={**os.environ, THREADS: "1", **common, "RANK": str(n), "LOCAL_RANK": str(n)},
            stdout=subprocess.PIPE, text=True,
        )
        for n in range(count)
    ]  # fmt: skip
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a process failed")
    return [json.loads(text.splitlines()[-1]) for text in said]


def train_batches(options: argparse.Namespace) -> None:
    """One of the processes: mini-batches after a warm-up, in seconds each."""
    import torch

    from binep.engines.processes import share
    from binep.errors import BinepError
    from binep.training import launch, runs
    from binep.training import recipe as recipes

    team = launch.join()
    recipe = recipes.load(options.recipe, options.set)
    try:
        data = recipe.load_data(data_dir=options.data_dir, offline=True)
    except BinepError:
        raise SystemExit(f"{options.recipe}: its data are not in {options.data_dir}") from None
    place = torch.device("cpu")
    trainer = runs.build_trainer(recipe, data, 0, place, options.engine)
    share(trainer.engine, trainer.network, recipe.build_learning(), team.processes)
    exchange, seconds, worked = team.processes.exchange, list[float](), list[float]()
    size = options.batch
    for n in range(options.warm + options.batches):
        chosen = torch.arange(n * size, (n + 1) * size) % len(data.train)
        inputs, labels = data.inputs(data.train.images[chosen]), data.train.labels[chosen]
        began, busy = time.perf_counter(), time.process_time()
        trainer.engine.train(inputs, labels)
        team.processes.any(False)
        seconds.append(time.perf_counter() - began)
        worked.append(time.process_time() - busy)
        if n + 1 == options.warm and exchange is not None:
            exchange.traffic.__init__()
    traffic = None if exchange is None else exchange.traffic
    print(
        json.dumps(
            {
                "seconds": statistics.median(seconds[options.warm :]),
                "worked": statistics.median(worked[options.warm :]),
                "received": 0 if traffic is None else traffic.bytes_per_step,
                "formats": {} if traffic is None else traffic.received,
            }
        )
    )


def measure(options: argparse.Namespace) -> None:
    """Counts of processes by turns; the fastest of each."""
    common = ["worker", options.recipe, "--engine", options.engine, "--batches"]
    common += [str(options.batches), "--data-dir", str(options.data_dir)]
    common += [word for text in options.set for word in ("--set", text)]
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for _ in range(options.rounds):
        for count in options.processes:
            for kind in ("strong",) if count == 1 else ("strong", "weak"):
                batch = options.batch * (count if kind == "weak" else 1)
                said = start(count, [*common, "--batch", str(batch)])
                slowest = max(said, key=lambda each: each["seconds"])
                known = best.get((kind, count))
                if known is None or slowest["seconds"] < known["seconds"]:
                    best[kind, count] = slowest
    one, alone = best["strong", 1]["seconds"], best["strong", 1]["worked"]
    print(f"{options.recipe}, {options.batches} mini-batches, best of {options.rounds}")
    print("scaling  processes  samples  ms      times one  CPU ms  times one  bytes received  as")
    for (kind, count), found in best.items():
        batch = options.batch * (count if kind == "weak" else 1)
        more = count if kind == "weak" else 1
        gain, cpu_gain = one / found["seconds"] * more, alone / found["worked"] * more
        ways = ", ".join(found["formats"])
        print(
            f"{kind:7}  {count:9}  {batch:7}  {1e3 * found['seconds']:6.1f}  {gain:9.2f}  "
            f"{1e3 * found['worked']:6.1f}  {cpu_gain:9.2f}  "
            f"{found['received']:14,.0f}  {ways}"
        )


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def remember(options: argparse.Namespace) -> None:
    """Peak memory of two mini-batches, by size, each in a process of its own."""
    from binep.studies.planning import memory

    print("synapses     measured, bytes each  model, bytes each")
    for synapses in options.synapses:
        words = [sys.executable, __file__, "weigh", str(int(synapses)), "--engine", options.engine]
        env = {**os.environ, THREADS: "1"}
        said = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
        found = json.loads(said.splitlines()[-1])
        count = found["synapses"]
        print(
            f"{count:11,}  {found['bytes'] / count:20.2f}  "
            f"{memory(count, options.engine) / count:17.2f}"
        )


def weigh(options: argparse.Namespace) -> None:
    """What two mini-batches of a network with one hidden layer add to the process."""
    import torch

    from binep import Dense, EquilibriumPropagation, Heaviside, Network, assign_optimizers
    from binep.engines.select import select_engine

    hidden = round(options.synapses / (784 + 100))

    def train(hidden: int) -> None:
        couplings = [Dense(784, hidden), Dense(hidden, 100)]
        network = Network((784,), couplings, Heaviside(), "energy", per_class=10)
        learning = EquilibriumPropagation(3, 2, 1.0)
        rates = {"gamma": 1e-4, "tau": 1e-5, "lr_bias": 1e-6}
        optimizers = assign_optimizers(network, **rates)  # type: ignore[arg-type]
        engine = select_engine(options.engine, network, learning, optimizers)
        for _ in range(2):
            pixels = torch.randint(256, (2, 784), dtype=torch.uint8)
            engine.train(pixels, torch.tensor([1, 2]))

    train(64)  # compiled kernels, and whatever is loaded once
    before = peak()
    train(hidden)
    print(json.dumps({"synapses": hidden * 884, "bytes": peak() - before}))


def predict(options: argparse.Namespace) -> None:
    """What the model says of eight GPUs, and of eight nodes."""
    from binep.studies.planning import Contrasts, Link, efficiency, network_of
    from binep.training import recipe as recipes

    links = [Link("8 GPUs, NVLink", 5e-6, 3e11), Link("8 nodes, 100 Gbit/s", 2e-5, 1.1e10)]
    links += [Link("8 nodes, 10 Gbit/s", 5e-5, 1.1e9)]
    print("recipe | entries | float32, MB | as int8, MB | step, ms | " + " | ".join(
        f"{link.name}: ms, efficiency" for link in links))  # fmt: skip
    for text in options.steps:
        name, milliseconds = text.split("=")
        found = Contrasts.of(network_of(recipes.load(name)))
        step = float(milliseconds) / 1e3
        # Weak scaling: of 64 samples in each process no contrast of two bits exceeds 64, and eight
        # of them no float32, but an int8 they do.
        received = found.received(8)
        cells = []
        for link in links:
            talk = link.seconds(8, received)
            cells.append(f"{1e3 * talk:.2f}, {100 * efficiency(step, 0, talk):.0f} %")
        count = found.weights + found.biases
        print(
            f"{name} | {count:,} | {received / 1e6:.1f} | "
            f"{received / 4e6 if found.exact else float('nan'):.1f} | {milliseconds} | "
            + " | ".join(cells)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, function in (("time", measure), ("worker", train_batches)):
        command = commands.add_parser(name)
        command.set_defaults(run=function)
        command.add_argument("recipe")
        command.add_argument("--engine", default="auto")
        command.add_argument("--set", action="append", default=[])
        command.add_argument("--batch", type=int, default=64)
        command.add_argument("--batches", type=int, default=10)
        command.add_argument("--warm", type=int, default=3)
        command.add_argument("--rounds", type=int, default=2)
        command.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
        command.add_argument("--data-dir", type=Path, default=Path("data"))
    command = commands.add_parser("memory")
    command.set_defaults(run=remember)
    command.add_argument("--engine", default="packed")
    command.add_argument("--synapses", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    command = commands.add_parser("weigh")
    command.set_defaults(run=weigh)
    command.add_argument("synapses", type=int)
    command.add_argument("--engine", default="packed")
    command = commands.add_parser("predict")
    command.set_defaults(run=predict)
    command.add_argument("steps", nargs="+", metavar="RECIPE=MS")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
