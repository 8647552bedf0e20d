"""What commands print, and with which code they end."""

import json
import sys
from typing import Any, NoReturn

INTERRUPTED = 130  # exit code, as shells have it


def fail(message: str, code: int = 2) -> NoReturn:
    """End with one line that says why."""
    print(f"binep: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def say(text: str) -> None:
    """Tell who waits, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))
