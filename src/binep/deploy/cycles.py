"""How many cycles a core takes for an image: counted from the bits that change, without simulation.

What is counted here is the order of events of `binep_control` and `binep_scan`, cycle by cycle; the
register CYCLES of a simulated core has the same number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    steps = [_bits(model, state) for state in model.trace(image[None])]
    read, _ = _free(core, steps)
    return Cycles(read + _LAST, 0 if core.learning is None else _learn(core, model, image, label))


def _learn(core: Core, model: FixedNetwork, image: Array, label: int) -> int:
    """An image is read and learnt."""
    assert core.learning is not None
    learner, phases = FixedLearner(model, core.learning), list[list[Bits]]()

    def watch(state: State, begins: bool) -> None:
        if begins:
            phases.append([])
        phases[-1].append(_bits(model, state))

    learner.watch = watch
    learner.learn(image, label)
    total, known = _free(core, phases[0])
    for p, phase in enumerate(phases[1:], start=1):
        if p > 1:
            total += _COMMAND + _pass(core, range(len(core.couplings)))  # Back to the free phase.
        cycles, known = _phase(core, known, phase)
        total += cycles
    plan = core.learning.rule.plan
    plus, minus = phases[plan.plus][-1], phases[plan.minus][-1]
    total += _COMMAND + _contrast(core, plus, minus)
    total += _COMMAND + _pass(core, range(len(core.couplings)))  # Biases.
    return total + _COMMAND + _LAST  # No momenta are halved.


def _bits(model: FixedNetwork, state: State) -> Bits:
    """The bits of all layers, of one image."""
    return [model.activity(layer[0]) for layer in state]


def _free(core: Core, steps: Sequence[Bits]) -> tuple[int, Bits]:
    """An image begins, its free phase, the readout; and what sums then know."""
    fresh = [np.zeros(size, bool) for size in core.sizes[1:]]
    cycles, known = _phase(core, fresh, steps)
    return _begin(core) + cycles + _show(core), known


def _begin(core: Core) -> int:
    """The input is summed; meanwhile sums are cleared and layers begin."""
    scan = core.blocks(0) * (_VISITED + _rows(core, np.ones(core.sizes[1], bool)))
    sizes = [max(core.words(n + 1), core.blocks(n)) for n in range(1, len(core.couplings))]
    clears = max(1 << max(1, (size - 1).bit_length()) for size in sizes)
    return _COMMAND + max(scan, clears, _pass(core, range(len(core.couplings))))


def _show(core: Core) -> int:
    """The readout."""
    return _COMMAND + core.words(len(core.couplings)) * core.units + _STAGES


def _pass(core: Core, layers: range) -> int:
    """A pass over some layers at once, numbered from 0."""
    return max(core.words(n + 1) for n in layers) + _STAGES


def _phase(core: Core, known: Bits, steps: Sequence[Bits]) -> tuple[int, Bits]:
    """Steps from the first of `steps` on, of which sums know `known`; and what they know then.

    Layers in turn end a phase with the first step that changes no bit.
    """
    total, bits = 0, list(steps[0])
    for before, after in pairwise(steps):
        for layers in core.network.turns:
            changed = [one ^ other for one, other in zip(known, bits, strict=True)]
            scans = (_scan(core, n, *changed[n - 1 : n + 1]) for n in range(1, len(core.couplings)))
            total += _COMMAND + max(scans) + _COMMAND + _pass(core, layers)
            known, bits = bits, [after[n] if n in layers else a for n, a in enumerate(bits)]
        if core.network.bits and all(map(np.array_equal, before, after)):
            break
    return total, known


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
