"""The packed model file: one .safetensors with weights one bit each, sealed by a SHA-256.

Documented in `docs/format.md`; `binep.sealed` writes and reads it byte by byte.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from binep.core.limits import LARGEST
from binep.deploy import allowed
from binep.deploy.stored import SIZES, Array, StoredCoupling, StoredNetwork
from binep.errors import BinepError
from binep.files import read_whole, write_whole
from binep.sealed import DTYPES, Format

FORMAT = Format("binep-packed", 1, "packed model", ("U8", "F32"))


# --- writing ------------------------------------------------------------------------------------


def dumps(network: StoredNetwork) -> bytes:
    """The packed file's content."""
    return FORMAT.dumps(network.facts, _tensors(network))


def save(network: StoredNetwork, path: Path) -> None:
    """Write the packed file, whole or not at all."""
    write_whole(path, dumps(network))


def _tensors(network: StoredNetwork) -> Iterator[tuple[str, str, Array]]:
    """Name, type and values of every tensor; four-byte ones first, so that all align."""
    real, bits = [], []
    for n, coupling in enumerate(network.couplings):
        for part in ("scale", "weight", "bias"):
            values = getattr(coupling, part)
            if values is not None:
                real.append((f"couplings.{n}.{part}", "F32", values))
        if coupling.binary:
            packed = np.packbits(coupling.signs.reshape(-1) > 0, bitorder="little")
            bits.append((f"couplings.{n}.bits", "U8", packed))
    yield from real
    yield from bits


# --- reading ------------------------------------------------------------------------------------


def load(path: str | Path) -> StoredNetwork:
    """Read a packed file; one line that says why, if it is damaged, truncated or foreign."""
    path = Path(path)
    content = read_whole(path)
    try:
        return loads(content)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None


def loads(content: bytes) -> StoredNetwork:
    """The network of a packed file's content.

    Anyone can compute a seal: what the file says is checked before it is used, see `allowed`.
    """
    opened = FORMAT.open(content)
    try:
        facts = opened.facts()
        if isinstance(facts, dict):  # Files from before there was a choice do not say.
            facts.setdefault("updates", "simultaneous")
        allowed.check_facts(facts)
        return _network(facts, opened.arrays())
    except BinepError as error:
        raise BinepError(f"not a valid packed model: {error}") from None


def _network(facts: dict[str, Any], arrays: dict[str, Array]) -> StoredNetwork:
    lists = ("input_shape", "image_shape", "mean", "std")
    rows = {name: tuple(facts[name]) for name in lists if facts[name] is not None}
    described = facts.pop("couplings")
    plain = [StoredCoupling(**{name: each[name] for name in SIZES}) for each in described]
    # Without parameters first: what does not fit takes no memory.
    network = StoredNetwork(**{**facts, **rows, "couplings": plain})
    filled = [
        _filled(n, coupling, each, arrays)
        for n, (coupling, each) in enumerate(zip(plain, described, strict=True))
    ]
    if arrays:
        raise BinepError(f"unknown tensors {', '.join(sorted(arrays))}")
    return replace(network, couplings=filled)


def _filled(
    n: int, coupling: StoredCoupling, facts: dict[str, Any], arrays: dict[str, Array]
) -> StoredCoupling:
    """A coupling with its parameters, taken out of `arrays`."""
    count = math.prod(coupling.weight_shape)

    def take(part: str, kind: str, shape: tuple[int, ...]) -> Array:
        name = f"couplings.{n}.{part}"
        values = arrays.pop(name, None)
        if values is None or values.dtype != DTYPES[kind] or values.shape != shape:
            found = "missing" if values is None else f"{values.dtype} of shape {values.shape}"
            raise BinepError(f"{name} is {found}: allowed is {kind} of shape {shape}")
        # NaN is not within anything.
        if kind == "F32" and not (np.abs(values) <= LARGEST).all():
            raise BinepError(f"{name} holds numbers beyond +-2^64, or not finite")
        return values

    parts: dict[str, Array] = {}
    if facts["weights"] == "binary":
        packed = take("bits", "U8", (math.ceil(count / 8),))
        bits = np.unpackbits(packed, bitorder="little")
        if bits[count:].any():
            raise BinepError(f"couplings.{n}.bits has bits set behind its last weight")
        signs = bits[:count].view(np.int8) * np.int8(2) - np.int8(1)
        parts["signs"] = signs.reshape(coupling.weight_shape)
        parts["scale"] = take("scale", "F32", () if coupling.kind == "dense" else (coupling.above,))
    else:
        parts["weight"] = take("weight", "F32", coupling.weight_shape)
    if facts["bias"]:
        parts["bias"] = take("bias", "F32", (coupling.above,))
    return replace(coupling, **parts)
