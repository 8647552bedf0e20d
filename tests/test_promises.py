"""What SECURITY.md promises, each held by a test that it names."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src/binep").rglob("*.py"))

# Python tells of what it does: unpickling that names a class or a function, and any connection.
GUARD = """
import sys
def guard(event, arguments):
    if event in ("pickle.find_class", "socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(guard)
"""
COMMANDS = """
import sys
from pathlib import Path
from binep.cli import app
def binep(*words):
    try:
        app([str(word) for word in words], standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise
out = Path(sys.argv[1])
small = ["--set", "network.dense=[8]", "--set", "learning.free_steps=4"]
table = out / "own.csv"
table.write_text("".join(f"{n % 7},{n % 5},{'ab'[n % 2]}\\n" for n in range(40)))
# The reference: Numba keeps kernels as pickles of its own, in a folder of the user's own.
engine = ["--engine", "reference"]
binep("train", *small, *engine, "--epochs", "1", "--out", out)
run = next(out.glob("*/record.json")).parent
binep("train", *small, *engine, "--epochs", "2", "--out", out, "--name", "b", "--data", table)
binep("results", run, "--to", out / "kept")
binep("export", run, "--to", out / "shipped")
import binep as package
import numpy as np
net = package.load(next((out / "shipped").glob("*.safetensors")), kernels=False)
net.predict(np.zeros((1, 1, 8, 8), np.uint8))
from binep.training.runs import open_run
package.save(open_run(run).network("cpu"), out / "net.safetensors")
package.load(out / "net.safetensors")
print("done")
"""


def guarded(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", GUARD + program, *words], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A training, a training on own data, and all files that come of them, written and read."""
    return guarded(COMMANDS, str(tmp_path_factory.mktemp("guarded")))


def test_no_file_is_unpickled(used):
    assert used.returncode == 0 and used.stdout.endswith("done\n"), used.stderr[-2000:]


def test_nothing_is_fetched_unless_asked(used):
    """The same run: its guard ends the process at the first connection."""
    assert used.returncode == 0 and used.stdout.endswith("done\n"), used.stderr[-2000:]


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import pickle, decimal; pickle.loads(pickle.dumps(decimal.Decimal(1)))", "find_class"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "socket"),
        (
            "from binep.data import fetch; fetch('mnist', data_dir=sys.argv[1], "
            "mirrors=['http://127.0.0.1:9/'])",
            "socket",
        ),
    ],
)
def test_the_guard_would_notice(program: str, told: str, tmp_path: Path):
    done = guarded(program, str(tmp_path))
    assert done.returncode != 0 and told in done.stderr


# Where compiled kernels come from, and what writes programs for other machines.
MAY_RUN = {
    "pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "eval", "exec", "compile"
}  # fmt: skip


def test_no_source_unpickles_or_runs_what_it_reads():
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [each.name.partition(".")[0] for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                names = [call] if call in ("eval", "exec", "compile", "torch.load") else []
                shell = any(
                    word.arg == "shell" and ast.unparse(word.value) != "False"
                    for word in node.keywords
                )
                names += ["shell"] if shell else []
                allows = [word for word in node.keywords if word.arg == "allow_pickle"]
                names += ["pickle"] if any(ast.unparse(w.value) != "False" for w in allows) else []
            found |= {
                f"{path.relative_to(ROOT)}: {name}"
                for name in names
                if name in {*MAY_RUN, "torch.load", "shell"}
            }
    assert not found


def test_security_md_names_tests_that_there_are():
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) >= 10
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"
    promises = [
        line for line in text.splitlines() if line.startswith("| ") and "promise" not in line
    ]
    assert all("tests/" in line for line in promises), promises
