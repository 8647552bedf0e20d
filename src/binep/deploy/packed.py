"""The packed model file: one .safetensors with weights one bit each, sealed by a SHA-256.

Documented in `docs/format.md`. Written and read here byte by byte, so that the file is the same
whenever the network is, and so that nothing in it goes unchecked: the seal is the SHA-256 of the
whole file with its own 64 digits set to zero.
"""

import hashlib
import json
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

FORMAT = "binep-packed"
VERSION = 1

_NO_SEAL = b"0" * 64
_SEAL_KEY = b'"sha256":"'
_ALIGNMENT = 8
_LENGTH = 8
# Nothing of ours needs more; a foreign file may claim anything.
_LONGEST_HEADER = 1 << 20
_MOST_DIMENSIONS = 4
_LARGEST_SIZE = 1 << 48

_DTYPES = {"U8": np.dtype(np.uint8), "F32": np.dtype("<f4")}


# --- writing ------------------------------------------------------------------------------------


def dumps(network: StoredNetwork) -> bytes:
    """The packed file's content."""
    table: dict[str, Any] = {}
    blobs: list[bytes] = []
    end = 0
    for name, kind, shape, values in _tensors(network):
        blob = values.tobytes()
        table[name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": [end, end + len(blob)],
        }
        blobs.append(blob)
        end += len(blob)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "network": _compact(network.facts),
        "sha256": _NO_SEAL.decode(),
    }
    header = _compact({"__metadata__": metadata, **table}).encode()
    header += b" " * (-(len(header) + _LENGTH) % _ALIGNMENT)
    content = len(header).to_bytes(_LENGTH, "little") + header + b"".join(blobs)
    at = content.index(_SEAL_KEY) + len(_SEAL_KEY)
    seal = hashlib.sha256(content).hexdigest().encode()
    return content[:at] + seal + content[at + len(seal) :]


def save(network: StoredNetwork, path: Path) -> None:
    """Write the packed file, whole or not at all."""
    write_whole(path, dumps(network))


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _tensors(network: StoredNetwork) -> Iterator[tuple[str, str, tuple[int, ...], Array]]:
    """Name, type, shape and values of every tensor; four-byte ones first, so that all align."""
    real, bits = [], []
    for n, coupling in enumerate(network.couplings):
        for part in ("scale", "weight", "bias"):
            values = getattr(coupling, part)
            if values is not None:
                values = np.ascontiguousarray(values, "<f4")
                shape = np.shape(getattr(coupling, part))
                real.append((f"couplings.{n}.{part}", "F32", shape, values))
        if coupling.binary:
            packed = np.packbits(coupling.signs.reshape(-1) > 0, bitorder="little")
            bits.append((f"couplings.{n}.bits", "U8", packed.shape, packed))
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
    header, data = _split(content)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise BinepError(f"a safetensors file, but not a packed model: no format {FORMAT!r} in it")
    if metadata.get("version") != str(VERSION):
        raise BinepError(
            f"packed format version {metadata.get('version')!r}, this binep reads {VERSION}"
        )
    _check_seal(content, metadata.get("sha256"))
    # The seal is whole: what is wrong from here on was made by somebody else's program.
    try:
        facts = _object(metadata.get("network"), "network")
        allowed.check_facts(facts)
        return _network(facts, _arrays(header, data))
    except BinepError as error:
        raise BinepError(f"not a valid packed model: {error}") from None


def _object(text: Any, what: str) -> dict[str, Any]:
    """A JSON object whose keys are there once, of numbers that every reader reads alike."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a key is there twice")
        return table

    def never(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    try:
        found = json.loads(text, object_pairs_hook=once, parse_constant=never)
    except (ValueError, TypeError, RecursionError) as error:
        raise BinepError(f"its {what} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise BinepError(f"its {what} is not a table")
    return found


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file."""
    size = int.from_bytes(content[:_LENGTH], "little")
    if len(content) < _LENGTH or not 2 <= size <= _LONGEST_HEADER:
        raise BinepError("not a packed model: it does not begin like a safetensors file")
    if len(content) < _LENGTH + size:
        raise BinepError(f"truncated: {len(content)} bytes, its header alone has {size}")
    try:
        header = _object(content[_LENGTH : _LENGTH + size], "header")
    except BinepError as error:
        raise BinepError(f"not a packed model, or damaged: {error}") from None
    return header, content[_LENGTH + size :]


def _check_seal(content: bytes, seal: Any) -> None:
    at = content.find(_SEAL_KEY) + len(_SEAL_KEY)
    unsealed = content[:at] + _NO_SEAL + content[at + len(_NO_SEAL) :]
    if not isinstance(seal, str) or hashlib.sha256(unsealed).hexdigest() != seal:
        raise BinepError("damaged, truncated or altered: its SHA-256 differs from its seal")


def _arrays(header: dict[str, Any], data: bytes) -> dict[str, Array]:
    """The tensors by name, which fill the data one behind the other."""
    for name, entry in header.items():
        if not _is_entry(entry):
            raise BinepError(
                f"tensor {name!r}: allowed are a dtype ({' or '.join(_DTYPES)}), a shape, and the "
                "data_offsets of its first byte and behind its last"
            )
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, stop) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if begin != end or stop - begin != math.prod(shape) * dtype.itemsize or stop > len(data):
            raise BinepError(f"{name} of shape {shape} does not fit its bytes {begin} to {stop}")
        arrays[name] = np.frombuffer(data[begin:stop], dtype).reshape(shape)
        end = stop
    if end != len(data):
        raise BinepError(f"{len(data) - end} bytes behind the last tensor")
    return arrays


def _is_entry(entry: Any) -> bool:
    if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
        return False
    shape, offsets = entry["shape"], entry["data_offsets"]
    return (
        type(entry["dtype"]) is str
        and entry["dtype"] in _DTYPES
        and type(shape) is list
        and len(shape) <= _MOST_DIMENSIONS
        and all(type(size) is int and 1 <= size < _LARGEST_SIZE for size in shape)
        and type(offsets) is list
        and len(offsets) == 2
        and all(type(offset) is int and offset >= 0 for offset in offsets)
    )


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
        if values is None or values.dtype != _DTYPES[kind] or values.shape != shape:
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
