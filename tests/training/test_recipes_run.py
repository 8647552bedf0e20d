"""Every recipe trains: three mini-batches of its own network, at full width, on made-up images.

Phases and mini-batches are short, so that networks of a hundred million synapses fit into a test;
everything else is the recipe's own. A schedule acts between epochs: the first is that without it.
Recipes for Fashion-MNIST are those of MNIST.
"""

from typing import Any

import pytest
import torch

from binep.data import DATASETS, Dataset, Split
from binep.training import recipe as recipes
from binep.training import runs

SHORT = ["learning.free_steps=3", "learning.nudged_steps=2", "training.batch_size=2"]


def made_up(name: str) -> Dataset:
    """Six random images of a data set's shape."""
    source = DATASETS[name]
    images = torch.randint(256, (6, *source.image_shape), dtype=torch.uint8)
    split = Split(images, torch.arange(6))
    return Dataset(name, split, split, source.classes, source.mean, source.std)


def marked(name: str) -> Any:
    """Recipes that only extend one of a hundred million synapses take their time."""
    again = name.startswith("mnist-2fc-wa-")
    return pytest.param(name, marks=pytest.mark.slow if again else ())


@pytest.mark.parametrize(
    "name",
    [marked(n) for n in recipes.names() if not n.endswith("-schedule") and "fashion" not in n],
)
def test_three_mini_batches(name: str):
    recipe = recipes.load(name, SHORT)
    trainer = runs.build_trainer(recipe, made_up(recipe.data.name), 0, torch.device("cpu"))
    before = [coupling.bias.detach().clone() for coupling in trainer.network.couplings]
    line = trainer.epoch()
    assert line is not None and trainer.batches == 3
    assert torch.isfinite(torch.tensor([line["loss"], line["test_loss"], line["residual"]])).all()
    # The least and the largest are not finite where any number is not.
    for parameter in trainer.network.parameters():
        assert torch.isfinite(torch.stack(parameter.aminmax())).all()
    # The bias of the layer that is nudged has moved; deeper ones may not yet in so few steps.
    assert not torch.equal(before[-1], trainer.network.couplings[-1].bias)
    for coupling in trainer.network.couplings:
        if coupling.binary:
            least, largest = coupling.signs.aminmax()
            assert (least, largest) == (-1, 1) and bool((coupling.signs.abs() == 1).all())
