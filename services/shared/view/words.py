"""The random words that a process writes to Redis to notice when the server was rolled back."""

import redis

from services.shared.model.clock import Clock
from services.shared.view.keys import words_key


class Words:
    """The random words that one process writes to Redis."""

    def __init__(self, server: redis.Redis, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._word = ""
        """The word that this process wrote at its last check. Empty if there was none in this generation."""
        process = clock.new_id()
        self._fields = (f"{process}:0", f"{process}:1")
        """The fields that hold this word and the next one."""
        self._gone_back = ""
        """The generation that was rolled back, as far as this process knows."""

    def begin(self) -> None:
        """Expect no word at the next check, because a generation has just begun."""
        self._word = ""

    def is_there(self, generation: str, *, used_last: bool) -> bool:
        """Write a new word to Redis, and return whether the previous one is still stored.

        A server that was rolled back under the same `run_id` does not have it. Two fields are used in turn,
        because the client repeats a pipeline whose reply was lost, and the repeat must find the same word.

        Args:
            used_last: whether this process used this generation last. No word is expected in any other
                generation.
        """
        key, word = words_key(generation), self._clock.new_id()
        expected = self._word if used_last else ""
        last, next_one = self._fields
        pipeline = self._server.pipeline(transaction=True)
        pipeline.hget(key, last)
        pipeline.hset(key, next_one, word)
        found, _ = pipeline.execute()
        self._word, self._fields = word, (next_one, last)
        if expected and found != expected:
            self._gone_back = generation
        return self._gone_back != generation
