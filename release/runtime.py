"""Build the wheel of binep-runtime: what reads and runs a packed file, with numpy alone.

`python release/runtime.py [FOLDER]` takes the modules that `binep.load` needs out of `src/binep`,
as they are. The import name stays `binep`, so that a program runs with either; install one of them.
An extra could not do this: extras add dependencies, and binep itself needs torch.
"""

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import binep
from binep.errors import BinepError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "binep"
# Numba's kernels are imported where they are used, if Numba is there.
ROOTS = ("binep.deploy.runtime", "binep.deploy.kernels")
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


def modules() -> set[Path]:
    """The files of `ROOTS` and of all that they import on loading, relative to the package."""
    found, open_ones = set[Path](), list[str](ROOTS)
    while open_ones:
        name = open_ones.pop()
        parts = name.split(".")[1:]
        path = SOURCE.joinpath(*parts)
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not path.is_file() or path.relative_to(SOURCE) in found:
            continue
        found.add(path.relative_to(SOURCE))
        open_ones.append(name.rpartition(".")[0] or "binep")
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("binep"):
                open_ones += [str(node.module), *(f"{node.module}.{n.name}" for n in node.names)]
            elif isinstance(node, ast.Import):
                open_ones += [n.name for n in node.names if n.name.startswith("binep")]
    return found


def build(to: Path, *options: str) -> Path:
    """Build the wheel into a folder, with options of `pip wheel`; returns its path."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(PROJECT, "utf-8")
        for name in (*modules(), "py.typed"):
            target = Path(folder) / "binep" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((SOURCE / name).read_bytes())
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", *options]
        done = subprocess.run(
            [*command, "-w", str(to.resolve()), "."], cwd=folder, capture_output=True, text=True
        )
    if done.returncode:
        raise BinepError(f"binep-runtime is not built: {done.stderr.strip()}")
    return max(to.glob("binep_runtime-*.whl"), key=lambda path: path.stat().st_mtime)


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
