"""Files that are read whole, and written whole or not at all."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from binep.errors import BinepError

try:
    import fcntl
except ImportError:  # Windows has no such locks; there nobody is kept out
    fcntl = None

TEMPORARY = ".part"

# Bytes as they are (on Windows), without waiting for somebody to write into a pipe (elsewhere).
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

# What the disk or its owner refuses, as opposed to a fault of the program.
_REFUSALS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOENT: "there is no such folder",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.EISDIR: "it is a folder",
    errno.EEXIST: "it exists and is not a folder",
    errno.ENAMETOOLONG: "the name is too long",
}


@contextmanager
def telling(action: str, path: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line: what was tried, where, and why not."""
    try:
        yield
    except OSError as error:
        missing = action == "read" and error.errno == errno.ENOENT
        why = "there is no such file" if missing else refusal(error)
        raise BinepError(f"cannot {action} {path}: {why}") from error
    except ValueError as error:  # a zero byte in a path
        if isinstance(error, BinepError):
            raise
        raise BinepError(f"cannot {action} {path}: {error}") from None


def refusal(error: OSError) -> str:
    """Why the file system refuses, in a few words."""
    return _REFUSALS.get(error.errno or 0) or error.strerror or str(error)


def read_whole(path: Path, most: int | None = None) -> bytes:
    """What a file holds. A pipe, a device or a socket is none: it might never end."""
    with telling("read", path):
        handle = os.open(path, os.O_RDONLY | _AT_ONCE)
        with os.fdopen(handle, "rb") as stream:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise BinepError(f"cannot read {path}: it is not a file")
            if most is not None and found.st_size > most:
                raise BinepError(
                    f"cannot read {path}: {found.st_size:,} bytes, allowed are {most:,}"
                )
            return stream.read()


def read_text(path: Path, most: int | None = None) -> str:
    """The text that a file holds, in UTF-8."""
    try:
        return read_whole(path, most).decode()
    except UnicodeDecodeError:
        raise BinepError(f"{path}: not a text file in UTF-8") from None


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that it is there complete, also after a crash, or is as it was before."""
    data = content.encode() if isinstance(content, str) else content
    with telling("write", path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=TEMPORARY)
        temporary = Path(name)
        try:
            _write_and_close(handle, data)
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add one line to a file and make sure that it has reached the disk."""
    with telling("write", path):
        before = path.stat().st_size if path.exists() else 0
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _AT_ONCE, 0o666)
        try:
            _write_and_close(handle, f"{line}\n".encode())
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise


def make_folder(path: Path) -> None:
    """Create a folder and those above it, so that they are there also after a crash."""
    with telling("create", path):
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            _sync_folder(each.parent)


def check_file(path: Path) -> None:
    """See, before the work begins, that a file can be written here; its folder is made."""
    make_folder(path.parent)
    if path.is_dir():
        raise BinepError(f"cannot write {path}: {_REFUSALS[errno.EISDIR]}")


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other processes that claim this folder out of it; a claim ends with its process."""
    handle = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if fcntl is not None and handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BinepError(f"{folder} is in use by another process") from None
            except OSError:
                pass  # not every file system has locks
        yield
    finally:
        if handle is not None:
            os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove what a write that was cut off (kill -9, power) left behind."""
    for path in folder.glob(f"*{TEMPORARY}"):
        with suppress(OSError):
            path.unlink()


def _write_and_close(handle: int, data: bytes) -> None:
    """Write all of it, however little the system takes at a time, and wait for the disk."""
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    # Not every system lets a folder be opened; the file itself is safe by then.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
