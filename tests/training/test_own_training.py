"""Data of your own through a whole life: trained, resumed, read, reported, shipped."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import binep
from binep import BinepError
from binep.deploy.export import export
from binep.training import recipe as recipes
from binep.training import runs

SHORT = ["network.dense=[32]", "training.epochs=2", "learning.free_steps=10"]

RATES = {"gamma": 1e-3, "tau": 1e-5, "lr_bias": 0.1}
CONV = ["network.conv=[4]", *(f"optimizer.{key}={value}" for key, value in RATES.items())]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    images, labels = load_digits(n_class=3, return_X_y=True)
    np.savez(tmp_path / "mine.npz", images=images.astype(np.uint8) * 15, labels=labels)
    return tmp_path / "mine.npz"


def trained(table: Path, *overrides: str, **options) -> runs.Run:
    recipe = recipes.load("digits-1fc-w", [f"data.path={table}", *SHORT, *overrides])
    return runs.train(recipe, out=table.parent / "runs", **options)


def test_a_run_on_own_data_is_trained_read_and_shipped(table: Path):
    run = trained(table)
    assert run.recipe.data.shape == [64] and run.recipe.data.classes == 3
    assert run.last is not None and run.last["test_error"]["average"] < 10
    tally = run.evaluate("test")
    assert tally.samples == 107 and tally.error("average") == run.last["test_error"]["average"]
    (packed,) = (p for p in export(run, table.parent / "shipped") if p.suffix == ".safetensors")
    test = run.dataset().test
    wrong = binep.load(packed).predict(test.images.numpy()) != test.labels.numpy()
    assert int(wrong.sum()) == tally.wrong["average"]


def test_a_run_can_be_opened_where_its_data_are_gone(table: Path):
    run = trained(table)
    table.unlink()
    assert runs.open_run(run.folder).network("cpu").classes == 3
    with pytest.raises(BinepError, match="no such file"):
        run.evaluate("test")


def test_other_data_are_refused_on_resume_and_eval(table: Path):
    run = trained(table)
    with np.load(table) as file:
        arrays = dict(file)
    arrays["images"][0, 0] ^= 1
    np.savez(table, **arrays)
    with pytest.raises(BinepError, match="is not what .* was trained on"):
        run.evaluate("test")
    with pytest.raises(BinepError, match="is not what .* was trained on"):
        trained(table, "training.epochs=3", resume=True)
    np.savez(table, images=arrays["images"][:90], labels=arrays["labels"][:90])
    with pytest.raises(BinepError, match="it now holds 72 training samples"):
        run.evaluate("test")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["data.flip=true"], "data.flip and data.crop move images"),
        (
            [
                "network.conv=[4]",
                "optimizer.gamma=1e-3",
                "optimizer.tau=1e-5",
                "optimizer.lr_bias=0.1",
            ],
            "does not connect to a layer below of shape",
        ),
        (["data.test=1.0"], "a test share of 1"),
        (["data.validation=5000"], "training images"),
    ],
)
def test_what_does_not_fit_the_data_is_told_before_training(
    overrides: list[str], told: str, table: Path
):
    with pytest.raises(BinepError, match=told):
        recipes.load("digits-1fc-w", [f"data.path={table}", *SHORT, *overrides])


def test_own_data_need_a_path():
    with pytest.raises(BinepError, match=r"it needs data\.path"):
        recipes.load("digits-1fc-w", ["data.name=own"])


class Rows(torch.utils.data.Dataset):
    """Two classes that a line divides, as torch hands them over."""

    def __init__(self, seed: int = 0) -> None:
        self.x = torch.rand(120, 5, generator=torch.Generator().manual_seed(seed))
        self.y = (self.x[:, 0] > self.x[:, 1]).long()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, n: int):
        return self.x[n], self.y[n]


def test_a_recipe_is_trained_on_data_that_are_handed_over(tmp_path: Path):
    recipe, loader = recipes.load("digits-1fc-w", SHORT), torch.utils.data.DataLoader(Rows())
    run = runs.train(recipe, dataset=loader, out=tmp_path, device="cpu")
    assert run.recipe.data.name == "own" and run.recipe.data.shape == [5]
    assert run.network("cpu").classes == 2
    found = run.evaluate(device="cpu", dataset=Rows())
    assert found.error("average") == run.last["test_error"]["average"]
    with pytest.raises(BinepError, match="handed over in Python: hand them over again, dataset="):
        run.evaluate(device="cpu")
    longer = replace(recipe, training=replace(recipe.training, epochs=3))
    with pytest.raises(BinepError, match="its content has changed"):
        runs.train(longer, dataset=Rows(1), out=tmp_path, device="cpu", resume=True)
    again = runs.train(longer, dataset=Rows(), out=tmp_path, device="cpu", resume=True)
    assert len(again.metrics) == 3
    assert repr(again) == (
        f"Run('{again.folder}', 3 of 3 epochs, test error "
        f"{again.last['test_error']['average']:.2f} %)"
    )
