"""constraints-ci.txt: everything pinned by hash, and all that the tests ask for."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_what_the_tests_need_is_pinned_by_hash():
    lines = (ROOT / "constraints-ci.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith(("#", "--"))]
    pattern = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")
    found = {match[1]: match[2] for line in pins if (match := pattern.fullmatch(line))}
    assert len(found) == len(pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower() for text in asked}
    assert names <= found.keys()
    torch = (ROOT / "constraints.txt").read_text("utf-8").split("torch==")[1].split()[0]
    assert found["torch"].partition("+")[0] == torch
