"""The life of a worker process: it asks which encoders are current, loads and warms its extractors, announces
them, runs jobs, and shuts down cleanly. This module knows no encoder and imports no torch; `__main__` passes
both in.

A profile that cannot be served affects no other profile. The process ends if none can be served.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import starmap
from typing import Any

import numpy as np
import structlog
from pydantic import ValidationError

from services.extractor_worker.jobs.batch_worker import BatchWorker, Handler
from services.extractor_worker.jobs.beat_file import write_beat
from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED
from services.extractor_worker.jobs.standing import Standings
from services.extractor_worker.pipeline.attempts import Attempts
from services.extractor_worker.pipeline.drawing import Draw, Drawing
from services.extractor_worker.pipeline.extraction import Extraction, LoadedProfile
from services.extractor_worker.pipeline.extractor import DeviceLost, Extractor
from services.extractor_worker.pipeline.throughput import Throughput
from services.shared.audio import AudioDecoder, ReferenceAudio
from services.shared.configuration.explanation import explain
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.configuration.telemetry import MetricsSettings, TracesSettings
from services.shared.configuration.uploads import LONGEST_CLIP_SECONDS, UploadLimits
from services.shared.configuration.worker import ExtractorSettings, WorkerSettings
from services.shared.model.encoders import Encoder
from services.shared.model.fingerprint import Fingerprint
from services.shared.queue.dispatch import DRAW, EXTRACT
from services.shared.queue.rq_jobs import (
    PICTURES_QUEUE,
    is_preparation,
    preparation_queue,
    profile_of,
    queue_name,
)
from services.shared.registry.announce import announce
from services.shared.registry.opening import open_queue_connection, open_registry
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.publish import Provenance
from services.shared.telemetry import trace_export
from services.shared.telemetry.logs import LogThrottle
from services.shared.telemetry.metrics import WORKED, WORKER_BEAT, listen, show_jobs
from services.shared.view.generation import watched
from services.shared.view.workers import FailedProof, WorkerReport
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
"""Exit status of a worker that could load no profile, or may announce none."""

_PAUSE_SECONDS = 1.0
_WAITING_LOG_SECONDS = 60.0
"""The shortest time between two log lines of a worker that waits for Redis."""


class WorkerProcess:
    """A worker process with the settings of its environment. `run` does its work.

    Args:
        identify: returns the fingerprint of a profile's extractor without loading it, or None if it is only
            known after loading.
        load: returns the extractor of a profile.
        prove: checks that an extractor computes correctly on its device, and returns the Unix time at which
            that was proven. Raises EncoderUnproven.
        draw: returns the pictures of a clip.

    Raises:
        ValidationError: a setting is invalid.
        ProfileUnknown: a setting names an unknown profile.
        StoreUnfit, Unavailable: the bucket cannot be used.
    """

    def __init__(
        self,
        identify: Callable[[Profile, ExtractorSettings], Fingerprint | None],
        load: Callable[[Profile, ExtractorSettings], Extractor],
        prove: Callable[[Extractor, Profile, ExtractorSettings], float],
        draw: Draw,
    ) -> None:
        self._load_extractor = load
        self._prove = prove
        self._draw = draw
        self._settings = ExtractorSettings()
        self._worker_settings = WorkerSettings()
        self._registry = RegistrySettings()
        self._opened = open_registry(StoreSettings(), self._registry)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._standings = Standings(
            self._opened.profile_records, lambda profile: identify(profile, self._settings)
        )
        self._not_served: dict[str, str] = {}
        """Maps each profile that was not served from the start to the reason."""
        self._failed_proofs: dict[str, FailedProof] = {}
        """The failed proofs by profile name."""
        self._proven_at: dict[str, float] = {}
        self._throughput = Throughput()
        self._waiting_lines = LogThrottle(_WAITING_LOG_SECONDS)

    def run(self) -> int:
        """Work until told to stop. Returns the exit status. Until the worker can take jobs, the signal
        handlers of the caller stay in place.
        """
        listen(MetricsSettings())
        trace_export.start(TracesSettings(), "worker")
        names = self._settings.profiles or self._registry.profiles
        profiles = [self._opened.catalogue.get(name) for name in names]
        for name in self._settings.custom_weights:
            self._opened.catalogue.get(name)  # a mistyped name is refused, not ignored
        show_jobs(names, WORKED)
        with watched(self._opened.generation):
            return self._serve_loadable(profiles)

    def _serve_loadable(self, profiles: Sequence[Profile]) -> int:
        try:
            loaded_profiles = self._announced(self._loaded(self._asked_about(profiles)))
        except DeviceLost as error:
            log.critical("device.lost", reason=str(error))
            return EXIT_UNFINISHED
        if not loaded_profiles:
            log.error("worker.cannot_start", reason="; ".join(self._not_served.values()))
            return EXIT_NOTHING_TO_SERVE
        return self._serve(loaded_profiles)

    def _serve(self, loaded_profiles: Mapping[str, LoadedProfile]) -> int:
        serving = {name: loaded.provenance.fingerprint for name, loaded in loaded_profiles.items()}
        decoder = AudioDecoder(_limits_of_accepted_clips(), spare_processes=0)
        attempts = self._attempts(decoder)
        extraction = Extraction(attempts, loaded_profiles, threads=self._settings.threads)
        drawing = Drawing(
            self._opened.store, self._opened.speakers, self._opened.blobs, decoder.decode, self._draw
        )
        worker = self._worker({EXTRACT: extraction, DRAW: drawing}, serving, attempts.may_take)
        drawing.on_progress = worker.progress
        extraction.on_progress, extraction.stopping = worker.progress, lambda: worker.stopping
        extraction.on_made = self._throughput.count
        log.info(
            "worker.ready",
            worker=self._name,
            profiles=sorted(serving),
            not_served=sorted(self._not_served),
        )
        try:
            worker.work()
        finally:
            extraction.stopping = lambda: True  # even if the worker ends without having been told to
            extraction.close()
            decoder.close()
            self._deregister(serving)
            self._withdraw_failed_proofs()
            trace_export.stop()
        return 0

    def _attempts(self, decoder: AudioDecoder) -> Attempts:
        return Attempts(
            store=self._opened.store,
            speakers=self._opened.speakers,
            blobs=self._opened.blobs,
            jobs=self._opened.jobs,
            profiles=self._opened.profiles,
            decode=decoder.decode,
        )

    def _asked_about(self, profiles: Sequence[Profile]) -> list[Profile]:
        """Ask which encoder of each profile is current, before any is loaded. Returns the profiles that can
        be loaded, those of candidates last.

        Raises `Unavailable` if neither Redis nor the bucket answers, which ends the start.
        """
        for profile in profiles:
            with self._skipped_on_error(profile):
                self._standings.find_out_early(profile)
        return self._standings.in_order([one for one in profiles if one.name not in self._not_served])

    def _loaded(self, profiles: Sequence[Profile]) -> dict[str, LoadedProfile]:
        """Load the profiles that can be loaded."""
        loaded_profiles = {}
        for profile in profiles:
            with self._skipped_on_error(profile):
                loaded_profiles[profile.name] = self._load(profile)
        return loaded_profiles

    def _announced(self, loaded_profiles: Mapping[str, LoadedProfile]) -> dict[str, LoadedProfile]:
        """Announce the profiles that can be announced. All are loaded before, because jobs follow at once."""
        # From now on, the worker may wait for Redis, which an alert reports as it does lost heartbeats.
        WORKER_BEAT.set_to_current_time()
        announced = {}
        for name, loaded in loaded_profiles.items():
            with self._skipped_on_error(loaded.provenance.profile):
                self._announce(loaded.provenance)
                announced[name] = loaded
        return announced

    def _load(self, profile: Profile) -> LoadedProfile:
        """Load a profile's encoders and run them once, so that the first real clip is not slower."""
        started = time.monotonic()
        log.info("worker.loads", profile=profile.name)
        extractor = self._load_extractor(profile, self._settings)
        self._standings.find_out(profile, extractor.fingerprint)  # if it was not known before
        warm_up(extractor)
        self._proven_at[profile.name] = self._prove(extractor, profile, self._settings)
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
            extractor=fingerprint.inputs,
            untrained=fingerprint.untrained,
            worker=self._name,
            computed_on=extractor.computed_on,
        )
        return LoadedProfile(provenance, extractor)

    @contextmanager
    def _skipped_on_error(self, profile: Profile) -> Iterator[None]:
        """Log an error of one profile and continue without that profile. A lost device ends all profiles, and
        so does a registry that cannot be asked.
        """
        try:
            yield
        except (DeviceLost, Unavailable):
            raise
        except (SpeakerRegistryError, ValidationError) as error:
            reason = explain(error) if isinstance(error, ValidationError) else error.message
            self._not_served[profile.name] = reason
            if isinstance(error, EncoderUnproven):
                self._report_failed_proof(profile.name, reason)
            # A profile without an encoder is no fault.
            say = log.info if isinstance(error, CacheUnsupported) else log.error
            say("profile.not_served", profile=profile.name, reason=reason)
        except Exception as error:
            self._not_served[profile.name] = f"{profile.name}: {type(error).__name__}: {error}"
            log.exception("profile.not_served", profile=profile.name, reason=str(error))

    def _report_failed_proof(self, profile: str, reason: str) -> None:
        """Report a failed proof now, because a worker without profiles ends before its first heartbeat."""
        self._failed_proofs[profile] = FailedProof(
            worker=self._name, device=self._settings.device, reason=reason
        )
        try:
            self._opened.workers.report_failed(self._failed_proofs)
        except Unavailable as error:
            log.warning("proof.not_reported", profile=profile, reason=error.message)

    def _announce(self, provenance: Provenance) -> None:
        """Tell the registry which encoder this worker has. Waits while Redis is away, because a restart would
        take longer.
        """
        encoder = Encoder(
            profile=provenance.profile.name,
            fingerprint=provenance.fingerprint,
            extractor=dict(provenance.extractor),
            untrained=provenance.untrained,
        )
        while True:
            try:
                current = announce(self._opened.profile_records, encoder, worker=self._name)
            except Unavailable as error:
                if self._waiting_lines.due(error.message):
                    log.warning("worker.waits", reason=error.message)
                write_beat(self._worker_settings.beat_file)
                time.sleep(_PAUSE_SECONDS)
            else:
                if not current:
                    _warn_of_candidate(provenance)
                return

    def _worker(
        self, handlers: Mapping[str, Handler], encoders: Mapping[str, str], may_take: Callable[[], bool]
    ) -> BatchWorker:
        """Return a worker that draws pictures, and takes the jobs of each profile whose current encoder it
        has.

        When there are no such jobs, it takes those of campaigns that prepare the promotion of one of its
        encoders.

        Args:
            handlers, may_take: as in `BatchWorker`.
            encoders: the fingerprints by profile name.
        """

        def on_beat() -> None:
            self._opened.workers.beat(self._name, encoders, self._report())
            self._opened.workers.report_failed(self._failed_proofs)
            WORKER_BEAT.set_to_current_time()

        turns = ServedProfiles(self._opened.profile_records, encoders)

        def serves(queue: str) -> bool:
            return queue == PICTURES_QUEUE or is_preparation(queue) or turns.has(profile_of(queue))

        return BatchWorker(
            [*map(queue_name, encoders), PICTURES_QUEUE, *starmap(preparation_queue, encoders.items())],
            handlers,
            connection=open_queue_connection(self._registry),
            settings=self._worker_settings,
            name=self._name,
            on_beat=on_beat,
            serves=serves,
            comes_last=is_preparation,
            latest_attempt=self._opened.jobs.latest_attempt,
            may_take=may_take,
        )

    def _report(self) -> WorkerReport:
        return WorkerReport(
            device=self._settings.device,
            proven_at=self._proven_at,
            extracted_last_hour=self._throughput.last_hour(),
        )

    def _deregister(self, serving: Mapping[str, str]) -> None:
        try:
            self._opened.workers.leave(self._name, serving)
        except Unavailable as error:
            log.warning("worker.left_silently", reason=error.message)  # it is forgotten within seconds

    def _withdraw_failed_proofs(self) -> None:
        """Withdraw failed proofs, because a stopped worker says nothing about its device."""
        with suppress(Unavailable):  # they are forgotten within minutes
            self._opened.workers.withdraw_failed(self._failed_proofs)


