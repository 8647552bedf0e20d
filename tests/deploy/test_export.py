"""`binep export`, `binep hardware` and `binep eval --set`, as a person meets them."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import binep as package
from binep import data
from binep.cli import app
from binep.deploy.export import Options, export_network, learning_rule
from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training import runs

SMALL = [
    *("network.dense=[40]", "network.per_class=2", "training.batch_size=100", "training.epochs=2"),
    *("learning.free_steps=10", "schedule.tau.at=[1]", "schedule.tau.factor=0.5"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> runs.Run:
    out = tmp_path_factory.mktemp("export")
    recipe = recipes.load("digits-1fc-wa", SMALL)
    return runs.train(recipe, out=out, device="cpu", engine="reference")


def binep(*words: object) -> str:
    """What a command prints; its error is raised here."""
    result = CliRunner().invoke(app, [str(word) for word in words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_packed_file_predicts_as_the_run_does(run: runs.Run, tmp_path: Path):
    printed = binep("export", run.folder, "--to", tmp_path)
    path = tmp_path / "digits-1fc-wa-seed0.safetensors"
    assert f"{path.stat().st_size:,} bytes" in printed
    test = run.dataset(device="cpu").test
    classes = package.load(path).predict(test.images.numpy())
    network = run.network("cpu")
    x = test.images.flatten(1)
    free = package.relax(network, x, network.initial(x), run.recipe.learning.free_steps)
    assert torch.equal(torch.from_numpy(classes), network.predict(free.state))
    error = 100 * np.mean(classes != test.labels.numpy())
    assert run.metrics[-1]["test_error"]["average"] == pytest.approx(error)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_every_test_image_in_c(run: runs.Run, tmp_path: Path):
    words = ["--vectors", 0, "--learning", "--momentum-bits", 14, "--readout", "single"]
    binep("export", run.folder, "--to", tmp_path, "--format", "c", *words)
    done = subprocess.run(["make", "-s", "check"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "360 vectors, 0 differ", done.stderr


def test_memory_images_with_some_vectors(run: runs.Run, tmp_path: Path):
    binep("export", run.folder, "--to", tmp_path, "--format", "mem")
    assert len((tmp_path / "vectors_expected.mem").read_text().split()) == 4


def test_a_core_comes_with_images_to_read_and_to_learn(run: runs.Run, tmp_path: Path):
    words = ["--format", "verilog", "--learning", "--momentum-bits", 12, "--vectors", 5]
    binep("export", run.folder, "--to", tmp_path, *words, "--parallel", 8)
    lessons = (tmp_path / "vectors_lessons.mem").read_text().split()
    assert lessons == ["0"] * 5 + ["1"] * 100
    assert "N = 8 synapses" in (tmp_path / "README.md").read_text()
    assert ".MOMENTUM_BITS(12)" in (tmp_path / "binep_core.sv").read_text()


def test_two_exports_never_share_a_folder(run: runs.Run, tmp_path: Path):
    binep("export", run.folder, "--to", tmp_path / "mem", "--format", "mem")
    before = sorted(tmp_path.rglob("*"))
    for format in ("packed", "c"):
        with pytest.raises(BinepError, match="mem holds .*, which is no part of this export"):
            binep("export", run.folder, "--to", tmp_path / "mem", "--format", format)
        assert sorted(tmp_path.rglob("*")) == before
    binep("export", run.folder, "--to", tmp_path / "mem", "--format", "mem")
    assert sorted(tmp_path.rglob("*")) == before
    binep("export", run.folder, "--to", tmp_path)
    other = package.Network((64,), [package.Dense(64, 10)])
    export_network(other, tmp_path, name="other")
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"mem", "other.safetensors", "digits-1fc-wa-seed0.safetensors"}


def test_a_network_without_a_run_is_exported(tmp_path: Path):
    torch.manual_seed(0)
    digits = data.load("digits")
    net = package.Network((64,), [package.Dense(64, 40), package.Dense(40, 10)])
    net.free_steps = 12
    package.save(net, tmp_path / "net.safetensors")
    words = ["--format", "mem", "--data", "digits"]
    binep("export", tmp_path / "net.safetensors", "--to", tmp_path / "mem", *words)
    assert len((tmp_path / "mem" / "vectors_expected.mem").read_text().split()) == 4
    binep("export", tmp_path / "net.safetensors", "--to", tmp_path / "packed")
    shipped = package.load(tmp_path / "packed" / "net.safetensors")
    images = digits.test.images
    assert np.array_equal(shipped.predict(images.flatten(1).numpy()), net.predict_images(images))
    with pytest.raises(BinepError, match="format 'c' comes with test images"):
        export_network(net, tmp_path / "c", "c")
    with pytest.raises(BinepError, match="learning: allowed is a run"):
        export_network(net, tmp_path / "c", "c", Options(momentum_bits=8), dataset=digits)
    assert not any((tmp_path / "c").iterdir())


def test_learning_takes_the_rates_that_are_due(run: runs.Run):
    before, after = learning_rule(run.recipe, 0), learning_rule(run.recipe, len(run.metrics))
    assert np.allclose(after.tau, 0.5 * np.array(before.tau)) and after.gamma == before.gamma


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"method": "bptt"}, "bptt"), ({"homeostasis": 0.01, "activity": 0.1}, "homeostasis=0.01")],
)
def test_what_c_does_not_learn_by_is_refused(run: runs.Run, changes: dict, named: str):
    other = replace(run.recipe, learning=replace(run.recipe.learning, **changes))
    with pytest.raises(BinepError, match=f"learning in integers.*{named}"):
        learning_rule(other)


def test_c_does_not_learn_by_bop_of_second_order(run: runs.Run):
    other = replace(run.recipe, optimizer=replace(run.recipe.optimizer, sigma=0.1))
    with pytest.raises(BinepError, match=r"learning in integers with optimizer\.sigma=0\.1"):
        learning_rule(other)


def test_eval_on_imperfect_hardware(run: runs.Run):
    good = run.metrics[-1]["test_error"]["average"]
    bad = ["--json", "--device", "cpu", "--set", "hardware.weight_errors=0.5"]
    assert json.loads(binep("eval", run.folder, *bad))["error"]["average"] > good + 5
    with pytest.raises(BinepError, match=r"only hardware\.\*"):
        binep("eval", run.folder, "--set", "learning.beta=1")


def test_hardware_reports_and_sweeps(run: runs.Run, tmp_path: Path):
    found = json.loads(binep("hardware", run.folder, "--json", "--images", 5))
    assert found["memory"]["synapses"] == 64 * 40 + 40 * 20 and len(found["activity"]) == 10
    text = binep("hardware", "digits-1fc-wa", "--images", 2)
    assert "by SGD on latent weights" in text and "Horowitz" in text
    binep("hardware", run.folder, "--sweep", tmp_path, "--images", 40)
    assert (tmp_path / "hardware-digits-1fc-wa-seed0.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "RUN", "--to", "x", "--format", "cc"], "unknown export format 'cc'"),
        (["export", "RUN", "--to", "x", "--learning"], "allowed are c and verilog"),
        (["export", "RUN", "--to", "x", "--parallel", "8"], "parallel=8 with format 'packed'"),
        (["export", "RUN", "--to", "x", "--format", "mem", "--vectors", "-1"], "vectors=-1"),
        (["hardware", "digits-1fc-wa", "--sweep", "x"], "needs a trained network"),
        (["hardware", "mnist-9fc"], "unknown recipe 'mnist-9fc'"),
        (["hardware", "digits-1fc-wa", "--images", "0"], "--images 0: allowed is at least 1"),
    ],
)
def test_mistakes_are_told(words: list[str], message: str, run: runs.Run):
    with pytest.raises(BinepError, match=message):
        binep(*(run.folder if word == "RUN" else word for word in words))
    assert not Path("x").exists()
