"""What is handed over: images and labels as tensors, held out, normalised, augmented."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from binep.errors import BinepError


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and their labels, int64 (count,).

    Samples are images, (count, channels, height, width), or vectors, (count, features): uint8 for
    pixels, float32 for numbers as they are.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape, kind = tuple(self.images.shape[1:]), str(self.images.dtype).removeprefix("torch.")
        return f"Split({len(self)} samples of {shape}, {kind})"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images of one data set, and how a network receives them.

    >>> from binep.data import load
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
    class_names: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self.train)} + {len(self.test)} samples of "
            f"{self.image_shape}, {self.classes} classes)"
        )

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(channels, height, width) of one image, or (features,) of one vector."""
        return tuple(self.train.images.shape[1:])

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

    def first(self, count: int) -> "Dataset":
        """Only the first `count` training images; the test images stay."""
        if not 0 < count <= len(self.train):
            raise BinepError(
                f"cannot take {count} of the {len(self.train)} training images of {self.name}"
            )
        return replace(self, train=Split(self.train.images[:count], self.train.labels[:count]))

    def inputs(self, images: Tensor) -> Tensor:
        """What a network receives for `images` (count, *image_shape).

        Without normalisation what they are (a network itself reads uint8 as pixel/255); otherwise
        float32 (value - mean) / std, channel by channel or feature by feature.
        """
        if self.mean is None or self.std is None:
            return images
        shape = (-1, *[1] * (images.dim() - 2))
        mean = torch.tensor(self.mean, device=images.device).view(shape)
        std = torch.tensor(self.std, device=images.device).view(shape)
        values = images.float() / 255 if images.dtype == torch.uint8 else images
        return (values - mean) / std

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

    >>> from binep.data import load
    >>> images = load("digits").train.images[:64]
    >>> Augmentation(flip=True, crop=1)(images, torch.Generator().manual_seed(0)).shape
    torch.Size([64, 1, 8, 8])
    """

    flip: bool = False
    crop: int = 0

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise BinepError(f"augmentation crop = {self.crop}: allowed are 0 (none) and above")

    def __call__(
        self, images: Tensor, generator: torch.Generator, size: int | None = None
    ) -> Tensor:
        """Augmented copy of `images` (count, channels, height, width), same dtype and device.

        With `size` as if so many were given at a time: mini-batches may come together.
        """
        if not (self.flip or self.crop):
            return images
        count, channels, height, width = images.shape
        here = images.device
        parts = [self._draw(len(part), generator) for part in images.split(size or count)]
        flipped, down, right = _moved(torch.cat(parts, 1), here)
        # A coordinate outside the image reads the nearest edge: that is the padding.
        row = (torch.arange(height, device=here) + down).clamp(0, height - 1)
        column = (torch.arange(width, device=here) + right).clamp(0, width - 1)
        column = torch.where(flipped > 0, width - 1 - column, column)
        image = torch.arange(count, device=here).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=here).view(-1, 1, 1)
        return images[image, channel, row[:, None, :, None], column[:, None, None, :]]

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Of n images: whether each is flipped, how far it moves down, and right; (3, n, 1)."""
        place = generator.device
        drawn = torch.zeros(3, count, 1, dtype=torch.int64, device=place)
        if self.flip:
            drawn[0] = torch.rand(count, 1, generator=generator, device=place) < 0.5
        if self.crop:
            span = 2 * self.crop + 1
            drawn[1:] = torch.randint(span, (2, count, 1), generator=generator, device=place)
            drawn[1:] -= self.crop
        return drawn


def _moved(drawn: Tensor, device: torch.device) -> Tensor:
    """The same tensor on a device; a GPU goes on working while it is copied."""
    if device.type == "cuda" and drawn.device.type == "cpu":
        drawn = drawn.pin_memory()
    return drawn.to(device, non_blocking=True)


def shuffled(count: int, generator: torch.Generator) -> Tensor:
    """A random order of `count` items, int64 (count,), on the generator's device.

    >>> sorted(shuffled(4, torch.Generator().manual_seed(0)).tolist())
    [0, 1, 2, 3]
    """
    return torch.randperm(count, generator=generator, device=generator.device)
