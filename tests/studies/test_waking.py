"""A start that is alive: layers as active as asked, taus that fit the first gradients."""

import tomllib

import pytest
import torch

from binep import relax
from binep.errors import BinepError
from binep.studies.compare import held_out
from binep.studies.waking import wake
from binep.studies.workbench import Workbench
from binep.training import recipe as recipes
from binep.training import runs

SMALL = ["network.dense=[200]", "network.per_class=4", "training.epochs=1"]
BITS = [*SMALL, "network.dynamics=hopfield", "learning.sign=positive", "learning.beta=1"]


def on_at_rest(recipe) -> list[float]:
    """The share of neurons and of the first training images that are on, layer by layer."""
    network = recipe.build_network(runs.random_streams(0)["init"])
    x = recipe.load_data(offline=True).train.images[:256]
    free = relax(network, network.check(x), network.initial(network.check(x)), 200, tolerance=0.0)
    return [float(bits.float().mean()) for bits in network.activity(free.state)]


@pytest.mark.parametrize("overrides", [SMALL, BITS])
def test_layers_are_as_active_as_asked(overrides: list[str]):
    recipe = recipes.load("digits-1fc-wa", overrides)
    woken = wake(Workbench.of(recipe), [0.3, 0.12], spread=[0.4, 0.3])
    # Written as numbers of a recipe, with three digits, they still do it.
    for found, asked in zip(on_at_rest(woken.recipe), (0.3, 0.12), strict=True):
        assert abs(found - asked) < 0.03
    assert woken.after == pytest.approx([0.3, 0.12], abs=0.03)
    assert woken.spread == pytest.approx([0.4, 0.3], rel=0.1)
    assert woken.before != pytest.approx(woken.after, abs=0.05)
    assert recipes.from_table(tomllib.loads(recipes.dumps(woken.recipe))) == woken.recipe


def test_gains_stay_where_no_spread_is_asked_for():
    recipe = recipes.load("digits-1fc-wa", [*BITS, "network.gain=[2, 1]"])
    woken = wake(Workbench.of(recipe), [0.2])
    assert woken.recipe.network.gain == [2.0, 1.0]
    assert woken.recipe.network.bias != recipe.network.bias


def test_tau_lets_as_many_weights_flip_as_the_quantile_leaves():
    recipe = recipes.load("digits-1fc-wa", BITS)
    woken = wake(Workbench.of(recipe), [0.2, 0.12], spread=[0.4, 0.3], batches=5, quantile=0.9)
    kept = held_out(woken.recipe)
    dataset = kept.hold_out(kept.load_data(offline=True))
    trainer = runs.build_trainer(kept, dataset, 0, torch.device("cpu"))
    trainer.epoch(lambda: trainer.progress.position < 5 * trainer.batch_size)
    trainer.collect()
    couplings = trainer.network.couplings
    for flips, coupling in zip(trainer.progress.tally.flips, couplings, strict=True):
        # A tenth of the momenta is beyond tau; of those the ones flip that have the weight's sign.
        assert 0.01 < flips / coupling.signs.numel() < 0.1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits-1fc-w", {"activity": [0.1]}, "binary activations"),
        ("digits-1fc-wa", {"activity": [0.1, 0.2, 0.3]}, "one number or 2"),
        ("digits-1fc-wa", {"activity": [1.5]}, "between 0 and 1"),
        ("digits-1fc-wa", {"activity": [0.1], "spread": [-1]}, "above 0"),
        ("digits-1fc-wa", {"activity": [0.1], "quantile": 1.0}, "between 0 and 1"),
    ],
)
def test_what_cannot_be_woken_is_told(name: str, options: dict, message: str):
    with pytest.raises(BinepError, match=message):
        wake(Workbench.of(recipes.load(name)), **options)
