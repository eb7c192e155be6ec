"""The SHA-256 of a file, computed once for as long as the file does not change."""

import functools
import hashlib
from pathlib import Path


def sha256_of_file(path: Path) -> str:
    """Return the hex digest of a file. It is cached until the path, size or modification time changes."""
    status = path.stat()
    return _sha256(path.resolve(), status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, _size: int, _mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
