"""Recipes: everything that defines a training run, read from TOML and checked key by key.

A recipe is a tree of frozen dataclasses, one for each section of the file. `load` takes the name of
one that ships with the package, or the path of a user's own file; a file may say
`extends = "mnist-1fc-w"` and give only what differs. Every mistake is one line that names the key,
the value, and what is allowed.
"""

import json
import math
import re
import sys
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from binep.core.couplings import Dense
from binep.core.gradients import (
    PULLS_AT,
    SIGNS,
    BackpropThroughTime,
    EquilibriumPropagation,
    Learning,
)
from binep.core.homeostasis import Homeostasis
from binep.core.imperfect import Imperfections, ImperfectNetwork, imperfect_optimizers
from binep.core.limits import (
    MOST_CHANNELS,
    MOST_EPOCHS,
    MOST_NEURONS,
    MOST_STEPS,
    MOST_WIDTH,
)
from binep.core.memory import check_fits
from binep.core.network import COSTS, DYNAMICS, SENDS, Network
from binep.core.neurons import HardSigmoid, Heaviside, Neuron
from binep.core.optim import RATES, Optimizers, assign_optimizers
from binep.core.relaxation import NUDGES
from binep.core.turns import UPDATES
from binep.core.weights import nearest_power_of_two
from binep.data import DATASETS, Augmentation, Dataset, Folder, Source
from binep.data import load as load_dataset
from binep.data.own import TEST_SHARE, Facts, facts_of, read_once
from binep.errors import BinepError, choose
from binep.files import read_text
from binep.registry import loggers
from binep.training.layers import COUPLING, OF_LAYERS, Layer, neurons_of, stacked

OWN = "own"
OF_CONV = ("kernel", "padding", "pool")
CHAIN = ("conv", "dense", *OF_CONV)  # what `network.layers` stands in place of
MOST_PARENTS = 20
MOST_BYTES = 1 << 20  # of a recipe's file
PerCoupling = float | list[float]
PerConv = int | list[int]


def _key(meaning: str, default: Any = MISSING, *, example: Any, **limits: Any) -> Any:
    """A key: what it means, its default, an example, and its limits.

    Limits are `choices`, `low` (at least), `above` (more than) and `high` (at most). All of this is
    what values are checked against, and what `binep.training.keys` prints. A key that is new, and
    whose default None is resolved to a value, says with `before` to which one in recipes that were
    trained before there was the key: evidence is filed under what differs from that.
    """
    metadata = {"meaning": meaning, "example": example, **limits}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class DataKeys:
    """What is trained on: a data set that binep knows, or one of your own."""

    name: str = _key(
        "The data set, by its name in the registry; 'own' goes with `data.path`.",
        "digits",
        example="mnist",
        choices=lambda: (*DATASETS, OWN),
    )
    path: str | None = _key(
        "Your own data: .npz, .npy, .csv, a folder of images by class, or IDX files.",
        None,
        example="measurements.csv",
    )
    label: str | None = _key(
        "Name, or number from 0, of a table's column of labels. By default the one called label, "
        "class, target or y, else the last.",
        None,
        example="species",
    )
    test: float = _key(
        "Share of your own samples that is kept for testing, where no test set is given.",
        TEST_SHARE,
        example=0.25,
        above=0,
        high=1,
    )
    split_seed: int = _key("Random seed of that choice.", 0, example=1, low=0)
    normalise: bool = _key(
        "Whether to bring your own data to mean 0 and deviation 1 over the training set.",
        False,
        example=True,
    )
    # What was found there, filled in when a recipe is resolved, so that a run can be opened, and
    # its network shipped, where the data are not.
    shape: list[int] | None = _key(
        "Shape of one of your samples; filled in.", None, example=[1, 28, 28], low=1
    )
    classes: int | None = _key("Number of your classes; filled in.", None, example=3, low=2)
    class_names: list[str] | None = _key(
        "Names of your classes; filled in.", None, example=["cat", "dog"]
    )
    samples: int | None = _key(
        "Number of your training samples; filled in.", None, example=800, low=1
    )
    mean: list[float] | None = _key(
        "What is subtracted from your data; filled in.", None, example=[0.5]
    )
    std: list[float] | None = _key(
        "What your data are divided by after that; filled in.", None, example=[0.25]
    )
    flip: bool = _key(
        "Whether training images are mirrored at random, left to right, half of the time.",
        False,
        example=True,
    )
    crop: int = _key(
        "Training images are moved at random by up to this number of pixels; the edge is repeated.",
        0,
        example=4,
        low=0,
        high=MOST_WIDTH,
    )
    validation: int = _key(
        "Number of training images, the last ones, that are kept out of training and tested on in "
        "place of the test set: choices are made on them.",
        0,
        example=10000,
        low=0,
    )
    train: int = _key(
        "Number of training images, the first ones, that are trained on; 0: all.",
        0,
        example=5000,
        low=0,
    )

    @property
    def published(self) -> Source | None:
        """Where the data set's files come from, and what is known of it; None of your own."""
        source = DATASETS[self.name] if self.name != OWN and self.path is None else None
        return source if isinstance(source, Source) else None

    @property
    def place(self) -> str:
        """What to call your own data in a message."""
        return self.path or ("dataset" if self.name == OWN else f"data set {self.name!r}")

    def read(self) -> Dataset:
        """Your own data: from `path`, or of a function that is registered."""
        if self.path is None and self.name == OWN:
            raise BinepError(
                "these data were handed over in Python: hand them over again, dataset="
            )
        if self.path is None:
            return load_dataset(self.name)
        return read_once(self.path, self.label, self.test, self.split_seed, self.normalise)

    @property
    def facts(self) -> Facts:
        """What was found in your own data."""
        assert self.shape is not None and self.classes is not None and self.samples is not None
        return Facts(
            tuple(self.shape),
            self.classes,
            self.samples,
            None if self.mean is None else tuple(self.mean),
            None if self.std is None else tuple(self.std),
            None if self.class_names is None else tuple(self.class_names),
        )


