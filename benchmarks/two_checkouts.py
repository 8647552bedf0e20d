"""Train every recipe in two checkouts of binep and compare the bits, or the time they take.

    python benchmarks/two_checkouts.py --before OLD --after NEW [--recipes NAME ...]
    python benchmarks/two_checkouts.py --before OLD --after NEW --time

OLD and NEW are the roots of two checkouts. Each trains in a process of its own, from the same
parameters and momentum noise and on the same mini-batches: those of OLD, which also says what the
recipe is, so that a default that changes on purpose is not a difference (it is named in the last
column). Signs of beta come from the same generator on the CPU.

Networks of binary activations have to agree in every bit: weights, momenta and their decay, biases,
scales, flips, and all that is counted. Of real ones the largest difference of any number is told,
relative to the largest number of its tensor, after the first mini-batch and after the last. Exit
code 1 if a bit differs, or if NEW does not run what OLD runs.

With `--time` both take turns on the same mini-batches; the table has the medians and marks what
takes over 5 % longer.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

ENGINES = ("auto", "reference", "packed", "delta", "cuda")
SLOWER = 1.05
LEAST_SECONDS = 0.3  # that a timing lasts


# --- the parent: two workers, a table -----------------------------------------------------------


class Worker:
    """A process that trains in one checkout; asked and answered in lines of JSON."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not (self.root / "src" / "binep").is_dir():
            raise SystemExit(f"{root} is not the root of a checkout: it has no src/binep")
        self._process: subprocess.Popen[str] | None = None

    def ask(self, do: str, **options: Any) -> dict[str, Any]:
        """What the worker answers; if it cannot, why, and whether binep `refused` to."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--work"],
                env={**os.environ, "PYTHONPATH": str(self.root / "src")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            return {"failed": f"the process ended with code {code}", "refused": False}
        return json.loads(line)

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


@dataclass
class Row:
    """What became of a recipe on an engine.

    Attributes:
        failed: whether this makes the comparison fail.
        said: what stands in the table, one text a column.
        details: all of it, for `--json`.
    """

    recipe: str
    engine: str
    failed: bool
    said: list[str]
    details: dict[str, Any] = field(default_factory=dict)


COMPARED = ("recipe", "engine", "batches", "result", "after 1", "after all", "signs", "notes")
TIMED = ("recipe", "engine", "batches", "before, ms", "after, ms", "ratio", "spread", "notes")


def compare(
    before: Worker, after: Worker, recipe: str, engine: str, folder: Path, options: dict[str, Any]
) -> Row:
    """Train in both and compare all numbers."""
    job = {"recipe": recipe, "engine": engine, "folder": str(folder), **options}
    first = before.ask("first", **job)
    if "failed" in first:
        said = ["", "not run", "", "", "", first["failed"]]
        return Row(recipe, engine, not first["refused"], said, first)
    job["batches"] = first["batches"]
    second = after.ask("second", **job)
    name, count = first["engine"], str(first["batches"])
    if "failed" in second:
        return Row(recipe, name, True, [count, "FAILED", "", "", "", second["failed"]], second)
    exact, same = first["bits"], not second["differing"]
    wrong = (exact and not same) or second["engine"] != name
    notes = list(second["notes"])
    if second["engine"] != name:
        notes.insert(0, f"taken by {second['engine']}")
    if exact and not same:
        notes.insert(0, "differ: " + ", ".join(second["differing"]))
    result = "identical" if same else "DIFFERS" if exact else "real"
    sizes = ["" if same else f"{second[key]:.1e}" for key in ("early", "late")]
    signs = "" if same else f"{100 * second['signs']:.3g} %"
    details = {"before": first, "after": second}
    return Row(recipe, name, wrong, [count, result, *sizes, signs, "; ".join(notes)], details)


def race(
    before: Worker, after: Worker, recipe: str, engine: str, folder: Path, options: dict[str, Any]
) -> Row:
    """Time the same mini-batches in both, in turns."""
    job = {"recipe": recipe, "engine": engine, "folder": str(folder), **options}
    opened = [before.ask("open", **job), after.ask("open", **job)]
    name = opened[0].get("engine", engine)
    for told in opened:
        if "failed" in told:
            said = ["", "", "", "not run", "", told["failed"]]
            return Row(recipe, name, told is opened[1] or not told["refused"], said, told)
    warm = [answered(worker.ask("time", count=1))["seconds"] for worker in (before, after)]
    # The first mini-batch compiled or recorded something; the second one tells how long one takes.
    warm = [answered(worker.ask("time", count=1))["seconds"] for worker in (before, after)]
    each, rounds = max(warm), options["rounds"]
    least = max(1, math.ceil(LEAST_SECONDS / each))
    within = int(options["seconds"] / (2 * rounds * each))
    count = max(1, min(least, within, options["batches"]))
    seconds: list[list[float]] = [[], []]
    for n in range(rounds):
        for side in (0, 1) if n % 2 == 0 else (1, 0):
            worker = (before, after)[side]
            seconds[side].append(answered(worker.ask("time", count=count))["seconds"] / count)
    ratios = [b / a for a, b in zip(*seconds, strict=True)]
    one, two = map(statistics.median, seconds)
    notes = [f"taken by {opened[1]['engine']}"] if opened[1]["engine"] != name else []
    slower = two / one > SLOWER
    said = [
        f"{rounds} x {count}",
        f"{1e3 * one:.3f}",
        f"{1e3 * two:.3f}",
        f"{two / one:.3f}{' SLOWER' if slower else ''}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        "; ".join(notes),
    ]
    return Row(recipe, name, False, said, {"seconds": seconds, "count": count, "slower": slower})


def answered(answer: dict[str, Any]) -> dict[str, Any]:
    """What a worker answered, or the end of everything if it could not."""
    if "failed" in answer:
        raise SystemExit(answer["failed"])
    return answer


def table(header: Sequence[str], rows: Sequence[Row]) -> str:
    """A table in Markdown whose columns are aligned."""
    cells = [header, *([row.recipe, row.engine, *row.said] for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(header) - 1)]
    lines = [
        "| " + " | ".join([*map(str.ljust, line[:-1], widths), line[-1]]) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|---|")
    return "\n".join(lines)


def main(arguments: argparse.Namespace) -> int:
    before, after = Worker(arguments.before), Worker(arguments.after)
    options = {
        "device": arguments.device,
        "batches": arguments.batches,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "overrides": arguments.set,
        "data_dir": arguments.data_dir and str(arguments.data_dir.resolve()),
    }
    names = arguments.recipes or answered(before.ask("names"))["names"]
    one, header = (race, TIMED) if arguments.time else (compare, COMPARED)
    rows: list[Row] = []
    try:
        for name in names:
            seen: set[str] = set()
            with tempfile.TemporaryDirectory(prefix="two-checkouts-") as folder:
                for engine in arguments.engines:
                    if engine in seen:
                        continue
                    row = one(before, after, name, engine, Path(folder), options)
                    seen |= {engine, row.engine}
                    rows.append(row)
                    print(f"{name}, {row.engine}: {', '.join(filter(None, row.said))}", flush=True)
    finally:
        before.close()
        after.close()
        if rows:
            print(f"\n{table(header, rows)}\n")
    failed = [row for row in rows if row.failed]
    ran = [row for row in rows if not row.failed and "failed" not in row.details]
    slower = [row for row in ran if row.details.get("slower")]
    what = f"were timed, {len(slower)} are slower" if arguments.time else "agree"
    print(f"{len(ran)} {what}, {len(failed)} failed, {len(rows) - len(ran) - len(failed)} not run")
    if arguments.json is not None:
        said = {"options": options, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(said, indent=1, default=str) + "\n", "utf-8")
    return bool(failed) or not ran


# --- a worker: torch, and the binep of its own checkout -----------------------------------------


def work() -> None:
    """Answer requests until there are none left."""
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to stderr
    state = SimpleNamespace(subject=None)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            do = job.pop("do")
            answer = globals()[f"do_{do}"](state, **job)
        except Exception as error:
            state.subject = None
            text = " ".join(str(error).split())
            refused = type(error).__name__ == "BinepError"
            text = text[:300] if refused else f"{type(error).__name__}: {text[:300]}"
            answer = {"failed": text, "refused": refused}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def module(*paths: str) -> Any:
    """The first of some modules that this checkout has: they have moved."""
    for path in paths:
        try:
            return import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
    raise ModuleNotFoundError(f"no {' and no '.join(paths)}")


def recipe_module() -> Any:
    return module("binep.training.recipe", "binep.recipe")


class Subject:
    """A recipe's network, optimizers and engine, begun as the folder says."""

    def __init__(
        self, text: str, engine: str, device: str, threads: int | None, folder: Path
    ) -> None:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        path = folder / "recipe.toml"
        path.write_text(text, "utf-8")
        self.recipe = recipe_module().load(path)
        select = import_module("binep.engines.select")
        place = select.select_device(device)
        self.batch_size = self.recipe.training.batch_size
        network = self.recipe.build_network(torch.Generator().manual_seed(0))
        begun = folder / "begun.pt"
        if not begun.exists():
            _begin(self.recipe, network, begun)
        saved = torch.load(begun, mmap=True, weights_only=True)
        network.load_state_dict(saved["network"])
        self.network = network.to(place)
        optimizers = self.recipe.build_optimizers(self.network)
        self.recipe.set_rates(optimizers, 0)
        for n, p in enumerate(_flipped(optimizers)):
            if saved["noise"]:
                momentum = saved["noise"][n].to(place, copy=True)
                optimizers.bop.state[p].update(momentum=momentum, decay=1.0, flips=0)
        self.optimizers = optimizers
        learning = self.recipe.build_learning(torch.Generator().manual_seed(1))
        self.engine = select.select_engine(engine, self.network, learning, optimizers)
        batches = torch.load(folder / "batches.pt", weights_only=True)
        self.batches = [(x.to(place), labels.to(place)) for x, labels in batches]
        self.done = 0

    @property
    def at_once(self) -> int:
        return getattr(self.engine, "at_once", 1)

    def train(self, count: int) -> None:
        """The next mini-batches, as many at once as the engine takes; after the last the first."""
        import torch

        while count > 0:
            size = self.at_once if count >= self.at_once else 1
            some = [self.batches[(self.done + n) % len(self.batches)] for n in range(size)]
            if size > 1:
                x, labels = (torch.cat(parts) for parts in zip(*some, strict=True))
                self.engine.train_many(x, labels, self.batch_size)
            else:
                self.engine.train(*some[0])
            self.done, count = self.done + size, count - size

    def threads(self) -> AbstractContextManager[None]:
        """As many threads as training takes."""
        return module("binep.training.runs", "binep.runs").fitting_threads(self)

    def numbers(self) -> dict[str, Any]:
        """Every tensor of the network and of Bop, on the CPU; and decays, flips and clampings."""
        getattr(self.engine, "sync", lambda: None)()
        names = {id(p): name for name, p in self.network.named_parameters()}
        tensors = {name: t.detach().cpu().clone() for name, t in self.network.state_dict().items()}
        counts: dict[str, float] = {}
        for p in _flipped(self.optimizers):
            state, name = self.optimizers.bop.state[p], names[id(p)]
            tensors[f"momentum of {name}"] = state["momentum"].detach().cpu().clone()
            counts[f"decay of {name}"] = float(state["decay"])
            counts[f"flips of {name}"] = int(state["flips"])
        if self.optimizers.scale_sgd is not None:
            counts["clamped scales"] = int(self.optimizers.scale_sgd.clamped)
        return {"tensors": tensors, "counts": counts}

    def tallies(self) -> dict[str, Any]:
        """What was counted in training, and what the first mini-batch reads now."""
        found = {"trained": self.engine.collect(), "read": self.engine.evaluate(*self.batches[0])}
        return {
            f"{kind} {key}": value
            for kind, tally in found.items()
            for key, value in asdict(tally).items()
        }


