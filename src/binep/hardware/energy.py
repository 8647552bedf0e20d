"""Energy of operations: a table of costs, in which memory costs by its size."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from binep.errors import BinepError, choose
from binep.files import read_text
from binep.hardware.operations import KINDS, Operations

# Priced by the size of the memory that they are in.
MOVED = ("memory_bits", "neuron_bits")
_MEMORY_KEYS = ("name", "kilobytes", "picojoules")


@dataclass(frozen=True)
class MemoryCost:
    """What a bit costs that is read from or written to a memory of up to so many kilobytes."""

    name: str
    picojoules: float
    kilobytes: float = float("inf")

    def holds(self, bits: float) -> bool:
        return bits <= 8000 * self.kilobytes


@dataclass(frozen=True)
class Costs:
    """Energy of each operation, in picojoules, and where the figures are from.

    Attributes:
        picojoules: of operations; bits that are moved cost by `memories`, smallest first.
    """

    name: str
    picojoules: Operations
    memories: tuple[MemoryCost, ...]

    def memory(self, bits: float) -> MemoryCost:
        """The smallest memory that holds so many bits; the largest, if none does."""
        return next((each for each in self.memories if each.holds(bits)), self.memories[-1])

    def microjoules(self, work: Operations, parameters: float = 0, neurons: float = 0) -> float:
        """Energy of work on a network whose parameters, and whose neurons, take so many bits."""
        pairs = zip(self.picojoules.counts, work.counts, strict=True)
        arithmetic = sum(cost * count for cost, count in pairs)
        moved = (
            self.memory(parameters).picojoules * work.memory_bits
            + self.memory(neurons).picojoules * work.neuron_bits
        )
        return (arithmetic + moved) / 1e6


def load_costs(path: Path | None = None) -> Costs:
    """The costs of a TOML file; by default those that ship with binep."""
    shipped = resources.files("binep") / "hardware" / "costs.toml"
    text = shipped.read_text("utf-8") if path is None else read_text(path)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BinepError(f"costs {path}: not valid TOML: {error}") from None
    values = table.get("picojoules")
    if not isinstance(values, dict):
        raise BinepError(f"costs {path}: section [picojoules] is missing")
    for name in values:
        choose(
            name, [kind for kind in KINDS if kind != "neuron_bits"], f"operation in costs {path}"
        )
    # A file that knows no shifts pays for them as for multiplications.
    values = {"shifts": values.get("multiplies"), **values}
    memories = _memories(table, values, path)
    costs = {
        kind: _number(values.get(kind), f"picojoules.{kind}", path)
        for kind in KINDS
        if kind not in MOVED
    }
    return Costs(str(table.get("name", path)), Operations(**costs), memories)


def _memories(
    table: Mapping[str, Any], values: Mapping[str, Any], path: Path | None
) -> tuple[MemoryCost, ...]:
    """The memories of a file; of one price, if it says only what `memory_bits` cost."""
    rows = table.get("memory")
    if rows is None:
        price = _number(values.get("memory_bits"), "picojoules.memory_bits", path)
        return (MemoryCost("memory of any size", price),)
    if "memory_bits" in values or not isinstance(rows, list) or not rows:
        raise BinepError(
            f"costs {path}: allowed is either picojoules.memory_bits, or a list of [[memory]] with "
            f"{', '.join(_MEMORY_KEYS)}"
        )
    found = [_memory(row, f"memory {n}", path) for n, row in enumerate(rows)]
    return tuple(sorted(found, key=lambda each: each.kilobytes))


def _memory(row: Any, where: str, path: Path | None) -> MemoryCost:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise BinepError(f"costs {path}: {where} needs a name")
    for key in row:
        choose(key, _MEMORY_KEYS, f"key of {where} in costs {path}")
    price = _number(row.get("picojoules"), f"{where}: picojoules", path)
    if "kilobytes" not in row:
        return MemoryCost(row["name"], price)
    return MemoryCost(row["name"], price, _number(row["kilobytes"], f"{where}: kilobytes", path))


def _number(value: Any, what: str, path: Path | None) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise BinepError(f"costs {path}: {what}={value}: allowed is a number of at least 0")
    return value
