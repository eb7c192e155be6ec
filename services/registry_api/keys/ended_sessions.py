"""Remembers which sessions of people ended early, so that copies of their cookies are refused.

Redis keeps the id of each session until its cookie expires. If Redis loses the ids, it also loses the secret
of all cookies: see `seal`.
"""

from redis import Redis

from services.registry_api.keys.seal import SEALED_SECONDS
from services.shared.view.redis_access import unavailable_without_redis

_PREFIX = "sr:ended_session:"


class EndedSessions:
    """The sessions that ended by signing out. All API processes share them. Every method may raise
    `Unavailable`.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def add(self, session_id: str) -> None:
        with unavailable_without_redis():
            self._redis.set(f"{_PREFIX}{session_id}", 1, ex=SEALED_SECONDS)

    def has(self, session_id: str) -> bool:
        with unavailable_without_redis():
            return bool(self._redis.exists(f"{_PREFIX}{session_id}"))
