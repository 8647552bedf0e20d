"""How recipes are checked, key by key: types, limits, and messages that say what is allowed."""

import json
import math
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from binep.errors import BinepError, choose
from binep.training.layers import OF_LAYERS, Layer
from binep.training.sections import LayerKeys

_LONE = re.compile("[\ud800-\udfff]")  # halves of characters: names of files may hold some


def built(cls: type, table: dict[str, Any], where: str) -> Any:
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
            values[name] = built(hints[name], section, path)  # type: ignore[arg-type]
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
    for kind in alternatives(hint):
        if get_origin(kind) is list:
            (item,) = get_args(kind)
            if isinstance(value, list) and all(_is(item, v) for v in value):
                for v in value:
                    _limit(v, hint, spec, path, value)
                return [item(v) for v in value]
        elif kind is not type(None) and _is(kind, value):
            _limit(value, hint, spec, path, value)
            return kind(value)
    raise BinepError(f"{path}={shown(value)}: allowed is {takes(hint, spec)}")


def _layer(table: Any, path: str) -> Layer:
    """One of `network.layers`: its own keys checked, its coupling named."""
    if not isinstance(table, dict):
        raise BinepError(f"{path}={shown(table)}: it must be a table, [[network.layers]]")
    own = {key: value for key, value in table.items() if key in OF_LAYERS}
    checked = asdict(built(LayerKeys, own, path))
    return {key: value for key, value in {**checked, **table}.items() if value is not None}


def alternatives(hint: Any) -> tuple[Any, ...]:
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
        raise BinepError(f"{path}={shown(value)}: allowed is text that UTF-8 can write")
    if isinstance(value, str | bool | dict):
        return
    fits = (
        abs(value) <= sys.float_info.max
        and value >= limits.get("low", -math.inf)
        and value > limits.get("above", -math.inf)
        and value <= limits.get("high", math.inf)
    )
    if not fits:
        raise BinepError(f"{path}={shown(whole)}: allowed is {takes(hint, spec)}")


def shown(value: Any) -> str:
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
        for kind in alternatives(hint)
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
