"""Plays the worker: takes queued jobs and publishes made-up tensors through the real `Publisher`, when the
test says so. The module knows no encoder and no RQ.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import numpy as np

from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import Jobs
from services.shared.index.refusals import Undecided
from services.shared.registry.parts import RegistryParts
from services.shared.registry.publication import Attempt, Provenance, Publisher
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.names import parse_speaker_name, slug_of
from tests.encoders import make_current

FINGERPRINT = "sha256:" + "1" * 64
_TRIES, _PAUSE_SECONDS = 300, 0.1


class StandIn:
    """One worker for all profiles of a registry. `taken` holds the attempts that it started, in order."""

    def __init__(self, parts: RegistryParts) -> None:
        self._parts = parts
        self._publisher = Publisher.over(parts)
        self._jobs = Jobs(parts.index)
        self.taken: list[Attempt] = []
        self.fingerprint = FINGERPRINT
        self.untrained = False

    def announce(self, fingerprint: str = FINGERPRINT, *, untrained: bool = False) -> None:
        """Announce the fingerprint with which artifacts are made from now on, and promote it."""
        self.fingerprint, self.untrained = fingerprint, untrained
        for profile in self._parts.catalogue.names:
            make_current(
                self._parts.profile_records, profile, fingerprint, {"model": "made up"}, untrained=untrained
            )

    def take_all(self, name: str | None = None, *, namespace: str = "default") -> list[Attempt]:
        """Take the queued jobs of one voice, or of all, without finishing them."""
        slug = slug_of(parse_speaker_name(name).key) if name is not None else None
        found = []
        for job in reversed(self._jobs.page(namespace, state="queued", slug=slug, limit=1000).found):
            attempt = self._publisher.take(
                job.id, SpeakerId(namespace, job.slug), self._provenance(job.profile)
            )
            if attempt is not None:
                self.taken.append(attempt)
                found.append(attempt)
        return found

    def publish(
        self,
        attempt: Attempt,
        tensors: Mapping[str, np.ndarray] | None = None,
        used_seconds: float | None = None,
    ) -> bool:
        """Publish made-up tensors unless others are given. Right after a loss of Redis
        this waits, as workers do.
        """
        given = _tensors(attempt) if tensors is None else tensors
        for _ in range(_TRIES):
            with suppress(Undecided):
                return self._publisher.publish(attempt, given, used_seconds)
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("What was published before the loss of Redis was never told.")

    def finish_all(self, name: str | None = None, *, namespace: str = "default") -> None:
        """Publish an artifact for every queued job."""
        for attempt in self.take_all(name, namespace=namespace):
            self.publish(attempt)

    def fail_all(self, name: str, error: SpeakerRegistryError) -> None:
        for attempt in self.take_all(name):
            self._publisher.fail(attempt, error)

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
            profile=self._parts.catalogue.get(profile),
            fingerprint=self.fingerprint,
            extractor={"model": "made up"},
            untrained=self.untrained,
            worker="stand-in",
        )


def _tensors(attempt: Attempt) -> dict[str, np.ndarray]:
    """Return tensors of the shapes that the profile requires, with different values for every attempt."""
    profile = attempt.provenance.profile
    assert attempt.version.record.clip is not None
    assert profile.frame_rate is not None
    random = np.random.default_rng(abs(hash(attempt.token)))
    frames = max(1, round(attempt.version.record.clip.seconds * profile.frame_rate))
    return {
        "speaker_embedding": random.standard_normal(profile.embedding_width or 1).astype(np.float32),
        "ref_code": random.integers(0, 2048, (frames, 16)).astype(np.int32),
    }
