"""A run on disk: its recipe, its record, its metrics, its checkpoints; and how to make one.

runs/mnist-1fc-w-seed0/
  recipe.toml       complete and resolved
  record.json       seed, commit, versions, device, engine, precision, times
  metrics.jsonl     one line per epoch
  checkpoint-*      see `checkpoints`

All of them are sealed, see `seals`, and a checkpoint says which recipe, seed, data and metrics it
is of: a file that was altered, or is another run's, is refused.
"""

import json
import math
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import binep
from binep.core.metrics import Tally
from binep.core.network import Network
from binep.data import Dataset, Folder
from binep.data.own import fingerprint
from binep.engines.base import BringsThreads, Engine, RunsKernels
from binep.engines.processes import share
from binep.engines.select import select_device, select_engine
from binep.errors import BinepError
from binep.files import (
    append_line,
    claimed,
    make_folder,
    read_text,
    read_whole,
    remove_leftovers,
    telling,
    write_whole,
)
from binep.training import checkpoints, launch, seals
from binep.training import recipe as recipes
from binep.training.fit import as_dataset
from binep.training.launch import Team
from binep.training.naming import run_name
from binep.training.progress import Watcher, Watchers, start_loggers
from binep.training.recipe import Recipe
from binep.training.signals import SAVES, Requests, exit_code, listening
from binep.training.trainer import Trainer, evaluate, random_streams, troubles

CHECKPOINT_SECONDS = 300.0
SMALL = 2**16  # neurons in a mini-batch


@dataclass(frozen=True)
class Run:
    """A run as it stands on disk."""

    folder: Path
    recipe: Recipe
    record: dict[str, Any]
    metrics: list[dict[str, Any]]

    def __repr__(self) -> str:
        error = f", test error {self.last['test_error']['average']:.2f} %" if self.last else ""
        epochs = f"{len(self.metrics)} of {self.recipe.training.epochs} epochs"
        return f"Run({str(self.folder)!r}, {epochs}{error})"

    @property
    def finished(self) -> bool:
        return len(self.metrics) >= self.recipe.training.epochs

    @property
    def exit_code(self) -> int:
        """What a process that trained it should end with: 0, or by which signal it was stopped."""
        return 0 if self.finished else exit_code(self.record.get("signal"))

    def network(self, device: str = "auto", *, newest: bool = False) -> Network:
        """The trained network of the newest checkpoint.

        If that is damaged, the one before is read with a warning; with `newest` it is an error.
        """
        found = checkpoints.load(self.folder, warn=_warn, newest=newest)
        if found is None:
            raise BinepError(f"{self.folder} has no checkpoint yet: let it train for a while")
        _check_belongs(self, found[1])
        network = self.recipe.build_network()
        checkpoints.restore_network(network, found[0])
        return network.to(select_device(device))

    def engine(self, device: str = "auto") -> Engine:
        """An engine that can evaluate the trained network."""
        network = self.network(device)
        return select_engine(
            "auto", network, self.recipe.build_learning(), self.recipe.build_optimizers(network)
        )

    @property
    def last(self) -> dict[str, Any] | None:
        """The metrics of the last epoch finished."""
        return self.metrics[-1] if self.metrics else None

    def dataset(
        self,
        given: Dataset | Any = None,
        *,
        device: str = "auto",
        data_dir: Folder | None = None,
        offline: bool = False,
    ) -> Dataset:
        """The data that the run trains and is tested on; `given`, if they were in `train`."""
        whole = _whole(self.recipe, given, data_dir, offline)
        _check_same_data(self.folder, self.record, self.recipe, _mark(self.recipe, whole))
        return self.recipe.hold_out(whole.to(select_device(device)))

    def evaluate(
        self,
        split: str = "test",
        *,
        device: str = "auto",
        data_dir: Folder | None = None,
        offline: bool = False,
        dataset: Dataset | Any = None,
    ) -> Tally:
        """Read the "test" or "train" images out of the trained network; see `dataset`."""
        dataset = self.dataset(dataset, device=device, data_dir=data_dir, offline=offline)
        return evaluate(self.engine(device), dataset, getattr(dataset, split))


