"""From a trained network to what is shipped: packed, C, memory images, a page, your own format.

An export format is a function `exporter(shipment, folder)`, registered as `binep.exporters` (see
`binep.registry`), that writes files into an empty folder and returns their paths.
"""

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from binep import registry
from binep.core.couplings import ConvPool, Coupling
from binep.core.dynamics import EnergyBased, Hopfield, Prototypical
from binep.core.kinds import kind_of
from binep.core.known import check_known
from binep.core.network import Network
from binep.core.plan import ContrastPlan
from binep.data import Dataset, Folder, Source
from binep.data.dataset import Split
from binep.data.own import Facts
from binep.deploy import c_program, memory, packed, verilog_core, web_page
from binep.deploy.fixed import STATE_BITS
from binep.deploy.learning import FixedRule, Rule
from binep.deploy.stored import Array, StoredCoupling, StoredNetwork
from binep.deploy.verilog_core import PARALLEL, Core, Vectors
from binep.errors import BinepError
from binep.files import make_folder, telling
from binep.training.recipe import Recipe
from binep.training.run_folder import Run

# Test vectors, unless told otherwise; every step of every neuron is written for memory images.
VECTORS = {"c": 100, "mem": 4, "verilog": 100, "web": 100}
# Formats that may go on learning.
_LEARN = ("c", "verilog")
# Training images that come with a core, to be learnt.
_LESSONS = 100
# Of a momentum on a page, which takes 32 bits anyway.
_WEB_MOMENTUM_BITS = 31


@dataclass(frozen=True)
class Options:
    """How to export.

    Attributes:
        readout: what is exported as the network's own.
        vectors: how many test images go with C, memory images, Verilog or a page; None: as
            `VECTORS` says, 0: all.
        state_bits: fractional bits of a state in integers.
        momentum_bits: let C or Verilog go on learning, with momenta of so many bits; None: not.
        parallel: synapses that Verilog sums in a cycle; None: as `verilog_core.PARALLEL` says.
    """

    readout: str = "average"
    vectors: int | None = None
    state_bits: int = STATE_BITS
    momentum_bits: int | None = None
    parallel: int | None = None


@dataclass(frozen=True)
class Shipment:
    """What an exporter is given: a trained network and what is known about it.

    Attributes:
        network: with its weights, on the CPU; its `free_steps` are those of the free phase.
        name: what a file of it is called.
        data: what it reads: shape of a sample, mean and deviation; None: inputs as they are.
        test_set: the images that test vectors are taken from, if it is asked for them.
        rule: what it has learnt by, if it is asked.
        origin: where it comes from, for people to read.
    """

    network: Network
    name: str = "network"
    options: Options = field(default_factory=Options)
    data: Source | Facts | Dataset | None = None
    test_set: Callable[[], Dataset] | None = None
    rule: Callable[[], Rule] | None = None
    origin: dict[str, Any] = field(default_factory=dict)

    def stored(self) -> StoredNetwork:
        """The network as packed files, C and memory images know it: of binep's own parts only."""
        steps, readout = self.network.free_steps, self.options.readout
        return store_network(self.network, self.data, steps, readout, self.origin)

    def vectors(self, format: str) -> tuple[Array, Array]:
        """The first test images, as many as asked for, and their labels."""
        if self.test_set is None:
            raise BinepError(
                f"format {format!r} comes with test images: allowed is a run, or data to take "
                "them from"
            )
        count = self.options.vectors
        kept = (VECTORS.get(format, 0) if count is None else count) or None
        return _first(self.test_set().test, kept)

    def learning(self) -> FixedRule | None:
        """How it goes on learning, if that is asked for."""
        if self.options.momentum_bits is None:
            return None
        if self.rule is None:
            raise BinepError("learning: allowed is a run, whose recipe says by which rule")
        return FixedRule(self.rule(), self.options.momentum_bits)


def _first(split: Split, count: int | None) -> tuple[Array, Array]:
    """Images and labels as arrays."""
    return split.images.cpu().numpy()[:count], split.labels.cpu().numpy()[:count]


