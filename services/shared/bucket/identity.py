"""Which bucket this is: an index built for one bucket must not pass for another's.

    _registry/identity    the identity, once and for all
    _registry/{uid}       candidates, where the store has no conditional writes

All processes that start on an empty bucket at the same time must agree. Where the store has conditional
writes, the first one creates `identity`. Elsewhere each puts a candidate, and the oldest one counts, by the
store's own dates: once it is older than the store's clocks may differ and a listing may lag, no other can
come before it, whoever puts one. So all of them write the same identity, however late a write lands.
"""

import re

from services.shared.bucket.facts import commit, list_several_times, read_object
from services.shared.bucket.keys import IDENTITY, REGISTRY_FOLDER, MarkerKey, parse_key
from services.shared.bucket.store import Listing, Store, StoreUnfit
from services.shared.model.clock import Clock
from speaker_registry.errors import Unavailable

_UID = re.compile(rb"[0-9a-f]{32}")
_SETTLED_SECONDS = 5.0
"""Longer than a store's clocks are apart and a listing lags, together."""
_LOOK_AGAIN_SECONDS = 1.0


def bucket_identity(store: Store, clock: Clock) -> str:
    """The bucket's identity, 32 hex digits. It is made on the first use of the bucket: that may take seconds.

    Raises:
        Unavailable. StoreUnfit: the identity is damaged; only a person can tell what to do.
    """
    return _read(store) or _make(store, clock)


def _read(store: Store) -> str | None:
    """None: there is none yet."""
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
    """The oldest candidate, when none can come before it any more."""
    deadline = clock.monotonic() + 10 * _SETTLED_SECONDS
    while clock.monotonic() < deadline:
        listing = list_several_times(store, REGISTRY_FOLDER, 2)
        elected = _oldest(listing, older_than_seconds=_SETTLED_SECONDS)
        if elected is not None:
            return elected
        clock.sleep(_LOOK_AGAIN_SECONDS)
    raise Unavailable("The bucket does not list what was stored in it.", retry_after_seconds=1)


def _oldest(listing: Listing, *, older_than_seconds: float = 0.0) -> str | None:
    """The uid of the oldest candidate; of two of one second the smallest. None if it is too young."""
    candidates = [
        (stored.last_modified, key.uid)
        for stored in listing.objects
        if isinstance(key := parse_key(stored.key), MarkerKey)
    ]
    landed_at, uid = min(candidates, default=(listing.taken_at, None))
    age = (listing.taken_at - landed_at).total_seconds()
    return uid if not older_than_seconds or age > older_than_seconds else None
