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

from binep.data.dataset import Augmentation, Dataset, Split, shuffled
from binep.data.finding import FileStatus, Folder, cache_folder, check, fetch, load
from binep.data.sources import (
    CIFAR10,
    DATASETS,
    DIGITS,
    FASHION_MNIST,
    MNIST,
    File,
    Source,
    idx_files,
)

__all__ = [
    "CIFAR10",
    "DATASETS",
    "DIGITS",
    "FASHION_MNIST",
    "MNIST",
    "Augmentation",
    "Dataset",
    "File",
    "FileStatus",
    "Folder",
    "Source",
    "Split",
    "cache_folder",
    "check",
    "fetch",
    "idx_files",
    "load",
    "shuffled",
]