def _flipped(optimizers: Any) -> list[Any]:
    bop = optimizers.bop
    return [] if bop is None else [p for group in bop.param_groups for p in group["params"]]


def _begin(recipe: Any, network: Any, path: Path) -> None:
    """Save parameters to begin with, and the noise of momenta if the recipe has any."""
    import torch

    generator = torch.Generator().manual_seed(2)
    optimizers = recipe.build_optimizers(network)
    noise = [
        group["noise"] * group["gamma"] * torch.randn(p.shape, generator=generator)
        for group in (optimizers.bop.param_groups if optimizers.bop is not None else [])
        for p in group["params"]
        if group["noise"]
    ]
    torch.save({"network": network.state_dict(), "noise": noise}, path)


def _make_batches(recipe: Any, count: int, data_dir: str | None, path: Path) -> None:
    """Save mini-batches: of the recipe's data if a folder is given, else of made-up images."""
    import torch

    data = import_module("binep.data")
    source = data.DATASETS[recipe.data.name]
    generator = torch.Generator().manual_seed(3)
    total = count * recipe.training.batch_size
    if data_dir is None:
        images, labels = made_up(total, tuple(source.image_shape), source.classes, generator)
        split = data.Split(images, labels)
        dataset = data.Dataset(source.name, split, split, source.classes, source.mean, source.std)
    else:
        dataset = recipe.hold_out(data.load(source.name, data_dir=Path(data_dir), offline=True))
        size = len(dataset.train.labels)
        chosen = torch.randperm(size, generator=generator)[torch.arange(total) % size]
        images, labels = dataset.train.images[chosen], dataset.train.labels[chosen]
    batches = [
        (dataset.inputs(recipe.augmentation(some, generator)).clone(), its.clone())
        for some, its in zip(
            images.split(recipe.training.batch_size),
            labels.split(recipe.training.batch_size),
            strict=True,
        )
    ]
    torch.save(batches, path)


