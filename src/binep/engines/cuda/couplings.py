"""The old place of `layout` and `convolution`."""

from binep.engines.cuda.convolution import Tile, channels_last, convolve, fitting_tile, launch
from binep.engines.cuda.layout import (
    DIGIT_BITS,
    EventList,
    FastConv,
    FastDense,
    Tensors,
    flat,
    product,
    split_digits,
)

Listed = EventList

__all__ = [
    "DIGIT_BITS",
    "FastConv",
    "FastDense",
    "Listed",
    "Tensors",
    "Tile",
    "channels_last",
    "convolve",
    "fitting_tile",
    "flat",
    "launch",
    "product",
    "split_digits",
]
