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
        own = [m for n, m in vars(thing).items() if callable(m) and not n.startswith("_")]
        assert all(method.__doc__ for method in own), name


def test_import_costs_little_more_than_torch():
    """Best of five processes each, so that the machine's noise does not decide."""

    def seconds(module: str) -> float:
        code = (
            f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        )
        return min(
            float(
                subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, text=True, check=True
                ).stdout
            )
            for _ in range(5)
        )

    assert seconds("binep") < 1.5 * seconds("torch")
