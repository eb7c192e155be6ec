"""The words that a process leaves in Redis, by which it notices that the server was rolled back."""

import redis

from services.shared.model.clock import Clock
from services.shared.view.keys import words_key


class Words:
    """The words of one process."""

    def __init__(self, server: redis.Redis, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._word = ""
        """The word that this process left at its last look. Empty if there was none in this generation."""
        process = clock.new_id()
        self._fields = (f"{process}:0", f"{process}:1")
        """The fields that hold this word and the next one."""
        self._gone_back = ""
        """The generation that this process knows to have been rolled back."""

    def begin(self) -> None:
        """Expect no word at the next look: a generation has just begun."""
        self._word = ""

    def is_there(self, generation: str, *, used_last: bool) -> bool:
        """Leave a fresh word in Redis, and return whether the last one is there.

        A server that was rolled back under one `run_id` does not have it. The two words take turns in two
        fields: the client repeats a pipeline whose reply was lost, and must find the same then.

        Args:
            used_last: whether this is the generation that this process used last. In any other no word of it
                is expected.
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
