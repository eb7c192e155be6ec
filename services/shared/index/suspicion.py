"""Remembers in Redis what one listing of a speaker's objects showed to be garbage, until another one agrees.

A listing may leave out an object that is there, and what that object names then looks like garbage. So
nothing is collected on the word of one listing. If Redis is lost, the first listing has to be taken again.
"""

import hashlib
from collections.abc import Sequence
from typing import cast

from services.shared.bucket.keys import SpeakerId
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.speaker_index import SpeakerIndex


def confirmed(
    index: SpeakerIndex,
    speaker_id: SpeakerId,
    keys: Sequence[str],
    *,
    at: float,
    apart_seconds: float,
    kept_seconds: float,
) -> list[str]:
    """Return those of `keys` that every listing has shown to be garbage for at least `apart_seconds`.

    Args:
        keys: the keys that look like garbage in the listing taken `at` (Unix seconds of the store).
            Remembered keys that are not among them are forgotten.
        kept_seconds: this listing is remembered for this long, which must be longer than until the next
            sweep.

    Raises:
        GateClosed, Unavailable.
    """
    name = f"sr:suspicion:{speaker_id}"
    with unavailable_without_redis():
        before = cast(dict[str, str], index.redis.hgetall(name))
        if not keys and not before:
            return []
        since = {_digest(key): min(at, float(before.get(_digest(key), at))) for key in keys}
        pipeline = index.redis.pipeline(transaction=True)
        pipeline.delete(name)
        if since:
            pipeline.hset(name, mapping={digest: repr(first) for digest, first in since.items()})
            pipeline.expire(name, int(kept_seconds))
        pipeline.execute()
    return [key for key in keys if at - since[_digest(key)] >= apart_seconds]


def _digest(key: str) -> str:
    """Return a digest of 64 bits.

    That is enough: two keys of one speaker that share them would have to be suspected together.
    """
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
