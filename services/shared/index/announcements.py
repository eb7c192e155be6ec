"""Records which encoder of each profile is current, which ones are candidates, and which workers are alive.

That an encoder became current is a fact in the bucket (an *announcement*), and so is that a worker came with
another one (a *candidate*). Redis holds a copy of the last announcement. `model/encoders.py` has the rules.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
import structlog

from services.shared.bucket.encoder_records import (
    Announcement,
    KnownEncoders,
    candidate_key,
    listed_announcements,
    read_announcement,
)
from services.shared.bucket.facts import commit
from services.shared.bucket.keys import LAST_SEQ, AnnouncementKey
from services.shared.bucket.store import Store
from services.shared.index.gate import GateClosed
from services.shared.index.leases import TAKEN, event_of_all
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.speaker_index import EVENTS, SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.model.domain import Record
from services.shared.model.encoders import Encoder, former_after, takes_over
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

PROFILE_UPDATED = "profile.updated"
"""Type of the event that a profile was announced with another fingerprint."""
_PROFILES = "sr:profiles"
_REQUIRED = "sr:required"
"""This key holds the profiles that the process that started last requires of every voice."""
SWEEPS_ASKED = "sr:sweeps_asked"
"""Counts how often housekeeping was asked to look at every speaker."""
_TELL = """
-- Redis's copy never gets older. KEYS: copies, events, taken. ARGV: profile, seq, uid, JSON, event
-- -> 1 if it told another before
local told = redis.call('HGET', KEYS[1], ARGV[1])
local before, seq, uid = told and cjson.decode(told), tonumber(ARGV[2]), ARGV[3]
if before and (before.seq > seq or (before.seq == seq and before.uid >= uid)) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
redis.call('SET', KEYS[3], redis.call('XADD', KEYS[2], 'MAXLEN', '~', '50000', '*', 'd', ARGV[5]))
return before and 1 or 0
"""
_ALIVE_SECONDS = 20
_TOLD_SECONDS = 600
"""A failed proof is shown for this long after its worker last reported it. A worker that fails and ends is
started again within five minutes, so its failed proof is shown all the time.
"""
_REMEMBERED_SECONDS = 1.0
_UNREADABLE_SECONDS = 10.0
"""The bucket is not asked again for this long after the newest announcement could not be read. Redis is still
asked, because a worker may have announced the profile again.
"""


class FailedProof(Record):
    """A worker that does not serve a profile, because its encoder computes something else than it should."""

    worker: str
    device: str
    """The device as torch names it, for example `cpu` or `cuda:0`."""
    reason: str
    """The reason says which tensor differs, and by how much."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    announcement: Announcement | None
    until: float


@dataclass(frozen=True, slots=True)
class _Served:
    served: bool
    until: float


