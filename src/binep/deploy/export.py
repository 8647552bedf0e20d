"""From a run to what is shipped: a packed file, C, or memory images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from binep.core.couplings import ConvPool, Coupling
from binep.core.dynamics import EnergyBased
from binep.core.kinds import kind_of
from binep.core.known import check_known
from binep.core.network import Network
from binep.core.plan import ContrastPlan
from binep.data import Folder
from binep.deploy import c_program, memory, packed
from binep.deploy.fixed import STATE_BITS
from binep.deploy.learning import FixedRule, Rule
from binep.deploy.stored import Array, StoredCoupling, StoredNetwork
from binep.errors import BinepError, choose
from binep.files import make_folder
from binep.training.recipe import Recipe
from binep.training.runs import Run

FORMATS = ("packed", "c", "mem")
# Test vectors, unless told otherwise; every step of every neuron is written for memory images.
VECTORS = {"c": 100, "mem": 4}


@dataclass(frozen=True)
class Options:
    """How to export.

    Attributes:
        readout: what is exported as the network's own.
        vectors: how many test images go with C or memory images; None: as `VECTORS` says, 0: all.
        state_bits: fractional bits of a state in integers.
        momentum_bits: let the C program go on learning, with momenta of so many bits; None: not.
    """

    readout: str = "average"
    vectors: int | None = None
    state_bits: int = STATE_BITS
    momentum_bits: int | None = None


def export(
    run: Run,
    to: Path,
    format: str = "packed",
    options: Options | None = None,
    *,
    data_dir: Folder | None = None,
    offline: bool = False,
) -> list[Path]:
    """Write a trained network in one of the formats into a folder; returns what was written.

    Test vectors are the first images of the run's test set.
    """
    choose(format, FORMATS, "format")
    options = options or Options()
    if format != "c" and options.momentum_bits is not None:
        raise BinepError(f"learning with format {format!r}: allowed is format 'c'")
    if options.vectors is not None and options.vectors < 0:
        raise BinepError(f"vectors={options.vectors}: allowed is at least 0, which means all")
    network = store(run.network("cpu", newest=True), run.recipe, options.readout, _origin(run))
    make_folder(to)
    if format == "packed":
        path = to / f"{run.folder.name}.safetensors"
        packed.save(network, path)
        return [path]
    dataset = run.dataset(device="cpu", data_dir=data_dir, offline=offline)
    count = VECTORS[format] if options.vectors is None else options.vectors
    images = dataset.test.images.numpy()[: count or None]
    labels = dataset.test.labels.numpy()[: count or None]
    if format == "mem":
        return memory.write(network, to, images, labels, state_bits=options.state_bits)
    learning = None
    if options.momentum_bits is not None:
        learning = FixedRule(learning_rule(run.recipe, len(run.metrics)), options.momentum_bits)
    return c_program.write(
        network, to, images, labels, state_bits=options.state_bits, learning=learning
    )


def learning_rule(recipe: Recipe, epochs_done: int = 0) -> Rule:
    """What a recipe says about learning, with the rates due after so many epochs."""
    keys, rates, plan = recipe.learning, recipe.rates(epochs_done), recipe.build_learning().plan()
    if not isinstance(plan, ContrastPlan):
        raise BinepError(f"learning in C by {keys.method!r}: allowed is learning.method='ep'")
    if plan.margin:
        raise BinepError(f"learning in C with learning.margin={plan.margin}: allowed is 0")
    if not {"gamma", "tau", "lr_bias"} <= rates.keys():
        raise BinepError("learning in C needs optimizer.gamma, tau and lr_bias")

    return Rule(
        plan=plan,
        random_sign=keys.sign == "random",
        gamma=tuple(rates["gamma"]),
        tau=tuple(rates["tau"]),
        lr_bias=tuple(rates["lr_bias"]),
        batch_size=recipe.training.batch_size,
    )


def store(
    network: Network,
    recipe: Recipe,
    readout: str = "average",
    origin: dict[str, Any] | None = None,
) -> StoredNetwork:
    """What is shipped of a network trained by a recipe: of binep's own parts, exactly."""
    check_known(network, "export")
    source, neuron = recipe.source, network.neuron
    for n, coupling in enumerate(network.couplings):
        if coupling.bias is not None and not bool(coupling.bias.isfinite().all()):
            raise BinepError(f"coupling {n} has a bias that is not finite: this network is broken")
    return StoredNetwork(
        input_shape=tuple(network.input_shape),
        couplings=[_store_coupling(coupling) for coupling in network.couplings],
        activations="binary" if neuron.binary else "real",
        threshold=getattr(neuron, "threshold", 0.5),
        sigma=getattr(neuron, "sigma", 0.5),
        dynamics="energy" if kind_of(network.dynamics) is EnergyBased else "prototypical",
        dt=getattr(network.dynamics, "dt", 1.0),
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
    conv = kind_of(coupling) is ConvPool
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
