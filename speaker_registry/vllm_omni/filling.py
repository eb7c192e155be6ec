"""Keeps vLLM-Omni's speaker cache filled with the artifacts of a profile, in one process of the server."""

import logging
import re
from collections.abc import Mapping
from threading import Lock
from typing import Any, Protocol

from speaker_registry.client import RegistryClient
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.manifests import ManifestEntry
from speaker_registry.moving.faults import concerns_one_voice
from speaker_registry.vllm_omni.names import bare_name, versioned_name
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


class CacheFiller:
    """Fills one speaker cache.

    Args:
        cache: vLLM-Omni's speaker cache of this process.
    """

    def __init__(self, client: RegistryClient, profile: str, cache: SpeakerCache) -> None:
        self._client, self._profile, self._cache = client, profile, cache
        self._held: dict[str, ManifestEntry] = {}
        """The entries that are in the cache, by the ids of their voices."""
        self._was_full = False

    def clear_others(self, voices: Mapping[str, ManifestEntry]) -> None:
        """Clear the cache entries of all voices but these, and of other versions than these.

        They include entries that the server itself made for a request, even for a version that existed only
        between two looks of this process. A version may have the number of another one: numbers are given
        again after the registry was restored from a backup.
        """
        for voice_id, held in list(self._held.items()):
            if voice_id not in voices or voices[voice_id].version_id != held.version_id:
                self._drop(held)
        self._keep_versions({(versioned_name(one), one.created_at) for one in voices.values()})

    def _drop(self, held: ManifestEntry) -> None:
        """Clear the cache entries of a voice."""
        del self._held[held.voice_id]
        self._cache.clear(bare_name(held))
        self._cache.clear(versioned_name(held))

    def _keep_versions(self, wanted: set[tuple[str, int]]) -> None:
        """Clear the cache entries of all versions but those with these names and creation times."""
        with self._cache._lock:
            slots = {key: one for key, one in self._cache._cache.items() if isinstance(key, tuple)}
        versions = {key for key in slots if _VERSIONED.fullmatch(key[1])}
        cleared = {key[1] for key in versions if key[1:] not in wanted}
        for name in cleared:
            self._cache.clear(name)
        for key in versions:  # a name is cleared with all its creation times
            if key[1] in cleared and key[1:] in wanted:
                self._cache.put(key, slots[key])

    def fill(self, entry: ManifestEntry) -> None:
        """Make the cache hold a voice. An artifact that cannot be fetched is tried again the next time.

        Raises:
            SpeakerRegistryError: The registry cannot be reached. What the cache had is still there.
        """
        before = self._held.get(entry.voice_id)
        if entry.digest is None or before == entry:
            return
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
            log.warning("Voice %s has no artifact for %s now: %s", entry.voice, self._profile, error.message)
            return
        for model_type, slot in slots.items():
            for name in (versioned_name(entry), bare_name(entry)):
                self._cache.put(self._cache.make_cache_key(name, model_type, entry.created_at), slot)
        self._held[entry.voice_id] = entry

    def _is_full(self, size: int) -> bool:
        """Return whether an artifact that adds so many bytes to the cache is one too many."""
        stats = self._cache.stats()
        is_full: bool = stats["memory_bytes"] + size * _NAMES > _FILLED * stats["max_bytes"]
        if is_full and not self._was_full:
            log.warning("The speaker cache is full; further voices are encoded at their first request")
        self._was_full = is_full
        return is_full
