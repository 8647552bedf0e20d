"""Engines side by side: how long a mini-batch takes, and what stands between that and the chip.

For each recipe the reference and the fastest engine (or the one asked for) train the same
mini-batches from the same state, one after the other. The first mini-batch of each, with what it
compiles or records, is not counted. Both are set against the *floor*: the time that all products of
a mini-batch would take, every step of both phases run, at the highest rate that a product of two
large matrices reaches in the same run; of bits on a CPU, at the highest rate of AND and popcount.
An engine that skips what does not change can be faster than the floor.
"""

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

from binep.core.metrics import Tally
from binep.core.network import Network
from binep.core.optim import Optimizers
from binep.data import Dataset, Folder, Split, shuffled
from binep.engines.activity import Activity
from binep.engines.base import CountsActivity, Engine, TakesMany
from binep.engines.select import (
    BACKENDS,
    select_device,
    select_engine,
)
from binep.errors import BinepError, choose
from binep.files import write_whole
from binep.report import figures
from binep.training import provenance
from binep.training import recipe as recipes
from binep.training.recipe import Recipe
from binep.training.trainer import Streams, random_streams

PAPER = (
    "mnist-1fc-w",
    "mnist-2fc-w",
    "mnist-conv-w",
    "cifar10-conv-w",
    "mnist-1fc-wa",
    "mnist-2fc-wa",
    "mnist-conv-wa",
)
PIXEL_BITS = 8
BUDGET = 20.0  # seconds of timing, for each engine of a recipe
MADE_UP = 64  # mini-batches of made-up images
FORMATS = (".md", ".json", ".png")

Say = Callable[[str], None]
MiniBatches = Iterator[tuple[Tensor, Tensor]]
Table = tuple[Sequence[str], list[list[str]]]


@dataclass(frozen=True)
class Timing:
    """How long mini-batches of one engine took.

    Attributes:
        milliseconds: a mini-batch, the median. count: how many were timed.
        tally: what they counted. activity: what the engine did for them, if it tells.
    """

    milliseconds: float
    count: int
    tally: Tally
    activity: Activity | None


@dataclass(frozen=True)
class Row:
    """One recipe's line of the table.

    Times, `free_steps` and `nudged_steps` are of a mini-batch; `steps` (taken) and what follows
    are of a sample, None where the engine does not count them.
    """

    recipe: str
    engine: str
    precision: str
    batch: int
    images: str
    trained: int
    reference_ms: float
    reference_n: int
    engine_ms: float
    engine_n: int
    epoch_s: float
    floor_ms: float | None
    free_steps: float
    nudged_steps: float
    steps: float | None
    events: float | None
    coincidences: float | None
    ns_per_event: float | None

    @property
    def ratio(self) -> float:
        return self.reference_ms / self.engine_ms

    @property
    def floor_fraction(self) -> float | None:
        """What part of the time the arithmetic alone would take; above 1 where some is skipped."""
        return None if self.floor_ms is None else self.floor_ms / self.engine_ms


@dataclass(frozen=True)
class Result:
    """What was measured, and where.

    Attributes:
        peak: products a second and how they were measured, by their kind.
    """

    environment: dict[str, Any]
    peak: dict[str, float]
    rows: list[Row]

    @property
    def notes(self) -> str:
        """Where and on what the table was measured."""
        seen = {
            row.recipe: f"{row.images}, batch {row.batch}, trained for {row.trained} mini-batches"
            for row in self.rows
        }
        same = len(set(seen.values())) == 1
        said = [text if same else f"{recipe}: {text}" for recipe, text in seen.items()]
        return f"{_where(self.environment, self.peak)}\n{said[0] if same else '; '.join(said)}"

    @property
    def table(self) -> Table:
        """Steps are of a mini-batch; what follows (taken, events ...) is of a sample."""
        return HEADER, [_cells(row) for row in self.rows]

    def to_json(self) -> str:
        rows = [
            {**asdict(row), "ratio": row.ratio, "floor_fraction": row.floor_fraction}
            for row in self.rows
        ]
        whole = {"environment": self.environment, "peak": self.peak, "rows": rows}
        return json.dumps(whole, indent=1)


