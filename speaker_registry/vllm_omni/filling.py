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
        """Clear the cache entries of all voices but these, and of replaced versions.

        They include entries that the server itself made for a request, even for a version that existed only
        between two looks of this process.
        """
        for voice_id, entry in list(self._held.items()):
            if voice_id not in voices:
                del self._held[voice_id]
                self._cache.clear(bare_name(entry))
        for name in self._versioned_names() - {versioned_name(one) for one in voices.values()}:
            self._cache.clear(name)

    def _versioned_names(self) -> set[str]:
        with self._cache._lock:
            names = {key[1] for key in self._cache._cache if isinstance(key, tuple)}
        return {name for name in names if _VERSIONED.fullmatch(name)}

    def fill(self, entry: ManifestEntry) -> None:
        """Make the cache hold a voice. An artifact that cannot be fetched is tried again the next time.

        Raises:
            SpeakerRegistryError: The registry cannot be reached. What the cache had is still there.
        """
        before = self._held.get(entry.voice_id)
        if entry.digest is None or before == entry or self._is_full(entry.size or 0):
            return
        try:
            artifact = self._client.fetch(entry.reference, self._profile)
            slots = slots_of(artifact.manifest.model_type, artifact.torch_tensors(), entry.ref_text)
        except SpeakerRegistryError as error:
            if not concerns_one_voice(error):
                raise
            log.warning("Voice %s has no artifact for %s now: %s", entry.voice, self._profile, error.message)
            return
        if before is not None and before.version != entry.version:
            self._cache.clear(bare_name(before))
        for model_type, slot in slots.items():
            for name in (versioned_name(entry), bare_name(entry)):
                self._cache.put(self._cache.make_cache_key(name, model_type, entry.created_at), slot)
        self._held[entry.voice_id] = entry

    def _is_full(self, size: int) -> bool:
        stats = self._cache.stats()
        is_full: bool = stats["memory_bytes"] + size * _NAMES > _FILLED * stats["max_bytes"]
        if is_full and not self._was_full:
            log.warning("The speaker cache is full; further voices are encoded at their first request")
        self._was_full = is_full
        return is_full
