"""A trial in a process of its own, which ends with the one that started it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from binep.training.trials.worker import REPLY

ATTEMPTS = 3  # of a process that is killed: it goes on from its checkpoint
SAVING = 60.0  # seconds that a process gets to save and end
TOLD = 200  # letters of what a process said last


class Attempt:
    """Trains one trial, given as `Trial.dumps` writes it; called where it is to be trained.

    Slurm's time limit asks for a `checkpoint`: the process saves, and the job is queued again.
    When it preempts a job it tells the process itself, which saves and ends: who waits then is
    ended by Slurm, too, and queued again, instead of taking the trial for stopped.

    Args:
        environment: variables of the process.
        waits: seconds to be ended in, after which the trial goes on; 0: it has stopped.
    """

    def __init__(self, environment: dict[str, str] | None = None, waits: float = 0.0) -> None:
        self.environment, self.waits = environment or {}, waits
        self._process: subprocess.Popen[str] | None = None
        self._ended = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_process": None, "_ended": False}

    def __call__(self, text: str) -> dict[str, Any]:
        """The reply of `worker`: the run's record and metrics, or a failure."""
        code, said = 0, ""
        for _ in range(ATTEMPTS):
            code, reply, said = self._run(text)
            stopped = reply is not None and not reply["finished"] and not reply.get("failure")
            if stopped and self.waits and not self._ended:
                time.sleep(self.waits)
            elif reply is not None:
                return reply
            # Killed, perhaps for its memory: what it has saved is there.
            elif code >= 0 or self._ended:
                break
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        last = said.strip().splitlines()[-1][:TOLD] if said.strip() else "nothing was said"
        return {"failure": f"its process ended with {name}: {last}"}

    def _run(self, text: str) -> tuple[int, dict[str, Any] | None, str]:
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "binep.training.trials.worker"],
            env={**os.environ, **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the process that started it
        )
        assert process.stdin is not None and process.stdout is not None
        assert process.stderr is not None
        said: list[str] = []
        listener = threading.Thread(target=said.extend, args=(process.stderr,), daemon=True)
        listener.start()
        with suppress(BrokenPipeError):
            process.stdin.write(text + "\n")
            process.stdin.flush()
        reply = None
        for line in process.stdout:
            if line.startswith(REPLY):
                reply = json.loads(line.removeprefix(REPLY))
        code = process.wait()
        listener.join(1)
        return code, reply, "".join(said)

    def end(self) -> None:
        """Let the process save and end; `__call__` returns then."""
        self._ended = True
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.close()

    def checkpoint(self, text: str) -> Any:
        """What submitit calls when Slurm takes the machine away: save, and be queued again."""
        from submitit.helpers import DelayedSubmission

        self.end()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(SAVING)
        return DelayedSubmission(Attempt(self.environment, self.waits), text)
