"""How kernels are compiled: once, for this machine, and kept in the user's cache."""

import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import torch

from binep.kernel_cache import keep

# Functions that only kernels call. Without wrappers for Python they compile much faster, and
# without counting references (`_nrt`) they run much faster; but they cannot make arrays.
_jit: Any = numba.njit
_INNER = dict.fromkeys(("no_cpython_wrapper", "no_cfunc_wrapper"), True) | {"_nrt": False}
inner: Any = _jit(error_model="numpy", **_INNER)


def _folder() -> Path:
    """Where compiled kernels are kept: a folder for exactly these sources.

    Numba itself would only check the file of a kernel, not those of what it calls.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    base = Path(given) if given else Path.home() / ".cache"
    return base / "binep" / "kernels" / digest.hexdigest()[:16]


def _usable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="binep-kernels-"))
    return folder


FOLDER = _usable(_folder())


def kernel(function: Any, fastmath: set[str] | bool = False) -> Any:
    """Compile a function that runs beside others, without Python's lock; keep it in `FOLDER`.

    `fastmath` names the relaxations of LLVM's float arithmetic, where bits need not agree.
    """
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(FOLDER)  # type: ignore[attr-defined]
    try:
        options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
        return keep(_jit(**options, fastmath=fastmath)(function))
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


# Kernels, and what only they call, that may take liberties with the order of float32 operations,
# but none with NaN.
_LIBERTIES = {"reassoc", "contract", "nsz"}
fast = functools.partial(kernel, fastmath=_LIBERTIES)
fast_inner: Any = _jit(error_model="numpy", fastmath=_LIBERTIES, **_INNER)


def compiled(dispatcher: Any) -> bool:
    """Whether a kernel is compiled, in this process or in the folder."""
    name = dispatcher.py_func.__name__
    return bool(dispatcher.signatures) or any(FOLDER.rglob(f"*.{name}-*.nbi"))


def announce(dispatcher: Any) -> None:
    """Say that a first call will take a while, if the kernel is not compiled yet."""
    # Numba takes longer to answer than many a kernel to run: it is asked once.
    if dispatcher not in _called and not compiled(dispatcher):
        print("compiling kernels for this machine, once", file=sys.stderr)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="binep-kernels")


_lent: list[int] = []
_called: set[Any] = set()  # kernels that have been run in shares


@contextmanager
def all_threads_for_kernels() -> Iterator[None]:
    """Give torch one thread and the kernels all others.

    After every parallel operation torch's other threads spin for a while, waiting for the next one,
    on the cores that the kernels need.
    """
    _lent.append(kernel_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_lent.pop())


def kernel_threads() -> int:
    """The number of threads that torch was given."""
    return _lent[-1] if _lent else torch.get_num_threads()


def run_shares(share: Any, *args: Any, own: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
    """Run `share(*args, *own[thread], threads, thread)` on as many threads as torch was given.

    Returns all results.
    """
    threads = kernel_threads()

    def run(thread: int) -> Any:
        return share(*args, *(own[thread] if own else ()), threads, thread)

    # What is not compiled yet is compiled by the first share alone. Asking Numba each time would
    # cost more than many a share.
    first = [] if share in _called else [run(0)]
    _called.add(share)
    others = [_pool(threads).submit(run, n) for n in range(1, threads)]
    return [*(first or [run(0)]), *(other.result() for other in others)]
