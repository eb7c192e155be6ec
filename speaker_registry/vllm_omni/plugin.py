"""The plugin of vLLM-Omni: follows the registry in a thread of its own, in each process of a server.

vLLM-Omni calls `activate` in every process, before it loads the model. Any failure here is logged,
and the server continues with what it has.

The plugin does not follow the registry in a process that is forked after `activate`: its thread exists only
in the parent. It is not started again, because it may have held a lock of vLLM-Omni's cache at the fork, and
the server's event loop runs only in the parent. vLLM-Omni itself spawns its processes.
"""

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from speaker_registry.client import RegistryClient
from speaker_registry.errors import Unavailable
from speaker_registry.following import Following
from speaker_registry.manifests import ManifestEntry
from speaker_registry.syncing.samples import SpeakerSamples
from speaker_registry.vllm_omni.filling import CacheFiller, SpeakerCache
from speaker_registry.vllm_omni.reasons import Reasons
from speaker_registry.vllm_omni.serving import Loop, wrap_servers
from speaker_registry.vllm_omni.uploads import Server, UploadedVoices

log = logging.getLogger(__name__)

_PROFILE, _SECONDS = "SPEAKER_REGISTRY_PROFILE", "SPEAKER_REGISTRY_POLL_SECONDS"
_CALL_SECONDS = 20.0
_WARN_SECONDS = 3600.0
"""A fault that lasts is logged again after this time, because deleted voices stay in the server meanwhile."""
_activated = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The settings of the plugin, besides those of `RegistryClient`."""

    profile: str
    """The profile of the model that this server serves."""
    poll_seconds: float

    @classmethod
    def of_environment(cls) -> "PluginSettings | None":
        """Read the settings. Returns None if the plugin is not wanted: no profile is set.

        Raises:
            ValueError: The interval is not a number of seconds from 0.1 to 3600.
        """
        profile, seconds = os.environ.get(_PROFILE, ""), os.environ.get(_SECONDS, "5")
        if not profile:
            return None
        try:
            interval = float(seconds)
        except ValueError:
            interval = 0.0
        if not 0.1 <= interval <= 3600:
            raise ValueError(f"{_SECONDS} is {seconds[:40]!a}; accepted: seconds from 0.1 to 3600")
        return cls(profile=profile, poll_seconds=interval)


class Plugin:
    """Keeps the speaker cache and the uploaded voices of vLLM-Omni in this process equal to the registry."""

    def __init__(self, client: RegistryClient, settings: PluginSettings, cache: SpeakerCache) -> None:
        self._client, self._settings = client, settings
        self._following = Following(client, settings.profile)
        self._filler = CacheFiller(client, settings.profile, cache)
        self._servers: list[UploadedVoices] = []
        self._next_look = 0.0
        """The registry is asked again at this time, in seconds of the monotonic clock."""
        self._wake = threading.Event()
        self._stopped = False
        self._last_fault = ""
        self._warned_at = 0.0
        """The time at which a fault was last logged, in seconds of the monotonic clock."""
        self._failed: dict[str, float] = {}
        """Ids of the voices that could not be fetched or written when that was last tried, and when that was,
        in seconds of the monotonic clock.
        """
        self._failures: list[tuple[ManifestEntry, Exception]] = []
        """The failures in this look, and whose they are."""
        self._reasons = Reasons()

    def add_server(self, server: Server, loop: Loop) -> UploadedVoices:
        """Keep the uploaded voices of an API server equal to the registry from now on."""
        uploads = UploadedVoices(server, self._sample, self._client.version, loop.run)
        self._servers.append(uploads)
        self._wake.set()
        return uploads

    def look(self) -> None:
        """Read the registry once, and apply the changes. A fault that lasts is logged once an hour."""
        try:
            self._follow()
            fault = ""
        except Exception as error:  # noqa: BLE001 - the server must continue, whatever is wrong here
            fault = _told(error)
        now = time.monotonic()
        if fault and (fault != self._last_fault or now - self._warned_at >= _WARN_SECONDS):
            self._warned_at = now
            log.warning("%s", fault)
        elif self._last_fault and not fault:
            log.info("The speaker registry is followed again.")
        self._last_fault = fault

    def _follow(self) -> None:
        """Make cache and servers hold the voices of the registry.

        Fetching thousands of voices takes long, so the registry is asked again at the usual interval
        meanwhile: what is deleted must not stay until the last voice is there.
        """
        servers = self._take_away()
        self._failures = []
        for entry in sorted(self._following.voices.values(), key=self._failed_at):
            if time.monotonic() >= self._next_look:
                servers = self._take_away()
            if self._following.voices.get(entry.voice_id) == entry:
                self._hold(entry, servers)
        for failure in self._failures:
            self._tell(*failure)

    def _failed_at(self, entry: ManifestEntry) -> float:
        """Return when a voice failed last, or 0 if it has not. In this order, voices that fail keep no other
        one out, and take turns.
        """
        return self._failed.get(entry.voice_id, 0.0)

    def _hold(self, entry: ManifestEntry, servers: list[UploadedVoices]) -> None:
        """Make cache and servers hold a voice, and accept the first failure of a look.

        The registry may have no answer for this voice alone, for example if its store cannot read one object,
        or the place of its file may be taken. A second failure in the same look means that the registry is
        away, or the folder full.
        """
        steps = [partial(self._filler.fill, entry)]
        steps += [partial(uploads.offer, entry, self._following.manifest.registry) for uploads in servers]
        faults = [fault for step in steps if (fault := _fault_of(step)) is not None]
        if not faults:
            self._failed.pop(entry.voice_id, None)
            self._reasons.drop(entry.voice_id)
            return
        self._failed[entry.voice_id] = time.monotonic()
        self._failures += [(entry, one) for one in faults]
        if len(self._failures) > 1:
            raise faults[0]

    def _tell(self, entry: ManifestEntry, fault: Exception) -> None:
        """Log the only failure of a look. If there are more, `look` tells what they have in common."""
        reason = str(fault) or type(fault).__name__
        if self._reasons.is_news(entry.voice_id, reason):
            log.warning("Voice %s cannot be fetched or written now: %s", entry.voice, reason)

    def _take_away(self) -> list[UploadedVoices]:
        """Ask the registry which voices there are, and take all others out of cache and servers.

        Returns the servers, none of which has voices of another registry.
        """
        self._following.look()
        voices = self._following.voices
        servers = list(self._servers)
        for uploads in servers:
            self._check_registry(uploads, self._following.manifest.registry)
        self._failed = {voice_id: at for voice_id, at in self._failed.items() if voice_id in voices}
        self._reasons.keep(voices)
        self._filler.clear_others(voices, {name for uploads in servers for name in uploads.own_names()})
        for uploads in servers:
            uploads.withdraw_others(voices)
        self._next_look = time.monotonic() + self._settings.poll_seconds
        return servers

    def _check_registry(self, uploads: UploadedVoices, registry: str) -> None:
        """Check that a server has no voices of another registry, before any of its voices is changed."""
        try:
            uploads.check_registry(registry)
        except Unavailable:
            # Otherwise the registry of the voices, once it answers again, would be refused as another one.
            self._following = Following(self._client, self._settings.profile)
            raise

    def run(self) -> None:
        """Look repeatedly until `stop` is called."""
        while not self._stopped:
            self._wake.clear()
            self.look()
            self._wake.wait(self._settings.poll_seconds)

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def _sample(self, reference: str, facts: Mapping[str, str]) -> bytes:
        model_type = self._following.manifest.model_type
        return SpeakerSamples(self._client, self._settings.profile, model_type).sample(reference, **facts)


def _told(error: Exception) -> str:
    """Return what the log says about the end of a look. It names no single file, because each look may end at
    another one, and the same fault is logged once an hour.
    """
    if isinstance(error, OSError) and error.filename is not None:
        folder = str(Path(error.filename).parent)
        return f"The folder {folder!a} cannot be written to: {error.strerror}; new voices are not offered."
    about = "The speaker registry cannot be followed now; the server continues, and keeps deleted voices."
    return f"{about} {type(error).__name__}: {error}"


def _fault_of(step: Callable[[], None]) -> Unavailable | OSError | None:
    """Take a step for one voice. Returns its failure if the step may succeed for the next voice."""
    try:
        step()
    except (Unavailable, OSError) as error:
        return error
    return None


def _cache() -> SpeakerCache:
    """Return the speaker cache of this process, of which vLLM-Omni makes one instance."""
    module = importlib.import_module("vllm_omni.utils.speaker_cache")
    cache: SpeakerCache = module.get_speaker_cache()
    return cache


def activate() -> Plugin | None:
    """Start to follow the registry in this process. This is what the entry point calls.

    Returns:
        The plugin that runs in a daemon thread. None if `SPEAKER_REGISTRY_PROFILE` is not set, if the process
        follows the registry already, or if the settings are wrong, which is logged.
    """
    try:
        settings = PluginSettings.of_environment()
        if settings is None or not _activated.acquire(blocking=False):
            return None
        plugin = Plugin(RegistryClient(timeout=_CALL_SECONDS, retries=0, cache=None), settings, _cache())
        wrap_servers(plugin.add_server)
    except Exception as error:  # noqa: BLE001 - the server must start, whatever is wrong here
        log.warning("The speaker registry's plugin does nothing: %s", error)
        return None
    threading.Thread(target=plugin.run, name="speaker-registry", daemon=True).start()
    return plugin
