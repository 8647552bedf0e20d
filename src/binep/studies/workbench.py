"""A workbench: where a study tries changes of a recipe, on images that are for choosing."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from binep.data import Dataset, Folder
from binep.engines.select import select_device
from binep.studies.compare import held_out
from binep.training import runs
from binep.training.recipe import Recipe
from binep.training.trainer import Trainer


@dataclass(frozen=True)
class Workbench:
    """A recipe and what all of its trials share: images, seed, device and engine.

    Attributes:
        dataset: without the test set; in its place the last training images, kept out of training.
        say: is told what a user should know.
    """

    recipe: Recipe
    dataset: Dataset
    seed: int
    device: torch.device
    engine: str
    say: Callable[[str], None]

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        *,
        seed: int = 0,
        device: str = "auto",
        engine: str = "auto",
        data_dir: Folder | None = None,
        offline: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> "Workbench":
        """Load the recipe's images, and keep those for choosing out."""
        place = select_device(device)
        dataset = recipe.load_data(data_dir=data_dir, offline=offline).to(place)
        return cls(recipe, held_out(recipe).hold_out(dataset), seed, place, engine, say)

    def trainer(self, recipe: Recipe | None = None) -> Trainer:
        """A fresh training of a variant of the recipe, or of itself."""
        kept = held_out(recipe or self.recipe)
        return runs.build_trainer(kept, self.dataset, self.seed, self.device, self.engine, self.say)
