"""The engine of a page computes what Python does, bit for bit; a page holds all that it needs."""

import base64
import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_fixed import rule
from test_runtime import BINARY, REAL, build, images
from typer.testing import CliRunner

from binep.cli import app
from binep.core.energy import energy
from binep.deploy import layout, web_page
from binep.deploy.export import store
from binep.deploy.fixed import FixedNetwork
from binep.deploy.learning import FixedLearner, FixedRule
from binep.deploy.stored import StoredCoupling
from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training import runs

needs_wasmtime = pytest.mark.skipif(
    importlib.util.find_spec("wasmtime") is None, reason="needs wasmtime (extra dev)"
)
CASES = ["dense", "pooled conv", "two conv", "wide padding", "bits", "bits, conv"]


def opened(case: str, learning: FixedRule | None = None, wasm: bytes | None = None, bits: int = 24):
    from wasm_engine import Engine

    recipe, network = build(*BINARY[case])
    whole = FixedNetwork(store(network, recipe), bits)
    learning = learning or FixedRule(rule(len(whole.network.couplings)), 31)
    return Engine(whole, learning, wasm), whole, images(recipe, 40).numpy()


def in_order(whole: FixedNetwork, state: list[np.ndarray]) -> np.ndarray:
    """The states of one image as the engine has them; of bits alone what hidden neurons send."""
    *hidden, top = state
    if whole.network.bits:
        hidden = [whole.activity(layer) * whole.one for layer in hidden]
    layers = [layout.neurons(layer) / whole.one for layer in (*hidden, top)]
    return np.concatenate(layers, axis=1)[0]


def check_relaxation(case: str, wasm: bytes | None = None, bits: int = 24) -> None:
    engine, whole, x = opened(case, wasm=wasm, bits=bits)
    for image in x[:3, None]:
        for t, state in enumerate(whole.trace(image)):
            engine.call("step") if t else engine.call("start", engine.image(image))
            assert np.array_equal(engine.states, in_order(whole, state)), t
            assert engine.call("energy") == whole.energy(image, state)[0] / 2**40
    found = [engine.call("predict", engine.image(image)) for image in x]
    assert np.array_equal(found, whole.predict(x))


def check_learning(case: str, changes: dict, bits: int, wasm: bytes | None = None) -> None:
    layers = len(build(*BINARY[case])[1].couplings)
    learning = FixedRule(rule(layers, tau=0.1 * changes.get("gamma", 1e-2), **changes), bits)
    engine, whole, x = opened(case, learning, wasm)
    learner = FixedLearner(whole, learning)
    for image, label in zip(x, np.random.default_rng(0).integers(0, 10, len(x)), strict=True):
        engine.call("learn", engine.image(image), int(label))
        learner.learn(image, int(label))
    assert engine.call("flips") == learner.flips > 20
    shapes = learner.network.shapes
    for n, coupling in enumerate(learner.network.couplings):
        rows = layout.synapses(coupling, shapes[n], coupling.signs)
        assert np.array_equal(engine.weights(n), layout.pack(rows > 0))
        momenta = layout.synapses(coupling, shapes[n], learner.momenta[n])
        assert np.array_equal(engine.momenta(n), momenta)
        assert np.array_equal(engine.biases(n), learner.fixed.biases[n])


@needs_wasmtime
@pytest.mark.parametrize("case", CASES)
def test_states_energies_and_predictions_are_pythons(case: str):
    check_relaxation(case)


@needs_wasmtime
@pytest.mark.parametrize("bits", [4, 20, 29])
def test_states_of_any_width_are_pythons(bits: int):
    check_relaxation("dense", bits=bits)


LEARNINGS = [
    ("dense", {}, 31),
    ("dense", {"sign": "centered", "nudge": "constant"}, 7),
    ("dense", {"sign": "positive", "beta": -1.5, "gamma": 0.5}, 16),
    ("two conv", {"gamma": 0.3}, 12),
    ("bits, conv", {"gamma": 0.3, "sign": "centered"}, 31),
    ("dense", {"margin": 0.2, "nudge": "constant"}, 31),
    ("bits", {"margin": 0.1}, 31),
]


@needs_wasmtime
@pytest.mark.parametrize(("case", "changes", "bits"), LEARNINGS)
def test_images_teach_the_engine_what_they_teach_python(case: str, changes: dict, bits: int):
    check_learning(case, changes, bits)