def bench(
    names: Sequence[str] = PAPER,
    *,
    device: str = "auto",
    engine: str = "auto",
    batches: int = 20,
    reference_batches: int = 2,
    train: int = 0,
    data_dir: Folder | None = None,
    overrides: Sequence[str] = (),
    say: Say = lambda text: None,
) -> Result:
    """Time recipes on a device; `say` is told what happens meanwhile.

    Args:
        overrides: what is changed in each recipe, see `binep.training.recipe.load`.
        batches, reference_batches: to be timed at most, in at most `BUDGET` seconds.
        train: mini-batches that the networks are trained for before, since what an engine can skip
            depends on it.
    """
    _at_least(1, batches=batches, reference_batches=reference_batches)
    _at_least(0, train=train)
    choose(engine, ("auto", *BACKENDS), "engine")
    place = select_device(device)
    chosen = [recipes.load(name, overrides) for name in names]
    peak = measure_peak(place)
    rows, failures = [], []
    for recipe in chosen:
        try:
            rows.append(
                _measure(
                    recipe, place, engine, batches, reference_batches, train, data_dir, peak, say
                )
            )
        except BinepError as error:
            say(f"{recipe.name}: skipped, {error}")
            failures.append(error)
    # What has been measured is worth having, whatever the other recipes asked for.
    if failures and not rows:
        raise failures[0]
    return Result(provenance.environment(place), peak, rows)


def _at_least(least: int, **counts: int) -> None:
    for name, count in counts.items():
        if count < least:
            raise BinepError(f"{name}={count}: allowed is at least {least}")


def _measure(
    recipe: Recipe,
    device: torch.device,
    engine_name: str,
    batches: int,
    reference_batches: int,
    train: int,
    data_dir: Folder | None,
    peak: dict[str, float],
    say: Say,
) -> Row:
    dataset, images = _dataset(recipe, device, data_dir, say)
    say(f"{recipe.name}: {images}, trained for {train} mini-batches")
    streams = random_streams(0)
    source = mini_batches(recipe, dataset, streams)
    fast = _Subject.build(recipe, engine_name, device, say)
    for x, labels in islice(source, train):
        fast.engine.train(x, labels)
    fast.engine.collect()

    slow = _Subject.build(recipe, "reference", device, say)
    slow.copy(fast)
    same = list(islice(source, 1 + min(max(batches, reference_batches), MADE_UP)))
    quick = time_batches(fast.engine, same, batches)
    thorough = time_batches(slow.engine, same, reference_batches)
    network, size = fast.network, recipe.training.batch_size
    steps = thorough.tally.free_steps, thorough.tally.nudged_steps
    packed = network.neuron.binary and device.type == "cpu"
    products = size * products_a_sample(
        network, *(n / thorough.tally.batches for n in steps), planes=PIXEL_BITS if packed else 1
    )
    rate = peak.get("bits" if packed else "numbers")
    done = quick.activity
    busy = None if done is None or not done.events else done.events + done.coincidences
    return Row(
        recipe=recipe.name,
        engine=fast.engine.name,
        precision=fast.engine.precision,
        batch=size,
        images=images,
        trained=train,
        reference_ms=thorough.milliseconds,
        reference_n=thorough.count,
        engine_ms=quick.milliseconds,
        engine_n=quick.count,
        epoch_s=quick.milliseconds * math.ceil(recipe.source.train_count / size) / 1e3,
        floor_ms=None if rate is None else 1e3 * products / rate,
        free_steps=quick.tally.free_steps / quick.tally.batches,
        nudged_steps=quick.tally.nudged_steps / quick.tally.batches,
        steps=None if done is None else done.steps / done.samples,
        events=None if done is None or busy is None else done.events / done.samples,
        coincidences=None if done is None or busy is None else done.coincidences / done.samples,
        ns_per_event=None
        if done is None or busy is None
        else 1e6 * quick.milliseconds * done.samples / size / busy,
    )