# --- exporting ----------------------------------------------------------------------------------


def export(
    run: Run,
    to: Path,
    format: str = "packed",
    options: Options | None = None,
    *,
    data_dir: Folder | None = None,
    offline: bool = False,
) -> list[Path]:
    """Write a run's network in one of the formats into a folder; returns what was written.

    Test vectors are the first images of the run's test set.
    """
    network = run.network("cpu", newest=True)
    network.free_steps = run.recipe.learning.free_steps
    return _ship(
        Shipment(
            network,
            run.folder.name,
            options or Options(),
            run.recipe.source,
            lambda: run.dataset(device="cpu", data_dir=data_dir, offline=offline),
            lambda: learning_rule(run.recipe, len(run.metrics)),
            _origin(run),
        ),
        to,
        format,
    )


def export_network(
    network: Network,
    to: str | Path,
    format: str = "packed",
    options: Options | None = None,
    *,
    dataset: Dataset | None = None,
    name: str = "network",
) -> list[Path]:
    """Write any trained network in one of the formats into a folder; returns what was written.

    Args:
        dataset: what the network was trained on: how images become inputs, and the test images
            that go with C and memory images.

    >>> import tempfile
    >>> from binep import Dense, load
    >>> net = Network((64,), [Dense(64, 10)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path] = export_network(net, folder, name="small")
    ...     path.name, load(path)
    ('small.safetensors', Runtime(64-10, real activations))
    """
    shipment = Shipment(
        copy.deepcopy(network).cpu(),
        name,
        options or Options(),
        dataset,
        None if dataset is None else lambda: dataset,
    )
    return _ship(shipment, Path(to), format)


def _ship(shipment: Shipment, to: Path, format: str) -> list[Path]:
    exporter, options = registry.exporters[format], shipment.options
    if format not in _LEARN and options.momentum_bits is not None:
        raise BinepError(f"learning with format {format!r}: allowed are {' and '.join(_LEARN)}")
    if format != "verilog" and options.parallel is not None:
        raise BinepError(f"parallel={options.parallel} with format {format!r}: allowed is verilog")
    if options.vectors is not None and options.vectors < 0:
        raise BinepError(f"vectors={options.vectors}: allowed is at least 0, which means all")
    make_folder(to)
    # Apart first: an export that fails leaves nothing, and two exports are never mixed.
    with telling("write", to):
        apart = Path(tempfile.mkdtemp(prefix=".export-", dir=to))
    try:
        written = [Path(path).relative_to(apart) for path in exporter(shipment, apart)]
        _check_unmixed(to, written)
        with telling("write", to):
            for path in written:
                (to / path).parent.mkdir(parents=True, exist_ok=True)
                (apart / path).replace(to / path)
    finally:
        shutil.rmtree(apart, ignore_errors=True)
    return [to / path for path in written]


def _check_unmixed(to: Path, written: Iterable[Path]) -> None:
    """Check that a folder holds no files but those that will be written again.

    Packed files stand for themselves: any number of them may share a folder.
    """
    mine = {path.parts[0] for path in written}
    alone = all(name.endswith(PACKED) for name in mine)
    for path in sorted(to.iterdir()):
        if path.is_file() and path.name not in mine and not (alone and path.name.endswith(PACKED)):
            raise BinepError(
                f"{to} holds {path.name}, which is no part of this export: allowed is an empty "
                "folder, or one that holds the same export"
            )


# --- the formats that ship ----------------------------------------------------------------------

PACKED = ".safetensors"


def write_packed(shipment: Shipment, to: Path) -> list[Path]:
    """One file, a bit per weight; see `binep.load`."""
    path = to / f"{shipment.name}{PACKED}"
    packed.save(shipment.stored(), path)
    return [path]


def write_c(shipment: Shipment, to: Path) -> list[Path]:
    """A program in portable C."""
    images, state_bits = shipment.vectors("c"), shipment.options.state_bits
    return c_program.write(
        shipment.stored(), to, *images, state_bits=state_bits, learning=shipment.learning()
    )


