"""One worker process, whatever its extractors are: loads and warms them, says so, takes jobs, leaves in good
order. Knows no encoder and imports no torch: `__main__` brings both.

A profile that cannot be served, or not any more, takes no other with it: the process ends when none is left.
"""

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import structlog
from pydantic import ValidationError

from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.extractor_worker.jobs.beat_file import write_beat
from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED
from services.extractor_worker.pipeline.extraction import Extraction, LoadedProfile
from services.extractor_worker.pipeline.extractor import DeviceLost, Extractor
from services.shared.audio import AudioDecoder, ReferenceAudio
from services.shared.configuration.explanation import explain
from services.shared.configuration.settings import (
    LONGEST_CLIP_SECONDS,
    ExtractorSettings,
    MetricsSettings,
    RegistrySettings,
    StoreSettings,
    TracesSettings,
    UploadLimits,
    WorkerSettings,
)
from services.shared.index.announcements import FailedProof
from services.shared.queue.dispatch import EXTRACT
from services.shared.queue.rq_jobs import queue_name
from services.shared.registry.opening import open_parts, open_queue_connection
from services.shared.registry.publication import Provenance, Publisher
from services.shared.registry.registrar import Registrar
from services.shared.telemetry import trace_export
from services.shared.telemetry.metrics import WORKER_BEAT, listen
from speaker_registry.engine import Profile
from speaker_registry.errors import (
    CacheUnsupported,
    EncoderUnproven,
    ExtractorOutOfMemory,
    InvalidAudio,
    SpeakerRegistryError,
    Unavailable,
)

log = structlog.get_logger()

EXIT_NOTHING_TO_SERVE = 1
"""No profile could be loaded, or none may be announced."""

EXIT_OUTDATED = 3
"""Of every profile another worker announced a newer fingerprint: what we make would not be served."""

_PAUSE_SECONDS = 1.0


