"""Whether a network fits into the memory of this machine, told before any of it is taken."""

import math
import os
from contextlib import suppress
from pathlib import Path

from binep.core.network import Network
from binep.errors import BinepError

NUMBER = 4  # bytes of a float32
GIGA = 1e9


def least_bytes(network: Network, samples: int) -> int:
    """What training takes at least: parameters, momenta, and states of a mini-batch.

    Each binary weight is a sign and a momentum in float32, each neuron a state and a drive; a
    convolution has its maps before pooling besides. Engines and gradients take more.
    """
    numbers = sum(math.prod(parameter.shape) for parameter in network.parameters())
    numbers += sum(
        coupling.signs.numel()
        for coupling in network.couplings
        if getattr(coupling, "binary", False)
    )
    neurons = sum(math.prod(shape) for shape in network.shapes)
    return NUMBER * (numbers + 2 * samples * neurons)


def available_bytes() -> int | None:
    """Memory that a process of this machine may have, of all that there is; None if unknown."""
    found = []
    try:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows has no such thing
        return None
    with suppress(OSError, ValueError):  # no such limit, or "max"
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


def check_fits(network: Network, samples: int, what: str) -> None:
    """See that a network, on the meta device or not, fits into this machine's memory.

    Args:
        samples: in a mini-batch. what: whose network it is.
    """
    remedy = ": make its layers, or its mini-batches, smaller"
    check_bytes(least_bytes(network, samples), what, remedy)


def check_bytes(needed: int, what: str, remedy: str = "") -> None:
    """See that so many bytes are not more than this machine has."""
    available = available_bytes()
    if available is not None and needed > available:
        raise BinepError(
            f"{what} would take at least {needed / GIGA:,.1f} GB of memory, this machine has "
            f"{available / GIGA:,.1f} GB{remedy}"
        )
