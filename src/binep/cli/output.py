"""What commands print, with which code they end, and what their help looks like."""

import json
import sys
from typing import Any, NoReturn

from typer.core import TyperCommand, TyperGroup

INTERRUPTED = 130  # exit code, as shells have it


def fail(message: str, code: int = 2) -> NoReturn:
    """End with one line that says why."""
    print(f"binep: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


class Voice:
    """Tells who waits how things go, apart from the result, unless it is asked to be quiet."""

    def __init__(self) -> None:
        self.quiet = False

    def hush(self, asked: bool) -> bool:
        """Be quiet, or not: what the option `--quiet` calls."""
        self.quiet = asked
        return asked

    def __call__(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


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
