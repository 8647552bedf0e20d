"""A mini-batch while it relaxes, in float32 (`runtime`) or in integers (`fixed`)."""

from typing import Protocol

import numpy as np

from binep.deploy.stored import Array, Shape, StoredNetwork
from binep.deploy.sums import Sums

State = list[Array]


class Arithmetic(Protocol):
    """How sums become drives, and drives states."""

    def initial(self, shape: Shape) -> Array:
        """The state at t = 0."""
        ...

    def activity(self, s: Array) -> Array:
        """What a layer sends."""
        ...

    def up(self, n: int, sums: Array, below: Array) -> Array:
        """The drive through coupling n on the layer above, bias included, from its sums."""
        ...

    def down(self, n: int, sums: Sums, above: Array, switches: Array | None) -> Array:
        """The drive through coupling n on the layer below."""
        ...

    def advance(self, s: Array, drive: Array, nudge: Array | None = None) -> Array:
        """The state one step on."""
        ...


class Batch:
    """A mini-batch while it relaxes: its states, and the drives that its activity exerts.

    A drive is computed again only for the samples whose activity has changed: that is exact, and
    with binary activations most of them soon do not.
    """

    def __init__(
        self, network: StoredNetwork, arithmetic: Arithmetic, sums: list[Sums], x: Array
    ) -> None:
        self.arithmetic, self.sums = arithmetic, sums[: len(network.relaxing)]
        self.state: State = [arithmetic.initial((len(x), *shape)) for shape in network.layer_shapes]
        total, switches = self.sums[0].up(x)
        first = arithmetic.up(0, total, x)
        self.up = [first] + [np.empty(s.shape, first.dtype) for s in self.state[1:]]
        self.down = [np.empty(s.shape, first.dtype) for s in self.state[:-1]]
        self.switches: list[Array | None] = [switches] + [None] * (len(self.sums) - 1)
        self.sent: list[Array | None] = [None] * len(self.state)

    def step(self, nudge: Array | None = None) -> bool:
        """All layers move at once, the top one nudged if asked; whether anything moved."""
        self._update_drives()
        moved = False
        for n, s in enumerate(self.state):
            top = n == len(self.down)
            drive = self.up[n] if top else self.up[n] + self.down[n]
            self.state[n] = self.arithmetic.advance(s, drive, nudge if top else None)
            moved = moved or not np.array_equal(s, self.state[n])
        return moved

    def settle_switches(self) -> list[Array | None]:
        """The pools' switches at the present activity, one entry a coupling."""
        self._update_drives()
        return [None if each is None else each.copy() for each in self.switches]

    def _update_drives(self) -> None:
        activity = [self.arithmetic.activity(s) for s in self.state]
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
                self.up[n][which] = self.arithmetic.up(n, total, below)
                if switches is not None:
                    self._switch(n, which, switches)
            # The switches of a conv coupling change with the layer below it.
            which = changed[n] if sums.coupling.kind == "dense" else np.union1d(which, changed[n])
            if len(which):
                chosen = self.switches[n]
                self.down[n - 1][which] = self.arithmetic.down(
                    n, sums, activity[n][which], None if chosen is None else chosen[which]
                )

    def _switch(self, n: int, which: Array, switches: Array) -> None:
        before = self.switches[n]
        if before is None:
            self.switches[n] = switches
        else:
            before[which] = switches
