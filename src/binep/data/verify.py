"""Whether the content of a file is the published one, and if not, what it looks like."""

import gzip
import hashlib
import io
import zlib

from binep.data.sources import File, published


def verify(file: File, raw: bytes) -> tuple[bytes, str]:
    """What `raw` holds, unpacked if it is gzipped, and why that is not `file` ('' if it is)."""
    try:
        content = _unpacked(raw)
    except (OSError, EOFError, zlib.error) as error:
        expected = file.sha256 or file.gz_sha256
        return b"", f"no whole gzip file ({error}), expected SHA-256 {expected[:12]}, found none"
    if file.sha256:
        kind, expected, found = "SHA-256", file.sha256, _digest("sha256", content)
    elif raw is not content:
        kind, expected, found = "SHA-256 of the .gz", file.gz_sha256, _digest("sha256", raw)
    else:
        kind, expected, found = "MD5", file.md5, _digest("md5", content)
    if found == expected:
        return content, ""
    fault = _likely_fault(file, raw, content)
    return content, f"{fault}, expected {kind} {expected[:12]}, found {found[:12]}"


def _unpacked(raw: bytes) -> bytes:
    """`raw` itself, or what it holds if it is gzipped (none of our formats starts like gzip)."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    # Bounded, so that a crafted file cannot fill the memory; what is longer is wrong anyway.
    bound = max(file.size for source in published() for file in source.files)
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
        return stream.read(bound + 1)


def _likely_fault(file: File, raw: bytes, content: bytes) -> str:
    if not content:
        return "it is empty"
    digests = {_digest("sha256", content), _digest("sha256", raw), _digest("md5", content)}
    for source in published():
        for other in source.files:
            if digests & {other.sha256, other.gz_sha256, other.md5}:
                return f"it holds {other.name} of {source.name}"
    if len(content) != file.size:
        return f"it holds {len(content)} bytes instead of {file.size}"
    return "it was altered"


def _digest(algorithm: str, blob: bytes) -> str:
    return hashlib.new(algorithm, blob, usedforsecurity=False).hexdigest()
