"""The Redis view of the facts: fast to read, puts writes in order, and may be lost at any time.

Every change is one Lua script (`lua/`), idempotent and order-free. An index that was begun on a new or
emptied server (`gate`) knows no speaker: each is *admitted* when it is first needed, or by housekeeping in
the background, by telling the index all that its facts say. So reads and writes go on at once after a loss.
How facts are read is the caller's business: `truth` does it.
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
"""Begins the keys that namespaces name. No other key of ours does: a namespace may be called anything."""
EVENTS = "sr:events"
DIRTY = "sr:dirty"
STAGES = 3
"""Of a job's progress: preparing, encoding, publishing."""

COMMIT_SECONDS = 600
"""From a version's first blob to its fact, at most: after that its blobs may be collected as garbage."""
LANDING_SECONDS = COMMIT_SECONDS + 900 + 60
"""What one attempt stores may still land for this long. S3 takes no request that was signed more than 15
minutes ago, and the clocks of two of our processes may differ by a minute.
"""
REPEAT_SECONDS = 1800
"""So long the same request is given the same place again."""
ORPHANED_SECONDS = REPEAT_SECONDS + LANDING_SECONDS
"""A blob without a record is nobody's after this."""
PENDING_MOVE_SECONDS = 60
"""So long a reserved move of an alias counts as on its way. After that whoever reserved it must have died."""
PENDING_PROMOTION_SECONDS = PENDING_MOVE_SECONDS + 900
"""The same of an automatic one, for which others wait only where the two could do harm: here also what the
store may still be busy with counts."""

LONGEST_PUT_OFF_SECONDS = 600.0
"""No look at a speaker is put off for longer."""
WINDOW_SECONDS = LANDING_SECONDS + 60
"""What was reserved before an index was begun may land until then; a minute for clocks that differ."""
COMPLETE = "sr:complete"
"""Epoch of the index that every speaker of the bucket was admitted to."""
_TRIES = 3
"""The server may be lost again while a speaker is being admitted."""

