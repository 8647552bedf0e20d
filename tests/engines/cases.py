"""Networks small enough for a test, of every kind that recipes have, and engines that train them.

`cases(count)` deals the values of each dimension out evenly over so many networks, in an order of
its own, so that each value meets many values of the others.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from binep import (
    BackpropThroughTime,
    BinepError,
    ConvPool,
    Dense,
    EquilibriumPropagation,
    HardSigmoid,
    Heaviside,
    Network,
    assign_optimizers,
)
from binep.core.gradients import Learning
from binep.core.optim import Optimizers
from binep.engines.select import Engine, select_engine

GPU = torch.cuda.is_available()
CUDA = torch.device("cuda" if GPU else "cpu")


@dataclass(frozen=True)
class Case:
    """A network, how it learns, and what it is shown; all drawn from `seed`.

    Attributes:
        convs: keywords of each `ConvPool` but its channels below. dense: neurons of hidden layers.
        bias: "drawn", "zero" or "none".
        options: of the network. learning: of EP, or of BPTT if it has `steps`.
        norm: what the norm of each coupling but the first is brought to, about (of random signs:
            the scale times the sum of the roots of both fans); None leaves them as drawn.
        kind: of inputs, "pixels", "bits" or "real". sizes: of the mini-batches.
    """

    seed: int
    input_shape: tuple[int, ...]
    convs: tuple[Mapping[str, Any], ...] = ()
    dense: tuple[int, ...] = ()
    classes: int = 3
    per_class: int = 1
    bits: bool = True
    threshold: float = 0.5
    sigma: float = 0.5
    binary: bool = True
    learn_scale: bool = False
    bias: str = "drawn"
    norm: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    learning: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    kind: str = "pixels"
    sizes: tuple[int, ...] = (3, 3, 2)

    def __str__(self) -> str:
        layers = [*(f"{c['above']}k{c['kernel']}p{c['pool']}" for c in self.convs), *self.dense]
        return "-".join(map(str, [f"{self.seed}:{self.input_shape[-1]}", *layers, self.kind]))

    def batches(self, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """Random mini-batches, half of each image dark."""
        generator = torch.Generator().manual_seed(self.seed + 3)
        for size in self.sizes:
            shape = (size, *self.input_shape)
            lit = torch.rand(shape, generator=generator) < 0.5
            pixels = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
            labels = torch.randint(self.classes, (size,), generator=generator)
            x = {
                "pixels": pixels * lit,
                "bits": lit,
                "real": torch.randn(shape, generator=generator) * lit,
            }[self.kind]
            yield x.to(device), labels.to(device)


@dataclass(frozen=True)
class Built:
    """What a case describes, put together; the same numbers for every engine."""

    network: Network
    learning: Learning
    optimizers: Optimizers
    engine: Engine

    def momenta(self) -> list[dict[str, Any]]:
        """Bop's state of every binary coupling, input first."""
        bop = self.optimizers.bop
        return [] if bop is None else [bop.state[g["params"][0]] for g in bop.param_groups]


def chain(case: Case, generator: torch.Generator) -> list[ConvPool | Dense]:
    """Couplings that fit on one another, from the input to the outputs."""
    options: dict[str, Any] = {
        "binary": case.binary,
        "learn_scale": case.learn_scale and case.binary,
        "bias": case.bias != "none",
        "generator": generator,
    }
    shape, found = case.input_shape, []
    for conv in case.convs:
        found.append(ConvPool(shape[0], **conv, **options))
        shape = found[-1].above_shape(shape)
    for above in (*case.dense, case.classes * case.per_class):
        found.append(Dense(math.prod(shape), above, **options))
        shape = (above,)
    return found


