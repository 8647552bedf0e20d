"""Build the wheel of binep-runtime: what reads and runs a packed file, with numpy alone.

`python release/runtime.py [FOLDER]` takes the modules that `binep.load` needs out of `src/binep`,
as they are. The import name stays `binep`, so that a program runs with either; install one of them.
An extra could not do this: extras add dependencies, and binep itself needs torch.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import binep
from binep.errors import BinepError

ROOT = Path(__file__).parents[1]
MODULES = (
    *(
        "__init__",
        "errors",
        "files",
        "kernel_cache",
        "moved",
        "sealed",
        "core/__init__",
        "core/limits",
    ),
    *("deploy/__init__", "deploy/allowed", "deploy/kernels", "deploy/layout", "deploy/packed"),
    *("deploy/relaxing", "deploy/rules", "deploy/runtime", "deploy/stored", "deploy/sums"),
)
PROJECT = f"""
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "binep-runtime"
version = "{binep.__version__}"
description = "Runs networks that binep has shipped, with numpy alone"
license = "MIT"
requires-python = ">=3.11"
dependencies = ["numpy>=1.26"]

[project.optional-dependencies]
fast = ["numba>=0.60"]

[tool.setuptools]
packages = ["binep", "binep.core", "binep.deploy"]

[tool.setuptools.package-data]
binep = ["py.typed"]
"""


def build(to: Path, *options: str) -> Path:
    """Build the wheel into a folder, with options of `pip wheel`; returns its path."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(PROJECT, "utf-8")
        for name in (*(f"{module}.py" for module in MODULES), "py.typed"):
            target = Path(folder) / "binep" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / "src" / "binep" / name).read_bytes())
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", *options]
        done = subprocess.run(
            [*command, "-w", str(to.resolve()), "."], cwd=folder, capture_output=True, text=True
        )
    if done.returncode:
        raise BinepError(f"binep-runtime is not built: {done.stderr.strip()}")
    return max(to.glob("binep_runtime-*.whl"), key=lambda path: path.stat().st_mtime)


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