class Announcements:
    """Reads and writes announcements. Reads cost at most one round trip a second per profile."""

    def __init__(
        self,
        store: Store,
        index: SpeakerIndex,
        clock: Clock,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._monotonic = monotonic
        self._remembered: dict[str, _Remembered] = {}  # bounded: only catalogue names get here
        self._times_forgotten = 0
        self._served: dict[str, _Served] = {}  # likewise
        self._unreadable_until: dict[str, float] = {}  # likewise
        self._known = KnownEncoders(store, monotonic)
        self._tell = index.ungated.register_script(_TELL)

    def announce(
        self, profile: str, fingerprint: str, extractor: Mapping[str, Any], *, untrained: bool
    ) -> bool:
        """Record that a worker came with this encoder. Returns whether the encoder is the current one.

        It becomes the current one if `takes_over` says so. Otherwise it is recorded as a candidate.
        """
        encoder = Encoder(
            profile=profile, fingerprint=fingerprint, extractor=dict(extractor), untrained=untrained
        )
        last, current = self._newest(profile)
        if current is not None and current.fingerprint == fingerprint:
            if self._publish(current):  # the process that announced it died before it had told Redis
                self._ask_for_sweep()
            return True
        if takes_over(current, encoder, first=last == 0):
            self._make_current(encoder, last, current)
            return True
        commit(self._store, candidate_key(encoder), encoder.to_json().encode())
        return False

    def promote(self, encoder: Encoder) -> Announcement:
        """Make an encoder the current one of its profile, whichever is current now."""
        return self._make_current(encoder, *self._newest(encoder.profile))

    def encoder(self, profile: str, fingerprint: str) -> Encoder | None:
        """Return an encoder that was current once, or that a worker came with. Returns None for any other.

        Raises:
            Unavailable: the bucket, or a record that may be the encoder's, cannot be read.
        """
        return self._known.find(profile, fingerprint)

    def _newest(self, profile: str) -> tuple[int, Announcement | None]:
        """Return the place of the newest announcement in the bucket, and the announcement if it is readable.

        If it cannot be read, the copy in Redis is returned, if there is one of that announcement.
        """
        listed = listed_announcements(self._store, profile)
        if not listed:
            return 0, None
        key, stored = listed[-1]
        found = read_announcement(self._store, key, stored)
        if found is None:
            copy = self.told([profile]).get(profile)
            found = copy if copy is not None and copy.seq == key.seq else None
        return key.seq, found

    def _make_current(self, encoder: Encoder, last: int, before: Announcement | None) -> Announcement:
        made = Announcement(
            **encoder.model_dump(include={"profile", "fingerprint", "extractor", "untrained"}),
            seq=min(last + 1, LAST_SEQ),  # at the end the later id decides
            uid=self._clock.new_id(),
            former=former_after(before, before.former if before else (), encoder.fingerprint),
        )
        commit(self._store, AnnouncementKey(made.profile, made.seq, made.uid), made.to_json().encode())
        self._publish(made)
        self._ask_for_sweep()
        log.info("profile.updated", profile=made.profile, fingerprint=made.fingerprint, former=made.former)
        return made

    def require(self, profiles: Iterable[str]) -> None:
        """Record the profiles that this process requires of every voice.

        If they have changed, housekeeping is asked to look at every voice.
        """
        required = ",".join(sorted(profiles))
        with unavailable_without_redis():
            known = self._index.ungated.set(_REQUIRED, required, get=True)
        if known is not None and known != required:
            self._ask_for_sweep()

    def _ask_for_sweep(self) -> None:
        """Ask housekeeping to look at every voice, so that each gets its new artifact."""
        ask_for_sweep(self._index.ungated)

    def current(self, profile: str) -> Announcement | None:
        """Return what the profile is made with, or None if no worker ever announced the profile."""
        remembered = self._remembered.get(profile)
        if remembered is None or remembered.until < self._monotonic():
            times_forgotten = self._times_forgotten
            found = self._look_up(profile)
            # From now on, not from before: a look-up may take longer than it is remembered.
            remembered = _Remembered(found, self._monotonic() + _REMEMBERED_SECONDS)
            if times_forgotten == self._times_forgotten:  # else the look-up may have come before the news
                self._remembered[profile] = remembered
        return remembered.announcement

    def fingerprint(self, profile: str) -> str:
        """Return the profile's current fingerprint. It is empty if no worker ever announced the profile."""
        announced = self.current(profile)
        return announced.fingerprint if announced else ""

    def told(self, profiles: Iterable[str]) -> dict[str, Announcement]:
        """Return the announcements of several profiles that Redis holds a copy of, in one round trip."""
        names = list(profiles)
        with unavailable_without_redis():
            texts: Any = self._index.ungated.hmget(_PROFILES, names)
        return {
            name: Announcement.model_validate_json(text)
            for name, text in zip(names, texts, strict=True)
            if text is not None
        }

    def look_anew(self) -> None:
        """Forget what is remembered, so that later reads look it up again."""
        self._times_forgotten += 1
        self._remembered.clear()
        self._unreadable_until.clear()
        self._known.look_anew()

    def hear(self, event: Mapping[str, Any]) -> None:
        """Look up again what an event of the index says was announced."""
        if event["type"] == PROFILE_UPDATED:
            self.look_anew()

    def beat(self, worker: str, profiles: Mapping[str, str]) -> None:
        """Record that a worker is alive and has the encoders of these profiles (name -> fingerprint)."""
        with unavailable_without_redis():
            pipeline = self._index.ungated.pipeline(transaction=False)
            for profile, fingerprint in profiles.items():
                pipeline.zadd(_workers_key(profile), {f"{fingerprint} {worker}": self._clock.now()})
                pipeline.zremrangebyscore(_workers_key(profile), "-inf", self._clock.now() - 600)
            pipeline.execute()

    def leave(self, worker: str, profiles: Mapping[str, str]) -> None:
        """Record that a worker no longer has the encoders of these profiles (name -> fingerprint)."""
        with unavailable_without_redis():
            for profile, fingerprint in profiles.items():
                self._index.ungated.zrem(_workers_key(profile), f"{fingerprint} {worker}")

    def is_served(self, profile: str) -> bool:
        """Return whether a live worker serves a profile. The answer may be a second old.

        Returns True also if this cannot be found out.
        """
        known = self._served.get(profile)
        if known is None or known.until < self._monotonic():
            try:
                served = self.workers(profile) > 0
            except Unavailable:
                served = True
            known = self._served[profile] = _Served(served, self._monotonic() + _REMEMBERED_SECONDS)
        return known.served

    def workers(self, profile: str) -> int:
        """Return the number of live workers that have the current encoder of a profile."""
        return self.workers_of([profile])[profile].get(self.fingerprint(profile), 0)

    def workers_of(self, profiles: Iterable[str]) -> dict[str, Counter[str]]:
        """Return the number of live workers for each of several profiles and each fingerprint that any of
        them has. This takes one round trip.
        """
        names, since = list(profiles), self._clock.now() - _ALIVE_SECONDS
        with unavailable_without_redis():
            pipeline = self._index.ungated.pipeline(transaction=False)
            for profile in names:
                pipeline.zrangebyscore(_workers_key(profile), since, "+inf")
            answers = pipeline.execute()
        return {
            name: Counter(member.partition(" ")[0] for member in members)
            for name, members in zip(names, answers, strict=True)
        }

    def tell_failed_proofs(self, failed: Mapping[str, FailedProof]) -> None:
        """Record, by profile, which of a worker's encoders failed their proof. Call it with every beat."""
        if not failed:
            return
        with unavailable_without_redis():
            pipeline = self._index.ungated.pipeline(transaction=False)
            for profile, proof in failed.items():
                key = _failed_proofs_key(profile)
                pipeline.zadd(key, {proof.to_json(): self._clock.now()})
                pipeline.zremrangebyscore(key, "-inf", self._clock.now() - _TOLD_SECONDS)
                pipeline.expire(key, _TOLD_SECONDS)
            pipeline.execute()

    def withdraw_failed_proofs(self, failed: Mapping[str, FailedProof]) -> None:
        """Remove the failed proofs of a worker that stops."""
        with unavailable_without_redis():
            for profile, proof in failed.items():
                self._index.ungated.zrem(_failed_proofs_key(profile), proof.to_json())

    def failed_proofs_of(self, profiles: Iterable[str]) -> dict[str, list[FailedProof]]:
        """Return, by profile, the workers whose encoder failed its proof within the last ten minutes.

        This takes one round trip.
        """
        names, since = list(profiles), self._clock.now() - _TOLD_SECONDS
        with unavailable_without_redis():
            pipeline = self._index.ungated.pipeline(transaction=False)
            for profile in names:
                pipeline.zrangebyscore(_failed_proofs_key(profile), since, "+inf")
            answers = pipeline.execute()
        return {
            name: [FailedProof.model_validate_json(one) for one in told]
            for name, told in zip(names, answers, strict=True)
        }

    def _look_up(self, profile: str) -> Announcement | None:
        try:
            with unavailable_without_redis():
                text = self._index.redis.hget(_PROFILES, profile)
        except (GateClosed, Unavailable):
            return self._newest_fact(profile)
        if text is not None:
            return Announcement.model_validate_json(text)
        if self._monotonic() < self._unreadable_until.get(profile, 0.0):
            return None
        announcement = self._newest_fact(profile)
        if announcement is not None:
            with suppress(Unavailable):  # the copy only saves the next reader a look at the bucket
                self._publish(announcement)
        return announcement

    def _newest_fact(self, profile: str) -> Announcement | None:
        """Return the newest announcement in the bucket, or None if there is none or it cannot be read.

        If it is damaged or unreadable, no older one is returned, because that would make everything stale
        that was made since. The next worker that starts announces the profile again.
        """
        listed = listed_announcements(self._store, profile)
        newest = read_announcement(self._store, *listed[-1]) if listed else None
        if listed and newest is None:
            self._unreadable_until[profile] = self._monotonic() + _UNREADABLE_SECONDS
        return newest

    def _publish(self, announcement: Announcement) -> bool:
        """Copy an announcement to Redis. Returns whether Redis held an older one before."""
        self.look_anew()
        told = announcement
        event = event_of_all(PROFILE_UPDATED, self._clock, profile=told.profile, fingerprint=told.fingerprint)
        arguments: list[str | int] = [told.profile, told.seq, told.uid, told.to_json(), event]
        with unavailable_without_redis():
            return bool(self._tell(keys=[_PROFILES, EVENTS, TAKEN], args=arguments))


def ask_for_sweep(client: redis.Redis) -> None:
    """Ask housekeeping to look at every speaker. Raises `Unavailable`."""
    with unavailable_without_redis():
        client.incr(SWEEPS_ASKED)


def _workers_key(profile: str) -> str:
    return f"sr:workers:{profile}"


def _failed_proofs_key(profile: str) -> str:
    return f"sr:failed_proofs:{profile}"
