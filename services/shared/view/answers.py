"""Remembers for a while which version answered a request with an Idempotency-Key.

If a request creates a version, the key is stored in the document. A request that is answered with an equal
version creates none, so its key is remembered in Redis: a repeat gets the same answer, whatever is registered
meanwhile. The remembered answers are lost together with the view.
"""

from redis.client import Pipeline

from services.shared.model.speaker import SpeakerId
from services.shared.view.generation import Generation
from services.shared.view.keys import answer_key

REMEMBERED_SECONDS = 30 * 60


class Answers:
    """The remembered answers of all speakers. Methods raise `ViewAway` or `Unavailable`."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def of(self, speaker_id: SpeakerId, key: str) -> str | None:
        """Return the id of the version that answered a request.

        Args:
            key: the hash of its Idempotency-Key.
        """
        [vuid] = self._generation.read(
            lambda pipeline, generation: pipeline.get(answer_key(generation, speaker_id, key))
        )
        return vuid or None

    def remember(self, speaker_id: SpeakerId, key: str, vuid: str) -> str:
        """Remember an answer, unless the key has one already. Returns the id of the version that is now
        remembered for the key.
        """

        def ask(pipeline: Pipeline, generation: str) -> None:
            name = answer_key(generation, speaker_id, key)
            pipeline.set(name, vuid, nx=True, ex=REMEMBERED_SECONDS)
            pipeline.get(name)

        return str(self._generation.read(ask)[-1])
