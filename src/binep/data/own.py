"""Your own data: arrays, tables, folders of images and IDX files, read and checked row by row.

    .npz            images (or x, data) and labels (or y); x_train, y_train, x_test, y_test
    .npy            images.npy beside labels.npy; test_images.npy and test_labels.npy if there are
    .csv            one sample a line, a column of labels; the first line may name the columns
    a folder        of images by class, CLASS/*.png, or train/CLASS/* and test/CLASS/*
    IDX files       in a folder, by MNIST's names: train-images-idx3-ubyte[.gz], ...

What is uint8, or integers of 0 to 255, is taken as pixels, which a network reads as pixel / 255;
other numbers are taken as they are. Where no test set is given, one is drawn by a seed.
"""

import csv
import functools
import gzip
import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from binep.core.memory import check_bytes
from binep.data.dataset import Dataset, Split
from binep.errors import BinepError, choose
from binep.files import read_whole

TEST_SHARE = 0.2
IMAGE_NAMES = ("images", "x", "data", "X")
LABEL_NAMES = ("labels", "label", "y", "target", "class")
MOST_SIDES = 8  # dimensions of an IDX file
FAR = 2.0  # of a feature's mean or deviation from 0, where weights are of the size of 1
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")

Array = Any
Part = tuple[Array, Array]  # samples and labels, as they were found


def read(
    path: str | Path,
    *,
    label: str | int | None = None,
    test: float = TEST_SHARE,
    seed: int = 0,
    normalise: bool = False,
) -> Dataset:
    """Read a data set of your own from a file or a folder.

    Args:
        label: name or number (from 0, negative from the end) of a table's column of labels; by
            default the one called label, class, target or y, else the last.
        test: share of the samples that is kept for testing where no test set is given.
        seed: which samples those are.
        normalise: whether to subtract the training set's mean and divide by its deviation.
    """
    path = Path(path)
    train, given, names = _found(path, label)
    return from_arrays(
        *train,
        *(given or (None, None)),
        name=path.stem if path.is_file() else path.resolve().name,
        class_names=names,
        test=test,
        seed=seed,
        normalise=normalise,
        where=str(path),
    )


def read_once(path: str, label: str | None, test: float, seed: int, normalise: bool) -> Dataset:
    """`read`, of a file that has been read already only if it has changed since."""
    stamp = _stamp(Path(path))
    return _kept(path, label, test, seed, normalise, stamp)


@functools.lru_cache(maxsize=4)
def _kept(
    path: str, label: str | None, test: float, seed: int, normalise: bool, stamp: str
) -> Dataset:
    return read(path, label=label, test=test, seed=seed, normalise=normalise)