@pytest.mark.parametrize("case", ["bits", "bits, conv"])
def test_the_energy_of_bits_is_that_of_the_training_network_and_never_rises(case: str):
    recipe, network = build(*BINARY[case])
    whole, x = FixedNetwork(store(network, recipe)), images(recipe, 3)
    clamped, before = network.clamp(x), np.inf
    for state in whole.trace(x.numpy()):
        bits = [torch.from_numpy(whole.activity(layer)) for layer in state]
        found = whole.energy(x.numpy(), state) / 2**40
        # Gains and biases are rounded to 2^-40; float32 rounds a pixel's gain to 24 bits.
        np.testing.assert_allclose(found, energy(network, clamped, bits).numpy(), rtol=1e-6)
        assert (found <= before).all()
        before = found


@needs_wasmtime
def test_a_phase_by_hand_ends_where_learning_ends():
    """Free and nudged by single calls: the states that `learn` leaves behind."""
    learning = FixedRule(rule(3, sign="positive", tau=1.0), 31)
    by_hand, _, x = opened("dense", learning)
    whole, _, _ = opened("dense", learning)
    by_hand.call("start", by_hand.image(x[0]))
    free, nudged = learning.rule.plan.phases
    for _ in range(free.steps):
        by_hand.call("step")
    rest = by_hand.states
    for _ in range(nudged.steps):
        by_hand.call("pull", 3, learning.betas[1])
        by_hand.call("step_pulled")
    whole.call("learn", whole.image(x[0]), 3)
    assert np.array_equal(by_hand.states, whole.states)
    assert not np.array_equal(by_hand.states, rest)


@needs_wasmtime
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs ziglang (extra dev)")
def test_the_engine_that_ships_is_that_of_the_sources(tmp_path: Path):
    """Compiled again, the same bytes or, by another compiler, the same behaviour."""
    shipped = Path(web_page.__file__).parent / "web"
    spec = importlib.util.spec_from_file_location("build", shipped / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build(tmp_path)
    again = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert again.keys() == {path.name for path in shipped.glob("*.wasm")}
    if any(content != (shipped / name).read_bytes() for name, content in again.items()):
        check_relaxation("two conv", wasm=again["engine.wasm"])
        check_learning(*LEARNINGS[1], wasm=again["engine.wasm"])
        check_relaxation("bits", wasm=again["engine_bits.wasm"])
        check_learning(*LEARNINGS[-1], wasm=again["engine_bits.wasm"])


def test_a_page_of_a_run_stands_alone(tmp_path: Path):
    """One file: nothing in it names a place to load from; what it holds can be read back."""
    small = ["network.dense=[40]", "training.epochs=1", "training.batch_size=200"]
    run = runs.train(recipes.load("digits-1fc-wa", small), out=tmp_path, device="cpu")
    words = ["export", run.folder, "--to", tmp_path / "page", "--format", "web", "--vectors", "5"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "page").iterdir()
    page = path.read_text("utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|url\(|https?:|import """, page)
    assert not re.findall(r"@[A-Z]+@", page)
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', page).group(1))
    assert facts["layers"] == [[40], [100]] and len(facts["labels"]) == 5
    assert facts["origin"]["recipe"] == "digits-1fc-wa"
    images = base64.b64decode(re.search(r'id="images">(.*?)</script>', page).group(1))
    assert images == run.dataset(device="cpu").test.images[:5].numpy().tobytes()


def test_what_a_page_cannot_run_is_told(tmp_path: Path):
    recipe, network = build(*REAL["dense"])
    x, labels = images(recipe, 2).numpy(), np.zeros(2, int)
    with pytest.raises(BinepError, match="activations are real"):
        web_page.write(store(network, recipe), tmp_path, x, labels, FixedRule(rule(3)))
    recipe, network = build(*BINARY["dense"])
    stored = store(network, recipe)
    for shape, message in [((64,), "samples of shape"), ((64, 1, 1), "allowed are grey images")]:
        with pytest.raises(BinepError, match=message):
            other = replace(stored, image_shape=shape)
            web_page.write(other, tmp_path, x, labels, FixedRule(rule(3)))
    big = replace(stored, couplings=[dense(64, 70000), dense(70000, 30)])
    with pytest.raises(BinepError, match="70,030 neurons: allowed are at most 65,536"):
        web_page.network_file(FixedNetwork(big), FixedRule(rule(2)))
    for force in ({"beta": -40000.0}, {"margin": 40000.0}):
        with pytest.raises(BinepError, match="beta or margin of 40000 on a page"):
            web_page.network_file(FixedNetwork(stored), FixedRule(rule(3, **force), 31))


def dense(below: int, above: int) -> StoredCoupling:
    signs = np.ones((above, below), np.int8)
    return StoredCoupling("dense", below, above, signs=signs, scale=np.float32(1e-4))
