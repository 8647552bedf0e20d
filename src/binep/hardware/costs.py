"""What a network costs as hardware: memory, operations, activity, energy.

Everything is counted, not measured, except activity: the share of neurons that change what they
send at each step, on images.
"""

import math
from dataclasses import dataclass, replace

import torch
from rich.console import Group
from rich.table import Table
from torch import Tensor

from binep.core.couplings import Coupling
from binep.core.known import check_known
from binep.core.network import Network
from binep.core.relaxation import step
from binep.hardware.energy import Costs, load_costs
from binep.hardware.operations import (
    KINDS,
    REAL_BITS,
    Operations,
    input_operations,
    learning_operations,
    neuron_memory,
    step_operations,
    steps_of,
    stored_bits,
)
from binep.training import recipe as recipes
from binep.training.recipe import Recipe
from binep.training.sections import HardwareKeys

__all__ = [
    "KINDS",
    "HardwareReport",
    "Memory",
    "Operations",
    "load_costs",
    "measure_activity",
    "memory",
    "reference_of",
    "render",
    "report",
]

# The paper calls 64-bit floating point full precision.
PAPER_REAL_BITS = 64

# The full-precision network that the paper compares with, and how many times less memory the
# synapses take than its, where the paper says so.
PAPER: dict[str, tuple[str, float | None]] = {
    "mnist-1fc-w": ("mnist-1fc512-fp", 7.5),
    "mnist-2fc-w": ("mnist-2fc512-fp", 2.0),
    "mnist-conv-w": ("mnist-conv-fp", 9.0),
    "cifar10-conv-w": ("cifar10-conv-fp", 54.0),
    "mnist-1fc-wa": ("mnist-1fc512-fp", None),
    "mnist-2fc-wa": ("mnist-2fc512-fp", None),
    "mnist-conv-wa": ("mnist-conv-fp", None),
}


# --- memory -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Bits of a network's parameters.

    Attributes:
        synapses: how many. others: biases and scales, how many.
        run: to run it. train: to train it by EP, with Bop's momentum or by plain SGD.
        latent: to train it by SGD with momentum on real, latent weights.
    """

    synapses: int
    others: int
    run: int
    train: int
    latent: int


def memory(recipe: Recipe, *, real_bits: int = REAL_BITS, only_synapses: bool = False) -> Memory:
    """Count the bits of a recipe's network."""
    network = _shape_of(recipe)
    momentum = recipe.hardware.momentum_bits or real_bits
    binary, real = (
        sum(coupling.weight.numel() for coupling in network.couplings if coupling.binary == bits)
        for bits in (True, False)
    )
    others = sum(_others(coupling) for coupling in network.couplings) * (not only_synapses)
    return Memory(
        synapses=binary + real,
        others=others,
        run=binary + real_bits * (real + others),
        train=(1 + momentum) * binary + real_bits * (real + others),
        latent=2 * real_bits * (binary + real) + binary + real_bits * others,
    )


def _others(coupling: Coupling) -> int:
    scales = coupling.scale.numel() if coupling.binary else 0
    return scales + (0 if coupling.bias is None else coupling.bias.numel())


def _shape_of(recipe: Recipe) -> Network:
    """The recipe's network without its numbers."""
    with torch.device("meta"):
        return replace(recipe, hardware=HardwareKeys()).build_network()


def reference_of(recipe: Recipe) -> tuple[Recipe, float | None]:
    """The full-precision network to compare with, and the paper's factor if it has one.

    The paper's own for its networks, the same network with real weights for any other.
    """
    papers = recipe.name in recipes.names() and recipe.network == recipes.load(recipe.name).network
    name = recipe.name.removesuffix("-a") if papers else ""
    reference, factor = PAPER.get(name, (None, None))
    return (recipes.load(reference) if reference else with_real_weights(recipe)), factor


def with_real_weights(recipe: Recipe) -> Recipe:
    """The same network in full precision."""
    keys = replace(
        recipe.network, weights="real", learn_scale=False, scale=None, power_of_two=False
    )
    perfect = HardwareKeys()
    name = f"{recipe.name} with real weights"
    return replace(recipe, name=name, network=keys, hardware=perfect)


# --- activity -----------------------------------------------------------------------------------


