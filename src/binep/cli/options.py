"""Arguments and options that several commands share."""

import json
from pathlib import Path
from typing import Annotated

import typer

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
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Engine = Annotated[str, typer.Option(help="auto or the name of an engine.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def with_data(overrides: list[str] | None, data: Path | None) -> list[str]:
    """What `--set` and `--data` ask for, as overrides of a recipe."""
    path = [] if data is None else [f"data.path={json.dumps(str(data))}"]
    return [*path, *(overrides or [])]
