"""Reads the records of encoders: announcements, which made one current, and candidates. Knows no Redis."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import structlog

from services.shared.bucket.facts import list_several_times, read_record
from services.shared.bucket.keys import AnnouncementKey, CandidateKey, announcements_folder, parse_key
from services.shared.bucket.store import ObjectUnavailable, Store, StoredObject
from services.shared.model.domain import Record
from services.shared.model.encoders import Encoder
from services.shared.telemetry.metrics import INTEGRITY_FAILURES
from speaker_registry.errors import Unavailable

log = structlog.get_logger()
Kind = TypeVar("Kind", bound=Record)

_MAX_REMEMBERED = 256
"""This many encoders are remembered. Their records never change."""
_MISSING_SECONDS = 10
"""The bucket is not asked again for this long after an encoder was not found."""


class Announcement(Encoder):
    """An encoder became the current one of its profile. The JSON is the body of the fact."""

    seq: int
    uid: str
    former: tuple[str, ...] = ()
    """The fingerprints that were current before, the newest first."""


def candidate_key(encoder: Encoder) -> CandidateKey:
    """Return where the record of a candidate is kept."""
    return CandidateKey(encoder.profile, encoder.fingerprint.removeprefix("sha256:"))


def listed_announcements(store: Store, profile: str) -> list[tuple[AnnouncementKey, StoredObject]]:
    """Return the announcements in the bucket, oldest first.

    They come from two listings, because one may leave out the newest.
    """
    objects = list_several_times(store, announcements_folder(profile), 2).objects
    ours = [(key, stored) for stored in objects if isinstance(key := parse_key(stored.key), AnnouncementKey)]
    return sorted(ours, key=lambda one: (one[0].seq, one[0].uid))


def read_announcement(store: Store, key: AnnouncementKey, stored: StoredObject) -> Announcement | None:
    """Return the announcement, or None if it is damaged or cannot be read, which is logged."""
    return _read(store, stored, Announcement, lambda one: (one.profile, one.seq) == (key.profile, key.seq))


def _read(
    store: Store, stored: StoredObject, kind: type[Kind], belongs_there: Callable[[Kind], bool]
) -> Kind | None:
    try:
        body = read_record(store, stored)
        record = kind.model_validate_json(body) if body is not None else None
        if record is not None and not belongs_there(record):
            raise ValueError("the record is not the one that its key says")
    except (ValueError, ObjectUnavailable) as error:
        log.error("announcement.damaged", key=stored.key, error=str(error))
        INTEGRITY_FAILURES.labels("record").inc()
        return None
    return record


@dataclass(frozen=True, slots=True)
class _Missing:
    """An encoder that no readable record tells of."""

    unread: str | None
    """The key of a record that could not be read, and that may be the encoder's."""
    until: float


class KnownEncoders:
    """Finds encoders by their fingerprints, and remembers them. Thread-safe."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._known: dict[tuple[str, str], Encoder | _Missing] = {}

    def look_anew(self) -> None:
        """Forget which encoders were not found."""
        for wanted, known in list(self._known.items()):
            if isinstance(known, _Missing):
                self._known.pop(wanted, None)

    def find(self, profile: str, fingerprint: str) -> Encoder | None:
        """Return an encoder of a profile, or None if the bucket knows none with this fingerprint.

        Raises:
            Unavailable: the bucket, or a record that may be the encoder's, cannot be read.
        """
        known = self._known.get((profile, fingerprint))
        if known is None or (isinstance(known, _Missing) and known.until < self._monotonic()):
            known = self._look_for(profile, fingerprint)
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[profile, fingerprint] = known
        if isinstance(known, Encoder):
            return known
        if known.unread is None:
            return None
        raise Unavailable(
            f"The record {known.unread} of profile '{profile}' is damaged or cannot be read now, so it is "
            f"not known whether {fingerprint} is one of its encoders.",
            param="fingerprint",
            retry_after_seconds=_MISSING_SECONDS,
        )

    def _look_for(self, profile: str, fingerprint: str) -> Encoder | _Missing:
        unread = None
        for stored, found in self._records(profile, fingerprint):
            if found is None:
                unread = unread or stored.key
            elif (found.profile, found.fingerprint) == (profile, fingerprint):
                return found
        return _Missing(unread, self._monotonic() + _MISSING_SECONDS)

    def _records(self, profile: str, fingerprint: str) -> Iterator[tuple[StoredObject, Encoder | None]]:
        """Yield the records that may be those of an encoder, the newest first, with None for unreadable ones.

        The records of candidates with another fingerprint are not read, so one that is unreadable cannot
        prevent the promotion of another encoder.
        """
        candidate = CandidateKey(profile, fingerprint.removeprefix("sha256:"))
        for stored in reversed(list_several_times(self._store, announcements_folder(profile), 2).objects):
            key = parse_key(stored.key)
            if isinstance(key, AnnouncementKey):
                yield stored, read_announcement(self._store, key, stored)
            elif key == candidate:
                yield stored, _read(self._store, stored, Encoder, lambda one: candidate_key(one) == candidate)
