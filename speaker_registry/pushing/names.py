"""The names that pushed voices have in a server, and the mark by which they are recognised later."""

import hashlib
import re
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of pushed voices, which each carries as its consent. Voices without the mark are left alone.

    The mark tells registry, namespace and profile apart, so that two pushers of one server do not delete each
    other's voices.
    """

    prefix: str

    @classmethod
    def of(cls, url: str, namespace: str, profile: str) -> "Mark":
        digest = hashlib.sha256("\0".join((url, namespace, profile)).encode()).hexdigest()
        return cls(f"speaker-registry:{digest[:16]}:")

    def on(self, reference: str) -> str:
        """Return the consent of the version with this reference."""
        return self.prefix + reference

    def reference_in(self, consent: str) -> str | None:
        """Return the reference in a consent, or None if the voice was not pushed under this mark."""
        return consent.removeprefix(self.prefix) if consent.startswith(self.prefix) else None
