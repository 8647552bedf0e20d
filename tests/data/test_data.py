"""Data sets, without any network: small sets of the real formats, served by a server of our own."""

import errno
import gzip
import hashlib
import io
import os
import signal
import struct
import sys
import tarfile
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from binep import data, registry
from binep.data import finding
from binep.errors import BinepError

REAL = os.environ.get("BINEP_DATA")  # read before the tests put it out of their way

# ---------------------------------------------------------------------- small sets of every format


def idx(array: np.ndarray) -> bytes:
    """An IDX file as Yann LeCun's page defines it: 0, 0, type, rank, sizes, bytes."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def sha256(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def idx_arrays(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 256, (count, 6, 5), np.uint8) for count in (30, 12)]
    labels = [rng.integers(0, 10, count, np.uint8) for count in (30, 12)]
    return [images[0], labels[0], images[1], labels[1]]


MNIST_ARRAYS, FASHION_ARRAYS = idx_arrays(0), idx_arrays(1)
NAMES = [file.name for file in data.MNIST.files]
MNIST = dict(zip(NAMES, map(idx, MNIST_ARRAYS), strict=True))
FASHION = dict(zip(NAMES, map(idx, FASHION_ARRAYS), strict=True))
FASHION_GZ = {name: gzip.compress(blob, mtime=1) for name, blob in FASHION.items()}

RECORDS = np.random.default_rng(2).integers(0, 256, (3, 4, 3073), np.uint8)
RECORDS[:, :, 0] %= 10
CIFAR: dict[str, bytes] = dict(
    zip(
        ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"),
        (batch.tobytes() for batch in RECORDS),
        strict=True,
    )
)


def tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, blob in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(blob)
            archive.addfile(member, io.BytesIO(blob))
    return buffer.getvalue()


def cifar_tar(**changed: bytes) -> bytes:
    """The archive as published, in a folder and with a readme; `changed` by first part of name."""
    blobs = {name: changed.get(name.removesuffix(".bin"), blob) for name, blob in CIFAR.items()}
    readme = {"cifar-10-batches-bin/readme.html": b"<html>"}
    return tar_gz(readme | {f"cifar-10-batches-bin/{name}": blob for name, blob in blobs.items()})


@pytest.fixture(autouse=True)
def small_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put small sets in the place of the real ones, and the user's own folders out of the way."""
    monkeypatch.delenv("BINEP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    sizes: dict[str, Any] = {"counts": (30, 12), "size": (6, 5)}
    mnist = data.idx_files(**sizes, sha256=[sha256(blob) for blob in MNIST.values()])
    fashion = data.idx_files(
        **sizes,
        gz_sha256=[sha256(blob) for blob in FASHION_GZ.values()],
        md5=[hashlib.md5(blob).hexdigest() for blob in FASHION.values()],
    )
    cifar = tuple(data.File(name, (4, 3073), sha256=sha256(blob)) for name, blob in CIFAR.items())
    nowhere = ("http://127.0.0.1:9/",)
    for source, files in (
        (data.MNIST, mnist),
        (data.FASHION_MNIST, fashion),
        (data.CIFAR10, cifar),
    ):
        small = replace(source, files=files, mirrors=nowhere)
        use(monkeypatch, small)


def use(monkeypatch: pytest.MonkeyPatch, source: data.Source) -> None:
    """Let a source stand for the built-in one of its name."""
    _, _, constant = registry.BUILT_IN["binep.datasets"][source.name].partition(":")
    monkeypatch.setattr(f"binep.data.sources.{constant}", source)


def put(folder: Path, files: dict[str, bytes], suffix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in files.items():
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(blob) if suffix else blob)
    return folder


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(BinepError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def assert_is_small_mnist(dataset: data.Dataset) -> None:
    images, labels, test_images, test_labels = map(torch.tensor, MNIST_ARRAYS)
    assert torch.equal(dataset.train.images, images[:, None])
    assert torch.equal(dataset.train.labels, labels.long())
    assert torch.equal(dataset.test.images, test_images[:, None])
    assert torch.equal(dataset.test.labels, test_labels.long())


# ------------------------------------------------------------------------------------------ digits


def test_digits_are_all_there_in_their_fixed_order() -> None:
    digits = data.load("digits")
    images = torch.cat([digits.train.images, digits.test.images])
    labels = torch.cat([digits.train.labels, digits.test.labels])
    assert (digits.name, digits.classes, digits.image_shape) == ("digits", 10, (1, 8, 8))
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert set(images.unique().tolist()) == {round(v * 255 / 16) for v in range(17)}
    assert digits.train.labels.bincount().tolist() == [
        139, 145, 130, 155, 139, 150, 144, 152, 144, 139,
    ]  # fmt: skip
    assert digits.test.labels.bincount().tolist() == [39, 37, 47, 28, 42, 32, 37, 27, 30, 41]
    fixed = "e64182d9219a985a4108c46a9201ae7f9a457d7d41e132a3f3b5a6abb9ade77c"
    assert sha256(images.numpy().tobytes()) == fixed
    fixed = "99c3fa75ee18cae97ff47da2ffc12fc2b86fb210c20b266cdf6a1fad9496e10b"
    assert sha256(labels.to(torch.uint8).numpy().tobytes()) == fixed


def test_digits_are_those_of_scikit_learn() -> None:
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(1797)
    digits = data.load("digits")
    images = torch.cat([digits.train.images, digits.test.images]).numpy()[:, 0]
    assert np.array_equal(images, np.round(theirs.images[order] * 255 / 16))
    labels = torch.cat([digits.train.labels, digits.test.labels]).numpy()
    assert np.array_equal(labels, theirs.target[order])


def test_digits_carry_their_origin_and_licence() -> None:
    (path,) = data.fetch("digits")
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert "UCI" in metadata["origin"]
    assert "CC BY 4.0" in metadata["licence"]


def test_damaged_digits_ask_for_a_new_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(finding, "__file__", str(tmp_path / "finding.py"))
    assert "reinstall binep" in error_of(lambda: data.load("digits"))
    (tmp_path / "digits.safetensors").write_bytes(b"\0" * 117453)
    for call in (data.load, data.fetch):
        message = error_of(lambda call=call: call("digits"))
        assert "digits.safetensors" in message
        assert "reinstall binep" in message
    assert data.check("digits")[0].status.startswith("damaged: it was altered")


# ------------------------------------------------------------------------------ what is handed over


def test_holdout_takes_the_last_training_images_and_no_test_image() -> None:
    digits = data.load("digits")
    held = digits.holdout(400)
    assert torch.equal(held.train.images, digits.train.images[:1037])
    assert torch.equal(held.train.labels, digits.train.labels[:1037])
    assert torch.equal(held.test.images, digits.train.images[1037:])
    assert torch.equal(held.test.labels, digits.train.labels[1037:])


@pytest.mark.parametrize("count", [-1, 0, 1437, 2000])
def test_holdout_must_leave_something_on_both_sides(count: int) -> None:
    message = error_of(lambda: data.load("digits").holdout(count))
    assert f"hold out {count} of the 1437" in message
    assert "1 to 1436" in message


def test_first_takes_the_first_training_images_and_all_test_images() -> None:
    held = data.load("digits").holdout(400)
    few = held.first(30)
    assert torch.equal(few.train.images, held.train.images[:30]) and len(few.train.labels) == 30
    assert few.test is held.test
    assert "cannot take 1038 of the 1037" in error_of(lambda: held.first(1038))


def test_inputs_without_normalisation_are_the_pixels_themselves() -> None:
    digits = data.load("digits")
    assert digits.inputs(digits.test.images) is digits.test.images


def test_inputs_of_cifar10_are_normalised_channel_by_channel(tmp_path: Path) -> None:
    cifar = data.load("cifar10", data_dir=put(tmp_path, CIFAR), offline=True)
    assert (cifar.mean, cifar.std) == ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
    inputs = cifar.inputs(cifar.test.images)
    assert inputs.dtype == torch.float32
    for channel, (mean, std) in enumerate(
        zip((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261), strict=True)
    ):
        expected = (cifar.test.images[:, channel].double() / 255 - mean) / std
        # Three float32 operations on numbers of order 1.
        assert torch.allclose(inputs[:, channel].double(), expected, atol=1e-6)


def test_an_impossible_device_is_one_line() -> None:
    assert "device 'nonsense'" in error_of(lambda: data.load("digits", device="nonsense"))
    assert data.load("digits").to(torch.device("cpu")).train.images.device.type == "cpu"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    for call in (data.load, data.fetch, data.check):
        message = error_of(lambda call=call: call("minst"))
        assert "did you mean 'mnist'" in message
        assert "cifar10" in message


def test_shuffled_is_a_permutation_given_by_the_generator() -> None:
    first = data.shuffled(1000, torch.Generator().manual_seed(3))
    again = data.shuffled(1000, torch.Generator().manual_seed(3))
    other = data.shuffled(1000, torch.Generator().manual_seed(4))
    assert first.dtype == torch.int64
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first.sort().values, torch.arange(1000))


# ------------------------------------------------------------------------------------ augmentation


def variants(image: Tensor, flip: bool, crop: int) -> dict[tuple[bool, int, int], Tensor]:
    """Everything that may become of one image (channels, height, width): flip, pad, crop."""
    _, height, width = image.shape
    found: dict[tuple[bool, int, int], Tensor] = {}
    for flipped in (False, True) if flip else (False,):
        whole = image.flip(2) if flipped else image
        padded = np.pad(whole.numpy(), ((0, 0), (crop, crop), (crop, crop)), mode="edge")
        for down in range(2 * crop + 1):
            for right in range(2 * crop + 1):
                cut = padded[:, down : down + height, right : right + width]
                found[flipped, down, right] = torch.tensor(cut)
    return found


def variant_of(image: Tensor, result: Tensor, flip: bool, crop: int) -> tuple[bool, int, int]:
    """Which variant of `image` the `result` is (random images have no two that are alike)."""
    candidates = variants(image, flip, crop)
    (which,) = [key for key, candidate in candidates.items() if torch.equal(candidate, result)]
    return which


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 5),
    channels=st.integers(1, 3),
    height=st.integers(3, 6),
    width=st.integers(3, 6),
    flip=st.booleans(),
    crop=st.integers(0, 4),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float16]),
    seed=st.integers(0, 2**32),
)
def test_augmented_images_are_flips_and_crops_of_the_same_image(
    count: int, channels: int, height: int, width: int, flip: bool, crop: int, dtype: torch.dtype,
    seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    shape = (count, channels, height, width)
    images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(dtype)
    before = images.clone()
    results = data.Augmentation(flip, crop)(images, generator)
    assert (results.dtype, results.shape) == (images.dtype, images.shape)
    assert torch.equal(images, before)
    for image, result in zip(images, results, strict=True):
        candidates = variants(image, flip, crop).values()
        assert any(torch.equal(candidate, result) for candidate in candidates)


def test_flips_and_crops_are_uniform_and_independent_from_image_to_image() -> None:
    count, cells = 1800, 2 * 3 * 3
    image = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)
    generator = torch.Generator().manual_seed(0)
    results = data.Augmentation(True, 1)(image.expand(count, -1, -1, -1), generator)
    drawn = [variant_of(image[0], result, True, 1) for result in results]
    counts = [drawn.count(key) for key in variants(image[0], True, 1)]
    assert len(counts) == cells
    spread = (count * (1 / cells) * (1 - 1 / cells)) ** 0.5
    assert all(abs(found - count / cells) < 5 * spread for found in counts)
    # Neighbours would share a flip all the time if one draw served the whole batch.
    alike = sum(a[0] == b[0] for a, b in pairwise(drawn))
    assert abs(alike - count / 2) < 5 * (count / 4) ** 0.5


