"""Names of runs: their recipe's and what was changed in it, or a given one."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training.recipe import LONGEST_NAME, NAMES, Recipe

LONGEST_CHANGES = 60  # letters; what is longer is told by a few digits of its hash
# The number of epochs tells no run from another: any can be lengthened.
NOT_TOLD = ("training.epochs",)


def run_name(recipe: Recipe, seed: int, name: str | None = None) -> str:
    """The name of a run's folder: that of its recipe, unless another is given, and the seed."""
    if seed < 0:
        raise BinepError(f"seed={seed}: allowed is an integer of at least 0")
    chosen = recipe.name if name is None else name
    if not NAMES.fullmatch(chosen):
        raise BinepError(
            f"name={chosen!r}: allowed is what a folder can be called, 1 to {LONGEST_NAME} letters "
            "without slashes, of which the first is no point"
        )
    return f"{chosen}-seed{seed}"


def variant_name(recipe: str | Path, overrides: Sequence[str]) -> str:
    """A recipe's name and what overrides change in it, so that a variant has a folder of its own.

    >>> variant_name("mnist-1fc-w", ["network.dense=[512]", "learning.beta=0.3"])
    'mnist-1fc-w+dense=512'
    """
    base, chosen = (recipes.load(recipe, changed) for changed in ((), overrides))
    asked = dict.fromkeys(text.partition("=")[0].strip() for text in overrides)
    changed = {
        key: value
        for key in asked
        if key not in NOT_TOLD and (value := _value(chosen, key)) != _value(base, key)
    }
    if not changed:
        return chosen.name
    short = [key.rpartition(".")[2] for key in changed]
    told = [
        f"{brief if short.count(brief) == 1 else key}={_compact(key, value)}"
        for brief, (key, value) in zip(short, changed.items(), strict=True)
    ]
    text = "+".join(told)
    if len(text) > LONGEST_CHANGES or len(chosen.name) + len(text) >= LONGEST_NAME:
        text = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
    return f"{chosen.name}+{text}"


def _value(recipe: Recipe, path: str) -> Any:
    value: Any = asdict(recipe)
    for key in path.split("."):
        value = value[key] if isinstance(value, dict) else None
    return value


def _compact(key: str, value: Any) -> str:
    """A value in few characters that every file system allows."""
    if key == "data.path":
        value = Path(value).name
    if isinstance(value, list) and all(item == value[0] for item in value):
        value = value[0] if value else value
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return re.sub(r"[^\w.,=+-]", "", text)
