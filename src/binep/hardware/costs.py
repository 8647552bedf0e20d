"""What a network costs as hardware: memory, operations, activity, energy.

Everything is counted, not measured, except activity: the share of neurons that change what they
send at each step, on images. *Clocked* hardware computes every sum at every step; *event-driven*
hardware adds only what changed. A multiply-accumulate of bits is counted as in the paper,
`popcount(a & w+) - popcount(a & w-)`: two ANDs and two counted bits a synapse, one subtraction a
neuron; a gradient as two ANDs and a subtraction a synapse.
"""

import math
import tomllib
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path

import torch
from rich.console import Group
from rich.table import Table
from torch import Tensor

from binep.core.couplings import Coupling
from binep.core.known import check_known
from binep.core.network import Network
from binep.core.plan import ContrastPlan, Plan
from binep.core.relaxation import step
from binep.errors import BinepError, choose
from binep.training import recipe as recipes
from binep.training.recipe import Recipe

REAL_BITS = 32
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
    synapses = sum(coupling.weight.numel() for coupling in network.couplings)
    others = sum(_others(coupling) for coupling in network.couplings) * (not only_synapses)
    binary = recipe.network.weights == "binary"
    each = 1 if binary else real_bits
    trained = 1 + momentum if binary else real_bits
    return Memory(
        synapses=synapses,
        others=others,
        run=each * synapses + real_bits * others,
        train=trained * synapses + real_bits * others,
        latent=(2 * real_bits + binary) * synapses + real_bits * others,
    )


def _others(coupling: Coupling) -> int:
    scales = coupling.scale.numel() if coupling.binary else 0
    return scales + (0 if coupling.bias is None else coupling.bias.numel())


def _shape_of(recipe: Recipe) -> Network:
    """The recipe's network without its numbers."""
    with torch.device("meta"):
        return replace(recipe, hardware=recipes.HardwareKeys()).build_network()


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
    keys = replace(recipe.network, weights="real", learn_scale=False, scale=None)
    perfect = recipes.HardwareKeys()
    name = f"{recipe.name} with real weights"
    return replace(recipe, name=name, network=keys, hardware=perfect)