_LAST = {"seq": LAST_SEQ, "number": LAST_NUMBER, "created_at": LAST_CREATED_AT}
_LOOKING_SECONDS = 120.0
"""Longer than the scripts ever put off a look, so that every call for one shows while somebody looks."""
_LIVE, _UNSETTLED, _NOT_COUNTED = 1, 2, 3
_NOBODY = SpeakerId("no", "speaker")
"""For scripts that are about no speaker."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A place in one speaker's order."""

    seq: int
    number: int
    created_at: int
    vuid: str = ""
    """Of the version it is for."""


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """Answer to a claim. `outcome`: claimed, flying, ready, failed, dead, or full: it was made as often as it
    may be. `job_id` of ours or the one to join.
    """

    outcome: str
    job_id: str | None = None
    build: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSelection:
    """Versions that a look reads beside those that it always reads. Those that do not exist are left out."""

    number: int | None = None
    vuid: str | None = None
    idempotency: str | None = None
    """Hash of the Idempotency-Key that a version was registered with, or answered with."""
    limit: int | None = None
    """So many of the newest versions."""
    before: int | None = None
    """With `limit`: only versions with a smaller number."""
    made: bool | None = None
    """With `limit`: only versions that have had an artifact. Others are passed over without being read."""
    max_bytes: int | None = None
    """With `limit`: no version is read after the one with which their records have so many bytes together.
    `IndexedSpeaker.page_end` tells where that was.
    """

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class SpeakerIndex(Gate):
    """All that Redis knows of speakers and the jobs' records. Methods raise `GateClosed` or `Unavailable`."""

    def __init__(
        self,
        url: str,
        bucket: str,
        truth: Callable[[SpeakerId], Speaker],
        epochs: Epochs,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`bucket`: the identity of the bucket whose facts it shows. `truth`: what these say of a speaker.
        `epochs`: what the bucket knows of its indexes.
        """
        super().__init__(url, bucket, epochs, clock)
        self._truth = truth

    # -- admitting speakers

    def complete(self) -> bool:
        """Whether every speaker of the bucket has been admitted to this index."""
        with unavailable_without_redis():
            return bool(self.ungated.get(COMPLETE) == str(self.epoch))

    def set_complete(self, epoch: int) -> None:
        """Every speaker of the bucket was admitted in this epoch. Raises `EpochOver`."""
        self._run("complete", _NOBODY, unknown=True, listed_in=str(epoch))

    def swept(self, sweep: str, *, epoch: int) -> None:
        """A sweep that was begun in this epoch is finished. Raises `EpochOver`: it counts for nothing."""
        self._run("swept", _NOBODY, unknown=True, listed_in=str(epoch), swept=sweep)

    def unknown(self, speaker_ids: Sequence[SpeakerId]) -> list[SpeakerId]:
        """Those that were not admitted to this index yet."""
        epoch, answers = self.read_epoch(
            lambda pipeline, _: [pipeline.hget(speaker_key(one), "epoch") for one in speaker_ids]
        )
        return [one for one, known in zip(speaker_ids, answers, strict=True) if known != str(epoch)]

    def admit(self, speaker_id: SpeakerId, *, unless_empty: bool = False) -> bool:
        """Read a speaker's facts, and tell the index all of them. Returns whether there were any.

        Args:
            unless_empty: leave nothing behind where there are none.

        Raises:
            EpochOver.
        """
        epoch, listed = self.epoch, self._clock()
        truth = self._truth(speaker_id)
        if truth.seq > 0 or not unless_empty:
            self.tell(speaker_id, SpeakerUpdate(truth, listed, look=True), epoch=epoch)
        return truth.seq > 0

    def tell(self, speaker_id: SpeakerId, update: SpeakerUpdate, *, epoch: int) -> None:
        """Tell the index everything that a speaker's facts say. What it knows already stays as it is; a
        speaker that it does not know yet is admitted.

        Args:
            epoch: of the index when the facts were listed, or earlier. What was acknowledged in a later one
                may be missing in the listing.

        Raises:
            EpochOver: the index is another one by now. Nothing was told.
        """
        self._run("tell", speaker_id, **update_arguments(update, epoch))

    def tell_many(self, speakers: Sequence[tuple[SpeakerId, SpeakerUpdate]], *, epoch: int) -> None:
        """The same of several speakers, in one round trip."""
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
        """There is such a speaker, and it could not be admitted. Once all others have been, it must not pass
        for a new one: whoever needs it tries again.
        """
        with unavailable_without_redis():
            self.redis.hsetnx(speaker_key(speaker_id), "epoch", "")

    def forget_older(self, known: Callable[[SpeakerId], bool]) -> int:
        """Remove what indexes of older epochs have left of speakers that the bucket does not know.

        Returns how many keys that were. Raises `EpochOver`: another index has been begun meanwhile.
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
        bytes_to_store: int = 0,
        max_stored_bytes: int | None = None,
        text_bytes: int = 0,
        max_text_bytes: int | None = None,
        max_versions: int | None = None,
        vuid: str = "",
        request: str = "",
        idempotency: str | None = None,
    ) -> Reservation:
        """The place of a version, to be used within `COMMIT_SECONDS`.

        Args:
            max_speakers: of the namespace. A new speaker counts from here on, until it is live or what this
                place was given for cannot land any more (`LANDING_SECONDS`). max_stored_bytes,
                max_text_bytes: of the namespace; max_versions: of the speaker. Beyond these three may go
                what is on its way at the same moment. text_bytes: how many of bytes_to_store are texts.
                vuid: for the new version. request, idempotency: hashes; the same pair again, within
                `REPEAT_SECONDS`, is given the same place and vuid, so that both make the same version.

        Raises:
            QuotaExceeded, NamespaceFull, TextsFull, TooManyVersions; VoiceExists: a live speaker may not be
            overwritten; RegistrationInProgress: nor one
            that another request has reserved a place for and may still register; IdempotencyKeyReused;
            VoiceDamaged: also where a record has the last place there is; CensusDue; FactsDue; AlreadyMade;
            Unavailable: after that, as long as the last attempt may still land.
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
            vuid=vuid,
            request=request,
            idempotency=idempotency,
            landing=LANDING_SECONDS,
            repeats=REPEAT_SECONDS,
        )

    def reserve_tombstone(self, speaker_id: SpeakerId, *, unchanged: int | None = None) -> Reservation:
        """The place of a tombstone, to be put within `COMMIT_SECONDS`. Until the tombstone is told, or for
        `WINDOW_SECONDS`, no version before it is given to a repeated upload.

        Raises `VoiceNotFound`; `AliasMoved` if `unchanged` is not its last seq any more.
        """
        return self._reserve(speaker_id, "del", new=True, unchanged=unchanged)

    def reserve_alias(self, speaker_id: SpeakerId, alias: str, *, expected: int | None = None) -> int:
        """For a move by hand. Returns the seq. The move has to be put within `PENDING_MOVE_SECONDS`.

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
        """For an automatic move. Returns the seq. The move has to be put within `PENDING_MOVE_SECONDS`.

        Args:
            expected: seq of the move in force, 0 if there is none. vuid, serves: the version it goes to, and
            the profiles whose artifacts are ready of that.

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
        """A request with this Idempotency-Key is to be answered with a version that was there already, and so
        will be its repeats within `REPEAT_SECONDS`, unless Redis is lost.

        Returns False if the version is dead, or the key stands for another one.
        """
        arguments = {"vuid": vuid, "idempotency": idempotency, "repeats": REPEAT_SECONDS}
        return bool(self._run("answer", speaker_id, **arguments))

    def apply_version(self, speaker_id: SpeakerId, seq: int, record: VersionRecord) -> bool:
        """Returns whether it is live.

        Raises:
            Unavailable: its place was reserved in an index that was lost since. A census will say whether it
                counts, so it must not be acknowledged yet.
        """
        answer = self._run("apply_version", speaker_id, **version_arguments(seq, record))
        if answer in {_UNSETTLED, _NOT_COUNTED}:
            raise Unavailable(
                "The index was lost while this version was being registered; send the same request again.",
                retry_after_seconds=1,
            )
        return bool(answer == _LIVE)

    def apply_tombstone(self, speaker_id: SpeakerId, seq: int, number: int, created_at: int) -> int:
        """Returns how many versions it killed."""
        return int(self._run("apply_tombstone", speaker_id, seq=seq, number=number, created_at=created_at))

    def apply_alias(self, speaker_id: SpeakerId, fact: AliasFact) -> bool:
        """Returns whether it is the last move."""
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
        """Put an artifact in force, end the job that made it, and move the alias that waited for it, all at
        once.

        Returns the winner in force; None: dead.

        Raises:
            Rivals: `begin` let through others than the token `alone`.
            VoiceDamaged, VoiceUnreadable: nobody can tell whether the version is dead.
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
            canceled: somebody canceled the job. It goes on while its attempt is publishing.
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
        """Let an artifact count no more: its bytes were lost. Returns whether the version is live."""
        return bool(self._run("void", speaker_id, **void_arguments(fact.vuid, fact.akey)))

    # -- the census

    def begin_census(self, speaker_id: SpeakerId) -> tuple[int, bytes] | None:
        """Fix which versions count of those from before this index, if that is still to be said.

        Returns place and body of the fact that has to be put before `end_census`; None where none is due.
        """
        found = self._run("census", speaker_id)
        return (int(found[0]), str(found[1]).encode()) if found else None

    def end_census(self, speaker_id: SpeakerId, high: int) -> None:
        """Its fact is in the bucket."""
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
        """Ask to be the one who computes.

        Args:
            job: the record's fields, `id` and `ns` among them. force: compute it also where it is ready or
            was given up. max_builds: of one artifact; None: as many as keys can tell apart.

        Raises:
            Undecided: with `force`. The builds of what was published must not be given out again.
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
        """A worker takes the job in hand. Returns the attempt, from 1; 0: nobody wants it any more."""
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
        """May this attempt publish? 1 yes, 0 another one did or will, -2 the version is dead.

        Args:
            token: unique to this call, for `apply_artifact`.

        Raises:
            VoiceDamaged, VoiceUnreadable: nobody can tell whether the version is dead. Undecided.
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
        """The same where no job made the artifact: 1 yes, 0 there is one already, -2 the version is dead.

        Raises:
            NamespaceFull: its `size` is more than what is left of the namespace's bytes. Undecided.
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
        """Change an unfinished job's record; with `landing`, end what it names. Returns False if it had
        finished.
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
        """One consistent look at a speaker; not live if the index does not know it."""
        return self.load_many([speaker_id])[0]

    def load_many(self, speaker_ids: Sequence[SpeakerId]) -> list[IndexedSpeaker]:
        """Several speakers in one round trip, in the given order. Those not known yet are admitted first."""
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
        """One consistent look at what answers need of a speaker. It costs the same with one version and
        with a thousand.

        The speaker has its marks and aliases, and of its versions the oldest, the newest, those that aliases
        point to, and those that `selection` names.
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

    def look_many(self, speaker_ids: Sequence[SpeakerId]) -> list[IndexedSpeaker]:
        """The same of several speakers, in the given order."""

        def ask(pipeline: Pipeline) -> None:
            for speaker_id in speaker_ids:
                parameters = self._json(speaker_id, {"unknown": True})
                self.queue(pipeline, "look", self._keys(speaker_id), parameters)

        try:
            return [read_look(answer) for answer in self.read(ask)]
        except redis.ResponseError as error:
            if not isinstance(error_of(error, _NOBODY), NotAdmitted):
                raise
            return [self.look(speaker_id) for speaker_id in speaker_ids]

    def usage(self, namespace: str) -> tuple[int, int, int]:
        """How many live speakers a namespace has, the bytes their versions were uploaded with, and how many
        of these bytes are texts.

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

    def names(self, namespace: str, *, after: str = "", limit: int) -> list[str]:
        """Keys of live speakers, sorted, from the one after `after`.

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
        """Speakers that housekeeping is to look at now, each with what `look_again` wants to know as `seen`.

        Each is put off for a while first: who looks may die, others need not look too, and what happens from
        now on shows. A look that is put off for longer than anybody does was put off by a clock that has been
        set back since, and is due as well.
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
        """Have housekeeping look at a speaker in so many seconds at the latest."""
        with unavailable_without_redis():
            self.redis.zadd(DIRTY, {str(speaker_id): self._clock() + seconds}, lt=True)

    def look_again(self, speaker_id: SpeakerId, seconds: float | None, *, seen: float) -> float | None:
        """Put off the next look at a speaker, or end it (None), unless something happened since `seen`.

        Returns the next look's `seen`; None if there is none or it is not ours to put off.
        """
        score = self._run("look_again", speaker_id, unknown=True, seconds=seconds, seen=seen)
        return float(score) if score else None


def _ask_for(pipeline: Pipeline, speaker_ids: Iterable[SpeakerId]) -> None:
    pipeline.get(COMPLETE)
    for speaker_id in speaker_ids:
        pipeline.hgetall(speaker_key(speaker_id))


def _epoch_in(parts: Sequence[str]) -> int:
    """Of what follows `names` in a key; 0: an older layout has none there."""
    return int(parts[0]) if parts and parts[0].isdecimal() else 0


def speaker_key(speaker_id: SpeakerId) -> str:
    return f"{_TENANTS}{speaker_id.namespace}:v:{speaker_id.slug}"


def _id_of(key: str) -> SpeakerId:
    namespace, _, slug = key.removeprefix(_TENANTS).split(":", 2)
    return SpeakerId(namespace, slug)


def names_key(namespace: str) -> str:
    return f"{_TENANTS}{namespace}:names"
