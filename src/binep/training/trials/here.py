"""Trials in this process: one after the other, or on a GPU several beside each other."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Event

from binep.errors import BinepError
from binep.training import runs
from binep.training.progress import Watcher
from binep.training.trials.executor import Outcome, Trial


class Here:
    """Trains in this process, and stops where one was asked to stop.

    Args:
        at_once: so many beside each other, on a GPU in streams of their own; by default one.
    """

    def __init__(
        self,
        watcher: Callable[[Trial], Watcher] = lambda trial: Watcher(),
        at_once: int | None = None,
    ) -> None:
        self.watcher, self.at_once = watcher, at_once or 1

    def run(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        if self.at_once > 1:
            jobs = [partial(self._train, trial) for trial in trials]
            yield from runs.side_by_side(jobs, self.at_once)
            return
        for trial in trials:
            outcome = self._train(trial)
            yield outcome
            if not outcome.finished and outcome.failure is None:
                return

    def _train(self, trial: Trial, stop: Event | None = None) -> Outcome:
        try:
            return Outcome(trial, trial.train(watcher=self.watcher(trial), stop=stop))
        except BinepError as error:
            return Outcome(trial, None, str(error))
