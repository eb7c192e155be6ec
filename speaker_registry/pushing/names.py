"""The names that pushed voices have in a server, and the mark by which they are recognised later."""

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from speaker_registry.manifests import ManifestEntry

_SEPARATORS = {"vllm-omni": "@", "sglang-omni": ".v"}
"""The separator between name and version, by kind of server. SGLang-Omni accepts no `@`."""
_PLAIN = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9_.-]+")
"""The names that SGLang-Omni accepts."""


def pushed_name(entry: ManifestEntry, kind: str) -> str:
    """Return the name of exactly this version, such as `wren@3`, in lower case as servers look it up.

    Args:
        kind: One of `SERVERS`.
    """
    return f"{entry.voice.strip().lower()}{_SEPARATORS[kind]}{entry.version}"


def fault_of(entry: ManifestEntry, kind: str) -> str | None:
    """Return why a server of this kind cannot have a voice, or None if it can."""
    if kind != "sglang-omni":
        return None
    if entry.source != "audio":
        return "the voice has a speaker embedding and no clip, and SGLang-Omni takes only clips"
    if not _PLAIN.fullmatch(name := pushed_name(entry, kind)):
        return f"SGLang-Omni accepts no name such as {name[:80]!a}; accepted: A-Z, a-z, 0-9, '_', '.', '-'"
    return None


class MarkedVersion(NamedTuple):
    """The version that a pushed voice was made from, as its mark tells it."""

    reference: str
    version_id: str
    registry: str
    """Digest of the identity of its registry."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of pushed voices, which each carries as its consent. Voices without the mark are left alone.

    The mark tells addresses of registries, namespaces and profiles apart, so that two pushers of one server
    do not delete each other's voices. It also tells which registry answered at the address, and the version's
    id: a registry that was restored from a backup gives numbers again, so another version may have the same
    reference.
    """

    prefix: str
    registry: str
    """Digest of the identity of the registry."""

    @classmethod
    def of(cls, url: str, namespace: str, profile: str, registry: str) -> "Mark":
        prefix = f"speaker-registry:{_digest(url, namespace, profile)}:"
        return cls(prefix, _digest(registry))

    def on(self, entry: ManifestEntry) -> str:
        """Return the consent of a version."""
        return f"{self.prefix}{entry.reference}.{entry.version_id}:{self.registry}"

    def version_in(self, consent: str) -> MarkedVersion | None:
        """Return the version in a consent, or None if the voice was not pushed under this mark."""
        if not consent.startswith(self.prefix):
            return None
        version, _, registry = consent.removeprefix(self.prefix).rpartition(":")
        reference, _, version_id = version.rpartition(".")
        return MarkedVersion(reference, version_id, registry)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
