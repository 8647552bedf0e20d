"""Trials as an array of Slurm jobs, through submitit; preempted jobs are queued again."""

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from binep.errors import BinepError
from binep.files import make_folder
from binep.training.signals import listening
from binep.training.trials.attempt import Attempt
from binep.training.trials.executor import Outcome, Trial

KILLED_WITHIN = 120.0  # seconds from Slurm's warning of a preemption to the end, more than usual
POLL = 1.0  # seconds between two looks at the jobs
USUAL: dict[str, Any] = {"timeout_min": 24 * 60, "cpus_per_task": 1}
CLUSTERS = ("slurm", "local")


class Slurm:
    """Submits an array of jobs; the folder of runs has to be one that all machines see.

    Args:
        folder: where submitit keeps scripts and logs of jobs.
        parameters: of the jobs, as submitit's `AutoExecutor` calls them; `cluster` is "slurm", or
            "local" to try the same without Slurm.
    """

    def __init__(self, folder: Path, at_once: int | None, parameters: dict[str, Any]) -> None:
        self.folder, self.at_once, self.parameters = folder, at_once, dict(parameters)

    def run(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        if not trials:
            return
        with listening() as asked:
            jobs = list(zip(trials, self._submit(trials), strict=True))
            try:
                while jobs:
                    if asked.stop.wait(POLL):
                        return
                    done = [pair for pair in jobs if pair[1].done()]
                    jobs = [pair for pair in jobs if pair not in done]
                    yield from (self._outcome(*pair) for pair in done)
            finally:
                for _, job in jobs:
                    job.cancel(check=False)
                self._wait([job for _, job in jobs])

    def _submit(self, trials: Sequence[Trial]) -> list[Any]:
        try:
            import submitit
            from submitit.core.utils import FailedJobError
        except ImportError:
            raise BinepError(
                "--on slurm needs the package submitit: pip install 'binep[slurm]'"
            ) from None
        # Without accounting submitit says at every look that there is none.
        logging.getLogger("submitit").setLevel(logging.ERROR)
        make_folder(self.folder)
        parameters = {**USUAL, **self.parameters}
        cluster = parameters.pop("cluster", "slurm")
        try:
            executor = submitit.AutoExecutor(self.folder.resolve(), cluster=cluster)
            executor.update_parameters(name="binep", **parameters)
            if cluster == "slurm" and self.at_once is not None:
                executor.update_parameters(slurm_array_parallelism=self.at_once)
            return executor.map_array(
                Attempt(waits=KILLED_WITHIN), [trial.dumps() for trial in trials]
            )
        except (RuntimeError, NameError, TypeError, FailedJobError) as error:
            told = " ".join(str(error).split())
            raise BinepError(f"--on slurm: {told}") from None

    @staticmethod
    def _outcome(trial: Trial, job: Any) -> Outcome:
        try:
            return Outcome.of(trial, job.result())
        except Exception as error:  # whatever a job can end with
            lines = [line for line in str(error).splitlines() if line.strip()]
            return Outcome(trial, None, f"job {job.job_id}: {(lines or [repr(error)])[-1].strip()}")

    @staticmethod
    def _wait(jobs: Sequence[Any]) -> None:
        until = time.monotonic() + 10
        while time.monotonic() < until and not all(job.done() for job in jobs):
            time.sleep(POLL)
