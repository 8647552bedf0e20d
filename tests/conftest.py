"""What several tests share: small recipes that train in a moment, threads, Triton's interpreter."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

# Triton reads this when it is imported, which any module may do first.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from binep.training import recipe as recipes
from binep.training.recipe import Recipe
from binep.training.signals import SAVES, STOPS

# Networks this small are faster on one thread: where others use the cores as well, several would
# spend most of their time waiting for one another.
torch.set_num_threads(1)

SMALL = {
    "digits-1fc-w": ["network.dense=[24]", "learning.free_steps=8", "learning.nudged_steps=3"],
    "digits-conv-wa": [
        "network.conv=[4, 6]",
        "network.kernel=3",
        "network.padding=1",
        "network.per_class=2",
        "optimizer.tau=1e-5",
        "learning.free_steps=6",
        "learning.nudged_steps=3",
    ],
}


def small_recipe(name: str, *overrides: str) -> Recipe:
    """A recipe with its network shrunk, two epochs of batches of 200."""
    usual = ["training.epochs=2", "training.batch_size=200"]
    return recipes.load(name, [*SMALL[name], *usual, *overrides])


def assert_compiled_once(program: str) -> None:
    """Run a program twice: the second process finds the first one's kernels and says nothing."""
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    assert "compiling" not in said[1]


@pytest.fixture
def on_threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads torch and the kernels run on; as it was when the test is over."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def heard() -> Iterator[None]:
    """Lets signals do what they usually do, here and in programs that are started.

    Tests that a script runs in the background, or nohup, begin with some of them ignored.
    """
    usual = {signal.SIGINT: signal.default_int_handler}
    before = {n: signal.signal(n, usual.get(n, signal.SIG_DFL)) for n in (*STOPS, *SAVES)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
