"""From a run to what is shipped: a packed file, C, or memory images."""

from pathlib import Path
from typing import Any

import numpy as np

from binep.couplings import ConvPool, Coupling
from binep.data import DATASETS
from binep.deploy import packed
from binep.deploy.stored import Array, StoredCoupling, StoredNetwork
from binep.dynamics import EnergyBased
from binep.errors import BinepError, choose
from binep.files import make_folder
from binep.network import Network
from binep.neurons import Heaviside
from binep.recipe import Recipe
from binep.runs import Run

FORMATS = ("packed", "c", "mem")


def export(run: Run, to: Path, format: str = "packed", readout: str = "average") -> list[Path]:
    """Write a trained network in one of the formats into a folder; returns what was written."""
    choose(format, FORMATS, "format")
    network = store(run.network("cpu"), run.recipe, readout, _origin(run))
    make_folder(to)
    path = to / f"{run.folder.name}.safetensors"
    packed.save(network, path)
    return [path]


def store(
    network: Network,
    recipe: Recipe,
    readout: str = "average",
    origin: dict[str, Any] | None = None,
) -> StoredNetwork:
    """What is shipped of a network trained by a recipe."""
    source, neuron = DATASETS[recipe.data.name], network.neuron
    for n, coupling in enumerate(network.couplings):
        if coupling.bias is not None and not bool(coupling.bias.isfinite().all()):
            raise BinepError(f"coupling {n} has a bias that is not finite: this network is broken")
    binary = isinstance(neuron, Heaviside)
    energy = isinstance(network.dynamics, EnergyBased)
    return StoredNetwork(
        input_shape=tuple(network.input_shape),
        couplings=[_store_coupling(coupling) for coupling in network.couplings],
        activations="binary" if binary else "real",
        threshold=neuron.threshold if isinstance(neuron, Heaviside) else 0.5,
        sigma=neuron.sigma if isinstance(neuron, Heaviside) else 0.5,
        dynamics="energy" if energy else "prototypical",
        dt=network.dynamics.dt if isinstance(network.dynamics, EnergyBased) else 1.0,
        initial_state=network.initial_state,
        steps=recipe.learning.free_steps,
        cost=network.cost,
        classes=network.classes,
        per_class=network.per_class,
        readout=readout,
        image_shape=tuple(source.image_shape),
        mean=source.mean,
        std=source.std,
        origin=origin or {},
    )


def _store_coupling(coupling: Coupling) -> StoredCoupling:
    conv = isinstance(coupling, ConvPool)
    sizes = (
        {name: getattr(coupling, name) for name in ("kernel", "padding", "pool")} if conv else {}
    )
    if coupling.binary:
        parts = {
            "signs": _array(coupling.signs).astype(np.int8),
            "scale": _array(coupling.scale),
        }
    else:
        parts = {"weight": _array(coupling.weight)}
    bias = None if coupling.bias is None else _array(coupling.bias)
    above, below = coupling.weight.shape[:2]
    return StoredCoupling("conv" if conv else "dense", below, above, **sizes, **parts, bias=bias)


def _array(parameter: Any) -> Array:
    return parameter.detach().cpu().numpy().astype(np.float32)


def _origin(run: Run) -> dict[str, Any]:
    """Where the network comes from, for people to read."""
    known = {
        name: run.record.get(name) for name in ("recipe", "seed", "binep", "commit", "updated")
    }
    last = run.last
    errors = {} if last is None else {"epoch": last["epoch"], "test_error": last["test_error"]}
    return {"data": run.recipe.data.name, **known, **errors}
