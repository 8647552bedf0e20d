"""How many cycles a core takes for an image: counted from the bits that change, without simulation.

What is counted here is the order of events of `binep_control` and `binep_scan`, cycle by cycle; the
register CYCLES of a simulated core has the same number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from binep.deploy.fixed import FixedNetwork
from binep.deploy.learning import FixedLearner
from binep.deploy.relaxing import State
from binep.deploy.stored import Array
from binep.deploy.verilog_core import Core

# A command is issued, started, and found to be done.
_COMMAND = 3
# A block of a scan: fetched, loaded, and at the end drained and stored.
_SKIPPED, _VISITED = 2, 4
# The stages of a layer behind the first.
_STAGES = 2
# The class is handed over.
_LAST = 1

# The bits of all layers.
Bits = list[Array]


@dataclass(frozen=True)
class Cycles:
    """Of one image: to read it, and to read and learn it (0: the core does not learn).

    Momenta are halved every so many images; what that takes is not counted.
    """

    read: int
    learn: int


def count(core: Core, image: Array, label: int) -> Cycles:
    """The cycles that a core takes for an image of uint8 pixels, with its first weights."""
    model = FixedNetwork(core.network, core.state_bits)
    fresh = [np.zeros(size, bool) for size in core.sizes[1:]]
    if core.learning is None:
        states = [[layer[0] for layer in state] for state in model.trace(image[None])]
        return Cycles(_begin(core) + _phase(core, fresh, _bits(model, states)) + _end(core), 0)
    learner, phases = FixedLearner(model, core.learning), list[list[Bits]]()

    def watch(state: State, begins: bool) -> None:
        if begins:
            phases.append([])
        phases[-1].append([model.activity(layer[0]) for layer in state])

    learner.watch = watch
    learner.learn(image, label)
    read = _begin(core) + _phase(core, fresh, phases[0]) + _end(core)
    learn, sent = read, phases[0][-2]
    for p, phase in enumerate(phases[1:], start=1):
        if p > 1:
            learn += _COMMAND + _layers(core)  # Back to the end of the free phase.
            sent = phases[p - 1][-1]
        learn += _phase(core, sent, phase)
        sent = phase[-2]
    plan = core.learning.rule.plan
    plus, minus = phases[plan.plus][-1], phases[plan.minus][-1]
    learn += _COMMAND + _contrast(core, plus, minus)
    learn += _COMMAND + _layers(core)  # Biases.
    learn += _COMMAND  # No momenta are halved.
    return Cycles(read, learn)


def _bits(model: FixedNetwork, states: Sequence[Sequence[Array]]) -> list[Bits]:
    return [[model.activity(layer) for layer in state] for state in states]


def _begin(core: Core) -> int:
    """The input is summed; meanwhile sums are cleared and layers begin."""
    scan = core.blocks(0) * (_VISITED + _rows(core, np.ones(core.sizes[1], bool)))
    sizes = [max(core.words(n + 1), core.blocks(n)) for n in range(1, len(core.couplings))]
    clears = max(1 << max(1, (size - 1).bit_length()) for size in sizes)
    return _COMMAND + max(scan, clears, _layers(core))


def _end(core: Core) -> int:
    """The readout, and its class."""
    return _COMMAND + core.words(len(core.couplings)) * core.units + _STAGES + _LAST


def _layers(core: Core) -> int:
    """A pass over all layers at once."""
    return max(core.words(n) for n in range(1, len(core.sizes))) + _STAGES


def _phase(core: Core, sent: Bits, bits: Sequence[Bits]) -> int:
    """Steps from the first of `bits` on, of which sums know `sent`."""
    total = 0
    for now in bits[:-1]:
        scans = (
            _scan(core, n, sent[n - 1] ^ now[n - 1], sent[n] ^ now[n])
            for n in range(1, len(core.couplings))
        )
        total += _COMMAND + max(scans) + _COMMAND + _layers(core)
        sent = now
    return total


def _scan(core: Core, n: int, below: Array, above: Array) -> int:
    """Coupling n follows what has changed below and above."""
    everything, listed = _rows(core, np.ones_like(above)), _rows(core, above)
    total = 0
    for block in _blocks(core, below):
        if block.any():
            total += _VISITED + everything
        else:
            total += _VISITED + listed if above.any() else _SKIPPED
    return total


def _contrast(core: Core, plus: Bits, minus: Bits) -> int:
    """All couplings learn at once."""
    moved = _rows(core, plus[0] ^ minus[0])
    longest = core.blocks(0) * (_VISITED + moved)
    for n in range(1, len(core.couplings)):
        rows = _rows(core, plus[n] | minus[n])
        blocks = _blocks(core, plus[n - 1] | minus[n - 1])
        longest = max(longest, sum(_VISITED + rows if b.any() else _SKIPPED for b in blocks))
    return longest


def _rows(core: Core, mask: Array) -> int:
    """A cycle for each row that is visited; a group takes two to be read, the last one."""
    counts = [int(group.sum()) for group in _blocks(core, mask)]
    return sum(max(2, each) for each in counts[:-1]) + max(1, counts[-1])


def _blocks(core: Core, bits: Array) -> list[Array]:
    return [bits[k : k + core.parallel] for k in range(0, len(bits), core.parallel)]
