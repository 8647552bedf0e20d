"""Test error against each imperfection: put on a trained network, or trained with."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from binep.data import Dataset, Folder, Split
from binep.engines.select import select_device
from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.report.figures import BLUE, ORANGE, new_figure, save, styled
from binep.training import recipe as recipes
from binep.training.recipe import Recipe
from binep.training.runs import Run, build_trainer, fitting_threads
from binep.training.trainer import evaluate

# What is tried of each imperfection, and how its axis is labelled.
VALUES: dict[str, tuple[str, list[Any]]] = {
    "weight_errors": ("weights read wrongly", [0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3]),
    "activation_errors": ("bits sent wrongly", [0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3]),
    "stuck": ("synapses stuck", [0.0, 0.03, 0.1, 0.2, 0.4, 0.6]),
    "threshold_spread": ("spread of thresholds (s.d.)", [0.0, 0.03, 0.1, 0.2, 0.3, 0.5]),
    "momentum_bits": ("bits of a momentum", [2, 3, 4, 6, 8, 12]),
    "momentum_leak": ("momentum lost a mini-batch", [0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.3]),
}
# Errors of bits: what has none of a kind cannot have them.
OF_ACTIVATIONS = ("activation_errors", "threshold_spread")
# These do nothing to a network that is not being trained.
ONLY_IN_TRAINING = ("momentum_bits", "momentum_leak")


@dataclass(frozen=True)
class Point:
    """The test error, in per cent, at one value of one imperfection.

    `trained`: the network was trained with it; otherwise it was only put on it afterwards.
    """

    imperfection: str
    value: float
    trained: bool
    error: float


@dataclass(frozen=True)
class Sweep:
    """All points, and what they were measured on.

    Attributes:
        trained_epochs: of the run itself. epochs: of each training with an imperfection.
    """

    run: str
    images: int
    trained_epochs: int
    epochs: int
    points: list[Point]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def on_hardware(run: Run, overrides: Sequence[str]) -> Run:
    """A run with its network on imperfect hardware, from overrides `hardware.KEY=VALUE`."""
    for override in overrides:
        if not override.strip().startswith("hardware."):
            raise BinepError(
                f"--set {override}: of a trained network only hardware.* can be changed"
            )
    if not overrides:
        return run
    return replace(run, recipe=recipes.load(run.folder / "recipe.toml", overrides))


def sweep(
    run: Run,
    *,
    epochs: int = 0,
    images: int | None = None,
    device: str = "auto",
    data_dir: Folder | None = None,
    offline: bool = False,
    say: Callable[[str], None] = lambda text: None,
    keep: Callable[[Sweep], Any] = lambda found: None,
) -> Sweep:
    """Measure a run at every value of every imperfection that its network can have.

    Others that its recipe has already stay as they are.

    Args:
        epochs: also train the recipe anew at every value, for so many epochs; 0: not.
        images: how many test images; all by default.
        keep: is given what has been found so far, after every point.
    """
    if epochs < 0:
        raise BinepError(f"epochs={epochs}: allowed is at least 0")
    dataset = run.dataset(device=device, data_dir=data_dir, offline=offline)
    test = dataset.test
    if images is not None:
        test = Split(test.images[:images], test.labels[:images])
    dataset = replace(dataset, test=test)
    found = Sweep(run.folder.name, len(test), len(run.metrics), epochs, [])

    def add(point: Point) -> None:
        found.points.append(point)
        keep(found)
        how = f"trained with it for {epochs} epochs" if point.trained else "put on it"
        say(f"{point.imperfection}={point.value:g}, {how}: {point.error:.2f} %")

    for name in imperfections_of(run.recipe):
        for value in VALUES[name][1]:
            keys = replace(run.recipe.hardware, **{name: value})
            worse = replace(run, recipe=replace(run.recipe, hardware=keys))
            if name not in ONLY_IN_TRAINING:
                tally = evaluate(worse.engine(device), dataset, test)
                add(Point(name, value, False, tally.error("average")))
            if epochs:
                add(Point(name, value, True, _train(worse, dataset, epochs, device)))
    return found


def imperfections_of(recipe: Recipe) -> list[str]:
    """Which of `VALUES` a recipe's network can have: those of bits that it has."""
    if recipe.network.weights == "real":
        raise BinepError(
            f"recipe {recipe.name} has real weights: imperfections are those of bits, allowed are "
            "recipes with network.weights='binary'"
        )
    bits = recipe.network.sends_bits
    return [name for name in VALUES if bits or name not in OF_ACTIVATIONS]


def _train(run: Run, dataset: Dataset, epochs: int, device: str) -> float:
    seed = int(run.record.get("seed", 0))
    trainer = build_trainer(run.recipe, dataset, seed, select_device(device))
    line = None
    with fitting_threads(trainer):
        for _ in range(epochs):
            line = trainer.epoch()
    return line["test_error"]["average"] if line is not None else float("nan")


@styled
def figure(found: Sweep) -> Figure:
    """A panel for each imperfection that was measured."""
    names = [name for name in VALUES if any(p.imperfection == name for p in found.points)]
    columns = 2 if len(names) <= 4 else 3
    drawing, axes = new_figure(-(-len(names) // columns), columns, width=3.6, height=2.8)
    places = [place for row in axes for place in row]
    kinds = {
        False: (f"trained without it, {found.trained_epochs} epochs", BLUE, "o-"),
        True: (f"trained with it, {found.epochs} epochs", ORANGE, "s-"),
    }
    for place, name in zip(places, names, strict=False):
        label, values = VALUES[name]
        for trained, (legend, colour, line) in kinds.items():
            mine = [p for p in found.points if p.imperfection == name and p.trained == trained]
            if mine:
                place.plot(
                    [p.value for p in mine],
                    [p.error for p in mine],
                    line,
                    color=colour,
                    label=legend,
                )
        if name == "momentum_bits":
            place.set_xticks(values)
        else:
            place.set_xscale("symlog", linthresh=min(v for v in values if v))
            texts = [f"{v:g}" for v in values]
            place.set_xticks(values, texts, rotation=45, ha="right", rotation_mode="anchor")
            place.minorticks_off()
        place.set_ylim(bottom=0)
        place.set_title(label)
        place.set_ylabel("test error, %")
        if name == names[0]:
            place.legend()
    for place in places[len(names) :]:
        place.set_axis_off()
    drawing.suptitle(f"{found.run}: {found.images} test images", x=0.01, ha="left", fontsize=10)
    return drawing


def write(found: Sweep, folder: Path) -> list[Path]:
    """Write the figure and its numbers."""
    numbers = write_numbers(found, folder)
    picture = numbers.with_suffix(".png")
    save(figure(found), picture)
    return [picture, numbers]


def write_numbers(found: Sweep, folder: Path) -> Path:
    """Write what has been measured so far."""
    make_folder(folder)
    path = folder / f"hardware-{found.run}.json"
    write_whole(path, found.to_json())
    return path
