"""A folder of generated files, with a README that says what is in it."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from binep.deploy.stored import StoredNetwork
from binep.files import make_folder, write_whole


def readme(format: str, network: StoredNetwork, values: Mapping[str, str]) -> str:
    """The README of a format, its @NAMES@ replaced: what every format tells, and `values`."""
    text = (resources.files("binep") / "deploy" / format / "README.md").read_text("utf-8")
    common = {
        "LAYERS": " - ".join("x".join(map(str, shape)) for shape in network.shapes),
        "STEPS": str(network.steps),
        "READOUT": network.readout,
        "ORIGIN": json.dumps(network.origin, indent=1),
    }
    for name, value in {**common, **values}.items():
        text = text.replace(f"@{name}@", value)
    return text


def write_files(to: Path, files: Mapping[str, str | bytes]) -> list[Path]:
    """Write files by name into a folder, each whole or not at all; returns their paths."""
    make_folder(to)
    for name, content in files.items():
        write_whole(to / name, content)
    return [to / name for name in files]
