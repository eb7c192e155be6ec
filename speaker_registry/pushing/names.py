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
_MAX_LENGTH = 137
"""The longest name in vLLM-Omni, in characters, each of which becomes one byte in the name of a file. That
has up to 255 bytes: the name, the mark with up to 94, ten digits of the time, and `__.safetensors`.
"""


def pushed_name(entry: ManifestEntry, kind: str) -> str:
    """Return the name of exactly this version, such as `wren@3`, in lower case as servers look it up.

    Args:
        kind: One of `SERVERS`.
    """
    return f"{entry.voice.strip().lower()}{_SEPARATORS[kind]}{entry.version}"


def fault_of(entry: ManifestEntry, kind: str) -> str | None:
    """Return why a server of this kind cannot have a voice, or None if it can."""
    name = pushed_name(entry, kind)
    if kind != "sglang-omni":
        if len(name) > _MAX_LENGTH:
            return f"its name in vLLM-Omni would have {len(name)} characters; accepted: up to {_MAX_LENGTH}"
        return None
    if entry.source != "audio":
        return "the voice has a speaker embedding and no clip, and SGLang-Omni takes only clips"
    if not _PLAIN.fullmatch(name):
        return f"SGLang-Omni accepts no name such as {name[:80]!a}; accepted: A-Z, a-z, 0-9, '_', '.', '-'"
    return None


class MarkedVersion(NamedTuple):
    """The version that a pushed voice was made from, as its mark tells it."""

    voice: str
    """Digest of the id of the voice."""
    number: str
    version: str
    """Digest of the id of the version."""
    registry: str
    """Digest of the identity of its registry."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of pushed voices, which each carries as its consent. Voices without the mark are left alone.

    The mark tells addresses of registries, namespaces and profiles apart, so that two pushers of one server
    do not delete each other's voices. It also tells which registry answered at the address, and the version's
    id: a registry that was restored from a backup gives numbers again, so another version may have the same
    reference. All of them are digests, because a mark takes room from the longest name.
    """

    prefix: str
    registry: str
    """Digest of the identity of the registry."""

    @classmethod
    def of(cls, url: str, namespace: str, profile: str, registry: str) -> "Mark":
        prefix = f"speaker-registry:{digest(url, namespace, profile)}:"
        return cls(prefix, digest(registry))

    def on(self, entry: ManifestEntry) -> str:
        """Return the consent of a version."""
        version = f"{digest(entry.voice_id)}@{entry.version}.{digest(entry.version_id)}"
        return f"{self.prefix}{version}:{self.registry}"

    def version_in(self, consent: str) -> MarkedVersion | None:
        """Return the version in a consent, or None if the voice was not pushed under this mark."""
        if not consent.startswith(self.prefix):
            return None
        version, _, registry = consent.removeprefix(self.prefix).rpartition(":")
        reference, _, version_id = version.rpartition(".")
        voice, _, number = reference.rpartition("@")
        return MarkedVersion(voice, number, version_id, registry)


def digest(*parts: str) -> str:
    """Return what a mark tells of an id or an address."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
