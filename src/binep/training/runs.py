"""How a run is made: begun, resumed or branched off, in one process or several.

What lies in a run's folder, and how it is read, stands in `run_folder`.
"""

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from binep.core.network import Network
from binep.data import Dataset, Folder
from binep.data.own import scale_advice
from binep.engines.base import BringsThreads
from binep.engines.processes import share
from binep.engines.select import select_device, select_engine
from binep.errors import BinepError
from binep.files import (
    append_line,
    claimed,
    make_folder,
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
from binep.training.provenance import commit, whereabouts
from binep.training.recipe import Recipe
from binep.training.run_folder import (
    Run,
    all_data,
    check_belongs,
    check_same_data,
    differences_so_far,
    fingerprint_of,
    is_run,
    open_run,
    read_metrics,
    read_record,
    write_metrics,
    write_record,
)
from binep.training.signals import SAVES, Requests, listening
from binep.training.trainer import Trainer, diagnose, random_streams

CHECKPOINT_SECONDS = 300.0
SMALL = 2**16  # neurons in a mini-batch


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
        return all_data(self.recipe, self.dataset, self.data_dir, self.offline)

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
    trunk = None if branch is None or is_run(folder) else open_run(branch).folder
    if trunk is not None:
        _check_part_of(recipe, seed, trunk)
    whole = asked.whole()
    team.say_data_are_there()
    if recipe.data.path is not None and (advice := scale_advice(whole)):
        watcher.say(f"warning: {advice}")
    mark = fingerprint_of(recipe, whole)
    if is_run(folder) and not overwrite:
        check_same_data(folder, open_run(folder).record, recipe, mark)
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
            if is_run(folder):
                check_belongs(open_run(folder), found[1])
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
    """One thread for a network too small for a second one to help; else torch's own choice.

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
    """Check that the run's folder is empty or holds an earlier part of the same run."""
    if resume and overwrite:
        raise BinepError("resume and overwrite: allowed is one of the two")
    if not is_run(folder) or overwrite:
        return
    if not resume:
        raise BinepError(
            f"{folder} already holds a run: add --resume to go on with it, --overwrite to lose it, "
            "or choose another --name, --seed or --out"
        )
    _check_part_of(recipe, seed, folder)


def check_there(folders: Sequence[Path]) -> None:
    """Check that one of some folders has a run to resume."""
    if not any(map(is_run, folders)):
        raise BinepError(f"{folders[0]} holds no run to resume: allowed is to begin one")


def _remove(folder: Path) -> None:
    """Remove a run unless a process trains it; other folders are left alone."""
    if is_run(folder):
        with claimed(folder), telling("remove", folder):
            shutil.rmtree(folder)


def _check_part_of(recipe: Recipe, seed: int, folder: Path) -> None:
    """Check that the recipe would have trained this seed as the run in the folder so far.

    Rates may differ in what is yet to come: in epochs after the one in which the run stands.
    """
    saved = open_run(folder)
    epochs = len(saved.metrics)
    if saved.record.get("seed") != seed:
        raise BinepError(f"{folder}: its seed is {saved.record.get('seed')}, not {seed}")
    differences = differences_so_far(saved.recipe, recipe, epochs)
    if differences:
        raise BinepError(f"{folder} was begun with another recipe: {'; '.join(differences)}")
    if epochs > recipe.training.epochs:
        raise BinepError(
            f"{folder} has been trained for {epochs} epochs already: allowed are at least as many, "
            f"not {recipe.training.epochs}"
        )


def _branch_off(trunk: Run, folder: Path, name: str) -> None:
    """Give a new run's folder what another run has learnt, its metrics and its record."""
    saved = sorted(trunk.folder.glob("checkpoint-*"))
    if not saved:
        raise BinepError(f"{trunk.folder} has no checkpoint yet: let it train for a while")
    for path in saved:
        write_whole(folder / path.name, read_whole(path))
    write_metrics(folder, trunk.metrics)
    origin = {"recipe": trunk.recipe.name, "epochs": len(trunk.metrics)}
    # The record makes it a run, so it comes last.
    write_record(folder, {**trunk.record, "recipe": name, "branched_from": origin})


def _rewind_metrics(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Drop the lines of epochs that the checkpoint has not seen: they will be trained again."""
    path = folder / "metrics.jsonl"
    history = read_metrics(folder)[:epochs]
    if len(history) < epochs:
        raise BinepError(
            f"{path} holds {len(history)} epochs, the checkpoint is after {epochs}: bring the file "
            "back, or train anew in another --out"
        )
    write_metrics(folder, history)
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
        write_record(self.folder, {**self.record, **last})


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
                    for kind, advice in diagnose(disk.history, bits).items():
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
    """Check that an epoch's numbers are finite: a network that diverges is not saved."""
    wrong = [key for key in ("loss", "test_loss", "residual") if not math.isfinite(line[key])]
    if wrong:
        raise BinepError(
            f"{name} diverges: after epoch {line['epoch']} its {wrong[0]} is "
            f"{line[wrong[0]]}, and the run stays as it was before; lower optimizer.lr_bias, "
            "lr_scale or lr_weight, or network.gain"
        )


def _begin_record(
    folder: Path,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    trainer: Trainer,
    team: Team,
    data: str | None,
) -> dict[str, Any]:
    """The record of a new run: when it began, and where its epochs are trained.

    Times are added up. `before` lists where earlier epochs were trained, if elsewhere or with other
    versions; a run that has no epoch left stays as it is.
    """
    earlier = read_record(folder)[0] if is_run(folder) else {}
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
    write_record(folder, record)
    return record
