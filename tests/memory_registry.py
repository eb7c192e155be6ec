"""A registry of documents in memory: the real rooms on a store and a Redis that live in a test's own time."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from services.registry_api.maintenance.erase import erase
from services.registry_api.maintenance.garbage_sweep import sweep
from services.registry_api.maintenance.rebuild import rebuild
from services.registry_api.maintenance.settle import settle
from services.registry_api.operations.cancel import cancel
from services.registry_api.operations.delete import delete
from services.registry_api.operations.register import Limits, NewVersion, Registered, register
from services.registry_api.operations.sources import ClipSource, EmbeddingSource
from services.shared.bucket.documents import Documents
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.clock import Clock
from services.shared.model.document import SpeakerDocument
from services.shared.model.encoders import Encoder
from services.shared.model.profile_document import ProfileDocument
from services.shared.model.profiles import ProfileCatalogue
from services.shared.model.speaker import SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.queue.reaping import LatestAttempt
from services.shared.queue.rq_jobs import profile_of
from services.shared.registry.lookup import find, find_version
from services.shared.registry.profiles import Profiles
from services.shared.registry.publish import Attempt, Provenance, publish, start
from services.shared.registry.speakers import Speakers
from services.shared.view.generation import Generation
from services.shared.view.job_records import JobRecords
from services.shared.view.open_jobs import OpenJobs
from speaker_registry.artifact import TensorSpec
from speaker_registry.engine import Profile, PublishedWeights
from speaker_registry.names import parse_speaker_name
from tests.memory_redis import MemoryClient, MemoryServer, Weather
from tests.memory_store import MemoryStore
from tests.simulation.clips import clip_of, embedding_of

NS = "default"
ROOMY = Limits(voices=10**6, bytes=10**12, text_bytes=10**12, versions=200)


def _profile(name: str, width: int, *, ref_text_required: bool = False) -> Profile:
    return Profile(
        name=name,
        model_type=name,
        description=name,
        tensors={"speaker_embedding": TensorSpec(dtype="F32", shape=(width,))},
        sample_rate=16_000,
        ref_text_required=ref_text_required,
        weights=PublishedWeights(repo=name, licence="none", files={}),
    )


ECAPA, CODEC = _profile("ecapa", 4), _profile("codec", 6, ref_text_required=True)
PROFILES = (ECAPA, CODEC)


class OwnTime(Clock):
    """A clock that a test moves on, and that waits by moving on."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self.seconds = start
        self._ids = 0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def since_boot(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def up_to(self, seconds: float) -> float:
        return seconds / 2

    def new_id(self) -> str:
        self._ids += 1
        return f"{int(self.seconds * 1000):012x}{7:01x}{self._ids:019x}"


class MemoryQueue:
    """The queues of all profiles. A job stays until a worker takes it or it is removed."""

    def __init__(self) -> None:
        self.waiting: dict[str, Mapping[str, Any]] = {}
        self.failed: set[str] = set()
        self.taken: set[str] = set()
        self.draws: list[tuple[str, str]] = []

    def enqueue(self, job_id: str, queue: str, arguments: Mapping[str, Any]) -> None:
        self.waiting[job_id] = {**arguments, "profile": profile_of(queue)}

    def state(self, job_id: str, profile: str) -> str:
        if job_id in self.failed:
            return "failed"
        return "alive" if job_id in self.waiting or job_id in self.taken else "gone"

    def remove(self, job_id: str, queue: str) -> None:
        self.waiting.pop(job_id, None)

    def reap(self, latest_attempt: LatestAttempt) -> None:
        """Do nothing, because no worker dies here."""

    def draw(self, speaker: str, vuid: str) -> str | None:
        self.draws.append((speaker, vuid))
        return None

    def forget_drawing(self, vuid: str) -> None:
        """Do nothing, because no drawing ends here."""


class Fingerprints:
    """The fingerprint of every profile, which a test may change."""

    def __init__(self) -> None:
        self.current: dict[str, str] = {profile.name: "f1" for profile in PROFILES}
        self._former: dict[str, tuple[Encoder, ...]] = {}

    def change(self, profile: str, fingerprint: str) -> None:
        """Have another encoder make the artifacts of a profile."""
        self._former[profile] = (Encoder(profile=profile, fingerprint=self.current[profile]),)
        self.current[profile] = fingerprint

    def fingerprint(self, profile: str) -> str:
        return self.current[profile]

    def read(self, profile: str) -> ProfileDocument:
        """Return the document of a profile whose encoder is the current one."""
        current = Encoder(profile=profile, fingerprint=self.current[profile])
        return ProfileDocument(current=current, former=self._former.get(profile, ()))

    read_uncached = read

    def problem(self, profile: str) -> None:
        """Return None, because every document can be used."""


class AllServed:
    """Live workers that have every encoder."""

    def holds(self, profile: str, fingerprint: str) -> bool:
        return True


class Registry:
    """One process: the rooms with what they need. Everything that it does is done by real code."""

    def __init__(
        self,
        clock: Clock,
        store: Any,
        server: Callable[[], MemoryServer],
        queue: Any,
        fingerprints: Fingerprints,
        *,
        weather: Weather = lambda _, call: call(),
        generation: type[Generation] = Generation,
        speakers: type[Speakers] = Speakers,
    ) -> None:
        documents = Documents(store, clock)
        self.clock, self.store, self.queue, self.fingerprints = clock, store, queue, fingerprints
        self.generation = generation(
            "",
            "bucket",
            documents,
            clock,
            connect=lambda _, **options: MemoryClient(server, weather, **options),
            run_in_background=lambda do: do(),
        )
        self.speakers = speakers(
            documents=documents,
            generation=self.generation,
            clock=clock,
            now=lambda: int(store.now().timestamp()),
        )
        self.blobs = StoredBytes(store)
        self.jobs = Jobs(OpenJobs(self.generation), JobRecords(self.generation), queue, clock)
        self.profiles = Profiles(
            ProfileCatalogue(PROFILES, [profile.name for profile in PROFILES]), fingerprints, AllServed()
        )

    # Verbs of the API

    def register(
        self, name: str, content: int, *, limits: Limits = ROOMY, by: str = "key", **fields: Any
    ) -> Registered:
        decoded, uploaded = clip_of(content)
        return self._register(
            name, ClipSource(uploaded, decoded), limits, by, {"ref_text": "hello", **fields}
        )

    def register_embedding(
        self, name: str, content: int, *, limits: Limits = ROOMY, by: str = "key", **fields: Any
    ) -> Registered:
        source = EmbeddingSource(embedding_of(content), [ECAPA], self.clock.new_id)
        return self._register(name, source, limits, by, fields)

    def _register(
        self, name: str, source: Any, limits: Limits, by: str, fields: dict[str, Any]
    ) -> Registered:
        upload = NewVersion(name=parse_speaker_name(name), consent="c", **fields)
        return register(
            self.speakers,
            self.blobs,
            self.jobs,
            self.profiles,
            limits=limits,
            namespace=NS,
            upload=upload,
            source=source,
            by=by,
        )

    def delete(self, name: str, **options: Any) -> Any:
        return delete(self.speakers, self.jobs, NS, parse_speaker_name(name), by="key", **options)

    def find(self, name: str) -> Any:
        return find(self.speakers, NS, parse_speaker_name(name))

    def find_version(self, name: str, reference: int | str) -> Any:
        return find_version(self.speakers, self.profiles, NS, parse_speaker_name(name), reference)

    def cancel(self, job_id: str, *, is_operator: bool = False) -> Any:
        rooms = (self.speakers, self.jobs, self.profiles)
        return cancel(*rooms, NS, job_id, by="key", is_operator=is_operator)

    # The worker

    def provenance(self, profile: Profile) -> Provenance:
        fingerprint = self.fingerprints.fingerprint(profile.name)
        return Provenance(
            profile=profile,
            fingerprint=fingerprint,
            extractor={"model": profile.name},
            untrained=False,
            worker="w",
        )

    def start(self, name: str, job_id: str, profile: Profile) -> Attempt | None:
        provenance = self.provenance(profile)
        return start(self.speakers, self.jobs, self.profiles, id_of(name), job_id, provenance=provenance)

    def publish(self, attempt: Attempt, content: float = 1.0) -> bool:
        width = attempt.provenance.profile.tensors["speaker_embedding"].shape[0]
        tensors = {"speaker_embedding": np.full(width, content, np.float32)}
        return publish(self.speakers, self.blobs, self.jobs, self.profiles, attempt, tensors=tensors)

    def work(self, *, content: float = 1.0) -> int:
        """Do every job that waits. Returns how many artifacts came into service."""
        published = 0
        while self.queue.waiting:
            job_id, arguments = next(iter(self.queue.waiting.items()))
            del self.queue.waiting[job_id]
            name = SpeakerId.parse(arguments["speaker"]).slug
            attempt = self.start(name, job_id, self.profiles.get(arguments["profile"]))
            published += bool(attempt and self.publish(attempt, content))
        return published

    # Housekeeping

    def settle(self, name: str) -> float | None:
        return settle(self.speakers, self.jobs, self.profiles, id_of(name))

    def sweep(self, name: str) -> int:
        return sweep(self.speakers, self.blobs, id_of(name))

    def erase(self, name: str, **options: Any) -> float | None:
        return erase(self.speakers, self.blobs, id_of(name), **options)

    def rebuild(self) -> int:
        return rebuild(self.store, self.speakers)

    # Looking

    def document(self, name: str) -> SpeakerDocument:
        """Return the document in the bucket."""
        return SpeakerDocument.parse(self.speakers.documents.read(id_of(name)).body)


def id_of(name: str) -> SpeakerId:
    return SpeakerId.of(NS, parse_speaker_name(name))


class World:
    """One bucket, one Redis that may be replaced, and the processes that use them."""

    def __init__(self) -> None:
        self.clock = OwnTime()
        self.store = MemoryStore(self.clock.now)
        self.server = MemoryServer("run 1", self.clock.now)
        self.queue = MemoryQueue()
        self.fingerprints = Fingerprints()

    def process(self, **options: Any) -> Registry:
        return Registry(self.clock, self.store, lambda: self.server, self.queue, self.fingerprints, **options)

    def lose_redis(self) -> None:
        """Replace the server by an empty one."""
        self.server = MemoryServer(f"{self.server.name}+", self.clock.now)

    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