# --- what is timed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Subject:
    """An engine with the network, optimizers and random signs that it works on."""

    engine: Engine
    network: Network
    optimizers: Optimizers
    streams: Streams

    @classmethod
    def build(cls, recipe: Recipe, engine: str, device: torch.device, say: Say) -> "_Subject":
        streams = random_streams(0)
        network: Network = recipe.build_network(streams["init"]).to(device)
        optimizers = recipe.build_optimizers(network, streams["noise"])
        learning = recipe.build_learning(streams["sign"])
        made = select_engine(engine, network, learning, optimizers, say)
        return cls(made, network, optimizers, streams)

    def copy(self, other: "_Subject") -> None:
        """Take over another one's state of training."""
        self.network.load_state_dict(other.network.state_dict())
        for mine, its in zip(self.optimizers, other.optimizers, strict=True):
            # Torch would otherwise let both work on the same momenta.
            mine.load_state_dict(deepcopy(its.state_dict()))
        for name, stream in self.streams.items():
            stream.set_state(other.streams[name].get_state())


def _dataset(
    recipe: Recipe, device: torch.device, data_dir: Folder | None, say: Say
) -> tuple[Dataset, str]:
    """The recipe's data if they are on this machine, else made-up images; and which of the two."""
    source = recipe.source
    try:
        return recipe.load_data(data_dir=data_dir, offline=True).to(device), recipe.data.name
    except BinepError as error:
        if data_dir is not None:
            say(f"{error}; timing made-up images instead")
    generator = torch.Generator().manual_seed(0)
    count = MADE_UP * recipe.training.batch_size
    pixels = torch.randint(
        256, (count, *source.image_shape), generator=generator, dtype=torch.uint8
    )
    labels = torch.randint(source.classes, (count,), generator=generator)
    split = Split(pixels, labels)
    made = Dataset(recipe.data.name, split, split, source.classes, source.mean, source.std)
    return made.to(device), "made-up images"


def mini_batches(recipe: Recipe, dataset: Dataset, streams: Streams) -> MiniBatches:
    """An endless stream of whole mini-batches, shuffled and augmented as in training."""
    size = recipe.training.batch_size
    if size > len(dataset.train):
        raise BinepError(
            f"recipe {recipe.name}: training.batch_size={size}: allowed are up to the "
            f"{len(dataset.train)} training images"
        )
    while True:
        order = shuffled(len(dataset.train), streams["shuffle"]).to(dataset.train.labels.device)
        for chosen in order.split(size):
            if len(chosen) == size:
                images = recipe.augmentation(dataset.train.images[chosen], streams["augment"])
                yield dataset.inputs(images), dataset.train.labels[chosen]


def time_batches(
    engine: Engine, batches: Sequence[tuple[Tensor, Tensor]], count: int, budget: float = BUDGET
) -> Timing:
    """Train on `count` mini-batches and time them, fewer if they take over `budget` seconds.

    The first is not counted, unless it alone takes longer than the budget: what is compiled or
    recorded then does not matter. On a GPU ten (or as many as the engine takes at once) are timed
    together, so that reading back what was counted, which waits for the device, is not what is
    measured.
    """
    least = engine.at_once if isinstance(engine, TakesMany) else 1
    group = max(10 if batches[0][0].is_cuda else 1, least)
    milliseconds, timed, tally = [], 0, Tally()
    before = _activity(engine)
    first = _seconds(engine, [batches[n % len(batches)] for n in range(least)])
    if first[0] > budget:
        milliseconds, timed, tally = [1e3 * first[0]], 1, first[1]
    else:
        before, began = _activity(engine), time.perf_counter()
        while timed < count and (not timed or time.perf_counter() - began < budget):
            size = max(least, min(group, count - timed))
            some = [batches[(1 + timed + n) % len(batches)] for n in range(size)]
            seconds, counted = _seconds(engine, some)
            milliseconds.append(1e3 * seconds / size)
            timed, tally = timed + size, tally + counted
    after = _activity(engine)
    activity = after - before if after is not None and before is not None else None
    return Timing(statistics.median(milliseconds), timed, tally, activity)