def write_memory(shipment: Shipment, to: Path) -> list[Path]:
    """Memory images for Verilog."""
    images, state_bits = shipment.vectors("mem"), shipment.options.state_bits
    return memory.write(shipment.stored(), to, *images, state_bits=state_bits)


def write_verilog(shipment: Shipment, to: Path) -> list[Path]:
    """A core in SystemVerilog, with its testbench."""
    options, learning = shipment.options, shipment.learning()
    parallel = PARALLEL if options.parallel is None else options.parallel
    core = Core(shipment.stored(), options.state_bits, parallel, learning)
    images, labels = shipment.vectors("verilog")
    tested = len(images)
    if learning is not None and shipment.test_set is not None:
        lessons = _first(shipment.test_set().train, _LESSONS)
        images = np.concatenate([images, lessons[0]])
        labels = np.concatenate([labels, lessons[1]])
    return verilog_core.write(core, to, Vectors(images, labels, np.arange(len(images)) >= tested))


def write_web(shipment: Shipment, to: Path) -> list[Path]:
    """A page on which the network relaxes and learns."""
    if shipment.rule is None:
        raise BinepError("a page learns: allowed is a run, whose recipe says by which rule")
    network, learning = shipment.stored(), FixedRule(shipment.rule(), _WEB_MOMENTUM_BITS)
    images, names = shipment.vectors("web"), getattr(shipment.data, "class_names", None)
    bits = shipment.options.state_bits
    return web_page.write(network, to, *images, learning, class_names=names, state_bits=bits)


# --- what is stored -----------------------------------------------------------------------------

DYNAMICS = {Prototypical: "prototypical", EnergyBased: "energy", Hopfield: "hopfield"}


def learning_rule(recipe: Recipe, epochs_done: int = 0) -> Rule:
    """What a recipe says about learning, with the rates due after so many epochs."""
    keys, rates, plan = recipe.learning, recipe.rates(epochs_done), recipe.build_learning().plan()
    if not isinstance(plan, ContrastPlan):
        raise BinepError(
            f"learning in integers by {keys.method!r}: allowed is learning.method='ep'"
        )
    if recipe.optimizer.sigma is not None:
        raise BinepError(
            f"learning in integers with optimizer.sigma={recipe.optimizer.sigma}: allowed is none"
        )
    if recipe.homeostasis is not None:
        raise BinepError(
            f"learning in integers with learning.homeostasis={keys.homeostasis}: allowed is 0"
        )
    if not {"gamma", "tau", "lr_bias"} <= rates.keys():
        raise BinepError("learning in integers needs optimizer.gamma, tau and lr_bias")

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
    """What is shipped of a network trained by a recipe."""
    return store_network(network, recipe.source, recipe.learning.free_steps, readout, origin)


def store_network(
    network: Network,
    data: Source | Facts | Dataset | None,
    steps: int,
    readout: str = "average",
    origin: dict[str, Any] | None = None,
) -> StoredNetwork:
    """What is shipped of any network: of binep's own parts, exactly."""
    check_known(network, "export")
    neuron = network.neuron
    for n, coupling in enumerate(network.couplings):
        if coupling.bias is not None and not bool(coupling.bias.isfinite().all()):
            raise BinepError(f"coupling {n} has a bias that is not finite: this network is broken")
    return StoredNetwork(
        input_shape=tuple(network.input_shape),
        couplings=[_store_coupling(coupling) for coupling in network.couplings],
        activations="binary" if neuron.binary else "real",
        threshold=getattr(neuron, "threshold", 0.5),
        sigma=getattr(neuron, "sigma", 0.5),
        dynamics=DYNAMICS[kind_of(network.dynamics)],
        updates=network.updates,
        dt=getattr(network.dynamics, "dt", 1.0),
        initial_state=network.initial_state,
        steps=steps,
        cost=network.cost,
        classes=network.classes,
        per_class=network.per_class,
        readout=readout,
        image_shape=tuple(network.input_shape if data is None else data.image_shape),
        mean=None if data is None else data.mean,
        std=None if data is None else data.std,
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