def _stamp(path: Path) -> str:
    """What changes when a file, or a file in a folder, does."""
    with suppress(OSError):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        facts = [(p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in inside]
        return hashlib.sha256(repr(facts).encode()).hexdigest()
    return ""


@dataclass(frozen=True)
class Facts:
    """What has to be known of data to build a network for them, without the data."""

    shape: tuple[int, ...]
    classes: int
    samples: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def train_count(self) -> int:
        return self.samples


def facts_of(dataset: Dataset) -> Facts:
    return Facts(
        dataset.image_shape,
        dataset.classes,
        len(dataset.train),
        dataset.mean,
        dataset.std,
        dataset.class_names,
    )


def from_arrays(
    images: Array,
    labels: Array,
    test_images: Array = None,
    test_labels: Array = None,
    *,
    name: str = "own",
    class_names: Sequence[str] | None = None,
    test: float = TEST_SHARE,
    seed: int = 0,
    normalise: bool = False,
    where: str = "data",
) -> Dataset:
    """A data set of arrays or tensors: samples (count, features), (count, height, width) or
    (count, channels, height, width), and labels (count,), numbers or words.

    >>> images = np.zeros((10, 4), np.float32)
    >>> own = from_arrays(images, ["no", "yes"] * 5, test=0.2)
    >>> own.image_shape, own.classes, own.class_names, len(own.test)
    ((4,), 2, ('no', 'yes'), 2)
    """
    samples = _samples(images, where)
    marks = _labels(labels, len(samples), where)
    if test_images is None:
        kept, held = _drawn(len(samples), test, seed, where)
        parts = (samples[kept], marks[kept]), (samples[held], marks[held])
    else:
        more = _samples(test_images, f"{where}, test set")
        _check_alike(samples, more, where)
        marks_of_test = _labels(test_labels, len(more), f"{where}, test set")
        parts = (samples, marks), (more, marks_of_test)
    classes, names = _classes(parts[0][1], class_names, where)
    train, tested = (Split(*_tensors(*part, classes, where)) for part in parts)
    found = Dataset(name, train, tested, len(classes), class_names=names)
    return normalised(found) if normalise else found


def from_torch(train: Any, test: Any = None, **options: Any) -> Dataset:
    """A data set of torch `Dataset`s or `DataLoader`s of (sample, label); see `from_arrays`."""
    parts = [*_collected(train, "train"), *(_collected(test, "test") if test is not None else ())]
    return from_arrays(*parts, **options)


def normalised(dataset: Dataset) -> Dataset:
    """The same with mean 0 and deviation 1 over the training set, per channel or feature."""
    images = dataset.train.images
    unit = 255 if images.dtype == torch.uint8 else 1
    values = images.double().flatten(2) / unit if images.dim() > 2 else images.double() / unit
    over = (0, 2) if values.dim() > 2 else (0,)
    std = values.std(over, correction=0)
    # What never changes stays what it is, at 0.
    std = torch.where(std > 0, std, 1.0)
    return replace(dataset, mean=tuple(values.mean(over).tolist()), std=tuple(std.tolist()))


def scale_advice(dataset: Dataset) -> str | None:
    """What to do about features far from 0 and 1, which leave every neuron on or off; or None.

    >>> table = from_arrays(np.full((10, 2), 30.0, np.float32), ["no", "yes"] * 5)
    >>> scale_advice(table)
    'inputs have means of up to 30 and deviations of up to 0: add --set data.normalise=true'
    >>> scale_advice(normalised(table))
    """
    samples = dataset.train.images
    if dataset.mean is not None or not samples.is_floating_point():
        return None
    values = samples.double()
    mean, std = float(values.mean(0).abs().max()), float(values.std(0, correction=0).max())
    if mean <= FAR and std <= FAR:
        return None
    return (
        f"inputs have means of up to {mean:.3g} and deviations of up to {std:.3g}: "
        "add --set data.normalise=true"
    )


# --- finding ------------------------------------------------------------------------------------


def _found(path: Path, label: str | int | None) -> tuple[Part, Part | None, Sequence[str] | None]:
    """The training set, the test set if there is one, and the names of the classes if known."""
    if path.is_dir():
        if any(path.glob("*idx*ubyte*")):
            return *_idx_folder(path), None
        if (path / "images.npy").is_file():
            return *_npy_folder(path), None
        return _picture_folder(path)
    if not path.is_file():
        raise BinepError(f"{path}: there is no such file or folder")
    readers: dict[str, Callable[[], tuple[Part, Part | None]]] = {
        ".npz": lambda: _npz(path),
        ".npy": lambda: _npy_folder(path.parent, path),
        ".csv": lambda: (_csv(path, label), None),
    }
    if path.suffix.lower() not in readers:
        raise BinepError(
            f"{path}: a file of this kind is not read; allowed are .npz, .npy, .csv, and folders "
            "of images by class or of IDX files"
        )
    return *readers[path.suffix.lower()](), None


def _npz(path: Path) -> tuple[Part, Part | None]:
    try:
        with zipfile.ZipFile(path) as packed:
            check_bytes(sum(info.file_size for info in packed.infolist()), str(path))
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except BinepError:
        raise
    except Exception as error:  # of zip, zlib, or numpy's reader of Python's syntax
        raise BinepError(f"{path}: not readable as .npz ({_first_line(error)})") from None
    for ending, stems in (("_train", "_test"), ("", "_test")):
        images = _named(arrays, [f"{name}{ending}" for name in IMAGE_NAMES])
        labels = _named(arrays, [f"{name}{ending}" for name in LABEL_NAMES])
        if images is not None and labels is not None:
            tests = [f"{name}{stems}" for name in IMAGE_NAMES], [f"{n}{stems}" for n in LABEL_NAMES]
            more = _named(arrays, [*tests[0], "test_images"])
            marks = _named(arrays, [*tests[1], "test_labels"])
            return (images, labels), None if more is None or marks is None else (more, marks)
    raise BinepError(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: allowed are images (or x, data) "
        "and labels (or y), or x_train, y_train, x_test and y_test"
    )


def _named(arrays: dict[str, Array], names: Iterable[str]) -> Array:
    return next((arrays[name] for name in names if name in arrays), None)


def _npy_folder(folder: Path, images: Path | None = None) -> tuple[Part, Part | None]:
    images = images or folder / "images.npy"
    stem = images.stem.removesuffix("images")
    labels = folder / f"{stem}labels.npy"
    if images.stem == stem:  # NAME.npy beside NAME-labels.npy
        labels = next(
            (p for end in ("-labels", "_labels") if (p := folder / f"{stem}{end}.npy").exists()),
            folder / f"{stem}-labels.npy",
        )
    if not labels.is_file():
        raise BinepError(f"{images}: its labels are missing, they belong into {labels}")
    more, marks = (folder / f"test_{kind}.npy" for kind in ("images", "labels"))
    test = (_npy(more), _npy(marks)) if more.is_file() and marks.is_file() else None
    return (_npy(images), _npy(labels)), test


def _npy(path: Path) -> Array:
    try:
        return np.load(io.BytesIO(read_whole(path)), allow_pickle=False)
    except BinepError:
        raise
    except Exception as error:  # of its header, which is Python's syntax
        raise BinepError(f"{path}: not readable as .npy ({_first_line(error)})") from None


def _csv(path: Path, label: str | int | None) -> Part:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BinepError(f"{path}: not readable as a table ({_first_line(error)})") from None
    if not rows:
        raise BinepError(f"{path} is empty: allowed is one sample a line")
    width = len(rows[0])
    if width < 2:
        raise BinepError(f"{path}: one column only; allowed are numbers and a column of labels")
    for n, row in enumerate(rows, 1):
        if len(row) != width:
            raise BinepError(f"{path}: line {n} has {len(row)} columns, the first has {width}")
    # A first line that has a word where the next one has a number names the columns.
    named = len(rows) > 1 and any(
        _is_number(cell) and not _is_number(name) for name, cell in zip(*rows[:2], strict=True)
    )
    header = rows.pop(0) if named else None
    column = _label_column(path, header, width, label)
    table = np.empty((len(rows), width - 1))
    for n, row in enumerate(rows):
        try:
            table[n] = _without(row, column)
        except ValueError:
            bad = next(m for m, cell in enumerate(row) if m != column and not _is_number(cell))
            line = n + (2 if header else 1)
            raise BinepError(
                f"{path}: line {line}, column {bad + 1} is {row[bad]!r}: allowed are numbers"
            ) from None
    whole = (table == np.round(table)).all() and table.min(initial=0) >= 0
    if whole and 1 < table.max(initial=0) <= 255:
        table = table.astype(np.uint8)
    return table, [row[column].strip() for row in rows]


def _label_column(path: Path, header: list[str] | None, width: int, label: Any) -> int:
    names = [name.strip() for name in header or []]
    if label is None:
        return next((names.index(name) for name in LABEL_NAMES if name in names), width - 1)
    if str(label) in names:
        return names.index(str(label))
    try:
        number = int(label)
    except ValueError:
        choose(str(label), names, f"column of labels in {path}")
        raise
    if not -width <= number < width:
        raise BinepError(f"{path}: label column {number}: allowed are {-width} to {width - 1}")
    return number % width


def _without(row: list[str], column: int) -> list[str]:
    return row[:column] + row[column + 1 :]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _idx_folder(folder: Path) -> tuple[Part, Part | None]:
    def part(*starts: str) -> Part | None:
        found = [
            next((p for s in starts for p in sorted(folder.glob(f"{s}*{kind}*idx*"))), None)
            for kind in ("images", "labels")
        ]
        images, labels = found
        return None if images is None or labels is None else (_idx(images), _idx(labels))

    train, test = part("train", "emnist*train"), part("t10k", "test", "emnist*test")
    if train is None:
        raise BinepError(f"{folder}: allowed are train-images-idx*-ubyte and train-labels-...")
    return train, test


_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def _idx(path: Path) -> Array:
    """An IDX file of any content, gzipped or not: two zeros, type, dimensions, sizes, values."""
    raw = read_whole(path)
    try:
        with gzip.open(io.BytesIO(raw)) if raw[:2] == b"\x1f\x8b" else io.BytesIO(raw) as data:
            head = data.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES:
                raise BinepError(f"{path}: not an IDX file")
            dtype, sizes = np.dtype(_IDX_TYPES[head[2]]), data.read(4 * head[3])
            shape = tuple(int(size) for size in np.frombuffer(sizes[: len(sizes) & ~3], ">i4"))
            asked = math.prod(shape) * dtype.itemsize
            if len(shape) != head[3] or len(shape) > MOST_SIDES or min(shape, default=0) < 0:
                raise BinepError(f"{path}: says {shape}: allowed are 1 to {MOST_SIDES} sizes")
            check_bytes(asked, str(path))
            # A small file may unpack to a huge one.
            values = data.read(asked + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BinepError(f"{path}: not readable ({_first_line(error)})") from None
    if len(values) != asked:
        more = "more" if len(values) > asked else len(values)
        raise BinepError(f"{path}: says {shape}, {asked} bytes, and holds {more}")
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _picture_folder(folder: Path) -> tuple[Part, Part | None, list[str]]:
    train = folder / "train" if (folder / "train").is_dir() else folder
    classes = sorted(p.name for p in train.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(classes) < 2:
        raise BinepError(
            f"{train}: {len(classes)} folders inside; allowed is one for each class, at least 2, "
            "with its images"
        )
    test = folder / "test"
    size: list[Any] = []
    return (
        _pictures(train, classes, size),
        _pictures(test, classes, size) if test.is_dir() else None,
        classes,
    )


def _pictures(folder: Path, classes: list[str], size: list[Any]) -> Part:
    """All images below a folder, all of the first one's size: (count, channels, height, width)."""
    from PIL import Image

    images, labels = [], []
    for name in classes:
        for path in sorted((folder / name).glob("*")):
            if path.suffix.lower() not in PICTURES or not path.is_file():
                continue
            try:
                with Image.open(path) as picture:
                    grey = picture.mode in ("1", "L", "I;16", "LA")
                    pixels = np.asarray(picture.convert("L" if grey else "RGB"))
            except Exception as error:  # each format has its own
                raise BinepError(f"{path}: not readable ({_first_line(error)})") from None
            found = pixels.shape[:2], "grey" if grey else "coloured"
            size[:] = size or [found]
            if found != size[0]:
                (rows, columns), kind = size[0]
                raise BinepError(
                    f"{path} is {found[1]}, {found[0][0]} x {found[0][1]}: all images must be as "
                    f"the first, {kind}, {rows} x {columns}"
                )
            images.append(pixels[None] if grey else pixels.transpose(2, 0, 1))
            labels.append(name)
    if not images:
        raise BinepError(f"{folder}: no images; allowed are {' '.join(PICTURES)}")
    return np.stack(images), labels


# --- checking -----------------------------------------------------------------------------------


def _array(values: Any) -> Array:
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    return np.asarray(values)


def _samples(images: Any, where: str) -> Array:
    """Samples as uint8 pixels or float32, (count, features) or (count, channels, height, width)."""
    values = _array(images)
    if values.ndim == 3:
        values = values[:, None]
    if values.ndim not in (2, 4) or 0 in values.shape:
        raise BinepError(
            f"{where}: samples of shape {values.shape}: allowed are (count, features), (count, "
            "height, width) and (count, channels, height, width), none of them 0"
        )
    if values.dtype == np.bool_ or values.dtype == np.uint8:
        return values if values.dtype == np.uint8 else values.astype(np.float32)
    if values.dtype.kind in "iu":
        if values.min() >= 0 and values.max() <= 255:
            return values.astype(np.uint8)
        return values.astype(np.float32)
    if values.dtype.kind != "f":
        raise BinepError(f"{where}: samples of dtype {values.dtype}: allowed are numbers")
    numbers = values.astype(np.float32)
    wrong = ~np.isfinite(numbers).reshape(len(numbers), -1).all(1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BinepError(f"{where}: row {row} holds NaN, infinite or too large numbers")
    return numbers


def _labels(labels: Any, count: int, where: str) -> Array:
    marks = _array(labels)
    if marks.ndim == 2 and marks.shape[1] == 1:
        marks = marks[:, 0]
    if marks.shape != (count,):
        raise BinepError(
            f"{where}: labels of shape {marks.shape} for {count} samples: allowed is ({count},)"
        )
    if marks.dtype.kind == "f":
        wrong = ~(marks == np.round(marks))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise BinepError(
                f"{where}: the label of row {row} is {marks[row]}: allowed are whole numbers and "
                "words"
            )
        marks = marks.astype(np.int64)
    if marks.dtype.kind in "SO":
        marks = marks.astype(str)
    if marks.dtype.kind == "U":
        empty = marks == ""
        if empty.any():
            raise BinepError(f"{where}: row {int(np.argmax(empty))} has no label")
        if all(text.lstrip("-").isdigit() for text in np.unique(marks)):
            with suppress(ValueError, OverflowError):  # what is no number then is a word
                marks = marks.astype(np.int64)
    elif marks.dtype.kind not in "iub":
        raise BinepError(f"{where}: labels of dtype {marks.dtype}: allowed are numbers and words")
    return marks


def _check_alike(train: Array, test: Array, where: str) -> None:
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise BinepError(
            f"{where}: test samples are {test.dtype} of shape {test.shape[1:]}, training samples "
            f"{train.dtype} of shape {train.shape[1:]}: allowed are equal ones"
        )


def _drawn(count: int, share: float, seed: int, where: str) -> tuple[Array, Array]:
    """Which samples are trained on, and which are kept for testing; both in their order."""
    held = round(count * share)
    if not 0 < share < 1 or not 0 < held < count:
        raise BinepError(
            f"{where}: a test share of {share:g} of {count} samples: allowed is above 0 and below "
            "1, so that both sets have some"
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    return np.sort(order[held:]), np.sort(order[:held])


def _classes(
    marks: Array, names: Sequence[str] | None, where: str
) -> tuple[Array, tuple[str, ...]]:
    """The labels that there are, in order, and what they are called."""
    classes = np.unique(marks)
    if len(classes) < 2:
        raise BinepError(f"{where}: one class only, {classes[0]}: allowed are at least 2")
    if names is not None and len(names) != len(classes):
        raise BinepError(f"{where}: {len(names)} class names for {len(classes)} classes")
    return classes, tuple(str(name) for name in (names if names is not None else classes))


def _tensors(
    samples: Array, marks: Array, classes: Array, where: str
) -> tuple[torch.Tensor, torch.Tensor]:
    known = np.isin(marks, classes)
    if not known.all():
        row = int(np.argmin(known))
        raise BinepError(
            f"{where}, test set: the label of row {row} is {marks[row]!s}, which no training "
            "sample has"
        )
    numbers = np.searchsorted(classes, marks)
    return torch.from_numpy(samples.copy()), torch.from_numpy(numbers).long()


def _collected(source: Any, what: str) -> tuple[Array, Array]:
    """All samples and labels of a torch `Dataset` or `DataLoader`."""
    rows: Any = source.dataset if isinstance(source, torch.utils.data.DataLoader) else source
    samples, labels = [], []
    for n in range(len(rows)):
        try:
            sample, label = rows[n]
        except (TypeError, ValueError):
            raise BinepError(
                f"{what}: item {n} is not a pair: allowed is (sample, label)"
            ) from None
        samples.append(_array(sample))
        labels.append(int(label))
    return np.stack(samples), np.asarray(labels)


def fingerprint(dataset: Dataset) -> str:
    """SHA-256 of all that a network sees of a data set: samples, labels and the split."""
    digest = hashlib.sha256(f"{dataset.classes} {dataset.mean} {dataset.std}".encode())
    for split in (dataset.train, dataset.test):
        for tensor in (split.images, split.labels):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
