"""The Redis view of the facts: fast to read, puts writes in order, and may be lost at any time.

Every change is one Lua script (`lua/`), idempotent and order-free. An index that was begun on a new or
emptied server (`gate`) knows no speaker: each is *admitted* when it is first needed, or by housekeeping in
the background, by telling the index all that its facts say. So reads and writes go on at once after a loss.
The caller's `truth` reads the facts.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, cast

import redis
from redis.client import Pipeline

from services.shared.bucket.epochs import Epochs
from services.shared.bucket.keys import LAST_BUILD, LAST_CREATED_AT, LAST_NUMBER, LAST_SEQ, SpeakerId
from services.shared.index.gate import BOOT, Gate, GateClosed
from services.shared.index.reading import NOTHING, IndexedSpeaker, PendingExtraction, read_hash, read_look
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.refusals import (
    EpochOver,
    NotAdmitted,
    Undecided,
    error_of,
)
from services.shared.index.script_arguments import (
    SpeakerUpdate,
    artifact_arguments,
    failure_arguments,
    move_arguments,
    update_arguments,
    version_arguments,
    void_arguments,
)
from services.shared.model.domain import (
    AliasFact,
    ArtifactRecord,
    FailureRecord,
    Speaker,
    VersionRecord,
    VoidFact,
)
from services.shared.telemetry import tracing
from speaker_registry.errors import (
    Unavailable,
)

_TENANTS = "sr:in:"
"""Prefix of the keys that contain a namespace. No other key of ours has it, because a namespace may have any
name.
"""
EVENTS = "sr:events"
DIRTY = "sr:dirty"
STAGES = 3
"""A job's progress has three stages: preparing, encoding and publishing."""

COMMIT_SECONDS = 600
"""A version's fact must be stored this long after its first blob. Later, its blobs may be collected as
garbage.
"""
LANDING_SECONDS = COMMIT_SECONDS + 900 + 60
"""The writes of one attempt may still land for this long: the time to commit, 15 minutes because S3 accepts
no request that was signed earlier, and a minute by which the clocks of two of our processes may differ.
"""
REPEAT_SECONDS = 1800
"""A repeated request is given the same place again for this long."""
PENDING_MOVE_SECONDS = 60
"""A reserved move of an alias counts as pending for this long. After that, the process that reserved it must
have died.
"""
PENDING_PROMOTION_SECONDS = PENDING_MOVE_SECONDS + 900
"""A reserved automatic move counts as pending for this long. That is longer than for manual moves, because
the store may still complete a write that the client gave up on. Other moves wait only if the two could do
harm together.
"""

LONGEST_PUT_OFF_SECONDS = 600.0
"""Housekeeping never postpones its next look at a speaker for longer than this."""
WINDOW_SECONDS = LANDING_SECONDS + 60
"""Writes that were reserved before an index was begun may land for this long after it. The time includes a
minute for clocks that differ.
"""
COMPLETE = "sr:complete"
"""This key holds the epoch of the index that every speaker of the bucket was admitted to."""
_TRIES = 3
"""The server may be lost again while a speaker is being admitted."""

