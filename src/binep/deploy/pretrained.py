"""Networks that are trained already, found by name: in folders of models, or downloaded from one.

A folder of models, as `release/models.py` makes it, holds packed files and `index.json`: what each
is, and its SHA-256. A place is such a folder, or the address of one on a server, which may end in
`#sha256=` and the hash of its index: then no server can send anything else.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from binep.data.downloading import MirrorError, receive
from binep.data.finding import TIMEOUT, cache_folder
from binep.errors import BinepError
from binep.files import make_folder, read_whole, write_whole
from binep.training import recipe as recipes

VARIABLE = "BINEP_MODELS"
SUFFIX = ".safetensors"
INDEX = "index.json"
# Where binep's own releases are; none has a host yet.
RELEASES: tuple[str, ...] = ()
LONGEST_INDEX = 1 << 20
LONGEST_MODEL = 1 << 28
_ADDRESS = re.compile(r"(https?://[^#]+)(?:#sha256=([0-9a-f]{64}))?")
_NAME = re.compile(r"[\w][\w.+=,-]*")


def places(given: Sequence[str] = ()) -> list[str]:
    """Where models are looked for: given places, $BINEP_MODELS (commas between), the releases."""
    named = [place.strip() for place in os.environ.get(VARIABLE, "").split(",")]
    return [*given, *filter(None, named), *RELEASES]


def find(name: str, given: Sequence[str] = (), *, offline: bool = False) -> Path:
    """What a name stands for: a run's folder or a file that is there, or the model of that name.

    Folders and the cache are looked into first; what is downloaded stays in the cache.
    """
    if (path := Path(name)).exists():
        return path
    named, cache = places(given), cache_folder() / "models"
    remote = [Remote.of(place) for place in named if "://" in place]
    folders = [*(Path(place) for place in named if "://" not in place), cache]
    known = {each.stem for folder in folders for each in folder.glob(f"*{SUFFIX}")}
    if _NAME.fullmatch(name):
        for folder in folders:
            if (model := folder / f"{name}{SUFFIX}").is_file():
                return _checked(model)
        if remote and not offline:
            found = _download(name, remote, cache)
            if isinstance(found, Path):
                return found
            known |= found
    raise BinepError(
        f"{name} is not a run, a file, or a model in {', '.join([*named, str(cache)])}: allowed "
        f"are paths that exist{''.join(f', {each}' for each in sorted(known))}{_advice(name)}"
    )


@dataclass
class Remote:
    """A folder of models on a server, and its index once it has been asked for."""

    url: str
    sha256: str | None
    _index: dict[str, dict[str, Any]] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, place: str) -> "Remote":
        match = _ADDRESS.fullmatch(place)
        if match is None:
            raise BinepError(
                f"{place!r} is no place of models: allowed is a folder, or "
                "http(s)://HOST/FOLDER with or without #sha256= and 64 hexadecimal digits"
            )
        return cls(match[1].rstrip("/"), match[2])

    def index(self, work: Path) -> dict[str, dict[str, Any]]:
        """What the index says of every model."""
        if self._index is None:
            content = self._received(INDEX, work, LONGEST_INDEX)
            if self.sha256 is not None:
                self._check(INDEX, content, self.sha256)
            self._index = read_index(content, f"{self.url}/{INDEX}")
        return self._index

    def model(self, name: str, work: Path) -> bytes:
        """A model's file, with the hash that the index names."""
        file = f"{name}{SUFFIX}"
        content = self._received(file, work, LONGEST_MODEL)
        self._check(file, content, self.index(work)[name]["sha256"])
        return content

    def _received(self, file: str, work: Path, longest: int) -> bytes:
        receive(f"{self.url}/{file}", work / "received", longest, TIMEOUT)
        return read_whole(work / "received")

    def _check(self, file: str, content: bytes, sha256: str) -> None:
        if (found := hashlib.sha256(content).hexdigest()) != sha256:
            raise MirrorError(f"{file} has the SHA-256 {found}, not {sha256}")


def read_index(content: bytes, where: str) -> dict[str, dict[str, Any]]:
    """The models of an index, by name."""
    try:
        models = json.loads(content)["models"]
        hashes = {str(name): models[name]["sha256"] for name in models}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BinepError(f"{where} is no index of models") from None
    if not all(isinstance(h, str) and re.fullmatch("[0-9a-f]{64}", h) for h in hashes.values()):
        raise BinepError(f"{where} names a SHA-256 that is none")
    return models


def _download(name: str, remote: Sequence[Remote], cache: Path) -> Path | set[str]:
    """The model from the first place that delivers it; or, if none has it, the names they have."""
    failures, known = list[str](), set[str]()
    with tempfile.TemporaryDirectory() as folder:
        for place in remote:
            try:
                if name not in (index := place.index(Path(folder))):
                    known |= index.keys()
                    continue
                content = place.model(name, Path(folder))
            except (MirrorError, BinepError) as error:
                failures.append(f"{place.url}: {error}")
                continue
            make_folder(cache)
            write_whole(cache / f"{name}{SUFFIX}", content)
            return cache / f"{name}{SUFFIX}"
    if failures:
        raise BinepError(f"cannot download the model {name}: {'; '.join(failures)}")
    return known


def _checked(model: Path) -> Path:
    """A model of a folder, unless the folder's index names another hash."""
    index = model.parent / INDEX
    if index.is_file():
        named = read_index(read_whole(index, LONGEST_INDEX), str(index)).get(model.stem)
        found = hashlib.sha256(read_whole(model, LONGEST_MODEL)).hexdigest()
        if named is not None and named["sha256"] != found:
            raise BinepError(f"{model} has the SHA-256 {found}, {index} says {named['sha256']}")
    return model


def _advice(name: str) -> str:
    """How to get a model that has no file, if its name is that of a recipe."""
    if name not in recipes.names():
        return ""
    return f". To train it: binep train {name}; then binep predict runs/{name}-seed0 IMAGE"
