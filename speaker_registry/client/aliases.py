"""Aliases of voices: which version each stands for, and moving them."""

from collections.abc import Iterator

from speaker_registry.calls import Alias
from speaker_registry.client.executor import PlanExecutor
from speaker_registry.schemas import VoiceAlias


class Aliases(PlanExecutor):
    def aliases(self, voice: str, *, limit: int | None = None) -> Iterator[VoiceAlias]:
        """Iterate over the aliases of a voice by name, except `latest`, which is computed."""
        return self._pages(self._calls.aliases(voice, limit))

    def alias(self, voice: str, alias: str = "default") -> Alias:
        """Get an alias of a voice. Raises `NotFound` if there is no such voice or alias."""
        return self._run(self._calls.alias(voice, alias))

    def move_alias(self, voice: str, alias: str, version: int, *, if_match: str | None = None) -> Alias:
        """Point an alias to a version, or make a new alias. Every engine then finds that version.

        Nothing is extracted. `default` stays where it was moved to until it is moved again or removed.

        Args:
            voice: Name or id of the voice.
            alias: `default`, or any other name of 1 to 64 of the characters `a-z 0-9 . _ -`.
            version: Number of the version.
            if_match: `etag` of the `Alias` that is to be moved. If somebody was faster, the move is refused.

        Returns:
            The alias, with the `previous_version` to which it pointed before.

        Raises:
            InvalidRequest: The alias or the version is malformed. `latest` is reserved.
            NotFound: There is no such voice or version.
            ArtifactFailed: An extraction of the version failed for a required profile. Repeat it first.
            PreconditionFailed: The alias is not the one that `if_match` describes.
            QuotaExceeded: The voice has as many aliases as the registry accepts.
        """
        return self._run(self._noticed(voice, self._calls.move_alias(voice, alias, version, if_match)))

    def remove_alias(self, voice: str, alias: str, *, if_match: str | None = None) -> None:
        """Remove an alias. `default` stays, and moves to new versions by itself again.

        Raises:
            NotFound: There is no such voice or alias.
            PreconditionFailed: The alias is not the one that `if_match` describes.
        """
        self._run(self._noticed(voice, self._calls.remove_alias(voice, alias, if_match)))

    def rollback(self, voice: str, to: int | None = None) -> Alias:
        """Move `default` to an older version. `remove_alias(voice, "default")` lets it move by itself again.

        Args:
            voice: Name or id of the voice.
            to: Number of the version. Defaults to the next lower one than that to which `default` points.

        Raises:
            NotFound: There is no such voice or version, or no older one.
            PreconditionFailed: Somebody else moved `default` at the same moment.
        """
        return self._run(self._noticed(voice, self._calls.rollback(voice, to)))
