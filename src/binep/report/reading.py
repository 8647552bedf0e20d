"""What a trained network does with test images: misreads, relaxes, comes to rest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from binep.core.couplings import Shape
from binep.core.network import READOUTS, Network
from binep.core.neurons import range_of
from binep.core.relaxation import Nudge, relax
from binep.data import Dataset, Folder
from binep.errors import BinepError
from binep.report import figures
from binep.report.groups import Group
from binep.training.recipe import Recipe
from binep.training.trainer import TEST_BATCH

# Multiply-adds that reading test images may cost: about a minute on a laptop, seconds on a GPU.
READING_COST = {"cpu": 4e12, "cuda": 4e14}
TRACED_IMAGES = 64
WRONG_SHOWN = 24
TILES, TILE_COLUMNS = 32, 8  # neurons whose weights are shown
WIDE = 256  # pixels of a picture of weights


@dataclass(frozen=True)
class Picture:
    """Weights as pixels, uint8 (height, width, 3), each as many high and wide as `zoom` says."""

    title: str
    pixels: np.ndarray
    zoom: tuple[int, int]


@dataclass(frozen=True)
class Reading:
    """What one trained network does with test images.

    Attributes:
        seed: of the run it comes from. samples: how many images were read, out of `available`.
        wrong: misread images, by each readout.
        confusion: images by true (rows) and read class (columns), average readout.
        examples: some that were misread: image (channels, height, width), true class, read class.
        free, nudged: residual of every time step, on the first `traced` images.
        weights: of the couplings, as pictures.
        layers: their names. resting: share of the neurons of each layer, by where they rest.
    """

    seed: Any
    samples: int
    available: int
    wrong: dict[str, int]
    confusion: list[list[int]]
    examples: list[tuple[Tensor, int, int]]
    traced: int
    free: list[float]
    nudged: list[float]
    layers: list[str]
    resting: dict[str, list[float]]
    weights: "list[Picture]"


def read_group(
    group: Group, device: str, data_dir: Folder | None, offline: bool, images: int | None
) -> Reading | str:
    """Read test images with the group's first network, or say what keeps us from it."""
    if not group.counted:
        return "no run has finished an epoch yet"
    run = group.counted[0]
    try:
        dataset = run.dataset(device=device, data_dir=data_dir, offline=offline)
        network = run.network(device)
    except BinepError as error:
        return str(error)
    return read_network(network, run.recipe, dataset, run.record.get("seed"), images)


@torch.no_grad()
def read_network(
    network: Network, recipe: Recipe, dataset: Dataset, seed: Any = None, images: int | None = None
) -> Reading:
    """Let a network read test images, with the phases that its recipe says."""
    test = dataset.test
    affordable = READING_COST.get(test.images.device.type, READING_COST["cpu"]) / reading_cost(
        network, recipe
    )
    # Evenly spread: data sets may be sorted by difficulty, as MNIST's test images are.
    chosen = _evenly(len(test), images or max(TRACED_IMAGES, int(affordable)))
    labels = test.labels[chosen].cpu()
    predicted, resting = _read_images(network, recipe, dataset, chosen)
    average, classes = predicted["average"], network.classes
    wrong = (average != labels).nonzero().flatten()
    shown = wrong[_evenly(len(wrong), WRONG_SHOWN)].tolist()
    free, nudged = _trace(network, recipe, dataset, chosen[:TRACED_IMAGES])
    return Reading(
        seed=seed,
        samples=len(chosen),
        available=len(test),
        wrong={r: int((p != labels).sum()) for r, p in predicted.items()},
        confusion=torch.bincount(labels * classes + average, minlength=classes**2)
        .reshape(classes, classes)
        .tolist(),
        examples=[(test.images[chosen[n]].cpu(), int(labels[n]), int(average[n])) for n in shown],
        traced=len(chosen[:TRACED_IMAGES]),
        free=free,
        nudged=nudged,
        layers=_layer_names(network),
        resting=resting,
        weights=pictures_of(network, dataset.image_shape),
    )


