"""Prepares voices for the promotion of an encoder: walks through all voices, a few at a time, and has the
encoder's workers extract missing artifacts.

At most `WINDOW` voices are under way, so that few jobs must be withdrawn when a campaign is canceled, and
queues in Redis stay short.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import cached_property

import structlog

from services.registry_api.campaigns.campaign import (
    NO_WORKER,
    NOT_COUNTED,
    Distance,
    Examined,
    FailedVoice,
    Progress,
    allowed,
    compared,
    examine,
    jobs_to_forgive,
    paced,
    versions_of,
)
from services.registry_api.maintenance.each_speaker import safely
from services.shared.bucket.store import ObjectStore
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.profile_document import CampaignRecord
from services.shared.model.records import Version
from services.shared.model.speaker import SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.pages import speaker_page
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from services.shared.view.generation import redis_milliseconds
from services.shared.view.workers import Workers
from speaker_registry.artifact import read_tensors
from speaker_registry.errors import SpeakerRegistryError, Unavailable, VoiceUnreadable
from speaker_registry.names import is_namespace, key_of_name

log = structlog.get_logger()

WINDOW = 64
"""Largest number of voices that may be under way at once."""
_MAX_SCANNED = 512
"""Largest number of voices that the walk reaches in one turn."""


class Preparation:
    """Continues one campaign for one turn.

    Args:
        renew: called between steps to renew a lock.
    """

    def __init__(
        self,
        campaign: CampaignRecord,
        renew: Callable[[], object] = lambda: None,
        *,
        store: ObjectStore,
        speakers: Speakers,
        blobs: StoredBytes,
        jobs: Jobs,
        profiles: Profiles,
        workers: Workers,
    ) -> None:
        self._campaign = campaign
        self._renew = renew
        self._store = store
        self._speakers = speakers
        self._blobs = blobs
        self._jobs = jobs
        self._profiles = profiles
        self._workers = workers
        self._profile = profiles.get(campaign.profile)

    def turn(self, progress: Progress) -> Progress:
        """Count the voices that have ended, start as many as allowed, and return the progress."""
        progress = self._settled(progress)
        if self._campaign.state == "paused":
            return progress.model_copy(update={"waits": None, "per_second": None})
        if not self._workers.have(self._profile.name, self._campaign.fingerprint):
            return progress.model_copy(update={"waits": NO_WORKER, "per_second": None})
        if progress.walk == 0 and not self._speakers.view.is_complete():
            # If the voices that the view holds were taken for all, the campaign would seem nearly done.
            return progress.model_copy(update={"waits": NOT_COUNTED})
        progress = progress.model_copy(update={"waits": None})
        if progress.walk == 0 or (progress.walked and not progress.under_way and not progress.finished):
            progress = self._next_walk(progress)
        now = redis_milliseconds(self._speakers.generation) / 1000
        return self._walked(progress, now).with_all_counted().measured_now(now)

    def withdraw(self, progress: Progress) -> None:
        """Withdraw the jobs that have not ended. If a worker still completes one, its artifact is kept."""
        own = (self._profile.name, self._campaign.fingerprint)
        for speaker in filter(None, map(self._read, progress.under_way)):
            for job in speaker.open_jobs:
                if (job.profile, job.fingerprint) == own:
                    self._jobs.remove(job)
                    self._jobs.end(speaker.id, job, "superseded")

    def _next_walk(self, progress: Progress) -> Progress:
        voices = progress.voices
        if progress.walk == 0:
            voices = sum(self._speakers.usage_so_far(one).voices for one in self._namespaces)
        first = {"namespace": "", "after": "", "walked": False, "begun": 0}
        return progress.model_copy(update={"walk": progress.walk + 1, "voices": voices, **first})

    @cached_property
    def _namespaces(self) -> list[str]:
        """The namespaces in order. They are read once per turn, so new ones are found in later turns."""
        return sorted(filter(is_namespace, map(str, self._store.folders(""))))

    def _settled(self, progress: Progress) -> Progress:
        """Count the voices whose extraction has ended, and restart lost extractions.

        A voice whose document cannot be understood counts as failed. If it were left out and its extraction
        failed later, no walk would count that, and the encoder would be promoted automatically.
        """
        left = {}
        for name, vuids in progress.under_way.items():
            speaker = self._read(name)
            if speaker is None:
                progress = self._failed(progress, _unreadable(SpeakerId.parse(name)))
                continue
            versions = filter(None, map(speaker.document.version, vuids))
            forgiven = progress.forgiven.get(name, ())
            examined = self._begun(speaker, self._examined(speaker, versions, forgiven))
            if examined.state == "open":
                left[name] = vuids
            else:
                progress = self._counted(progress, speaker, examined)
        forgiven_left = {name: jobs for name, jobs in progress.forgiven.items() if name in left}
        return progress.model_copy(update={"under_way": left, "forgiven": forgiven_left})

    def _walked(self, progress: Progress, now: float) -> Progress:
        """Continue the walk until enough voices are under way, the rate is reached, or the turn is long
        enough.
        """
        # Redis' clock was ahead if it is earlier now than `paced_until`, for example before a failover.
        progress = progress.model_copy(update={"paced_until": min(progress.paced_until, now)})
        scanned, before = 0, progress.begun
        while not progress.walked and scanned < _MAX_SCANNED:
            room = WINDOW - len(progress.under_way)
            room = allowed(self._campaign.rate, progress.paced_until, now, room)
            if room <= 0:
                break
            begun = progress.begun
            progress, seen = self._step(progress, room)
            scanned += seen
            until = paced(self._campaign.rate, progress.paced_until, now, progress.begun - begun)
            progress = progress.model_copy(update={"paced_until": until})
            self._renew()
        if progress.begun > before:
            log.info("campaign.continued", campaign=self._campaign.id, begun=progress.begun - before)
        return progress

    def _step(self, progress: Progress, most: int) -> tuple[Progress, int]:
        """Process the next voices of a namespace, up to a limit. Returns the number of voices, but at least
        1.
        """
        namespace = progress.namespace
        if not namespace:
            return self._in_next_namespace(progress), 1
        found = speaker_page(self._speakers, self._store, namespace, after=progress.after, limit=most)
        for speaker in found.speakers:
            progress = self._reached(progress, speaker)
        progress = progress.model_copy(update={"after": found.last})
        if not found.more:
            progress = self._in_next_namespace(progress)
        return progress, max(1, len(found.entries))

    def _in_next_namespace(self, progress: Progress) -> Progress:
        following = bisect_right(self._namespaces, progress.namespace)
        if following == len(self._namespaces):
            return progress.model_copy(update={"walked": True, "after": ""})
        return progress.model_copy(update={"namespace": self._namespaces[following], "after": ""})

    def _reached(self, progress: Progress, speaker: FoundSpeaker) -> Progress:
        if str(speaker.id) in progress.under_way:
            return progress
        versions = versions_of(speaker.document)
        forgiven: tuple[str, ...] = ()
        if progress.walk == 1:  # earlier failures that may succeed are retried once
            forgiven = jobs_to_forgive(versions, self._profile.name, self._campaign.fingerprint)
        examined = self._begun(speaker, self._examined(speaker, versions, forgiven))
        if examined.state == "open":
            name = str(speaker.id)
            vuids = tuple(version.vuid for version in versions)
            under_way = {**progress.under_way, name: vuids}
            # A later walk begins voices that were registered, or got a version, since the previous one.
            again = progress.walk > 1 and self._has_artifact(speaker)
            return progress.model_copy(
                update={
                    "under_way": under_way,
                    "forgiven": {**progress.forgiven, **({name: forgiven} if forgiven else {})},
                    "begun": progress.begun + 1,
                    "voices": progress.voices + (progress.walk > 1 and not again),
                    "ready": max(0, progress.ready - again),  # it is counted anew when it has ended
                }
            )
        could_not_begin = examined.state == "failed" and examined.missing
        if progress.walk > 1 and not could_not_begin:  # it was counted in an earlier walk
            return progress
        return self._counted(progress, speaker, examined)

    def _has_artifact(self, speaker: FoundSpeaker) -> bool:
        """Return whether a version of the voice has an artifact of the encoder. A voice that an earlier walk
        counted as ready has one.
        """
        own = (self._profile.name, self._campaign.fingerprint)
        return any(version.artifact(*own) for version in speaker.document.versions)

    def _begun(self, speaker: FoundSpeaker, examined: Examined) -> Examined:
        """Start the extraction of a voice's missing artifacts. If that is impossible, the voice counts as
        failed.
        """
        if not examined.missing:
            return examined

        def open_jobs(speaker_id: SpeakerId) -> bool:
            for version in examined.missing:
                profile, fingerprint = self._profile.name, self._campaign.fingerprint
                self._jobs.open(speaker_id, version, profile, fingerprint, ahead=True)
            return True

        if safely(open_jobs, speaker.id, otherwise=False):
            return examined
        return replace(examined, state="failed")

    def _examined(
        self, speaker: FoundSpeaker, versions: Iterable[Version], forgiven: Collection[str]
    ) -> Examined:
        return examine(
            speaker,
            versions,
            self._profile,
            self._campaign.fingerprint,
            lambda version: self._profile.name in self._profiles.wanted(version),
            forgiven,
        )

    def _counted(self, progress: Progress, speaker: FoundSpeaker, examined: Examined) -> Progress:
        """Count a finished voice, and compare its artifacts if the sample is not complete."""
        if examined.state == "failed":
            return self._failed(progress, _failed_voice(speaker, examined))
        counted = progress.with_voice("ready" if examined.state == "ready" else "skipped")
        if examined.state == "skipped" or progress.compared >= self._campaign.sample:
            return counted
        return self._compared(counted, speaker)

    def _failed(self, progress: Progress, voice: FailedVoice) -> Progress:
        """Count a failed voice. The log names every failed voice, the campaign only the first ones."""
        log.warning(
            "campaign.voice_failed",
            campaign=self._campaign.id,
            profile=self._profile.name,
            **voice.model_dump(),
        )
        return progress.with_failed(voice)

    def _compared(self, progress: Progress, speaker: FoundSpeaker) -> Progress:
        """Compare the artifacts of a voice's default version. A voice that lacks one of the two, or whose
        artifacts cannot be read, is left out.
        """
        version, profile = speaker.document.default, self._profile.name
        old = version.artifact(profile, self._profiles.fingerprint(profile))
        new = version.artifact(profile, self._campaign.fingerprint)
        if old is None or new is None or old == new:
            return progress
        try:
            before, after = (
                read_tensors(self._blobs.artifact(speaker.id, version, record))[0] for record in (old, new)
            )
        except SpeakerRegistryError as error:
            if isinstance(error, Unavailable) and not isinstance(error, VoiceUnreadable):
                raise  # it concerns all voices
            log.warning("campaign.not_compared", speaker=str(speaker.id), reason=str(error))
            return progress
        self._renew()
        distances = dict(progress.distances)
        for name, measure, value in compared(before, after):
            distances[name] = distances.get(name, Distance(measure=measure)).with_voice(value)
        return progress.model_copy(update={"compared": progress.compared + 1, "distances": distances})

    def _read(self, speaker: str) -> FoundSpeaker | None:
        """Read a speaker that is under way. Returns None if its document cannot be understood."""
        return safely(self._speakers.read, SpeakerId.parse(speaker), otherwise=None)


def _failed_voice(speaker: FoundSpeaker, examined: Examined) -> FailedVoice:
    code, message = "internal_error", "No job could be opened for the voice."
    version = speaker.document.default
    if examined.failure is not None:
        version, why = examined.failure
        code, message = why.code, why.message
    return FailedVoice(
        namespace=speaker.id.namespace,
        voice=key_of_name(version.name),
        version=version.number,
        code=code,
        message=message,
    )


def _unreadable(speaker_id: SpeakerId) -> FailedVoice:
    """Return a failed voice whose name is unknown, because its document cannot be read."""
    return FailedVoice(
        namespace=speaker_id.namespace,
        voice=speaker_id.slug,
        code=VoiceUnreadable.code,
        message="The voice could not be read.",
    )