@torch.no_grad()
def measure_activity(
    network: Network, x: Tensor, steps: int
) -> tuple[list[list[float]], list[int]]:
    """The share of neurons that send something new after each step, (steps, layers).

    And how many of each layer, after the last step, do not send the same for all of `x`. Bits alone
    take as many steps as it takes until none is new.
    """
    clamped = network.clamp(x)
    state = network.initial(clamped)
    before, found = network.activity(state), []
    for _ in range(steps):
        state = step(network, clamped, state)
        now = network.activity(state)
        pairs = zip(before, now, strict=True)
        found.append([float((a != b).float().mean()) for a, b in pairs])
        before = now
        if network.dynamics.bits and not any(found[-1]):
            break
    return found, [int((sent != sent[0]).any(dim=0).sum()) for sent in before]


# --- the report ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Operations and energy of one thing that is done."""

    what: str
    operations: Operations
    microjoules: float


@dataclass(frozen=True)
class Store:
    """A memory of the network: its bits, and as what it is priced, in picojoules per bit moved."""

    what: str
    bits: int
    priced_as: str
    picojoules: float


@dataclass(frozen=True)
class HardwareReport:
    """What a network costs; `asdict` makes JSON of it.

    Attributes:
        memory: of the network. same: of the same network with real weights. reference: of the
            full-precision network that the paper compares with, or `same`.
        paper: the paper's factor of synapse memory, if it has one. synapse_factor: the same as we
            count it, synapses alone, real ones in 64 bits. whole_factor: biases and scales too.
        stored_bits: what a neuron keeps from the first phase to the second.
        activity: share of neurons that send something new, one row a step, one entry a layer;
            measured on so many `images`.
        engaged: neurons of each layer that in the end send something else for some of these images
            than for others. neurons: all that it has.
    """

    name: str
    memory: Memory
    same: Memory
    reference: Memory
    reference_name: str
    paper: float | None
    synapse_factor: float
    whole_factor: float
    stored_bits: int
    activity: list[list[float]]
    engaged: list[int]
    neurons: list[int]
    images: int
    work: list[Work]
    stores: list[Store]
    costs: str


def report(recipe: Recipe, network: Network, x: Tensor, costs: Costs) -> HardwareReport:
    """Count a recipe's network, with the activity that it shows on a mini-batch `x`."""
    check_known(network, "hardware costs")
    reference, paper = reference_of(recipe)
    activity, engaged = measure_activity(network, x, recipe.learning.free_steps)
    # Fewer than asked for where bits alone have come to rest.
    steps = len(activity)
    trained = steps_of(recipe.build_learning().plan()) - recipe.learning.free_steps + steps
    clamp, one = input_operations(network), step_operations(network)
    # Before the first step nothing is new, and after the last one nobody asks.
    news = [[0.0] * len(network.layer_shapes), *activity[:-1]]
    events = sum((step_operations(network, each) for each in news), clamp)
    plain = _shape_of(reference)
    full = input_operations(plain) + step_operations(plain) * reference.learning.free_steps
    learning = learning_operations(recipe, network)
    mine, theirs = memory(recipe), memory(reference)
    neurons, their_neurons = neuron_memory(network), neuron_memory(plain)
    # Work, and the bits of parameters and of neurons that are at hand for it.
    works = {
        "step": (one, mine.run, neurons),
        "prediction": (clamp + one * steps, mine.run, neurons),
        "prediction by events": (events, mine.run, neurons),
        "training sample": (clamp + one * trained + learning, mine.train, neurons),
        "prediction in float32": (full, theirs.run, their_neurons),
    }
    sizes = {
        "parameters to run": mine.run,
        "parameters to train": mine.train,
        "neurons": neurons,
        "parameters in float32": theirs.run,
        "neurons in float32": their_neurons,
    }

    def factor(only_synapses: bool) -> float:
        mine, theirs = (
            memory(each, real_bits=PAPER_REAL_BITS, only_synapses=only_synapses).run
            for each in (recipe, reference)
        )
        return theirs / mine

    return HardwareReport(
        name=recipe.name,
        memory=mine,
        same=memory(with_real_weights(recipe)),
        reference=theirs,
        reference_name=reference.name,
        paper=paper,
        synapse_factor=factor(True),
        whole_factor=factor(False),
        stored_bits=stored_bits(network),
        activity=activity,
        engaged=engaged,
        neurons=[math.prod(shape) for shape in network.layer_shapes],
        images=len(x),
        work=[Work(what, each[0], costs.microjoules(*each)) for what, each in works.items()],
        stores=[_priced(what, bits, costs) for what, bits in sizes.items()],
        costs=costs.name,
    )


def _priced(what: str, bits: int, costs: Costs) -> Store:
    found = costs.memory(bits)
    return Store(what, bits, found.name, found.picojoules)


# --- for people ---------------------------------------------------------------------------------

