"""Planning: cost and gain of several processes, from sizes, latency and bandwidth.

A mini-batch in N processes takes

    t(N) = relax / N + learn + talk(N)

where every process relaxes its part, all of them apply the whole contrast, and `talk` adds the
contrasts up. Relaxing does not get faster for ever: a GPU is not busy with a few samples, so the
model is for N times as many samples, too, where `relax` is not divided.
"""

import math
from dataclasses import dataclass

import torch

from binep.core.network import Network
from binep.engines.exchange import sizes
from binep.errors import choose
from binep.training.recipe import Recipe

# Bytes a synapse at the most, by engine: measured with `benchmarks/scaling.py memory`, on networks
# of one hidden layer with 2e6 to 1e8 synapses, see docs/scaling.md.
PEAK = {"reference": 27.0, "packed": 17.8}
CONTRAST = 4  # bytes of an entry
COLLECTIVES = 4  # a mini-batch: the header, one or two formats, and who asks to stop


@dataclass(frozen=True)
class Link:
    """How processes reach each other.

    Attributes:
        latency: seconds from one to the next. bandwidth: bytes a second into each of them.
    """

    name: str
    latency: float
    bandwidth: float

    def seconds(self, processes: int, received: float) -> float:
        """To add up a mini-batch's contrasts: the steps of a ring, and its bytes."""
        steps = 2 * (processes - 1) * COLLECTIVES
        return steps * self.latency + received / self.bandwidth


@dataclass(frozen=True)
class Contrasts:
    """The contrasts of a network's mini-batch: entries of all weights, and of all biases.

    Attributes:
        exact: whether they are integers.
    """

    weights: int
    biases: int
    exact: bool

    @classmethod
    def of(cls, network: Network) -> "Contrasts":
        couplings = network.couplings
        return cls(
            sum(c.synapses.kernel.numel() for c in couplings),
            sum(c.bias.numel() for c in couplings if c.bias is not None),
            network.neuron.binary,
        )

    def received(self, processes: int, largest: int = 0, filled: float = 1.0) -> float:
        """Bytes that each process receives.

        Args:
            largest, filled: of integers, the largest in a process, and the share that is not 0;
                without `largest` they travel as float32.
        """
        floats = sizes(self.weights + self.biases, [1] * processes, [1] * processes)["float32"]
        if not (self.exact and largest):
            return floats
        counts = [math.ceil(self.weights * filled)] * processes
        return min(sizes(self.weights, [largest] * processes, counts).values())


def network_of(recipe: Recipe) -> Network:
    """The network of a recipe, its shapes alone."""
    with torch.device("meta"):
        return recipe.build_network()


def speedup(relax: float, learn: float, talk: float, processes: int) -> float:
    """How many times as fast a mini-batch of the same size is (strong scaling).

    >>> round(speedup(relax=0.008, learn=0.002, talk=0.001, processes=4), 2)
    2.0
    """
    return (relax + learn) / (relax / processes + learn + talk)


def efficiency(relax: float, learn: float, talk: float) -> float:
    """What part of N times as many samples a second is reached with N times as many processes, each
    with a mini-batch as large as before (weak scaling).

    >>> round(efficiency(relax=0.008, learn=0.002, talk=0.0025), 2)
    0.8
    """
    return (relax + learn) / (relax + learn + talk)


def memory(synapses: int, engine: str = "reference", processes: int = 1) -> int:
    """Upper bound on the bytes of each process while a network is trained on a CPU.

    Kept are 4 bytes of a sign and 4 of a momentum; the rest is there for moments, while weights are
    drawn, or a gradient is made. Processes that share a training hold contrasts besides, and as
    much again while they travel.
    """
    each = PEAK[choose(engine, PEAK, "engine whose memory was measured")]
    return round(synapses * (each + (2 * CONTRAST if processes > 1 else 0)))
