"""Prepares voices for the promotion of an encoder: walks through all of them, a few at a time, and has the
workers of the encoder extract what is missing.

At most `WINDOW` voices are under way, so that little is to be taken back when a campaign is canceled, and so
that no queue grows in Redis.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property

import structlog

from services.registry_api.campaigns.campaign import (
    Distance,
    Examined,
    Progress,
    allowed,
    compared,
    examine,
    paced,
)
from services.registry_api.maintenance.each_speaker import safely
from services.registry_api.operations import Operations
from services.shared.bucket.blobs import Unsound, read_artifact
from services.shared.bucket.keys import SpeakerId
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import VersionSelection
from services.shared.model.profile_document import CampaignRecord
from services.shared.queue.rq_jobs import preparation_queue
from services.shared.registry.parts import RegistryParts
from speaker_registry.artifact import read_tensors
from speaker_registry.errors import SpeakerRegistryError, Unavailable
from speaker_registry.names import is_namespace, slug_of

log = structlog.get_logger()

WINDOW = 64
"""The number of voices that may be under way at once."""
_LOOKED_AT = 512
"""One turn reaches at most this many voices."""
NO_WORKER = "no live worker has the encoder"


class Preparation:
    """Goes on with one campaign. It is built for each turn.

    Args:
        renew: is called between steps, to keep a lock.
    """

    def __init__(
        self,
        parts: RegistryParts,
        operations: Operations,
        campaign: CampaignRecord,
        renew: Callable[[], object] = lambda: None,
    ) -> None:
        self._parts = parts
        self._index = parts.index
        self._statuses = operations.statuses
        self._extractions = operations.extractions
        self._campaign = campaign
        self._profile = parts.catalogue.get(campaign.profile)
        self._renew = renew

    def turn(self, progress: Progress) -> Progress:
        """Count what has ended, begin what may be begun, and return the progress."""
        now = self._parts.clock.now()
        progress = self._settled(progress)
        if self._campaign.state == "paused":
            return progress.model_copy(update={"waits": None, "per_second": None})
        if not self._parts.workers.have(self._profile.name, self._campaign.fingerprint):
            return progress.model_copy(update={"waits": NO_WORKER, "per_second": None})
        progress = progress.model_copy(update={"waits": None})
        if progress.walk == 0 or (progress.walked and not progress.under_way and not progress.finished):
            progress = self._next_walk(progress)
        return self._walked(progress, now).measured_now(now)

    def withdraw(self, progress: Progress) -> None:
        """Take the jobs back that no worker has begun. Nothing of those that a worker has counts any more."""
        queue = preparation_queue(self._profile.name, self._campaign.fingerprint)
        for speaker_id, indexed in self._look([SpeakerId.parse(one) for one in progress.under_way]):
            for pending in indexed.pending_extractions:
                if (pending.profile, pending.fingerprint) == (self._profile.name, self._campaign.fingerprint):
                    self._parts.dispatcher.remove(pending.job_id, queue)
                    self._index.set_job(speaker_id, pending.job_id, "superseded", landing=pending)

    def _next_walk(self, progress: Progress) -> Progress:
        voices = progress.voices
        if progress.walk == 0:
            voices = sum(self._index.usage(namespace)[0] for namespace in self._namespaces)
        first = {"namespace": "", "after": "", "walked": False, "begun": 0}
        return progress.model_copy(update={"walk": progress.walk + 1, "voices": voices, **first})

    @cached_property
    def _namespaces(self) -> list[str]:
        """The sorted namespaces, as they are when a turn first needs them. Later turns find newer ones."""
        return sorted(filter(is_namespace, map(str, self._parts.store.folders(""))))

    def _settled(self, progress: Progress) -> Progress:
        """Count the voices whose extraction has ended, and start lost ones again."""
        left, speaker_ids = [], [SpeakerId.parse(one) for one in progress.under_way]
        for speaker_id, indexed in self._look(speaker_ids):
            examined = self._begun(speaker_id, self._examined(indexed))
            if examined.state == "open":
                left.append(str(speaker_id))
            else:
                progress = self._counted(progress, speaker_id, indexed, examined)
        return progress.model_copy(update={"under_way": tuple(left)})

    def _walked(self, progress: Progress, now: float) -> Progress:
        """Go on with the walk until enough is under way, the rate is reached, or the turn is long enough."""
        looked, before = 0, progress.begun
        while not progress.walked and looked < _LOOKED_AT:
            room = WINDOW - len(progress.under_way)
            room = allowed(self._campaign.rate, progress.paced_until, now, room)
            if room <= 0:
                break
            begun = progress.begun
            progress, seen = self._step(progress, room)
            looked += seen
            until = paced(self._campaign.rate, progress.paced_until, now, progress.begun - begun)
            progress = progress.model_copy(update={"paced_until": until})
            self._renew()
        if progress.begun > before:
            log.info("campaign.goes_on", campaign=self._campaign.id, begun=progress.begun - before)
        return progress

    def _step(self, progress: Progress, most: int) -> tuple[Progress, int]:
        """Reach the next voices of a namespace, at most so many. Returns how many there were, at least 1."""
        namespace = progress.namespace
        keys = self._index.names(namespace, after=progress.after, limit=most) if namespace else []
        if not keys:
            following = bisect_right(self._namespaces, namespace)
            ended = following == len(self._namespaces)
            update = {"walked": True} if ended else {"namespace": self._namespaces[following], "after": ""}
            return progress.model_copy(update=update), 1
        for speaker_id, indexed in self._look([SpeakerId(namespace, slug_of(key)) for key in keys]):
            progress = self._reached(progress, speaker_id, indexed)
        return progress.model_copy(update={"after": keys[-1]}), len(keys)

    def _reached(self, progress: Progress, speaker_id: SpeakerId, indexed: IndexedSpeaker) -> Progress:
        if str(speaker_id) in progress.under_way:
            return progress
        examined = self._begun(speaker_id, self._examined(indexed))
        if examined.state == "open":
            under_way = (*progress.under_way, str(speaker_id))
            new = progress.walk > 1  # it was registered, or got another version, since the walk before
            return progress.model_copy(
                update={
                    "under_way": under_way,
                    "begun": progress.begun + 1,
                    "voices": progress.voices + new,
                }
            )
        if progress.walk > 1:  # it was counted in an earlier walk
            return progress
        return self._counted(progress, speaker_id, indexed, examined)

    def _begun(self, speaker_id: SpeakerId, examined: Examined) -> Examined:
        """Have the missing artifacts of a voice extracted. A voice that cannot be is a failed one."""
        if not examined.missing:
            return examined

        def claim(one: SpeakerId) -> bool:
            for version in examined.missing:
                self._extractions.claim(one, version, self._profile, ahead=self._campaign.fingerprint)
            return True

        return examined if safely(claim, speaker_id, otherwise=False) else Examined("failed")

    def _examined(self, indexed: IndexedSpeaker) -> Examined:
        return examine(
            indexed,
            self._profile,
            self._campaign.fingerprint,
            lambda version: self._profile.name in self._statuses.wanted(version),
        )

    def _counted(
        self, progress: Progress, speaker_id: SpeakerId, indexed: IndexedSpeaker, examined: Examined
    ) -> Progress:
        state = examined.state
        counted = progress.model_copy(update={state: getattr(progress, state) + 1})
        counted = counted.model_copy(update={"voices": max(counted.voices, counted.done)})
        if state != "ready" or progress.compared >= self._campaign.sample:
            return counted
        return self._compared(counted, speaker_id, indexed)

    def _compared(self, progress: Progress, speaker_id: SpeakerId, indexed: IndexedSpeaker) -> Progress:
        """Compare the artifacts of a voice's default version. A voice that has not both is left out."""
        version, profile = indexed.speaker.default, self._profile.name
        old = version.artifact(profile, self._parts.profile_records.fingerprint(profile))
        new = version.artifact(profile, self._campaign.fingerprint)
        if old is None or new is None or old == new:
            return progress
        try:
            before, after = (
                read_tensors(read_artifact(self._parts.store, speaker_id, version, record))[0]
                for record in (old, new)
            )
        except Unavailable:
            raise
        except (Unsound, SpeakerRegistryError) as error:
            log.warning("campaign.not_compared", speaker=str(speaker_id), reason=str(error))
            return progress
        self._renew()
        distances = dict(progress.distances)
        for name, measure, value in compared(before, after):
            distances[name] = distances.get(name, Distance(measure=measure)).with_voice(value)
        return progress.model_copy(update={"compared": progress.compared + 1, "distances": distances})

    def _look(self, speaker_ids: Sequence[SpeakerId]) -> list[tuple[SpeakerId, IndexedSpeaker]]:
        found = self._index.look_many([(one, VersionSelection()) for one in speaker_ids])
        return list(zip(speaker_ids, found, strict=True))