def _whole(recipe: Recipe, given: Dataset | Any, data_dir: Folder | None, offline: bool) -> Dataset:
    """All of a recipe's data: loaded, or handed over."""
    if given is None:
        return recipe.load_data(data_dir=data_dir, offline=offline)
    return as_dataset(given)


def _mark(recipe: Recipe, dataset: Dataset) -> str | None:
    """The fingerprint of data of one's own; None of those that binep verifies by itself."""
    return fingerprint(dataset) if recipe.data.published is None else None


def _check_same_data(
    folder: Path, record: dict[str, Any], recipe: Recipe, mark: str | None
) -> None:
    """See that data of one's own are still those that the run was trained on."""
    seen = record.get("data_fingerprint")
    if mark is not None and seen is not None and seen != mark:
        raise BinepError(
            f"{recipe.data.place} is not what {folder} was trained on: its content has changed; "
            "bring the file back, or train anew in another --out"
        )


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def open_run(folder: str | Path) -> Run:
    """Read a run's folder, or the only run inside a folder."""
    found = find_runs(folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BinepError(f"{folder} holds {len(found)} runs, name one of them: {names}")
    path = found[0]
    # Before the rest: what training writes meanwhile is later than this.
    newest = checkpoints.newest_facts(path)
    record, is_sealed = _read_record(path)
    recipe, recipe_is_sealed = _read_recipe(path)
    if is_sealed and not recipe_is_sealed:
        raise BinepError(f"{path / 'recipe.toml'}: {seals.ALTERED}")
    if recipe_is_sealed and not is_sealed:
        _warn(f"{path / 'record.json'} has no seal, what lies beside it has: it may be altered")
    run = Run(path, recipe, record, read_metrics(path, is_sealed))
    if newest is not None:
        _check_belongs(run, newest)
    return run


def find_runs(folder: str | Path) -> list[Path]:
    """The folder itself if it is a run, else the runs directly inside it."""
    folder = Path(folder)
    inside = []
    with telling("read", folder):
        if _is_run(folder):
            return [folder]
        if folder.is_dir():
            inside = sorted(p for p in folder.iterdir() if _is_run(p))
    if not inside:
        raise BinepError(
            f"{folder} is not a run: allowed is a folder that binep train wrote, with recipe.toml "
            "and record.json in it"
        )
    return inside


def _is_run(folder: Path) -> bool:
    return (folder / "recipe.toml").is_file() and (folder / "record.json").is_file()


def summary_of(folder: Path) -> dict[str, Any]:
    """What a list of runs says of one; of a run that cannot be read, why."""
    try:
        run = open_run(folder)
    except BinepError as error:
        return {
            "run": str(folder), "state": f"unreadable: {error}", "epochs": 0, "of": 0,
            "test_error": None, "updated": "",
        }  # fmt: skip
    return {
        "run": str(folder),
        "state": "finished" if run.finished else _state(run),
        "epochs": len(run.metrics),
        "of": run.recipe.training.epochs,
        "test_error": run.last["test_error"]["average"] if run.last else None,
        "updated": str(run.record.get("updated", ""))[:16].replace("T", " "),
    }


def _state(run: Run) -> str:
    """Of a run with epochs left: whether a process trains it, as its folder's claim tells."""
    try:
        with claimed(run.folder):
            return "stopped"
    except BinepError:
        return "training"


def read_metrics(folder: Path, must: bool = False) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line cut off by a crash is left out.

    Args:
        must: whether each line must have its seal; otherwise, as of version 0.1, none may.
    """
    path = folder / "metrics.jsonl"
    lines = read_whole(path).splitlines() if path.exists() else []
    found = []
    for n, line in enumerate(lines):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            if n + 1 < len(lines):
                raise BinepError(f"{path}: line {n + 1} is damaged") from None
    for n, line in enumerate(found):
        if not isinstance(line, dict):
            raise BinepError(f"{path}: line {n + 1} is damaged")
    try:
        return seals.unchained(found, must)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None


def _write_metrics(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    text = "".join(line + "\n" for line in seals.chained(lines))
    path = folder / "metrics.jsonl"
    if not path.exists() or read_whole(path) != text.encode():
        write_whole(path, text)


def _read_record(folder: Path) -> tuple[dict[str, Any], bool]:
    """The record, and whether it has a seal, as what goes with it then must have."""
    path = folder / "record.json"
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BinepError):
            raise
        raise BinepError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(found, dict):
        raise BinepError(f"{path}: allowed is what binep train writes, an object")
    try:
        return seals.unsealed(found)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    write_whole(folder / "record.json", seals.sealed(record))


def _read_recipe(folder: Path) -> tuple[Recipe, bool]:
    """The recipe, and whether it has a seal."""
    path = folder / "recipe.toml"
    text = read_text(path)
    try:
        is_sealed = seals.is_sealed(text)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None
    return recipes.load(path), is_sealed


def _check_belongs(run: Run, facts: dict[str, Any]) -> None:
    """See that a checkpoint is of this run: its seed, recipe and data, and its metrics so far."""
    of, epochs = facts.get("run"), facts.get("epoch")
    if not isinstance(of, dict) or not isinstance(epochs, int):  # of version 0.1
        return
    where = f"{run.folder}: its checkpoint after {epochs} epochs is of another run"
    # A trained network may be measured on other hardware: see `on_hardware`.
    trained = replace(recipes.from_table(of["recipe"]), hardware=run.recipe.hardware)
    told = [
        f"{word} was {json.dumps(old)}, is {json.dumps(new)}"
        for word, old, new in (
            ("seed", of["seed"], run.record.get("seed")),
            ("data_fingerprint", of["data"], run.record.get("data_fingerprint")),
        )
        if old != new
    ]
    told += _differences_so_far(trained, run.recipe, epochs)
    if told:
        raise BinepError(f"{where}: {'; '.join(told)}")
    if len(run.metrics) < epochs:
        _warn(f"{run.folder}/metrics.jsonl has lost lines: {len(run.metrics)} of {epochs} epochs")
    elif seals.last_seal(run.metrics[:epochs]) != of["metrics"]:
        raise BinepError(f"{run.folder}/metrics.jsonl: not the metrics of this run's checkpoint")


# --- making one ---------------------------------------------------------------------------------


@listening(numbers=SAVES)  # who does not listen to these is ended by them
def train(
    recipe: Recipe,
    *,
    seed: int = 0,
    out: str | Path = "runs",
    device: str = "auto",
    engine: str = "auto",
    data_dir: Folder | None = None,
    offline: bool = False,
    resume: bool = False,
    branch: str | Path | None = None,
    name: str | None = None,
    overwrite: bool = False,
    dataset: Dataset | Any = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Train a recipe to its last epoch, or until interrupted, in `out/<recipe>-seed<seed>/`.

    A `name` stands in place of the recipe's; with `overwrite` a run of that name is removed.
    With `resume` an existing run goes on bit for bit where its last checkpoint left it; a missing
    one is begun: afresh, or where the run in the folder `branch` stands, of a recipe that has been
    the same so far. Ctrl-C and its like, see `signals`, or `stop` when it is set, let the current
    mini-batch finish and save; the run returned is then not `finished`.

    A `dataset` of your own, anything that `binep.train` takes, stands in place of the recipe's.

    Where torchrun has started several processes each calls this alike, see `launch`: the run is one
    of all of them. Started anew after a failure they resume.
    """
    team, watcher, place = launch.join(), watcher or Watcher(), select_device(device)
    if dataset is not None:
        dataset = as_dataset(dataset)
        recipe = recipe.of(dataset)
    folder, again = Path(out) / run_name(recipe, seed, name), launch.restarted()
    asked = _Asked(
        team, folder, recipe, seed, place, engine, dataset, data_dir, offline, watcher, stop
    )
    if not team.leads:
        return _follow(asked)
    with team.leading():
        return _lead(asked, resume or again, overwrite and not again, branch, checkpoint_seconds)


@dataclass(frozen=True)
class _Asked:
    """What `train` was asked for, in each of the processes that share the run."""

    team: Team
    folder: Path
    recipe: Recipe
    seed: int
    place: torch.device
    engine: str
    dataset: Dataset | None
    data_dir: Folder | None
    offline: bool
    watcher: Watcher
    stop: threading.Event | None

    def whole(self) -> Dataset:
        """All data, before any are held out."""
        return _whole(self.recipe, self.dataset, self.data_dir, self.offline)

    def trainer(self, whole: Dataset) -> Trainer:
        """The trainer of one of the processes that share the training."""
        recipe = self.recipe
        data, say = recipe.hold_out(whole.to(self.place)), self.watcher.say
        trainer = build_trainer(recipe, data, self.seed, self.place, self.engine, say)
        share(trainer.engine, trainer.network, recipe.build_learning(), self.team.processes)
        return trainer


def _lead(
    asked: _Asked,
    resume: bool,
    overwrite: bool,
    branch: str | Path | None,
    checkpoint_seconds: float,
) -> Run:
    """`train`, as the process that reads and writes the run; as a rule the only one."""
    team, folder, recipe, watcher = asked.team, asked.folder, asked.recipe, asked.watcher
    seed, place = asked.seed, asked.place
    check_earlier(recipe, seed, folder, resume=resume, overwrite=overwrite)
    trunk = None if branch is None or _is_run(folder) else open_run(branch).folder
    if trunk is not None:
        _check_part_of(recipe, seed, trunk)
    whole = asked.whole()
    team.say_data_are_there()
    mark = _mark(recipe, whole)
    if _is_run(folder) and not overwrite:
        _check_same_data(folder, open_run(folder).record, recipe, mark)
    trainer = asked.trainer(whole)
    if overwrite:
        _remove(folder)
    make_folder(folder)
    commit()  # asked of a process of its own, which would share what is claimed
    with claimed(folder), fitting_threads(trainer):
        # Once more: another process may have trained here while this one read the data.
        check_earlier(recipe, seed, folder, resume=resume)
        remove_leftovers(folder)
        if trunk is not None:
            with claimed(trunk):
                _check_part_of(recipe, seed, trunk)
                _branch_off(open_run(trunk), folder, recipe.name)
        found = checkpoints.load(folder, warn=watcher.say)
        if found is not None:
            if _is_run(folder):
                _check_belongs(open_run(folder), found[1])
            checkpoints.restore(trainer, *found)
            checkpoints.discard_after(folder, found[1])
            checkpoints.tidy(folder)
        write_whole(folder / "recipe.toml", seals.sealed_text(recipes.dumps(recipe)))
        history = _rewind_metrics(folder, trainer.progress.epoch)
        record = _begin_record(folder, recipe, seed, place, trainer, team, mark)
        team.say_start()
        team.share_checkpoint(found)
        disk = Disk(folder, recipe, record, history, checkpoint_seconds)
        listeners = Watchers(watcher, *start_loggers(recipe.loggers or (), folder))
        _train(team, folder.name, trainer, recipe, disk, listeners, asked.stop)
    run = open_run(folder)
    team.share_facts({"record": run.record, "metrics": run.metrics})
    return run


def _follow(asked: _Asked) -> Run:
    """`train`, as a process that another one leads: nothing is read or written but data."""
    team, folder, recipe = asked.team, asked.folder, asked.recipe
    team.wait_for_data()
    trainer = asked.trainer(asked.whole())
    with fitting_threads(trainer):
        team.wait_for_start()
        found = team.share_checkpoint(None)
        if found is not None:
            checkpoints.restore(trainer, *found)
        _train(team, folder.name, trainer, recipe, None, asked.watcher, asked.stop)
    return Run(folder, recipe, **team.share_facts(None))


def train_side_by_side(
    recipe: Recipe, seeds: Sequence[int], *, watchers: Sequence[Watcher], **options: Any
) -> list[Run]:
    """Train several seeds of a recipe at the same time, each as `train` would.

    For a GPU: a small network leaves most of it idle, and the seeds' mini-batches run in streams of
    their own. Ctrl-C saves all of them.
    """

    def train_one(seed: int, watcher: Watcher, stop: threading.Event) -> Run:
        return train(recipe, seed=seed, watcher=watcher, stop=stop, **options)

    jobs = [partial(train_one, *pair) for pair in zip(seeds, watchers, strict=True)]
    found = {run.record["seed"]: run for run in side_by_side(jobs, len(jobs))}
    return [found[seed] for seed in seeds]


def side_by_side(jobs: Sequence[Callable[[threading.Event], Any]], at_once: int) -> Iterator[Any]:
    """Run jobs at the same time, on a GPU each in a stream of its own; yields what they return.

    Ctrl-C, or the failure of one, sets the event that they are given: then they should end.
    """

    def run(job: Callable[[threading.Event], Any]) -> Any:
        with torch.cuda.stream(torch.cuda.Stream() if torch.cuda.is_available() else None):
            return job(stop)

    with listening() as asked, ThreadPoolExecutor(at_once) as threads:
        stop = asked.stop
        futures = [threads.submit(run, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            stop.set()
            raise


def build_trainer(
    recipe: Recipe,
    dataset: Dataset,
    seed: int,
    device: torch.device,
    engine: str = "auto",
    say: Callable[[str], None] = lambda text: None,
) -> Trainer:
    """Everything that a recipe describes, put together, with all randomness from one seed.

    `say` is told if the engine that would be fastest cannot be had.
    """
    streams = random_streams(seed)
    network: Network = recipe.build_network(streams["init"]).to(device)
    optimizers = recipe.build_optimizers(network, streams["noise"])
    learning = recipe.build_learning(streams["sign"])
    return Trainer(
        select_engine(engine, network, learning, optimizers, say),
        network,
        optimizers,
        dataset,
        batch_size=recipe.training.batch_size,
        drop_last=recipe.training.drop_last,
        augmentation=recipe.augmentation,
        streams=streams,
        set_rates=recipe.set_rates,
    )


@contextmanager
def fitting_threads(trainer: Trainer) -> Iterator[None]:
    """One thread for a network so small that a second is woken up in vain; else torch's own choice.

    Whoever sets OMP_NUM_THREADS has chosen already. An engine with own threads gets them all.
    """
    if isinstance(trainer.engine, BringsThreads) and trainer.engine.own_threads:
        from binep.engines.numba.jit import all_threads_for_kernels

        with all_threads_for_kernels():
            yield
        return
    threads = torch.get_num_threads()
    neurons = sum(torch.Size(shape).numel() for shape in trainer.network.layer_shapes)
    if neurons * trainer.batch_size < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_earlier(
    recipe: Recipe, seed: int, folder: Path, *, resume: bool, overwrite: bool = False
) -> None:
    """See that what is in the run's folder, if anything, is an earlier part of the same run."""
    if resume and overwrite:
        raise BinepError("resume and overwrite: allowed is one of the two")
    if not _is_run(folder) or overwrite:
        return
    if not resume:
        raise BinepError(
            f"{folder} already holds a run: add --resume to go on with it, --overwrite to lose it, "
            "or choose another --name, --seed or --out"
        )
    _check_part_of(recipe, seed, folder)


def check_there(folders: Sequence[Path]) -> None:
    """See that there is a run to go on with in one of some folders."""
    if not any(map(_is_run, folders)):
        raise BinepError(f"{folders[0]} holds no run to resume: allowed is to begin one")


def _remove(folder: Path) -> None:
    """Remove a run, unless a process trains it; a folder that is none stays as it is."""
    if _is_run(folder):
        with claimed(folder), telling("remove", folder):
            shutil.rmtree(folder)


def _check_part_of(recipe: Recipe, seed: int, folder: Path) -> None:
    """See that the recipe, so far, would have trained this seed as the run in the folder was.

    Rates may differ in what is yet to come: in epochs after the one in which the run stands.
    """
    saved = open_run(folder)
    epochs = len(saved.metrics)
    if saved.record.get("seed") != seed:
        raise BinepError(f"{folder}: its seed is {saved.record.get('seed')}, not {seed}")
    differences = _differences_so_far(saved.recipe, recipe, epochs)
    if differences:
        raise BinepError(f"{folder} was begun with another recipe: {'; '.join(differences)}")
    if epochs > recipe.training.epochs:
        raise BinepError(
            f"{folder} has been trained for {epochs} epochs already: allowed are at least as many, "
            f"not {recipe.training.epochs}"
        )


def _differences_so_far(old: Recipe, new: Recipe, epochs: int) -> list[str]:
    """In what two recipes would have trained differently, up to the epoch after so many."""
    same_rates = all(old.rates(n) == new.rates(n) for n in range(epochs + 1))
    free = (
        "name",
        "summary",
        "loggers",
        "paper.",
        "training.epochs",
        *(["schedule."] if same_rates else []),
    )
    return [
        f"{key} was {json.dumps(was)}, now {json.dumps(now)}"
        for key, was, now in _differences(asdict(old), asdict(new))
        if not key.startswith(free)
    ]


def _branch_off(trunk: Run, folder: Path, name: str) -> None:
    """Give a new run's folder what another run has learnt, its metrics and its record."""
    saved = sorted(trunk.folder.glob("checkpoint-*"))
    if not saved:
        raise BinepError(f"{trunk.folder} has no checkpoint yet: let it train for a while")
    for path in saved:
        write_whole(folder / path.name, read_whole(path))
    _write_metrics(folder, trunk.metrics)
    origin = {"recipe": trunk.recipe.name, "epochs": len(trunk.metrics)}
    # The record makes it a run, so it comes last.
    _write_record(folder, {**trunk.record, "recipe": name, "branched_from": origin})


def _differences(old: dict, new: dict, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in old:
        if isinstance(old[key], dict):
            yield from _differences(old[key], new[key], f"{where}{key}.")
        elif old[key] != new[key]:
            yield where + key, old[key], new[key]


def _rewind_metrics(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Drop the lines of epochs that the checkpoint has not seen: they will be trained again."""
    path = folder / "metrics.jsonl"
    history = read_metrics(folder)[:epochs]
    if len(history) < epochs:
        raise BinepError(
            f"{path} holds {len(history)} epochs, the checkpoint is after {epochs}: bring the file "
            "back, or train anew in another --out"
        )
    _write_metrics(folder, history)
    return history


@dataclass
class Disk:
    """What the leader keeps of a run while it is trained.

    Attributes:
        record, history: as they stand in record.json, and the lines of metrics.jsonl.
        seconds: between checkpoints within an epoch.
    """

    folder: Path
    recipe: Recipe
    record: dict[str, Any]
    history: list[dict[str, Any]]
    seconds: float

    def __post_init__(self) -> None:
        self.saved = self.began = time.monotonic()
        self.seal = seals.last_seal(self.history)

    @property
    def due(self) -> bool:
        return time.monotonic() - self.saved > self.seconds

    def save(self, trainer: Trainer) -> None:
        # What tells this run from others.
        of = {
            "recipe": recipes.plain(self.recipe),
            "seed": self.record["seed"],
            "data": self.record.get("data_fingerprint"),
        }
        checkpoints.save(self.folder, trainer, {**of, "metrics": self.seal})
        self.saved = time.monotonic()

    def add(self, line: dict[str, Any]) -> None:
        append_line(self.folder / "metrics.jsonl", seals.chained([line], self.seal)[0])
        self.seal = seals.seal_of(line, self.seal)
        self.history.append(line)

    def update_record(self, status: str, asked: Requests, exchanged: dict[str, Any]) -> None:
        spent = self.record["seconds"] + time.monotonic() - self.began
        now = datetime.now(UTC).isoformat(timespec="seconds")
        last: dict[str, Any] = {"status": status, "updated": now, "seconds": spent, **exchanged}
        if status == "interrupted" and asked.signal is not None:
            last["signal"] = asked.signal.name
        _write_record(self.folder, {**self.record, **last})


def _train(
    team: Team,
    name: str,
    trainer: Trainer,
    recipe: Recipe,
    disk: Disk | None,
    watcher: Watcher,
    stop: threading.Event | None,
) -> None:
    """Train to the last epoch, or until some process is asked to stop; `disk` is the leader's."""
    epochs, said = recipe.training.epochs, set[str]()
    bits = any(neuron.binary for neuron in trainer.network.neurons)
    saves, processes = 0, team.processes

    def keep_going() -> bool:
        nonlocal saves
        watcher.batch(trainer)
        due = asked.saves > saves or (disk is not None and disk.due)
        stopping, saving = processes.any(asked.stop.is_set(), due)
        if saving:
            saves = asked.saves
            trainer.settle()
            save()
        return not stopping

    def save() -> None:
        if team.many:
            processes.check_same(checkpoints.digest(trainer), "weights or momenta")
        if disk is not None:
            disk.save(trainer)

    with listening(stop) as asked:
        watcher.begin(name, trainer, epochs)
        try:
            while trainer.progress.epoch < epochs and not processes.any(asked.stop.is_set())[0]:
                line = trainer.epoch(keep_going)
                if line is not None:
                    _check_finite(line, name)
                if line is not None and disk is not None:
                    disk.add(line)
                    watcher.epoch(line)
                    for kind, advice in troubles(disk.history, bits).items():
                        if kind not in said:
                            watcher.say(f"warning: {advice}")
                        said.add(kind)
                save()
                if disk is not None:
                    disk.update_record("running", asked, team.exchanged)
            status = "finished" if trainer.progress.epoch >= epochs else "interrupted"
            if disk is not None and status != disk.record["status"]:
                disk.update_record(status, asked, team.exchanged)
        finally:
            watcher.end()


def _check_finite(line: dict[str, Any], name: str) -> None:
    """See that an epoch's numbers are numbers: of a network that diverges nothing is saved."""
    wrong = [key for key in ("loss", "test_loss", "residual") if not math.isfinite(line[key])]
    if wrong:
        raise BinepError(
            f"{name} diverges: after epoch {line['epoch']} its {wrong[0]} is "
            f"{line[wrong[0]]}, and the run stays as it was before; lower optimizer.lr_bias, "
            "lr_scale or lr_weight, or network.gain"
        )


# --- its record ---------------------------------------------------------------------------------


def _begin_record(
    folder: Path,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    trainer: Trainer,
    team: Team,
    data: str | None,
) -> dict[str, Any]:
    """What makes a result believable: when it was begun, and where its epochs were trained.

    Times are added up. `before` lists where earlier epochs were trained, if elsewhere or with other
    versions; a run that has no epoch left stays as it is.
    """
    earlier = _read_record(folder)[0] if _is_run(folder) else {}
    epochs = trainer.progress.epoch
    if epochs >= recipe.training.epochs and earlier:
        return earlier
    here = {**whereabouts(device, trainer.engine), "processes": team.processes.count}
    there = {key: earlier[key] for key in here if key in earlier}
    moved = any(there[key] != here[key] for key in there)
    before = [*earlier.get("before", []), *([{"epochs": epochs, **there}] if moved else [])]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "recipe": recipe.name,
        "seed": seed,
        **here,
        **({} if data is None else {"data_fingerprint": data}),
        "started": earlier.get("started", now),
        "updated": now,
        "seconds": earlier.get("seconds", 0.0),
        "starts": earlier.get("starts", 0) + 1,
        "status": "running",
        **({"before": before} if before else {}),
    }
    if "branched_from" in earlier:
        record["branched_from"] = earlier["branched_from"]
    _write_record(folder, record)
    return record


def whereabouts(device: torch.device, engine: Engine) -> dict[str, Any]:
    """Where epochs are trained, and by what, as it is now: `threads` are torch's."""
    kernels = isinstance(engine, RunsKernels)
    return {
        **environment(device),
        **({"kernel_threads": engine.kernel_threads} if kernels else {}),
        "engine": engine.name,
        "precision": engine.precision,
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Where numbers come from: versions, commit, device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "binep": binep.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
    }


@cache
def commit() -> str | None:
    """The commit of the source that runs, if it runs from a checkout; `+` marks local changes."""
    here = Path(binep.__file__).resolve().parent
    if here.parent.name != "src":
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
