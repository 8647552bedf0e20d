"""Arguments and options that several commands share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from binep.cli.output import say
from binep.errors import BinepError

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A name that `binep recipes` lists, or a TOML file.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that binep train wrote.")]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders that hold runs.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Where data sets are; else $BINEP_DATA, else the user's cache.")
]
OwnData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Your own data: .npz, .npy, .csv, a folder of images by class, or IDX files.",
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Never download.")]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda, mps or xpu; auto takes cuda if there is one.")
]
Engine = Annotated[
    str, typer.Option(help="auto (the fastest that runs it), reference, packed, delta or cuda.")
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress, only results.", callback=say.hush),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]

On = Annotated[
    str, typer.Option("--on", help="Where to train: here, local (processes), slurm or ray.")
]
AtOnce = Annotated[
    int | None, typer.Option(help="Number of trainings at the same time; by default one per core.")
]
JobParameters = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE",
        help="A parameter of Slurm's jobs, as submitit calls it; may be repeated.",
    ),
]
RayAddress = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Address of the Ray cluster.")
]


def job_parameters(given: list[str] | None) -> dict[str, Any]:
    """What `--slurm` asks for: numbers as numbers.

    >>> job_parameters(["slurm_partition=gpu", "timeout_min=60"])
    {'slurm_partition': 'gpu', 'timeout_min': 60}
    """
    found: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BinepError(f"--slurm {text}: allowed is KEY=VALUE, as in timeout_min=60")
        found[key.strip()] = int(value) if value.strip().isdigit() else value.strip()
    return found


def with_data(overrides: list[str] | None, data: Path | None) -> list[str]:
    """What `--set` and `--data` ask for, as overrides of a recipe."""
    path = [] if data is None else [f"data.path={json.dumps(str(data))}"]
    return [*path, *(overrides or [])]