# --- operations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operations:
    """How many of each; `ands` and `popcount_bits` of one bit, the others of 32 bits."""

    ands: float = 0.0
    popcount_bits: float = 0.0
    adds: float = 0.0
    multiplies: float = 0.0
    float_adds: float = 0.0
    float_multiplies: float = 0.0
    memory_bits: float = 0.0

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(*(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    def __mul__(self, factor: float) -> "Operations":
        return Operations(*(count * factor for count in self.counts))

    @property
    def counts(self) -> list[float]:
        return [getattr(self, name) for name in KINDS]


KINDS = [field.name for field in fields(Operations)]


def sum_operations(network: Network, coupling: Coupling, used: float, on: int) -> Operations:
    """The sums through a coupling in one direction: `used` synapses, on so many neurons."""
    if not coupling.binary:
        # A bit times a real weight is that weight or nothing.
        products = 0.0 if network.neuron.binary else used
        return Operations(float_multiplies=products, float_adds=used, memory_bits=REAL_BITS * used)
    if network.neuron.binary:
        return Operations(
            ands=2 * used, popcount_bits=2 * used, adds=on, multiplies=on, memory_bits=used
        )
    return Operations(float_adds=used, float_multiplies=on, memory_bits=used)


def step_operations(network: Network, changed: list[float] | None = None) -> Operations:
    """Operations of one time step.

    With `changed`, the share of each layer that sends something new: only those that follow.
    """
    shapes, total = network.shapes, Operations()
    for n, coupling in enumerate(network.relaxing):
        below, above = math.prod(shapes[n]), math.prod(shapes[n + 1])
        # bias + up + down, and the step of the state.
        total += Operations(**{"adds" if network.neuron.binary else "float_adds": 4 * above})
        up, down = (1.0, 1.0) if changed is None or n == 0 else (changed[n - 1], changed[n])
        used = coupling.products(shapes[n])
        if n > 0 and up:
            total += sum_operations(network, coupling, up * used, above)
        if n > 0 and down:
            total += sum_operations(network, coupling, down * used, below)
    return total


def input_operations(network: Network) -> Operations:
    """Operations of the drive of an image, once: sums of 8-bit pixels, or of real numbers."""
    first, outputs = network.couplings[0], math.prod(network.shapes[1])
    used = first.products(network.input_shape)
    if first.binary:
        return Operations(adds=used, multiplies=outputs, memory_bits=used)
    return Operations(float_multiplies=used, float_adds=used, memory_bits=REAL_BITS * used)


def learning_operations(recipe: Recipe, network: Network) -> Operations:
    """Operations of the gradient and the optimizer, for one training sample."""
    total, momentum = Operations(), recipe.hardware.momentum_bits or REAL_BITS
    for n, coupling in enumerate(network.couplings):
        used, synapses = coupling.products(network.shapes[n]), coupling.weight.numel()
        if network.neuron.binary:
            # From pixels the difference of two bits chooses +x, 0 or -x: an addition as well.
            total += Operations(ands=2 * used, adds=used)
        else:
            total += Operations(float_multiplies=2 * used, float_adds=used)
        if coupling.binary:
            # One addition and one comparison; the momentum is read and written, and leaks.
            total += Operations(adds=2 * synapses, memory_bits=2 * momentum * synapses)
        else:
            total += Operations(
                float_multiplies=synapses,
                float_adds=synapses,
                memory_bits=2 * REAL_BITS * synapses,
            )
    return total


def _steps_of(plan: Plan) -> int:
    """Time steps of a training sample; a step backwards is counted as one."""
    if isinstance(plan, ContrastPlan):
        return sum(phase.steps for phase in plan.phases)
    return 2 * plan.last + (0 if plan.settle is None else plan.settle.steps)


# --- activity -----------------------------------------------------------------------------------


@torch.no_grad()
def measure_activity(
    network: Network, x: Tensor, steps: int
) -> tuple[list[list[float]], list[int]]:
    """The share of neurons that send something new after each step, (steps, layers).

    And how many of each layer, after the last step, do not send the same for all of `x`.
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
    return found, [int((sent != sent[0]).any(dim=0).sum()) for sent in before]


# --- energy -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Energy of each operation, in picojoules, and where the figures are from."""

    name: str
    picojoules: Operations

    def microjoules(self, work: Operations) -> float:
        pairs = zip(self.picojoules.counts, work.counts, strict=True)
        return sum(cost * count for cost, count in pairs) / 1e6


def load_costs(path: Path | None = None) -> Costs:
    """The costs of a TOML file; by default those that ship with binep."""
    where = path if path is not None else resources.files("binep") / "hardware" / "costs.toml"
    try:
        table = tomllib.loads(where.read_text("utf-8"))
    except OSError as error:
        raise BinepError(f"costs {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BinepError(f"costs {path}: not valid TOML: {error}") from None
    values = table.get("picojoules")
    if not isinstance(values, dict):
        raise BinepError(f"costs {path}: section [picojoules] is missing")
    for name in values:
        choose(name, KINDS, f"operation in costs {path}")
    for name in KINDS:
        value = values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
            raise BinepError(
                f"costs {path}: picojoules.{name}={value}: allowed is a number of at least 0"
            )
    return Costs(str(table.get("name", path)), Operations(**values))


# --- the report ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Operations and energy of one thing that is done."""

    what: str
    operations: Operations
    microjoules: float


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
    costs: str


def report(recipe: Recipe, network: Network, x: Tensor, costs: Costs) -> HardwareReport:
    """Count a recipe's network, with the activity that it shows on a mini-batch `x`."""
    check_known(network, "hardware costs")
    reference, paper = reference_of(recipe)
    steps, trained = recipe.learning.free_steps, _steps_of(recipe.build_learning().plan())
    activity, engaged = measure_activity(network, x, steps)
    clamp, one = input_operations(network), step_operations(network)
    # Before the first step nothing is new, and after the last one nobody asks.
    news = [[0.0] * len(network.layer_shapes), *activity[:-1]]
    events = sum((step_operations(network, each) for each in news), clamp)
    plain = _shape_of(reference)
    full = input_operations(plain) + step_operations(plain) * reference.learning.free_steps
    learning = learning_operations(recipe, network)
    works = {
        "step": one,
        "prediction": clamp + one * steps,
        "prediction by events": events,
        "training sample": clamp + one * trained + learning,
        "prediction in float32": full,
    }

    def factor(only_synapses: bool) -> float:
        mine, theirs = (
            memory(each, real_bits=PAPER_REAL_BITS, only_synapses=only_synapses).run
            for each in (recipe, reference)
        )
        return theirs / mine

    return HardwareReport(
        name=recipe.name,
        memory=memory(recipe),
        same=memory(with_real_weights(recipe)),
        reference=memory(reference),
        reference_name=reference.name,
        paper=paper,
        synapse_factor=factor(True),
        whole_factor=factor(False),
        stored_bits=1 if network.neuron.binary else REAL_BITS,
        activity=activity,
        engaged=engaged,
        neurons=[math.prod(shape) for shape in network.layer_shapes],
        images=len(x),
        work=[Work(what, each, costs.microjoules(each)) for what, each in works.items()],
        costs=costs.name,
    )


# --- for people ---------------------------------------------------------------------------------

_NAMES = {
    "ands": "ANDs",
    "popcount_bits": "bits counted",
    "adds": "additions",
    "multiplies": "multiplications",
    "float_adds": "float additions",
    "float_multiplies": "float multiplications",
    "memory_bits": "bits of memory moved",
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
        f"Clocked unless by events; in float32: {found.reference_name}, all of its steps. "
        f"Energy by {found.costs}: an estimate of arithmetic and memory alone.\n",
        news,
        f"Neurons that send something new, mean over {found.images} images. A neuron keeps {bits} "
        f"from one phase to the next. What neurons send in the end depends on the image, layer by "
        f"layer, for {engaged}.",
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