_NAMES = {
    "ands": "ANDs",
    "popcount_bits": "bits counted",
    "adds": "additions",
    "shifts": "shifts",
    "multiplies": "multiplications",
    "float_adds": "float additions",
    "float_multiplies": "float multiplications",
    "memory_bits": "bits of weights moved",
    "neuron_bits": "bits of neurons moved",
}


def render(found: HardwareReport) -> Group:
    """The report as tables for a terminal."""
    store = Table("memory", box=None)
    work = Table("operations", box=None)
    news = Table("activity after step", box=None)
    for name in ("synapses", "to run", "to train"):
        store.add_column(name, justify="right")
    store.add_row(found.name, *_memory_cells(found.memory))
    store.add_row("  by SGD on latent weights", "", "", _bytes(found.memory.latent))
    store.add_row("same network, real weights", *_memory_cells(found.same))
    if found.reference != found.same:
        store.add_row(found.reference_name, *_memory_cells(found.reference))
    for each in found.work:
        work.add_column(each.what, justify="right")
    for kind in KINDS:
        counts = [getattr(each.operations, kind) for each in found.work]
        if any(counts):
            work.add_row(_NAMES[kind], *map(_short, counts))
    work.add_row("energy", *(f"{_short(each.microjoules / 1e6)}J" for each in found.work))
    for n in range(len(found.activity[0])):
        news.add_column(f"layer {n + 1}", justify="right")
    steps = len(found.activity)
    for t in sorted({t for t in (1, 2, 3, 4, 5, 7, 10, 15, 25, 50, steps) if t <= steps}):
        news.add_row(str(t), *(f"{100 * share:.2f} %" for share in found.activity[t - 1]))
    counts = zip(found.engaged, found.neurons, strict=True)
    engaged = ", ".join(f"{count:,} of {of:,}" for count, of in counts)
    bits = f"{found.stored_bits} bit{'s' * (found.stored_bits > 1)}"
    return Group(
        store,
        f"\n{_compare(found)}\n",
        work,
        f"Clocked unless by events, {steps} free steps; in float32: {found.reference_name}, all of "
        f"its steps. "
        f"Energy by {found.costs}: an estimate of arithmetic and memory alone. A bit moved is "
        f"priced by the size of its memory: {_prices(found.stores)}.\n",
        news,
        f"Neurons that send something new, mean over {found.images} images. A neuron keeps {bits} "
        f"from one phase to the next. What neurons send in the end depends on the image, layer by "
        f"layer, for {engaged}.",
    )


def _prices(stores: list[Store]) -> str:
    return "; ".join(
        f"{each.what} ({_bytes(each.bits)}) {each.picojoules:.3g} pJ, {each.priced_as}"
        for each in stores
    )


def _short(number: float) -> str:
    """Three digits and a power of a thousand.

    >>> _short(3276800.0), _short(0.0), _short(2.5e-6), _short(12.0)
    ('3.28 M', '', '2.5 \u00b5', '12 ')
    """
    if not number:
        return ""
    power = max(-4, min(4, math.floor(math.log10(number) / 3)))
    sign = ("p", "n", "\u00b5", "m", "", "k", "M", "G", "T")[power + 4]
    return f"{number / 1000**power:.3g} {sign}"


def _compare(found: HardwareReport) -> str:
    """Our factor beside the paper's, and why they differ where they do."""
    text = (
        f"Synapses take {found.synapse_factor:.1f} times less memory than those of "
        f"{found.reference_name} in 64 bits (the paper's full precision), with biases and scales "
        f"{found.whole_factor:.1f} times."
    )
    if found.paper is None:
        return text
    text += f" The paper says {found.paper:g} times."
    low, high = sorted((found.synapse_factor, found.whole_factor))
    if found.paper < 0.9 * low or found.paper > 1.1 * high:
        text += (
            " It does not say how it counted. Both networks here are the same but for their "
            "weights, so that 64 is what one bit in place of 64 gives; the paper's factor "
            f"would leave room for {_unexplained(found):,.0f} more 64-bit numbers on the binary "
            "side than there are biases and scales."
        )
    return text


def _unexplained(found: HardwareReport) -> float:
    """64-bit numbers that the binary network would have to hold besides, for the paper's factor."""
    mine, theirs, paper = found.memory, found.reference, found.paper or 1
    allowed = (theirs.synapses + theirs.others) * PAPER_REAL_BITS / paper
    return (allowed - mine.synapses) / PAPER_REAL_BITS - mine.others


def _memory_cells(memory: Memory) -> list[str]:
    return [f"{memory.synapses:,}", _bytes(memory.run), _bytes(memory.train)]


def _bytes(bits: int) -> str:
    return f"{bits / 8 / 1000:,.1f} kB"
