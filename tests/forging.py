"""Packed files of any content under a seal that holds: anybody can compute one."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

Table = dict[str, Any]


def parts_of(content: bytes) -> tuple[Table, Table, bytes]:
    """What describes the network, the header without it, and the tensors' bytes."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    return json.loads(header["__metadata__"]["network"]), header, content[8 + size :]


def forged(network: Any, header: Table, data: bytes) -> bytes:
    """A packed file of these parts; `network` may be text."""
    text = network if isinstance(network, str) else json.dumps(network)
    metadata = {**header["__metadata__"], "network": text, "sha256": "0" * 64}
    words = json.dumps({**header, "__metadata__": metadata}, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    content = len(words).to_bytes(8, "little") + words + data
    at = content.index(b'"sha256":"') + 10
    seal = hashlib.sha256(content).hexdigest().encode()
    return content[:at] + seal + content[at + 64 :]


def altered(content: bytes, change: Callable[[Table, Table], Any]) -> bytes:
    """The file with its network and its header changed in place, sealed again."""
    network, header, data = parts_of(content)
    change(network, header)
    return forged(network, header, data)
