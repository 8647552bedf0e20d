"""A layer under Python's file calls: the n-th one fails, is cut short, or is the process's last.

    with Faults(folder, at=7, kind="power") as faults:
        checkpoints.save(folder, trainer)

Counted are the calls that change something below `folder`: open for writing, write, fsync, close,
chmod, rename, unlink, mkdir, truncate. Kinds of faults:

    fail    the call raises EIO and does nothing
    full    the call raises ENOSPC; a write has written half by then
    short   a write takes half of what it is given, as it may; other calls are as always
    kill    the process is ended by SIGKILL before the call
    power   the process ends before the call, and the disk forgets what nobody waited for: bytes
            written since a file's last fsync, and names changed since their folder's last one
"""

import errno
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("fail", "full", "short", "kill", "power")
_CALLS = ("open", "write", "fsync", "close", "chmod", "replace", "unlink", "mkdir", "truncate")
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


class PowerCutError(BaseException):
    """The machine is off: nothing that the program still tries reaches the disk."""


class Faults:
    """Counts calls below a folder, and lets the one numbered `at` (from 0) go wrong.

    Attributes:
        calls: what was called so far, by name.
        happened: whether the fault has struck.
    """

    def __init__(self, folder: Path, at: int | None = None, kind: str = "fail", seed: int = 0):
        self.folder, self.at, self.kind = folder.resolve(), at, kind
        self.random = random.Random(seed)
        self.calls: list[str] = []
        self.happened = self.off = False
        self._paths: dict[int, Path] = {}
        # What the disk may forget: how much of a file is safe, and how names are brought back.
        self._safe: dict[Path, int] = {}
        self._undo: list[tuple[Path, Callable[[], None]]] = []
        self._real: dict[str, Any] = {name: getattr(os, name) for name in _CALLS}

    def __enter__(self) -> "Faults":
        for name in self._real:
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, *error: Any) -> None:
        for name, call in self._real.items():
            setattr(os, name, call)

    def forget(self) -> None:
        """Lose what nobody waited for, as far as chance has it."""
        for path, size in self._safe.items():
            if path.exists():
                more = max(path.stat().st_size - size, 0)
                os.truncate(path, size + self.random.randint(0, more))
        # Names change in their order: if one was kept, so were those before it.
        kept = self.random.randint(0, len(self._undo))
        for _, undo in reversed(self._undo[kept:]):
            undo()

    # --- each call ------------------------------------------------------------------------------

    def _strike(self, name: str) -> bool:
        """Count a call; whether it is the one that goes wrong, after a manner of its own."""
        if self.off:
            raise PowerCutError
        number = len(self.calls)
        self.calls.append(name)
        if number != self.at:
            return False
        self.happened = True
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "power":
            self.off = True
            raise PowerCutError
        if self.kind == "fail":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.kind == "full" and name != "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return name == "write"

    def _inside(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and (
            self.folder in (found := Path(path).absolute()).parents or found == self.folder
        )

    def _open(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        if not self._inside(path):
            return self._real["open"](path, flags, *args, **options)
        where = Path(path)
        if flags & _CHANGES:
            self._strike("open")
            if not where.exists():
                self._undo.append((where.parent, lambda: where.unlink(missing_ok=True)))
        elif self.off:
            raise PowerCutError
        handle = self._real["open"](path, flags, *args, **options)
        if flags & _CHANGES or where.is_dir():
            self._paths[handle] = where
        if flags & _CHANGES:
            self._safe.setdefault(where, where.stat().st_size)
        return handle

    def _write(self, handle: int, data: Any) -> int:
        if handle in self._paths and self._strike("write"):
            written = self._real["write"](handle, bytes(data)[: len(data) // 2 or 1])
            if self.kind == "short":
                return written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real["write"](handle, data)

    def _fsync(self, handle: int) -> None:
        path = self._paths.get(handle)
        if path is not None:
            self._strike("fsync")
            if path.is_dir():
                self._undo = [each for each in self._undo if each[0] != path]
            else:
                self._safe[path] = path.stat().st_size
        self._real["fsync"](handle)

    def _close(self, handle: int) -> None:
        path = self._paths.pop(handle, None)
        self._real["close"](handle)  # even one that fails gives the number back
        if path is not None and path.is_file():
            self._strike("close")

    def _chmod(self, path: Any, *args: Any, **options: Any) -> None:
        if self._inside(path):
            self._strike("chmod")
        self._real["chmod"](path, *args, **options)

    def _replace(self, source: Any, target: Any, **options: Any) -> None:
        if not self._inside(target):
            return self._real["replace"](source, target, **options)
        self._strike("replace")
        old, new = Path(source), Path(target)
        before = new.read_bytes() if new.exists() else None

        def undo() -> None:
            if new.exists():
                self._real["replace"](new, old)
            if before is not None:
                new.write_bytes(before)

        self._real["replace"](source, target, **options)
        self._undo.append((new.parent, undo))
        self._safe[new] = self._safe.pop(old, new.stat().st_size)
        return None

    def _unlink(self, path: Any, **options: Any) -> None:
        if not self._inside(path):
            return self._real["unlink"](path, **options)
        self._strike("unlink")
        where = Path(path)
        before = where.read_bytes() if where.exists() else b""
        self._real["unlink"](path, **options)
        self._undo.append((where.parent, lambda: void(where.write_bytes(before))))
        self._safe.pop(where, None)
        return None

    def _mkdir(self, path: Any, *args: Any, **options: Any) -> None:
        if self._inside(path):
            self._strike("mkdir")
        self._real["mkdir"](path, *args, **options)

    def _truncate(self, path: Any, length: int) -> None:
        if self._inside(path):
            self._strike("truncate")
        self._real["truncate"](path, length)


def void(value: Any) -> None:
    """Nothing."""
