"""The sections of a recipe: every key with its meaning, its default and its limits."""

import math
from dataclasses import MISSING, dataclass, field
from typing import Any

from binep.core.gradients import (
    PULLS_AT,
    SIGNS,
)
from binep.core.limits import (
    MOST_CHANNELS,
    MOST_EPOCHS,
    MOST_NEURONS,
    MOST_STEPS,
    MOST_WIDTH,
)
from binep.core.network import COSTS, DYNAMICS, SENDS
from binep.core.neurons import HardSigmoid, Heaviside, Neuron
from binep.core.relaxation import NUDGES
from binep.core.turns import UPDATES
from binep.data import DATASETS, Dataset, Source
from binep.data import load as load_dataset
from binep.data.own import TEST_SHARE, Facts, read_once
from binep.errors import BinepError
from binep.training.layers import COUPLING, Layer, neurons_of

OWN = "own"
OF_CONV = ("kernel", "padding", "pool")
CHAIN = ("conv", "dense", *OF_CONV)  # what `network.layers` stands in place of
SHAPES = ("exponential", "linear", "cosine")
PerCoupling = float | list[float]
PerConv = int | list[int]


def nth(value: Any, n: int) -> Any:
    """Entry n of what may be one value for all, or a list."""
    return value[n] if isinstance(value, list) else value


