"""What a trial and its outcome are, and what every place to run trials offers."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from binep.data import Folder
from binep.errors import BinepError, choose
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.naming import run_name
from binep.training.progress import Watcher
from binep.training.recipe import Recipe
from binep.training.run_folder import Run

PLACES = ("here", "local", "slurm", "ray")
# What a recipe is called, and for how long it goes on, tells no training from another.
NOT_TELLING = ("name", "summary", "loggers", "paper")


@dataclass(frozen=True)
class Options:
    """What all trials of a call have in common: as those of `runs.train`."""

    device: str = "auto"
    engine: str = "auto"
    data_dir: Folder | None = None
    offline: bool = False
    checkpoint_seconds: float = runs.CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Trial:
    """A recipe and a seed to train, in `out/<name>-seed<seed>/`; the name is the recipe's own
    unless another is given."""

    recipe: Recipe
    seed: int
    out: Path
    name: str | None = None
    options: Options = field(default_factory=Options)

    @property
    def label(self) -> str:
        return run_name(self.recipe, self.seed, self.name)

    @property
    def folder(self) -> Path:
        return self.out / self.label

    def finished(self) -> Run | None:
        """Its run, if that is there, is of this recipe and seed, and has come far enough."""
        if not (self.folder / "record.json").is_file():
            return None
        run = runs.open_run(self.folder)
        same = _trains(run.recipe) == _trains(self.recipe) and run.record.get("seed") == self.seed
        return run if same and len(run.metrics) >= self.recipe.training.epochs else None

    def train(self, **more: Any) -> Run:
        """Train it in this process, or go on with it."""
        return runs.train(
            self.recipe,
            seed=self.seed,
            out=self.out,
            name=self.name,
            resume=True,
            **asdict(self.options),
            **more,
        )

    def dumps(self) -> str:
        """The trial as a line of JSON, for another process to train; see `loads`."""
        options = asdict(self.options)
        if options["data_dir"] is not None:
            options["data_dir"] = str(Path(options["data_dir"]).resolve())
        table = {
            "recipe": recipes.plain(self.recipe),
            "seed": self.seed,
            "out": str(self.out.resolve()),
            "name": self.name,
            "options": options,
        }
        return json.dumps(table)


def loads(text: str) -> Trial:
    """The trial that `Trial.dumps` wrote."""
    table = json.loads(text)
    return Trial(
        recipes.from_table(table["recipe"]),
        table["seed"],
        Path(table["out"]),
        table["name"],
        Options(**table["options"]),
    )


def _trains(recipe: Recipe) -> dict[str, Any]:
    """All of a recipe that tells what it trains, but for how long."""
    table = {key: value for key, value in recipes.plain(recipe).items() if key not in NOT_TELLING}
    training = {key: value for key, value in table["training"].items() if key != "epochs"}
    return {**table, "training": training}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial.

    Attributes:
        run: as it stands; None if nothing was trained.
        failure: why it did not finish, in one line; None if it did, or was asked to stop.
    """

    trial: Trial
    run: Run | None
    failure: str | None = None

    @property
    def finished(self) -> bool:
        return self.run is not None and self.failure is None and self.run.finished

    @classmethod
    def of(cls, trial: Trial, reply: dict[str, Any]) -> "Outcome":
        """From what the process that trained it replied."""
        run = None
        if reply.get("record") is not None:
            run = Run(trial.folder, trial.recipe, reply["record"], reply["metrics"])
        return cls(trial, run, reply.get("failure"))


class Executor(Protocol):
    """A place to run trials."""

    def run(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        """Train them, and yield each as it ends; the failure of one does not stop the others.

        Ctrl-C and its like, and the end of the iterator, let all save and end.
        """
        ...


def missing(trials: Sequence[Trial]) -> list[Trial]:
    """Those that have not finished."""
    return [trial for trial in trials if trial.finished() is None]


def place(
    name: str,
    *,
    at_once: int | None = None,
    watcher: Callable[[Trial], Watcher] = lambda trial: Watcher(),
    folder: Path = Path("runs"),
    slurm: dict[str, Any] | None = None,
    address: str | None = None,
) -> Executor:
    """The executor of a name of `PLACES`.

    Args:
        at_once: trials at the same time; by default what the place has room for.
        watcher: of trials in this process. folder: where jobs of Slurm are kept.
        slurm: parameters of its jobs, as submitit calls them. address: of a Ray cluster.
    """
    choose(name, PLACES, "place to run trials")
    if at_once is not None and at_once < 1:
        raise BinepError(f"at_once={at_once}: allowed is at least 1")
    if name == "here":
        from binep.training.trials.here import Here

        return Here(watcher, at_once)
    if name == "local":
        from binep.training.trials.local import Local

        return Local(at_once)
    if name == "slurm":
        from binep.training.trials.slurm import Slurm

        return Slurm(folder / ".slurm", at_once, slurm or {})
    from binep.training.trials.ray_cluster import RayCluster

    return RayCluster(address, at_once)
