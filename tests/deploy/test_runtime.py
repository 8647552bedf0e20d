"""The numpy runtime: the training network's states and predictions, without torch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import binep
from binep.data import DATASETS
from binep.deploy import packed
from binep.deploy.export import store
from binep.deploy.runtime import Runtime
from binep.errors import BinepError
from binep.training import recipe as recipes

DENSE_WA = ["network.dense=[70, 40]", "network.per_class=3"]
CONV_WA = ["network.conv=[5, 70]", "network.kernel=3", "network.padding=1", "network.pool=[2, 1]"]
BITS = ["network.dynamics=hopfield", "network.initial_state=1", "learning.beta=0.7"]
BINARY = {
    "dense": ("digits-1fc-wa", DENSE_WA),
    "dense, narrow window": ("digits-1fc-wa", [*DENSE_WA, "network.sigma=0.3"]),
    "dense, other dt and threshold": (
        "digits-1fc-wa",
        [*DENSE_WA, "network.dt=0.3", "network.threshold=0.4", "network.sigma=0.7"],
    ),
    "bits": ("digits-1fc-wa", [*DENSE_WA, *BITS]),
    "bits, conv": ("digits-conv-wa", [*CONV_WA, *BITS]),
    "bits, other threshold": ("digits-conv-wa", [*CONV_WA, *BITS, "network.threshold=0.4"]),
    "conv": ("digits-conv-wa", ["network.conv=[6]"]),
    "two conv": ("digits-conv-wa", CONV_WA),
    "pooled conv": (
        "digits-conv-wa",
        ["network.conv=[24, 3]", "network.kernel=3", "network.padding=1", "network.pool=2"],
    ),
    "wide padding": (
        "digits-conv-wa",
        ["network.conv=[6, 3]", "network.kernel=2", "network.padding=[0, 3]"],
    ),
}
REAL = {
    "dense": ("digits-1fc-w", ["network.dense=[60, 30]"]),
    "conv": ("digits-conv-w", ["network.conv=[6, 8]"]),
    "dense, alternating": (
        "digits-1fc-w",
        ["network.dense=[60, 30]", "network.updates=alternating"],
    ),
    "conv, alternating": (
        "digits-conv-w",
        ["network.conv=[6, 8]", "network.updates=alternating", "learning.free_steps=20"],
    ),
    "energy": ("digits-1fc-w", ["network.dense=[60]", "network.dynamics=energy"]),
    "real weights": (
        "digits-conv-w",
        ["network.conv=[6]", "network.weights=real", "optimizer.lr_weight=0.1"],
    ),
    "cross-entropy": ("digits-1fc-w", ["network.dense=[60]", "network.cost=cross_entropy"]),
}


RATES = [f"optimizer.{rate}" for rate in ("gamma=1e-4", "tau=1e-6", "lr_bias=0.01")]


def build(name: str, overrides: list[str]):
    recipe = recipes.load(name, [*RATES, *overrides])
    source = torch.Generator().manual_seed(3)
    network = recipe.build_network(source)
    with torch.no_grad():
        for coupling in network.couplings:
            # Random pixels and fresh weights drive neurons far less than digits and learnt ones
            # do: with larger scales and biases predictions differ from image to image.
            coupling.bias.add_(0.1 * torch.randn(coupling.bias.shape, generator=source))
            if coupling.binary:
                coupling.scale.mul_(2)
    return recipe, network


def images(recipe, count: int = 21) -> torch.Tensor:
    shape = DATASETS[recipe.data.name].image_shape
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8)


def relaxed(recipe, network, x: torch.Tensor):
    return binep.relax(network, x, network.initial(x), recipe.learning.free_steps).state


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("case", BINARY)
def test_binary_states_are_those_of_the_training_network(case: str, kernels: bool):
    recipe, network = build(*BINARY[case])
    x = images(recipe)
    runtime = Runtime(store(network, recipe), kernels=kernels)
    for pixels in (x, x.float() / 255):
        expected = relaxed(recipe, network, pixels)
        assert any(0 < float(s.mean()) < 1 for s in expected)
        # Sums over real inputs are taken in the order of whatever library multiplies matrices.
        rounding = 0.0 if pixels is x else 1e-6
        for mine, theirs in zip(runtime.relax(pixels.numpy()), expected, strict=True):
            assert mine.dtype == np.float32
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=0, atol=rounding)
    for readout in ("average", "single"):
        expected = network.predict(relaxed(recipe, network, x), readout)
        assert np.array_equal(runtime.predict(x.numpy(), readout), expected)


@pytest.mark.parametrize("case", REAL)
def test_real_activations_give_the_same_predictions(case: str):
    recipe, network = build(*REAL[case])
    x = images(recipe)
    runtime = Runtime(store(network, recipe))
    expected = relaxed(recipe, network, x)
    for mine, theirs in zip(runtime.relax(x.numpy()), expected, strict=True):
        # Sums in another order, in float32, over some steps.
        np.testing.assert_allclose(mine, theirs.numpy(), atol=1e-4)
    assert np.array_equal(runtime.predict(x.numpy()), network.predict(expected))


def test_normalised_pixels_are_normalised_as_in_training():
    recipe = recipes.load("cifar10-conv-w", ["network.conv=[4]", "network.pool=4", *RATES])
    network = store(recipe.build_network(), recipe)
    pixels = images(recipe, 5)
    source = DATASETS["cifar10"]
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (source.mean, source.std))
    expected = (pixels.float() / 255 - mean) / std
    assert np.array_equal(network.inputs(pixels.numpy()), expected.numpy())
    assert np.array_equal(network.inputs(expected.numpy()), expected.numpy())


def test_a_trace_begins_at_rest_and_ends_where_relax_does():
    recipe, network = build(*BINARY["conv"])
    runtime, x = Runtime(store(network, recipe)), images(recipe, 4).numpy()
    states = list(runtime.trace(x))
    assert len(states) == recipe.learning.free_steps + 1
    assert all((s == 1).all() for s in states[0])
    for mine, theirs in zip(states[-1], runtime.relax(x), strict=True):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(states[3][0], runtime.relax(x, steps=3)[0])


def test_a_large_batch_is_taken_in_parts():
    recipe, network = build(*BINARY["dense"])
    runtime, x = Runtime(store(network, recipe)), images(recipe, 600).numpy()
    parts = [runtime.predict(x[:7]), runtime.predict(x[7:])]
    assert np.array_equal(runtime.predict(x), np.concatenate(parts))


def test_torch_is_never_imported(tmp_path: Path):
    recipe, network = build(*BINARY["two conv"])
    path = tmp_path / "net.safetensors"
    packed.save(store(network, recipe), path)
    code = (
        "import sys, numpy as np, binep\n"
        f"net = binep.load({str(path)!r})\n"
        "x = np.random.default_rng(0).integers(0, 256, (2, 1, 8, 8), dtype=np.uint8)\n"
        "print(net.predict(x).shape, len(net.relax(x)))\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["(2,)", "3"]


def test_wrong_images_are_refused():
    recipe, network = build(*BINARY["dense"])
    runtime = Runtime(store(network, recipe))
    with pytest.raises(
        BinepError, match=r"images of shape \(2, 9\).*allowed is \(batch, 1, 8, 8\)"
    ):
        runtime.predict(np.zeros((2, 9), np.uint8))
    with pytest.raises(BinepError, match="dtype int64"):
        runtime.predict(np.zeros((2, 64), np.int64))
    with pytest.raises(BinepError, match="NaN"):
        runtime.predict(np.full((1, 64), np.nan))
    with pytest.raises(BinepError, match="at least 1"):
        runtime.predict(np.zeros((0, 64), np.uint8))
    with pytest.raises(BinepError, match="unknown readout 'median'"):
        runtime.predict(np.zeros((1, 64), np.uint8), "median")
    real = Runtime(store(*reversed(build(*REAL["dense"]))))
    with pytest.raises(BinepError, match="activations are real"):
        Runtime(real.network, kernels=True)
