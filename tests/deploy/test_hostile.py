"""Packed files under a good seal that say what they may not: refused before anything is used."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from binep.deploy import allowed, packed
from binep.deploy.export import store
from binep.deploy.runtime import Runtime
from binep.errors import BinepError
from conftest import small_recipe
from forging import altered, forged, parts_of


def file_of(name: str, *overrides: str) -> bytes:
    recipe = small_recipe(name, *overrides)
    return packed.dumps(store(recipe.build_network(torch.Generator().manual_seed(1)), recipe))


BITS = file_of("digits-conv-wa")
REAL = file_of("digits-1fc-w")


def whole(**values: Any):
    return lambda network, header: network.update(values)


def coupling(n: int, **values: Any):
    return lambda network, header: network["couplings"][n].update(values)


def tensor(name: str, **values: Any):
    return lambda network, header: header[name].update(values)


REFUSED = [
    (whole(steps=10**12), "steps=1000000000000: allowed is integer, 1 to 100000"),
    (whole(steps=0), "steps=0"),
    (whole(steps=6.0), "steps=6.0"),
    (whole(steps=True), "steps=True"),
    (whole(steps="6"), "steps='6'"),
    (whole(steps=None), "steps=None"),
    (whole(sigma=0), "sigma=0"),
    (whole(sigma=-0.5), "sigma=-0.5"),
    (whole(sigma=1e-40), "sigma=1e-40"),
    (whole(sigma=1e300), "sigma=1e"),
    (whole(dt=0), "dt=0"),
    (whole(dt=1.5), "dt=1.5"),
    (whole(dt=-1), "dt=-1"),
    (whole(threshold="0.5"), "threshold='0.5'"),
    (whole(threshold=[0.5]), "threshold=[0.5]"),
    (whole(threshold=10**400), "threshold=1000"),
    (whole(initial_state=1e30), "initial_state=1e+30"),
    (whole(initial_state=None), "initial_state=None"),
    (whole(classes=-10, per_class=-2), "classes=-10"),
    (whole(classes=0), "classes=0"),
    (whole(classes=10.0), "classes=10.0"),
    (whole(classes=2**40), "classes=1099511627776"),
    (whole(per_class=3), "does not fit 10 classes of 3"),
    (whole(per_class=0), "per_class=0"),
    (whole(readout="best"), "readout='best'"),
    (whole(cost="cross_entropy"), "cost='cross_entropy'"),
    (whole(activations="ternary"), "activations='ternary'"),
    (whole(activations=["binary"]), "activations=['binary']"),
    (whole(dynamics="quantum"), "dynamics='quantum'"),
    (whole(updates="at-will"), "updates='at-will'"),
    (whole(dynamics="hopfield"), "dynamics='hopfield'"),
    (whole(input_shape=[1, 8]), "input_shape=[1, 8]"),
    (whole(input_shape=[]), "input_shape=[]"),
    (whole(input_shape=[64]), "on a layer (64,)"),
    (whole(input_shape=[1, 8, -8]), "input_shape=[1, 8, -8]"),
    (whole(input_shape="188"), "input_shape='188'"),
    (whole(input_shape=[1, 8.0, 8]), "input_shape=[1, 8.0, 8]"),
    (whole(input_shape=[1, 16, 8]), "do not fit the input"),
    (whole(input_shape=[1, 2**24, 2**24], image_shape=[1, 2**24, 2**24]), "neurons before"),
    (whole(image_shape=[1, 64]), None),
    (whole(image_shape=[2, 64]), "do not fit the input"),
    (whole(image_shape=[0, 8, 8]), "image_shape=[0, 8, 8]"),
    (whole(image_shape=None), "image_shape=None"),
    (whole(mean=[0.5]), "allowed are both null, or 1 numbers"),
    (whole(mean=[], std=[]), "mean=[]"),
    (whole(mean=[0.5, 0.5], std=[0.5, 0.5]), "or 1 numbers"),
    (whole(mean=[0.5], std=[0.0]), "std=[0.0]"),
    (whole(mean=["0.5"], std=[1.0]), "mean=['0.5']"),
    (whole(mean=[1e300], std=[1.0]), "mean=[1e+300]"),
    (whole(mean=0.5, std=1.0), "mean=0.5"),
    (whole(origin=None), "origin=None"),
    (whole(couplings=[]), "couplings=[]"),
    (whole(couplings={}), "couplings={}"),
    (whole(couplings=[1, 2, 3]), "couplings=[1, 2, 3]"),
    (whole(couplings=[{}] * 101), "list of 1 to 100, each object"),
    (whole(couplings=[{}]), "coupling 0 lacks kind"),
    (whole(surprise=1), "the network has 'surprise'"),
    (lambda network, header: network.pop("steps"), "the network lacks steps"),
    (lambda network, header: network["couplings"].pop(), "does not fit"),
    (lambda network, header: network["couplings"][1].pop("pool"), "coupling 1 lacks pool"),
    (coupling(0, pool=0), "pool=0"),
    (coupling(0, pool=-1), "pool=-1"),
    (coupling(0, pool=100), "leaves nothing"),
    (coupling(0, pool=1.0), "pool=1.0"),
    (coupling(0, kernel=0), "kernel=0"),
    (coupling(0, kernel=9), "leaves nothing"),
    (coupling(0, kernel=10**9), "kernel=1000000000"),
    (coupling(0, padding=-1), "padding=-1"),
    (coupling(0, padding=10**6), "padding=1000000"),
    (coupling(0, padding=4096, pool=4096), "neurons before pooling"),
    (coupling(0, above=5), "channels on a layer"),
    (coupling(0, above=-4), "above=-4"),
    (coupling(0, above=2**62), "above=4611686018427387904"),
    (coupling(0, above=4.0), "above=4.0"),
    (coupling(0, below=0), "below=0"),
    (coupling(0, kind="sparse"), "kind='sparse'"),
    (coupling(0, kind="dense"), "a dense coupling: allowed are kernel=1"),
    (coupling(2, kind="conv"), "conv coupling"),
    (coupling(2, kernel=3), "a dense coupling: allowed are kernel=1"),
    (coupling(0, weights="real"), "couplings.0.weight is missing"),
    (coupling(0, weights=1), "weights=1"),
    (coupling(0, bias=False), "unknown tensors couplings.0.bias"),
    (coupling(0, bias=1), "bias=1"),
    (tensor("couplings.0.bias", dtype="F64"), "tensor 'couplings.0.bias': allowed are a dtype"),
    (tensor("couplings.0.bias", dtype=None), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", shape=[2, 2]), "couplings.0.bias is float32 of shape (2, 2)"),
    (tensor("couplings.0.bias", shape=[-4]), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", shape=[-2, -2]), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", shape=4), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", shape=[4.0]), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", shape=[1] * 70 + [4]), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", shape=[0, 2**60]), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", shape=[2**40]), "does not fit its bytes"),
    (tensor("couplings.0.bias", data_offsets=[0]), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", data_offsets=[0, "16"]), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", data_offsets=[-16, 0]), "tensor 'couplings.0.bias'"),
    (tensor("couplings.0.bias", data_offsets=[0, 2**70]), "does not fit its bytes"),
    (tensor("couplings.0.bias", more=1), "tensor 'couplings.0.bias'"),
    (lambda network, header: header.update(other=7), "tensor 'other'"),
    (lambda network, header: header.pop("couplings.0.scale"), "does not fit its bytes"),
    (
        lambda network, header: header.update(more=header.pop("couplings.0.bias")),
        "couplings.0.bias is missing",
    ),
]


@pytest.mark.parametrize(("change", "told"), REFUSED)
def test_a_forged_file_is_refused_in_one_line_and_takes_no_memory(change, told: str | None):
    content = altered(BITS, change)
    if told is None:  # an image may have any shape of as many pixels
        assert Runtime(packed.loads(content)).predict(np.zeros((1, 1, 64), np.uint8)).shape == (1,)
        return
    tracemalloc.start()
    try:
        with pytest.raises(BinepError) as error:
            packed.loads(content)
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()
    assert told in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("name", ["couplings.0.scale", "couplings.1.bias"])
def test_parameters_that_are_no_numbers_are_refused(name: str, value: float):
    network, header, data = parts_of(REAL)
    begin = header[name]["data_offsets"][0]
    wrong = data[:begin] + np.float32(value).tobytes() + data[begin + 4 :]
    with pytest.raises(BinepError, match=f"{name} holds numbers beyond"):
        packed.loads(forged(network, header, wrong))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[" * 100_000,
        '{"steps": NaN}',
        '{"steps": 1, "steps": 2}',
        '{"steps": ' + "9" * 5000 + "}",
    ],
)
def test_a_description_that_is_no_object_is_refused(text: str):
    _, header, data = parts_of(BITS)
    with pytest.raises(BinepError, match="its network is not"):
        packed.loads(forged(text, header, data))


def test_bytes_behind_the_last_tensor_are_refused_under_a_good_seal():
    network, header, data = parts_of(BITS)
    with pytest.raises(BinepError, match="4 bytes behind the last tensor"):
        packed.loads(forged(network, header, data + b"more"))


def test_bits_behind_the_last_weight_are_refused():
    network, header, data = parts_of(BITS)
    stop = header["couplings.0.bits"]["data_offsets"][1]
    last = data[stop - 1] | 0x80
    with pytest.raises(BinepError, match="bits set behind its last weight"):
        packed.loads(forged(network, header, data[: stop - 1] + bytes([last]) + data[stop:]))


def test_a_network_that_takes_for_ever_is_refused():
    """Each number is allowed; what a free phase would take of them is not."""

    def change(network, header):
        network.update(steps=100_000, input_shape=[1, 2000, 2000], image_shape=[1, 2000, 2000])
        network["couplings"][0].update(pool=1)
        network["couplings"][1].update(pool=1)

    with pytest.raises(BinepError, match="allowed are at most"):
        packed.loads(altered(BITS, change))


def test_a_pipe_is_no_packed_file(tmp_path: Path):
    import os

    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes in folders on this system")
    os.mkfifo(tmp_path / "net.safetensors")
    with pytest.raises(BinepError, match="it is not a file"):
        packed.load(tmp_path / "net.safetensors")


def test_the_documentation_has_every_key_and_what_it_may_hold():
    text = (Path(__file__).parents[2] / "docs/format.md").read_text()
    for name, kind in {**allowed.NETWORK, **allowed.COUPLING}.items():
        assert re.search(rf"^\| `{name}` \|.*\| {re.escape(str(kind))} \|$", text, re.M), name
