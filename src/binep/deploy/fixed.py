"""The network in integers: a relaxation without floating point, for hardware and for the C program.

Possible for binary weights and activations and 8-bit pixels, as bits alone, or under energy-based
dynamics with `dt = 1/2` and a window `rho'` that is always 1. With P = `PARAMETER_BITS` and
F = `state_bits`:

    gain, bias      round(2^P value)                               signed, 64 bits
    drive           gain n + bias + down, exact                    signed, 64 bits
    D               floor(drive / 2^(P - F)), kept in [-2^F, 2^(F+1)]
    s               floor((s + D) / 2), kept in [0, 2^F]           F + 1 bits
    activity        [s >= 2^(F-1)]

Bits alone have no state of their own: it is the drive itself, exactly, and the activity
`[drive >= 2^(P-1)]`.

A drive beyond -1 or 2 takes any state to 0 or 1 in one step: keeping it there changes nothing. The
gains of float32 networks above 2^-17 are exact with P = 40, so that nothing is rounded but F bits
of a state; float32 itself rounds more often. Resting decisions are compared with float32's, for
every sum that can occur, by `compare_decisions`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from binep.deploy import rules
from binep.deploy.relaxing import LARGEST_BATCH, Relaxer, State
from binep.deploy.rules import PARAMETER_BITS
from binep.deploy.runtime import Runtime
from binep.deploy.stored import LEVELS, Array, Shape, StoredNetwork
from binep.deploy.sums import Sums, find_kernels
from binep.errors import BinepError

STATE_BITS = 24
# With more, s + D would not fit into 32 bits.
MOST_STATE_BITS = 29
# Up to here float64 holds sums exactly, which convolutions are taken in.
_LARGEST_DRIVE = 2.0**52
_MOST_READ = 2**10
# Decisions compared one by one; beyond this, a sample of the neurons.
_MOST_THRESHOLDS = 2**22


def why_not(network: StoredNetwork) -> str | None:
    """Why a network cannot run in integers, in a few words; None if it can."""
    if not network.binary:
        return "its activations are real numbers"
    if not all(coupling.binary for coupling in network.couplings):
        return "it has real weights"
    if network.bits and network.threshold != 0.5:
        return f"its threshold is {network.threshold:g}, not 1/2"
    if network.dt != 0.5 and not network.bits:
        return f"its time step is {network.dt:g}: only dt = 1/2 is a shift"
    if (network.threshold != 0.5 or network.sigma != 0.5) and not network.bits:
        return "its pseudo-derivative is not 1 everywhere: that takes threshold = sigma = 1/2"
    if network.mean is not None:
        return "its input is normalised, not 8-bit pixels"
    if not 0 <= network.initial_state <= 1:
        return f"its states start at {network.initial_state:g}, outside [0, 1]"
    return None


@dataclass(frozen=True)
class Decisions:
    """How one layer's decisions at rest, `drive >= 1/2`, compare with float32's.

    Attributes:
        layer: counted from 1. neurons: how many of them were compared, all unless they are many.
        cases: combinations of a neuron and of the sums that it can receive.
        differ: those in which float32's rounding decides otherwise.
        margin: how far from 1/2 the exact drive of such a case is at most.
    """

    layer: int
    neurons: int
    cases: int
    differ: int
    margin: float


class FixedNetwork(Relaxer):
    """A network in integers: `predict` and `relax` as in `Runtime`, states as integers."""

    def __init__(
        self, network: StoredNetwork, state_bits: int = STATE_BITS, *, kernels: bool = True
    ) -> None:
        reason = why_not(network)
        if reason is not None:
            raise BinepError(f"this network does not run in integers: {reason}")
        if not isinstance(state_bits, int) or not 2 <= state_bits <= MOST_STATE_BITS:
            raise BinepError(f"state bits {state_bits!r}: allowed are 2 to {MOST_STATE_BITS}")
        self.network, self.state_bits = network, state_bits
        self.gains = [_fixed(network.gain_up(n)) for n in range(len(network.couplings))]
        self.gains_down = [_fixed(coupling.scale) for coupling in network.couplings]
        self.biases = [_fixed(coupling.offset) for coupling in network.couplings]
        self.kernels = find_kernels() if kernels else None
        self._check_range()

    def _check_range(self) -> None:
        for n, coupling in enumerate(self.network.couplings):
            pixels = LEVELS if n == 0 else 1
            down = np.broadcast_to(self.gains_down[n], (coupling.above,))
            sums = [
                float(np.abs(self.gains[n]).max()) * coupling.fan_in * pixels,
                float(np.abs(down).sum()) * coupling.kernel**2,
                float(np.abs(self.biases[n]).max()),
            ]
            if sum(sums) >= _LARGEST_DRIVE:
                raise BinepError(
                    f"coupling {n}: drives up to {sum(sums) / 2**PARAMETER_BITS:.3g} do not fit "
                    f"into integers, allowed is below {_LARGEST_DRIVE / 2**PARAMETER_BITS:g}"
                )
        if self.network.bits and self.network.per_class > _MOST_READ:
            raise BinepError(
                f"per_class={self.network.per_class}: allowed are at most {_MOST_READ}, whose "
                "drives add up to 64 bits"
            )

    @property
    def one(self) -> int:
        """1, in units of a state."""
        return 1 << (PARAMETER_BITS if self.network.bits else self.state_bits)

    @property
    def half(self) -> int:
        """The threshold, 1/2."""
        return self.one >> 1

    def inputs(self, images: Array) -> Array:
        x = super().inputs(images)
        if x.dtype != np.uint8:
            raise BinepError(f"images of dtype {x.dtype}: integers need uint8 pixels")
        return x

    def parameters(self, n: int) -> tuple[Array, Array, Array]:
        return self.gains[n], self.gains_down[n], self.biases[n]

    def initial(self, shape: Shape) -> Array:
        return np.full(shape, round(self.network.initial_state * self.one), np.int64)

    def activity(self, s: Array) -> Array:
        return rules.fires(s, self.half)

    def up(self, n: int, sums: Array, below: Array) -> Array:
        shape = (-1, 1, 1) if self.network.couplings[n].kind == "conv" else (-1,)
        gain, bias = self.gains[n].reshape(shape), self.biases[n].reshape(shape)
        return gain * sums.astype(np.int64) + bias

    def pulled(self, s: Array) -> Array | int:
        """What a nudge compares the target with: outputs' states, or where a bit is undecided."""
        return self.half if self.network.bits else s

    def down(self, n: int, sums: Sums, above: Array, switches: Array | None) -> Array:
        gain = self.gains_down[n]
        if sums.coupling.kind == "dense":
            return gain * sums.down(above).astype(np.int64)
        return sums.down_scaled(above, switches, gain.astype(np.float64)).astype(np.int64)

    def advance(self, s: Array, drive: Array, nudge: Array | None = None) -> Array:
        if self.network.bits:
            return drive + (0 if nudge is None else nudge)
        return rules.whole_step(s, drive, 0 if nudge is None else nudge, self.one)

    def energy(self, images: Array, state: State) -> Array:
        """`sum s^2 / 2 - sum <a, drive from below>` of each image, in units of 2^-P: int64.

        Of bits alone `sum a / 2` stands for the first sum. A nudge has no part in it.
        """
        below, total = self.inputs(images), np.zeros(len(images), np.int64)
        shift = PARAMETER_BITS - 1 - 2 * self.state_bits
        for n, (sums, s) in enumerate(zip(self.sums(), state, strict=True)):
            bits = self.activity(s)
            if self.network.bits:
                own = bits * np.int64(self.half)
            else:
                own = s * s << shift if shift >= 0 else s * s >> -shift
            drive = self.up(n, sums.up(below)[0], below)
            total += (own - bits * drive).reshape(len(images), -1).sum(1)
            below = bits
        return total


