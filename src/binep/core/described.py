"""Pieces in words: a name in a registry and the arguments that make one like it.

What is stored of a network, and what a recipe says of a layer, is made of such descriptions. They
hold JSON's types only.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from binep.errors import BinepError, choose
from binep.registry import Registry

Description = dict[str, Any]


def arguments(piece: object, **told: Any) -> dict[str, Any]:
    """The arguments that make a piece like this one, by the names that its constructor gives them.

    A piece keeps each as an attribute of that name, unless it is `told`. Weights are none of them,
    nor is the `generator` that draws them.

    >>> from binep import Heaviside
    >>> arguments(Heaviside(threshold=0.25))
    {'threshold': 0.25, 'sigma': 0.5}
    """
    found = {}
    for name in _parameters(type(piece)):
        if name in told:
            found[name] = told[name]
        elif hasattr(piece, name):
            value = getattr(piece, name)
            found[name] = list(value) if isinstance(value, tuple) else value
        else:
            raise BinepError(
                f"{type(piece).__name__} cannot be described: it must keep its argument {name!r} "
                "as an attribute of that name"
            )
    return found


def allowed_arguments(piece: Any) -> list[str]:
    """The names of a constructor's arguments."""
    return [*_parameters(piece)]


def _parameters(maker: Any) -> dict[str, inspect.Parameter]:
    """What a constructor, or another maker, takes by name.

    Those that a class hands on to its parents as **options are among them.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found: dict[str, inspect.Parameter] = {}
    for each in _handing_on(maker):
        parameters = inspect.signature(each).parameters
        named = {n: p for n, p in parameters.items() if p.kind in kinds and n != "generator"}
        found = {**named, **found}
        if all(p.kind != inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            break
    return found


def _handing_on(maker: Any) -> Iterator[Any]:
    """A maker; of a class also the parents that have a constructor of their own."""
    yield maker
    if isinstance(maker, type):
        yield from (base for base in maker.__mro__[1:] if "__init__" in vars(base))


def describe(registry: Registry, piece: Any) -> Description:
    """A registered piece as its name and its arguments."""
    own = getattr(piece, "describe", None)
    return {"name": registry.name_of(piece), **(arguments(piece) if own is None else own())}


def make(registry: Registry, description: Mapping[str, Any]) -> Any:
    """The piece that a description is of, with fresh weights if it has any.

    >>> from binep.registry import neurons
    >>> make(neurons, {"name": "heaviside", "threshold": 0.25})
    Heaviside(threshold=0.25, sigma=0.5)
    """
    given = dict(description)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise BinepError(f"a {registry.kind} without a name: {description!r}")
    return made_of(registry, name, registry[name], given)


def made_of(registry: Registry, name: str, maker: Any, given: Mapping[str, Any]) -> Any:
    """What a registered piece's constructor, or another maker, makes of arguments."""
    for key in given:
        if key != "generator":
            choose(key, allowed_arguments(maker), f"argument of {registry.kind} {name!r}")
    with making(registry, name):
        return maker(**given)


@contextmanager
def making(registry: Registry, name: str) -> Iterator[None]:
    """Tell by name which piece does not take the arguments that it is made with."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, BinepError):
            raise
        raise BinepError(f"{registry.kind} {name!r}: {error}") from None
