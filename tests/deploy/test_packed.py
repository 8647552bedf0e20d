"""The packed file: what goes in comes out, nothing is wasted, and no damage goes unnoticed."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from binep.deploy import packed
from binep.deploy.export import store
from binep.deploy.stored import StoredNetwork
from binep.errors import BinepError
from binep.training import recipe as recipes
from conftest import small_recipe


def stored(name: str, *overrides: str) -> StoredNetwork:
    recipe = recipes.load(name, [*overrides]) if name.startswith("mnist") else small_recipe(name)
    network = recipe.build_network(torch.Generator().manual_seed(1))
    return store(network, recipe, origin={"recipe": recipe.name, "seed": 1})


WHOLE = packed.dumps(stored("digits-conv-wa"))


def assert_equal(a: StoredNetwork, b: StoredNetwork) -> None:
    for name in vars(a):
        if name != "couplings":
            assert getattr(a, name) == getattr(b, name), name
    for one, other in zip(a.couplings, b.couplings, strict=True):
        for name, value in vars(one).items():
            assert np.array_equal(value, getattr(other, name)), name


@pytest.mark.parametrize("name", ["digits-1fc-w", "digits-conv-wa"])
def test_a_network_comes_back_as_it_was(name: str, tmp_path: Path):
    network = stored(name)
    packed.save(network, tmp_path / "net.safetensors")
    assert_equal(packed.load(tmp_path / "net.safetensors"), network)


def test_real_weights_and_a_normalised_input_come_back():
    rates = [f"optimizer.{name}=0.1" for name in ("lr_weight", "lr_bias", "gamma")]
    recipe = recipes.load("cifar10-conv-fp", ["network.conv=[2]", "network.pool=4", *rates])
    network = store(recipe.build_network(), recipe)
    back = packed.loads(packed.dumps(network))
    assert_equal(back, network)
    assert back.mean == pytest.approx((0.4914, 0.4822, 0.4465))


def test_the_file_is_little_larger_than_what_is_in_it():
    """Within 2 %; the header of some 1.5 kB weighs more only in networks below 75 kB."""
    network = stored("mnist-1fc-w", "network.dense=[1024]")
    information = (784 * 1024 + 1024 * 10) / 8 + 4 * (2 + 1024 + 10)
    assert len(packed.dumps(network)) <= 1.02 * information


def test_any_reader_of_safetensors_can_open_it():
    network = stored("digits-conv-wa")
    tensors = safetensors.numpy.load(WHOLE)
    bits = np.unpackbits(tensors["couplings.1.bits"], bitorder="little")
    signs = network.couplings[1].signs.reshape(-1)
    assert np.array_equal(2 * bits[: signs.size].astype(int) - 1, signs)
    assert np.array_equal(tensors["couplings.0.scale"], network.couplings[0].scale)


def test_the_same_network_gives_the_same_file():
    assert packed.dumps(stored("digits-conv-wa")) == WHOLE


@settings(max_examples=400, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), change=st.integers(1, 255), header=st.booleans())
def test_any_byte_changed_is_an_error(at: int, change: int, header: bool):
    """Half of the bytes are taken from the header, where a change is most likely to mislead."""
    at = at % (8 + int.from_bytes(WHOLE[:8], "little")) if header else at
    damaged = bytearray(WHOLE)
    damaged[at] ^= change
    with pytest.raises(BinepError):
        packed.loads(bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(size=st.integers(0, len(WHOLE) - 1))
def test_any_truncation_is_an_error(size: int):
    with pytest.raises(BinepError):
        packed.loads(WHOLE[:size])


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200), extra=st.binary(min_size=1, max_size=40))
def test_foreign_files_and_appended_bytes_are_errors(content: bytes, extra: bytes):
    for wrong in (
        content,
        WHOLE + extra,
        WHOLE[:8] + content,
        len(content).to_bytes(8, "little") + content,
    ):
        with pytest.raises(BinepError):
            packed.loads(wrong)


def test_errors_say_what_is_wrong(tmp_path: Path):
    path = tmp_path / "net.safetensors"
    with pytest.raises(BinepError, match=r"net\.safetensors: there is no such file"):
        packed.load(path)
    safetensors.numpy.save_file({"a": np.zeros(3)}, path)
    with pytest.raises(BinepError, match="not a packed model: no format 'binep-packed'"):
        packed.load(path)
    path.write_bytes(b"PK\x03\x04 something else entirely")
    with pytest.raises(BinepError, match="does not begin like a safetensors file"):
        packed.load(path)
    path.write_bytes(WHOLE[:-1])
    with pytest.raises(BinepError, match="damaged, truncated or altered: its SHA-256"):
        packed.load(path)
    with pytest.raises(BinepError, match="version '2', this binep reads 1"):
        packed.loads(WHOLE.replace(b'"version":"1"', b'"version":"2"'))
