"""The random words that a process writes to Redis to notice when the server was rolled back, or refuses what
writes need.
"""

from pathlib import Path
from typing import Any

import redis

from services.shared.model.clock import Clock
from services.shared.view.keys import words_key

_TRY_COMMANDS = (Path(__file__).parent / "lua" / "_words.lua").read_text()
_KEY_OF_RQ = "rq:queues"
"""A key of RQ. A user who must not use it could register voices, and no extraction could be queued."""


class Words:
    """The random words that one process writes to Redis."""

    def __init__(self, server: redis.Redis, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._try_commands = server.register_script(_TRY_COMMANDS)
        self._word = ""
        """The word that this process wrote at its last check. Empty if there was none in this generation."""
        process = clock.new_id()
        self._fields = (f"{process}:0", f"{process}:1")
        """The fields that hold this word and the next one."""
        self._gone_back = ""
        """The generation that was rolled back, as far as this process knows."""
        self.refusal: redis.ResponseError | None = None
        """The error with which the server refused the last word, or a command that writes need. None if it
        refused neither.
        """

    def begin(self) -> None:
        """Expect no word at the next check, because a generation has just begun."""
        self._word = ""

    def is_there(self, generation: str, *, used_last: bool) -> bool:
        """Write a new word to Redis, and return whether the previous one is still stored.

        A server that was rolled back under the same `run_id` does not have it. A server that refuses writes
        keeps the previous word, which is then expected at the next check as well.

        Args:
            used_last: whether this process used this generation last. No word is expected in any other
                generation.

        Raises:
            redis.ResponseError: the server refuses writes, and this process has no word in the generation.
        """
        key, expected = words_key(generation), self._word if used_last else ""
        try:
            found = self._replace(key)
            self.refusal = None
        except redis.ResponseError as refusal:
            self.refusal = refusal
            if not expected:
                raise
            found = self._server.hget(key, self._fields[0])
        if expected and found != expected:
            self._gone_back = generation
        return self._gone_back != generation

    def _replace(self, key: str) -> Any:
        """Write a new word, and return the previous one.

        Two fields are used in turn, because the client repeats a pipeline whose reply was lost, and the
        repeat must find the same word. The two scripts change nothing. They are refused if this user lacks a
        right with which the view and the queues are written.
        """
        word, (last, next_one) = self._clock.new_id(), self._fields
        pipeline = self._server.pipeline(transaction=True)
        pipeline.hget(key, last)
        pipeline.hset(key, next_one, word)
        pipeline.eval("return 0", 0)  # as the scripts of the queues are run
        self._try_commands([key, f"{key}:absent", _KEY_OF_RQ], [next_one], client=pipeline)
        found, *_ = pipeline.execute()
        self._word, self._fields = word, (next_one, last)
        return found