_LAST = {"seq": LAST_SEQ, "number": LAST_NUMBER, "created_at": LAST_CREATED_AT}
_LOOKING_SECONDS = 120.0
"""Longer than the scripts ever put off a look, so that every call for one shows while a process looks."""
_LIVE, _UNSETTLED, _NOT_COUNTED = 1, 2, 3
_NOBODY = SpeakerId("no", "speaker")
"""This id stands in for a speaker in scripts that are about none."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A place in one speaker's order."""

    seq: int
    number: int
    created_at: int
    vuid: str = ""
    """The id of the version that the place is reserved for."""


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The answer to a claim.

    `outcome` is `claimed`; `pending` (another job for the artifact is pending: join it); `ready`; `failed`;
    `dead` (the version was deleted); or `full` (the artifact was built as often as is allowed). `job_id` is
    the new job or the one to join.
    """

    outcome: str
    job_id: str | None = None
    build: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSelection:
    """The versions that a look at a speaker reads besides those that it always reads.

    Versions that do not exist are left out.
    """

    number: int | None = None
    vuid: str | None = None
    idempotency: str | None = None
    """Hash of the Idempotency-Key that a version was registered with, or answered with."""
    limit: int | None = None
    """Read this many of the newest versions."""
    before: int | None = None
    """A look with `limit` reads only versions with a smaller number than this."""
    made: bool | None = None
    """A look with `limit` reads only versions that have had an artifact. It skips the others unread."""
    max_bytes: int | None = None
    """A look with `limit` stops after the version whose record brings the total to this many bytes.

    `IndexedSpeaker.page_end` is the number of that version.
    """

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class SpeakerIndex(Gate):
    """Holds speakers and the records of jobs in Redis. Methods raise `GateClosed` or `Unavailable`."""

    def __init__(
        self,
        url: str,
        bucket: str,
        truth: Callable[[SpeakerId], Speaker],
        epochs: Epochs,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Connect to the Redis at `url`.

        Args:
            bucket: the identity of the bucket whose facts the index shows.
            truth: folds the facts of a speaker in the bucket.
            epochs: the bucket's record of which indexes were begun.
        """
        super().__init__(url, bucket, epochs, clock)
        self._truth = truth

    # -- admitting speakers

    def complete(self) -> bool:
        """Return whether every speaker of the bucket has been admitted to this index."""
        with unavailable_without_redis():
            return bool(self.ungated.get(COMPLETE) == str(self.epoch))

    def set_complete(self, epoch: int) -> None:
        """Record that every speaker of the bucket was admitted in this epoch. Raises `EpochOver`."""
        self._run("complete", _NOBODY, unknown=True, listed_in=str(epoch))

    def swept(self, sweep: str, *, epoch: int) -> None:
        """Record that a sweep that was begun in this epoch is finished.

        Raises:
            EpochOver: the index was lost since, so the sweep does not count.
        """
        self._run("swept", _NOBODY, unknown=True, listed_in=str(epoch), swept=sweep)

    def unknown(self, speaker_ids: Sequence[SpeakerId]) -> list[SpeakerId]:
        """Return the speakers that were not admitted to this index yet."""
        epoch, answers = self.read_epoch(
            lambda pipeline, _: [pipeline.hget(speaker_key(one), "epoch") for one in speaker_ids]
        )
        return [one for one, known in zip(speaker_ids, answers, strict=True) if known != str(epoch)]

    def admit(self, speaker_id: SpeakerId, *, unless_empty: bool = False) -> bool:
        """Read all facts of a speaker into the index. Returns whether there were any.

        Args:
            unless_empty: write nothing to Redis if the speaker has no facts.

        Raises:
            EpochOver.
        """
        epoch, listed = self.epoch, self._clock()
        truth = self._truth(speaker_id)
        if truth.seq > 0 or not unless_empty:
            self.tell(speaker_id, SpeakerUpdate(truth, listed, look=True), epoch=epoch)
        return truth.seq > 0

    def tell(self, speaker_id: SpeakerId, update: SpeakerUpdate, *, epoch: int) -> None:
        """Tell the index everything that a speaker's facts say.

        What the index knows already stays as it is. A speaker that it does not know yet is admitted.

        Args:
            epoch: the epoch of the index when the facts were listed, or an earlier one. What was acknowledged
                in a later epoch may be missing in the listing.

        Raises:
            EpochOver: the index is another one by now. Nothing was told.
        """
        self._run("tell", speaker_id, **update_arguments(update, epoch))

    def tell_many(self, speakers: Sequence[tuple[SpeakerId, SpeakerUpdate]], *, epoch: int) -> None:
        """Tell the index the facts of several speakers in one round trip. See `tell`."""
        with tracing.span("index.tell", kind="client"), unavailable_without_redis():
            pipeline = self.redis.pipeline(transaction=False)
            for speaker_id, update in speakers:
                parameters = self._json(speaker_id, update_arguments(update, epoch))
                self.queue(pipeline, "tell", self._keys(speaker_id), parameters)
            answers = pipeline.execute(raise_on_error=False)
        for (speaker_id, update), answer in zip(speakers, answers, strict=True):
            if isinstance(answer, Exception):
                self.tell(speaker_id, update, epoch=epoch)  # says what is wrong, or was

    def keep_unknown(self, speaker_id: SpeakerId) -> None:
        """Mark a speaker that exists but could not be admitted.

        Without the mark it would count as a new speaker once all others have been admitted. The next request
        for it tries to admit it again.
        """
        with unavailable_without_redis():
            self.redis.hsetnx(speaker_key(speaker_id), "epoch", "")

    def forget_older(self, known: Callable[[SpeakerId], bool]) -> int:
        """Remove the keys that indexes of older epochs left for speakers that the bucket does not have.

        Returns the number of keys. Raises `EpochOver` if another index has been begun meanwhile.
        """
        epoch, removed = self.epoch, 0
        cursor: int | None = None
        with unavailable_without_redis():
            while cursor != 0:
                page = self.ungated.scan(cursor or 0, match=f"{_TENANTS}*", count=1000)
                cursor, keys = cast(tuple[int, list[str]], page)
                removed += self._forget(keys, epoch, known)
        return removed

    def _forget(self, keys: Iterable[str], epoch: int, known: Callable[[SpeakerId], bool]) -> int:
        behind = {key: key.removeprefix(_TENANTS).split(":")[1:3] for key in keys}  # the namespace
        # Those of a later epoch are in use, where another process has begun another index meanwhile.
        names = [key for key, (kind, *rest) in behind.items() if kind == "names" and _epoch_in(rest) < epoch]
        if names:
            self.ungated.unlink(*names)
        hashes = [key for key, (kind, *_) in behind.items() if kind == "v"]
        pipeline = self.ungated.pipeline(transaction=False)
        for key in hashes:
            pipeline.hget(key, "epoch")
        admitted = zip(hashes, pipeline.execute(), strict=True)
        older = [_id_of(key) for key, admitted_in in admitted if admitted_in != str(epoch)]
        return len(names) + sum(self._forget_speaker(one, epoch) for one in older if not known(one))

    def _forget_speaker(self, speaker_id: SpeakerId, epoch: int) -> int:
        return int(self._run("forget", speaker_id, unknown=True, listed_in=str(epoch)))

    def _run(self, script: str, speaker_id: SpeakerId, **args: Any) -> Any:
        """Run a script about a speaker, which is admitted first if this index does not know it yet."""
        for _ in range(_TRIES):
            try:
                return self._run_once(script, speaker_id, args)
            except NotAdmitted:
                with suppress(EpochOver):
                    self.admit(speaker_id)
        raise GateClosed

    def _run_once(self, script: str, speaker_id: SpeakerId, args: Mapping[str, Any]) -> Any:
        with tracing.span(f"index.{script}", kind="client"), unavailable_without_redis():
            try:
                return self.call(script, self._keys(speaker_id), self._json(speaker_id, args))
            except redis.ResponseError as error:
                raise error_of(error, speaker_id) from error

    def _keys(self, speaker_id: SpeakerId) -> list[str]:
        return [speaker_key(speaker_id), BOOT, EVENTS, names_key(speaker_id.namespace), DIRTY]

    def _json(self, speaker_id: SpeakerId, args: Mapping[str, Any]) -> str:
        # Lua's null would count as true.
        given = {name: value for name, value in args.items() if value is not None}
        about = {"speaker": str(speaker_id), "now": self._clock(), "window": WINDOW_SECONDS}
        return json.dumps(about | given)

    # -- order

    def reserve_version(
        self,
        speaker_id: SpeakerId,
        *,
        max_speakers: int,
        immutable: bool,
        present: bool = False,
        bytes_to_store: int = 0,
        max_stored_bytes: int | None = None,
        text_bytes: int = 0,
        max_text_bytes: int | None = None,
        max_versions: int | None = None,
        vuid: str = "",
        request: str = "",
        idempotency: str | None = None,
    ) -> Reservation:
        """Reserve the place of a new version. The version must be committed within `COMMIT_SECONDS`.

        Args:
            max_speakers: the limit of the namespace. A new speaker counts from now on, until it is live or
                until what this place was reserved for can no longer land (`LANDING_SECONDS`).
            max_stored_bytes, max_text_bytes: the limits of the namespace. Uploads that run at the same
                moment may exceed these two and `max_versions`.
            max_versions: the limit of the speaker.
            text_bytes: how many of `bytes_to_store` are texts.
            immutable: refuse a live speaker.
            present: refuse a speaker that is not live.
            vuid: the id of the new version.
            request, idempotency: hashes. A call with the same pair within `REPEAT_SECONDS` is given the same
                place and vuid, so that both calls make the same version.

        Raises:
            QuotaExceeded, NamespaceFull, TextsFull, TooManyVersions, IdempotencyKeyReused, CensusDue,
            FactsDue, AlreadyMade.
            VoiceExists: the speaker is live, and `immutable`.
            VoiceNotFound: the speaker is not live, and `present`.
            RegistrationInProgress: another request has reserved a place for the speaker, which may not be
                overwritten, and may still register it.
            VoiceDamaged: a record is damaged, or has the last place that there is.
            Unavailable: the request was repeated after `REPEAT_SECONDS`, and its last attempt may still land.
        """
        return self._reserve(
            speaker_id,
            "ver",
            new=True,
            max_speakers=max_speakers,
            bytes=bytes_to_store,
            max_bytes=max_stored_bytes,
            texts=text_bytes,
            max_texts=max_text_bytes,
            max_versions=max_versions,
            immutable=immutable,
            present=present,
            vuid=vuid,
            request=request,
            idempotency=idempotency,
            landing=LANDING_SECONDS,
            repeats=REPEAT_SECONDS,
        )

    def reserve_tombstone(self, speaker_id: SpeakerId, *, unchanged: int | None = None) -> Reservation:
        """Reserve the place of a tombstone. The tombstone must be committed within `COMMIT_SECONDS`.

        Until the index is told of the tombstone, or for `WINDOW_SECONDS`, no version before it is returned to
        a repeated upload.

        Raises:
            VoiceNotFound; AliasMoved: the speaker's last seq is no longer `unchanged`.
        """
        return self._reserve(speaker_id, "del", new=True, unchanged=unchanged)

    def reserve_alias(self, speaker_id: SpeakerId, alias: str, *, expected: int | None = None) -> int:
        """Reserve the seq of a manual move of an alias. It must be committed within `PENDING_MOVE_SECONDS`.

        Args:
            expected: seq of the move in force, 0 if there is none.

        Raises:
            VoiceNotFound; VoiceDamaged; AliasMoved: another move is in force, or may be on its way.
        """
        move = {"alias": alias, "expected": expected, "pending": PENDING_MOVE_SECONDS}
        return self._reserve(speaker_id, "als", **move).seq

    def reserve_promotion(
        self, speaker_id: SpeakerId, alias: str, *, expected: int, vuid: str, serves: Iterable[str]
    ) -> int:
        """Reserve the seq of an alias's automatic move. It must be committed within `PENDING_MOVE_SECONDS`.

        Args:
            expected: seq of the move in force, 0 if there is none.
            vuid: the version that the alias moves to.
            serves: the profiles for which that version has an artifact.

        Raises:
            VoiceNotFound; VoiceDamaged; AliasMoved: another move is in force, or on its way to a version
            that serves other profiles.
        """
        move = {"alias": alias, "expected": expected, "pending": PENDING_PROMOTION_SECONDS}
        target = {"vuid": vuid, "serves": ",".join(sorted(serves))}
        return self._reserve(speaker_id, "als", automatic=True, **move, **target).seq

    def _reserve(self, speaker_id: SpeakerId, kind: str, **args: Any) -> Reservation:
        return Reservation(*self._run("reserve", speaker_id, kind=kind, last=_LAST, **args))

    # -- facts

    def remember_answer(self, speaker_id: SpeakerId, vuid: str, idempotency: str) -> bool:
        """Remember that a request with this Idempotency-Key is answered with an existing version.

        Its repeats within `REPEAT_SECONDS` get the same answer, unless Redis is lost. Returns False if the
        version is dead or the key stands for another version.
        """
        arguments = {"vuid": vuid, "idempotency": idempotency, "repeats": REPEAT_SECONDS}
        return bool(self._run("answer", speaker_id, **arguments))

    def apply_version(self, speaker_id: SpeakerId, seq: int, record: VersionRecord) -> bool:
        """Show a committed version in the index. Returns whether the version is live.

        Raises:
            Unavailable: the place of the version was reserved in an index that was lost since. A census will
                say whether the version counts, so it must not be acknowledged yet.
        """
        answer = self._run("apply_version", speaker_id, **version_arguments(seq, record))
        if answer in {_UNSETTLED, _NOT_COUNTED}:
            raise Unavailable(
                "The index was lost while this version was being registered; send the same request again.",
                retry_after_seconds=1,
            )
        return bool(answer == _LIVE)

    def apply_tombstone(self, speaker_id: SpeakerId, seq: int, number: int, created_at: int) -> int:
        """Apply a committed tombstone. Returns how many versions it ended."""
        return int(self._run("apply_tombstone", speaker_id, seq=seq, number=number, created_at=created_at))

    def apply_alias(self, speaker_id: SpeakerId, fact: AliasFact) -> bool:
        """Apply a committed move of an alias. Returns whether it is the last move."""
        return bool(self._run("apply_alias", speaker_id, **move_arguments(fact)))

    def apply_artifact(
        self,
        speaker_id: SpeakerId,
        vuid: str,
        akey: str,
        record: ArtifactRecord,
        *,
        job_id: str | None = None,
        claimed: str = "",
        promotion: AliasFact | None = None,
        alone: str | None = None,
    ) -> str | None:
        """Put an artifact in force, end the job that made it, and move the waiting alias, atomically.

        Returns the winner of the artifact in force, or None if the version is dead.

        Raises:
            Rivals: `begin` admitted a publish with another token than `alone`.
            VoiceDamaged, VoiceUnreadable: it is unknown whether the version is dead.
        """
        winner = self._run(
            "ready",
            speaker_id,
            **artifact_arguments(vuid, akey, record),
            job=job_id,
            claimed=claimed,
            promotion=move_arguments(promotion) if promotion else None,
            alone=alone,
            stages=STAGES,
        )
        return None if winner == "dead" else str(winner)

    def apply_failure(
        self,
        speaker_id: SpeakerId,
        vuid: str,
        akey: str,
        record: FailureRecord,
        *,
        job_id: str | None = None,
        claimed: str = "",
        error: str | None = None,
        canceled: bool = False,
    ) -> bool:
        """Record that an extraction was given up, and end its job. Returns whether the version is live.

        Args:
            canceled: a caller canceled the job. If its attempt is publishing already, the job goes on.
        """
        return bool(
            self._run(
                "failed",
                speaker_id,
                **failure_arguments(vuid, akey, record),
                job=job_id,
                claimed=claimed,
                error=error,
                canceled=canceled or None,
            )
        )

    def apply_void(self, speaker_id: SpeakerId, fact: VoidFact) -> bool:
        """Void an artifact whose bytes were lost. Returns whether the version is live."""
        return bool(self._run("void", speaker_id, **void_arguments(fact.vuid, fact.akey)))

    # -- the census

    def begin_census(self, speaker_id: SpeakerId) -> tuple[int, bytes] | None:
        """Fix which versions from before this index count, if no census has decided it yet.

        Returns the seq and the body of the census fact, which must be committed before `end_census` is
        called. Returns None if no census is due.
        """
        found = self._run("census", speaker_id)
        return (int(found[0]), str(found[1]).encode()) if found else None

    def end_census(self, speaker_id: SpeakerId, high: int) -> None:
        """Record that the fact of the census is in the bucket."""
        self._run("census", speaker_id, put=high)

    # -- computing

    def claim(
        self,
        speaker_id: SpeakerId,
        *,
        vuid: str,
        profile: str,
        fingerprint: str,
        base: str,
        job: Mapping[str, Any],
        force: bool = False,
        max_builds: int | None = None,
        steal: str | None = None,
    ) -> ClaimResult:
        """Claim the right to enqueue an extraction. The answer may name a pending job to join instead.

        Args:
            job: the fields of the job's record, including `id` and `ns`.
            force: extract again even if the artifact is ready or its extraction was given up.
            max_builds: the limit for one artifact. None allows as many as keys can tell apart.

        Raises:
            Undecided: with `force`, while builds that were published are not known, because their numbers
                must not be given out again.
        """
        outcome, *rest = self._run(
            "claim",
            speaker_id,
            vuid=vuid,
            profile=profile,
            fingerprint=fingerprint,
            base=base,
            force=force,
            max_builds=max_builds or LAST_BUILD,
            steal=steal,
            job=dict(job),
        )
        return ClaimResult(outcome, *rest[:1], *(int(build) for build in rest[1:]))

    def start(self, speaker_id: SpeakerId, job_id: str, pending: PendingExtraction, *, worker: str) -> int:
        """Start an attempt at a job. Returns its number, from 1, or 0 if the job is no longer wanted."""
        return int(
            self._run(
                "start",
                speaker_id,
                job=job_id,
                vuid=pending.vuid,
                profile=pending.profile,
                fingerprint=pending.fingerprint,
                worker=worker,
                stages=STAGES,
            )
        )

    def begin(
        self,
        speaker_id: SpeakerId,
        job_id: str,
        attempt: int,
        pending: PendingExtraction,
        akey: str,
        *,
        token: str,
    ) -> int:
        """Ask whether this attempt may publish its artifact.

        Returns 1 if it may, 0 if another attempt did or will, and -2 if the version is dead.

        Args:
            token: identifies this call in `apply_artifact`.

        Raises:
            Undecided. VoiceDamaged, VoiceUnreadable: it is unknown whether the version is dead.
        """
        return self._begin(
            speaker_id,
            job=job_id,
            attempt=attempt,
            vuid=pending.vuid,
            profile=pending.profile,
            fingerprint=pending.fingerprint,
            akey=akey,
            token=token,
        )

    def begin_upload(
        self,
        speaker_id: SpeakerId,
        vuid: str,
        akey: str,
        *,
        token: str,
        size: int = 0,
        max_stored_bytes: int | None = None,
    ) -> int:
        """Ask whether an uploaded artifact, which no job made, may be published.

        Returns 1 if it may, 0 if there is an artifact already, and -2 if the version is dead.

        Raises:
            Undecided. NamespaceFull: `size` exceeds what is left of the namespace's bytes.
        """
        return self._begin(
            speaker_id, vuid=vuid, akey=akey, token=token, bytes=size, max_bytes=max_stored_bytes
        )

    def _begin(self, speaker_id: SpeakerId, **args: Any) -> int:
        try:
            return int(self._run("begin", speaker_id, **args))
        except Undecided:
            self.admit(speaker_id)  # housekeeping does so too, where an API process is there
            return int(self._run("begin", speaker_id, **args))

    def set_job(
        self,
        speaker_id: SpeakerId,
        job_id: str,
        state: str,
        fields: Mapping[str, Any] | None = None,
        *,
        landing: PendingExtraction | None = None,
    ) -> bool:
        """Change the record of an unfinished job. Returns False if the job had finished.

        With `landing`, that pending extraction ends as well.
        """
        pending: dict[str, Any] = (
            {"vuid": landing.vuid, "profile": landing.profile, "claimed": landing.fingerprint}
            if landing
            else {}
        )
        return bool(
            self._run("job", speaker_id, job=job_id, state=state, fields=dict(fields or {}), **pending)
        )

    # -- reading

    def load(self, speaker_id: SpeakerId) -> IndexedSpeaker:
        """Read everything about a speaker, consistently. A speaker that does not exist is not live."""
        return self.load_many([speaker_id])[0]

    def load_many(self, speaker_ids: Sequence[SpeakerId]) -> list[IndexedSpeaker]:
        """Read several speakers in one round trip, in the given order. Unknown ones are admitted first."""
        nothing: set[SpeakerId] = set()
        for _ in range(_TRIES):
            epoch, (complete, *hashes) = self.read_epoch(lambda pipeline, _: _ask_for(pipeline, speaker_ids))
            known = [fields.get("epoch") == str(epoch) for fields in hashes]
            absent = {
                one: fields
                for one, fields, is_known in zip(speaker_ids, hashes, known, strict=True)
                if not is_known and one not in nothing and (fields or complete != str(epoch))
            }
            if not absent:
                return [
                    read_hash(fields) if is_known else NOTHING
                    for fields, is_known in zip(hashes, known, strict=True)
                ]
            with suppress(EpochOver):
                nothing.update(
                    one for one, fields in absent.items() if not self.admit(one, unless_empty=not fields)
                )
        raise GateClosed

    def look(self, speaker_id: SpeakerId, selection: VersionSelection | None = None) -> IndexedSpeaker:
        """Read what answers need of a speaker, consistently. Costs the same with one version and a thousand.

        The result has the speaker's marks and aliases. Of its versions it has the oldest, the newest, those
        that aliases point to, and those that `selection` names.
        """
        arguments = selection.arguments if selection else {}
        for _ in range(_TRIES):
            try:
                return read_look(self._run_once("look", speaker_id, {"unknown": True, **arguments}))
            except NotAdmitted:
                with suppress(EpochOver):
                    if not self.admit(speaker_id, unless_empty=True):
                        return NOTHING
        raise GateClosed

    def look_many(self, wanted: Sequence[tuple[SpeakerId, VersionSelection]]) -> list[IndexedSpeaker]:
        """Look at several speakers, in the given order. See `look`."""

        def ask(pipeline: Pipeline) -> None:
            for speaker_id, selection in wanted:
                parameters = self._json(speaker_id, {"unknown": True, **selection.arguments})
                self.queue(pipeline, "look", self._keys(speaker_id), parameters)

        try:
            return [read_look(answer) for answer in self.read(ask)]
        except redis.ResponseError as error:
            if not isinstance(error_of(error, _NOBODY), NotAdmitted):
                raise
            return [self.look(speaker_id, selection) for speaker_id, selection in wanted]

    def usage(self, namespace: str) -> tuple[int, int, int]:
        """Return the number of a namespace's live speakers, their uploaded bytes, and the texts' share.

        Raises `GateClosed` until all speakers have been admitted.
        """

        def ask(pipeline: Pipeline, epoch: int) -> None:
            names = f"{names_key(namespace)}:{epoch}"
            pipeline.get(COMPLETE)
            pipeline.zcard(names)
            pipeline.get(f"{names}:bytes")
            pipeline.get(f"{names}:texts")

        speakers, stored, texts = self._of_complete(ask)
        return int(speakers), int(stored or 0), int(texts or 0)

    def find_blob(self, namespace: str, digest: str) -> tuple[SpeakerId, str] | None:
        """Return the speaker and the id of the version that an artifact's file belongs to.

        Args:
            digest: `sha256:…` of the file. Only its first half is compared, so the caller compares the rest.

        Raises `GateClosed` if the artifact is not known and not all speakers have been admitted.
        """

        def ask(pipeline: Pipeline, epoch: int) -> None:
            pipeline.get(COMPLETE)
            pipeline.hget(f"{names_key(namespace)}:{epoch}:blobs", digest.removeprefix("sha256:")[:32])

        epoch, (complete, place) = self.read_epoch(ask)
        if place is None:
            if complete != str(epoch):
                raise GateClosed
            return None
        slug, _, vuid = str(place).partition(":")
        return SpeakerId(namespace, slug), vuid

    def names(self, namespace: str, *, after: str = "", limit: int) -> list[str]:
        """Return the sorted keys of live speakers that follow `after`.

        Raises `GateClosed` until all speakers have been admitted.
        """
        start = f"({after}" if after else "-"

        def ask(pipeline: Pipeline, epoch: int) -> None:
            pipeline.get(COMPLETE)
            pipeline.zrangebylex(f"{names_key(namespace)}:{epoch}", start, "+", 0, limit)

        (keys,) = self._of_complete(ask)
        return list(keys)

    def _of_complete(self, ask: Callable[[Pipeline, int], None]) -> list[Any]:
        epoch, (complete, *answers) = self.read_epoch(ask)
        if complete != str(epoch):
            raise GateClosed
        return answers

    def due(self, limit: int) -> Iterator[tuple[SpeakerId, float]]:
        """Yield the speakers that are due for housekeeping, each with the `seen` that `look_again` takes.

        The next look at each is postponed first. So it comes if this process dies, other processes need not
        look as well, and anything that happens from now on is noticed. A look that is postponed for longer
        than is ever done was postponed by a clock that has been set back since, and is due as well.
        """
        now = self._clock()
        with unavailable_without_redis():
            pipeline = self.redis.pipeline(transaction=False)
            for since, until in (("-inf", now), (now + LONGEST_PUT_OFF_SECONDS, "+inf")):
                pipeline.zrange(DIRTY, since, until, byscore=True, offset=0, num=limit, withscores=True)
            in_time, by_another_clock = pipeline.execute()
        for member, score in [*in_time, *by_another_clock]:
            speaker_id = SpeakerId.parse(member)
            seen = self.look_again(speaker_id, _LOOKING_SECONDS, seen=score)
            if seen is not None:
                yield speaker_id, seen

    def look_within(self, speaker_id: SpeakerId, seconds: float) -> None:
        """Make housekeeping look at a speaker within this many seconds."""
        with unavailable_without_redis():
            self.redis.zadd(DIRTY, {str(speaker_id): self._clock() + seconds}, lt=True)

    def look_again(self, speaker_id: SpeakerId, seconds: float | None, *, seen: float) -> float | None:
        """Postpone the next look at a speaker, or cancel it (None), unless something happened since `seen`.

        Returns the `seen` of the next look, or None if there is none or another process postponed it.
        """
        score = self._run("look_again", speaker_id, unknown=True, seconds=seconds, seen=seen)
        return float(score) if score else None


def _ask_for(pipeline: Pipeline, speaker_ids: Iterable[SpeakerId]) -> None:
    pipeline.get(COMPLETE)
    for speaker_id in speaker_ids:
        pipeline.hgetall(speaker_key(speaker_id))


def _epoch_in(parts: Sequence[str]) -> int:
    """Return the epoch in the parts of a key after `names`. Keys of an older layout have none there: 0."""
    return int(parts[0]) if parts and parts[0].isdecimal() else 0


def speaker_key(speaker_id: SpeakerId) -> str:
    return f"{_TENANTS}{speaker_id.namespace}:v:{speaker_id.slug}"


def _id_of(key: str) -> SpeakerId:
    namespace, _, slug = key.removeprefix(_TENANTS).split(":", 2)
    return SpeakerId(namespace, slug)


def names_key(namespace: str) -> str:
    return f"{_TENANTS}{namespace}:names"
