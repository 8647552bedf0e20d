"""Sealed files: facts in JSON and tensors, in one .safetensors that tells any damage to it.

Written and read here byte by byte, so that a file is the same whenever its content is, and so that
nothing in it goes unchecked: the seal is the SHA-256 of the whole file with its own 64 digits set
to zero. Anyone can compute a seal: what a file says is to be checked before it is used.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from binep.errors import BinepError

_NO_SEAL = b"0" * 64
_SEAL_KEY = b'"sha256":"'
_ALIGNMENT = 8
_LENGTH = 8
# Nothing of ours needs more; a foreign file may claim anything.
_LONGEST_HEADER = 1 << 20
_MOST_DIMENSIONS = 4
_LARGEST_SIZE = 1 << 48

DTYPES = {
    "U8": np.dtype(np.uint8),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
}

Array = Any


@dataclass(frozen=True)
class Format:
    """A kind of sealed file.

    Attributes:
        name, version: as they stand in the file.
        what: one of them, for messages.
        dtypes: what tensors may be, of `DTYPES`.
    """

    name: str
    version: int
    what: str
    dtypes: tuple[str, ...]

    def dumps(self, facts: dict[str, Any], tensors: Iterable[tuple[str, str, Array]]) -> bytes:
        """The content of a file: name, dtype and values of every tensor, in this order."""
        table: dict[str, Any] = {}
        blobs: list[bytes] = []
        end = 0
        for name, kind, values in tensors:
            blob = np.ascontiguousarray(values, DTYPES[kind]).tobytes()
            table[name] = {
                "dtype": kind,
                "shape": list(np.shape(values)),
                "data_offsets": [end, end + len(blob)],
            }
            blobs.append(blob)
            end += len(blob)
        metadata = {
            "format": self.name,
            "version": str(self.version),
            "network": _compact(facts),
            "sha256": _NO_SEAL.decode(),
        }
        header = _compact({"__metadata__": metadata, **table}).encode()
        header += b" " * (-(len(header) + _LENGTH) % _ALIGNMENT)
        content = len(header).to_bytes(_LENGTH, "little") + header + b"".join(blobs)
        at = content.index(_SEAL_KEY) + len(_SEAL_KEY)
        seal = hashlib.sha256(content).hexdigest().encode()
        return content[:at] + seal + content[at + len(seal) :]

    def open(self, content: bytes) -> "Opened":
        """What a file holds, once its seal is found whole; an error that says why, otherwise."""
        header, data = _split(content, self.what)
        metadata = header.pop("__metadata__", None)
        if not isinstance(metadata, dict) or metadata.get("format") != self.name:
            raise BinepError(
                f"a safetensors file, but not a {self.what}: no format {self.name!r} in it"
            )
        if metadata.get("version") != str(self.version):
            raise BinepError(
                f"{self.name.removeprefix('binep-')} format version {metadata.get('version')!r}, "
                f"this binep reads {self.version}"
            )
        _check_seal(content, metadata.get("sha256"))
        return Opened(self, metadata.get("network"), header, data)


@dataclass(frozen=True)
class Opened:
    """A sealed file that is whole: from here on what is wrong was made by somebody else."""

    format: Format
    text: Any
    header: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False)

    def facts(self) -> dict[str, Any]:
        return _object(self.text, "network")

    def arrays(self) -> dict[str, Array]:
        """The tensors by name, which fill the data one behind the other."""
        return _arrays(self.header, self.data, self.format.dtypes)


def format_of(content: bytes) -> str | None:
    """The format that a file says it has; None if it says none."""
    try:
        metadata = _split(content, "sealed file")[0].get("__metadata__")
    except BinepError:
        return None
    return metadata.get("format") if isinstance(metadata, dict) else None


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


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


def _split(content: bytes, what: str) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file."""
    size = int.from_bytes(content[:_LENGTH], "little")
    if len(content) < _LENGTH or not 2 <= size <= _LONGEST_HEADER:
        raise BinepError(f"not a {what}: it does not begin like a safetensors file")
    if len(content) < _LENGTH + size:
        raise BinepError(f"truncated: {len(content)} bytes, its header alone has {size}")
    try:
        header = _object(content[_LENGTH : _LENGTH + size], "header")
    except BinepError as error:
        raise BinepError(f"not a {what}, or damaged: {error}") from None
    return header, content[_LENGTH + size :]


def _check_seal(content: bytes, seal: Any) -> None:
    at = content.find(_SEAL_KEY) + len(_SEAL_KEY)
    unsealed = content[:at] + _NO_SEAL + content[at + len(_NO_SEAL) :]
    if not isinstance(seal, str) or hashlib.sha256(unsealed).hexdigest() != seal:
        raise BinepError("damaged, truncated or altered: its SHA-256 differs from its seal")


def _arrays(header: dict[str, Any], data: bytes, dtypes: tuple[str, ...]) -> dict[str, Array]:
    """The tensors by name, which fill the data one behind the other."""
    for name, entry in header.items():
        if not _is_entry(entry, dtypes):
            raise BinepError(
                f"tensor {name!r}: allowed are a dtype ({' or '.join(dtypes)}), a shape, and the "
                "data_offsets of its first byte and behind its last"
            )
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, stop) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if begin != end or stop - begin != math.prod(shape) * dtype.itemsize or stop > len(data):
            raise BinepError(f"{name} of shape {shape} does not fit its bytes {begin} to {stop}")
        arrays[name] = np.frombuffer(data[begin:stop], dtype).reshape(shape)
        end = stop
    if end != len(data):
        raise BinepError(f"{len(data) - end} bytes behind the last tensor")
    return arrays


def _is_entry(entry: Any, dtypes: tuple[str, ...]) -> bool:
    if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
        return False
    shape, offsets = entry["shape"], entry["data_offsets"]
    return (
        type(entry["dtype"]) is str
        and entry["dtype"] in dtypes
        and type(shape) is list
        and len(shape) <= _MOST_DIMENSIONS
        and all(type(size) is int and 1 <= size < _LARGEST_SIZE for size in shape)
        and type(offsets) is list
        and len(offsets) == 2
        and all(type(offset) is int and offset >= 0 for offset in offsets)
    )
