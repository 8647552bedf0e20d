"""The packed model file: one .safetensors with weights one bit each, sealed by a SHA-256.

Documented in `docs/format.md`. Written and read here byte by byte, so that the file is the same
whenever the network is, and so that nothing in it goes unchecked: the seal is the SHA-256 of the
whole file with its own 64 digits set to zero.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from binep.deploy.stored import Array, StoredCoupling, StoredNetwork
from binep.errors import BinepError, choose
from binep.files import write_whole

FORMAT = "binep-packed"
VERSION = 1

_NO_SEAL = b"0" * 64
_SEAL_KEY = b'"sha256":"'
_ALIGNMENT = 8
_LENGTH = 8
# Nothing of ours needs more; a foreign file may claim anything.
_LONGEST_HEADER = 1 << 20

_DTYPES = {"U8": np.dtype(np.uint8), "F32": np.dtype("<f4")}
_SIZES = ("kind", "below", "above", "kernel", "padding", "pool")
_PARAMETERS = ("couplings", "input_shape", "image_shape", "mean", "std")


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
        "network": _compact(_facts(network)),
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


def _facts(network: StoredNetwork) -> dict[str, Any]:
    facts = {
        f.name: getattr(network, f.name) for f in fields(StoredNetwork) if f.name not in _PARAMETERS
    }
    return {
        **facts,
        "input_shape": list(network.input_shape),
        "image_shape": list(network.image_shape),
        "mean": None if network.mean is None else list(network.mean),
        "std": None if network.std is None else list(network.std),
        "couplings": [
            {
                **{name: getattr(coupling, name) for name in _SIZES},
                "weights": "binary" if coupling.binary else "real",
                "bias": coupling.bias is not None,
            }
            for coupling in network.couplings
        ],
    }


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
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BinepError(f"{path}: {error.strerror or error}") from None
    try:
        return loads(content)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None


def loads(content: bytes) -> StoredNetwork:
    """The network of a packed file's content."""
    header, data = _split(content)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise BinepError(f"a safetensors file, but not a packed model: no format {FORMAT!r} in it")
    if metadata.get("version") != str(VERSION):
        raise BinepError(
            f"packed format version {metadata.get('version')!r}, this binep reads {VERSION}"
        )
    _check_seal(content, metadata.get("sha256"))
    try:
        facts = json.loads(metadata["network"])
        return _network(facts, _arrays(header, data))
    # The seal is whole: such a file was made by somebody else's program.
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BinepError(f"not a valid packed model: {error}") from None


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file."""
    size = int.from_bytes(content[:_LENGTH], "little")
    if len(content) < _LENGTH or not 2 <= size <= _LONGEST_HEADER:
        raise BinepError("not a packed model: it does not begin like a safetensors file")
    if len(content) < _LENGTH + size:
        raise BinepError(f"truncated: {len(content)} bytes, its header alone has {size}")
    try:
        header = json.loads(content[_LENGTH : _LENGTH + size])
    except (ValueError, RecursionError):
        raise BinepError("not a packed model, or damaged: its header is not JSON") from None
    if not isinstance(header, dict):
        raise BinepError("not a packed model: its header is not a table")
    return header, content[_LENGTH + size :]


def _check_seal(content: bytes, seal: Any) -> None:
    at = content.find(_SEAL_KEY) + len(_SEAL_KEY)
    unsealed = content[:at] + _NO_SEAL + content[at + len(_NO_SEAL) :]
    if not isinstance(seal, str) or hashlib.sha256(unsealed).hexdigest() != seal:
        raise BinepError("damaged, truncated or altered: its SHA-256 differs from its seal")


def _arrays(header: dict[str, Any], data: bytes) -> dict[str, Array]:
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
        kind, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = _DTYPES[choose(kind, _DTYPES, f"type of {name}")]
        if begin != end or stop - begin != math.prod(shape) * dtype.itemsize or stop > len(data):
            raise ValueError(f"{name} of shape {shape} does not fit its bytes {begin} to {stop}")
        arrays[name] = np.frombuffer(data[begin:stop], dtype).reshape(shape)
        end = stop
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes behind the last tensor")
    return arrays


def _network(facts: dict[str, Any], arrays: dict[str, Array]) -> StoredNetwork:
    couplings = [_coupling(n, each, arrays) for n, each in enumerate(facts.pop("couplings"))]
    if arrays:
        raise ValueError(f"unknown tensors {', '.join(sorted(arrays))}")
    for name in ("input_shape", "image_shape", "mean", "std"):
        facts[name] = None if facts[name] is None else tuple(facts[name])
    return StoredNetwork(couplings=couplings, **facts)


def _coupling(n: int, facts: dict[str, Any], arrays: dict[str, Array]) -> StoredCoupling:
    sizes = {name: facts[name] for name in _SIZES}
    if any(not isinstance(sizes[name], int) or sizes[name] < 0 for name in _SIZES[1:]):
        raise ValueError(f"coupling {n} of sizes {sizes}")
    plain = StoredCoupling(**sizes)
    count = math.prod(plain.weight_shape)

    def take(part: str, shape: tuple[int, ...]) -> Array:
        values = arrays.pop(f"couplings.{n}.{part}")
        if values.shape != shape:
            raise ValueError(f"couplings.{n}.{part} of shape {values.shape}, expected {shape}")
        if not np.isfinite(values).all():
            raise ValueError(f"couplings.{n}.{part} is not finite")
        return values

    parts: dict[str, Array] = {}
    if facts["weights"] == "binary":
        packed = take("bits", (math.ceil(count / 8),))
        bits = np.unpackbits(packed, bitorder="little")
        if bits[count:].any():
            raise ValueError(f"couplings.{n}.bits has bits set behind its last weight")
        parts["signs"] = (2 * bits[:count].astype(np.int8) - 1).reshape(plain.weight_shape)
        parts["scale"] = take("scale", () if plain.kind == "dense" else (plain.above,))
    else:
        parts["weight"] = take("weight", plain.weight_shape)
    if facts["bias"]:
        parts["bias"] = take("bias", (plain.above,))
    return StoredCoupling(**sizes, **parts)