def made_up(count: int, shape: tuple[int, ...], classes: int, generator: Any) -> tuple[Any, Any]:
    """Images with structure: a pattern for each class, blurred noise on it, and much that is dark.

    Returns:
        uint8 pixels, (count, *shape), and labels, (count,).
    """
    import torch
    import torch.nn.functional as F

    def blurred(number: int) -> torch.Tensor:
        noise = torch.randn(number, *shape, generator=generator)
        for _ in range(2):
            noise = F.avg_pool2d(noise, 3, 1, 1, count_include_pad=False)
        return noise / noise.std()

    patterns = blurred(classes)
    labels = torch.randint(classes, (count,), generator=generator)
    pixels = torch.empty(count, *shape, dtype=torch.uint8)
    for start in range(0, count, 1024):
        some = slice(start, min(start + 1024, count))
        light = patterns[labels[some]] + 0.7 * blurred(some.stop - start) - 0.5
        pixels[some] = (160 * light).clamp(0, 255).byte()
    return pixels, labels


def do_names(state: SimpleNamespace) -> dict[str, Any]:
    return {"names": recipe_module().names()}


def _open(
    state: SimpleNamespace,
    recipe: str,
    engine: str,
    folder: str,
    device: str,
    batches: int,
    threads: int | None,
    overrides: Sequence[str],
    data_dir: str | None,
    **_: Any,
) -> Subject:
    """A new subject; whoever comes first to the folder says what it begins with."""
    state.subject = None
    place = Path(folder)
    if not (place / "first.toml").exists():
        found = recipe_module().load(recipe, overrides)
        (place / "first.toml").write_text(recipe_module().dumps(found), "utf-8")
        _make_batches(found, batches, data_dir, place / "batches.pt")
    text = (place / "first.toml").read_text("utf-8")
    state.subject = Subject(text, engine, device, threads, place)
    return state.subject