def pictures_of(network: Network, image_shape: Shape) -> list[Picture]:
    """The first coupling's weights as each neuron or channel sees the input, others as matrices."""
    found = []
    for n, coupling in enumerate(network.couplings, start=1):
        weight = coupling.weight.detach().float().cpu()
        name = f"coupling {n}, {weight.shape[1]} to {weight.shape[0]}"
        seen = math.prod(image_shape) if len(image_shape) == 3 else 0
        if n == 1 and weight.dim() == 2 and weight.shape[1] == seen:
            weight = weight.reshape(-1, *image_shape)
        if weight.dim() == 4 and (n == 1 or weight.shape[1] == 1):
            chosen = weight[_evenly(len(weight), TILES)].mean(1).numpy()
            sheet = figures.tiled(chosen, min(len(chosen), TILE_COLUMNS))
            title = f"{name}: what {len(chosen)} of {len(weight)} weigh in the input"
            side = max(1, WIDE // max(sheet.shape))
            zoom = side, side
        else:
            sheet, title = _shrunk(weight.flatten(1).numpy()), f"{name}: all weights"
            # A matrix of few rows need not be as high as it is wide.
            zoom = max(1, min(12, WIDE // sheet.shape[0])), max(1, WIDE // sheet.shape[1])
        found.append(Picture(title, figures.coloured(sheet), zoom))
    return found


def _shrunk(matrix: np.ndarray) -> np.ndarray:
    """A matrix with at most `WIDE` rows and columns, each the mean of some neighbours."""
    for axis in (0, 1):
        parts = np.array_split(matrix, min(matrix.shape[axis], WIDE), axis)
        matrix = np.concatenate([part.mean(axis, keepdims=True) for part in parts], axis)
    return matrix


def _evenly(total: int, count: int) -> Tensor:
    """At most `count` of 0..total-1, evenly spread."""
    count = min(total, count)
    return torch.arange(count) * total // max(count, 1)


def _read_images(
    network: Network, recipe: Recipe, dataset: Dataset, chosen: Tensor
) -> tuple[dict[str, Tensor], dict[str, list[float]]]:
    """The class read from each test image, by readout, and where the layers' neurons rest."""
    keys, read = recipe.learning, {readout: list[Tensor]() for readout in READOUTS}
    resting = torch.zeros(())
    for part in chosen.split(TEST_BATCH):
        clamped = network.clamp(dataset.inputs(dataset.test.images[part]))
        free = relax(
            network, clamped, network.initial(clamped), keys.free_steps, tolerance=keys.tolerance
        )
        for readout in READOUTS:
            read[readout].append(network.predict(free.state, readout).cpu())
        resting = resting + _resting(network, free.state) * len(part) / len(chosen)
    places = ["active", "silent"] if network.neuron.binary else ["lowest", "between", "highest"]
    return (
        {readout: torch.cat(parts) for readout, parts in read.items()},
        dict(zip(places, resting.T.tolist(), strict=True)),
    )


def reading_cost(network: Network, recipe: Recipe) -> float:
    """Multiply-adds of one image's free phase; the input's drive is computed once."""
    costs = [
        coupling.products(shape)
        for coupling, shape in zip(network.couplings, network.shapes[:-1], strict=True)
    ]
    return costs[0] + 2.0 * recipe.learning.free_steps * sum(costs[1:])


def _trace(
    network: Network, recipe: Recipe, dataset: Dataset, chosen: Tensor
) -> tuple[list[float], list[float]]:
    """Residuals of a free phase and of a nudged one (none for BPTT), both of full length."""
    keys = recipe.learning
    clamped = network.clamp(dataset.inputs(dataset.test.images[chosen]))
    free = relax(network, clamped, network.initial(clamped), keys.free_steps)
    if keys.method == "bptt":
        return free.residuals.tolist(), []
    nudge = Nudge(network.target(dataset.test.labels[chosen]), keys.beta, keys.nudge)
    nudged = relax(network, clamped, free.state, keys.nudged_steps, nudge)
    return free.residuals.tolist(), nudged.residuals.tolist()


def _resting(network: Network, state: Sequence[Tensor]) -> Tensor:
    """Shares of each layer's neurons by where they rest, (layers, places), float64 on the CPU."""
    rows = []
    for neuron, activity in zip(network.neurons, network.activity(list(state)), strict=True):
        if network.neuron.binary:
            active = float(activity.double().mean())
            rows.append([active, 1 - active])
        else:
            low, high = (float((activity == end).double().mean()) for end in range_of(neuron))
            rows.append([low, 1 - low - high, high])
    return torch.tensor(rows, dtype=torch.float64)


def _layer_names(network: Network) -> list[str]:
    last = len(network.layer_shapes)
    return [
        f"{'output' if n == last and network.cost == 'mse' else f'layer {n}'}, "
        + "\u00d7".join(map(str, shape))
        for n, shape in enumerate(network.layer_shapes, start=1)
    ]