def entry(meaning: str, default: Any = MISSING, *, example: Any, **limits: Any) -> Any:
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

    name: str = entry(
        "The data set, by its name in the registry; 'own' goes with `data.path`.",
        "digits",
        example="mnist",
        choices=lambda: (*DATASETS, OWN),
    )
    path: str | None = entry(
        "Your own data: .npz, .npy, .csv, a folder of images by class, or IDX files.",
        None,
        example="measurements.csv",
    )
    label: str | None = entry(
        "Name, or number from 0, of a table's column of labels. By default the one called label, "
        "class, target or y, else the last.",
        None,
        example="species",
    )
    test: float = entry(
        "Share of your own samples that is kept for testing, where no test set is given.",
        TEST_SHARE,
        example=0.25,
        above=0,
        high=1,
    )
    split_seed: int = entry("Random seed of that choice.", 0, example=1, low=0)
    normalise: bool = entry(
        "Whether to bring your own data to mean 0 and deviation 1 over the training set.",
        False,
        example=True,
    )
    # What was found there, filled in when a recipe is resolved, so that a run can be opened, and
    # its network shipped, where the data are not.
    shape: list[int] | None = entry(
        "Shape of one of your samples; filled in.", None, example=[1, 28, 28], low=1
    )
    classes: int | None = entry("Number of your classes; filled in.", None, example=3, low=2)
    class_names: list[str] | None = entry(
        "Names of your classes; filled in.", None, example=["cat", "dog"]
    )
    samples: int | None = entry(
        "Number of your training samples; filled in.", None, example=800, low=1
    )
    mean: list[float] | None = entry(
        "What is subtracted from your data; filled in.", None, example=[0.5]
    )
    std: list[float] | None = entry(
        "What your data are divided by after that; filled in.", None, example=[0.25]
    )
    flip: bool = entry(
        "Whether training images are mirrored at random, left to right, half of the time.",
        False,
        example=True,
    )
    crop: int = entry(
        "Training images are moved at random by up to this number of pixels; the edge is repeated.",
        0,
        example=4,
        low=0,
        high=MOST_WIDTH,
    )
    validation: int = entry(
        "Number of training images, the last ones, that are kept out of training and tested on in "
        "place of the test set: choices are made on them.",
        0,
        example=10000,
        low=0,
    )
    train: int = entry(
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

    coupling: str = entry(
        "The coupling to the layer below, by its name in the registry.", COUPLING, example="conv"
    )
    size: int | None = entry(
        "Neurons of the layer, or channels of a convolution. The last layer may leave it out.",
        None,
        example=256,
        low=1,
    )
    neuron: str | dict[str, Any] | None = entry(
        "The layer's neuron, by its name in the registry, or with arguments. By default as "
        "`network.activations` says.",
        None,
        example={"name": "heaviside", "threshold": 0.4},
    )


@dataclass(frozen=True, kw_only=True)
class NetworkKeys:
    """Layers, neurons and dynamics. Convolutions come first, then dense layers, then the output."""

    conv: list[int] = entry(
        "Channels of each convolution with max-pooling.",
        [],
        example=[32, 64],
        low=1,
        high=MOST_CHANNELS,
    )
    kernel: PerConv = entry(
        "Width of the convolutions' kernels.", 5, example=[5, 3], low=1, high=MOST_WIDTH
    )
    padding: PerConv = entry(
        "Width of the border of zeros around the convolutions' input.",
        0,
        example=2,
        low=0,
        high=MOST_WIDTH,
    )
    pool: PerConv = entry(
        "Width and stride of the max-pooling.", 1, example=2, low=1, high=MOST_WIDTH
    )
    dense: list[int] = entry(
        "Neurons of each hidden dense layer.", [], example=[4096], low=1, high=MOST_NEURONS
    )
    per_class: int = entry("Output neurons per class.", 1, example=10, low=1, high=MOST_NEURONS)
    weights: str = entry(
        "'binary': W = alpha w with w = -1 or +1, learnt by flips. 'real': learnt by SGD.",
        "binary",
        example="real",
        choices=("binary", "real"),
    )
    activations: str = entry(
        "'real': the hard sigmoid of a neuron's state. 'binary': 1 from the threshold on, else 0.",
        "real",
        example="binary",
        choices=("real", "binary"),
    )
    threshold: float = entry("State at which a binary neuron turns on.", 0.5, example=0.4)
    sigma: float = entry(
        "Binary neurons: half the width of the window around the threshold in which a drive acts.",
        0.5,
        example=0.3,
        above=0,
    )
    dynamics: str = entry(
        "'prototypical': s <- rho(drive), for real activations. 'energy': s <- (1 - dt) s + dt "
        "rho'(s) drive, in [0, 1]. 'hopfield': bits without an inner state, layers in turn.",
        "prototypical",
        example="energy",
        choices=DYNAMICS,
    )
    updates: str | None = entry(
        "'simultaneous': all layers move at once. 'alternating': a step is a sweep, the odd layers "
        "and then the even ones. By default the latter with 'hopfield' dynamics only.",
        None,
        example="alternating",
        choices=UPDATES,
        before="simultaneous",
    )
    feedback: PerCoupling = entry(
        "What is sent down through a coupling is multiplied by: below 1 a layer hears less from "
        "above than from below, and EP's gradients stay right. Not used of the first coupling.",
        1.0,
        example=[1, 0.5, 0.25],
        above=0,
    )
    dt: float = entry("Time step of the energy-based dynamics.", 0.5, example=0.25, above=0, high=1)
    initial_state: float | None = entry(
        "State of all neurons at the start of the free phase. By default the paper's: energy-based "
        "1, with convolutions 0.5, else 0; with 'hopfield' dynamics 0.",
        None,
        example=0.0,
    )
    clamp_nudged: bool | None = entry(
        "Prototypical dynamics: whether nudged outputs are clamped to [0, 1]. By default they are "
        "unless there are convolutions.",
        None,
        example=True,
    )
    nudged_sends: str | None = entry(
        "What a nudged output that is not clamped sends down: its 'state', beyond [0, 1] too, or "
        "its 'activity', as other neurons. By default its state.",
        None,
        example="activity",
        choices=SENDS,
    )
    cost: str = entry(
        "'mse' pulls outputs to their targets; with 'cross_entropy' the last coupling is a softmax "
        "readout outside the dynamics.",
        "mse",
        example="cross_entropy",
        choices=COSTS,
    )
    learn_scale: bool = entry(
        "Whether the scaling factors alpha of binary weights are learnt.", False, example=True
    )
    scale: float | None = entry(
        "alpha of all couplings; by default the mean |W| of the weights drawn at the start.",
        None,
        example=0.02,
        above=0,
    )
    gain: PerCoupling = entry(
        "Factor on alpha, or on real weights, before training.", 1.0, example=[2, 1], above=0
    )
    power_of_two: bool = entry(
        "Whether each alpha is rounded to the nearest power of two before training (after "
        "`network.gain`), so that hardware shifts instead of multiplying.",
        False,
        example=True,
    )
    zero_bias: bool = entry("Whether biases start at 0 and not at random.", False, example=True)
    bias: PerCoupling = entry("Added to every bias before training.", 0.0, example=[-0.1, 0])
    layers: list[Layer] | None = entry(
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

    method: str = entry(
        "'ep' or, as a baseline, 'bptt'.", "ep", example="bptt", choices=("ep", "bptt")
    )
    free_steps: int = entry("T, time steps of the free phase.", example=50, low=1, high=MOST_STEPS)
    nudged_steps: int = entry(
        "K, time steps of a nudged phase; for BPTT steps to go back through.",
        example=10,
        low=1,
        high=MOST_STEPS,
    )
    beta: float = entry("Strength of the nudge; not 0.", 0.3, example=0.5)
    sign: str = entry(
        "Of beta: 'positive' as given; 'random' for each mini-batch; 'centered' both, and the "
        "gradient from their difference.",
        "random",
        example="centered",
        choices=SIGNS,
    )
    nudge: str = entry(
        "'live': beta (y - s) with the current state; 'constant': with the free phase's.",
        "live",
        example="constant",
        choices=NUDGES,
    )
    tolerance: float | None = entry(
        "A phase ends once no state changes by more than this in a step; by default none ends "
        "early.",
        None,
        example=1e-3,
        low=0,
    )
    margin: float = entry(
        "By how much the right class has to win while the network learns; EP only.",
        0.0,
        example=0.1,
        low=0,
    )
    homeostasis: PerCoupling = entry(
        "How fast biases follow activity: after each mini-batch `b <- b + homeostasis (activity - "
        "mean activity)`, of each neuron or channel in the free phase; 0: not at all. EP only.",
        0.0,
        example=[1e-3, 0],
        low=0,
    )
    activity: PerCoupling | None = entry(
        "The share of samples that `learning.homeostasis` keeps neurons active for; needed by it.",
        None,
        example=0.1,
        above=0,
        high=1,
    )
    pulls_at: str = entry(
        "BPTT: what the loss pulls at, the outputs' 'state' or their 'drive', as EP's nudge does "
        "in prototypical dynamics.",
        "state",
        example="drive",
        choices=PULLS_AT,
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerKeys:
    """Bop for binary weights (gamma, tau), SGD for everything else (lr_...)."""

    gamma: PerCoupling | None = entry(
        "Bop's rate: m <- (1 - gamma) m + gamma g. Needed by binary weights.",
        None,
        example=[1e-4, 1e-5],
        above=0,
        high=1,
    )
    tau: PerCoupling | None = entry(
        "Bop's threshold: a weight flips where |m| > tau and m has its sign. Needed by binary "
        "weights.",
        None,
        example=5e-7,
        low=0,
    )
    sigma: float | None = entry(
        "Makes Bop one of second order: v <- (1 - sigma) v + sigma g^2, and tau is compared with "
        "|m| / (sqrt(v) + 1e-10). By default it is not.",
        None,
        example=1e-3,
        above=0,
        high=1,
    )
    lr_bias: PerCoupling | None = entry(
        "Learning rate of biases.", None, example=[0.05, 0.025], low=0
    )
    lr_scale: PerCoupling | None = entry(
        "Learning rate of alpha; needed with `network.learn_scale`.", None, example=1e-4, low=0
    )
    lr_weight: PerCoupling | None = entry(
        "Learning rate of real weights; needed by them.", None, example=0.05, low=0
    )
    momentum_noise: float = entry(
        "Standard deviation of Bop's momentum at the start, in units of gamma.",
        0.0,
        example=2,
        low=0,
    )


@dataclass(frozen=True, kw_only=True)
class RateSchedule:
    """What a rate is multiplied by as epochs go by: in steps, and smoothly.

    By `factor` after each epoch of `at` and after every `every` epochs; and by what stays 1 for
    `after` epochs, goes to `final` within the next `over`, in one of three shapes, and stays there.
    Epochs are counted from the start, whatever `training.epochs` is: a run can be lengthened.
    """

    at: list[int] = entry(
        "Epochs after each of which the rate is multiplied by `factor`.", [], example=[10], low=1
    )
    every: int = entry("Epochs between further such changes; 0: none.", 0, example=20, low=0)
    factor: float = entry("What is multiplied by then.", 1.0, example=0.1, above=0)
    after: int = entry("Epochs before the smooth change begins.", 0, example=80, low=0)
    over: int = entry(
        "Epochs that the smooth change takes; 0: there is none.", 0, example=20, low=0
    )
    final: float = entry(
        "What the rate is multiplied by at the end of the smooth change.",
        1.0,
        example=10,
        above=0,
    )
    shape: str = entry(
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

    epochs: int = entry("Number of epochs.", example=50, low=1, high=MOST_EPOCHS)
    batch_size: int = entry("Samples in a mini-batch.", 64, example=20, low=1, high=MOST_NEURONS)
    drop_last: bool = entry(
        "Whether an epoch leaves out a smaller last mini-batch, whose samples would weigh more.",
        False,
        example=True,
    )


@dataclass(frozen=True, kw_only=True)
class HardwareKeys:
    """What is wrong with the hardware, see `Imperfections`; by default nothing."""

    weight_errors: float = entry(
        "Probability that a weight is read with the wrong sign, for each mini-batch.",
        0.0,
        example=0.01,
        low=0,
        high=1,
    )
    activation_errors: float = entry(
        "Probability that a bit that a neuron sends is wrong, at every read.",
        0.0,
        example=0.001,
        low=0,
        high=1,
    )
    stuck: float = entry(
        "Share of synapses that always read the same sign.", 0.0, example=0.05, low=0, high=1
    )
    threshold_spread: float = entry(
        "Standard deviation of the neurons' thresholds.", 0.0, example=0.1, low=0
    )
    momentum_bits: int | None = entry(
        "Bits in which a momentum is stored; by default float32.", None, example=8, low=2, high=24
    )
    momentum_leak: float = entry(
        "Share of its momentum that a synapse loses in each mini-batch, besides Bop's own decay.",
        0.0,
        example=1e-4,
        low=0,
        high=1,
    )
    device: int = entry(
        "Number of the device: which synapses are stuck, which threshold each neuron has.",
        0,
        example=1,
        low=0,
    )


@dataclass(frozen=True, kw_only=True)
class PaperKeys:
    """What the paper reports, in per cent: mean and standard deviation, and where."""

    test: float | None = entry("Test error.", None, example=2.07, low=0)
    test_sd: float | None = entry("Its standard deviation.", None, example=0.02, low=0)
    train: float | None = entry("Training error.", None, example=0.77, low=0)
    where: str = entry("Table or section.", "", example="Table 1")