def build(
    case: Case,
    engine: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    neuron: HardSigmoid | None = None,
) -> Built:
    """The case on an engine; `neuron` instead of the usual one for real activations."""
    couplings = chain(case, torch.Generator().manual_seed(case.seed))
    bits = Heaviside(case.threshold, case.sigma)
    network = Network(
        case.input_shape,
        couplings,
        bits if case.bits else neuron or HardSigmoid(),
        per_class=case.per_class,
        classes=case.classes,
        **{"dynamics": "energy" if case.bits else "prototypical", **case.options},
    )
    with torch.no_grad():
        for coupling in couplings:
            if case.bias == "zero" and coupling.bias is not None:
                coupling.bias.zero_()
        for coupling in couplings[1:] if case.norm is not None else []:
            weight = coupling.synapses.kernel
            fans = weight[0].numel() ** 0.5 + (weight.numel() / weight.shape[1]) ** 0.5
            strength = coupling.scale if case.binary else weight
            strength.mul_(case.norm / fans / strength.abs().mean())
    network = network.to(device, dtype)
    rates = {"gamma": 1e-2, "tau": 1e-4, "lr_bias": 0.1, "lr_scale": 1e-2, "lr_weight": 0.1}
    optimizers = assign_optimizers(
        network,
        **(rates | dict(case.rates)),
        noise=case.noise,
        generator=torch.Generator(device).manual_seed(case.seed + 2),
    )
    if "steps" in case.learning:
        learning: Learning = BackpropThroughTime(**case.learning)
    else:
        usual = {"free_steps": 9, "nudged_steps": 5, "beta": 2.0 if case.bits else 0.3}
        source = torch.Generator().manual_seed(case.seed + 1)
        learning = EquilibriumPropagation(**{**usual, **case.learning}, generator=source)
    return Built(network, learning, optimizers, make(engine, network, learning, optimizers))


def make(name: str, network: Network, learning: Learning, optimizers: Optimizers) -> Engine:
    """An engine by name; that for a GPU without one too, in Triton's interpreter."""
    if name != "cuda" or GPU:
        return select_engine(name, network, learning, optimizers)
    from binep.engines.cuda.engine import CudaEngine
    from binep.engines.cuda.through_time import ThroughTimeEngine

    through_time = isinstance(learning, BackpropThroughTime)
    return (ThroughTimeEngine if through_time else CudaEngine)(network, learning, optimizers)


def dealt(source: random.Random, values: Sequence[Any], count: int) -> list[Any]:
    """Every value about equally often, in random order."""
    hands = [list(values) for _ in range(-(-count // len(values)))]
    for hand in hands:
        source.shuffle(hand)
    return [value for hand in hands for value in hand][:count]


def cases(
    count: int, dimensions: Mapping[str, Sequence[Any]], shapes: Sequence[str], **sizes: Any
) -> list[Case]:
    """Cases with the values of each dimension dealt out; dotted ones are keys of a mapping."""
    columns = {
        name: dealt(random.Random(name), values, count) for name, values in dimensions.items()
    }
    kinds = dealt(random.Random("shapes"), shapes, count)
    found = []
    for n in range(count):
        plain: dict[str, Any] = {}
        for name, values in columns.items():
            if values[n] is not None:
                section, _, key = name.rpartition(".")
                (plain.setdefault(section, {}) if section else plain)[key] = values[n]
        found.append(shaped(random.Random(n), Case(n, (1,), **plain), kinds[n], **sizes))
    return found


def shaped(
    source: random.Random,
    case: Case,
    shape: str,
    *,
    widths: Sequence[int],
    channels: Sequence[int],
    side: int,
) -> Case:
    """A case of dense layers ("dense-2") or of convolutions ("conv-3"), of random sizes."""
    kind, _, count = shape.partition("-")
    if kind == "dense":
        below = source.choice(widths)
        return replace(
            case, input_shape=(below,), dense=tuple(source.choices(widths, k=int(count)))
        )
    while True:
        convs = tuple(
            {
                "above": source.choice(channels),
                "kernel": (kernel := source.randint(1, 4)),
                "padding": source.randint(0, min(2, kernel - 1)),
                "pool": source.choice([1, 2, 2, 3]),
            }
            for _ in range(int(count))
        )
        dense = (source.choice(widths),) if source.random() < 0.3 else ()
        tall = side + source.randint(0, 2)
        chosen = replace(
            case, input_shape=(source.randint(1, 3), tall, tall + 1), convs=convs, dense=dense
        )
        try:
            chain(chosen, torch.Generator().manual_seed(0))
        except BinepError:
            continue  # the layers do not fit into each other
        return chosen
