"""Recipes: everything that defines a training run, read from TOML and checked key by key.

A recipe is a tree of frozen dataclasses, one for each section of the file. `load` takes the name of
one that ships with the package, or the path of a user's own file; a file may say
`extends = "mnist-1fc-w"` and give only what differs. Every mistake is one line that names the key,
the value, and what is allowed.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import torch

from binep.core.couplings import Dense
from binep.core.gradients import (
    BackpropThroughTime,
    EquilibriumPropagation,
    Learning,
)
from binep.core.homeostasis import Homeostasis
from binep.core.imperfect import Imperfections, ImperfectNetwork, imperfect_optimizers
from binep.core.memory import check_fits
from binep.core.network import Network
from binep.core.optim import RATES, Optimizers, assign_optimizers
from binep.core.weights import nearest_power_of_two
from binep.data import Augmentation, Dataset, Folder, Source
from binep.data import load as load_dataset
from binep.data.own import Facts, facts_of
from binep.errors import BinepError, choose
from binep.files import read_text
from binep.registry import loggers
from binep.training.checking import alternatives, built, shown
from binep.training.layers import stacked
from binep.training.sections import (
    CHAIN,
    OF_CONV,
    OWN,
    DataKeys,
    HardwareKeys,
    LearningKeys,
    NetworkKeys,
    OptimizerKeys,
    PaperKeys,
    RateSchedule,
    ScheduleKeys,
    TrainingKeys,
    entry,
    nth,
)

MOST_PARENTS = 20
MOST_BYTES = 1 << 20  # of a recipe's file
LONGEST_NAME = 200
# Runs are kept in folders of that name.
NAMES = re.compile(rf"(?!\.)[^/\\\x00-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]{{1,{LONGEST_NAME}}}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run, complete: what is trained, on what, how, and for how long.

    >>> recipe = load("mnist-1fc-w")
    >>> recipe.network.dense, recipe.optimizer.gamma
    ([4096], [0.0001, 1e-05])
    >>> load("mnist-1fc-w", ["learning.beta=0.5"]).learning.beta
    0.5
    """

    name: str = entry(
        "What its runs are called; a file that does not say is called after itself.",
        example="narrow",
    )
    summary: str = entry("What it trains, in one line.", "", example="A narrower network")
    loggers: list[str] | None = entry(
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
    recipe = built(Recipe, dict(table), "")
    if not NAMES.fullmatch(recipe.name):
        raise BinepError(
            f"name={shown(recipe.name)}: allowed is what a folder can be called, 1 to "
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
    kinds = [kind for kind in alternatives(_hint(keys)) if kind is not type(None)]
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
                f"network.layers with network.{name}={shown(getattr(keys, name))}: allowed is one "
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
            f"{path}={shown(value)}: it has {len(value)} values, allowed is one number or "
            f"{expected}, one for each of the {expected} {what}"
        )


def _any(value: float | list[float]) -> bool:
    """Whether a value for all, or one of a list, is not 0."""
    return any(value) if isinstance(value, list) else value != 0


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
