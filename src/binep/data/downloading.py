"""Files from mirrors: streamed, verified, and put in place all together or not at all."""

import os
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from binep.data.sources import File, Source
from binep.data.verify import verify
from binep.errors import BinepError

BLOCK = 1 << 16  # bytes
SLOWEST = 1 << 10  # bytes a second; a mirror that trickles is as useless as a silent one


class _MirrorError(Exception):
    """Why one mirror did not deliver: the next one is tried."""


def download(
    source: Source, files: list[File], folder: Path, mirrors: Sequence[str], timeout: float
) -> dict[File, Path]:
    """Download `files` into a folder: all of them, or none."""
    if source.archive:
        parcels = {source.archive: files}
    else:
        parcels = {f"{file.name}.gz": [file] for file in files}
    urls = [mirror.rstrip("/") + "/" for mirror in mirrors]
    with _workshop(folder) as work:
        staged: dict[File, Path] = {}
        for name, contents in parcels.items():
            staged |= _from_any_mirror(source, name, contents, urls, work, timeout)
        # Every file is whole and verified by now; renaming within a folder is atomic.
        return {file: path.replace(folder / path.name) for file, path in staged.items()}


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A temporary folder inside `folder`; if the work fails nothing is left, not even `folder`."""
    created: list[Path] = []
    try:
        created = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".binep-", dir=folder) as work:
            yield Path(work)
    except BaseException as error:
        for path in created:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise BinepError(f"cannot write to {folder}: {error.strerror or error}") from error
        raise


def _from_any_mirror(
    source: Source, name: str, files: list[File], urls: list[str], work: Path, timeout: float
) -> dict[File, Path]:
    """Stage `files` in `work` from the first mirror that delivers `name` as it should be."""
    failures: list[str] = []
    for url in list(urls):
        try:
            staged = _from_mirror(source, url + name, files, work, timeout)
        except _MirrorError as error:
            failures.append(f"{url}{name}: {error}")
        else:
            urls.insert(0, urls.pop(urls.index(url)))  # the one that works is asked first now
            return staged
    raise BinepError(
        f"cannot download {name} of {source.name}: {'; '.join(failures)}; "
        f"nothing was kept, the files may be put into {work.parent} by hand"
    )


def _from_mirror(
    source: Source, url: str, files: list[File], work: Path, timeout: float
) -> dict[File, Path]:
    received = work / "received"
    longest = sum(file.size for file in source.files) + (1 << 20)  # of which 1 MiB for the wrapping
    _receive(url, received, longest, timeout)
    with _blaming_the_mirror(timeout):
        raws = _archived(received, files) if source.archive else {files[0]: received.read_bytes()}
    staged: dict[File, Path] = {}
    for file, raw in raws.items():
        content, fault = verify(file, raw)
        if fault:
            raise _MirrorError(f"{file.name}: {fault}")
        # Some servers unpack .gz files on the way: the name tells what the file is.
        staged[file] = work / (file.name if raw is content else f"{file.name}.gz")
        _write(staged[file], raw)
    return staged


def _receive(url: str, path: Path, longest: int, timeout: float) -> None:
    """Stream `url` into the file at `path`."""
    with _blaming_the_mirror(timeout):
        request = Request(url, headers={"User-Agent": "binep"})
        response = urlopen(request, timeout=timeout)
        announced = int(response.headers.get("Content-Length") or 0)
    started, received = time.monotonic(), 0
    with response, path.open("wb") as file, _progress(url, announced) as advance:
        while True:
            with _blaming_the_mirror(timeout):
                block = response.read1(BLOCK)
            if not block:
                break
            file.write(block)
            advance(len(block))
            received += len(block)
            seconds = time.monotonic() - started
            if received > longest:
                raise _MirrorError(f"sends more than {longest} bytes")
            if seconds > timeout and received < SLOWEST * seconds:
                raise _MirrorError(f"only {received} bytes in {seconds:.0f} s")
    if received < announced:
        raise _MirrorError(f"ended after {received} of {announced} bytes")


def _archived(archive: Path, files: list[File]) -> dict[File, bytes]:
    """The content of `files` in a .tar.gz, whatever the folder they are in."""
    wanted = {file.name: file for file in files}
    contents: dict[File, bytes] = {}
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            file = wanted.get(Path(member.name).name)
            stream = members.extractfile(member) if file and member.size <= file.size else None
            if file and stream:
                contents[file] = stream.read()
    if absent := [file.name for file in files if file not in contents]:
        raise _MirrorError(f"has no {', '.join(absent)} of the right size")
    return contents


def _write(path: Path, blob: bytes) -> None:
    with path.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _blaming_the_mirror(timeout: float) -> Iterator[None]:
    """Tell the failures of a mirror, and of what it sent, from those of our own disk."""
    try:
        yield
    # ValueError: an address or a header that makes no sense.
    except (OSError, HTTPException, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        late = isinstance(getattr(error, "reason", error), TimeoutError)
        reason = f"silent for {timeout:g} s" if late else " ".join(str(error).split())
        raise _MirrorError(reason or type(error).__name__) from error


@contextmanager
def _progress(url: str, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal, a plain line elsewhere; gives the function that advances it."""
    if not sys.stderr.isatty():
        print(f"downloading {url}", file=sys.stderr, flush=True)
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(url.rpartition("/")[2], total=total or None)
        yield lambda count: progress.advance(task, count)
