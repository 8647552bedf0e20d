"""The package as a whole: its public names, their docstrings, how long it takes to import."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import binep

README = Path(__file__).parents[1] / "README.md"


def test_public_names_are_exactly_those_documented():
    section = README.read_text().split("## Python", 1)[1].split("\n## ", 1)[0]
    documented = re.findall(r"^\| `binep\.(\w+)", section, flags=re.MULTILINE)
    assert sorted(documented) == sorted(binep.__all__)
    assert all(hasattr(binep, name) for name in binep.__all__)


@pytest.mark.parametrize("name", binep.__all__)
def test_every_public_name_says_what_it_computes(name: str):
    """A docstring with a formula, shapes, or an example in backticks; methods have one too."""
    thing = getattr(binep, name)
    assert thing.__doc__
    if name != "BinepError":
        assert re.search(r"`|\(batch|>>>", thing.__doc__), name
    if inspect.isclass(thing):
        own = [n for n, m in vars(thing).items() if callable(m) and not n.startswith("_")]
        assert all(inspect.getdoc(getattr(thing, n)) for n in own), name


def test_import_costs_little_more_than_torch():
    """All public names, best of three processes, so that the machine's noise does not decide."""

    def seconds(statement: str) -> float:
        clock = "import time; t = time.perf_counter()"
        code = f"{clock}; {statement}; print(time.perf_counter() - t)"
        command = [sys.executable, "-c", code]
        return min(
            float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(3)
        )

    assert seconds("from binep import *") < 1.5 * seconds("import torch")


def test_modules_are_there_when_they_are_named():
    code = "import binep; binep.training.random_streams; binep.data.load('digits')"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_old_paths_find_the_module_that_moved_and_warn():
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "from importlib import import_module\n"
        "from binep.moved import MOVED\n"
        "for old, new in MOVED.items():\n"
        "    try: import_module(old); print('silent', old)\n"
        "    except DeprecationWarning as warning: assert new in str(warning), old\n"
        "    warnings.simplefilter('ignore')\n"
        "    assert import_module(old) is import_module(new), old\n"
        "    assert import_module(new).__spec__.name == new\n"
        "    warnings.simplefilter('error')\n"
        "from binep.training import Trainer, evaluate, random_streams\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_unknown_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'Netwrok'"):
        _ = binep.Netwrok  # type: ignore[attr-defined]
    assert dir(binep) == sorted([*binep.__all__, "__version__"])
