"""Plays the worker: takes queued jobs and publishes made-up tensors by the real verbs, when the test says so.
The module knows no encoder and no RQ.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from services.shared.model.speaker import SpeakerId
from services.shared.registry.fail import fail
from services.shared.registry.opened import Opened
from services.shared.registry.publish import Attempt, Provenance, publish, start
from services.shared.view.job_records import JobRecord
from services.shared.view.keys import jobs_key
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.names import parse_speaker_name, slug_of
from tests.encoders import make_current

FINGERPRINT = "sha256:" + "1" * 64


class StandIn:
    """One worker for all profiles of a registry. `taken` holds the attempts that it started, in order."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self.taken: list[Attempt] = []
        self.fingerprint = FINGERPRINT
        self.untrained = False

    def announce(self, fingerprint: str = FINGERPRINT, *, untrained: bool = False) -> None:
        """Announce the fingerprint with which artifacts are made from now on, and promote it. This returns
        when no process answers from memory as if another one were current.
        """
        self.fingerprint, self.untrained = fingerprint, untrained
        for profile in self._opened.catalogue.names:
            make_current(
                self._opened.profile_records,
                profile,
                fingerprint,
                {"model": "made up"},
                untrained=untrained,
            )
        self._opened.speakers.leases.settle()

    def queued(self, name: str | None = None, *, namespace: str = "default") -> list[JobRecord]:
        """Return the queued jobs of one voice, or of all, oldest first."""
        slug = slug_of(parse_speaker_name(name).key) if name is not None else None
        [ids] = self._opened.generation.read(
            lambda pipeline, generation: pipeline.zrange(jobs_key(generation, namespace), 0, -1)
        )
        found = [self._opened.jobs.record(namespace, job_id) for job_id in ids]
        return [job for job in found if job.state == "queued" and slug in {None, job.slug}]

    def take_all(self, name: str | None = None, *, namespace: str = "default") -> list[Attempt]:
        """Take the queued jobs of one voice, or of all, without finishing them."""
        queued = self.queued(name, namespace=namespace)
        found = [self.take(SpeakerId(namespace, job.slug), job.id, job.profile) for job in queued]
        return [attempt for attempt in found if attempt is not None]

    def take(self, speaker_id: SpeakerId, job_id: str, profile: str) -> Attempt | None:
        """Begin an attempt at a job, as a worker does that the queue delivers it to."""
        provenance = self._provenance(profile)
        attempt = start(
            self._opened.speakers,
            self._opened.jobs,
            self._opened.profiles,
            speaker_id,
            job_id,
            provenance=provenance,
        )
        if attempt is not None:
            self.taken.append(attempt)
        return attempt

    def publish(
        self,
        attempt: Attempt,
        tensors: Mapping[str, np.ndarray] | None = None,
        used_seconds: float | None = None,
    ) -> bool:
        """Publish made-up tensors unless others are given."""
        return publish(
            self._opened.speakers,
            self._opened.blobs,
            self._opened.jobs,
            self._opened.profiles,
            attempt,
            tensors=_tensors(attempt) if tensors is None else tensors,
            used_seconds=used_seconds,
        )

    def finish_all(self, name: str | None = None, *, namespace: str = "default") -> None:
        """Publish an artifact for every queued job."""
        for attempt in self.take_all(name, namespace=namespace):
            self.publish(attempt)

    def fail_all(self, name: str, error: SpeakerRegistryError, *, namespace: str = "default") -> None:
        for attempt in self.take_all(name, namespace=namespace):
            fail(self._opened.speakers, self._opened.jobs, self._opened.profiles, attempt, error)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Finish every queued job at once while the context lasts."""
        stop = threading.Event()
        thread = threading.Thread(target=self._work_until, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _work_until(self, stop: threading.Event) -> None:
        while not stop.wait(0.01):
            self.finish_all()

    def _provenance(self, profile: str) -> Provenance:
        return Provenance(
            profile=self._opened.catalogue.get(profile),
            fingerprint=self.fingerprint,
            extractor={"model": "made up"},
            untrained=self.untrained,
            worker="stand-in",
        )


def _tensors(attempt: Attempt) -> dict[str, np.ndarray]:
    """Return tensors of the shapes that the profile requires, with different values for every attempt."""
    profile = attempt.provenance.profile
    assert attempt.version.clip is not None
    assert profile.frame_rate is not None
    random = np.random.default_rng(abs(hash((attempt.job_id, attempt.number))))
    frames = max(1, round(attempt.version.clip.seconds * profile.frame_rate))
    return {
        "speaker_embedding": random.standard_normal(profile.embedding_width or 1).astype(np.float32),
        "ref_code": random.integers(0, 2048, (frames, 16)).astype(np.int32),
    }