class ServedProfiles:
    """Tells for which profiles a worker takes jobs: for those whose current encoder it has.

    Args:
        encoders: the fingerprints by profile name.
    """

    def __init__(self, profiles: ProfileRecords, encoders: Mapping[str, str]) -> None:
        self._profiles = profiles
        self._encoders = encoders
        self._has: dict[str, bool] = {}

    def has(self, profile: str) -> bool:
        """Return whether the worker takes jobs of a profile now.

        While it cannot be found out which encoder is current, the last answer holds.
        """
        current = None
        with suppress(Unavailable):
            current = self._profiles.read(profile).current
        if current is not None:
            has = current.fingerprint == self._encoders[profile]
            if has != self._has.get(profile, has):
                log.warning("profile.served" if has else "profile.not_served", profile=profile)
            self._has[profile] = has
        return self._has.get(profile, False)


def _warn_of_candidate(provenance: Provenance) -> None:
    profile = provenance.profile.name
    log.warning(
        "profile.candidate",
        profile=profile,
        fingerprint=provenance.fingerprint,
        reason="The profile is made with another encoder, so this worker takes none of its jobs except "
        "those of campaigns for the worker's own encoder. To make its encoder the current one, send "
        f"POST /v1/profiles/{profile}/promote.",
    )


def _limits_of_accepted_clips() -> UploadLimits:
    """Return limits that accept every clip that the API accepted, whose own limits a worker does not know."""
    return UploadLimits(
        max_bytes=2**28,
        held_bytes=2**29,
        min_seconds=1e-6,
        max_seconds=3600,
        decode_seconds=100,  # below the default of SPEAKER_JOB_SECONDS, so that the job fails with a message
        decode_memory_bytes=2**32,
    )


