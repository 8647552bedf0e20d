"""Commands that train, and that list what can be trained."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from binep.cli.options import (
    AsJson,
    AtOnce,
    DataDir,
    Device,
    Engine,
    JobParameters,
    Offline,
    On,
    Overrides,
    OwnData,
    Quiet,
    RayAddress,
    RecipeName,
    job_parameters,
    with_data,
)
from binep.cli.output import print_json, tell
from binep.errors import BinepError, printable


def train(
    recipe: RecipeName = "digits-1fc-w",
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs (overrides the recipe).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds to train, from --seed on.")
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder that the run's own folder goes into.")] = Path(
        "runs"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume a run from its last checkpoint, bit for bit.")
    ] = False,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Resume the run if there is one, else begin it.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the run's folder, in place of the recipe's and what --set changes."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove a run that is there, and begin anew.")
    ] = False,
    branch: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Start from another run's checkpoint; the recipes must match up to that epoch.",
        ),
    ] = None,
    offline: Offline = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write for TensorBoard.")
    ] = False,
    loggers: Annotated[
        list[str] | None,
        typer.Option("--logger", help="Also write by a registered logger; may be repeated."),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds between checkpoints within an epoch.")
    ] = 300.0,
    threads: Annotated[
        int | None, typer.Option(help="Number of threads on a CPU; by default one per core.")
    ] = None,
    on: On = "here",
    at_once: AtOnce = None,
    jobs: JobParameters = None,
    address: RayAddress = None,
    own_data: OwnData = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a network with binary weights by Equilibrium Propagation.

    Without a RECIPE this trains digits-1fc-w, a small network on digits that ship with binep.

    Example: binep train mnist-1fc-w --seed 1 --set learning.beta=0.5
    """
    from binep.engines.select import select_device
    from binep.training import launch, runs
    from binep.training import recipe as recipes
    from binep.training.naming import run_name, variant_name
    from binep.training.progress import PlainWatcher, QuietWatcher, Watcher, usual_watcher
    from binep.training.trials import Options, Trial, place

    if threads is not None:
        _use_threads(threads)
    if epochs is not None:
        overrides = [*(overrides or []), f"training.epochs={epochs}"]
    overrides = with_data(overrides, own_data)
    if seeds is not None and seeds < 1:
        raise BinepError(f"--seeds {seeds}: allowed is at least 1")
    if branch is not None and seeds is not None:
        raise BinepError("--branch with --seeds: allowed is one --seed, that of the other run")
    if not checkpoint_every >= 0:
        raise BinepError(f"--checkpoint-every {checkpoint_every:g}: allowed is at least 0 seconds")
    chosen = recipes.load(recipe, overrides).logged_by(
        [*(loggers or ()), *(["tensorboard"] if tensorboard else [])]
    )
    name = variant_name(recipe, overrides) if name is None else name
    numbers = range(seed, seed + (seeds or 1))

    # A GPU runs several seeds at once in less time than one after the other.
    beside = len(numbers) > 1 and not launch.many() and select_device(device).type == "cuda"

    def watch(number: int) -> Watcher:
        if not launch.leads():
            return Watcher()
        if as_json or quiet:
            return QuietWatcher()
        # A bar would count now and then, which processes have to do together.
        plain = beside or launch.many()
        return PlainWatcher(f"seed {number}  " * beside) if plain else usual_watcher()

    options: dict[str, Any] = {
        "out": out,
        "device": device,
        "engine": engine,
        "data_dir": data_dir,
        "offline": offline,
        "resume": resume or go_on,
        "branch": branch,
        "name": name,
        "overwrite": overwrite,
        "checkpoint_seconds": checkpoint_every,
    }
    folders = [out / run_name(chosen, number, name) for number in numbers]
    if launch.leads() and not launch.restarted():
        if resume and not go_on and branch is None:
            runs.check_there(folders)
        for number, folder in zip(numbers, folders, strict=True):
            runs.check_earlier(chosen, number, folder, resume=resume or go_on, overwrite=overwrite)
    if on != "here":
        if branch is not None or overwrite:
            raise BinepError(f"--on {on} with --branch or --overwrite: allowed with --on here")
        executor = place(
            on, at_once=at_once, folder=out, slurm=job_parameters(jobs), address=address
        )
        shared = Options(device, engine, data_dir, offline, checkpoint_every)
        found = _elsewhere([Trial(chosen, n, out, name, shared) for n in numbers], executor)
    elif beside:
        watchers = [watch(number) for number in numbers]
        found = iter(runs.train_side_by_side(chosen, numbers, watchers=watchers, **options))
    else:
        found = (runs.train(chosen, seed=n, watcher=watch(n), **options) for n in numbers)
    results, code = [], 0
    for run in found:
        code = max(code, run.exit_code)
        results.append({"run": str(run.folder), "finished": run.finished, "last": run.last})
        if not as_json and launch.leads():
            _tell_outcome(run, sys.argv[1:], quiet)
        if not run.finished and not beside and on == "here":
            break
    if as_json and launch.leads():
        print_json(results)
    if code:
        sys.exit(code)