class WorkerProcess:
    """Reads the settings of the environment at once; `run` does the rest.

    Args:
        load: what gives a profile's extractor.
        prove: checks that an extractor computes the right thing on its device. Raises EncoderUnproven.

    Raises:
        ValidationError: of the settings. ProfileUnknown, StoreUnfit, Unavailable: of profiles and bucket.
    """

    def __init__(
        self,
        load: Callable[[Profile, ExtractorSettings], Extractor],
        prove: Callable[[Extractor, Profile, ExtractorSettings], None],
    ) -> None:
        self._load_extractor = load
        self._prove = prove
        self._settings = ExtractorSettings()
        self._worker_settings = WorkerSettings()
        self._registry = RegistrySettings()
        self._parts = open_parts(StoreSettings(), self._registry)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._not_served: dict[str, str] = {}
        """Profile name -> why not, from the start."""
        self._failed_proofs: dict[str, FailedProof] = {}
        """By profile name."""

    def run(self) -> int:
        """Work until told to stop. Returns the exit status.

        A signal that comes before the first job can be taken ends the process as it is: there is nothing to
        finish, and loading may take minutes.
        """
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        listen(MetricsSettings())
        trace_export.start(TracesSettings(), "worker")
        names = self._settings.profiles or self._registry.profiles
        profiles = [self._parts.catalogue.get(name) for name in names]
        for name in self._settings.custom_weights:
            self._parts.catalogue.get(name)  # a mistyped name is refused, not ignored
        try:
            loaded_profiles = self._announced(self._loaded(profiles))
        except DeviceLost as error:
            log.critical("device.lost", reason=str(error))
            return EXIT_UNFINISHED
        if not loaded_profiles:
            log.error("worker.cannot_start", reason="; ".join(self._not_served.values()))
            return EXIT_NOTHING_TO_SERVE
        return self._serve(loaded_profiles)

    def _serve(self, loaded_profiles: Mapping[str, LoadedProfile]) -> int:
        serving = {name: loaded.provenance.fingerprint for name, loaded in loaded_profiles.items()}
        decoder = AudioDecoder(_limits_of_accepted_clips())
        publisher = Publisher(self._parts, Registrar(self._parts), decoder.decode)
        extraction = Extraction(publisher, loaded_profiles, threads=self._settings.threads)
        worker = self._worker(extraction, serving)
        extraction.on_progress, extraction.stopping = worker.progress, lambda: worker.stopping
        log.info(
            "worker.ready",
            worker=self._name,
            profiles=sorted(serving),
            not_served=sorted(self._not_served),
        )
        try:
            worker.work()
        finally:
            extraction.stopping = lambda: True  # also when it ends without having been told to
            extraction.close()
            decoder.close()
            self._leave(serving)
            self._withdraw_failed_proofs()
            trace_export.stop()
        return 0 if serving else EXIT_OUTDATED

    def _loaded(self, profiles: Sequence[Profile]) -> dict[str, LoadedProfile]:
        """Those that can be."""
        loaded_profiles = {}
        for profile in profiles:
            with self._without_if_it_fails(profile):
                loaded_profiles[profile.name] = self._load(profile)
        return loaded_profiles

    def _announced(self, loaded_profiles: Mapping[str, LoadedProfile]) -> dict[str, LoadedProfile]:
        """Those that may be. All are loaded by then: what is announced is asked for."""
        announced = {}
        for name, loaded in loaded_profiles.items():
            with self._without_if_it_fails(loaded.provenance.profile):
                self._announce(name, loaded.provenance)
                announced[name] = loaded
        return announced

    def _load(self, profile: Profile) -> LoadedProfile:
        """Load a profile's encoders and run them once: the first real clip is to be as fast as the tenth."""
        started = time.monotonic()
        log.info("worker.loads", profile=profile.name)
        extractor = self._load_extractor(profile, self._settings)
        warm_up(extractor)
        self._prove(extractor, profile, self._settings)
        fingerprint = extractor.fingerprint
        log.info(
            "extractor.warm",
            profile=profile.name,
            fingerprint=fingerprint.digest,
            untrained=fingerprint.untrained,
            custom_weights=fingerprint.custom_weights,
            computed_on=str(extractor.computed_on),
            seconds=round(time.monotonic() - started, 2),
        )
        provenance = Provenance(
            profile=profile,
            fingerprint=fingerprint.digest,
            extractor=fingerprint.facts,
            untrained=fingerprint.untrained,
            worker=self._name,
            computed_on=extractor.computed_on,
        )
        return LoadedProfile(provenance, extractor)

    @contextmanager
    def _without_if_it_fails(self, profile: Profile) -> Iterator[None]:
        """What is wrong with one profile stops no other. A lost device is all profiles' end."""
        try:
            yield
        except DeviceLost:
            raise
        except (SpeakerRegistryError, ValidationError) as error:
            reason = explain(error) if isinstance(error, ValidationError) else error.message
            self._not_served[profile.name] = reason
            if isinstance(error, EncoderUnproven):
                self._tell_failed_proof(profile.name, reason)
            # A profile that has no encoder says so itself: all is well.
            say = log.info if isinstance(error, CacheUnsupported) else log.error
            say("profile.not_served", profile=profile.name, reason=reason)
        except Exception as error:
            self._not_served[profile.name] = f"{profile.name}: {type(error).__name__}: {error}"
            log.exception("profile.not_served", profile=profile.name, reason=str(error))

    def _tell_failed_proof(self, profile: str, reason: str) -> None:
        """Told at once, because a worker without any profile ends before its first beat."""
        self._failed_proofs[profile] = FailedProof(
            worker=self._name, device=self._settings.device, reason=reason
        )
        try:
            self._parts.announcements.tell_failed_proofs(self._failed_proofs)
        except Unavailable as error:
            log.warning("proof.not_told", profile=profile, reason=error.message)

    def _announce(self, name: str, provenance: Provenance) -> None:
        """Make what we make current. While Redis is away: wait, for loading again would take longer."""
        while True:
            try:
                changed = self._parts.announcements.announce(
                    name,
                    provenance.fingerprint,
                    provenance.extractor,
                    untrained=provenance.untrained,
                    roll_back=self._settings.roll_back,
                )
            except Unavailable as error:
                log.warning("worker.waits", reason=error.message)
                write_beat(self._worker_settings.beat_file)
                time.sleep(_PAUSE_SECONDS)
            else:
                if changed:
                    log.info("profile.updated", profile=name, fingerprint=provenance.fingerprint)
                return

    def _worker(self, extraction: Extraction, serving: dict[str, str]) -> BatchWorker:
        def on_beat() -> None:
            self._parts.announcements.beat(self._name, serving)
            self._parts.announcements.tell_failed_proofs(self._failed_proofs)
            WORKER_BEAT.set_to_current_time()
            self._leave_what_is_outdated(worker, serving)

        worker = BatchWorker(
            [queue_name(name) for name in serving],
            {EXTRACT: extraction},
            connection=open_queue_connection(self._registry),
            settings=self._worker_settings,
            name=self._name,
            on_beat=on_beat,
        )
        return worker

    def _leave_what_is_outdated(self, worker: BatchWorker, serving: dict[str, str]) -> None:
        """On the heartbeat's thread, which alone changes `serving` (name -> fingerprint)."""
        for name, fingerprint in list(serving.items()):
            current = self._parts.announcements.current(name)
            if current is not None and current.fingerprint != fingerprint:
                log.error("profile.not_served", profile=name, reason=f"moved on to {current.fingerprint}")
                worker.leave_queue(queue_name(name))
                self._leave({name: fingerprint})
                del serving[name]
        if not serving and not worker.stopping:
            os.kill(os.getpid(), signal.SIGTERM)

    def _leave(self, serving: Mapping[str, str]) -> None:
        try:
            self._parts.announcements.leave(self._name, serving)
        except Unavailable as error:
            log.warning("worker.left_silently", reason=error.message)  # it is forgotten within seconds

    def _withdraw_failed_proofs(self) -> None:
        """A worker that was told to stop says no more about its device."""
        with suppress(Unavailable):  # they are forgotten within minutes
            self._parts.announcements.withdraw_failed_proofs(self._failed_proofs)


def _limits_of_accepted_clips() -> UploadLimits:
    """The API has accepted these clips already, by limits that a worker does not know."""
    return UploadLimits(
        max_bytes=2**28, held_bytes=2**29, min_seconds=1e-6, max_seconds=3600, spare_decoders=0
    )


def warm_up(extractor: Extractor) -> None:
    """All three steps, with what makes a first time slow: kernels, other ones where clips are encoded
    together on a GPU; and memory, which is fetched anew for every clip longer than all before.
    """
    clip = extractor.example()
    prepared = [extractor.prepare(clip), extractor.prepare(clip)]
    together = prepared if 2 * clip.seconds <= extractor.batch_seconds else []
    for clips in filter(None, (prepared[:1], together)):
        _encode(extractor, clips)
    with suppress(InvalidAudio, ExtractorOutOfMemory):  # so would such a clip be; others need not
        _encode(extractor, [extractor.prepare(_lengthened(clip, LONGEST_CLIP_SECONDS))])


def _encode(extractor: Extractor, clips: Sequence[Any]) -> None:
    for encoded in extractor.encode(clips):
        extractor.finish(encoded)


def _lengthened(clip: ReferenceAudio, seconds: float) -> ReferenceAudio:
    """By saying the same again."""
    length = round(seconds * clip.sample_rate)
    return ReferenceAudio(np.resize(clip.samples, length), clip.sample_rate)
