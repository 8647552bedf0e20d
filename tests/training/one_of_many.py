"""One process of a training that several share: trains what it is told to, one run after the other.

Started by `test_processes.py` with the variables that torchrun would set. Each job is an object:
`recipe`, `out`, and perhaps `overrides`, `options` of `train`, and `stop_after` (mini-batches).
"""

import json
import sys
import threading
from typing import Any

from binep.training import launch, runs
from binep.training import recipe as recipes
from binep.training.progress import Watcher
from binep.training.trainer import Trainer
from conftest import small_recipe


class StopAfter(Watcher):
    def __init__(self, batches: int, stop: threading.Event) -> None:
        self.left, self.stop = batches, stop

    def batch(self, trainer: Trainer) -> None:
        self.left -= 1
        if self.left == 0:
            self.stop.set()


def train(job: dict[str, Any]) -> None:
    make = small_recipe if job.get("small") else recipes.load
    overrides = job.get("overrides", [])
    recipe = make(job["recipe"], *overrides) if job.get("small") else make(job["recipe"], overrides)
    options, stop = dict(job.get("options", {})), threading.Event()
    # The last process is the one that is asked: all others have to hear of it.
    last = launch.rank() == launch.join().processes.count - 1
    if last and "stop_after" in job:
        options.update(watcher=StopAfter(job["stop_after"], stop), stop=stop)
    run = runs.train(recipe, out=job["out"], **options)
    assert run.metrics or "stop_after" in job


if __name__ == "__main__":
    for job in json.loads(sys.argv[1]):
        train(job)
