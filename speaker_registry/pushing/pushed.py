"""The voices in a server that were pushed from here, and since when it has them. It decides nothing."""

import math
from dataclasses import dataclass

from speaker_registry.errors import InvalidRequest
from speaker_registry.pushing.asked_registry import AskedRegistry
from speaker_registry.pushing.names import digest
from speaker_registry.pushing.speech_server import ServerVoices


@dataclass(slots=True)
class Pushed:
    """A voice in the server that was pushed from here."""

    voice_id: str
    """The id of its voice, or the digest of the id if the registry has no such voice."""
    number: str
    version: str
    """Digest of the id of the version."""
    created_at: float
    """Time of its upload, by the clock of the server. It tells which of two uploads was first."""
    since: float
    """Time of its upload, in seconds of the monotonic clock."""


class Sightings:
    """Finds the pushed voices in the lists of a server, and remembers when each appeared.

    The clock of a server may be set at any time. It dates only the voices in the first list. Of a later one
    it is known that it was uploaded after the list before.
    """

    def __init__(self) -> None:
        self.listed_at = -math.inf
        """The time of the last list, in seconds of the monotonic clock."""
        self._since: dict[tuple[str, str], float] = {}
        """Maps names and marks to `Pushed.since`."""

    def pushed(
        self, found: ServerVoices, registry: AskedRegistry, server: str, now: float
    ) -> dict[str, Pushed]:
        """Return the pushed voices in a list, by their names.

        Args:
            server: Address of the server, for the error.
            now: The time of the list, in seconds of the monotonic clock.

        Raises:
            InvalidRequest: A voice was pushed from another registry at the same address.
        """
        mark, ids = registry.mark, {digest(voice_id): voice_id for voice_id in registry.voices}
        pushed, since = {}, {}
        for name, one in found.uploaded.items():
            version = mark.version_in(one.consent)
            if version is None:
                continue
            if version.registry != mark.registry:
                raise _another_registry(name, server, registry)
            uploaded_at = max(self.listed_at, now - max(0.0, found.now - one.created_at))
            key = (name, one.consent)
            since[key] = self._since.get(key, uploaded_at)
            voice_id = ids.get(version.voice, version.voice)
            pushed[name] = Pushed(voice_id, version.number, version.version, one.created_at, since[key])
        self.listed_at, self._since = now, since
        return pushed


def _another_registry(name: str, server: str, registry: AskedRegistry) -> InvalidRequest:
    return InvalidRequest(
        f"{server} has voices, such as {name[:80]!a}, that were pushed from another registry "
        f"than {registry.id[:80]!a}, which answers at {registry.url} now; they "
        "stay as they are. Check where the address of the registry leads. If the registry was replaced "
        "on purpose, delete these voices there first"
    )