def _elsewhere(trials: list[Any], executor: Any) -> Iterator[Any]:
    """The runs of trials as they end; those that have finished before first."""
    from binep.training.trials import missing

    yield from (run for trial in trials if (run := trial.finished()) is not None)
    failures = []
    for outcome in executor.run(missing(trials)):
        if outcome.failure is not None:
            failures.append(f"{outcome.trial.label}: {outcome.failure}")
        elif outcome.run is not None:
            yield outcome.run
    if failures:
        raise BinepError("; ".join(failures))


def _use_threads(count: int) -> None:
    import torch

    if count < 1:
        raise BinepError(f"--threads {count}: allowed is at least 1")
    os.environ["OMP_NUM_THREADS"] = str(count)  # as if the shell had chosen
    torch.set_num_threads(count)


def _tell_outcome(run: Any, words: list[str], quiet: bool) -> None:
    if run.finished:
        test, epochs = run.last["test_error"], len(run.metrics)
        tell(
            f"{run.folder}: test error {test['average']:.2f} % (single neuron "
            f"{test['single']:.2f} %) after {epochs} epoch{'s' * (epochs > 1)}"
        )
        if not quiet:
            tell(f"see it: binep report {shlex.quote(str(run.folder))}")
    else:
        on = {"--resume", "--continue"} & set(words)
        again = words if on else [*(word for word in words if word != "--overwrite"), "--resume"]
        tell(f"{run.folder}: stopped and saved\ngo on with: binep {shlex.join(again)}")


def list_runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER...]", help="Folders that hold runs. [default: runs]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs with their state, epochs, errors and age.

    Example: binep runs
    """
    from binep.training import run_folder

    found = [
        run_folder.summary_of(path)
        for root in folders or [Path("runs")]
        for path in run_folder.find_runs(root)
    ]
    if as_json:
        print_json(found)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("run", no_wrap=True, overflow="fold")
    for title in ("state", "epochs", "test error", "last change"):
        table.add_column(title, justify="right")
    for each in found:
        error = "" if each["test_error"] is None else f"{each['test_error']:.2f} %"
        table.add_row(
            printable(each["run"]),
            printable(each["state"]),
            f"{each['epochs']} of {each['of']}",
            error,
            each["updated"],
        )
    Console().print(table)


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this one.")] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Explain the keys of a recipe instead.")
    ] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="WORD", help="Only what has this word; may be repeated."),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes, print one completely as TOML, or explain all keys.

    Example: binep recipes mnist-conv-wa > mine.toml
    """
    from dataclasses import asdict

    from binep.training import recipe as known

    if keys:
        from binep.training import keys as reference

        tell(reference.text(filters or []))
        return
    if name is not None:
        chosen = known.load(name, overrides or [])
        if as_json:
            print_json(asdict(chosen))
        else:
            tell(known.dumps(chosen), end="")
        return
    found = [known.load(each) for each in known.names()]
    found = [
        each
        for each in found
        if all(word.lower() in f"{each.name} {each.summary}".lower() for word in filters or [])
    ]
    if not found:
        raise BinepError(f"no recipe has {' and '.join(map(repr, filters or []))} in its name")
    if as_json:
        print_json([asdict(each) for each in found])
        return
    from binep.report.figures import number, text_table
    from binep.studies.evidence import reached
    from binep.studies.times import minutes

    header = ["recipe", "test error, %", "paper", "min: CPU", "H200"]
    rows = []
    for each in found:
        known, took = reached(each.name), minutes(each)
        error = "" if known is None else f"{number(known.test, known.test_sd)} ({known.n})"
        paper = "" if each.paper.test is None else f"{each.paper.test:g}"
        rows.append([each.name, error, paper, *map(_brief, (took.cpu, took.h200))])
    lines = text_table(header, rows).splitlines()
    told = ["what it trains", "-" * 14, *(each.summary for each in found)]
    # One line each, where a person reads them.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    left = max(map(len, lines))
    for line, summary in zip(lines, told, strict=True):
        print(f"{line:{left}}  {summary}"[:width])
    print(
        "test error: mean ± standard deviation (n seeds) after the last epoch; min: minutes of a "
        "whole training on\ntwo cores of a server CPU and on one NVIDIA H200, where measured. One "
        "recipe: binep recipes NAME; keys: --keys"
    )


def _brief(minutes: float | None) -> str:
    """Minutes with two digits."""
    return "" if minutes is None else f"{minutes:.1f}" if minutes < 10 else f"{minutes:,.0f}"
