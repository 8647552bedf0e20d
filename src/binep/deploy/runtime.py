"""The runtime: relaxation and prediction with numpy alone, as the training network has them.

The order of arithmetic is the definition's: sums over synapses, then the scale, then the bias, then
up + down, then the state, each float32 operation rounded on its own. With binary activations the
sums are exact integers, so states agree bit for bit with `binep.relax`; with real activations the
order of the sums is BLAS's own, and states agree to rounding.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from binep.deploy import packed
from binep.deploy.relaxing import Batch, State
from binep.deploy.stored import LEVELS, Array, Shape, StoredNetwork
from binep.deploy.sums import Sums, find_kernels
from binep.errors import BinepError

# Numbers in the windows of a convolution, over a mini-batch: what bounds the memory that is used.
_ROOM = 2**24
_LARGEST_BATCH = 256


def load(path: str | Path, *, kernels: bool | None = None) -> "Runtime":
    """The network of a packed file, ready to `predict` and `relax`, without torch.

    Args:
        path: a file that `binep export --format packed` wrote.
        kernels: whether to sum by bit-packed Numba kernels; by default wherever Numba is installed
            and activations are binary. The results are the same.
    """
    return Runtime(packed.load(path), kernels=kernels)


class Runtime:
    """A shipped network: `predict(images)` gives classes, `relax(images)` the states s1..sN.

    Images are uint8 pixels (0..255), (batch, *image shape), or floats as the training network
    receives them.
    """

    def __init__(self, network: StoredNetwork, *, kernels: bool | None = None) -> None:
        self.network, self._arithmetic = network, Float32(network)
        found = find_kernels() if kernels is not False and network.binary else None
        if kernels and found is None:
            why = "numba is not installed" if network.binary else "activations are real"
            raise BinepError(f"kernels=True: {why}, allowed is kernels=False")
        below = network.shapes
        self._sums = [
            Sums(coupling, below[n], found) for n, coupling in enumerate(network.couplings)
        ]

    def __repr__(self) -> str:
        layers = "-".join("x".join(map(str, shape)) for shape in self.network.shapes)
        return f"Runtime({layers}, {self.network.activations} activations)"

    def predict(self, images: Array, readout: str | None = None) -> Array:
        """Class indices, int64 (batch,), after T free steps; on a tie the lower class.

        Args:
            readout: "average" over the neurons of a class, or "single": its first one.
        """
        scores = [
            self.network.scores(self._top(state), readout)
            for state in self._relaxed(images, self.network.steps)
        ]
        return np.concatenate(scores).argmax(1)

    def relax(self, images: Array, steps: int | None = None) -> State:
        """The states s1..sN after so many free steps, T by default: float32 (batch, *layer)."""
        steps = self.network.steps if steps is None else steps
        if not isinstance(steps, int) or steps < 1:
            raise BinepError(f"steps={steps!r}: allowed is an integer of at least 1")
        return [np.concatenate(layer) for layer in zip(*self._relaxed(images, steps), strict=True)]

    def trace(self, images: Array) -> Iterator[State]:
        """The states at t = 0, 1, ..., T, for a mini-batch that is relaxed at once."""
        batch = Batch(self.network, self._arithmetic, self._sums, self.network.inputs(images))
        yield list(batch.state)
        for _ in range(self.network.steps):
            batch.step()
            yield list(batch.state)

    def _relaxed(self, images: Array, steps: int) -> Iterator[State]:
        """The states after so many steps, a few samples at a time."""
        x = self.network.inputs(images)
        if len(x) == 0:
            raise BinepError("no images: allowed is a batch of at least 1")
        size = self._batch_size()
        for begin in range(0, len(x), size):
            batch = Batch(self.network, self._arithmetic, self._sums, x[begin : begin + size])
            for _ in range(steps):
                if not batch.step():
                    break
            yield list(batch.state)

    def _batch_size(self) -> int:
        windows = [
            np.prod(coupling.map_shape(shape)[1:]) * max(coupling.fan_in, coupling.above)
            for coupling, shape in zip(self.network.couplings, self.network.shapes, strict=False)
            if coupling.kind == "conv"
        ]
        return int(np.clip(_ROOM // max([1, *windows]), 1, _LARGEST_BATCH))

    def _top(self, state: State) -> Array:
        """What is read out: the top layer, or what the softmax sees of it."""
        if self.network.cost == "mse":
            return state[-1]
        below = self._arithmetic.activity(state[-1])
        sums, _ = self._sums[-1].up(below)
        return self._arithmetic.up(len(self._sums) - 1, sums, below)


class Float32:
    """The training network's arithmetic: every operation rounded to float32 on its own."""

    def __init__(self, network: StoredNetwork) -> None:
        self.network = network

    def initial(self, shape: Shape) -> Array:
        return np.full(shape, self.network.initial_state, np.float32)

    def activity(self, s: Array) -> Array:
        """Bits, or `clamp(s, 0, 1)`."""
        network = self.network
        return s >= np.float32(network.threshold) if network.binary else s.clip(0, 1)

    def up(self, n: int, sums: Array, below: Array) -> Array:
        """`scale * sums`, then `+ bias`."""
        coupling = self.network.couplings[n]
        levels = np.float32(LEVELS if below.dtype == np.uint8 else 1)
        shape = (-1, 1, 1) if coupling.kind == "conv" else (-1,)
        drive = np.asarray(coupling.gain / levels).reshape(shape) * sums
        return drive if coupling.bias is None else drive + coupling.bias.reshape(shape)

    def down(self, n: int, sums: Sums, above: Array, switches: Array | None) -> Array:
        """`scale * sums`; where scales stand inside a sum of bits, it is taken in float64."""
        coupling = sums.coupling
        if coupling.kind == "dense":
            return coupling.gain * sums.down(above)
        wide = np.float64 if above.dtype == bool else np.float32
        scale = np.broadcast_to(coupling.gain, (coupling.above,)).astype(wide)
        return sums.down_scaled(above, switches, scale).astype(np.float32)

    def advance(self, s: Array, drive: Array, nudge: Array | None = None) -> Array:
        network = self.network
        if network.dynamics == "prototypical":
            return drive.clip(0, 1)
        keep, take = np.float32(1 - network.dt), np.float32(network.dt)
        return (keep * s + take * (self._slope(s) * drive)).clip(0, 1)

    def _slope(self, s: Array) -> Array:
        """`rho'(s)`, float32."""
        network = self.network
        if not network.binary:
            return ((s >= 0) & (s <= 1)).astype(np.float32)
        inside = np.abs(s - np.float32(network.threshold)) <= np.float32(network.sigma)
        return np.where(inside, np.float32(1 / (2 * network.sigma)), np.float32(0))
