"""claims.toml: which trainings speak for which cell of the paper, and how they deviate from it.

    [mnist-1fc-wa]                    # a cell of the paper, called as its recipe
    runs = "b8be5bf0a3a5e4b2"         # the paper's own algorithm; left out if nobody has run it
    note = "..."                      # what else a reader should know

    [[mnist-1fc-wa.ours]]             # beside it, under a name of its own
    name = "from 0"
    runs = "1b6bd1c1ed1a7d1e"
    differs = "neurons start from 0, the paper's from 1"

    [mnist-2fc-w-a-shifted]           # no cell of the paper: what a reader should know of a recipe
    note = "..."
    after_test = "..."                # what was set when test errors were known, if anything was

`runs` is the name of a folder in `evidence/runs`.
"""

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from binep.errors import BinepError, choose
from binep.files import read_text
from binep.studies.evidence import RUNS, Evidence

CLAIMS = "claims.toml"


@dataclass(frozen=True)
class Ours:
    """Runs beside a cell of the paper: their name, place, and what differs from the paper's."""

    name: str
    runs: str
    differs: str
    after_test: str = ""


@dataclass(frozen=True)
class Claim:
    """What is claimed of a cell, or said of a recipe; see the module."""

    runs: str = ""
    note: str = ""
    after_test: str = ""
    ours: list[Ours] = field(default_factory=list)


def read_claims(evidence: Evidence) -> dict[str, Claim]:
    """The claims of a folder of evidence by the cell's recipe; none without a file of them."""
    path = evidence.folder / CLAIMS
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise BinepError(f"{path}: not valid TOML: {error}") from None
    return {cell: _claim(found, cell, path, evidence) for cell, found in table.items()}


def _claim(table: Any, cell: str, path: Path, evidence: Evidence) -> Claim:
    ours = table.pop("ours", []) if isinstance(table, dict) else []
    claim = _built(Claim, table, f"{path}: [{cell}]")
    beside = [_built(Ours, each, f"{path}: [[{cell}.ours]]") for each in ours]
    for runs in (claim.runs, *(each.runs for each in beside)):
        if runs and not (evidence.folder / RUNS / runs).is_dir():
            raise BinepError(f"{path}: [{cell}]: runs={runs!r}: there is no such folder in runs/")
    return Claim(claim.runs, claim.note, claim.after_test, beside)


def _built(cls: type, table: Any, where: str) -> Any:
    known = {key.name for key in fields(cls)}
    if not isinstance(table, dict):
        raise BinepError(f"{where}: it must be a table")
    for key, value in table.items():
        try:
            choose(key, known, "key")
        except BinepError as error:
            raise BinepError(f"{where}: {error}") from None
        if not isinstance(value, str):
            raise BinepError(f"{where}: {key}={value!r}: allowed is a text")
    try:
        return cls(**table)
    except TypeError:
        needed = ", ".join(sorted(known - table.keys() - {"note", "after_test"}))
        raise BinepError(f"{where}: {needed} is missing") from None