def test_augmentation_is_a_function_of_the_generator_state() -> None:
    images = data.load("digits").train.images[:200]
    generator = torch.Generator().manual_seed(5)
    augment = data.Augmentation(flip=True, crop=2)
    state = generator.get_state()
    first, second = augment(images, generator), augment(images, generator)
    assert not torch.equal(first, second)
    generator.set_state(state)
    assert torch.equal(first, augment(images, generator))
    # The same draws, whatever the images are made of.
    generator.set_state(state)
    assert torch.equal(first.float(), augment(images.float(), generator))


def test_no_augmentation_draws_nothing() -> None:
    images = data.load("digits").train.images[:3]
    generator = torch.Generator().manual_seed(5)
    state = generator.get_state()
    assert data.Augmentation()(images, generator) is images
    assert torch.equal(generator.get_state(), state)


def test_a_negative_crop_is_refused() -> None:
    assert "crop = -1" in error_of(lambda: data.Augmentation(crop=-1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_augmentation_on_a_device_follows_a_generator_on_the_cpu() -> None:
    images = data.load("digits").train.images[:64]
    augment = data.Augmentation(flip=True, crop=2)
    here = augment(images, torch.Generator().manual_seed(1))
    there = augment(images.cuda(), torch.Generator().manual_seed(1))
    assert there.device.type == "cuda"
    assert torch.equal(here, there.cpu())


# ------------------------------------------------------------------------------------ files on disk


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "raw", "."])
def test_mnist_is_found_in_every_layout(tmp_path: Path, folder: str, suffix: str) -> None:
    put(tmp_path / "root" / folder, MNIST, suffix)
    assert_is_small_mnist(data.load("mnist", data_dir=tmp_path / "root", offline=True))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["cifar-10-batches-bin", "."])
