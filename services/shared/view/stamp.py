"""Reads the stamp of the view in Redis, and distinguishes histories of a server's data."""

from dataclasses import dataclass
from typing import Any

from services.shared.view.away import ViewAway

STAMP = "sr:view"
SECTIONS = ("server", "stats", "replication")
"""`history_of` needs these sections of INFO."""
_HISTORY = ("run_id", "evicted_keys", "master_replid")
"""The fields of INFO that distinguish one history of a server's data from another."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The stamp in Redis, which names the view that it holds."""

    server: str
    """The history of the server's data, under which the generation began."""
    bucket: str
    generation: str

    def __str__(self) -> str:
        return f"{self.server}/{self.bucket}/{self.generation}"

    @classmethod
    def parse(cls, text: str) -> "Stamp":
        """Parse the text that `str` returned. An empty text is the stamp of a server without a view."""
        server, _, rest = text.partition("/")
        bucket, _, generation = rest.rpartition("/")
        return cls(server, bucket, generation)


def history_of(info: Any) -> str:
    """Return an identifier of the history of a server's data. Raises `ViewAway` if INFO lacks a field for
    it.
    """
    if not isinstance(info, dict):
        lines = (line.partition(":") for line in str(info).splitlines())
        info = {name: value for name, _, value in lines}
    history = [str(info.get(name, "")) for name in _HISTORY]
    if not all(history):
        raise ViewAway(
            f"INFO of this Redis-compatible server lacks one of {', '.join(_HISTORY)}, so a loss of data "
            "would stay unnoticed. Accepted: Valkey or Redis from 7.2."
        )
    return ".".join(history)
