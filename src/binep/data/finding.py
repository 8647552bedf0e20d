"""Load, fetch and check: data sets found on disk, or downloaded to it."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from binep.data.dataset import Dataset
from binep.data.downloading import download
from binep.data.sources import DATASETS, File, Source
from binep.data.verify import verify
from binep.errors import BinepError

Folder = str | os.PathLike[str]
TIMEOUT = 30.0  # seconds of silence after which a mirror is given up


@dataclass(frozen=True)
class FileStatus:
    """One file of a data set: where it is, and 'ok', 'missing' or 'damaged: ' and what is wrong."""

    name: str
    path: Path | None
    status: str

    @property
    def damaged(self) -> bool:
        return self.status not in ("ok", "missing")


def load(
    name: str,
    *,
    data_dir: Folder | None = None,
    device: str | torch.device = "cpu",
    offline: bool = False,
) -> Dataset:
    """The data set `name` on `device`; files that are missing are downloaded unless `offline`.

    A data set that a package or a script has registered as a function is what that returns.

    >>> load("digits").train.images.dtype
    torch.uint8
    """
    if not isinstance(piece := DATASETS[name], Source):
        return made_by(name, piece).to(device)
    source, roots = _places(name, data_dir)
    found = {file: _find(source, file, roots) for file in source.files}
    for status, _ in found.values():
        if status.damaged:
            raise _damage_error(source, status)
    missing = [file for file, (status, _) in found.items() if status.path is None]
    if missing:
        if offline or not source.mirrors:
            raise _missing_error(source, missing, roots)
        download(source, missing, roots[0] / source.folders[0], source.mirrors, TIMEOUT)
        found |= {file: _find(source, file, roots) for file in missing}
    arrays = [
        np.frombuffer(content, np.uint8, offset=file.offset).reshape(file.shape)
        for file, (_, content) in found.items()
    ]
    train, test = source.decode(arrays)
    return Dataset(name, train, test, source.classes, source.mean, source.std).to(device)


def made_by(name: str, maker: Any) -> Dataset:
    """The data set that a registered function returns."""
    made = maker() if callable(maker) else None
    if not isinstance(made, Dataset):
        raise BinepError(
            f"data set {name!r}: what is registered under that name gives {type(made).__name__}: "
            "allowed is a binep.data.Source, or a function that returns a binep.data.Dataset"
        )
    return replace(made, name=name)


def fetch(
    name: str,
    *,
    data_dir: Folder | None = None,
    timeout: float = TIMEOUT,
    mirrors: Sequence[str] | None = None,
) -> list[Path]:
    """The files of data set `name`; those that are missing are downloaded, all of them or none.

    A damaged file in the cache folder, which is ours, is replaced; anywhere else it is an error.
    A mirror that is silent for `timeout` seconds is given up for the next one.
    """
    source, roots = _places(name, data_dir)
    statuses = dict(zip(source.files, check(name, data_dir=data_dir), strict=True))
    for status in statuses.values():
        if status.damaged and not _is_ours(source, status):
            raise _damage_error(source, status)
    paths = {file: status.path for file, status in statuses.items() if status.status == "ok"}
    wanted = [file for file in source.files if file not in paths]
    if wanted:
        if not source.mirrors:
            raise _missing_error(source, wanted, roots)
        folder = roots[0] / source.folders[0]
        paths |= download(source, wanted, folder, mirrors or source.mirrors, timeout)
    for file in wanted:
        damaged = statuses[file].path
        # A damaged file of the other form (with or without .gz) would hide the one just written.
        if damaged is not None and damaged != paths[file]:
            damaged.unlink(missing_ok=True)
    return [path for file in source.files if (path := paths[file]) is not None]


def check(name: str, *, data_dir: Folder | None = None) -> list[FileStatus]:
    """Where each file of data set `name` is and whether it is whole; nothing is downloaded.

    >>> [(file.name, file.status) for file in check("digits")]
    [('digits.safetensors', 'ok')]
    """
    source, roots = _places(name, data_dir)
    return [_find(source, file, roots)[0] for file in source.files]


def cache_folder() -> Path:
    """The folder that belongs to binep in the user's cache, whether or not it exists."""
    if given := os.environ.get("XDG_CACHE_HOME"):  # on every system
        return Path(given).expanduser() / "binep"
    # Imported when it is asked for: where `data_dir` holds everything, nobody needs it.
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:
        raise BinepError(
            "finding the user's cache folder needs platformdirs: pip install platformdirs, "
            "or give a folder that holds all files (--data-dir or $BINEP_DATA)"
        ) from None
    return user_cache_path("binep", appauthor=False, opinion=False)


def _places(name: str, data_dir: Folder | None) -> tuple[Source, list[Path]]:
    """The source called `name` and the folders to search; downloads go below the first of them."""
    source = DATASETS[name]
    if not isinstance(source, Source):
        raise BinepError(f"data set {name!r} is made by a function: it has no files of its own")
    if not source.mirrors:
        return source, [Path(__file__).parent]
    given = [folder for folder in (data_dir, os.environ.get("BINEP_DATA")) if folder]
    try:
        named = [Path(folder).expanduser() for folder in given]
    except RuntimeError as error:  # a home folder that cannot be told
        raise BinepError(f"cannot tell where to look for {source.name}: {error}") from error
    with suppress(OSError):
        if all(_path(source, file, named) for file in source.files):
            return source, named
    return source, [*named, cache_folder()]


def _path(source: Source, file: File, roots: list[Path]) -> Path | None:
    """The first place that holds `file`."""
    folders = [root / folder for root in roots for folder in (*source.folders, "")]
    paths = [folder / name for folder in folders for name in (file.name, f"{file.name}.gz")]
    return next((path for path in paths if path.is_file()), None)


def _find(source: Source, file: File, roots: list[Path]) -> tuple[FileStatus, bytes]:
    """The first place that holds `file`, what is to be said of it, and its uncompressed content."""
    try:
        path = _path(source, file, roots)
        if path is None:
            return FileStatus(file.name, None, "missing"), b""
        content, fault = verify(file, path.read_bytes())
    except OSError as error:
        path, content, fault = Path(error.filename), b"", f"it cannot be read ({error.strerror})"
    return FileStatus(file.name, path, f"damaged: {fault}" if fault else "ok"), content


def _is_ours(source: Source, status: FileStatus) -> bool:
    """Whether the file lies in our own cache, where it may be replaced without asking."""
    cache = cache_folder().resolve()
    return bool(source.mirrors and status.path and cache in status.path.resolve().parents)


def _damage_error(source: Source, status: FileStatus) -> BinepError:
    if not source.mirrors:
        remedy = "reinstall binep"
    elif _is_ours(source, status):
        remedy = f"replace it with `binep data fetch {source.name}`"
    else:
        remedy = f"move or delete it, then run `binep data fetch {source.name}`"
    return BinepError(f"{status.path} of {source.name} is {status.status}; {remedy}")


def _missing_error(source: Source, missing: list[File], roots: list[Path]) -> BinepError:
    names = ", ".join(file.name for file in missing)
    if not source.mirrors:
        return BinepError(f"{names} is missing from {roots[0]}; reinstall binep")
    return BinepError(
        f"{source.name} is incomplete and offline: {names} (or .gz) not found below "
        f"{', '.join(map(str, roots))}; they would go to {roots[0] / source.folders[0]}, "
        f"by hand or with `binep data fetch {source.name}`"
    )
