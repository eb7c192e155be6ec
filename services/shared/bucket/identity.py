"""Gives each bucket an identity, so that an index built for one bucket cannot pass for another bucket's.

    _registry/identity    the identity, once and for all
    _registry/{uid}       candidates, where the store has no conditional writes

All processes that start on an empty bucket at the same time must agree. If the store has conditional writes,
the first process creates `identity`. Otherwise each process puts a candidate, and the candidate that is
oldest by the store's own dates counts. Once its age exceeds the difference between the store's clocks plus
the lag of a listing, no other candidate can come before it. So all processes write the same identity, however
late a write lands.
"""

import re

from services.shared.bucket.connection import StoreUnfit
from services.shared.bucket.facts import commit, list_several_times, read_object
from services.shared.bucket.keys import IDENTITY, REGISTRY_FOLDER, MarkerKey, parse_key
from services.shared.bucket.store import Listing, Store
from services.shared.model.clock import Clock
from speaker_registry.errors import Unavailable

_UID = re.compile(rb"[0-9a-f]{32}")
_SETTLED_SECONDS = 5.0
"""The age at which a candidate is settled. It is longer than the difference between a store's clocks and the
lag of a listing together.
"""
_LOOK_AGAIN_SECONDS = 1.0


def bucket_identity(store: Store, clock: Clock) -> str:
    """Return the bucket's identity, 32 hex digits. The first use of the bucket makes it, which may take
    seconds.

    Raises:
        Unavailable: the store does not answer, or does not show what was stored in it.
        StoreUnfit: the identity is damaged. Only a person can decide what to do.
    """
    return _read(store) or _make(store, clock)


def _read(store: Store) -> str | None:
    """Return the identity, or None if there is none yet."""
    body = read_object(store, IDENTITY)
    if body is None:
        return None
    if not _UID.fullmatch(body):
        raise StoreUnfit(
            f"the object '{IDENTITY}' of the bucket is damaged: restore it from a backup; or stop all "
            "processes of the registry and delete it to have a new one made"
        )
    return body.decode()


def _make(store: Store, clock: Clock) -> str:
    candidate = _oldest(list_several_times(store, REGISTRY_FOLDER, 2))
    uid = candidate or clock.new_id()
    if store.create(IDENTITY, uid.encode()) is None:
        if candidate is None:
            commit(store, MarkerKey(uid))
        store.put(IDENTITY, _elected(store, clock).encode())
    made = _read(store)  # another process may have been faster
    if made is None:
        raise Unavailable("The bucket's identity was stored and is not there.", retry_after_seconds=1)
    return made


def _elected(store: Store, clock: Clock) -> str:
    """Wait until no other candidate can come before the oldest one, and return its uid."""
    deadline = clock.monotonic() + 10 * _SETTLED_SECONDS
    while clock.monotonic() < deadline:
        listing = list_several_times(store, REGISTRY_FOLDER, 2)
        elected = _oldest(listing, older_than_seconds=_SETTLED_SECONDS)
        if elected is not None:
            return elected
        clock.sleep(_LOOK_AGAIN_SECONDS)
    raise Unavailable("The bucket does not list what was stored in it.", retry_after_seconds=1)


def _oldest(listing: Listing, *, older_than_seconds: float = 0.0) -> str | None:
    """Return the uid of the oldest candidate, or the smallest uid of those with the same date. Returns None
    if there is no candidate, or if the oldest is too young.
    """
    candidates = [
        (stored.last_modified, key.uid)
        for stored in listing.objects
        if isinstance(key := parse_key(stored.key), MarkerKey)
    ]
    landed_at, uid = min(candidates, default=(listing.taken_at, None))
    age = (listing.taken_at - landed_at).total_seconds()
    return uid if not older_than_seconds or age > older_than_seconds else None
