"""The command that trains many recipes, anywhere."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from binep.cli.options import (
    AsJson,
    AtOnce,
    DataDir,
    Device,
    Engine,
    JobParameters,
    Offline,
    RayAddress,
    job_parameters,
)
from binep.cli.output import INTERRUPTED, print_json, tell


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="What to train.")],
    on: Annotated[
        str, typer.Option("--on", help="Where: here, local (processes), slurm or ray.")
    ] = "local",
    at_once: AtOnce = None,
    out: Annotated[Path, typer.Option(help="Folder that the runs go into.")] = Path("runs"),
    to: Annotated[
        Path, typer.Option(help="Folder of evidence that gets the result of each trial.")
    ] = Path("evidence"),
    show: Annotated[
        bool, typer.Option("--show", help="Train nothing, print what there is.")
    ] = False,
    jobs: JobParameters = None,
    address: RayAddress = None,
    device: Device = "auto",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Train a grid or a list of recipes, overrides and seeds: here, on Slurm or on a Ray cluster.

    What has finished is not trained again; what was interrupted goes on from its checkpoint.

    Example: binep sweep betas.toml --on local --at-once 2
    """
    from binep.files import make_folder
    from binep.report.figures import text_table
    from binep.studies import sweep as sweeps
    from binep.training.trials import Options, place

    options = Options(device, engine, data_dir, offline)
    trials = sweeps.read_sweep(file, out, options)
    board = sweeps.Board(trials)
    executor = place(on, at_once=at_once, folder=out, slurm=job_parameters(jobs), address=address)
    if show:
        for trial in trials:
            if (run := trial.finished()) is not None:
                board.add(sweeps.Outcome(trial, run))
    else:
        make_folder(out)
        with sweeps.shown(board):
            for outcome in sweeps.sweep(trials, executor, evidence=to):
                board.add(outcome)
    if as_json:
        print_json([dict(zip(sweeps.HEADER, row, strict=True)) for row in board.rows()])
    else:
        tell(text_table(sweeps.HEADER, board.rows(), left=2))
    if show:
        return
    if board.failed:
        sys.exit(1)
    if board.unfinished:
        tell("stopped and saved; the same command goes on")
        sys.exit(INTERRUPTED)
