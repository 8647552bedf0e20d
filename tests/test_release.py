"""A folder of pretrained networks: what its cards say is measured, and names are found in it."""

import hashlib
import importlib.util
import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
    making.finish([model], out)
    shutil.rmtree(out / "runs")
    return out


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the address that it is served from."""
    root = tmp_path_factory.mktemp("served")
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    serving = ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(root)))
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield root, f"http://127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(pretrained.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "binep" / "models"


def serve(folder: Path, server: tuple[Path, str], name: str) -> tuple[Path, str]:
    """A copy of a folder of models on the server, and its place with the hash of its index."""
    copy = Path(shutil.copytree(folder, server[0] / name))
    index = hashlib.sha256((copy / "index.json").read_bytes()).hexdigest()
    return copy, f"{server[1]}/{name}#sha256={index}"


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
    index = json.loads((folder / "index.json").read_text("utf-8"))["models"]["digits-1fc-wa"]
    assert index["sha256"] == hashlib.sha256(content).hexdigest()
    assert (index["test_error"], index["test_images"]) == (pytest.approx(error), 360)
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


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
        pretrained.find("digits-1fc-w", [str(folder)])
    with pytest.raises(BinepError, match="is not a run"):
        pretrained.find("../models/digits-1fc-wa", [str(folder)])


def test_a_name_of_a_recipe_without_a_model_says_how_to_train_it():
    with pytest.raises(BinepError, match="binep train digits-conv-w; then binep predict runs/dig"):
        pretrained.find("digits-conv-w")


def test_a_model_is_downloaded_once_and_then_found_offline(
    folder: Path, server: tuple[Path, str], cache: Path, monkeypatch: pytest.MonkeyPatch
):
    copy, place = serve(folder, server, "once")
    nowhere = "http://127.0.0.1:9/models"
    monkeypatch.setenv(pretrained.VARIABLE, f"{nowhere}, {place}")
    with pytest.raises(BinepError, match="is not a run"):
        pretrained.find("digits-1fc-wa", offline=True)
    found = pretrained.find("digits-1fc-wa")
    assert found == cache / "digits-1fc-wa.safetensors"
    assert found.read_bytes() == (folder / "digits-1fc-wa.safetensors").read_bytes()
    shutil.rmtree(copy)
    assert pretrained.find("digits-1fc-wa", offline=True) == found
    with pytest.raises(BinepError, match="cannot download the model other: .*127.0.0.1:9"):
        pretrained.find("other")


def test_what_is_not_as_its_hash_says_is_not_kept(
    folder: Path, server: tuple[Path, str], cache: Path
):
    """A file that differs from the index, an index that differs from its place, no index at all."""
    copy, place = serve(folder, server, "changed")
    model = copy / "digits-1fc-wa.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    with pytest.raises(BinepError, match="digits-1fc-wa.safetensors has the SHA-256"):
        pretrained.find("digits-1fc-wa", [place])
    with pytest.raises(BinepError, match="has the SHA-256"):
        pretrained.find("digits-1fc-wa", [str(copy)])
    other = place[:-1] + ("0" if place[-1] != "0" else "1")
    with pytest.raises(BinepError, match=r"index.json has the SHA-256"):
        pretrained.find("digits-1fc-wa", [other])
    (copy / "index.json").write_text('{"models": {"digits-1fc-wa": {"sha256": "0"}}}')
    with pytest.raises(BinepError, match="names a SHA-256 that is none"):
        pretrained.find("digits-1fc-wa", [place.partition("#")[0]])
    (copy / "index.json").write_text("[]")
    with pytest.raises(BinepError, match="is no index of models"):
        pretrained.find("digits-1fc-wa", [place.partition("#")[0]])
    assert not cache.exists()


def test_the_next_place_is_asked_where_one_sends_something_else(
    folder: Path, server: tuple[Path, str]
):
    copy, bad = serve(folder, server, "bad")
    (copy / "digits-1fc-wa.safetensors").write_bytes(b"")
    _, good = serve(folder, server, "good")
    found = pretrained.find("digits-1fc-wa", [bad, good])
    assert found.read_bytes() == (folder / "digits-1fc-wa.safetensors").read_bytes()


def test_a_place_that_is_none_is_told():
    with pytest.raises(BinepError, match="'ftp://host/models' is no place of models"):
        pretrained.find("digits-1fc-wa", ["ftp://host/models"])