def test_cifar10_is_found_in_every_layout(tmp_path: Path, folder: str, suffix: str) -> None:
    put(tmp_path / "root" / folder, CIFAR, suffix)
    cifar = data.load("cifar10", data_dir=str(tmp_path / "root"), offline=True)
    train = torch.tensor(RECORDS[:2].reshape(8, 3073))
    assert torch.equal(cifar.train.labels, train[:, 0].long())
    assert torch.equal(cifar.train.images, train[:, 1:].view(8, 3, 32, 32))
    assert torch.equal(cifar.test.labels, torch.tensor(RECORDS[2, :, 0]).long())
    assert torch.equal(cifar.test.images, torch.tensor(RECORDS[2, :, 1:]).view(4, 3, 32, 32))
    assert cifar.image_shape == (3, 32, 32)


@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "raw", "."])
def test_fashion_mnist_is_found_in_every_layout(tmp_path: Path, folder: str) -> None:
    expected = torch.tensor(FASHION_ARRAYS[0])[:, None]
    plain = put(tmp_path / "plain" / folder, FASHION)
    assert plain.is_dir()
    published = tmp_path / "published" / folder
    published.mkdir(parents=True)
    for name, blob in FASHION_GZ.items():
        (published / f"{name}.gz").write_bytes(blob)
    for root in ("plain", "published"):
        fashion = data.load("fashion-mnist", data_dir=tmp_path / root, offline=True)
        assert torch.equal(fashion.train.images, expected)


def test_data_dir_comes_before_the_variable_and_that_before_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BINEP_DATA", str(tmp_path / "variable"))
    for place in ("argument", "variable", "cache/binep"):
        put(tmp_path / place / "mnist", MNIST)
    for place in ("argument", "variable", "cache/binep"):
        files = data.check("mnist", data_dir=tmp_path / "argument")
        assert [file.path for file in files] == [
            tmp_path / place / "mnist" / name for name in NAMES
        ]
        for name in NAMES:
            (tmp_path / place / "mnist" / name).unlink()
    missing = data.check("mnist", data_dir=tmp_path / "argument")
    assert [(file.name, file.path, file.status) for file in missing] == [
        (name, None, "missing") for name in NAMES
    ]


