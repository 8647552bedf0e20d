"""Search for gamma and tau of every coupling by Optuna, starting from the rule of pi.

The rule (see `tune`) gives the rates that the first trial has, and the prior of the others: each
rate is searched within a factor of `SPAN`, in logarithms, and the sampler, a tree-structured Parzen
estimator, starts from a normal density over that range, whose mean is its middle, the rule's. What
a trial learns in an epoch is read on validation images; a trial that is worse than the median of
the others at that epoch ends early. The test set is not used.

A study is kept in a file, or a database that several machines search at the same time.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from binep.errors import BinepError
from binep.files import make_folder
from binep.studies.compare import held_out
from binep.studies.evidence import recipe_hash
from binep.studies.tune import Rates, Trial, Tuned, rates_by_pi, written
from binep.studies.workbench import Workbench
from binep.training import runs
from binep.training.recipe import Recipe

SPAN = 10.0  # by which a rate may differ from the rule's, either way
STARTUP = 8  # trials that are drawn before the sampler takes the others into account
UNPRUNED = 4  # trials that are not ended early
TRIES = 3  # to reach a database
PATIENCE = 120.0  # seconds until whoever has begun a study has said where it starts


def search(
    bench: Workbench,
    *,
    trials: int,
    storage: str | Path,
    batches: int = 300,
    epochs: int = 3,
    watch: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:
    """Continue or begin the study of a recipe until it has the given number of trials.

    Args:
        trials: in all, those of other processes and of earlier calls included.
        storage: a file, or the URL of a database.
        batches: of a probe of the rule. epochs: that a trial is trained for at most.
        watch: is told of each trial when it is over.
    """
    if trials < 1 or epochs < 1:
        raise BinepError(f"trials={trials}, epochs={epochs}: allowed is at least 1 of each")
    optuna = _optuna()
    name = _name(held_out(bench.recipe), epochs, bench.seed)
    study, start = _open(
        optuna, name, storage, bench.seed, lambda: rates_by_pi(bench, batches=batches, watch=watch)
    )

    def train(trial: Any) -> float:
        rates = _suggested(trial, start)
        trainer = bench.trainer(rates.put_into(bench.recipe))
        error = 100.0
        with runs.fitting_threads(trainer):
            for epoch in range(1, epochs + 1):
                line = trainer.epoch()
                assert line is not None
                error = line["test_error"]["average"]
                trial.set_user_attr("pi", line["pi"])
                trial.set_user_attr("train_error", line["train_error"]["average"])
                trial.report(error, epoch)
                if epoch < epochs and trial.should_prune():
                    raise optuna.TrialPruned
        return error

    def tell(study: Any, trial: Any) -> None:
        watch(_as_trial(trial, start, epochs))

    with _one_line(optuna):
        while len(_done(optuna, study)) < trials:
            study.optimize(train, n_trials=1, callbacks=[tell])
        found = [_as_trial(trial, start, epochs) for trial in _done(optuna, study)]
        best = _suggested(optuna.trial.FixedTrial(study.best_params), start)
    return Tuned(written(bench.recipe, best), found)


# --- the study ----------------------------------------------------------------------------------


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise BinepError(
            "binep tune --trials needs the package optuna: pip install 'binep[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _name(recipe: Recipe, epochs: int, seed: int) -> str:
    """The name of a study: only trials that can be compared share one."""
    return f"{recipe.name}-{recipe_hash(recipe)}-epochs{epochs}-seed{seed}"


def _open(
    optuna: Any, name: str, storage: str | Path, seed: int, by_rule: Callable[[], Rates]
) -> tuple[Any, Rates]:
    """The study, and the rates that it starts from."""
    kept = _storage(optuna, storage)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED)

    def sampler(seed: int) -> Any:
        return optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True, n_startup_trials=STARTUP
        )

    with _one_line(optuna):
        names = optuna.get_all_study_names(storage=kept)
        if name not in names:
            start = by_rule()
            try:
                study = optuna.create_study(
                    storage=kept, study_name=name, sampler=sampler(seed), pruner=pruner
                )
            except optuna.exceptions.DuplicatedStudyError:
                pass  # another process was faster
            else:
                return study, _begun(study, start)
        # Others have the same seed: each process draws for itself.
        study = optuna.load_study(
            storage=kept, study_name=name, sampler=sampler(seed + os.getpid()), pruner=pruner
        )
        until = time.monotonic() + PATIENCE
        while "start" not in study.user_attrs:
            if time.monotonic() > until:  # whoever began it was killed
                return study, _begun(study, by_rule())
            time.sleep(0.2)
    return study, Rates(**study.user_attrs["start"])


def _begun(study: Any, start: Rates) -> Rates:
    """Let a study's first trial be the rule's, and say so to whoever shares the study."""
    study.enqueue_trial(_parameters(start))
    study.set_user_attr("start", {"gamma": start.gamma, "tau": start.tau})
    return start


def _storage(optuna: Any, storage: str | Path) -> Any:
    """A database by its URL, or a journal in a file."""
    if "://" in str(storage):
        return _database(optuna, str(storage))
    path = Path(storage)
    make_folder(path.parent)
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


def _database(optuna: Any, url: str) -> Any:
    """A database; its tables are made if missing, which another process may do meanwhile."""
    for left in reversed(range(TRIES)):
        try:
            return optuna.storages.RDBStorage(url)
        except ImportError as error:
            raise BinepError(f"--storage {url}: {' '.join(str(error).split())}") from None
        except Exception as error:  # whatever a database may refuse
            if not left:
                told = str(getattr(error, "orig", error)).strip().splitlines()
                raise BinepError(f"--storage {url}: {(told or [repr(error)])[0]}") from None
            time.sleep(1)
    raise AssertionError


@contextmanager
def _one_line(optuna: Any) -> Iterator[None]:
    """What the storage refuses, in one line."""
    try:
        yield
    except (optuna.exceptions.StorageInternalError, OSError) as error:
        raise BinepError(f"the study's storage: {' '.join(str(error).split())}") from None


def _done(optuna: Any, study: Any) -> list[Any]:
    states = optuna.trial.TrialState
    return study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED))


# --- rates as parameters ------------------------------------------------------------------------


def _suggested(trial: Any, start: Rates) -> Rates:
    """gamma, and how many gammas tau is, of each coupling: what decides how many weights flip."""

    def near(name: str, value: float) -> float:
        return trial.suggest_float(name, value / SPAN, value * SPAN, log=True)

    gamma, tau = [], []
    for n, (g, t) in enumerate(zip(start.gamma, start.tau, strict=True)):
        gamma.append(min(near(f"gamma{n}", g), 1.0))
        tau.append(gamma[-1] * near(f"ratio{n}", t / g))
    return Rates(gamma, tau)


def _parameters(rates: Rates) -> dict[str, float]:
    """The parameters that `_suggested` makes these rates of."""
    found = {}
    for n, (g, t) in enumerate(zip(rates.gamma, rates.tau, strict=True)):
        found |= {f"gamma{n}": g, f"ratio{n}": t / g}
    return found


def _as_trial(trial: Any, start: Rates, epochs: int) -> Trial:
    """One of Optuna's trials as `tune` shows its own."""
    import optuna

    rates = _suggested(optuna.trial.FixedTrial(trial.params), start)
    seen = trial.intermediate_values
    last = max(seen, default=0)
    pruned = trial.state == optuna.trial.TrialState.PRUNED
    return Trial(
        f"trial {trial.number}, {'ended after' if pruned else 'trained for'} {last} of {epochs}",
        [float(f"{g:.2g}") for g in rates.gamma],
        [float(f"{t:.2g}") for t in rates.tau],
        trial.user_attrs.get("pi", []),
        trial.user_attrs.get("train_error", float("nan")),
        seen.get(last, float("nan")),
    )
