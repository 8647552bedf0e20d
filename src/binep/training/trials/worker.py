"""The process that trains one trial: `python -m binep.training.trials.worker`.

The first line of its standard input is the trial. While that stays open it trains; once it ends,
because whoever started it is gone or wants it to, it saves and ends. Its last line on standard
output is the reply, in JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

REPLY = "reply: "
CORES = "BINEP_CORES"  # numbers of the cores to run on, with commas
BUSY = "is in use by another process"
PATIENCE = 60.0  # seconds until a predecessor that was cut off has saved and ended


def main() -> int:
    # What Slurm says to a whole job is for the process that started this one.
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if os.environ.get(CORES) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in os.environ[CORES].split(",")})
    text, stop = sys.stdin.readline(), threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(stop,), daemon=True).start()
    print(REPLY + json.dumps(_train(text, stop)), flush=True)
    return 0


def _wait_for_the_end(stop: threading.Event) -> None:
    while sys.stdin.read(1):
        pass
    stop.set()


def _train(text: str, stop: threading.Event) -> dict[str, Any]:
    from binep.errors import BinepError
    from binep.training.trials.executor import loads

    until = time.monotonic() + PATIENCE
    while True:
        try:
            run = loads(text).train(stop=stop)
            return {"record": run.record, "metrics": run.metrics, "finished": run.finished}
        except BinepError as error:
            if BUSY not in str(error) or time.monotonic() > until or stop.wait(0.5):
                return {"finished": False, "failure": " ".join(str(error).split())}
        except Exception as error:
            return {
                "finished": False,
                "failure": f"{type(error).__name__}: {' '.join(str(error).split())}",
            }


if __name__ == "__main__":
    sys.exit(main())
