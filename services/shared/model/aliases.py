"""The moves of a speaker's aliases that callers make by hand: changes of its document.

Pure, like all `changes`. `promotion` decides when `default` moves by itself.
"""

from collections.abc import Sequence

from services.shared.model.document import SpeakerDocument
from services.shared.model.promotion import promoted
from services.shared.model.records import Alias, Version
from speaker_registry.engine import Profile
from speaker_registry.errors import AliasNotFound, ArtifactFailed, QuotaExceeded, VersionNotFound
from speaker_registry.names import DEFAULT

MAX_ALIASES = 32
"""The number of aliases that a voice may have, `default` included."""


def with_alias(
    document: SpeakerDocument, alias: str, vuid: str, required: Sequence[Profile]
) -> SpeakerDocument:
    """Point an alias to a version by hand.

    Raises:
        VersionNotFound: the version was deleted.
        ArtifactFailed: the version serves no artifact for a required profile, because its extraction failed.
        QuotaExceeded: the voice has as many aliases as are accepted.
    """
    version = document.version(vuid)
    if version is None:
        raise VersionNotFound("The version that the alias was to point to has been deleted.", param="version")
    present = document.aliases.get(alias)
    if present is not None and present.by_hand and present.vuid == vuid:
        return document
    _refuse_failed(version, alias, required)
    if present is None and len(document.aliases) >= MAX_ALIASES:
        raise QuotaExceeded(
            f"The voice has {len(document.aliases)} aliases. Accepted: {MAX_ALIASES} aliases of a voice. "
            "Remove one that is no longer needed.",
            param="alias",
        )
    moved = Alias(vuid=vuid, by_hand=True, moved=document.revision + 1)
    return document.having(aliases={**document.aliases, alias: moved})


def _refuse_failed(version: Version, alias: str, required: Sequence[Profile]) -> None:
    """Raise `ArtifactFailed` if engines that use the alias would find a failed extraction."""
    unserved = [one.name for one in required if one.name not in version.served]
    names = [name for name in unserved if version.failure(name) is not None]
    if names:
        raise ArtifactFailed(
            f"Alias '{alias}' was not moved: the extraction of version {version.number} of voice "
            f"'{version.name}' for {', '.join(names)} failed or was canceled. Accepted: a version that has "
            "not failed for any required profile. Extract it again with force first.",
            param="version",
        )


def without_alias(document: SpeakerDocument, alias: str, required: Sequence[Profile]) -> SpeakerDocument:
    """Remove an alias that was set by hand. `default` stays and moves by itself again, unless the promotion
    policy of the voice is `manual`.

    Raises `AliasNotFound`.
    """
    present = document.aliases.get(alias)
    if present is None:
        raise AliasNotFound(f"The voice has no alias '{alias}'.", param="ref")
    if alias == DEFAULT:
        moved = present.having(by_hand=False, moved=document.revision + 1)
        taken_back = {**document.aliases, DEFAULT: moved}
        return promoted(document.having(aliases=taken_back), required) if present.by_hand else document
    return document.having(aliases={name: one for name, one in document.aliases.items() if name != alias})
