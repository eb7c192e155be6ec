"""The Redis view of the facts: fast to read, puts writes in order, and may be lost at any time.

Every change is one Lua script (`lua/`), idempotent and order-free, and the same scripts serve requests,
housekeeping and the rebuild. It is trusted only while the gate is open (`gate`). Knows nothing of the bucket.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

import redis
from redis.client import Pipeline

from services.shared import tracing
from services.shared.domain import (
    AliasFact,
    ArtifactRecord,
    FailureRecord,
    Speaker,
    VersionRecord,
    VoidFact,
    build_of,
    without_build,
)
from services.shared.facts import SpeakerId
from services.shared.gate import BOOT, Gate, GateClosed
from services.shared.index_reading import Flight, IndexedSpeaker, read_hash, read_look
from services.shared.redis_access import unavailable_without_redis
from speaker_registry.errors import (
    Conflict,
    IdempotencyKeyReused,
    QuotaExceeded,
    RegistrationInProgress,
    Unavailable,
    VoiceDamaged,
    VoiceExists,
    VoiceNotFound,
    VoiceUnreadable,
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
_LOOKING_SECONDS = 120.0
"""Longer than the scripts ever put off a look, so that every call for one shows while somebody looks."""
_NOBODY = SpeakerId("no", "speaker")
"""For scripts that are about no speaker."""


class RebuildLost(Exception):
    """Somebody else finished the rebuild or began it anew: nothing is ours to forget any more."""


class Rivals(Exception):
    """Another publish of the same artifact was let through: wait until what it stores cannot come first."""


class AliasMoved(Conflict):
    """Somebody moved the alias since it was read."""

    code = "alias_moved"


class TooManyVersions(QuotaExceeded):
    """The speaker has as many versions as one may have."""


class NamespaceFull(QuotaExceeded):
    """An upload would take more than what is left of the namespace's bytes."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A place in one speaker's order."""

    seq: int
    number: int
    created_at: int
    vuid: str = ""
    """Of the version it is for."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Answer to a claim. `outcome`: claimed, flying, ready, failed, dead, or full: it was made as often as it
    may be. `job_id` of ours or the one to join.
    """

    outcome: str
    job_id: str | None = None
    build: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Also:
    """Versions that a look reads beside those that it always reads. Those that do not exist are left out."""

    number: int | None = None
    vuid: str | None = None
    idempotency: str | None = None
    """Hash of the Idempotency-Key that a version was registered with."""
    limit: int | None = None
    """So many of the newest versions."""
    before: int | None = None
    """With `limit`: only versions with a smaller number."""

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class SpeakerIndex(Gate):
    """All that Redis knows of speakers and the jobs' records. Methods raise `GateClosed` or `Unavailable`."""

    def __init__(self, url: str, bucket: str, *, clock: Callable[[], float] = time.time) -> None:
        """`bucket`: the identity of the bucket whose facts it shows."""
        super().__init__(url, bucket)
        self._clock = clock

    # -- the rebuild

    def begin_rebuild(self, token: str) -> str:
        """From here on only the rebuild of this `token` may forget anything and open the gate.

        Returns what to open it with. Raises `RebuildLost` if it is open.
        """
        stamp = self.server_stamp()
        self._run("begin_rebuild", _NOBODY, rebuilding=True, stamp=stamp, token=token)
        return stamp

    def open_gate(self, stamp: str, token: str) -> None:
        """The rebuild is done, if the server is still the one it began on. Raises `RebuildLost`."""
        self._run("open_gate", _NOBODY, rebuilding=True, stamp=stamp, token=token)

    def reset(self, speaker_id: SpeakerId, token: str) -> None:
        """Forget what the facts are about to tell again. Raises `RebuildLost`."""
        self._run("reset", speaker_id, rebuilding=True, token=token)

    def forget_all_but(self, known: Set[SpeakerId], token: str) -> None:
        """In a rebuild: speakers that the bucket does not know. Raises `RebuildLost`."""
        with unavailable_without_redis():
            found = [_id_of(key) for key in self.ungated.scan_iter(f"{_TENANTS}*:v:*", count=1000)]
        for speaker_id in (one for one in dict.fromkeys(found) if one not in known):
            self._run("reset", speaker_id, rebuilding=True, token=token, wholly=True)

    def _run(self, script: str, speaker_id: SpeakerId, *, rebuilding: bool = False, **args: Any) -> Any:
        keys, parameters = self._keys(speaker_id), self._json(speaker_id, rebuilding, args)
        with tracing.span(f"index.{script}", kind="client"), unavailable_without_redis():
            try:
                return self.call(script, keys, parameters, rebuilding=rebuilding)
            except redis.ResponseError as error:
                raise _refusal(error, speaker_id) from error

    def _keys(self, speaker_id: SpeakerId) -> list[str]:
        return [speaker_key(speaker_id), BOOT, EVENTS, names_key(speaker_id.namespace), DIRTY]

    def _json(self, speaker_id: SpeakerId, quiet: bool, args: Mapping[str, Any]) -> str:
        given = {
            name: value for name, value in args.items() if value is not None
        }  # Lua's null would count as true
        return json.dumps({"speaker": str(speaker_id), "now": self._clock(), "quiet": quiet, **given})

    # -- order

    def reserve_version(
        self,
        speaker_id: SpeakerId,
        *,
        max_speakers: int,
        immutable: bool,
        bytes_to_store: int = 0,
        max_stored_bytes: int | None = None,
        max_versions: int | None = None,
        vuid: str = "",
        request: str = "",
        idempotency: str | None = None,
    ) -> Reservation:
        """The place of a version, to be used within `COMMIT_SECONDS`.

        Args:
            max_speakers, max_stored_bytes: of the namespace; what is on its way at the same moment may go
                beyond. max_versions: of the speaker. vuid: for the new version. request, idempotency: hashes;
                the same pair again, within `REPEAT_SECONDS`, is given the same place and vuid, so that both
                make the same version.

        Raises:
            QuotaExceeded, NamespaceFull, TooManyVersions; VoiceExists: a live speaker may not be
            overwritten; RegistrationInProgress: nor one
            that another request has reserved a place for and may still register; IdempotencyKeyReused;
            VoiceDamaged; Unavailable: after that, as long as the last attempt may still land.
        """
        return Reservation(
            *self._run(
                "reserve",
                speaker_id,
                kind="ver",
                max_speakers=max_speakers,
                bytes=bytes_to_store,
                max_bytes=max_stored_bytes,
                max_versions=max_versions,
                immutable=immutable,
                vuid=vuid,
                request=request,
                idempotency=idempotency,
                landing=LANDING_SECONDS,
                repeats=REPEAT_SECONDS,
            )
        )

    def reserve_tombstone(self, speaker_id: SpeakerId, *, unchanged: int | None = None) -> Reservation:
        """Raises `VoiceNotFound`; `AliasMoved` if `unchanged` is not its last seq any more."""
        return Reservation(*self._run("reserve", speaker_id, kind="del", unchanged=unchanged))

    def reserve_alias(self, speaker_id: SpeakerId, alias: str, *, expected: int | None = None) -> int:
        """For a move by hand. Returns the seq. The move has to be put within `PENDING_MOVE_SECONDS`.

        Args:
            expected: seq of the move in force, 0 if there is none.

        Raises:
            VoiceNotFound; VoiceDamaged; AliasMoved: another move is in force, or may be on its way.
        """
        seq, *_ = self._run(
            "reserve", speaker_id, kind="als", alias=alias, expected=expected, pending=PENDING_MOVE_SECONDS
        )
        return int(seq)

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
        seq, *_ = self._run(
            "reserve",
            speaker_id,
            kind="als",
            alias=alias,
            expected=expected,
            automatic=True,
            vuid=vuid,
            serves=",".join(sorted(serves)),
            pending=PENDING_PROMOTION_SECONDS,
        )
        return int(seq)

    # -- facts

    def apply_version(
        self, speaker_id: SpeakerId, seq: int, record: VersionRecord, *, rebuilding: bool = False
    ) -> bool:
        """Returns whether it is live."""
        return bool(
            self._run(
                "apply_version",
                speaker_id,
                rebuilding=rebuilding,
                seq=seq,
                vuid=record.vuid,
                number=record.number,
                created_at=record.created_at,
                key=record.key,
                record=record.to_json(),
                idempotency=record.idempotency,
            )
        )

    def apply_tombstone(
        self, speaker_id: SpeakerId, seq: int, number: int, created_at: int, *, rebuilding: bool = False
    ) -> int:
        """Returns how many versions it killed."""
        args = {"seq": seq, "number": number, "created_at": created_at}
        return int(self._run("apply_tombstone", speaker_id, rebuilding=rebuilding, **args))

    def apply_alias(self, speaker_id: SpeakerId, fact: AliasFact, *, rebuilding: bool = False) -> bool:
        """Returns whether it is the last move."""
        args = _move(fact)
        return bool(self._run("apply_alias", speaker_id, rebuilding=rebuilding, **args))

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
        rebuilding: bool = False,
    ) -> str | None:
        """Put an artifact in force, end the job that made it, and move the alias that waited for it, all at
        once.

        Returns the winner in force; None: dead. Raises `Rivals` if `begin` let through others than the token
        `alone`.
        """
        winner = self._run(
            "ready",
            speaker_id,
            rebuilding=rebuilding,
            vuid=vuid,
            base=without_build(akey),
            build=record.build,
            winner=record.winner,
            record=record.to_json(),
            profile=record.profile,
            fingerprint=record.fingerprint,
            job=job_id,
            claimed=claimed,
            promotion=_move(promotion) if promotion else None,
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
        rebuilding: bool = False,
    ) -> bool:
        """Record that an extraction was given up, and end its job. Returns whether the version is live.

        Args:
            canceled: somebody canceled the job. It goes on while its attempt is publishing.
        """
        return bool(
            self._run(
                "failed",
                speaker_id,
                rebuilding=rebuilding,
                vuid=vuid,
                akey=akey,
                attempt=record.attempt,
                record=record.to_json(),
                profile=record.profile,
                job=job_id,
                claimed=claimed,
                error=error,
                canceled=canceled or None,
            )
        )

    def apply_void(self, speaker_id: SpeakerId, fact: VoidFact, *, rebuilding: bool = False) -> bool:
        """Let an artifact count no more: its bytes were lost. Returns whether the version is live."""
        return bool(
            self._run(
                "void",
                speaker_id,
                rebuilding=rebuilding,
                vuid=fact.vuid,
                base=without_build(fact.akey),
                build=build_of(fact.akey),
            )
        )

    def apply(self, speaker_id: SpeakerId, truth: Speaker, *, rebuilding: bool = False) -> None:
        """Everything the facts say. What is there already stays as it is."""
        self._run(
            "apply_marks",
            speaker_id,
            rebuilding=rebuilding,
            seq=truth.seq,
            number=truth.number,
            created_at=truth.created_at,
            damaged=truth.damaged,
            unreadable=" ".join(truth.unreadable),
        )
        if truth.tombstone:
            self.apply_tombstone(
                speaker_id, truth.tombstone, truth.number, truth.created_at, rebuilding=rebuilding
            )
        for version in truth.versions:
            self.apply_version(speaker_id, version.seq, version.record, rebuilding=rebuilding)
            for akey in version.void:
                self.apply_void(speaker_id, VoidFact(version.vuid, akey), rebuilding=rebuilding)
            for akey, artifact in version.artifacts.items():
                self.apply_artifact(speaker_id, version.vuid, akey, artifact, rebuilding=rebuilding)
            for akey, failure in version.failures.items():
                self.apply_failure(speaker_id, version.vuid, akey, failure, rebuilding=rebuilding)
        for fact in truth.alias_facts.values():
            self.apply_alias(speaker_id, fact, rebuilding=rebuilding)

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
    ) -> Claim:
        """Ask to be the one who computes. `job`: the record's fields, `id` and `ns` among them."""
        outcome, *rest = self._run(
            "claim",
            speaker_id,
            vuid=vuid,
            profile=profile,
            fingerprint=fingerprint,
            base=base,
            force=force,
            max_builds=max_builds,
            steal=steal,
            job=dict(job),
        )
        return Claim(outcome, *rest[:1], *(int(build) for build in rest[1:]))

    def start(self, speaker_id: SpeakerId, job_id: str, flight: Flight, *, worker: str) -> int:
        """A worker takes the job in hand. Returns the attempt, from 1; 0: nobody wants it any more."""
        return int(
            self._run(
                "start",
                speaker_id,
                job=job_id,
                vuid=flight.vuid,
                profile=flight.profile,
                fingerprint=flight.fingerprint,
                worker=worker,
                stages=STAGES,
            )
        )

    def begin(
        self, speaker_id: SpeakerId, job_id: str, attempt: int, flight: Flight, akey: str, *, token: str
    ) -> int:
        """May this attempt publish? 1 yes, 0 another one did or will, -2 the version is dead.

        Args:
            token: unique to this call, for `apply_artifact`.
        """
        return int(
            self._run(
                "begin",
                speaker_id,
                job=job_id,
                attempt=attempt,
                vuid=flight.vuid,
                profile=flight.profile,
                fingerprint=flight.fingerprint,
                akey=akey,
                token=token,
            )
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

        Raises `NamespaceFull` if its `size` is more than what is left of the namespace's bytes.
        """
        return int(
            self._run(
                "begin",
                speaker_id,
                vuid=vuid,
                akey=akey,
                token=token,
                bytes=size,
                max_bytes=max_stored_bytes,
            )
        )

    def set_job(
        self,
        speaker_id: SpeakerId,
        job_id: str,
        state: str,
        fields: Mapping[str, Any] | None = None,
        *,
        landing: Flight | None = None,
    ) -> bool:
        """Change an unfinished job's record; with `landing`, end its flight. Returns False if it had
        finished.
        """
        flight: dict[str, Any] = (
            {"vuid": landing.vuid, "profile": landing.profile, "claimed": landing.fingerprint}
            if landing
            else {}
        )
        return bool(
            self._run("job", speaker_id, job=job_id, state=state, fields=dict(fields or {}), **flight)
        )

    # -- reading

    def load(self, speaker_id: SpeakerId) -> IndexedSpeaker:
        """One consistent look at a speaker; not live if the index does not know it."""
        return self.load_many([speaker_id])[0]

    def load_many(self, speaker_ids: Sequence[SpeakerId]) -> list[IndexedSpeaker]:
        """Several speakers in one round trip, in the given order."""

        def ask(pipeline: Pipeline) -> None:
            for speaker_id in speaker_ids:
                pipeline.hgetall(speaker_key(speaker_id))

        return [read_hash(fields) for fields in self.read(ask)]

    def look(self, speaker_id: SpeakerId, also: Also | None = None) -> IndexedSpeaker:
        """One consistent look at what answers need of a speaker. It costs the same with one version and
        with a thousand.

        The speaker has its marks and aliases, and of its versions the oldest, the newest, those that aliases
        point to, and those that `also` names.
        """
        return read_look(self._run("look", speaker_id, **(also.arguments if also else {})))

    def look_many(self, speaker_ids: Sequence[SpeakerId]) -> list[IndexedSpeaker]:
        """The same of several speakers, in the given order."""

        def ask(pipeline: Pipeline) -> None:
            for speaker_id in speaker_ids:
                self.queue(pipeline, "look", self._keys(speaker_id), self._json(speaker_id, True, {}))

        return [read_look(answer) for answer in self.read(ask)]

    def usage(self, namespace: str) -> tuple[int, int]:
        """How many live speakers a namespace has, and the bytes their versions were uploaded with."""
        names = names_key(namespace)

        def ask(pipeline: Pipeline) -> None:
            pipeline.zcard(names)
            pipeline.get(f"{names}:bytes")

        speakers, stored = self.read(ask)
        return int(speakers), int(stored or 0)

    def names(self, namespace: str, *, after: str = "", limit: int) -> list[str]:
        """Keys of live speakers, sorted, from the one after `after`."""
        start = f"({after}" if after else "-"
        (keys,) = self.read(lambda pipeline: pipeline.zrangebylex(names_key(namespace), start, "+", 0, limit))
        return list(keys)

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
        score = self._run("look_again", speaker_id, seconds=seconds, seen=seen)
        return float(score) if score else None


def _move(fact: AliasFact) -> dict[str, Any]:
    return {
        "seq": fact.seq,
        "alias": fact.alias,
        "automatic": fact.automatic,
        "uid": fact.uid,
        "vuid": fact.vuid,
    }


def speaker_key(speaker_id: SpeakerId) -> str:
    return f"{_TENANTS}{speaker_id.namespace}:v:{speaker_id.slug}"


def _id_of(key: str) -> SpeakerId:
    namespace, _, slug = key.removeprefix(_TENANTS).split(":", 2)
    return SpeakerId(namespace, slug)


def names_key(namespace: str) -> str:
    return f"{_TENANTS}{namespace}:names"


def key_reused() -> IdempotencyKeyReused:
    """Does not show the key, which may be a secret."""
    return IdempotencyKeyReused(
        "This Idempotency-Key was used for another request. Accepted: that same request again, or a new key."
    )


def voice_damaged(name: str) -> VoiceDamaged:
    """The log names the object."""
    return VoiceDamaged(
        f"A record of voice '{name}' is damaged in the bucket, so nobody can tell what the name stands for. "
        "Restore the object that the log names from a backup, or delete the voice."
    )


def voice_unreadable(name: str) -> VoiceUnreadable:
    """The log names the object."""
    return VoiceUnreadable(
        f"A record of voice '{name}' cannot be read from the bucket now, so nobody can tell what the name "
        "stands for. It is tried again; the log names the object.",
        retry_after_seconds=60,
    )


def _refusal(error: redis.ResponseError, speaker_id: SpeakerId) -> Exception:
    """What a script's error reply means to a caller; the error itself if it is none of ours."""
    ours: dict[str, Exception] = {
        "GATE": GateClosed(),
        "LOST": RebuildLost(),
        "RIVALS": Rivals(),
        "QUOTA": QuotaExceeded("Uploaded voice limit reached."),
        "VERSIONS": TooManyVersions("The voice has as many versions as it may have."),
        "FULL": NamespaceFull("The uploads of this namespace take as much as they may."),
        "EXISTS": VoiceExists(f"Voice '{speaker_id.slug}' already exists."),
        "RESERVED": RegistrationInProgress(
            f"Voice '{speaker_id.slug}' is being registered by another request, and the registration policy "
            "is 'immutable'. Try again: it may have failed.",
            retry_after_seconds=10,
        ),
        "NOTFOUND": VoiceNotFound(f"Voice '{speaker_id.slug}' not found"),
        "REUSED": key_reused(),
        "UNREADABLE": voice_unreadable(speaker_id.slug),
        "DAMAGED": voice_damaged(speaker_id.slug),
        "LANDING": Unavailable(
            "An earlier attempt of this request may still be stored: try again later.", retry_after_seconds=60
        ),
        "MOVED": AliasMoved("The alias was moved meanwhile."),
    }
    return ours.get(str(error).partition(" ")[0], error)
