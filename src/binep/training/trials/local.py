"""Trials in processes of this machine, each on cores, or a GPU, of its own."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from binep.engines.select import select_device
from binep.training.signals import listening
from binep.training.trials.attempt import Attempt
from binep.training.trials.executor import Outcome, Trial
from binep.training.trials.worker import CORES

POLL = 0.5  # seconds after which is looked whether somebody asks to stop


def cores() -> list[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def slots(at_once: int | None, device: str) -> list[dict[str, str]]:
    """For each trial at the same time what its process finds in its environment.

    On GPUs a trial gets one of them, else an equal share of the cores; by default as many run as
    there are GPUs, or cores.
    """
    import torch

    mine = cores()
    if select_device(device).type == "cuda":
        gpus = torch.cuda.device_count()
        return [{"CUDA_VISIBLE_DEVICES": str(n % gpus)} for n in range(at_once or gpus)]
    count = at_once or len(mine)
    shares = [mine[n::count] or [mine[n % len(mine)]] for n in range(count)]
    return [
        {CORES: ",".join(map(str, share)), "OMP_NUM_THREADS": str(len(share))} for share in shares
    ]


class Local:
    """Trains in processes of this machine; at most `at_once` of them at the same time."""

    def __init__(self, at_once: int | None = None) -> None:
        self.at_once = at_once

    def run(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        if not trials:
            return
        free: SimpleQueue[dict[str, str]] = SimpleQueue()
        rooms = slots(self.at_once, trials[0].options.device)
        for room in rooms:
            free.put(room)
        running: set[Attempt] = set()

        def train(trial: Trial) -> Outcome:
            if asked.stop.is_set():
                return Outcome(trial, None)
            room = free.get()
            attempt = Attempt(room)
            running.add(attempt)
            try:
                return Outcome.of(trial, attempt(trial.dumps()))
            finally:
                running.discard(attempt)
                free.put(room)

        with listening() as asked, ThreadPoolExecutor(len(rooms)) as threads:
            left: set[Future[Outcome]] = {threads.submit(train, trial) for trial in trials}
            try:
                while left:
                    done, left = wait(left, POLL, FIRST_COMPLETED)
                    yield from (each.result() for each in done)
                    if asked.stop.is_set():
                        _end(running)
            finally:
                asked.stop.set()
                _end(running)


def _end(running: set[Attempt]) -> None:
    for attempt in list(running):
        attempt.end()
