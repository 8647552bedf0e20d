"""Trials as tasks of a Ray cluster; a task whose worker is lost is begun again elsewhere."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from binep.errors import BinepError
from binep.training.signals import listening
from binep.training.trials.attempt import Attempt
from binep.training.trials.executor import Outcome, Trial

POLL = 1.0
RETRIES = 3


class RayCluster:
    """Trains as tasks of a Ray cluster, each on a core, and on a GPU where it asks for one.

    Results come back whole. Where machines share the folder of runs, a task that is begun again
    goes on from its checkpoint; else it trains anew.

    Args:
        address: of the cluster; by default the one that this machine belongs to, or a fresh one of
            this machine alone.
    """

    def __init__(self, address: str | None, at_once: int | None) -> None:
        self.address, self.at_once = address, at_once

    def run(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        if not trials:
            return
        ray = self._connect()
        gpus = int(trials[0].options.device == "cuda")
        train = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_train)
        waiting, running = list(trials), dict[Any, Trial]()
        with listening() as asked:
            try:
                while waiting or running:
                    while waiting and len(running) < (self.at_once or len(trials)):
                        trial = waiting.pop(0)
                        running[train.remote(trial.dumps())] = trial
                    done, _ = ray.wait(list(running), timeout=POLL)
                    for task in done:
                        yield self._outcome(ray, running.pop(task), task)
                    if asked.stop.is_set():
                        return
            finally:
                for task in running:
                    ray.cancel(task, force=True)

    def _connect(self) -> Any:
        try:
            import ray
        except ImportError:
            raise BinepError("--on ray needs the package ray: pip install 'binep[ray]'") from None
        if not ray.is_initialized():
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                told = " ".join(str(error).split())
                raise BinepError(f"--on ray: {told}") from None
        return ray

    @staticmethod
    def _outcome(ray: Any, trial: Trial, task: Any) -> Outcome:
        try:
            return Outcome.of(trial, ray.get(task))
        except Exception as error:  # whatever a task can end with
            lines = [line for line in str(error).splitlines() if line.strip()]
            return Outcome(trial, None, (lines or [repr(error)])[0].strip())


def _train(text: str) -> dict[str, Any]:
    return Attempt()(text)
