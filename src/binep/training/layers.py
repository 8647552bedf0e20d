"""The layers of a recipe's network: couplings and neurons by their names in the registries.

A layer is a table: the `coupling` that joins it to the layer below, its `size`, its `neuron`, and
any other key an argument of the coupling's constructor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from binep import registry
from binep.core.couplings import Coupling, Shape
from binep.core.described import allowed_arguments, make, making
from binep.core.neurons import Neuron
from binep.errors import BinepError, choose

Layer = dict[str, Any]
COUPLING = "dense"  # where a layer does not name one
OF_LAYERS = ("coupling", "size", "neuron")


def stacked(
    layers: Sequence[Layer],
    input_shape: Shape,
    outputs: int,
    usual: Mapping[str, Any],
    generator: torch.Generator | None,
) -> list[Coupling]:
    """Couplings from the input up, each with fresh weights.

    Args:
        outputs: size of the last layer, unless it says its own.
        usual: arguments of every constructor that takes them, unless a layer says otherwise.
    """
    chain, shape = list[Coupling](), input_shape
    for n, layer in enumerate(layers):
        try:
            chain.append(_joined(layer, shape, layer.get("size", outputs), usual, generator))
            shape = chain[-1].above_shape(shape)
        except BinepError as error:
            raise BinepError(f"layer {n + 1} of {len(layers)}: {error}") from None
    return chain


def _joined(
    layer: Layer,
    below: Shape,
    size: int,
    usual: Mapping[str, Any],
    generator: torch.Generator | None,
) -> Coupling:
    name = layer["coupling"]
    kind = registry.couplings[name]
    given = {key: value for key, value in layer.items() if key not in OF_LAYERS}
    allowed = allowed_arguments(kind)
    for key in given:
        choose(key, allowed, f"argument of coupling {name!r}")
    options = {key: value for key, value in usual.items() if key in allowed} | given
    if not options.get("binary", True):  # a real weight has no scale
        options.pop("learn_scale", None)
    with making(registry.couplings, name):
        return kind.connect(below, size, generator=generator, **options)


def neurons_of(
    layers: Sequence[Layer], usual: Neuron, arguments: Mapping[str, Any]
) -> list[Neuron]:
    """The neuron of each layer, as it says itself or as `usual`.

    Args:
        arguments: of every neuron that takes them, unless a layer says otherwise.
    """
    return [
        _neuron(layer["neuron"], arguments) if layer.get("neuron") is not None else usual
        for layer in layers
    ]


def _neuron(given: str | Mapping[str, Any], arguments: Mapping[str, Any]) -> Neuron:
    told = {"name": given} if isinstance(given, str) else dict(given)
    kind = registry.neurons[str(told.get("name"))]
    usual = {key: arguments[key] for key in arguments if key in allowed_arguments(kind)}
    return make(registry.neurons, {**usual, **told})