def test_the_files_of_a_set_may_lie_in_different_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BINEP_DATA", str(tmp_path / "variable"))
    put(tmp_path / "variable", dict(list(MNIST.items())[:1]))
    put(tmp_path / "cache/binep/mnist", dict(list(MNIST.items())[1:]), ".gz")
    assert_is_small_mnist(data.load("mnist", offline=True))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is where platformdirs says")
def test_the_cache_is_where_linux_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert data.cache_folder() == Path("/x/binep")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert data.cache_folder() == Path("/h/.cache/binep")


def test_where_a_folder_holds_everything_nothing_else_need_be_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("platformdirs", "pooch", "requests"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delenv("XDG_CACHE_HOME")
    put(tmp_path / "mnist", MNIST)
    assert_is_small_mnist(data.load("mnist", data_dir=tmp_path))
    (tmp_path / "mnist" / LABELS).unlink()
    message = error_of(lambda: data.load("mnist", data_dir=tmp_path, offline=True))
    assert "pip install platformdirs" in message


def test_offline_names_what_is_missing_and_where_it_would_go(tmp_path: Path) -> None:
    put(tmp_path / "root/mnist", {NAMES[0]: MNIST[NAMES[0]]})
    message = error_of(lambda: data.load("mnist", data_dir=tmp_path / "root", offline=True))
    assert NAMES[0] not in message
    assert all(name in message for name in NAMES[1:])
    assert str(tmp_path / "root/mnist") in message
    assert "binep data fetch mnist" in message
    assert "cifar-10-batches-bin" in error_of(lambda: data.load("cifar10", offline=True))
    assert files_below(tmp_path) == ["root", "root/mnist", f"root/mnist/{NAMES[0]}"]


def flipped(blob: bytes) -> bytes:
    middle = len(blob) // 2
    return blob[:middle] + bytes([blob[middle] ^ 16]) + blob[middle + 1 :]


IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = NAMES
DAMAGES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "truncated": (MNIST[IMAGES][:-7], "909 bytes instead of 916"),
    "too long": (MNIST[IMAGES] + b"\0", "917 bytes instead of 916"),
    "altered": (flipped(MNIST[IMAGES]), "it was altered"),
    "labels for images": (MNIST[LABELS], f"it holds {LABELS} of mnist"),
    "test for train": (MNIST[TEST_IMAGES], f"it holds {TEST_IMAGES} of mnist"),
    "another set": (FASHION[IMAGES], f"it holds {IMAGES} of fashion-mnist"),
    "truncated gzip": (gzip.compress(MNIST[IMAGES])[:-20], "no whole gzip file"),
    "altered gzip": (flipped(gzip.compress(MNIST[IMAGES])), "expected SHA-256"),
    "rubbish": (b"<html>not found</html>", "22 bytes instead of 916"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_damaged_file_is_named_with_what_is_wrong(
    tmp_path: Path, damage: str, suffix: str
) -> None:
    blob, reason = DAMAGES[damage]
    folder = put(tmp_path / "root/mnist", MNIST)
    (folder / IMAGES).unlink()
    path = folder / f"{IMAGES}{suffix}"
    path.write_bytes(blob)
    message = error_of(lambda: data.load("mnist", data_dir=tmp_path / "root"))
    assert str(path) in message
    assert reason in message
    assert f"expected SHA-256 {sha256(MNIST[IMAGES])[:12]}, found " in message
    assert "gzip" in damage or f"found {sha256(blob)[:12]}" in message
    assert "binep data fetch mnist" in message
    first, *others = data.check("mnist", data_dir=tmp_path / "root")
    assert first.path == path
    assert first.status.startswith("damaged: ")
    assert reason in first.status
    assert {other.status for other in others} == {"ok"}


def test_training_images_in_the_place_of_test_images_are_recognised(tmp_path: Path) -> None:
    root = put(tmp_path / "root", MNIST | {TEST_IMAGES: MNIST[IMAGES]}, ".gz")
    assert f"it holds {IMAGES} of mnist" in error_of(lambda: data.load("mnist", data_dir=root))


def test_cifar10_batches_that_changed_places_are_recognised(tmp_path: Path) -> None:
    swapped = CIFAR | {"data_batch_1.bin": CIFAR["test_batch.bin"]}
    root = put(tmp_path / "root", swapped)
    message = error_of(lambda: data.load("cifar10", data_dir=root))
    assert "data_batch_1.bin of cifar10 is damaged: it holds test_batch.bin of cifar10" in message


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_not_taken_for_fashion_mnist_nor_the_other_way_round(
    tmp_path: Path, suffix: str
) -> None:
    root = put(tmp_path / "mnist", MNIST, suffix)
    message = error_of(lambda: data.load("fashion-mnist", data_dir=root))
    assert f"of fashion-mnist is damaged: it holds {IMAGES} of mnist" in message
    root = tmp_path / "fashion"
    root.mkdir()
    for name, blob in (FASHION_GZ if suffix else FASHION).items():
        (root / f"{name}{suffix}").write_bytes(blob)
    message = error_of(lambda: data.load("mnist", data_dir=root))
    assert f"of mnist is damaged: it holds {IMAGES} of fashion-mnist" in message


def test_fashion_mnist_is_known_by_the_published_gz_or_the_md5_of_the_content(
    tmp_path: Path,
) -> None:
    again = put(tmp_path / "again", FASHION, ".gz")  # not the bytes that were published
    message = error_of(lambda: data.load("fashion-mnist", data_dir=again))
    expected = sha256(FASHION_GZ[IMAGES])[:12]
    assert f"expected SHA-256 of the .gz {expected}" in message
    altered = put(tmp_path / "altered", FASHION | {LABELS: flipped(FASHION[LABELS])})
    message = error_of(lambda: data.load("fashion-mnist", data_dir=altered))
    expected = hashlib.md5(FASHION[LABELS]).hexdigest()[:12]
    assert f"it was altered, expected MD5 {expected}" in message


def test_an_unreadable_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = put(tmp_path / "root", MNIST)

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    message = error_of(lambda: data.load("mnist", data_dir=root))
    assert f"{root / IMAGES} of mnist" in message
    assert "Permission denied" in message


@settings(max_examples=60, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), zipped=st.booleans())
def test_no_single_flipped_bit_reaches_the_network(position: float, bit: int, zipped: bool) -> None:
    name = "t10k-labels-idx1-ubyte"
    blob = bytearray(gzip.compress(MNIST[name], mtime=0) if zipped else MNIST[name])
    blob[int(position * len(blob))] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        root = put(Path(folder), {key: MNIST[key] for key in NAMES[:3]})
        (root / f"{name}{'.gz' if zipped else ''}").write_bytes(blob)
        try:
            dataset = data.load("mnist", data_dir=root, offline=True)
        except BinepError as error:
            assert "is damaged: " in str(error)
        else:  # only a bit of the gzip header that says nothing about the content
            assert zipped
            assert_is_small_mnist(dataset)


# ------------------------------------------------------------------------------------ the download


class Mirrors(ThreadingHTTPServer):
    """One server for many mirrors: http://host/KIND/NAME sends NAME the way that KIND does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.watch: Callable[[], None] = lambda: None
        self.closing = threading.Event()

    def url(self, kind: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{kind}/"


class Handler(BaseHTTPRequestHandler):
    server: Mirrors  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.watch()
        _, kind, name = self.path.split("/")
        with suppress(ConnectionError):  # the client gives us up, as it should
            getattr(self, f"send_{kind}")(self.server.files.get(name, b""))

    def start(self, length: int | None, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send_good(self, blob: bytes) -> None:
        self.start(len(blob))
        self.wfile.write(blob)

    def send_missing(self, blob: bytes) -> None:
        self.send_error(404)

    def send_truncated(self, blob: bytes) -> None:
        self.start(len(blob))
        self.wfile.write(blob[: len(blob) // 2])

    def send_cut(self, blob: bytes) -> None:
        self.send_good(blob[: len(blob) // 2])  # and claims that this is all

    def send_corrupt(self, blob: bytes) -> None:
        self.send_good(flipped(blob))

    def send_empty(self, blob: bytes) -> None:
        self.send_good(b"")

    def send_stalled(self, blob: bytes) -> None:
        self.start(len(blob))
        self.wfile.write(blob[: len(blob) // 2])
        self.wfile.flush()
        self.server.closing.wait(20)

    def send_trickling(self, blob: bytes) -> None:
        self.start(len(blob) + 4096)
        for _ in range(64):  # 640 bytes a second
            self.wfile.write(bytes(64))
            if self.server.closing.wait(0.1):
                return

    def send_dripping(self, blob: bytes) -> None:
        self.start(len(blob) + 4096)
        while not self.server.closing.wait(0.3):  # never silent for a second
            self.wfile.write(b"\0")

    def send_headers_only(self, blob: bytes) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not self.server.closing.wait(0.3):
            self.wfile.write(b"X")

    def send_endless(self, blob: bytes) -> None:
        self.start(None)
        while not self.server.closing.is_set():
            self.wfile.write(bytes(1 << 16))

    def send_hangup(self, blob: bytes) -> None:
        self.close_connection = True

    def send_interrupted(self, blob: bytes) -> None:
        self.start(len(blob))
        self.wfile.write(blob[: len(blob) // 2])
        self.wfile.flush()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        self.server.closing.wait(20)


@pytest.fixture
def mirrors() -> Iterator[Mirrors]:
    server = Mirrors()
    server.files = {f"{name}.gz": gzip.compress(blob) for name, blob in MNIST.items()}
    server.files["cifar-10-binary.tar.gz"] = cifar_tar()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


FAULTS = {
    "missing": "404 Client Error",
    "truncated": "more expected",
    "cut": "no whole gzip file",
    "corrupt": "expected SHA-256",
    "empty": "empty",
    "stalled": "silent for 1 s",
    "trickling": "bytes in",
    "dripping": "only 0 bytes in 2 s",
    "headers_only": "only 0 bytes in 2 s",
    "endless": "sends more than",
    "hangup": "closed connection without response",
}


def test_what_is_missing_is_downloaded_to_the_cache(
    mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = replace(data.DATASETS["mnist"], mirrors=(mirrors.url("good"),))
    use(monkeypatch, source)
    assert_is_small_mnist(data.load("mnist"))
    folder = tmp_path / "cache/binep/mnist"
    assert files_below(folder) == sorted(f"{name}.gz" for name in NAMES)
    assert len(mirrors.asked) == 4
    assert_is_small_mnist(data.load("mnist"))
    assert_is_small_mnist(data.load("mnist", offline=True))
    assert len(mirrors.asked) == 4


def test_only_the_missing_file_is_downloaded(mirrors: Mirrors, tmp_path: Path) -> None:
    root = put(tmp_path / "root", {name: MNIST[name] for name in NAMES[:3]})
    paths = data.fetch("mnist", data_dir=root, mirrors=[mirrors.url("good").rstrip("/")])
    assert paths == [*(root / name for name in NAMES[:3]), root / "mnist" / f"{NAMES[3]}.gz"]
    assert mirrors.asked == [f"/good/{NAMES[3]}.gz"]
    assert_is_small_mnist(data.load("mnist", data_dir=root, offline=True))


def test_a_mirror_that_unpacks_on_the_way_is_stored_as_what_it_sent(
    mirrors: Mirrors, tmp_path: Path
) -> None:
    mirrors.files = {f"{name}.gz": blob for name, blob in MNIST.items()}
    paths = data.fetch("mnist", data_dir=tmp_path / "root", mirrors=[mirrors.url("good")])
    assert paths == [tmp_path / "root/mnist" / name for name in NAMES]
    assert_is_small_mnist(data.load("mnist", data_dir=tmp_path / "root", offline=True))


def test_fashion_mnist_is_downloaded_as_published(mirrors: Mirrors, tmp_path: Path) -> None:
    mirrors.files = {f"{name}.gz": gzip.compress(blob) for name, blob in FASHION.items()}
    call = lambda: data.fetch("fashion-mnist", mirrors=[mirrors.url("good")])  # noqa: E731
    assert "expected SHA-256 of the .gz" in error_of(call)
    mirrors.files = {f"{name}.gz": blob for name, blob in FASHION_GZ.items()}
    for path in call():
        assert path.read_bytes() == FASHION_GZ[path.name.removesuffix(".gz")]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_bad_mirror_is_passed_over_for_the_next_and_named_if_there_is_none(
    mirrors: Mirrors, tmp_path: Path, kind: str
) -> None:
    urls = [mirrors.url("missing"), mirrors.url(kind)]
    call = lambda: data.fetch("mnist", data_dir=tmp_path / "a/b", mirrors=urls, timeout=1)  # noqa: E731
    message = error_of(call)
    assert f"cannot download {NAMES[0]}.gz of mnist" in message
    assert f"{urls[0]}{NAMES[0]}.gz: 404 Client Error" in message
    assert FAULTS[kind] in message.partition(f"{urls[1]}{NAMES[0]}.gz: ")[2]
    assert files_below(tmp_path) == []
    mirrors.asked.clear()
    urls = [mirrors.url(kind), mirrors.url("good")]
    paths = data.fetch("mnist", data_dir=tmp_path / "root", mirrors=urls, timeout=1)
    assert mirrors.asked[0] == f"/{kind}/{NAMES[0]}.gz"
    # Once it has failed, it is not waited for again.
    assert sum(path.startswith(f"/{kind}/{NAMES[1]}") for path in mirrors.asked) == 0
    assert files_below(tmp_path / "root/mnist") == sorted(path.name for path in paths)
    assert {path.name for path in paths} == {f"{name}.gz" for name in NAMES}
    assert_is_small_mnist(data.load("mnist", data_dir=tmp_path / "root", offline=True))


def test_an_unreachable_or_senseless_address_is_passed_over(
    mirrors: Mirrors, tmp_path: Path
) -> None:
    urls = ["http://127.0.0.1:9/", "gopher://x", "no address", mirrors.url("good")]
    data.fetch("mnist", data_dir=tmp_path / "root", mirrors=urls)
    message = error_of(lambda: data.fetch("cifar10", mirrors=urls[:3]))
    assert "refused" in message
    assert "gopher" in message
    assert "no address" in message


def test_nothing_is_kept_when_the_last_file_fails(mirrors: Mirrors, tmp_path: Path) -> None:
    del mirrors.files[f"{NAMES[3]}.gz"]
    put(tmp_path / "root", {})
    message = error_of(
        lambda: data.fetch("mnist", data_dir=tmp_path / "root", mirrors=[mirrors.url("good")])
    )
    assert NAMES[3] in message
    assert files_below(tmp_path) == ["root"]


def test_no_file_has_its_name_before_all_are_whole(mirrors: Mirrors, tmp_path: Path) -> None:
    folder, seen = tmp_path / "root/mnist", []
    mirrors.watch = lambda: seen.extend(path.name for path in folder.glob("*ubyte*"))
    data.fetch("mnist", data_dir=tmp_path / "root", mirrors=[mirrors.url("good")])
    assert seen == []
    assert len(list(folder.iterdir())) == 4


def test_cifar10_is_taken_out_of_its_archive(mirrors: Mirrors, tmp_path: Path) -> None:
    root, urls = tmp_path / "root", [mirrors.url("good")]
    paths = data.fetch("cifar10", data_dir=root, mirrors=urls)
    assert paths == [root / "cifar-10-batches-bin" / name for name in CIFAR]
    assert [path.read_bytes() for path in paths] == list(CIFAR.values())
    assert files_below(root / "cifar-10-batches-bin") == sorted(CIFAR)
    assert mirrors.asked == ["/good/cifar-10-binary.tar.gz"]
    # A flat archive is as good, and only what is missing is written.
    mirrors.files["cifar-10-binary.tar.gz"] = tar_gz(CIFAR)
    paths[1].unlink()
    before = paths[0].stat().st_mtime_ns
    data.fetch("cifar10", data_dir=root, mirrors=urls)
    assert paths[1].read_bytes() == CIFAR["data_batch_2.bin"]
    assert paths[0].stat().st_mtime_ns == before


def hostile_tar(kind: str) -> bytes:
    """An archive whose first batch is no plain file, or whose headers lie."""
    name, blob = "cifar-10-batches-bin/data_batch_1.bin", CIFAR["data_batch_1.bin"]
    plain = tarfile.TarInfo(name)
    plain.size = len(blob)
    if kind in ("symbolic link", "hard link"):
        plain.type = tarfile.SYMTYPE if kind == "symbolic link" else tarfile.LNKTYPE
        plain.linkname, plain.size = "nowhere", 0
        return gzip.compress(plain.tobuf() + bytes(1024))
    if kind == "sparse":
        plain.type = tarfile.GNUTYPE_SPARSE
        return gzip.compress(plain.tobuf(tarfile.GNU_FORMAT) + blob + bytes(1024))
    if kind == "pax":  # an extended header that claims a length of 400 digits
        return gzip.compress(_pax(b"410 size=" + b"9" * 400 + b"\n") + plain.tobuf())
    if kind == "huge header":
        info = tarfile.TarInfo("long")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 3 << 30
        return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(40 << 20), 1)
    assert kind == "names of names"
    info = tarfile.TarInfo("long")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 512
    return gzip.compress((info.tobuf(tarfile.GNU_FORMAT) + b"x" * 511 + b"\0") * 5000)


def _pax(content: bytes) -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(content)
    return info.tobuf() + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    "kind", ["symbolic link", "hard link", "sparse", "pax", "huge header", "names of names"]
)
def test_a_hostile_archive_is_passed_over_and_takes_little_memory(
    mirrors: Mirrors, tmp_path: Path, kind: str
) -> None:
    mirrors.files["cifar-10-binary.tar.gz"] = hostile_tar(kind)
    tracemalloc.start()
    try:
        message = error_of(lambda: data.fetch("cifar10", mirrors=[mirrors.url("good")]))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert "cannot download cifar-10-binary.tar.gz of cifar10" in message
    assert files_below(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (cifar_tar(data_batch_2=flipped(CIFAR["data_batch_2.bin"])), "data_batch_2.bin: it was"),
        (cifar_tar(data_batch_2=b""), "data_batch_2.bin: it is empty"),
        (cifar_tar(test_batch=CIFAR["data_batch_1.bin"]), "it holds data_batch_1.bin of cifar10"),
        (cifar_tar(test_batch=bytes(20000)), "has no test_batch.bin of the right size"),
        (tar_gz({"../data_batch_1.bin": CIFAR["data_batch_1.bin"]}), "has no data_batch_2.bin"),
        (cifar_tar()[:-3000], ""),
        (flipped(cifar_tar()), ""),
        (b"<html>", "Not a gzipped file"),
    ],
)  # fmt: skip
def test_a_bad_archive_is_passed_over_and_leaves_nothing(
    mirrors: Mirrors, tmp_path: Path, archive: bytes, reason: str
) -> None:
    mirrors.files["cifar-10-binary.tar.gz"] = archive
    call = lambda: data.fetch("cifar10", mirrors=[mirrors.url("good")])  # noqa: E731
    message = error_of(call)
    assert "cannot download cifar-10-binary.tar.gz of cifar10" in message
    assert reason in message
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("place", ["argument", "variable"])
def test_a_users_damaged_file_is_never_overwritten(
    mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    folder = put(tmp_path / place / "mnist", MNIST | {LABELS: b"mine"})
    monkeypatch.setenv("BINEP_DATA", str(tmp_path / "variable"))
    argument = tmp_path / place if place == "argument" else None
    for call in (data.load, data.fetch):
        message = error_of(lambda call=call: call("mnist", data_dir=argument))
        assert f"{folder / LABELS} of mnist is damaged" in message
        assert "move or delete it, then run `binep data fetch mnist`" in message
    assert (folder / LABELS).read_bytes() == b"mine"
    assert mirrors.asked == []


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_damaged_file_in_the_cache_is_replaced_by_fetch(
    mirrors: Mirrors, tmp_path: Path, suffix: str
) -> None:
    folder = put(tmp_path / "cache/binep/mnist", MNIST, suffix)
    (folder / f"{LABELS}{suffix}").write_bytes(b"half a fi")
    assert "replace it with `binep data fetch mnist`" in error_of(lambda: data.load("mnist"))
    paths = data.fetch("mnist", mirrors=[mirrors.url("good")])
    assert mirrors.asked == [f"/good/{LABELS}.gz"]
    assert sorted(paths) == sorted(folder.iterdir())
    assert_is_small_mnist(data.load("mnist", offline=True))


def test_the_damaged_file_stays_when_its_replacement_cannot_be_had(
    mirrors: Mirrors, tmp_path: Path
) -> None:
    folder = put(tmp_path / "cache/binep/mnist", MNIST | {LABELS: b"half a fi"})
    error_of(lambda: data.fetch("mnist", mirrors=[mirrors.url("missing")]))
    assert (folder / LABELS).read_bytes() == b"half a fi"
    assert files_below(folder) == sorted(NAMES)


# ------------------------------------------------------------------------- the disk, and the user


def test_a_full_disk_is_one_error_and_nothing_is_left(
    mirrors: Mirrors, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource")
    # A limit on the size of files stops a write in the middle, as a full disk does.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(BinepError) as caught:
            data.fetch("mnist", data_dir=tmp_path / "root", mirrors=[mirrors.url("good")] * 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value) == f"cannot write to {tmp_path / 'root/mnist'}: File too large"
    assert len(mirrors.asked) == 1  # another mirror would not help
    assert files_below(tmp_path) == []


def test_a_disk_that_fills_up_at_the_end_is_one_error(
    mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = error_of(lambda: data.fetch("cifar10", mirrors=[mirrors.url("good")]))
    assert message.endswith("cifar-10-batches-bin: No space left on device")
    assert files_below(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_error(mirrors: Mirrors, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for root in (tmp_path / "file", tmp_path / "file/below"):
        message = error_of(
            lambda root=root: data.fetch("mnist", data_dir=root, mirrors=[mirrors.url("good")])
        )
        assert message == f"cannot write to {root / 'mnist'}: Not a directory"
    assert mirrors.asked == []
    assert files_below(tmp_path) == ["file"]


@pytest.mark.parametrize("blocked", ["mkdir", "mkdtemp"])
def test_a_read_only_folder_is_one_error_before_anything_is_downloaded(
    mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blocked: str
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path))

    monkeypatch.setattr(Path if blocked == "mkdir" else tempfile, blocked, refuse)
    message = error_of(lambda: data.fetch("mnist", mirrors=[mirrors.url("good")]))
    assert message.endswith("binep/mnist: Read-only file system")
    assert mirrors.asked == []
    assert files_below(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals to a thread")
@pytest.mark.usefixtures("heard")
def test_an_interrupted_download_leaves_nothing(mirrors: Mirrors, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        data.fetch("mnist", data_dir=tmp_path / "root", mirrors=[mirrors.url("interrupted")])
    assert files_below(tmp_path) == []


def test_an_interrupt_while_writing_leaves_nothing(
    mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    put(tmp_path / "root", {"other": b"not ours"})
    with pytest.raises(KeyboardInterrupt):
        data.fetch("mnist", data_dir=tmp_path / "root", mirrors=[mirrors.url("good")])
    assert files_below(tmp_path) == ["root", "root/other"]


def test_without_a_terminal_every_file_is_one_plain_line(
    mirrors: Mirrors, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = mirrors.url("good")
    data.fetch("mnist", data_dir=tmp_path, mirrors=[url])
    output = capsys.readouterr()
    assert output.err.splitlines() == [f"downloading {url}{name}.gz" for name in NAMES]
    assert output.out == ""


def test_on_a_terminal_there_is_a_progress_bar(
    mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    data.fetch("cifar10", data_dir=tmp_path, mirrors=[mirrors.url("good")])
    shown = terminal.getvalue()
    assert "downloading" not in shown
    assert "cifar-10-binary.tar.gz" in shown
    assert "━" in shown


# ------------------------------------------------------------------------------------ the real sets


def test_the_real_sources_are_complete() -> None:
    for source in (data.MNIST, data.FASHION_MNIST, data.CIFAR10):
        assert len(source.mirrors) >= 2
        assert all(url.startswith("http") and url.endswith("/") for url in source.mirrors)
        for file in source.files:
            assert len(file.sha256) == 64 or (len(file.gz_sha256), len(file.md5)) == (64, 32)
    digests = [file.sha256 or file.gz_sha256 for s in data.DATASETS.values() for file in s.files]
    assert len(set(digests)) == len(digests)
    assert [file.size for file in data.MNIST.files] == [47040016, 60008, 7840016, 10008]
    assert {file.size for file in data.CIFAR10.files} == {30730000}


@pytest.mark.skipif(not REAL, reason="needs $BINEP_DATA with the real sets")
@pytest.mark.parametrize(
    ("source", "sizes", "labels", "mean"),
    [
        (data.MNIST, (60000, 10000), [5, 0, 4, 1, 9], [0.1307]),
        (data.FASHION_MNIST, (60000, 10000), [9, 0, 0, 3, 0], [0.2860]),
        (data.CIFAR10, (50000, 10000), [6, 9, 9, 4, 1], [0.4914, 0.4822, 0.4465]),
    ],
    ids=["mnist", "fashion-mnist", "cifar10"],
)
def test_the_real_sets_are_what_they_should_be(
    monkeypatch: pytest.MonkeyPatch,
    source: data.Source,
    sizes: tuple[int, int],
    labels: list[int],
    mean: list[float],
) -> None:
    use(monkeypatch, source)
    if any(file.path is None for file in data.check(source.name, data_dir=REAL)):
        pytest.skip(f"{source.name} is not in $BINEP_DATA")
    started = time.perf_counter()
    dataset = data.load(source.name, data_dir=REAL, offline=True)
    assert time.perf_counter() - started < 10  # a second or so; generous for a busy machine
    assert (len(dataset.train), len(dataset.test)) == sizes
    assert dataset.train.labels[:5].tolist() == labels
    assert dataset.train.labels.unique().tolist() == list(range(10))
    found = dataset.train.images.double().mean(dim=(0, 2, 3)) / 255
    assert torch.allclose(found, torch.tensor(mean).double(), atol=1e-4)
