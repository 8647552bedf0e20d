"""Train a recipe from Python and look at the result."""

import tempfile

from binep.training import recipe, runs

with tempfile.TemporaryDirectory() as folder:
    chosen = recipe.load("digits-1fc-w", ["training.epochs=3"])
    run = runs.train(chosen, seed=0, out=folder)
    for line in run.metrics:
        print(f"epoch {line['epoch']}: test error {line['test_error']['average']:.2f} %")
    print(f"test images read wrongly: {run.evaluate('test').wrong['average']} of 360")
