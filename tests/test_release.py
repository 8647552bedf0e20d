"""A folder of pretrained networks: what its cards say is measured, and names are found in it."""

import hashlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from binep.cli import app
from binep.data import load
from binep.deploy import pretrained
from binep.deploy.predict import open_network
from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training import runs

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("models", ROOT / "release" / "models.py")
    making = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(making)
    out = tmp_path_factory.mktemp("models")
    small = ["network.dense=[40]", "training.epochs=2", "training.batch_size=100"]
    run = runs.train(recipes.load("digits-1fc-wa", small), out=out / "runs", device="cpu")
    model = making.add(run, out)
    (out / "README.md").write_text(making.index([model]))
    return out


def test_a_card_says_what_its_file_does(folder: Path):
    card = (folder / "digits-1fc-wa.md").read_text("utf-8")
    content = (folder / "digits-1fc-wa.safetensors").read_bytes()
    assert f"`{hashlib.sha256(content).hexdigest()}`" in card
    assert f"{len(content):,} bytes" in card
    test = load("digits").test
    runtime, _ = open_network(folder / "digits-1fc-wa.safetensors")
    error = 100 * np.mean(runtime.predict(test.images.numpy()) != test.labels.numpy())
    assert f"{error:.2f} % of 360 test images" in card
    assert f"{error:.2f} %" in (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_picture_is_read_by_the_name_of_a_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    test = load("digits").test
    Image.fromarray(test.images[3, 0].numpy()).save(tmp_path / "image.png")
    words = ["predict", "digits-1fc-wa", str(tmp_path / "image.png")]
    if how == "option":
        words += ["--models", str(folder)]
    else:
        monkeypatch.setenv(pretrained.VARIABLE, str(folder))
    result = CliRunner().invoke(app, words)
    runtime, _ = open_network(folder / "digits-1fc-wa.safetensors")
    expected = int(runtime.predict(test.images[3:4].numpy())[0])
    assert result.exit_code == 0, result.output
    assert f"image.png: {expected} (score" in result.stdout


def test_a_name_that_nothing_has_lists_what_there_is(folder: Path):
    with pytest.raises(BinepError, match="digits-1fc-w is not a run, a file.*digits-1fc-wa"):
        pretrained.find("digits-1fc-w", folder)
    with pytest.raises(BinepError, match="is not a run"):
        pretrained.find("../models/digits-1fc-wa", folder)
