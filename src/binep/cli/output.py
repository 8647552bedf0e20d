"""What commands print, their exit codes, and the look of their help."""

import io
import json
import sys
from contextlib import suppress
from typing import Any, NoReturn

from typer.core import TyperCommand, TyperGroup

from binep.errors import printable

INTERRUPTED = 130  # exit code, as shells have it


def fail(message: str, code: int = 2) -> NoReturn:
    """End with one line that says why."""
    with suppress(OSError):  # nobody may be there to read it
        print(f"binep: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def tell(text: object = "", end: str = "\n") -> None:
    """Print a result; names in it, which may be anything, do not steer the terminal."""
    print("\n".join(map(printable, str(text).split("\n"))), end=end)


def expect_any_reader() -> None:
    """Allow any output stream: characters that its encoding lacks are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Voice:
    """Prints progress apart from the result, unless told to be quiet."""

    def __init__(self) -> None:
        self.quiet = False

    def hush(self, asked: bool) -> bool:
        """Be quiet, or not: what the option `--quiet` calls."""
        self.quiet = asked
        return asked

    def __call__(self, text: str) -> None:
        if not self.quiet:
            print(printable(text), file=sys.stderr, flush=True)


say = Voice()


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


class Command(TyperCommand):
    """A command whose help shows a flag as its name alone: it takes no value."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands, likewise."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters
