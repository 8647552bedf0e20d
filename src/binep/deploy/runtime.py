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
from binep.deploy.stored import Array, StoredCoupling, StoredNetwork
from binep.deploy.sums import Sums, find_kernels
from binep.errors import BinepError

State = list[Array]

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
        self.network = network
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
        batch = _Batch(self.network, self._sums, self.network.inputs(images))
        yield batch.state
        for _ in range(self.network.steps):
            batch.step()
            yield batch.state

    def _relaxed(self, images: Array, steps: int) -> Iterator[State]:
        """The states after so many steps, a few samples at a time."""
        x = self.network.inputs(images)
        if len(x) == 0:
            raise BinepError("no images: allowed is a batch of at least 1")
        size = self._batch_size()
        for begin in range(0, len(x), size):
            batch = _Batch(self.network, self._sums, x[begin : begin + size])
            for _ in range(steps):
                if not batch.step():
                    break
            yield batch.state

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
        below = _activity(self.network, state[-1])
        sums, _ = self._sums[-1].up(below)
        return _scaled(self.network.couplings[-1], sums, below)


class _Batch:
    """A mini-batch while it relaxes: its states, and the drives that its activity exerts.

    A drive is computed again only for the samples whose activity has changed: that is exact, and
    with binary activations most of them soon do not.
    """

    def __init__(self, network: StoredNetwork, sums: list[Sums], x: Array) -> None:
        self.network, self.sums = network, sums[: len(network.relaxing)]
        self.state: State = [
            np.full((len(x), *shape), network.initial_state, np.float32)
            for shape in network.layer_shapes
        ]
        first = network.couplings[0]
        self.up = [_scaled(first, self.sums[0].up(x)[0], x)]
        self.up += [np.empty_like(s) for s in self.state[1:]]
        self.down = [np.empty_like(s) for s in self.state[:-1]]
        self.switches: list[Array] = [np.empty(0)] * len(self.sums)
        self.sent: list[Array | None] = [None] * len(self.state)

    def step(self) -> bool:
        """All layers move at once; whether anything still moves."""
        self._update_drives()
        moved = False
        for n, s in enumerate(self.state):
            drive = self.up[n] + self.down[n] if n < len(self.down) else self.up[n]
            self.state[n] = _advanced(self.network, s, drive)
            moved = moved or not np.array_equal(s, self.state[n])
        return moved

    def _update_drives(self) -> None:
        activity = [_activity(self.network, s) for s in self.state]
        changed = [
            np.arange(len(now))
            if before is None
            else np.flatnonzero((now != before).reshape(len(now), -1).any(1))
            for now, before in zip(activity, self.sent, strict=True)
        ]
        self.sent = list(activity)
        for n, sums in enumerate(self.sums[1:], start=1):
            coupling, which = sums.coupling, changed[n - 1]
            if len(which):
                below = activity[n - 1][which]
                total, switches = sums.up(below)
                self.up[n][which] = _scaled(coupling, total, below)
                if switches is not None:
                    if len(which) == len(self.up[n]):
                        self.switches[n] = switches
                    else:
                        self.switches[n][which] = switches
            # The switches of a conv coupling change with the layer below it.
            which = changed[n] if coupling.kind == "dense" else np.union1d(which, changed[n])
            if len(which):
                self.down[n - 1][which] = self._sent_down(n, activity[n][which], which)

    def _sent_down(self, n: int, above: Array, which: Array) -> Array:
        sums, coupling = self.sums[n], self.sums[n].coupling
        if coupling.kind == "dense":
            return _gain(coupling) * sums.down(above)
        # Scales stand inside this sum; of bits it is taken in float64, where it is exact.
        wide = np.float64 if above.dtype == bool else np.float32
        scale = np.broadcast_to(_gain(coupling), (coupling.above,)).astype(wide)
        switches = self.switches[n][which] if coupling.pool > 1 else None
        return sums.down_scaled(above, switches, scale).astype(np.float32)


def _gain(coupling: StoredCoupling) -> Array:
    """alpha, or 1 for real weights: float32, () or (above,)."""
    return coupling.scale if coupling.binary else np.float32(1)


def _scaled(coupling: StoredCoupling, sums: Array, below: Array) -> Array:
    """`up` from its sums: `scale * sums`, then `+ bias`."""
    levels = np.float32(255 if below.dtype == np.uint8 else 1)
    shape = (-1, 1, 1) if coupling.kind == "conv" else (-1,)
    drive = np.asarray(_gain(coupling) / levels).reshape(shape) * sums
    return drive if coupling.bias is None else drive + coupling.bias.reshape(shape)


def _activity(network: StoredNetwork, s: Array) -> Array:
    """What a layer sends: bits, or `clamp(s, 0, 1)`."""
    return s >= np.float32(network.threshold) if network.binary else s.clip(0, 1)


def _advanced(network: StoredNetwork, s: Array, drive: Array) -> Array:
    """The state one free step on."""
    if network.dynamics == "prototypical":
        return drive.clip(0, 1)
    keep, take = np.float32(1 - network.dt), np.float32(network.dt)
    return (keep * s + take * (_slope(network, s) * drive)).clip(0, 1)


def _slope(network: StoredNetwork, s: Array) -> Array:
    """`rho'(s)`, float32."""
    if not network.binary:
        return ((s >= 0) & (s <= 1)).astype(np.float32)
    inside = np.abs(s - np.float32(network.threshold)) <= np.float32(network.sigma)
    return np.where(inside, np.float32(1 / (2 * network.sigma)), np.float32(0))