@dataclass(frozen=True, kw_only=True)
class LayerKeys:
    """A layer, and what joins it to the layer below.

    Any further key is an argument of the coupling, such as `kernel`, `padding` and `pool` of
    'conv', or `binary = false`, which gives this one real weights.
    """

    coupling: str = _key(
        "The coupling to the layer below, by its name in the registry.", COUPLING, example="conv"
    )
    size: int | None = _key(
        "Neurons of the layer, or channels of a convolution. The last layer may leave it out.",
        None,
        example=256,
        low=1,
    )
    neuron: str | dict[str, Any] | None = _key(
        "The layer's neuron, by its name in the registry, or with arguments. By default as "
        "`network.activations` says.",
        None,
        example={"name": "heaviside", "threshold": 0.4},
    )


@dataclass(frozen=True, kw_only=True)
class NetworkKeys:
    """Layers, neurons and dynamics. Convolutions come first, then dense layers, then the output."""

    conv: list[int] = _key(
        "Channels of each convolution with max-pooling.",
        [],
        example=[32, 64],
        low=1,
        high=MOST_CHANNELS,
    )
    kernel: PerConv = _key(
        "Width of the convolutions' kernels.", 5, example=[5, 3], low=1, high=MOST_WIDTH
    )
    padding: PerConv = _key(
        "Width of the border of zeros around the convolutions' input.",
        0,
        example=2,
        low=0,
        high=MOST_WIDTH,
    )
    pool: PerConv = _key(
        "Width and stride of the max-pooling.", 1, example=2, low=1, high=MOST_WIDTH
    )
    dense: list[int] = _key(
        "Neurons of each hidden dense layer.", [], example=[4096], low=1, high=MOST_NEURONS
    )
    per_class: int = _key("Output neurons per class.", 1, example=10, low=1, high=MOST_NEURONS)
    weights: str = _key(
        "'binary': W = alpha w with w = -1 or +1, learnt by flips. 'real': learnt by SGD.",
        "binary",
        example="real",
        choices=("binary", "real"),
    )
    activations: str = _key(
        "'real': the hard sigmoid of a neuron's state. 'binary': 1 from the threshold on, else 0.",
        "real",
        example="binary",
        choices=("real", "binary"),
    )
    threshold: float = _key("State at which a binary neuron turns on.", 0.5, example=0.4)
    sigma: float = _key(
        "Binary neurons: half the width of the window around the threshold in which a drive acts.",
        0.5,
        example=0.3,
        above=0,
    )
    dynamics: str = _key(
        "'prototypical': s <- rho(drive), for real activations. 'energy': s <- (1 - dt) s + dt "
        "rho'(s) drive, in [0, 1]. 'hopfield': bits without an inner state, layers in turn.",
        "prototypical",
        example="energy",
        choices=DYNAMICS,
    )
    updates: str | None = _key(
        "'simultaneous': all layers move at once. 'alternating': a step is a sweep, the odd layers "
        "and then the even ones. By default the latter with 'hopfield' dynamics only.",
        None,
        example="alternating",
        choices=UPDATES,
        before="simultaneous",
    )
    feedback: PerCoupling = _key(
        "What is sent down through a coupling is multiplied by: below 1 a layer hears less from "
        "above than from below, and EP's gradients stay right. Not used of the first coupling.",
        1.0,
        example=[1, 0.5, 0.25],
        above=0,
    )
    dt: float = _key("Time step of the energy-based dynamics.", 0.5, example=0.25, above=0, high=1)
    initial_state: float | None = _key(
        "State of all neurons at the start of the free phase. By default the paper's: energy-based "
        "1, with convolutions 0.5, else 0; with 'hopfield' dynamics 0.",
        None,
        example=0.0,
    )
    clamp_nudged: bool | None = _key(
        "Prototypical dynamics: whether nudged outputs are clamped to [0, 1]. By default they are "
        "unless there are convolutions.",
        None,
        example=True,
    )
    nudged_sends: str | None = _key(
        "What a nudged output that is not clamped sends down: its 'state', beyond [0, 1] too, or "
        "its 'activity', as other neurons. By default its state.",
        None,
        example="activity",
        choices=SENDS,
    )
    cost: str = _key(
        "'mse' pulls outputs to their targets; with 'cross_entropy' the last coupling is a softmax "
        "readout outside the dynamics.",
        "mse",
        example="cross_entropy",
        choices=COSTS,
    )
    learn_scale: bool = _key(
        "Whether the scaling factors alpha of binary weights are learnt.", False, example=True
    )
    scale: float | None = _key(
        "alpha of all couplings; by default the mean |W| of the weights drawn at the start.",
        None,
        example=0.02,
        above=0,
    )
    gain: PerCoupling = _key(
        "Factor on alpha, or on real weights, before training.", 1.0, example=[2, 1], above=0
    )
    power_of_two: bool = _key(
        "Whether each alpha is rounded to the nearest power of two before training (after "
        "`network.gain`), so that hardware shifts instead of multiplying.",
        False,
        example=True,
    )
    zero_bias: bool = _key("Whether biases start at 0 and not at random.", False, example=True)
    bias: PerCoupling = _key("Added to every bias before training.", 0.0, example=[-0.1, 0])
    layers: list[Layer] | None = _key(
        "In place of `conv` and `dense`: all layers from the first to the output, in any order, "
        "each as a table [[network.layers]].",
        None,
        example=[{"coupling": "conv", "size": 16, "kernel": 3, "pool": 2}, {"size": 64}, {}],
        each=LayerKeys,
    )

    @property
    def chain(self) -> list[Layer]:
        """All layers, one per coupling, however they are written."""
        if self.layers is not None:
            return self.layers
        sizes = [
            {key: nth(getattr(self, key), n) for key in OF_CONV} for n in range(len(self.conv))
        ]
        return [
            *(
                {"coupling": "conv", "size": channels, **of_conv}
                for channels, of_conv in zip(self.conv, sizes, strict=True)
            ),
            *({"coupling": "dense", "size": neurons} for neurons in self.dense),
            {"coupling": "dense"},
        ]

    @property
    def neurons(self) -> list[Neuron]:
        """The neuron of each layer that relaxes."""
        binary = self.activations == "binary"
        window = {"threshold": self.threshold, "sigma": self.sigma}
        usual = Heaviside(**window) if binary else HardSigmoid()
        relaxing = self.chain if self.cost == "mse" else self.chain[:-1]
        return neurons_of(relaxing, usual, window)

    @property
    def sends_bits(self) -> bool:
        """Whether the activities of any layer are bits."""
        return any(neuron.binary for neuron in self.neurons)


