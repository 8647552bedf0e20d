"""A bill of materials of a wheel, in CycloneDX: what is in it, and what it needs as installed here.

python release/sbom.py dist/binep-0.1.0-py3-none-any.whl > sbom.json
"""

import hashlib
import json
import re
import sys
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any


def needed(requirements: list[str], seen: dict[str, metadata.Distribution]) -> None:
    """Add what is required, and what that requires, as far as it is installed; no extras."""
    for text in requirements:
        if "extra ==" in text:
            continue
        found = re.match(r"[\w.-]+", text)
        name = re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
        if not name or name in seen:
            continue
        try:
            seen[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another platform
        needed(seen[name].requires or [], seen)


def component(name: str, package: metadata.Distribution) -> dict[str, Any]:
    meta: Any = package.metadata
    words = meta.get("License-Expression") or meta.get("License") or ""
    return {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
        **({"licenses": [{"license": {"name": words.splitlines()[0]}}]} if words else {}),
    }


def sbom(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        (where,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        meta = Parser().parsestr(archive.read(where).decode())
        files = {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}
    seen: dict[str, metadata.Distribution] = {}
    needed(meta.get_all("Requires-Dist") or [], seen)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": meta["Name"],
                "version": meta["Version"],
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "components": [
                    {
                        "type": "file",
                        "name": name,
                        "hashes": [{"alg": "SHA-256", "content": content}],
                    }
                    for name, content in sorted(files.items())
                ],
            }
        },
        "components": [component(name, package) for name, package in sorted(seen.items())],
    }


if __name__ == "__main__":
    print(json.dumps(sbom(Path(sys.argv[1])), indent=1))
