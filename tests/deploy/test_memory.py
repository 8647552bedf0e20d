"""Memory images: parsed back they are the network, and replayed they give the vectors' states."""

import re
from pathlib import Path

import numpy as np
import pytest
from test_runtime import BINARY, REAL, build, images

from binep.deploy import layout, memory
from binep.deploy.export import store
from binep.deploy.runtime import Runtime


def exported(case: tuple, folder: Path, count: int = 3):
    recipe, network = build(*case)
    stored, x = store(network, recipe), images(recipe, count).numpy()
    memory.write(stored, folder, x, np.arange(count))
    return stored, x


def read(path: Path) -> list[int]:
    """The words of a memory image."""
    return [int(line, 16) for line in path.read_text("ascii").split()]


def in_torch_order(coupling, below_shape, rows: np.ndarray) -> np.ndarray:
    """The inverse of `layout.synapses`: rows back to the shape of the weight."""
    if coupling.kind == "conv":
        side = coupling.kernel
        return rows.reshape(coupling.above, side, side, coupling.below).transpose(0, 3, 1, 2)
    if len(below_shape) == 3:
        channels, height, width = below_shape
        rows = rows.reshape(coupling.above, height, width, channels).transpose(0, 3, 1, 2)
    return rows.reshape(coupling.weight_shape)


def bits(words: list[int], width: int) -> np.ndarray:
    return np.array([[word >> k & 1 for k in range(width)] for word in words], bool)


def signed(words: list[int]) -> np.ndarray:
    return np.array([word - (word >> 63 << 64) for word in words], object)


@pytest.mark.parametrize("case", ["dense", "two conv"])
def test_weights_come_back(case: str, tmp_path: Path):
    stored, _ = exported(BINARY[case], tmp_path)
    for n, coupling in enumerate(stored.couplings):
        rows = bits(read(tmp_path / f"coupling{n}_weights.mem"), coupling.fan_in)
        back = in_torch_order(coupling, stored.shapes[n], np.where(rows, 1, -1))
        assert np.array_equal(back, coupling.signs)


def test_a_dense_network_replayed_from_its_files_alone(tmp_path: Path):
    """Exact integers of any size, straight from the README: two hidden layers, every step."""
    stored, x = exported(BINARY["dense"], tmp_path)
    words = {path.stem: read(path) for path in tmp_path.glob("*.mem")}
    sizes, steps, half = (70, 40, 30), stored.steps, 1 << 23
    weights = [
        np.where(bits(words[f"coupling{n}_weights"], fan), 1, -1)
        for n, fan in enumerate((64, 70, 40))
    ]
    up, down, bias = (
        [signed(words[f"coupling{n}_{part}"]) for n in range(3)]
        for part in ("scale_up", "scale_down", "bias")
    )
    states = np.array(words["vectors_states"]).reshape(len(x), steps + 1, sum(sizes))
    active = bits(words["vectors_activity"], sum(sizes)).reshape(states.shape)
    pixels = np.array(words["vectors_pixels"]).reshape(len(x), 64)
    assert np.array_equal(pixels, x.reshape(len(x), 64))
    for vector in range(len(x)):
        layers = [np.full(size, 1 << 24, object) for size in sizes]
        for t in range(steps + 1):
            now = np.concatenate(layers).astype(np.int64)
            assert np.array_equal(states[vector, t], now)
            assert np.array_equal(active[vector, t], now >= half)
            sent = [pixels[vector], *((layer >= half).astype(int) for layer in layers)]
            moved = []
            for n, layer in enumerate(layers):
                drive = up[n] * (weights[n] @ sent[n]).astype(object) + bias[n]
                if n < 2:
                    drive = drive + down[n + 1] * (sent[n + 2] @ weights[n + 1]).astype(object)
                total = layer + np.array([int(each) >> 16 for each in drive], object)
                moved.append(np.array([min(max(s >> 1, 0), 1 << 24) for s in total], object))
            layers = moved
        score = states[vector, -1, -30:].reshape(10, 3).sum(1)
        assert words["vectors_expected"][vector] == score.argmax()
    assert words["vectors_labels"] == [0, 1, 2]


@pytest.mark.parametrize("case", [BINARY["dense, narrow window"], REAL["conv"]])
def test_networks_in_float32_give_the_bits_of_their_states(case: tuple, tmp_path: Path):
    stored, x = exported(case, tmp_path)
    states = np.array(read(tmp_path / "vectors_states.mem"), np.uint32).view(np.float32)
    states = states.reshape(len(x), stored.steps + 1, -1)
    expected = np.concatenate([layout.neurons(s) for s in Runtime(stored).relax(x)], axis=1)
    assert np.array_equal(states[:, -1], expected)
    assert (tmp_path / "vectors_activity.mem").exists() == stored.binary


def test_the_readme_names_every_file_with_its_width(tmp_path: Path):
    exported(BINARY["two conv"], tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "@" not in text
    for path in tmp_path.glob("*.mem"):
        width, lines = re.search(rf"`{path.name}` \| (\d+) \| (\d+) \|", text).groups()
        content = path.read_text().split()
        assert len(content) == int(lines)
        assert {len(line) for line in content} == {-(-int(width) // 4)}
