"""What is shipped of a trained network: its architecture, its parameters, and how it is run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from binep.core.turns import turns
from binep.deploy import allowed
from binep.deploy.allowed import KINDS, READOUTS
from binep.errors import BinepError, choose

Array = Any
Shape = tuple[int, ...]

SIZES = ("kind", "below", "above", "kernel", "padding", "pool")
LEVELS = 255  # an 8-bit pixel stands for pixel / LEVELS


@dataclass(frozen=True, eq=False)
class StoredCoupling:
    """One coupling: its shape and its parameters.

    Attributes:
        kind: "dense" or "conv"; kernel, padding and pool belong to the latter.
        below, above: neurons (dense) or channels (conv).
        signs: int8 +-1, (above, below) or (above, below, kernel, kernel); None for real weights.
        scale: float32 alpha, () for dense, (above,) for conv; None for real weights.
        weight: float32, shaped like the signs; None for binary weights.
        bias: float32, (above,), or None.
    """

    kind: str
    below: int
    above: int
    kernel: int = 1
    padding: int = 0
    pool: int = 1
    signs: Array = None
    scale: Array = None
    weight: Array = None
    bias: Array = None

    def __post_init__(self) -> None:
        choose(self.kind, KINDS, "kind of a coupling")
        if self.kind == "dense" and (self.kernel, self.padding, self.pool) != (1, 0, 1):
            raise BinepError("a dense coupling: allowed are kernel=1, padding=0 and pool=1")

    @property
    def binary(self) -> bool:
        return self.signs is not None

    @property
    def facts(self) -> dict[str, Any]:
        """All but the parameters, as JSON has it: the keys of `allowed.COUPLING`."""
        return {
            **{name: getattr(self, name) for name in SIZES},
            "weights": "binary" if self.binary else "real",
            "bias": self.bias is not None,
        }

    @property
    def gain(self) -> Array:
        """What its sums are multiplied by, alpha or 1 for real weights: float32, () or (above,)."""
        return self.scale if self.binary else np.float32(1)

    @property
    def offset(self) -> Array:
        """The bias, zeros where there is none: float32 (above,)."""
        return np.zeros(self.above, np.float32) if self.bias is None else self.bias

    @property
    def weight_shape(self) -> Shape:
        side = (self.kernel, self.kernel) if self.kind == "conv" else ()
        return (self.above, self.below, *side)

    @property
    def fan_in(self) -> int:
        """Synapses of one neuron above."""
        return math.prod(self.weight_shape[1:])

    def map_shape(self, below_shape: Shape) -> Shape:
        """(above, height, width) of a convolution's maps, before pooling."""
        grow = 2 * self.padding - self.kernel + 1
        return (self.above, below_shape[1] + grow, below_shape[2] + grow)

    def above_shape(self, below_shape: Shape) -> Shape:
        """The shape of the layer above; an error if the layer below does not fit."""
        if self.kind == "dense":
            if math.prod(below_shape) != self.below:
                raise BinepError(f"dense coupling of {self.below} inputs on a layer {below_shape}")
            return (self.above,)
        if len(below_shape) != 3 or below_shape[0] != self.below:
            raise BinepError(f"conv coupling of {self.below} channels on a layer {below_shape}")
        _, height, width = self.map_shape(below_shape)
        if min(height, width) < max(self.pool, 1):
            raise BinepError(f"conv coupling leaves nothing of a layer {below_shape}")
        return (self.above, height // self.pool, width // self.pool)


@dataclass(frozen=True, eq=False)
class StoredNetwork:
    """A trained network as it is shipped; see `docs/format.md` for what the fields mean.

    Attributes:
        input_shape: of one sample. couplings: from input to output.
        activations: "binary" (with `threshold` and `sigma`) or "real".
        dynamics: "prototypical", "energy" (with `dt`) or "hopfield".
        updates: "simultaneous" or "alternating": whether layers move at once or in turn.
        steps: T of the free phase. readout: what `predict` does unless told otherwise.
        classes, per_class: the output neurons, those of a class adjacent.
        mean, std: of the normalisation of pixels, one per channel; None where pixels go in as they
            are. image_shape: (channels, height, width) of an image.
        origin: where it comes from (recipe, seed, commit, ...), for people to read.
    """

    input_shape: Shape
    couplings: Sequence[StoredCoupling]
    activations: str
    threshold: float
    sigma: float
    dynamics: str
    updates: str
    dt: float
    initial_state: float
    steps: int
    cost: str
    classes: int
    per_class: int
    readout: str
    image_shape: Shape
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        allowed.check_facts(self.facts)
        allowed.check_network(self)

    @property
    def facts(self) -> dict[str, Any]:
        """All but the parameters, as JSON has it: the keys of `allowed.NETWORK`."""
        lists = ("input_shape", "image_shape", "mean", "std")
        facts = {name: getattr(self, name) for name in allowed.NETWORK}
        facts |= {name: list(facts[name]) for name in lists if facts[name] is not None}
        return {**facts, "couplings": [coupling.facts for coupling in self.couplings]}

    @property
    def binary(self) -> bool:
        """Whether what neurons send is one bit."""
        return self.activations == "binary"

    @property
    def bits(self) -> bool:
        """Whether a bit is all that a neuron keeps from one step to the next."""
        return self.dynamics == "hopfield"

    @property
    def turns(self) -> list[range]:
        """Which layers move together in a step, by number from 0, and in which order."""
        return turns(self.updates, len(self.relaxing))

    @property
    def shapes(self) -> list[Shape]:
        """Of all layers, from the input to what the last coupling drives."""
        shapes = [tuple(self.input_shape)]
        for coupling in self.couplings:
            shapes.append(coupling.above_shape(shapes[-1]))
        return shapes

    @property
    def relaxing(self) -> Sequence[StoredCoupling]:
        """The couplings inside the dynamics: all of them, or all but a softmax readout."""
        return self.couplings[: -1 if self.cost == "cross_entropy" else None]

    @property
    def layer_shapes(self) -> list[Shape]:
        """Of the layers that relax, s1 to the top."""
        return self.shapes[1 : len(self.relaxing) + 1]

    def gain_up(self, n: int) -> Array:
        """The gain of coupling n on the way up, where it may sum pixels as they are: float32."""
        gain = self.couplings[n].gain
        return gain / np.float32(LEVELS) if n == 0 and self.mean is None else gain

    def inputs(self, images: Array) -> Array:
        """A mini-batch as the network receives it: uint8 pixels, bits, or float32.

        Args:
            images: uint8 pixels 0..255, (batch, ...), normalised here where the network was trained
                on normalised ones; or floats, taken as what the network itself receives.
        """
        images = np.asarray(images)
        if images.ndim < 1 or images.shape[1:] not in {
            tuple(self.image_shape),
            tuple(self.input_shape),
            (math.prod(self.input_shape),),
        }:
            raise BinepError(
                f"images of shape {images.shape}: allowed is (batch, "
                f"{', '.join(map(str, self.image_shape))}), or flat"
            )
        if images.dtype == np.uint8 and self.mean is not None:
            mean, std = (
                np.array(each, np.float32).reshape(-1, *[1] * (len(self.image_shape) - 1))
                for each in (self.mean, self.std)
            )
            pixels = images.reshape(-1, *self.image_shape).astype(np.float32)
            images = (pixels / np.float32(LEVELS) - mean) / std
        elif np.issubdtype(images.dtype, np.floating):
            images = images.astype(np.float32, copy=False)
            if not np.isfinite(images).all():
                raise BinepError("images hold NaN or infinite values: allowed are finite numbers")
        elif images.dtype not in (np.dtype(np.uint8), np.dtype(bool)):
            raise BinepError(
                f"images of dtype {images.dtype}: allowed are uint8 (0..255), bool and floats"
            )
        return np.ascontiguousarray(images.reshape(-1, *self.input_shape))

    def scores(self, top: Array, readout: str | None = None) -> Array:
        """One number a class, (batch, classes), from the output neurons, (batch, outputs)."""
        groups = top.reshape(len(top), self.classes, self.per_class)
        if choose(readout or self.readout, READOUTS, "readout") == "single":
            return groups[:, :, 0]
        if np.issubdtype(groups.dtype, np.integer):
            return groups.sum(2)
        return groups.sum(2, dtype=np.float64) / self.per_class