@dataclass(frozen=True, kw_only=True)
class LearningKeys:
    """Where gradients come from: Equilibrium Propagation, or backpropagation through time."""

    method: str = _key(
        "'ep' or, as a baseline, 'bptt'.", "ep", example="bptt", choices=("ep", "bptt")
    )
    free_steps: int = _key("T, time steps of the free phase.", example=50, low=1, high=MOST_STEPS)
    nudged_steps: int = _key(
        "K, time steps of a nudged phase; for BPTT steps to go back through.",
        example=10,
        low=1,
        high=MOST_STEPS,
    )
    beta: float = _key("Strength of the nudge; not 0.", 0.3, example=0.5)
    sign: str = _key(
        "Of beta: 'positive' as given; 'random' for each mini-batch; 'centered' both, and the "
        "gradient from their difference.",
        "random",
        example="centered",
        choices=SIGNS,
    )
    nudge: str = _key(
        "'live': beta (y - s) with the current state; 'constant': with the free phase's.",
        "live",
        example="constant",
        choices=NUDGES,
    )
    tolerance: float | None = _key(
        "A phase ends once no state changes by more than this in a step; by default none ends "
        "early.",
        None,
        example=1e-3,
        low=0,
    )
    margin: float = _key(
        "By how much the right class has to win while the network learns; EP only.",
        0.0,
        example=0.1,
        low=0,
    )
    homeostasis: PerCoupling = _key(
        "How fast biases follow activity: after each mini-batch `b <- b + homeostasis (activity - "
        "mean activity)`, of each neuron or channel in the free phase; 0: not at all. EP only.",
        0.0,
        example=[1e-3, 0],
        low=0,
    )
    activity: PerCoupling | None = _key(
        "The share of samples that `learning.homeostasis` keeps neurons active for; needed by it.",
        None,
        example=0.1,
        above=0,
        high=1,
    )
    pulls_at: str = _key(
        "BPTT: what the loss pulls at, the outputs' 'state' or their 'drive', as EP's nudge does "
        "in prototypical dynamics.",
        "state",
        example="drive",
        choices=PULLS_AT,
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerKeys:
    """Bop for binary weights (gamma, tau), SGD for everything else (lr_...)."""

    gamma: PerCoupling | None = _key(
        "Bop's rate: m <- (1 - gamma) m + gamma g. Needed by binary weights.",
        None,
        example=[1e-4, 1e-5],
        above=0,
        high=1,
    )
    tau: PerCoupling | None = _key(
        "Bop's threshold: a weight flips where |m| > tau and m has its sign. Needed by binary "
        "weights.",
        None,
        example=5e-7,
        low=0,
    )
    sigma: float | None = _key(
        "Makes Bop one of second order: v <- (1 - sigma) v + sigma g^2, and tau is compared with "
        "|m| / (sqrt(v) + 1e-10). By default it is not.",
        None,
        example=1e-3,
        above=0,
        high=1,
    )
    lr_bias: PerCoupling | None = _key(
        "Learning rate of biases.", None, example=[0.05, 0.025], low=0
    )
    lr_scale: PerCoupling | None = _key(
        "Learning rate of alpha; needed with `network.learn_scale`.", None, example=1e-4, low=0
    )
    lr_weight: PerCoupling | None = _key(
        "Learning rate of real weights; needed by them.", None, example=0.05, low=0
    )
    momentum_noise: float = _key(
        "Standard deviation of Bop's momentum at the start, in units of gamma.",
        0.0,
        example=2,
        low=0,
    )


LONGEST_NAME = 200
# Runs are kept in folders of that name.
NAMES = re.compile(rf"(?!\.)[^/\\\x00-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]{{1,{LONGEST_NAME}}}")
_LONE = re.compile("[\ud800-\udfff]")  # halves of characters: names of files may hold some
SHAPES = ("exponential", "linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class RateSchedule:
    """What a rate is multiplied by as epochs go by: in steps, and smoothly.

    By `factor` after each epoch of `at` and after every `every` epochs; and by what stays 1 for
    `after` epochs, goes to `final` within the next `over`, in one of three shapes, and stays there.
    Epochs are counted from the start, whatever `training.epochs` is: a run can be lengthened.
    """

    at: list[int] = _key(
        "Epochs after each of which the rate is multiplied by `factor`.", [], example=[10], low=1
    )
    every: int = _key("Epochs between further such changes; 0: none.", 0, example=20, low=0)
    factor: float = _key("What is multiplied by then.", 1.0, example=0.1, above=0)
    after: int = _key("Epochs before the smooth change begins.", 0, example=80, low=0)
    over: int = _key("Epochs that the smooth change takes; 0: there is none.", 0, example=20, low=0)
    final: float = _key(
        "What the rate is multiplied by at the end of the smooth change.",
        1.0,
        example=10,
        above=0,
    )
    shape: str = _key(
        "Of the smooth change: a straight line of the logarithm, of the rate, or half a cosine.",
        "exponential",
        example="cosine",
        choices=SHAPES,
    )

    def at_epoch(self, epochs_done: int) -> float:
        """The product of all that is due after that many epochs.

        >>> smooth = RateSchedule(over=4, final=0.01)
        >>> [round(smooth.at_epoch(n), 3) for n in (0, 1, 2, 4, 9)]
        [1.0, 0.316, 0.1, 0.01, 0.01]
        >>> late = RateSchedule(after=3, over=2, final=0.01)
        >>> [round(late.at_epoch(n), 3) for n in (0, 3, 4, 5, 9)]
        [1.0, 1.0, 0.1, 0.01, 0.01]
        """
        times = sum(epoch <= epochs_done for epoch in self.at)
        times += epochs_done // self.every if self.every else 0
        return self.factor**times * self._smooth(epochs_done)

    def _smooth(self, epochs_done: int) -> float:
        if not self.over:
            return 1.0
        done = min(max(epochs_done - self.after, 0) / self.over, 1.0)
        if self.shape == "exponential":
            return self.final**done
        if self.shape == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return 1 + done * (self.final - 1)


@dataclass(frozen=True, kw_only=True)
class ScheduleKeys:
    """How each rate of the optimizers changes with the epochs."""

    gamma: RateSchedule = field(default_factory=RateSchedule)
    tau: RateSchedule = field(default_factory=RateSchedule)
    lr_bias: RateSchedule = field(default_factory=RateSchedule)
    lr_scale: RateSchedule = field(default_factory=RateSchedule)
    lr_weight: RateSchedule = field(default_factory=RateSchedule)


@dataclass(frozen=True, kw_only=True)
class TrainingKeys:
    """For how long, and in which portions."""

    epochs: int = _key("Number of epochs.", example=50, low=1, high=MOST_EPOCHS)
    batch_size: int = _key("Samples in a mini-batch.", 64, example=20, low=1, high=MOST_NEURONS)
    drop_last: bool = _key(
        "Whether an epoch leaves out a smaller last mini-batch, whose samples would weigh more.",
        False,
        example=True,
    )


@dataclass(frozen=True, kw_only=True)
class HardwareKeys:
    """What is wrong with the hardware, see `Imperfections`; by default nothing."""

    weight_errors: float = _key(
        "Probability that a weight is read with the wrong sign, for each mini-batch.",
        0.0,
        example=0.01,
        low=0,
        high=1,
    )
    activation_errors: float = _key(
        "Probability that a bit that a neuron sends is wrong, at every read.",
        0.0,
        example=0.001,
        low=0,
        high=1,
    )
    stuck: float = _key(
        "Share of synapses that always read the same sign.", 0.0, example=0.05, low=0, high=1
    )
    threshold_spread: float = _key(
        "Standard deviation of the neurons' thresholds.", 0.0, example=0.1, low=0
    )
    momentum_bits: int | None = _key(
        "Bits in which a momentum is stored; by default float32.", None, example=8, low=2, high=24
    )
    momentum_leak: float = _key(
        "Share of its momentum that a synapse loses in each mini-batch, besides Bop's own decay.",
        0.0,
        example=1e-4,
        low=0,
        high=1,
    )
    device: int = _key(
        "Number of the device: which synapses are stuck, which threshold each neuron has.",
        0,
        example=1,
        low=0,
    )


@dataclass(frozen=True, kw_only=True)
class PaperKeys:
    """What the paper reports, in per cent: mean and standard deviation, and where."""

    test: float | None = _key("Test error.", None, example=2.07, low=0)
    test_sd: float | None = _key("Its standard deviation.", None, example=0.02, low=0)
    train: float | None = _key("Training error.", None, example=0.77, low=0)
    where: str = _key("Table or section.", "", example="Table 1")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run, complete: what is trained, on what, how, and for how long.

    >>> recipe = load("mnist-1fc-w")
    >>> recipe.network.dense, recipe.optimizer.gamma
    ([4096], [0.0001, 1e-05])
    >>> load("mnist-1fc-w", ["learning.beta=0.5"]).learning.beta
    0.5
    """

    name: str = _key(
        "What its runs are called; a file that does not say is called after itself.",
        example="narrow",
    )
    summary: str = _key("What it trains, in one line.", "", example="A narrower network")
    loggers: list[str] | None = _key(
        "What else writes down the metrics of each epoch, by names in the registry.",
        None,
        example=["tensorboard"],
    )
    data: DataKeys = field(default_factory=DataKeys)
    network: NetworkKeys = field(default_factory=NetworkKeys)
    learning: LearningKeys
    optimizer: OptimizerKeys = field(default_factory=OptimizerKeys)
    schedule: ScheduleKeys = field(default_factory=ScheduleKeys)
    training: TrainingKeys
    hardware: HardwareKeys = field(default_factory=HardwareKeys)
    paper: PaperKeys = field(default_factory=PaperKeys)

    @property
    def imperfections(self) -> Imperfections:
        return Imperfections(**asdict(self.hardware))

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation(flip=self.data.flip, crop=self.data.crop)

    @property
    def source(self) -> Source | Facts:
        """What is known of the data: shape of a sample, classes, training samples."""
        return self.data.published or self.data.facts

    def load_data(self, *, data_dir: Folder | None = None, offline: bool = False) -> Dataset:
        """The whole data set: read from `data.path`, found on disk, or downloaded."""
        if self.data.published is not None:
            return load_dataset(self.data.name, data_dir=data_dir, offline=offline)
        found = self.data.read()
        if facts_of(found) != self.data.facts:
            raise BinepError(
                f"{self.data.place} is not what the recipe was made for: it now holds "
                f"{len(found.train)} training samples of shape {found.image_shape} in "
                f"{found.classes} classes"
            )
        return found

    def hold_out(self, dataset: Dataset) -> Dataset:
        """The data set, with the validation images in place of the test set if any are asked.

        Of the training images so many as are to be trained on.
        """
        kept = dataset.holdout(self.data.validation) if self.data.validation else dataset
        return kept.first(self.data.train) if self.data.train else kept

    def build_network(self, generator: torch.Generator | None = None) -> Network:
        """A fresh network, float32 on the CPU, with every draw from `generator`.

        One that does not fit into memory is refused before it takes any.
        """
        if torch.get_default_device().type != "meta":
            with torch.device("meta"):
                check_fits(self.build_network(), self.training.batch_size, f"recipe {self.name}")
        keys, source = self.network, self.source
        binary = keys.weights == "binary"
        shape, outputs = tuple(source.image_shape), source.classes * keys.per_class
        usual = {"binary": binary, "learn_scale": keys.learn_scale}
        chain = stacked(keys.chain, shape, outputs, usual, generator)
        for n, coupling in enumerate(chain):
            if coupling.bias is not None:
                if keys.zero_bias:
                    torch.nn.init.zeros_(coupling.bias)
                coupling.bias.data.add_(nth(keys.bias, n))
            if keys.scale is not None and coupling.binary:
                torch.nn.init.constant_(coupling.scale, keys.scale)
            strength = coupling.scale if coupling.binary else coupling.weight
            strength.data.mul_(nth(keys.gain, n))
            if keys.power_of_two and coupling.binary:
                coupling.scale.data.copy_(nearest_power_of_two(coupling.scale.data))
        network = Network(
            # What sees an image as a row of pixels receives it so.
            (math.prod(shape),) if isinstance(chain[0], Dense) else shape,
            chain,
            keys.neurons,
            keys.dynamics,
            keys.per_class,
            source.classes,
            keys.initial_state,
            dt=keys.dt,
            cost=keys.cost,
            clamp_nudged=keys.clamp_nudged,
            nudged_sends=keys.nudged_sends or "state",
            updates=keys.updates,
            feedback=keys.feedback,
        )
        wrong = self.imperfections
        return ImperfectNetwork(network, wrong, generator) if wrong.of_network else network

    @property
    def homeostasis(self) -> Homeostasis | None:
        """How biases follow activity, if they do."""
        keys = self.learning
        if keys.activity is None or not _any(keys.homeostasis):
            return None
        return Homeostasis(keys.homeostasis, keys.activity)

    def build_learning(self, generator: torch.Generator | None = None) -> Learning:
        """EP or BPTT as the recipe says; random signs come from `generator`."""
        keys = self.learning
        if keys.method == "bptt":
            return BackpropThroughTime(
                keys.free_steps, keys.nudged_steps, keys.tolerance, keys.pulls_at
            )
        return EquilibriumPropagation(
            keys.free_steps,
            keys.nudged_steps,
            keys.beta,
            keys.sign,
            keys.nudge,
            keys.tolerance,
            generator,
            keys.margin,
            self.homeostasis,
        )

    def build_optimizers(
        self, network: Network, generator: torch.Generator | None = None
    ) -> Optimizers:
        """Every parameter's optimizer; initial momentum noise comes from `generator`."""
        keys, wrong = self.optimizer, self.imperfections
        optimizers = assign_optimizers(
            network,
            gamma=keys.gamma,
            tau=keys.tau,
            lr_bias=keys.lr_bias,
            lr_scale=keys.lr_scale,
            lr_weight=keys.lr_weight,
            noise=keys.momentum_noise,
            sigma=keys.sigma,
            generator=generator,
        )
        return (
            imperfect_optimizers(optimizers, wrong, generator) if wrong.of_momentum else optimizers
        )

    def of(self, dataset: Dataset) -> "Recipe":
        """The same recipe for data of your own, which are handed over with it."""
        own = replace(self.data, name=OWN, path=None, **_plain_facts(dataset))
        return _resolve(replace(self, data=own))

    def logged_by(self, names: Sequence[str]) -> "Recipe":
        """The same recipe with further loggers."""
        for name in names:
            choose(name, loggers, "logger")
        return replace(self, loggers=[*(self.loggers or ()), *names] or None)

    def rates(self, epochs_done: int) -> dict[str, list[float]]:
        """The rates that are due after so many epochs, one per coupling."""
        rates = {}
        for name in RATES:
            values, schedule = getattr(self.optimizer, name), getattr(self.schedule, name)
            if values is not None:
                rates[name] = [value * schedule.at_epoch(epochs_done) for value in values]
        return rates

    def set_rates(self, optimizers: Optimizers, epochs_done: int) -> None:
        """Give the optimizers the rates that are due after so many epochs."""
        optimizers.set_rates(self.rates(epochs_done))


# --- reading ------------------------------------------------------------------------------------


def names() -> list[str]:
    """The recipes that ship with the package."""
    folder = resources.files("binep") / "recipes"
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.suffix == ".toml")  # type: ignore[attr-defined]


def load(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by name or path, with `section.key=value` overrides, and check all of it."""
    table = _read_table(str(name))
    for override in overrides:
        _override(table, override)
    return from_table(table)


def from_table(table: Mapping[str, Any]) -> Recipe:
    """Check a parsed TOML document and build the recipe; lists come out one value a coupling."""
    recipe = _build(Recipe, dict(table), "")
    if not NAMES.fullmatch(recipe.name):
        raise BinepError(
            f"name={_show(recipe.name)}: allowed is what a folder can be called, 1 to "
            f"{LONGEST_NAME} letters without slashes, of which the first is no point"
        )
    return _resolve(recipe)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long for one
        return False


def _read_table(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The merged tables of a recipe and of those it extends."""
    if len(seen) > MOST_PARENTS:
        raise BinepError(f"recipe {name!r}: more than {MOST_PARENTS} recipes extend each other")
    if name in seen:
        raise BinepError(f"recipe {name!r} extends itself: {' -> '.join((*seen, name))}")
    path = Path(name)
    if path.suffix == ".toml" or _is_file(path):
        text, fallback = _read_text(path), path.stem
    else:
        try:
            choose(name, names(), "recipe")
        except BinepError as error:
            raise BinepError(f"{error}, see: binep recipes") from None
        text = (resources.files("binep") / "recipes" / f"{name}.toml").read_text("utf-8")
        fallback = name
    try:
        table = tomllib.loads(text)
    # Numbers of a million digits, and lists in lists in lists, are other errors than TOML's own.
    except (ValueError, RecursionError) as error:
        raise BinepError(f"recipe {name}: not valid TOML: {error}") from None
    base = table.pop("extends", None)
    table.setdefault("name", fallback)
    if base is None:
        return table
    if not isinstance(base, str):
        raise BinepError(f"recipe {name}: extends={base!r}: allowed is the name of a recipe")
    parent = _read_table(_parent(base, name, path), (*seen, name))
    # What the paper says of the parent it does not say of the child.
    parent.pop("paper", None)
    _leave_out_other_chain(parent, table)
    return _merged(parent, table)


def _parent(base: str, name: str, path: Path) -> str:
    """The recipe that another extends: one that ships, or a file beside it or from here."""
    if Path(base).suffix != ".toml":
        return base
    places = [path.parent / base, Path(base)]
    found = next((place for place in places if _is_file(place)), None)
    if found is None:
        raise BinepError(
            f"recipe {name}: extends={base!r}: there is no such file beside it, allowed is a file "
            "or the name of a recipe, see: binep recipes"
        )
    return str(found)


def _leave_out_other_chain(below: dict[str, Any], above: dict[str, Any]) -> None:
    """Drop `network.layers` where `conv` and `dense` are given anew, and the other way round."""
    old, new = below.get("network"), above.get("network")
    if isinstance(old, dict) and isinstance(new, dict):
        gone = CHAIN if "layers" in new else ("layers",) if {"conv", "dense"} & set(new) else ()
        for key in gone:
            old.pop(key, None)


def _read_text(path: Path) -> str:
    try:
        return read_text(path, MOST_BYTES)
    except BinepError as error:
        raise BinepError(f"recipe {str(error).removeprefix('cannot read ')}") from None


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _override(table: dict[str, Any], override: str) -> None:
    """Apply one `section.key=value`: TOML, a plain word, or a list written as a,b,c."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or len(keys) < 2:
        raise BinepError(f"--set {override}: allowed is section.key=value, as in learning.beta=0.5")
    if keys[0] == "network":
        _leave_out_other_chain(table, {"network": {keys[1]: None}})
    value = _value(text)
    kinds = [kind for kind in _alternatives(_hint(keys)) if kind is not type(None)]
    lists = [get_origin(kind) is list for kind in kinds]
    if any(lists) and not isinstance(value, list) and ("," in text or all(lists)):
        value = [_value(part) for part in text.split(",") if part.strip()]
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise BinepError(f"--set {override}: {key} is not a section")
    table[keys[-1]] = value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()


def _hint(keys: Sequence[str]) -> Any:
    """The type of a key, given as sections and name; None if there is no such key."""
    hint: Any = Recipe
    for key in keys:
        hint = get_type_hints(hint).get(key) if is_dataclass(hint) else None
    return hint


# --- checking -----------------------------------------------------------------------------------


def _build(cls: type, table: dict[str, Any], where: str) -> Any:
    """Make a section's dataclass of a TOML table."""
    known = {f.name: f for f in fields(cls)}
    hints = get_type_hints(cls)
    for key in table:
        if key not in known:
            place = f"section [{where}]" if where else "the top of a recipe"
            raise BinepError(str(_unknown(f"{where}.{key}".lstrip("."), key, known, place)))
    values = {}
    for name, spec in known.items():
        path = f"{where}.{name}" if where else name
        if is_dataclass(hints[name]):
            section = table.get(name, {})
            if not isinstance(section, dict):
                raise BinepError(f"{path}={section!r}: it must be a section, [{path}]")
            values[name] = _build(hints[name], section, path)  # type: ignore[arg-type]
        elif name in table:
            values[name] = _checked(table[name], hints[name], spec, path)
        elif spec.default is MISSING and spec.default_factory is MISSING:
            raise BinepError(f"{path} is missing: allowed is {takes(hints[name], spec)}")
    return cls(**values)


def _unknown(path: str, key: str, known: Mapping[str, Any], place: str) -> BinepError:
    try:
        choose(key, known, "key")
    except BinepError as error:
        message = str(error).replace(f"unknown key {key!r}", f"unknown key {path} in {place}")
        return BinepError(message)
    return BinepError(path)


def _checked(value: Any, hint: Any, spec: Field, path: str) -> Any:
    """A value of the right type and within its limits."""
    if "each" in spec.metadata and isinstance(value, list):
        return [_layer(each, f"{path}[{n}]") for n, each in enumerate(value)]
    for kind in _alternatives(hint):
        if get_origin(kind) is list:
            (item,) = get_args(kind)
            if isinstance(value, list) and all(_is(item, v) for v in value):
                for v in value:
                    _limit(v, hint, spec, path, value)
                return [item(v) for v in value]
        elif kind is not type(None) and _is(kind, value):
            _limit(value, hint, spec, path, value)
            return kind(value)
    raise BinepError(f"{path}={_show(value)}: allowed is {takes(hint, spec)}")


def _layer(table: Any, path: str) -> Layer:
    """One of `network.layers`: its own keys checked, its coupling named."""
    if not isinstance(table, dict):
        raise BinepError(f"{path}={_show(table)}: it must be a table, [[network.layers]]")
    own = {key: value for key, value in table.items() if key in OF_LAYERS}
    checked = asdict(_build(LayerKeys, own, path))
    return {key: value for key, value in {**checked, **table}.items() if value is not None}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is(kind: type, value: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind) and (
        kind is bool or not isinstance(value, bool)
    )


def _limit(value: Any, hint: Any, spec: Field, path: str, whole: Any) -> None:
    limits = spec.metadata
    if "choices" in limits:
        try:
            choose(value, choices_of(spec), path)
        except BinepError as error:
            raise BinepError(str(error).replace("unknown ", "", 1).replace(" ", "=", 1)) from None
    if isinstance(value, str) and not value.isprintable() and _LONE.search(value):
        raise BinepError(f"{path}={_show(value)}: allowed is text that UTF-8 can write")
    if isinstance(value, str | bool | dict):
        return
    fits = (
        abs(value) <= sys.float_info.max
        and value >= limits.get("low", -math.inf)
        and value > limits.get("above", -math.inf)
        and value <= limits.get("high", math.inf)
    )
    if not fits:
        raise BinepError(f"{path}={_show(whole)}: allowed is {takes(hint, spec)}")


def _show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def takes(hint: Any, spec: Field) -> str:
    """The values that a key takes, in words."""
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    words |= {dict: "a table"}
    lists = {int: "a list of integers", float: "a list of numbers", str: "a list of texts"}
    lists |= {dict: "a list of tables"}

    def plain(kind: Any) -> Any:
        return get_origin(kind) or kind

    kinds = [
        lists[plain(get_args(kind)[0])] if get_origin(kind) is list else words[plain(kind)]
        for kind in _alternatives(hint)
        if kind is not type(None)
    ]
    limits = spec.metadata
    bounds = [
        f"{word} {limits[name]}"
        for name, word in (("low", "at least"), ("above", "above"), ("high", "at most"))
        if name in limits
    ]
    if "choices" in limits:
        return f"one of {', '.join(choices_of(spec))}"
    return " or ".join(kinds) + (f", {' and '.join(bounds)}" if bounds else "")


def choices_of(spec: Field) -> Sequence[str]:
    """The values that a key can have; those of a registry as they are now."""
    choices: Any = spec.metadata["choices"]
    return [*(choices() if callable(choices) else choices)]  # type: ignore[misc]


def _resolve(recipe: Recipe) -> Recipe:
    """Spell every default out, and check that the parts fit: shapes, lengths, optimizers."""
    keys = recipe.network
    for name in OF_CONV:
        _length(f"network.{name}", getattr(keys, name), len(keys.conv), "conv layers")
    if keys.layers is not None:
        _check_layers(keys)
    for name in recipe.loggers or ():
        choose(name, loggers, "logger")
    couplings = len(keys.chain)
    for name in ("gain", "bias", "feedback"):
        _length(f"network.{name}", getattr(keys, name), couplings, "couplings")
    _check_homeostasis(recipe.learning, couplings)
    rates = {f.name: getattr(recipe.optimizer, f.name) for f in fields(OptimizerKeys)}
    for name in RATES:
        _length(f"optimizer.{name}", rates[name], couplings, "couplings")
        if rates[name] is not None:
            rates[name] = [nth(rates[name], n) for n in range(couplings)]
    for name in RATES:
        _check_schedule(recipe, name, rates[name])
    if keys.power_of_two and (keys.learn_scale or keys.weights == "real"):
        raise BinepError(
            "network.power_of_two=true: allowed with network.weights='binary' and "
            "network.learn_scale=false, so that every alpha stays as it is rounded"
        )
    if recipe.learning.beta == 0:
        raise BinepError("learning.beta=0: allowed is a number other than 0")
    recipe = replace(recipe, data=_resolve_data(recipe.data))
    train = recipe.source.train_count
    if recipe.data.validation >= train:
        raise BinepError(
            f"data.validation={recipe.data.validation}: allowed is less than the {train} training "
            f"images of {recipe.data.name}"
        )
    most = train - recipe.data.validation
    if recipe.data.train > most:
        raise BinepError(
            f"data.train={recipe.data.train}: allowed is at most {most}, the training images of "
            f"{recipe.data.name} that are not for validation"
        )
    most = recipe.data.train or most
    if recipe.training.batch_size > most:
        raise BinepError(
            f"training.batch_size={recipe.training.batch_size}: allowed is at most {most}, the "
            f"training images of {recipe.data.name}"
        )
    try:
        with torch.device("meta"):
            network = recipe.build_network()
            learning = recipe.build_learning()
            recipe.build_optimizers(network)
        learning.check(network)
        if isinstance(learning, BackpropThroughTime):
            for name, asked in (
                ("imperfect hardware", recipe.imperfections.of_network),
                ("learning.margin", recipe.learning.margin),
                ("learning.homeostasis", recipe.homeostasis),
            ):
                if asked:
                    raise BinepError(f"{name} with learning.method='bptt': allowed is 'ep'")
    except BinepError as error:
        raise BinepError(f"recipe {recipe.name}: {error}") from None
    except (RuntimeError, OverflowError) as error:  # more than torch can count
        reason = str(error).partition("\n")[0]
        raise BinepError(f"recipe {recipe.name}: its network is too large ({reason})") from None
    learning_by_ep = isinstance(learning, EquilibriumPropagation)
    return replace(
        recipe,
        network=replace(
            keys,
            initial_state=network.initial_state,
            updates=network.updates,
            clamp_nudged=getattr(network.dynamics, "clamp_nudged", True),
            # Where it makes no difference all recipes say the same.
            nudged_sends="state" if network.sends_state and learning_by_ep else "activity",
        ),
        optimizer=OptimizerKeys(**rates),
    )


def _check_homeostasis(keys: LearningKeys, couplings: int) -> None:
    for name in ("homeostasis", "activity"):
        _length(f"learning.{name}", getattr(keys, name), couplings, "couplings")
    if _any(keys.homeostasis) and keys.activity is None:
        raise BinepError(
            f"learning.homeostasis={keys.homeostasis}: it needs learning.activity, the share of "
            "samples that neurons are to be active for"
        )
    if keys.activity is not None and not _any(keys.homeostasis):
        raise BinepError(
            f"learning.activity={keys.activity}: it needs learning.homeostasis, how fast biases "
            "follow"
        )


def _check_layers(keys: NetworkKeys) -> None:
    assert keys.layers is not None
    if not keys.layers:
        raise BinepError(
            "network.layers=[]: allowed is at least the output layer, [[network.layers]]"
        )
    for name in CHAIN:
        if getattr(keys, name) != getattr(NetworkKeys(), name):
            raise BinepError(
                f"network.layers with network.{name}={_show(getattr(keys, name))}: allowed is one "
                "of the two"
            )
    for n, layer in enumerate(keys.layers[:-1]):
        if "size" not in layer:
            raise BinepError(
                f"network.layers[{n}].size is missing: only the last layer may leave it out"
            )
    if keys.cost == "cross_entropy" and "neuron" in keys.layers[-1]:
        raise BinepError(
            "network.layers: a softmax readout has no neuron; network.cost='cross_entropy' makes "
            "the last layer one"
        )


def _resolve_data(keys: DataKeys) -> DataKeys:
    """Where own data are, as a path that holds from any folder; and what does not fit together."""
    if keys.path is not None:
        keys = replace(keys, name=OWN, path=str(Path(keys.path).expanduser().resolve()))
    elif keys.name == OWN and keys.shape is None:
        raise BinepError(f"data.name='{OWN}': it needs data.path, a file or folder of your own")
    elif keys.published is not None:
        return keys
    if keys.shape is None or keys.classes is None or keys.samples is None:
        keys = replace(keys, **_plain_facts(keys.read()))
    shape = keys.facts.shape
    if (keys.flip or keys.crop) and len(shape) != 3:
        raise BinepError(
            f"data.flip and data.crop move images: {keys.place} has samples of shape {shape}"
        )
    return keys


def _plain_facts(dataset: Dataset) -> dict[str, Any]:
    """What is found in a data set, as keys of a recipe."""
    facts = asdict(facts_of(dataset))
    return {key: [*value] if isinstance(value, tuple) else value for key, value in facts.items()}


def _check_schedule(recipe: Recipe, rate: str, values: list[float] | None) -> None:
    """See that a schedule does something, to something, and keeps gamma within its limits."""
    schedule, path = getattr(recipe.schedule, rate), f"schedule.{rate}"
    if schedule.final != 1 and not schedule.over:
        raise BinepError(
            f"{path}.final={schedule.final}: it needs {path}.over, how many epochs it takes"
        )
    if schedule.after and not schedule.over:
        raise BinepError(f"{path}.after={schedule.after}: it needs {path}.over and {path}.final")
    if schedule.factor != 1 and not schedule.at and not schedule.every:
        raise BinepError(f"{path}.factor={schedule.factor}: it needs {path}.at or {path}.every")
    if values is None and schedule != RateSchedule():
        raise BinepError(f"{path} is given, but optimizer.{rate} is not")
    if rate == "gamma" and values is not None:
        highest = max(schedule.at_epoch(n) for n in range(recipe.training.epochs)) * max(values)
        if highest > 1:
            raise BinepError(f"{path} takes gamma up to {highest:g}: allowed is at most 1")


def _length(path: str, value: Any, expected: int, what: str) -> None:
    if isinstance(value, list) and len(value) != expected:
        raise BinepError(
            f"{path}={_show(value)}: it has {len(value)} values, allowed is one number or "
            f"{expected}, one for each of the {expected} {what}"
        )


def _any(value: float | list[float]) -> bool:
    """Whether a value for all, or one of a list, is not 0."""
    return any(value) if isinstance(value, list) else value != 0


def nth(value: Any, n: int) -> Any:
    """Entry n of what may be one value for all, or a list."""
    return value[n] if isinstance(value, list) else value


# --- writing ------------------------------------------------------------------------------------


def dumps(recipe: Recipe) -> str:
    """The complete recipe as TOML, which `load` reads back to an equal one."""
    lines: list[str] = []
    _dump(asdict(recipe), "", lines)
    return "\n".join(lines).strip() + "\n"


def plain(recipe: Recipe) -> dict[str, Any]:
    """The complete recipe as tables for JSON, which `from_table` reads back to an equal one."""

    def given(table: dict[str, Any]) -> dict[str, Any]:
        return {
            key: given(value) if isinstance(value, dict) else value
            for key, value in table.items()
            if value is not None
        }

    return given(asdict(recipe))


def _dump(table: dict[str, Any], where: str, lines: list[str]) -> None:
    tables = {k: v for k, v in table.items() if isinstance(v, dict)}
    arrays = {k: v for k, v in table.items() if k in ARRAYS_OF_TABLES and v is not None}
    plain = {k: v for k, v in table.items() if k not in {**tables, **arrays} and v is not None}
    if plain and where:
        lines += ["", f"[{where}]"]
    lines += [f"{key} = {toml(value)}" for key, value in plain.items()]
    for key, rows in arrays.items():
        for row in rows:
            lines += ["", f"[[{where}.{key}]]", *(f"{k} = {toml(v)}" for k, v in row.items())]
    for key, value in tables.items():
        _dump(value, f"{where}.{key}".lstrip("."), lines)


ARRAYS_OF_TABLES = ("layers",)


def toml(value: Any) -> str:
    """A value as TOML has it, in one line.

    >>> toml({"name": "heaviside", "sizes": [1, 2.5]})
    '{ name = "heaviside", sizes = [1, 2.5] }'
    """
    if isinstance(value, dict):
        pairs = ", ".join(f"{_toml_key(k)} = {toml(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    # JSON's strings, numbers and booleans are TOML's, but for one character; both write floats in
    # full.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
