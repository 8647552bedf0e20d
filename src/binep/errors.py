"""The one exception that means: what was asked for cannot be done as it was asked."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from unicodedata import category

MANY = 20  # names, of which only the nearest are told
NEAREST = 3
LONGEST = 60  # letters of what was given
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format, halves of letters, ends of lines


class BinepError(ValueError):
    """A user's mistake, told in one line: what was wrong, where, and what is allowed."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """A text in one line in which nothing steers a terminal: names may hold anything.

    >>> print(printable("run\\x1b[2J of\\ntwo lines"))
    run\\x1b[2J of two lines
    """
    if text.isprintable():
        return text
    line = text.replace("\n", " ").replace("\t", " ")
    return "".join(
        letter.encode("unicode_escape").decode() if category(letter) in _STEERING else letter
        for letter in line
    )


class ProcessLost(RuntimeError):  # noqa: N818  what it says is what happened
    """Another process of the same training hangs or is gone; told in one line."""


def choose(value: str, allowed: Iterable[str], what: str) -> str:
    """Return `value` if it is one of `allowed`; otherwise name what is, or the nearest of many.

    >>> choose("live", ["live", "constant"], "nudge")
    'live'
    >>> choose("lve", ["live", "constant"], "nudge")
    Traceback (most recent call last):
    binep.errors.BinepError: unknown nudge 'lve': did you mean 'live'? Allowed: live, constant
    """
    names = list(allowed)
    if value in names:
        return value
    near = get_close_matches(str(value), names, n=NEAREST, cutoff=0.5)
    hint = f"did you mean {_either(near[:1] if len(names) <= MANY else near)}? " if near else ""
    rest = f"Allowed: {', '.join(names)}" if len(names) <= MANY else f"There are {len(names)}"
    given = str(value) if len(str(value)) <= LONGEST else f"{str(value)[:LONGEST]}..."
    raise BinepError(f"unknown {what} {given!r}: {hint}{rest}")


def one_each(name: str, given: float | Sequence[float], count: int, what: str) -> list[float]:
    """One number for each of `count` things: those given, or the one that is given for all.

    >>> one_each("tau", 0.5, 2, "couplings")
    [0.5, 0.5]
    """
    values = [*given] if isinstance(given, Sequence) else [float(given)] * count
    if len(values) != count:
        raise BinepError(
            f"{name}={values}: {len(values)} values for {count} {what}, allowed are 1 or {count}"
        )
    return values


def _either(names: list[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
