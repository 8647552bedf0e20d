"""On-line learning in simulation: the exported core learns digits from fresh weights.

    python benchmarks/verilog_learning.py --epochs 8 --hidden 512 --out benchmarks/verilog-learning

The core of a fresh network is exported with all lessons as its vectors: in every epoch each
training image once, in a drawn order, and then all test images, which are only read. Verilator
runs it. What it reads every test image as is compared with the labels (the core's curve), and with
the model in Python that learns the same lessons (the other curve); in the end weights, biases and
momenta are compared as well. Writes a JSON file and a figure.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import torch

from binep.deploy import verilog_core
from binep.deploy.export import learning_rule, store
from binep.deploy.learning import FixedRule
from binep.deploy.verilog_core import Core, Vectors
from binep.training import recipe as recipes

matplotlib.use("Agg")

RECIPE, SEED = "digits-1fc-wa", 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=1024, help="neurons")
    parser.add_argument("--out", type=Path, required=True, help="of the files, without suffix")
    arguments = parser.parse_args()
    recipe = recipes.load(RECIPE, [f"network.dense=[{arguments.hidden}]"])
    network = recipe.build_network(torch.Generator().manual_seed(SEED))
    rule = FixedRule(learning_rule(recipe))
    core = Core(store(network, recipe), parallel=arguments.parallel, learning=rule)
    data = recipe.load_data(offline=True)
    train = data.train.images.numpy(), data.train.labels.numpy()
    test = data.test.images.numpy(), data.test.labels.numpy()
    random = np.random.default_rng(SEED)
    orders = [random.permutation(len(train[0])) for _ in range(arguments.epochs)]
    images, labels = (
        np.concatenate([part for order in orders for part in (train[k][order], test[k])])
        for k in range(2)
    )
    one = np.arange(len(train[0]) + len(test[0])) < len(train[0])
    lessons = np.tile(one, arguments.epochs)
    with tempfile.TemporaryDirectory() as folder:
        verilog_core.write(core, Path(folder), Vectors(images, labels, lessons))
        make = ["make", "-s", "build/verilator"]
        subprocess.run(make, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        program = [f"{folder}/build/verilator", "+classes"]
        said = subprocess.run(program, cwd=folder, check=True, capture_output=True, text=True)
    lines = said.stdout.splitlines()
    classes = np.array([line.split() for line in lines[: len(images)]], int)
    summary = [line for line in lines[len(images) :] if not line.startswith("-")]
    wrong = classes[:, 1:3] != classes[:, 3:]
    tested = wrong[~lessons].reshape(arguments.epochs, len(test[0]), 2)
    learnt = wrong[lessons].reshape(arguments.epochs, len(train[0]), 2)
    found = {
        "how": f"{RECIPE} with {arguments.hidden} hidden neurons, fresh weights (seed {SEED}), one "
        f"image at a time; Verilator, N = {arguments.parallel}; Python: FixedLearner. Percent of "
        f"{len(test[0])} test images after each epoch of {len(train[0])}, and of training images "
        "as each is read before it is learnt",
        "test_error_core": percent(tested[..., 0]),
        "test_error_python": percent(tested[..., 1]),
        "lesson_error_core": percent(learnt[..., 0]),
        "summary": summary,
    }
    arguments.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, arguments.out.with_suffix(".png"))
    print(json.dumps(found, indent=1))


def percent(wrong: np.ndarray) -> list[float]:
    """Of each row."""
    return [round(100 * float(row.mean()), 2) for row in wrong]


def draw(found: dict, path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    epochs = range(1, len(found["test_error_core"]) + 1)
    axes.plot(epochs, found["test_error_python"], lw=5, alpha=0.35, label="test, Python")
    axes.plot(epochs, found["test_error_core"], "k.-", label="test, core in simulation")
    axes.plot(epochs, found["lesson_error_core"], ":", label="lessons, core in simulation")
    axes.set(xlabel="epoch", ylabel="error in %", ylim=(0, None), xticks=list(epochs)[::2])
    axes.axhline(6, color="gray", lw=0.5)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