def do_open(state: SimpleNamespace, **job: Any) -> dict[str, Any]:
    return {"engine": _open(state, **job).engine.name}


def do_time(state: SimpleNamespace, count: int) -> dict[str, Any]:
    """How long mini-batches take to their end: reading what was counted waits for the device."""
    subject = state.subject
    count = math.ceil(count / subject.at_once) * subject.at_once
    with subject.threads():
        began = time.perf_counter()
        subject.train(count)
        subject.engine.collect()
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "count": count}


def do_first(state: SimpleNamespace, **job: Any) -> dict[str, Any]:
    """Train as many mini-batches as asked, fewer if they take too long, and save all numbers."""
    import torch

    subject = _open(state, **job)
    bits = bool(subject.network.neuron.binary)
    with subject.threads():
        subject.train(1)
        early = None if bits else subject.numbers()
        began = time.perf_counter()
        while subject.done < job["batches"] and time.perf_counter() - began < job["seconds"]:
            subject.train(min(subject.at_once, job["batches"] - subject.done))
        seconds = time.perf_counter() - began
        saved = {"early": early, "late": subject.numbers(), "tallies": subject.tallies()}
    torch.save(saved, Path(job["folder"]) / f"{job['engine']}.pt")
    return {
        "engine": subject.engine.name,
        "batches": subject.done,
        "bits": bits,
        "seconds": seconds,
        "tallies": saved["tallies"],
    }