def warm_up(extractor: Extractor) -> None:
    """Run all three steps of an extractor once for everything that is slow the first time.

    That is the loading of kernels, of which a GPU uses different ones for several clips at once, and the
    allocation of a GPU's memory, which is repeated for each clip longer than all before. A CPU's memory costs
    little, and encoding the longest clip would take it most of the start.
    """
    clip = extractor.example()
    prepared = [extractor.prepare(clip), extractor.prepare(clip)]
    together = prepared if 2 * clip.seconds <= extractor.batch_seconds else []
    for clips in filter(None, (prepared[:1], together)):
        _encode(extractor, clips)
    if extractor.computed_on.device != "cuda":
        return
    with suppress(InvalidAudio, ExtractorOutOfMemory):  # shorter clips are served nevertheless
        _encode(extractor, [extractor.prepare(_lengthened(clip, LONGEST_CLIP_SECONDS))])


def _encode(extractor: Extractor, clips: Sequence[Any]) -> None:
    for encoded in extractor.encode(clips):
        extractor.finish(encoded)


def _lengthened(clip: ReferenceAudio, seconds: float) -> ReferenceAudio:
    """Return the clip repeated until it lasts that long."""
    length = round(seconds * clip.sample_rate)
    return ReferenceAudio(np.resize(clip.samples, length), clip.sample_rate)
