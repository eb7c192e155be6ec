"""Seals data that browsers store for the registry, so that they can neither read nor change it. This module
knows no requests.

All API processes share one secret, which the first process stores in Redis. If Redis loses the secret, sealed
data can no longer be opened, and people sign in again. The secret alone gives no access, because the sealed
data are API keys, which cannot be made from the secret.
"""

import threading
import time
from collections.abc import Callable
from typing import cast

from cryptography.fernet import Fernet, InvalidToken
from redis import Redis

from services.shared.view.redis_access import unavailable_without_redis

SEALED_SECONDS = 12 * 3600
"""Sealed data that are older than this cannot be opened."""
_SECRET = "sr:seal_secret"  # noqa: S105 - the name of the key in Redis
_REREAD_SECONDS = 1.0
"""Shortest time between two readings of the secret, however many invalid cookies are sent."""


class Seal:
    """Seals and opens data. Safe to use from several threads."""

    def __init__(self, redis: Redis, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._fernet: Fernet | None = None
        self._read_at = float("-inf")

    def seal(self, data: bytes) -> str:
        """Return the data encrypted and signed, as text for a cookie. Raises `Unavailable`."""
        return self._current().encrypt(data).decode()

    def open(self, text: str) -> bytes | None:
        """Return the data, or None if it was not sealed here, or too long ago. Raises `Unavailable`."""
        sent = text.encode()
        opened = _opened(self._current(), sent)
        if opened is None and self._monotonic() - self._read_at > _REREAD_SECONDS:
            opened = _opened(self._read(), sent)  # Redis may have lost the secret and hold another one now
        return opened

    def _current(self) -> Fernet:
        return self._fernet or self._read()

    def _read(self) -> Fernet:
        with self._lock, unavailable_without_redis():
            made = Fernet.generate_key().decode()
            known = cast(str | None, self._redis.set(_SECRET, made, nx=True, get=True))
            self._fernet, self._read_at = Fernet(known or made), self._monotonic()
            return self._fernet


def _opened(fernet: Fernet, sent: bytes) -> bytes | None:
    try:
        return fernet.decrypt(sent, ttl=SEALED_SECONDS)
    except InvalidToken:
        return None
