"""Kernels that Numba kept: damaged files are compiled again, a full disk is no reason to stop."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

PROGRAM = """
import numpy as np
from binep.deploy import kernels
rows = np.full((1, 1), 3, np.uint64)
print(kernels.count_dense(rows, np.full((1, 1, 1), 7, np.uint64)).tolist())
"""


def run(folder: Path, program: str = PROGRAM) -> str:
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    assert run(folder) == "[[1]]\n"
    return folder


@pytest.mark.parametrize(("kind", "length"), [("nbi", 0), ("nbi", 100), ("nbc", -1)])
def test_a_damaged_file_is_compiled_again(kind: str, length: int, kept: Path):
    (path,) = kept.rglob(f"*.count_dense-*.{kind}")
    path.write_bytes(path.read_bytes()[:length])
    assert run(kept) == "[[1]]\n"
    (again,) = kept.rglob(f"*.count_dense-*.{kind}")
    assert again.stat().st_size > 100  # as good as new


def test_a_full_disk_keeps_nothing_and_goes_on(tmp_path: Path):
    full = """
import errno, os
from numba.core import caching
def fail(*args, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
caching.IndexDataCacheFile.save = fail
"""
    assert run(tmp_path, full + PROGRAM) == "[[1]]\n"
    assert not list(tmp_path.rglob("*.nbc"))
