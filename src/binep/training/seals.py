"""Seals of a run's small files: a byte changed in its recipe, record or metrics is noticed.

record.json    a key "seal": the SHA-256 of everything else in it
recipe.toml    a comment in its last line: the SHA-256 of the lines above
metrics.jsonl  a key "seal" in each line: the SHA-256 of the seal before and the rest of the line

A seal shows damage and edits, not who wrote a file: anybody can compute one. Version 0.1 wrote
none.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from binep.errors import BinepError

SEAL = "seal"
ALTERED = "its seal is broken: it was damaged or altered"
_COMMENT = "# SHA-256 of the lines above: "

Facts = dict[str, Any]


def seal_of(facts: Facts, before: str = "") -> str:
    """The seal of an object in JSON, in a chain behind another seal."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256((before + text).encode()).hexdigest()


def sealed(facts: Facts) -> str:
    """An object as JSON with its seal."""
    return json.dumps({**facts, SEAL: seal_of(facts)}, indent=1) + "\n"


def unsealed(found: Facts) -> tuple[Facts, bool]:
    """An object without its seal, and whether it had one; an error if that is broken."""
    facts = {key: value for key, value in found.items() if key != SEAL}
    if SEAL in found and found[SEAL] != seal_of(facts):
        raise BinepError(ALTERED)
    return facts, SEAL in found


def sealed_text(text: str) -> str:
    """A text of whole lines with its seal as a comment behind them."""
    return f"{text}{_COMMENT}{_digest(text)}\n"


def is_sealed(text: str) -> bool:
    """Whether a text has a seal; an error if that is broken."""
    above, comment, seal = text.rpartition(_COMMENT)
    if comment and seal != _digest(above) + "\n":
        raise BinepError(ALTERED)
    return bool(comment)


def chained(lines: Iterable[Facts], before: str = "") -> list[str]:
    """Lines of JSON, each with its seal behind that of the line before."""
    found = []
    for line in lines:
        before = seal_of(line, before)
        found.append(json.dumps({**line, SEAL: before}))
    return found


def last_seal(lines: Iterable[Facts]) -> str:
    """The seal of the last of these lines; of none ''."""
    before = ""
    for line in lines:
        before = seal_of(line, before)
    return before


def unchained(found: Iterable[Facts], must: bool = False) -> list[Facts]:
    """Lines without their seals; an error that names the first one that is broken.

    Args:
        must: whether each line must have one; otherwise all of them or none.
    """
    lines, before = [], ""
    for n, line in enumerate(found, 1):
        facts = {key: value for key, value in line.items() if key != SEAL}
        must = must or (n == 1 and SEAL in line)
        before = seal_of(facts, before)
        if line.get(SEAL, None if must else before) != before:
            raise BinepError(f"line {n}: {ALTERED}")
        lines.append(facts)
    return lines


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
