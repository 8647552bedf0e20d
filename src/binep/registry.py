"""Registries: data sets, couplings, neurons, export formats and loggers, by name.

A piece is registered in one of three ways, and found by its name in all of them:

    built in         a line in `BUILT_IN`
    by a package     a line in its pyproject.toml, as in
                     [project.entry-points."binep.neurons"]
                     tanh = "mypackage.neurons:Tanh"
    by a script      a decorator: @binep.registry.neurons.register

Pieces are imported when they are asked for: a list of names costs nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, overload

from binep.errors import BinepError, choose

Piece = TypeVar("Piece")

BUILT_IN: dict[str, dict[str, str]] = {
    "binep.datasets": {
        "digits": "binep.data.sources:DIGITS",
        "mnist": "binep.data.sources:MNIST",
        "fashion-mnist": "binep.data.sources:FASHION_MNIST",
        "cifar10": "binep.data.sources:CIFAR10",
    },
    "binep.couplings": {
        "dense": "binep.core.couplings:Dense",
        "conv": "binep.core.couplings:ConvPool",
    },
    "binep.neurons": {
        "hard-sigmoid": "binep.core.neurons:HardSigmoid",
        "heaviside": "binep.core.neurons:Heaviside",
        "winners": "binep.core.neurons:Winners",
    },
    "binep.exporters": {
        "packed": "binep.deploy.export:write_packed",
        "c": "binep.deploy.export:write_c",
        "mem": "binep.deploy.export:write_memory",
        "verilog": "binep.deploy.export:write_verilog",
        "web": "binep.deploy.export:write_web",
    },
    "binep.loggers": {"tensorboard": "binep.training.progress:TensorBoardWatcher"},
}


class Registry(Mapping[str, Any]):
    """The pieces of one kind, by name.

    Args:
        kind: what one of them is, for messages.
        group: the entry points under which packages register theirs.

    >>> neurons["hard-sigmoid"].__name__
    'HardSigmoid'
    >>> neurons["hard-sigmiod"]
    Traceback (most recent call last):
    binep.errors.BinepError: unknown neuron 'hard-sigmiod': did you mean 'hard-sigmoid'? ...
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._of_scripts: dict[str, Any] = {}

    @overload
    def register(self, name: str) -> Callable[[Piece], Piece]: ...

    @overload
    def register(self, name: Piece) -> Piece: ...

    def register(self, name: Any) -> Any:
        """Register a piece of your own script under a name, as a decorator.

        What has a `name` of its own, as neurons and couplings do, needs no other:
        `@neurons.register` above the class.

        >>> @neurons.register
        ... class Straight:
        ...     name = "straight"
        >>> neurons["straight"] is Straight
        True
        >>> neurons.remove("straight")
        """
        if isinstance(name, str):
            return lambda piece: self._add(name, piece)
        own = getattr(name, "name", None)
        if not isinstance(own, str):
            raise BinepError(
                f"{name!r} is registered without a name: allowed is a {self.kind} with "
                f"`name = ...`, or .register('a-name')"
            )
        return self._add(own, name)

    def _add(self, name: str, piece: Piece) -> Piece:
        earlier = self._of_scripts.get(name)
        # A cell of a notebook that runs again defines the same class once more.
        again = earlier is not None and _place_of(earlier) == _place_of(piece)
        if (earlier is not None or name in self._of_packages) and not again:
            raise BinepError(f"{self.kind} {name!r} is registered already: choose another name")
        self._check_name(name, piece)
        self._of_scripts[name] = piece
        return piece

    def remove(self, name: str) -> None:
        """Forget a piece of a script."""
        self._of_scripts.pop(name, None)

    @cached_property
    def _of_packages(self) -> dict[str, list[EntryPoint]]:
        """What is built in, and what installed packages bring, by name."""
        built_in = [EntryPoint(*line, self.group) for line in BUILT_IN[self.group].items()]
        found: dict[str, list[EntryPoint]] = {}
        for entry in [*built_in, *entry_points(group=self.group)]:
            found.setdefault(entry.name, []).append(entry)
        return found

    def refresh(self) -> None:
        """Look again for packages, once one has been installed while this process runs."""
        vars(self).pop("_of_packages", None)

    def __getitem__(self, name: str) -> Any:
        choose(name, self, self.kind)
        if name in self._of_scripts:
            return self._of_scripts[name]
        entry, *others = self._of_packages[name]
        if any(other.value != entry.value for other in others):
            places = " and ".join(each.value for each in (entry, *others))
            raise BinepError(
                f"{self.kind} {name!r} is registered {1 + len(others)} times, by {places}: "
                "allowed is one of them"
            )
        try:
            piece = entry.load()
        except BinepError:
            raise
        except Exception as error:
            # Of somebody else's package, whatever it is.
            raise BinepError(
                f"{self.kind} {name!r} cannot be imported from {entry.value}: {error!r}"
            ) from error
        self._check_name(name, piece)
        return piece

    def _check_name(self, name: str, piece: Any) -> None:
        own = getattr(piece, "name", name)
        if isinstance(own, str) and own != name:
            raise BinepError(
                f"{self.kind} {name!r} calls itself {own!r}: it must be registered under its name"
            )

    def name_of(self, piece: object) -> str:
        """The name under which the class of a piece is registered."""
        name = getattr(type(piece), "name", None)
        if not isinstance(name, str) or name not in self or self[name] is not type(piece):
            raise BinepError(
                f"{type(piece).__name__} is not registered: allowed is a class with a `name` "
                f"below @binep.registry.{self.group.removeprefix('binep.')}.register"
            )
        return name

    def __iter__(self) -> Iterator[str]:
        return iter({**self._of_packages, **self._of_scripts})

    def __len__(self) -> int:
        return len({**self._of_packages, **self._of_scripts})

    def __contains__(self, name: object) -> bool:
        return name in self._of_scripts or name in self._of_packages

    def __repr__(self) -> str:
        return f"Registry of {self.group.removeprefix('binep.')}: {', '.join(self)}"


def _place_of(piece: Any) -> tuple[Any, Any]:
    return getattr(piece, "__module__", None), getattr(piece, "__qualname__", id(piece))


# What each is: a `binep.data.Source` or a function that returns a `binep.data.Dataset`; a class of
# couplings or neurons; `exporter(shipment, folder)`, see `binep.deploy.export`; and
# `logger(folder)`, which returns a `binep.training.progress.Watcher`.
datasets = Registry("data set", "binep.datasets")
couplings = Registry("coupling", "binep.couplings")
neurons = Registry("neuron", "binep.neurons")
exporters = Registry("export format", "binep.exporters")
loggers = Registry("logger", "binep.loggers")
