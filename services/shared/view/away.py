"""The errors of a view that cannot be used now."""

from speaker_registry.errors import Unavailable


class ViewAway(Unavailable):
    """The view cannot be used now. Callers read from the bucket instead."""

    def __init__(self, message: str = "The view in Redis is being replaced; try again shortly.") -> None:
        super().__init__(message, retry_after_seconds=1)


class LeftBehind(ViewAway):
    """The view in use is in another Redis than the one that this process is connected to."""

    def __init__(self) -> None:
        super().__init__(
            "The view in use lies in another Redis than the one of this process. Accepted: the same "
            "SPEAKER_REDIS_URL for every process of the registry."
        )


class RedisTaken(ViewAway):
    """The server holds the view of another bucket."""

    def __init__(self) -> None:
        super().__init__(
            "Redis holds the view of another bucket. Accepted: a Redis of its own for each registry, or this "
            "one once it has been emptied (FLUSHDB; for `make run`, stop it and delete the folder "
            "DATA/redis)."
        )
