"""The one exception that means: what was asked for cannot be done as it was asked."""

from collections.abc import Iterable
from difflib import get_close_matches


class BinepError(ValueError):
    """A user's mistake, told in one line: what was wrong, where, and what is allowed."""


def choose(value: str, allowed: Iterable[str], what: str) -> str:
    """Return `value` if it is one of `allowed`; otherwise name what is, nearest first.

    >>> choose("live", ["live", "constant"], "nudge")
    'live'
    >>> choose("lve", ["live", "constant"], "nudge")
    Traceback (most recent call last):
    binep.errors.BinepError: unknown nudge 'lve': did you mean 'live'? Allowed: live, constant
    """
    names = list(allowed)
    if value in names:
        return value
    near = get_close_matches(str(value), names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise BinepError(f"unknown {what} {value!r}: {hint}Allowed: {', '.join(names)}")
