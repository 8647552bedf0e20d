"""release/sbom.py: all files of a wheel, and all that it needs here."""

import hashlib
import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "release" / "sbom.py"


def test_a_wheel_is_told_with_all_that_it_needs(tmp_path: Path):
    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small/__init__.py", "one = 1\n")
        archive.writestr(
            "small-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: small\nVersion: 1.0\nRequires-Dist: jinja2>=3\n"
            "Requires-Dist: nowhere-at-all; extra == 'more'\n",
        )
    done = subprocess.run([sys.executable, PROGRAM, wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    about = found["metadata"]["component"]
    assert (about["name"], about["version"]) == ("small", "1.0")
    assert about["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    files = {each["name"]: each["hashes"][0]["content"] for each in about["components"]}
    assert files["small/__init__.py"] == hashlib.sha256(b"one = 1\n").hexdigest()
    versions = {each["name"]: each["version"] for each in found["components"]}
    assert versions == {name: metadata.version(name) for name in ("jinja2", "markupsafe")}