def _fixed(values: Array) -> Array:
    """Float32 parameters in units of 2^-P, int64."""
    return np.rint(np.asarray(values, np.float64) * 2.0**PARAMETER_BITS).astype(np.int64)


# --- the same decisions as float32? -------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How a network in integers compares with the float32 one on images.

    Attributes:
        classes: predicted in integers, (images,). differ: how many are others than in float32.
        bits: activities compared, of all neurons at all steps. bits_differ: how many are others.
    """

    classes: Array
    differ: int
    bits: int
    bits_differ: int


def compare_on_images(fixed: FixedNetwork, images: Array) -> Agreement:
    """Relax images in integers and in float32, side by side, and compare every bit."""
    runtime, classes = Runtime(fixed.network), []
    differ = bits = bits_differ = 0
    for begin in range(0, len(images), LARGEST_BATCH):
        some = images[begin : begin + LARGEST_BATCH]
        mine, theirs = [], []
        for mine, theirs in zip(fixed.trace(some), runtime.trace(some), strict=True):
            for whole, real in zip(mine, theirs, strict=True):
                bits += whole.size
                bits_differ += int((fixed.activity(whole) != runtime.activity(real)).sum())
        predicted = rules.winner(fixed.network.scores(mine[-1]))
        differ += int((predicted != rules.winner(fixed.network.scores(theirs[-1]))).sum())
        classes.append(predicted)
    return Agreement(np.concatenate(classes), differ, bits, bits_differ)


def compare_decisions(fixed: FixedNetwork) -> list[Decisions]:
    """Compare `drive >= 1/2` in integers and in float32, for every sum that a neuron can receive.

    Both are monotonous in the sum from below, so that each is a threshold on that integer: one for
    each neuron and each sum from above. Finding all of them compares all cases. Where the layer
    above is a convolution, what comes down is not one integer: such layers are compared without it.
    """
    return [_compare_layer(fixed, n) for n in range(len(fixed.network.couplings))]


def _compare_layer(fixed: FixedNetwork, n: int) -> Decisions:
    network = fixed.network
    couplings = network.couplings
    coupling = couplings[n]
    above = couplings[n + 1] if n + 1 < len(couplings) else None
    reach = above.above if above is not None and above.kind == "dense" else 0
    from_above = np.arange(-reach, reach + 1)
    count = max(1, min(coupling.above, _MOST_THRESHOLDS // len(from_above)))
    neurons = np.unique(np.linspace(0, coupling.above - 1, count).round().astype(int))
    gain = np.broadcast_to(network.gain_up(n), (coupling.above,))[neurons, None]
    bias = coupling.offset[neurons, None]
    whole_gain = np.broadcast_to(fixed.gains[n], (coupling.above,))[neurons, None]
    whole_bias = fixed.biases[n][neurons, None]
    down, whole_down = np.float32(0), np.int64(0)
    if above is not None and reach:
        down = above.scale * from_above.astype(np.float32)
        whole_down = fixed.gains_down[n + 1] * from_above

    def floating(sums: Array) -> Array:
        return (gain * sums.astype(np.float32) + bias) + down

    def integer(sums: Array) -> Array:
        return whole_gain * sums + whole_bias + whole_down

    limit = coupling.fan_in * (LEVELS if n == 0 else 1)
    half = 1 << (PARAMETER_BITS - 1)
    shape = (len(neurons), len(from_above))
    float_at = _first(lambda sums: floating(sums) >= np.float32(0.5), limit, shape)
    whole_at = _first(lambda sums: integer(sums) >= half, limit, shape)
    gap = np.abs(float_at - whole_at)
    far = np.abs(integer(np.minimum(float_at, whole_at)) - half)[gap > 0]
    return Decisions(
        layer=n + 1,
        neurons=len(neurons),
        cases=len(neurons) * len(from_above) * (2 * limit + 1),
        differ=int(gap.sum()),
        margin=float(far.max() / 2**PARAMETER_BITS) if len(far) else 0.0,
    )


def _first(holds: Callable[[Array], Array], limit: int, shape: Shape) -> Array:
    """The smallest sum in -limit..limit for which a monotonous condition holds, else limit + 1."""
    low, high = np.full(shape, -limit), np.full(shape, limit + 1)
    while (low < high).any():
        middle = (low + high) >> 1
        yes = holds(middle) & (middle <= limit)
        high = np.where(yes, middle, high)
        low = np.where(yes | (low >= high), low, np.minimum(middle + 1, high))
    return low
