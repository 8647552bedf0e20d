"""The processes that share a training: each learns from its part of every mini-batch.

Every process holds the whole network and draws the same mini-batches, signs and noise from the same
random streams. It relaxes its own part; contrasts are summed over all parts before any weight
flips, so that all processes keep the same weights. With bits these sums are integers: any number of
processes gives the weights of one, bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from binep.core.gradients import Learning
from binep.core.metrics import Tally
from binep.core.network import READOUTS, Network
from binep.engines.exchange import Exchange
from binep.errors import BinepError


@dataclass(frozen=True)
class Part:
    """A process's part of a mini-batch; it is `binep.core.gradients.Whole` to its learning.

    Attributes:
        x, labels: its samples, at least one.
        batch: samples in the whole mini-batch.
        idle: there were too few samples: it has one of another process's, which does not count.
    """

    x: Tensor
    labels: Tensor
    batch: int
    idle: bool = False
    exchange: Exchange | None = None

    @property
    def whole(self) -> "Part | None":
        """The mini-batch that this is a part of, if it is not all of it."""
        return None if self.exchange is None else self

    def add_up(self, exact: Sequence[Tensor], rounded: Sequence[Tensor]) -> None:
        """Put the sum over all processes in place of each tensor."""
        assert self.exchange is not None
        if self.idle:
            for tensor in (*exact, *rounded):
                tensor.zero_()
        self.exchange.add_up(exact, rounded)

    def counted(self, seen: Tally) -> Tally:
        """The part of a tally that counts."""
        if not self.idle:
            return seen
        return Tally(batches=seen.batches, flips=seen.flips)


@dataclass
class Processes:
    """The processes of a training, and which of them this is.

    Attributes:
        rank: number of this process; 0 leads: it reads, writes and prints. count: of processes.
        exchange: how they sum; None for a single process.
    """

    rank: int = 0
    count: int = 1
    exchange: Exchange | None = field(default=None, repr=False)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def part(self, x: Tensor, labels: Tensor) -> Part:
        """This process's samples of a mini-batch: consecutive, and as many as the others' give or
        take one."""
        batch = len(x)
        if self.exchange is None:
            return Part(x, labels, batch)
        first, last = (batch * n // self.count for n in (self.rank, self.rank + 1))
        idle = first == last
        if idle:
            first, last = 0, 1
        return Part(x[first:last], labels[first:last], batch, idle, self.exchange)

    def merge(self, tallies: Sequence[Tally]) -> Tally:
        """One tally per mini-batch of what all processes counted."""
        if self.exchange is not None and tallies:
            return self._merge(self.exchange, tallies)
        total = Tally()
        for tally in tallies:
            total += tally
        return total

    def _merge(self, exchange: Exchange, tallies: Sequence[Tally]) -> Tally:
        # Of a mini-batch's last change and its steps the largest counts, as in one process.
        largest = exchange.largest([[t.residual, t.free_steps, t.nudged_steps] for t in tallies])
        own = Tally()
        for tally in tallies:
            own += tally
        samples, loss, undecided, *wrong = exchange.total(
            [own.samples, own.loss, own.undecided, *(own.wrong[r] for r in READOUTS)]
        )
        return own.replace(
            samples=int(samples),
            loss=loss,
            undecided=int(undecided),
            wrong={r: int(count) for r, count in zip(READOUTS, wrong, strict=True)},
            residual=sum((row[0] for row in largest), 0.0),
            free_steps=sum(int(row[1]) for row in largest),
            nudged_steps=sum(int(row[2]) for row in largest),
        )

    def any(self, *asked: bool) -> list[bool]:
        """Whether at least one process asks for it."""
        if self.exchange is None:
            return list(asked)
        return [bool(row) for row in self.exchange.largest([list(asked)])[0]]

    def check_same(self, digest: bytes, what: str) -> None:
        """Check that all processes hold the same: a difference is a fault of machine or binep."""
        if self.exchange is None:
            return
        found = self.exchange.gather(digest)
        odd = next((rank for rank, other in enumerate(found) if other != found[0]), None)
        if odd is not None:
            raise BinepError(
                f"{what} of process {odd} are not those of process 0: nothing was saved since the "
                "last checkpoint; resume from there"
            )


ALONE = Processes()


@runtime_checkable
class SharesWork(Protocol):
    """An engine that can learn from its part of a mini-batch, as one of several processes."""

    def join(self, processes: Processes) -> None: ...


def share(engine: object, network: Network, learning: Learning, processes: Processes) -> None:
    """Make an engine one of several, or raise an error that says why that is impossible."""
    if processes.count == 1:
        return
    name, many = getattr(engine, "name", type(engine).__name__), f"{processes.count} processes"
    if not isinstance(engine, SharesWork):
        raise BinepError(f"engine {name!r} does not train in {many}; engine 'reference' does")
    if learning.tolerance is not None:
        raise BinepError(
            f"learning.tolerance={learning.tolerance} in {many}: a phase would end for each part "
            "of a mini-batch on its own; allowed is no tolerance"
        )
    if getattr(getattr(network, "imperfections", None), "activation_errors", 0):
        raise BinepError(
            f"hardware.activation_errors in {many}: each would draw errors of its own; allowed is 0"
        )
    engine.join(processes)
