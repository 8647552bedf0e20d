"""What signals ask of a process's trainings: save and end, or save and continue.

Ctrl-C, SIGTERM (a scheduler) and SIGHUP (a terminal that closes) let the current mini-batch finish,
save, and end; a second one ends at once. SIGUSR1 saves and goes on. Windows has only some of them.
"""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
SAVES = [getattr(signal, name) for name in ("SIGUSR1",) if hasattr(signal, name)]


class Requests:
    """What has been asked of a training.

    Attributes:
        stop: set when it should save and end; anybody may set it.
        saves: how many times it was asked to save and go on.
        signal: the signal that set `stop`, if one did.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self.stop = stop or threading.Event()
        self.saves = 0
        self.signal: signal.Signals | None = None

    def hear(self, number: int) -> None:
        """Take a signal up."""
        if number in SAVES:
            self.saves += 1
        else:
            self.signal = signal.Signals(number)
            self.stop.set()


def exit_code(name: str | None) -> int:
    """What a process ends with that a signal ended, as shells have it; Ctrl-C's without a name.

    >>> exit_code("SIGTERM"), exit_code(None)
    (143, 130)
    """
    return 128 + signal.Signals.__members__.get(name or "SIGINT", signal.SIGINT)


# Signals are the whole process's: all of its trainings hear of one.
_listening: list[Requests] = []
_before: dict[int, Any] = {}  # handlers that ours stand in for


@contextmanager
def listening(
    stop: threading.Event | None = None, numbers: Sequence[int] = (*STOPS, *SAVES)
) -> Iterator[Requests]:
    """What signals ask for meanwhile, in this thread and in those that listen inside of it.

    Python delivers signals to the main thread: other threads hear of them while it listens too.
    """
    requests, mine = Requests(stop), []
    if threading.current_thread() is threading.main_thread():
        # Who is to ignore a signal, as under nohup, goes on ignoring it.
        found = {number: signal.getsignal(number) for number in numbers if number not in _before}
        mine = [number for number, handler in found.items() if handler is not signal.SIG_IGN]
        _before.update({number: found[number] for number in mine})
    # Who begins after a signal, and shares what it has set, is stopped by it too.
    requests.signal = next((each.signal for each in _listening if each.stop is stop), None)
    _listening.append(requests)
    for number in mine:
        signal.signal(number, _deliver)
    try:
        yield requests
    finally:
        _listening.remove(requests)
        for number in mine:
            signal.signal(number, _before.pop(number))


def _deliver(number: int, frame: Any) -> None:
    for each in _listening:
        each.hear(number)
    if number in STOPS:
        signal.signal(number, _before[number])
