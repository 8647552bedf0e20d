"""Files from mirrors: streamed by pooch, verified, put in place all together or not at all."""

import gzip
import io
import os
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from binep.data.sources import File, Source
from binep.data.verify import verify
from binep.errors import BinepError

SLOWEST = 8 << 10  # bytes a second; a mirror that trickles is as useless as a silent one
LONGEST = 7200.0  # seconds for one file, however steadily it comes
WRAPPING = 1 << 20  # bytes of an archive, or of gzip, beside the files in it


class MirrorError(Exception):
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
        except MirrorError as error:
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
    # A name of its own: who was given up may still be writing.
    received = work / f"received-{len(list(work.iterdir()))}"
    longest = sum(file.size for file in source.files) + WRAPPING
    receive(url, received, longest, timeout)
    raws = (
        _archived(received, files, longest) if source.archive else {files[0]: received.read_bytes()}
    )
    staged: dict[File, Path] = {}
    for file, raw in raws.items():
        content, fault = verify(file, raw)
        if fault:
            raise MirrorError(f"{file.name}: {fault}")
        # Some servers unpack .gz files on the way: the name tells what the file is.
        staged[file] = work / (file.name if raw is content else f"{file.name}.gz")
        _write(staged[file], raw)
    return staged


def receive(url: str, path: Path, longest: int, timeout: float) -> None:
    """Stream `url` into the file at `path`; a `MirrorError` says why it is not there.

    Args:
        longest: bytes that are taken at most.
        timeout: seconds of silence after which it is given up.
    """
    # Imported when something is downloaded: machines that only train need not have them.
    try:
        import requests
        from pooch import HTTPDownloader
        from urllib3.exceptions import HTTPError
    except ModuleNotFoundError as error:
        raise BinepError(f"a download needs {error.name}: pip install pooch") from None
    headers = {"User-Agent": "binep", "Accept-Encoding": "identity"}
    try:
        with _progress(url) as show:
            meter = _Meter(longest, timeout, show)
            # Anything with `total`, `update`, `reset` and `close` will do.
            get = HTTPDownloader(meter, headers=headers, timeout=timeout)  # pyright: ignore[reportArgumentType]
            _watched(partial(get, url, str(path), None), meter)
    # ValueError: an address or a header that makes no sense.
    except (requests.RequestException, HTTPError, ValueError) as error:
        raise MirrorError(_reason(error, timeout)) from error


def _watched(receive: Callable[[], Any], meter: "_Meter") -> None:
    """Receive, unless it takes too long: a byte now and then is no silence, and no progress either.

    In a thread, since only that can be left behind in the middle of a read.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            receive()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="binep-download", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            meter.check()
            thread.join(0.05)
    finally:
        meter.given_up = True
    if failed:
        raise failed[0]


@dataclass
class _Meter:
    """What pooch tells how far it is; gives up mirrors that send too much, or too slowly."""

    longest: int
    timeout: float
    show: Callable[[int, int], object]
    total: int = 0
    received: int = 0
    started: float = field(default_factory=time.monotonic)
    given_up: bool = False
    _looked: float = field(default_factory=time.monotonic)
    _had: int = 0

    def update(self, count: int) -> None:
        self.received += count
        if self.given_up:
            raise MirrorError("given up")
        if self.received > self.longest:
            raise MirrorError(f"sends more than {self.longest} bytes")
        self.show(self.received, self.total)

    def check(self) -> None:
        """See that enough has come lately; to be asked now and then."""
        now = time.monotonic()
        if now - self.started > LONGEST:
            raise MirrorError(f"not done after {LONGEST:.0f} s")
        # Twice as long as silence may last: that is told as what it is.
        if (seconds := now - self._looked) > 2 * self.timeout:
            if (count := self.received - self._had) < SLOWEST * seconds:
                raise MirrorError(f"only {count} bytes in {seconds:.0f} s")
            self._looked, self._had = now, self.received

    def reset(self) -> None:
        self.received = 0

    def close(self) -> None:
        pass


def _reason(error: BaseException, timeout: float) -> str:
    """Why a mirror failed, in the words of the innermost error."""
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        causes = [getattr(error, "reason", None), *reversed(error.args)]
        inner = next((cause for cause in causes if isinstance(cause, Exception)), None)
    text = " ".join(str(error).split())
    return f"silent for {timeout:g} s" if "timed out" in text else text or type(error).__name__


def _archived(archive: Path, files: list[File], most: int) -> dict[File, bytes]:
    """The content of `files` in a .tar.gz, whatever the folder they are in.

    Only plain files that may be of the right size are looked into: no links, nothing sparse.

    Args:
        most: bytes that the archive may unpack to.
    """
    wanted = {file.name: file for file in files}
    contents: dict[File, bytes] = {}
    try:
        with (
            gzip.open(archive) as unpacked,
            tarfile.open(fileobj=_Bounded(unpacked, most), mode="r|") as members,
        ):
            for member in members:
                file = wanted.get(Path(member.name).name)
                if file and member.isreg() and not member.issparse() and member.size <= file.size:
                    stream = members.extractfile(member)
                    contents[file] = stream.read() if stream else b""
                if len(contents) == len(wanted):
                    break
    # Headers may say anything, and tarfile takes them at their word.
    except (
        ArithmeticError,
        EOFError,
        LookupError,
        MemoryError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
        tarfile.TarError,
        zlib.error,
    ) as error:
        raise MirrorError(str(error) or type(error).__name__) from error
    if absent := [file.name for file in files if file not in contents]:
        raise MirrorError(f"has no {', '.join(absent)} of the right size")
    return contents


class _Bounded(io.RawIOBase):
    """What another stream holds, up to so many bytes: a small archive may unpack to a huge one."""

    def __init__(self, stream: gzip.GzipFile, most: int) -> None:
        self.stream, self.left, self.ends = stream, most, 0

    def read(self, size: int = -1) -> bytes:
        blob = self.stream.read(min(size, self.left) if size >= 0 else self.left)
        self.left -= len(blob)
        if not self.left:
            raise MirrorError("unpacks to more than the data set")
        # Whoever looks for the end of a file of 10^400 bytes never stops asking.
        if size and not blob:
            self.ends += 1
            if self.ends > 2:
                raise MirrorError("ends before a file in it does")
        return blob


def _write(path: Path, blob: bytes) -> None:
    with path.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _progress(url: str) -> Iterator[Callable[[int, int], object]]:
    """A progress bar on a terminal, a plain line elsewhere; gives the function that moves it."""
    if not sys.stderr.isatty():
        print(f"downloading {url}", file=sys.stderr, flush=True)
        yield lambda received, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(url.rpartition("/")[2], total=None)
        yield lambda received, total: progress.update(task, completed=received, total=total or None)
