"""Many trainings, and where they run: in this process, on this machine, under Slurm, on Ray.

A trial is a recipe and a seed; its run is in a folder. What has finished there is not trained
again, and what was interrupted goes on from its checkpoint, wherever it is run the next time.

    here     this process, one after the other, or on a GPU several beside each other
    local    processes of this machine, each on cores or a GPU of its own
    slurm    an array of jobs, through submitit
    ray      tasks of a Ray cluster
"""

from binep.training.trials.executor import (
    PLACES,
    Executor,
    Options,
    Outcome,
    Trial,
    missing,
    place,
)

__all__ = ["PLACES", "Executor", "Options", "Outcome", "Trial", "missing", "place"]
