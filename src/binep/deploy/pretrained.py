"""Networks that are trained already, found by name: packed files in a folder of models."""

import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from binep.errors import BinepError

VARIABLE = "BINEP_MODELS"
SUFFIX = ".safetensors"


def folders(given: Path | None = None) -> Iterator[Path]:
    """Where models are looked for: a given folder, $BINEP_MODELS, and binep's cache."""
    if given is not None:
        yield given
    if os.environ.get(VARIABLE):
        yield Path(os.environ[VARIABLE])
    yield Path(platformdirs.user_cache_dir("binep")) / "models"


def find(name: str, given: Path | None = None) -> Path:
    """What a name stands for: a run's folder or a file that is there, or the model of that name."""
    path, looked = Path(name), list(folders(given))
    if path.exists():
        return path
    if path.name == name and path.suffix != SUFFIX:
        for folder in looked:
            model = folder / f"{name}{SUFFIX}"
            if model.is_file():
                return model
    known = sorted({each.stem for folder in looked for each in folder.glob(f"*{SUFFIX}")})
    raise BinepError(
        f"{name} is not a run, a file, or a model in {', '.join(map(str, looked))}: allowed are "
        f"paths that exist{', ' + ', '.join(known) if known else ''}"
    )
