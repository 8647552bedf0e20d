"""Hardware that is not perfect: the same network and Bop, read and stored with errors.

What is wrong lives in the objects that it is wrong with: a `BinaryWeight` that is read with
errors, a `Network` whose neurons have thresholds of their own and send wrong bits, a `Bop` whose
momentum is narrow or leaks. Everything else, the reference engine included, does not know.

What belongs to a device (stuck synapses, thresholds) is drawn once, from its number. What happens
by chance (wrong bits, rounding) is drawn from the run's random streams, so that a resumed run goes
on as it would have.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from binep.core.couplings import Coupling
from binep.core.kinds import is_one_of, name_of
from binep.core.network import Clamped, Network, State
from binep.core.optim import Bop, Optimizers
from binep.core.weights import BinaryWeight
from binep.errors import BinepError

# Largest momentum that a narrow one holds, in units of its threshold tau.
MOMENTUM_RANGE = 2.0


@dataclass(frozen=True)
class Imperfections:
    """What is wrong with a piece of hardware; by default nothing.

    Attributes:
        weight_errors: probability that a weight is read with the wrong sign; drawn anew for each
            mini-batch, the same in both directions. The stored weight is not changed.
        activation_errors: probability that a bit that a neuron sends is wrong, at every read.
        stuck: share of synapses that read the same sign for ever, +1 or -1.
        threshold_spread: standard deviation of the neurons' thresholds.
        momentum_bits: momenta are stored in so many bits, between -2 tau and 2 tau, rounded at
            random to one of the two nearest values; None: float32.
        momentum_leak: share of its momentum that a synapse loses at every mini-batch, besides
            Bop's own decay.
        device: number of the device: which synapses are stuck, which threshold a neuron has.
    """

    weight_errors: float = 0.0
    activation_errors: float = 0.0
    stuck: float = 0.0
    threshold_spread: float = 0.0
    momentum_bits: int | None = None
    momentum_leak: float = 0.0
    device: int = 0

    @property
    def names(self) -> list[str]:
        """Of those that are not as they should be."""
        wrong = [name for name, value in vars(self).items() if value and name != "device"]
        return [f"{name}={getattr(self, name):g}" for name in wrong]

    @property
    def peculiarity(self) -> str:
        """How what is wrong is spoken of where it is not known."""
        return f"imperfect hardware ({', '.join(self.names)})"

    @property
    def of_network(self) -> bool:
        """Whether anything but the momentum is concerned."""
        return bool(
            self.weight_errors or self.activation_errors or self.stuck or self.threshold_spread
        )

    @property
    def of_momentum(self) -> bool:
        return self.momentum_bits is not None or self.momentum_leak > 0


# --- the network --------------------------------------------------------------------------------


class ImperfectWeight(BinaryWeight):
    """Binary synapses of which some are stuck, and some are read wrongly for a while.

    `kernel` is what is read, `signs` what is stored.
    """

    stuck: Tensor
    stuck_at: Tensor

    def __init__(self, weight: BinaryWeight, stuck: Tensor, stuck_at: Tensor) -> None:
        torch.nn.Module.__init__(self)
        self.signs, self.scale, self.rule = weight.signs, weight.scale, weight.rule
        self.register_buffer("stuck", stuck, persistent=False)
        self.register_buffer("stuck_at", stuck_at, persistent=False)
        self._wrong: Tensor | None = None
        self._read: tuple[int, Tensor] | None = None

    def draw_errors(self, probability: float, generator: torch.Generator) -> None:
        """Choose the weights that are read wrongly from now on."""
        if probability:
            draw = torch.rand(self.signs.shape, generator=generator, device=generator.device)
            self._wrong = (draw < probability).to(self.signs.device)
        self._read = None

    @property
    def kernel(self) -> Tensor:
        # Read once for as long as nothing changes: a relaxation asks at every step.
        if self._read is None or self._read[0] != self.signs._version:
            read = self.signs.detach()
            if self._wrong is not None:
                read = torch.where(self._wrong, -read, read)
            read = torch.where(self.stuck, self.stuck_at, read)
            self._read = (self.signs._version, read)
        return self._read[1]

    @property
    def full(self) -> Tensor:
        return self.scale.reshape(-1, *[1] * (self.signs.dim() - 1)) * self.kernel


class ImperfectNetwork(Network):
    """A network on imperfect hardware; made of an ordinary one, whose parameters it shares.

    Args:
        generator: of errors that happen by chance; by default one seeded by the device's number.
    """

    def __init__(
        self,
        network: Network,
        imperfections: Imperfections,
        generator: torch.Generator | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)
        # The same couplings, neuron, dynamics and shapes.
        for name, value in vars(network).items():
            if name not in vars(self):
                setattr(self, name, value)
        self.couplings = network.couplings
        self.imperfections = imperfections
        self.peculiarity = imperfections.peculiarity
        self.generator = generator or torch.Generator().manual_seed(imperfections.device)
        made = torch.Generator().manual_seed(imperfections.device)
        for n, coupling in enumerate(self.couplings):
            _check(n, coupling, imperfections)
            if isinstance(coupling.synapses, BinaryWeight):
                coupling.synapses = _imperfect(coupling.synapses, imperfections.stuck, made)
        for n, shape in enumerate(self.layer_shapes):
            spread = torch.randn(shape, generator=made, device="cpu")
            offset = imperfections.threshold_spread * spread
            self.register_buffer(f"offset{n}", offset, persistent=False)
        if (imperfections.activation_errors or imperfections.threshold_spread) and not (
            self.neuron.binary
        ):
            raise BinepError(
                f"{', '.join(imperfections.names)} with {self.neuron}: errors of activations and "
                "of thresholds are those of bits, allowed are binary activations"
            )

    def clamp(self, x: Tensor | Clamped) -> Clamped:
        """Clamp a mini-batch to the input; its weights are read anew, errors and all."""
        if isinstance(x, Tensor):
            for coupling in self.couplings:
                if isinstance(coupling.synapses, ImperfectWeight):
                    rate = self.imperfections.weight_errors
                    coupling.synapses.draw_errors(rate, self.generator)
        return super().clamp(x)

    def change(self, before: State, after: State) -> Tensor:
        """The largest change of any neuron; bits that are sent wrongly by chance never rest."""
        if self.dynamics.bits and self.imperfections.activation_errors:
            return torch.ones(())
        return super().change(before, after)

    def activity(self, state: State, *, nudged: bool = False) -> list[Tensor]:
        """What the layers send each other: bits by thresholds of their own, some of them wrong."""
        if not self.neuron.binary:
            return super().activity(state, nudged=nudged)
        sent = []
        for n, s in enumerate(state):
            bits = self.neurons[n](s - cast("Tensor", getattr(self, f"offset{n}")))
            if self.imperfections.activation_errors:
                where = self.generator.device
                draw = torch.rand(bits.shape, generator=self.generator, device=where)
                bits = bits ^ (draw < self.imperfections.activation_errors).to(bits.device)
            sent.append(bits)
        return sent


def _check(n: int, coupling: Coupling, imperfections: Imperfections) -> None:
    if (imperfections.weight_errors or imperfections.stuck) and not coupling.binary:
        raise BinepError(
            f"{', '.join(imperfections.names)}: coupling {n} has real weights, which have no bits "
            "to go wrong; allowed are binary weights"
        )


def _imperfect(weight: BinaryWeight, share: float, made: torch.Generator) -> ImperfectWeight:
    draw = torch.rand(weight.signs.shape, generator=made, device="cpu")
    # The lower half of the stuck ones reads -1.
    stuck_at = torch.where(draw < share / 2, -1.0, 1.0)
    return ImperfectWeight(weight, draw < share, stuck_at)


# --- the momentum -------------------------------------------------------------------------------


class ImperfectBop(Bop):
    """Bop with a momentum that is stored in few bits, or leaks."""

    def __init__(self, groups: Iterable[Any], imperfections: Imperfections, **options: Any) -> None:
        self.imperfections = imperfections
        self.peculiarity = imperfections.peculiarity
        super().__init__(groups, **options)
        if imperfections.momentum_bits is not None and any(
            g["tau"] == 0 for g in self.param_groups
        ):
            raise BinepError(
                f"momentum_bits={imperfections.momentum_bits} with tau=0: the bits are spread over "
                "2 tau, allowed is tau above 0"
            )

    def _flip(self, p: Tensor, group: dict[str, Any]) -> int:
        if p.grad is None:
            return 0
        rate, threshold = self.prepare(p, group)
        momentum = self.state[p]["momentum"]
        momentum.mul_(1 - self.imperfections.momentum_leak).add_(p.grad * rate)
        if self.imperfections.momentum_bits is not None:
            self._store(momentum, threshold)
        return self._flip_where_due(p, threshold)

    def _store(self, momentum: Tensor, threshold: float) -> None:
        """Round to one of the values that the bits have, up or down at random, without bias."""
        levels = 2 ** (int(self.imperfections.momentum_bits or 0) - 1) - 1
        unit = MOMENTUM_RANGE * threshold / levels
        place = "cpu" if self.generator is None else self.generator.device
        draw = torch.rand(momentum.shape, generator=self.generator, device=place)
        whole = (momentum / unit + draw.to(momentum.device)).floor_().clamp_(-levels, levels)
        momentum.copy_(whole * unit)


def imperfect_optimizers(
    optimizers: Optimizers, imperfections: Imperfections, generator: torch.Generator | None
) -> Optimizers:
    """The same optimizers, with momenta that are not perfect."""
    bop = optimizers.bop
    if bop is None:
        raise BinepError(
            f"{', '.join(imperfections.names)}: without binary weights there is no momentum"
        )
    if not is_one_of(bop, {Bop}):
        raise BinepError(f"{', '.join(imperfections.names)}: {name_of(bop)}, allowed is Bop")
    worse = ImperfectBop(bop.param_groups, imperfections, generator=generator)
    return Optimizers(worse, optimizers.sgd, optimizers.scale_sgd)