def do_second(state: SimpleNamespace, **job: Any) -> dict[str, Any]:
    """Train the same mini-batches and compare with what has been saved."""
    import torch

    saved = torch.load(Path(job["folder"]) / f"{job['engine']}.pt", mmap=True, weights_only=True)
    subject = _open(state, **job)
    with subject.threads():
        subject.train(1)
        early = subject.numbers() if saved["early"] is not None else None
        subject.train(job["batches"] - subject.done)
        late, tallies = subject.numbers(), subject.tallies()
    differing, size, signs = compared(saved["late"], late)
    differing += [key for key, value in saved["tallies"].items() if tallies.get(key) != value]
    _, early_size, _ = (([], 0.0, 0.0)) if early is None else compared(saved["early"], early)
    return {
        "engine": subject.engine.name,
        "differing": differing,
        "early": early_size,
        "late": size,
        "signs": signs,
        "tallies": tallies,
        "notes": _changed_keys(job["recipe"], job["overrides"], Path(job["folder"])),
    }


def compared(one: dict[str, Any], two: dict[str, Any]) -> tuple[list[str], float, float]:
    """What differs, by how much at most, and how many of all signs do."""
    differing, size, other_signs, all_signs = [], 0.0, 0, 0
    for name, a in one["tensors"].items():
        b = two["tensors"].get(name)
        if b is None or a.shape != b.shape:
            differing.append(f"{name} (missing)")
            continue
        binary = name.endswith("signs") and not name.startswith("momentum")
        all_signs += a.numel() if binary else 0
        if a.dtype == b.dtype and a.equal(b):
            continue
        differing.append(name)
        if binary:
            other_signs += int((a != b).sum())
            continue
        if name.startswith("momentum"):
            # The array and its decay may be folded differently; what counts is their product.
            decay = name.replace("momentum", "decay", 1)
            a, b = a * one["counts"][decay], b * two["counts"][decay]
        largest = float(a.abs().max())
        gap = float((a.double() - b.double()).abs().max())
        size = max(size, gap / largest if largest else math.inf if gap else 0.0)
    differing += [name for name, value in one["counts"].items() if two["counts"].get(name) != value]
    return differing, size, other_signs / max(all_signs, 1)


def _changed_keys(recipe: str, overrides: Sequence[str], folder: Path) -> list[str]:
    """Keys that this checkout's recipe has otherwise than the one that was trained."""
    recipes = recipe_module()
    try:
        mine = recipes.dumps(recipes.load(recipe, overrides))
    except Exception as error:
        return [f"its own recipe: {error}"]
    its = recipes.dumps(recipes.load(folder / "first.toml"))
    skip = ("name", "summary")
    return [
        f"its own recipe has {line}"
        for line in mine.splitlines()
        if line not in its.splitlines() and not line.startswith(skip)
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="root of a checkout")
    parser.add_argument("--after", type=Path, required=True, help="root of another checkout")
    parser.add_argument("--recipes", nargs="+", help="all that the first has, by default")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["auto"])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--batches", type=int, default=50, help="mini-batches to train")
    parser.add_argument("--seconds", type=float, default=math.inf, help="per recipe and engine")
    parser.add_argument("--threads", type=int, help="of torch; all by default")
    parser.add_argument("--set", nargs="+", default=[], help="section.key=value, in both")
    parser.add_argument("--data-dir", type=Path, help="real images instead of made-up ones")
    parser.add_argument("--time", action="store_true", help="time instead of comparing bits")
    parser.add_argument("--rounds", type=int, default=5, help="timings in each checkout")
    parser.add_argument("--json", type=Path, help="write all that was found to this file")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    else:
        sys.exit(main(arguments()))
