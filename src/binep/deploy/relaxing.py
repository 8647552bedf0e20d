"""A stored network while it relaxes, in float32 (`runtime`) or in integers (`fixed`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from binep.deploy import rules
from binep.deploy.allowed import numbers
from binep.deploy.stored import Array, Shape, StoredNetwork
from binep.deploy.sums import Sums
from binep.errors import BinepError

State = list[Array]

# Numbers in the windows of a convolution, over a mini-batch: what bounds the memory that is used.
_ROOM = 2**24
LARGEST_BATCH = 256


class Relaxer(ABC):
    """A stored network in one arithmetic, which defines how sums become drives and states.

    Attributes:
        kernels: of `find_kernels`, see `Sums`.
    """

    network: StoredNetwork
    kernels: Any

    @abstractmethod
    def parameters(self, n: int) -> tuple[Array, Array, Array]:
        """Of coupling n: gain upwards, of pixels as they are, gain downwards, and bias."""

    @abstractmethod
    def initial(self, shape: Shape) -> Array:
        """The state at t = 0."""

    @abstractmethod
    def activity(self, s: Array) -> Array:
        """What a layer sends."""

    @abstractmethod
    def up(self, n: int, sums: Array, below: Array) -> Array:
        """The drive through coupling n on the layer above, bias included, from its sums."""

    @abstractmethod
    def down(self, n: int, sums: Sums, above: Array, switches: Array | None) -> Array:
        """The drive through coupling n on the layer below."""

    @abstractmethod
    def advance(self, s: Array, drive: Array, nudge: Array | None = None) -> Array:
        """The next state."""

    def sums(self) -> list[Sums]:
        """The sums of all couplings, of their present weights."""
        pairs = zip(self.network.couplings, self.network.shapes, strict=False)
        return [Sums(coupling, shape, self.kernels) for coupling, shape in pairs]

    def inputs(self, images: Array) -> Array:
        """A mini-batch as the network receives it, see `StoredNetwork.inputs`."""
        return self.network.inputs(images)

    def predict(self, images: Array, readout: str | None = None) -> Array:
        """Class indices, int64 (batch,), after T free steps; on a tie the lower class.

        Args:
            readout: "average" over the neurons of a class, or "single": its first one.
        """
        return rules.winner(self.scores(images, readout))

    def scores(self, images: Array, readout: str | None = None) -> Array:
        """One number per class, (batch, classes), as `predict` compares them."""
        states = self._relaxed(images, self.network.steps)
        return np.concatenate([self.network.scores(self._top(s), readout) for s in states])

    def relax(self, images: Array, steps: int | None = None) -> State:
        """The states s1..sN after so many free steps, T by default: (batch, *layer)."""
        steps = self.network.steps if steps is None else steps
        if not isinstance(steps, int) or steps < 1:
            raise BinepError(f"steps={steps!r}: allowed is an integer of at least 1")
        return [np.concatenate(layer) for layer in zip(*self._relaxed(images, steps), strict=True)]

    def trace(self, images: Array) -> Iterator[State]:
        """The states at t = 0, 1, ..., T, for a mini-batch that is relaxed at once."""
        batch = self.begin(images)
        yield list(batch.state)
        for _ in range(self.network.steps):
            batch.step()
            yield list(batch.state)

    def begin(self, images: Array) -> "Batch":
        """A mini-batch at t = 0."""
        return Batch(self, self.sums(), self.inputs(images))

    def _relaxed(self, images: Array, steps: int) -> Iterator[State]:
        """The states after `steps` steps, a few samples at a time."""
        x, sums, size = self.inputs(images), self.sums(), self._batch_size()
        if len(x) == 0:
            raise BinepError("no images: allowed is a batch of at least 1")
        for begin in range(0, len(x), size):
            batch = Batch(self, sums, x[begin : begin + size])
            for _ in range(steps):
                if not batch.step():
                    break
            yield list(batch.state)

    def _batch_size(self) -> int:
        """As many samples as take up to `_ROOM` numbers at the largest coupling."""
        pairs = zip(self.network.couplings, self.network.shapes, strict=False)
        most = max(numbers(*pair, n) for n, pair in enumerate(pairs))
        return max(1, min(_ROOM // most, LARGEST_BATCH))

    def _top(self, state: State) -> Array:
        """What is read out: the top layer, or what the softmax sees of it."""
        if self.network.cost == "mse":
            return state[-1]
        below, sums = self.activity(state[-1]), self.sums()
        return self.up(len(sums) - 1, sums[-1].up(below)[0], below)


class Batch:
    """A relaxing mini-batch: its states, and the drives due to its activity.

    A drive is computed again only for the samples whose activity has changed: that is exact, and
    with binary activations most of them soon do not.
    """

    def __init__(self, model: Relaxer, sums: list[Sums], x: Array) -> None:
        self.model, self.sums = model, sums[: len(model.network.relaxing)]
        self.state: State = [
            model.initial((len(x), *shape)) for shape in model.network.layer_shapes
        ]
        total, switches = self.sums[0].up(x)
        first = model.up(0, total, x)
        self.up = [first] + [np.empty(s.shape, first.dtype) for s in self.state[1:]]
        self.down = [np.empty(s.shape, first.dtype) for s in self.state[:-1]]
        self.switches: list[Array | None] = [switches] + [None] * (len(self.sums) - 1)
        self.sent: list[Array | None] = [None] * len(self.state)

    def step(self, nudge: Array | None = None) -> bool:
        """All layers move, at once or in turn, the top one nudged if asked; whether any has."""
        moved = False
        for layers in self.model.network.turns:
            self._update_drives()
            for n in layers:
                top = n == len(self.down)
                drive = self.up[n] if top else self.up[n] + self.down[n]
                before = self.state[n]
                self.state[n] = self.model.advance(before, drive, nudge if top else None)
                moved = moved or not np.array_equal(before, self.state[n])
        return moved

    def settle_switches(self) -> list[Array | None]:
        """The pools' switches at the present activity, one entry a coupling."""
        self._update_drives()
        return [None if each is None else each.copy() for each in self.switches]

    def _update_drives(self) -> None:
        activity = [self.model.activity(s) for s in self.state]
        changed = [
            np.arange(len(now))
            if before is None
            else np.flatnonzero((now != before).reshape(len(now), -1).any(1))
            for now, before in zip(activity, self.sent, strict=True)
        ]
        self.sent = list(activity)
        for n, sums in enumerate(self.sums[1:], start=1):
            which = changed[n - 1]
            if len(which):
                below = activity[n - 1][which]
                total, switches = sums.up(below)
                self.up[n][which] = self.model.up(n, total, below)
                if switches is not None:
                    self._switch(n, which, switches)
            # The switches of a conv coupling change with the layer below it.
            which = changed[n] if sums.coupling.kind == "dense" else np.union1d(which, changed[n])
            if len(which):
                chosen = self.switches[n]
                self.down[n - 1][which] = self.model.down(
                    n, sums, activity[n][which], None if chosen is None else chosen[which]
                )

    def _switch(self, n: int, which: Array, switches: Array) -> None:
        before = self.switches[n]
        if before is None:
            self.switches[n] = switches
        else:
            before[which] = switches
