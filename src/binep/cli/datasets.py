"""Commands for data sets."""

import sys
from typing import Annotated

import typer

from binep.cli.options import AsJson, DataDir
from binep.cli.output import print_json, tell
from binep.registry import BUILT_IN

DATASETS = ", ".join(BUILT_IN["binep.datasets"])
Name = Annotated[str, typer.Argument(metavar="NAME", help=f"{DATASETS}.")]


def data_fetch(name: Name, data_dir: DataDir = None) -> None:
    """Download what is missing of a data set, and verify it.

    Example: binep data fetch mnist
    """
    from binep import data

    for path in data.fetch(name, data_dir=data_dir):
        tell(path)


def data_check(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Say where each file of a data set is, and whether it is whole.

    Example: binep data check cifar10 --data-dir ~/data
    """
    from binep import data

    found = data.check(name, data_dir=data_dir)
    if as_json:
        print_json([{"file": f.name, "path": str(f.path), "status": f.status} for f in found])
    else:
        for file in found:
            tell(f"{file.name}: {file.status}" + (f"  {file.path}" if file.path else ""))
    if any(file.status != "ok" for file in found):
        sys.exit(2)
