"""Keeps vLLM-Omni's speaker cache filled with the artifacts of a profile, in one process of the server."""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from threading import Lock
from typing import Any, NamedTuple, Protocol

from speaker_registry.client import RegistryClient
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.manifests import ManifestEntry
from speaker_registry.moving.faults import concerns_one_voice
from speaker_registry.vllm_omni.names import bare_name, versioned_name
from speaker_registry.vllm_omni.reasons import Reasons
from speaker_registry.vllm_omni.slots import Slot, slots_of

log = logging.getLogger(__name__)

_NAMES = 2
"""A voice is in the cache under its bare and its versioned name. The cache counts its tensors for each."""
_FILLED = 0.9
"""Share of the cache that may be filled. Beyond it, voices would displace each other repeatedly."""
_VERSIONED = re.compile(r".+@\d+", re.DOTALL)


class SpeakerCache(Protocol):
    """The part of vLLM-Omni's `SpeakerEmbeddingCache` that is needed here."""

    _cache: Mapping[Any, Any]
    _lock: Lock

    def make_cache_key(self, speaker_name: str, model_type: str, created_at: int = 0) -> Any: ...
    def put(self, key: Any, artifacts: Slot) -> None: ...
    def clear(self, speaker_name: str | None = None) -> int: ...
    def stats(self) -> dict[str, Any]: ...


class _Held(NamedTuple):
    """A version that is in the cache."""

    entry: ManifestEntry
    names: frozenset[str]
    """The names that it has there."""


def _names_of(entry: ManifestEntry) -> frozenset[str]:
    """Return the names of a version in the server, one of which an upload to the server itself may have."""
    return frozenset({versioned_name(entry), bare_name(entry)})


class CacheFiller:
    """Fills one speaker cache.

    Args:
        cache: vLLM-Omni's speaker cache of this process.
    """

    def __init__(self, client: RegistryClient, profile: str, cache: SpeakerCache) -> None:
        self._client, self._profile, self._cache = client, profile, cache
        self._held: dict[str, _Held] = {}
        """What is in the cache, by the ids of the voices."""
        self._names: set[str] = set()
        """The bare names that voices of the registry have had since this process began."""
        self._own: frozenset[str] = frozenset()
        """The names that uploads to the server itself had at the last `clear_others`."""
        self._was_full = False
        self._reasons = Reasons()

    def clear_others(self, voices: Mapping[str, ManifestEntry], own: Collection[str] = ()) -> None:
        """Clear the cache entries of all voices but these, and of other versions than these.

        They include entries that the server itself made for a request, even for a version that existed only
        between two looks of this process. A version may have the number of another one: numbers are given
        again after the registry was restored from a backup. Entries of the server's custom voices stay,
        unless a voice of the registry has had the name.

        Args:
            own: Names of voices that were uploaded to the server itself. Their cache entries stay, and they
                are given no others: an upload may be of the same second as the version of that name, and
                would be heard as that.
        """
        self._own = frozenset(own)
        for voice_id, held in list(self._held.items()):
            if voice_id not in voices or voices[voice_id].version_id != held.entry.version_id:
                self._drop(held.entry)
        self._reasons.keep(voices)
        self._names.update(bare_name(one) for one in voices.values())
        wanted = {(name, one.created_at) for one in voices.values() for name in _names_of(one)}
        self._clear(
            lambda name, created_at: (
                name not in own and (name, created_at) not in wanted and self._is_ours(name, created_at)
            )
        )

    def _is_ours(self, name: str, created_at: int) -> bool:
        """Return whether a cache entry may be one of a version of the registry.

        The server makes entries without a creation time for its custom voices, once, when it loads the model,
        and for a request whose voice was withdrawn after the request had begun.
        """
        if name in self._names:
            return True
        if created_at == 0:
            return name.rpartition("@")[0] in self._names
        return _VERSIONED.fullmatch(name) is not None

    def _drop(self, held: ManifestEntry) -> None:
        """Clear the cache entries of a voice."""
        del self._held[held.voice_id]
        leaving = {(name, held.created_at) for name in _names_of(held)}
        self._clear(lambda name, created_at: (name, created_at) in leaving)

    def _clear(self, is_leaving: Callable[[str, int], bool]) -> None:
        """Clear the cache entries whose names and creation times `is_leaving` accepts."""
        with self._cache._lock:
            slots = {key: one for key, one in self._cache._cache.items() if isinstance(key, tuple)}
        leaving = {key for key in slots if is_leaving(*key[1:])}
        names = {key[1] for key in leaving}
        for name in names:
            self._cache.clear(name)
        for key, slot in slots.items():  # a name is cleared with all its creation times
            if key[1] in names and key not in leaving:
                self._cache.put(key, slot)

    def fill(self, entry: ManifestEntry) -> None:
        """Make the cache hold a voice. An artifact that cannot be fetched is tried again the next time.

        Raises:
            SpeakerRegistryError: The registry cannot be reached. What the cache had is still there.
        """
        now = _Held(entry, _names_of(entry) - self._own)
        held = self._held.get(entry.voice_id)
        if entry.digest is None or held == now:
            return
        before = None if held is None else held.entry
        if self._is_full((entry.size or 0) - (before.size or 0 if before else 0)):
            if before is not None:  # or the server would go on with an artifact that was replaced
                self._drop(before)
            return
        try:
            artifact = self._client.fetch(entry.reference, self._profile)
            slots = slots_of(artifact.manifest.model_type, artifact.torch_tensors(), entry.ref_text)
        except SpeakerRegistryError as error:
            if not concerns_one_voice(error):
                raise
            if self._reasons.is_news(entry.voice_id, error.message):
                log.warning(
                    "Voice %s has no artifact for %s now: %s", entry.voice, self._profile, error.message
                )
            return
        self._reasons.drop(entry.voice_id)
        for model_type, slot in slots.items():
            for name in now.names:
                self._cache.put(self._cache.make_cache_key(name, model_type, entry.created_at), slot)
        self._held[entry.voice_id] = now

    def _is_full(self, size: int) -> bool:
        """Return whether an artifact that adds so many bytes to the cache is one too many."""
        stats = self._cache.stats()
        is_full: bool = stats["memory_bytes"] + size * _NAMES > _FILLED * stats["max_bytes"]
        if is_full and not self._was_full:
            log.warning("The speaker cache is full; further voices are encoded at their first request")
        self._was_full = is_full
        return is_full