def _activity(engine: Engine) -> Activity | None:
    return engine.activity if isinstance(engine, CountsActivity) else None


def _seconds(engine: Engine, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, Tally]:
    """Seconds that some mini-batches take together, and what they counted."""
    if isinstance(engine, TakesMany) and len(batches) == engine.at_once > 1:
        x, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        began = time.perf_counter()
        engine.train_many(x, labels, len(x) // engine.at_once)
    else:
        began = time.perf_counter()
        for x, labels in batches:
            engine.train(x, labels)
    # Reading what was counted waits for the device.
    tally = engine.collect()
    return time.perf_counter() - began, tally


# --- the floor ----------------------------------------------------------------------------------


def products_a_sample(
    network: Network, free_steps: float, nudged_steps: float, planes: int = 1
) -> float:
    """Multiplications of dense arithmetic for one sample: both phases, all steps, the gradients.

    A step takes every coupling up and down, except that the first goes up once, from the clamped
    input. A gradient is the difference of two correlations; the first coupling needs one, since its
    layer below is the same in both phases. Where bits are multiplied, a pixel is `planes` of them.
    """
    sizes = [
        coupling.products(shape)
        for coupling, shape in zip(network.couplings, network.shapes[:-1], strict=True)
    ]
    inside = sum(sizes[1 : len(network.relaxing)])
    return 2 * planes * sizes[0] + 2 * inside * (free_steps + nudged_steps) + 2 * inside


def measure_peak(device: torch.device) -> dict[str, float]:
    """Products a second that this device reaches: of `numbers`, and on a CPU of `bits`.

    Numbers are float16 on a GPU and float32 on a CPU, in a product of two large square matrices.
    Without Numba there is nothing that could count bits fast.
    """
    size, dtype = (8192, torch.float16) if device.type == "cuda" else (2048, torch.float32)
    one, other = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    out, seconds = torch.empty_like(one), []
    for _ in range(12):
        began = time.perf_counter()
        torch.mm(one, other, out=out)
        out[0, 0].item()
        seconds.append(time.perf_counter() - began)
    found = {"numbers": size**3 / min(seconds[2:])}
    if device.type == "cpu":
        try:
            from binep.engines.numba.peak import bit_products_a_second
        except ModuleNotFoundError:
            return found
        found["bits"] = bit_products_a_second()
    return found


# --- the table ----------------------------------------------------------------------------------


HEADER = (
    "recipe",
    "engine",
    "reference, ms (n)",
    "engine, ms (n)",
    "ratio",
    "s an epoch",
    "of the floor",
    "steps free + nudged",
    "taken",
    "events",
    "coincidences",
    "ns an event",
)


def _where(environment: dict[str, Any], peak: dict[str, float]) -> str:
    """One line: machine, versions, and what it reaches at best."""
    line = f"{environment['device_name']}, torch {environment['torch']}"
    if environment["device"] == "cpu":
        line += f", {environment['threads']} threads"
    kind = "float16" if environment["device"] == "cuda" else "float32"
    line += f"; peak {2e-12 * peak['numbers']:.3g} TFLOP/s ({kind})"
    if "bits" in peak:
        line += f", {1e-12 * peak['bits']:.3g} T bit products/s (AND, popcount)"
    return f"{line}; commit {environment['commit'] or 'unknown'}"


def _cells(row: Row) -> list[str]:
    """A row of the table as text."""

    def number(value: float | None, form: str = ",.0f") -> str:
        return figures.DASH if value is None else format(value, form)

    fraction = row.floor_fraction
    return [
        row.recipe,
        row.engine,
        f"{_significant(row.reference_ms)} ({row.reference_n})",
        f"{_significant(row.engine_ms)} ({row.engine_n})",
        _significant(row.ratio),
        _significant(row.epoch_s),
        figures.DASH if fraction is None else f"{_significant(100 * fraction)} %",
        f"{row.free_steps:g} + {row.nudged_steps:g}",
        number(row.steps, ".1f"),
        number(row.events),
        number(row.coincidences),
        number(row.ns_per_event, ".1f"),
    ]


def _significant(value: float) -> str:
    """Three significant digits, without an exponent.

    >>> [_significant(x) for x in (0.01234, 12.345, 1234.5, 62486.0)]
    ['0.0123', '12.3', '1,234', '62,486']
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


# --- how cost grows -----------------------------------------------------------------------------

SWEEP = ("mnist-1fc-w", "mnist-1fc-wa")
SWEEP_BASE = {"width": 1024, "depth": 1, "batch": 64, "T": 40}
SWEEP_VALUES = {
    "width": (256, 512, 1024, 2048, 4096),
    "depth": (1, 2, 3, 4, 6),
    "batch": (16, 32, 64, 128, 256),
    "T": (10, 20, 40, 80, 160),
}
SWEEP_LABELS = {
    "width": "neurons a hidden layer",
    "depth": "hidden layers",
    "batch": "samples a mini-batch",
    "T": "free steps T",
}


@dataclass(frozen=True)
class Curve:
    """Milliseconds a mini-batch of one recipe's network against one of its sizes."""

    recipe: str
    engine: str
    size: str
    values: list[int]
    milliseconds: list[float]

    @property
    def exponent(self) -> float:
        """Of the power law that fits the times best: the slope in logarithms."""
        logs = np.log(self.values), np.log(self.milliseconds)
        return float(np.polyfit(*logs, 1)[0])


@dataclass(frozen=True)
class Sweep:
    environment: dict[str, Any]
    images: str
    trained: int
    curves: list[Curve]

    @property
    def notes(self) -> str:
        """Where and on what the times were measured."""
        base = ", ".join(f"{size} {value}" for size, value in SWEEP_BASE.items())
        return (
            f"{self.environment['device_name']}, torch {self.environment['torch']}, {self.images}, "
            f"trained for {self.trained} mini-batches\nexponents of the time a mini-batch takes; "
            f"{base} where not changed"
        )

    @property
    def table(self) -> Table:
        """The fitted exponents, one column a size."""
        sizes = list(dict.fromkeys(curve.size for curve in self.curves))
        fitted: dict[tuple[str, str], dict[str, float]] = {}
        for curve in self.curves:
            fitted.setdefault((curve.recipe, curve.engine), {})[curve.size] = curve.exponent
        rows = [
            [*kind, *(f"{found[size]:.2f}" for size in sizes)] for kind, found in fitted.items()
        ]
        return ["like", "engine", *sizes], rows

    def to_json(self) -> str:
        curves = [{**asdict(curve), "exponent": curve.exponent} for curve in self.curves]
        return json.dumps({**asdict(self), "curves": curves}, indent=1)


def sweep(
    names: Sequence[str] = SWEEP,
    *,
    device: str = "auto",
    engine: str = "auto",
    batches: int = 20,
    train: int = 0,
    data_dir: Folder | None = None,
    sizes: dict[str, Sequence[int]] | None = None,
    budget: float = 5.0,
    say: Say = lambda text: None,
) -> Sweep:
    """Time dense networks like those of some recipes, with one size changed at a time.

    Args:
        sizes: values of width, depth, batch and T; `SWEEP_VALUES` by default. What is not
            changed is as in `SWEEP_BASE`.
        budget: seconds of timing for each point, of at most `batches` mini-batches.
    """
    _at_least(1, batches=batches)
    _at_least(0, train=train)
    place, curves, images = select_device(device), [], ""
    for name in names:
        if recipes.load(name).network.conv:
            raise BinepError(f"recipe {name!r} is convolutional: a sweep needs dense ones")
        for size, values in (sizes or SWEEP_VALUES).items():
            times, used = [], ""
            for value in values:
                recipe = _resized(name, SWEEP_BASE | {size: value})
                dataset, images = _dataset(recipe, place, data_dir, say)
                streams = random_streams(0)
                source = mini_batches(recipe, dataset, streams)
                subject = _Subject.build(recipe, engine, place, say)
                for x, labels in islice(source, train):
                    subject.engine.train(x, labels)
                subject.engine.collect()
                same = list(islice(source, 1 + min(batches, MADE_UP)))
                times.append(time_batches(subject.engine, same, batches, budget).milliseconds)
                used = subject.engine.name
                say(f"{name}: {size} {value}, {times[-1]:.3g} ms")
            curves.append(Curve(name, used, size, list(values), times))
    return Sweep(provenance.environment(place), images, train, curves)


def _resized(name: str, sizes: dict[str, int]) -> Recipe:
    """A recipe's network with other sizes; rates of the first coupling for all."""
    whole = recipes.load(name)
    rates = {
        key: value[0] if isinstance(value, list | tuple) else value
        for key, value in asdict(whole.optimizer).items()
        if value is not None
    }
    return recipes.load(
        name,
        [
            f"network.dense={[sizes['width']] * sizes['depth']}",
            f"learning.free_steps={sizes['T']}",
            f"training.batch_size={sizes['batch']}",
            *(f"optimizer.{key}={value}" for key, value in rates.items()),
        ],
    )


@figures.styled
def sweep_figure(found: Sweep) -> Figure:
    """Milliseconds a mini-batch against each size, with the fitted power laws."""
    sizes = list(dict.fromkeys(curve.size for curve in found.curves))
    columns = min(2, len(sizes))
    figure, grid = figures.new_figure(
        math.ceil(len(sizes) / columns), columns, width=3.9, height=2.9
    )
    panels = [axes for row in grid for axes in row]
    for axes in panels[len(sizes) :]:
        axes.remove()
    for axes, size in zip(panels, sizes, strict=False):
        curves = [curve for curve in found.curves if curve.size == size]
        for curve, colour in zip(curves, figures.COLOURS, strict=False):
            x = np.array(curve.values, float)
            fit = np.polyfit(np.log(x), np.log(curve.milliseconds), 1)
            axes.plot(x, np.exp(np.polyval(fit, np.log(x))), ":", color=colour, linewidth=1)
            label = f"{curve.recipe} ({curve.engine}), exponent {curve.exponent:.2f}"
            axes.plot(x, curve.milliseconds, "o", color=colour, label=label, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(curves[0].values, [str(value) for value in curves[0].values])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_xlabel(SWEEP_LABELS[size])
        axes.set_ylabel("ms a mini-batch")
        low, high = axes.get_ylim()
        # Down to a number that is written there, and room above the points for the legend.
        low = max(n for e in range(-9, 9) for n in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if n <= low)
        axes.set_ylim(low, high * (high / low) ** 0.45)
        axes.legend(loc="upper left", fontsize=7.5)
    return figure


# --- files --------------------------------------------------------------------------------------


def check_out(paths: Sequence[Path], sweeping: bool) -> None:
    """Refuse, before anything is measured, a file that could not be written."""
    for path in paths:
        allowed = FORMATS if sweeping else FORMATS[:2]
        if path.suffix not in allowed:
            hint = "" if sweeping or path.suffix != ".png" else "; a figure needs --sweep"
            raise BinepError(f"--out {path}: allowed are names in {', '.join(allowed)}{hint}")


def write(found: Result | Sweep, path: Path) -> None:
    """Write what was measured as the file's name says: .md, .json, or a sweep's figure as .png."""
    if path.suffix == ".png" and isinstance(found, Sweep):
        figures.save(sweep_figure(found), path)
    elif path.suffix == ".json":
        write_whole(path, found.to_json() + "\n")
    else:
        write_whole(path, f"{found.notes}\n\n{figures.markdown_table(*found.table)}\n")
