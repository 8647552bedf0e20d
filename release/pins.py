"""Pin what the gate installs by version and hash, as pip would install it here and now.

    pip install --dry-run --ignore-installed --report REPORT '.[dev,docs,ray,slurm,tune]' \\
        -c constraints.txt
    python release/pins.py REPORT > constraints-ci.txt
"""

import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

HEAD = """\
# What the gate installs, by version and hash, on {where}:
# pip install --no-deps --require-hashes -r constraints-ci.txt
# Made by release/pins.py. torch is its build for CPUs, of https://download.pytorch.org/whl/cpu. It
# comes first: where an index does not have it pip says so before it downloads the others.
"""


def pins(report: dict[str, Any]) -> list[str]:
    """The lines of a file of requirements, torch's first."""
    found = {}
    for each in report["install"]:
        name = re.sub(r"[-_.]+", "-", each["metadata"]["name"]).lower()
        if name != "binep":
            digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
            found[name] = f"{name}=={each['metadata']['version']} --hash=sha256:{digest}"
    return [found[name] for name in sorted(found, key=lambda name: (name != "torch", name))]


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text())
    version = ".".join(platform.python_version_tuple()[:2])
    where = f"{platform.system()} {platform.machine()} with Python {version}"
    print(HEAD.format(where=where) + "\n".join(pins(report)))


if __name__ == "__main__":
    main()
