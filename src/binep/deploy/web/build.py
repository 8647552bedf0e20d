"""Compile the engines of pages: the C of every export, for any network. `python build.py [FOLDER]`.

Needs ziglang from PyPI, a C compiler with a target for WebAssembly; `pip install 'binep[web]'`.
What it makes ships with the package: who exports a page needs no compiler.
"""

import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from binep.deploy import web_page
from binep.errors import BinepError
from binep.files import write_whole

SOURCES = ("fixed.c", "fixed.h", "learn.c", "binep.h", "rules.h")
# Of neurons with states, and of bits alone: their own source.
ENGINES = {"engine.wasm": "states.c", "engine_bits.wasm": "bits.c"}
OPTIONS = (
    *("-target", "wasm32-wasi", "-mexec-model=reactor"),
    *("-std=c99", "-O3", "-mcpu=generic+bulk_memory+simd128", "-Wl,--strip-all"),
    *("-Wall", "-Wextra", "-Werror", "-Wl,--export=__heap_base", "-Wl,--no-entry"),
)


def build(to: Path) -> None:
    """Compile the engines into a folder, a file of WebAssembly each."""
    try:
        import ziglang  # noqa: F401
    except ModuleNotFoundError:
        raise BinepError("ziglang is not installed: pip install 'binep[web]'") from None
    for name, own in ENGINES.items():
        _compile(to / name, own)


def _compile(to: Path, own: str) -> None:
    deploy = resources.files("binep") / "deploy"
    with tempfile.TemporaryDirectory() as folder:
        files = {name: (deploy / "c" / name).read_text("utf-8") for name in (*SOURCES, own)}
        files["web.c"] = (deploy / "web" / "c" / "web.c").read_text("utf-8")
        files["network.h"] = web_page.header()
        for name, text in files.items():
            Path(folder, name).write_text(text, "utf-8")
        units = sorted(name for name in files if name.endswith(".c"))
        made = Path(folder, "engine.wasm")
        command = [sys.executable, "-m", "ziglang", "cc", *OPTIONS]
        command += [f"-DBINEP_HOPFIELD={int(own == 'bits.c')}", "-o", made.name, *units]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise BinepError(f"the engine does not compile: {done.stderr.strip()}")
        write_whole(to, made.read_bytes())


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
