"""Reading pictures with a trained network: of a run, or of a packed file."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from binep.deploy import packed
from binep.deploy.runtime import Runtime
from binep.deploy.stored import Array, Shape
from binep.errors import BinepError
from binep.files import read_whole


@dataclass(frozen=True)
class Prediction:
    """What a network reads in a picture: the class, and a score of every class."""

    path: Path
    label: int
    name: str
    scores: list[float]


def predict_files(
    what: Path, pictures: Sequence[Path], *, resize: bool = False
) -> list[Prediction]:
    """Read pictures with the network of a run's folder or of a packed file.

    Args:
        resize: whether to scale pictures of another size, which is an error otherwise.
    """
    runtime, names = open_network(what)
    images = np.stack([read_picture(p, runtime.network.image_shape, resize) for p in pictures])
    scores = runtime.scores(images)
    return [
        Prediction(path, int(row.argmax()), names[int(row.argmax())], row.tolist())
        for path, row in zip(pictures, scores, strict=True)
    ]


def open_network(what: Path) -> tuple[Runtime, list[str]]:
    """A network ready to predict, and the names of its classes."""
    if what.is_file():
        runtime = Runtime(packed.load(what))
        return runtime, [str(n) for n in range(runtime.network.classes)]
    from binep.deploy.export import store
    from binep.training.run_folder import open_run

    run = open_run(what)
    runtime = Runtime(store(run.network("cpu"), run.recipe))
    names = run.recipe.data.class_names or range(runtime.network.classes)
    return runtime, [str(name) for name in names]


def read_picture(path: Path, shape: Shape, resize: bool = False) -> Array:
    """A picture as uint8 pixels, (channels, height, width): grey or coloured as the network is."""
    from PIL import Image

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise BinepError(f"a network for samples of shape {shape} reads no pictures")
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(read_whole(path))) as picture:
            found = picture.convert("L" if channels == 1 else "RGB")
    except BinepError:
        raise
    except Exception as error:  # each format of pictures has its own
        raise BinepError(f"{path}: not readable as a picture ({error})") from None
    if found.size != (width, height):
        if not resize:
            raise BinepError(
                f"{path} is {found.size[0]} x {found.size[1]}: the network reads {width} x "
                f"{height}; add --resize to scale it"
            )
        found = found.resize((width, height))
    pixels = np.asarray(found, np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1).copy()
