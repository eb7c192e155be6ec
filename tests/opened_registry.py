"""A registry of documents in this process, as a service opens it, with the verbs that its processes use. The
store is real, and so is Redis. A stand-in for the worker advances only when a test says so.
"""

from pathlib import Path
from typing import Any

from services.registry_api.commands.wiring import campaigns_of
from services.registry_api.maintenance.housekeeping import Housekeeping
from services.registry_api.operations.delete import delete
from services.registry_api.operations.register import Limits, NewVersion, Registered, register
from services.registry_api.operations.sources import ClipSource, Source
from services.shared.bucket.store import ObjectStore
from services.shared.configuration.api import HousekeepingSettings
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.model.clock import Clock
from services.shared.model.document import SpeakerDocument
from services.shared.model.records import Version
from services.shared.model.speaker import SpeakerId
from services.shared.registry.opened import Opened
from services.shared.registry.opening import open_registry, registry_over
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.names import parse_speaker_name
from tests.integration.api.worker import StandIn
from tests.simulation.clips import clip_of

NS = "default"
ROOMY = Limits(voices=10**6, bytes=10**12, text_bytes=10**12, versions=200)


def id_of(name: str) -> SpeakerId:
    return SpeakerId.of(NS, parse_speaker_name(name))


def folder_settings(folder: Path) -> StoreSettings:
    return StoreSettings(url=folder.as_uri(), create_bucket=True)


class MovableClock(Clock):
    """A clock that a test moves ahead, and that waits by moving ahead."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def since_boot(self) -> float:
        return super().since_boot() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds


class OpenedRegistry:
    """One process of a registry. Several may be opened over one bucket and one Redis."""

    def __init__(
        self,
        store: StoreSettings | ObjectStore,
        redis_url: str,
        *,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        given, clock = RegistrySettings(redis_url=redis_url, **settings), clock or MovableClock()
        self.opened: Opened = (
            open_registry(store, given, clock)
            if isinstance(store, StoreSettings)
            else registry_over(store, "bucket", given, clock)
        )
        self.speakers, self.jobs = self.opened.speakers, self.opened.jobs
        self.view, self.redis = self.speakers.view, self.opened.generation.plain
        self.worker = StandIn(self.opened)
        self.opened.generation.check()

    def close(self) -> None:
        self.opened.close()

    def housekeeping(self, **settings: Any) -> Housekeeping:
        return Housekeeping(
            store=self.opened.store,
            speakers=self.speakers,
            blobs=self.opened.blobs,
            jobs=self.jobs,
            profiles=self.opened.profiles,
            records=self.opened.profile_records,
            settings=HousekeepingSettings(**settings),
            sweep_keys=lambda: 0,
            forget_voice=campaigns_of(self.opened).forget_voice,
        )

    def register(
        self,
        name: str,
        content: int = 1,
        *,
        source: Source | None = None,
        limits: Limits = ROOMY,
        namespace: str = NS,
        **fields: Any,
    ) -> Registered:
        """Register a version. Every content is another clip, unless another source is given."""
        decoded, uploaded = clip_of(content)
        upload = NewVersion(name=parse_speaker_name(name), consent="yes", **{"ref_text": "hello", **fields})
        return register(
            self.speakers,
            self.opened.blobs,
            self.jobs,
            self.opened.profiles,
            limits=limits,
            namespace=namespace,
            upload=upload,
            source=source or ClipSource(uploaded, decoded),
            by="key",
        )

    def make_ready(self, *names: str) -> None:
        """Register voices and make their artifacts. The first call announces the encoders."""
        if not self.opened.profiles.fingerprint(self.opened.profiles.required[0].name):
            self.worker.announce()
        for content, name in enumerate(names):
            self.register(name, content)
        self.worker.finish_all()

    def delete(self, name: str) -> None:
        delete(self.speakers, self.jobs, NS, parse_speaker_name(name), by="key")

    def served(self, name: str) -> tuple[int, str] | None:
        """Return the number and digest that engines get for the bare name, its bytes checked, or None."""
        document, profile = self.find(name).document, self.opened.profiles.required[0].name
        if not document.live or (made := document.default.artifact(profile, self.worker.fingerprint)) is None:
            return None
        self.opened.blobs.artifact(id_of(name), document.default, made)
        return document.default.number, made.digest

    def find(self, name: str) -> FoundSpeaker:
        return self.speakers.read(id_of(name))

    def newest(self, name: str) -> Version:
        return self.find(name).document.newest

    def document(self, name: str) -> SpeakerDocument:
        """Return the document in the bucket."""
        return SpeakerDocument.parse(self.opened.documents.read(f"{NS}/s/{id_of(name).slug}.json").body)

    def files(self, name: str) -> list[str]:
        """Return the keys of everything that is stored for a voice beside its document."""
        return [stored.key for stored in self.opened.store.list(f"{NS}/d/{id_of(name).slug}/").objects]
