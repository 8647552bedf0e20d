"""Memory images: parsed back they are the network, and replayed they give the vectors' states."""

import re
from pathlib import Path

import numpy as np
import pytest
from image_reader import Images, bits
from test_runtime import BINARY, REAL, build, images

from binep.deploy import layout, memory
from binep.deploy.export import store
from binep.deploy.runtime import Runtime


def exported(case: tuple, folder: Path, count: int = 3):
    recipe, network = build(*case)
    stored, x = store(network, recipe), images(recipe, count).numpy()
    memory.write(stored, folder, x, np.arange(count))
    return stored, x


@pytest.mark.parametrize("case", ["dense", "conv", "two conv", "pooled conv", "wide padding"])
def test_a_reader_of_the_readme_relaxes_the_network_to_the_same_states(case: str, tmp_path: Path):
    stored, x = exported(BINARY[case], tmp_path, 2)
    read = Images(tmp_path)
    neurons = sum(np.prod(shape) for shape in stored.layer_shapes)
    states = np.array(read.words["vectors_states"]).reshape(len(x), stored.steps + 1, neurons)
    active = bits(read.words["vectors_activity"], neurons).reshape(states.shape)
    pixels = np.array(read.words["vectors_pixels"]).reshape(len(x), -1)
    assert np.array_equal(pixels, x.reshape(len(x), -1))
    assert np.array_equal(active, states >= 1 << (read.state_bits - 1))
    for vector in range(len(x)):
        found = read.relax(pixels[vector])
        assert np.array_equal(states[vector], found)
        assert read.predict(found[-1]) == read.words["vectors_expected"][vector]
    assert read.words["vectors_labels"] == [0, 1]
    assert "coupling0_scale_down" not in read.words, "nothing is sent down to the input"


@pytest.mark.parametrize("case", ["bits", "bits, conv"])
def test_a_reader_of_the_readme_relaxes_bits_to_the_same_ones(case: str, tmp_path: Path):
    stored, x = exported(BINARY[case], tmp_path, 2)
    read = Images(tmp_path)
    assert "vectors_states" not in read.words
    neurons = sum(np.prod(shape) for shape in stored.layer_shapes)
    active = bits(read.words["vectors_activity"], neurons).reshape(len(x), stored.steps + 1, -1)
    pixels = np.array(read.words["vectors_pixels"]).reshape(len(x), -1)
    ends = np.array(read.words["vectors_outputs"], np.uint64).astype(np.int64).reshape(len(x), -1)
    for vector in range(len(x)):
        found, outputs = read.settle(pixels[vector])
        assert np.array_equal(active[vector], found)
        assert np.array_equal(ends[vector], outputs)
        assert read.predict(outputs) == read.words["vectors_expected"][vector]


@pytest.mark.parametrize("case", [BINARY["dense, narrow window"], REAL["conv"]])
def test_networks_in_float32_give_the_bits_of_their_states(case: tuple, tmp_path: Path):
    stored, x = exported(case, tmp_path)
    words = [int(line, 16) for line in (tmp_path / "vectors_states.mem").read_text().split()]
    states = np.array(words, np.uint32).view(np.float32)
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
