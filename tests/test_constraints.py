"""constraints-ci.txt: everything pinned by hash, and all that the gate asks for."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")
EXTRAS = ("dev", "docs", "ray", "slurm", "tune")


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    """Versions by name."""
    lines = (ROOT / "constraints-ci.txt").read_text("utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("#")]
    found = {match[1]: match[2] for line in kept if (match := PIN.fullmatch(line))}
    assert len(found) == len(kept) and next(iter(found)) == "torch"
    return found


def test_what_the_gate_installs_is_pinned_by_hash(pins: dict[str, str]):
    gate = (ROOT / ".ci" / "run").read_text("utf-8")
    assert f"[{','.join(EXTRAS)}]" in gate and "constraints-ci.txt" in gate
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = list(project["dependencies"])
    for extra in EXTRAS:
        asked += project["optional-dependencies"][extra]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower() for text in asked}
    assert names <= pins.keys()


def test_pins_and_constraints_name_one_torch(pins: dict[str, str]):
    torch = (ROOT / "constraints.txt").read_text("utf-8").split("torch==")[1].split()[0]
    assert pins["torch"].partition("+")[0] == torch


def test_pins_are_made_of_what_pip_reports(tmp_path: Path):
    def package(name: str, digit: str) -> dict:
        digest = {"hashes": {"sha256": digit * 64}}
        return {
            "metadata": {"name": name, "version": "1.0"},
            "download_info": {"archive_info": digest},
        }

    parts = [package("Some_Thing.else", "a"), package("torch", "b"), package("binep", "c")]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"install": parts}))
    program = ROOT / "release" / "pins.py"
    done = subprocess.run([sys.executable, program, report], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert lines == [
        f"torch==1.0 --hash=sha256:{'b' * 64}",
        f"some-thing-else==1.0 --hash=sha256:{'a' * 64}",
    ]
