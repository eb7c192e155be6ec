"""Moves the aliases of a voice for callers, and undoes such moves. This module knows no HTTP.

A move extracts nothing. Engines find the other version as soon as the call returns.
"""

from dataclasses import dataclass

import structlog

from services.registry_api.operations.live_voice import Check, change_live_voice
from services.shared.model.aliases import with_alias, without_alias
from services.shared.model.document import SpeakerDocument, number_of
from services.shared.model.records import Version
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import Speakers
from speaker_registry.errors import VersionNotFound
from speaker_registry.names import SpeakerName

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MovedAlias:
    """The document after a move, and the number of the version to which the alias pointed before."""

    document: SpeakerDocument
    previous: int | None
    """None if the alias is new."""


def move(
    speakers: Speakers,
    profiles: Profiles,
    namespace: str,
    name: SpeakerName,
    alias: str,
    number: int,
    *,
    by: str,
    check: Check | None = None,
    then_by_itself: bool = False,
) -> MovedAlias:
    """Point an alias to the version with this number. A repeat of a move changes nothing.

    Args:
        alias: an alias from `parse_alias`.
        check: as in `change_live_voice`.
        then_by_itself: whether `default` moves by itself again afterwards, as it does until a caller moves
            it.

    Raises:
        VoiceNotFound, VersionNotFound, QuotaExceeded, Unavailable, and any error of `check`.
        ArtifactFailed: an extraction of the version failed for a required profile.
    """
    before = SpeakerDocument()

    def decide(document: SpeakerDocument) -> SpeakerDocument:
        nonlocal before
        before = document
        vuid, present = _numbered(document, number).vuid, document.aliases.get(alias)
        if then_by_itself and present is not None and present.vuid == vuid and not present.by_hand:
            return document
        after = with_alias(document, alias, vuid, profiles.required)
        return without_alias(after, alias, profiles.required) if then_by_itself else after

    moved = change_live_voice(
        speakers, namespace, name, decide, did="alias", by=by, check=check, takes_away=True
    )
    previous = number_of(before, alias)
    log.info("alias.moved", speaker=str(moved.id), alias=alias, version=number, previous=previous)
    return MovedAlias(moved.document, previous)


def reset_alias(
    speakers: Speakers,
    profiles: Profiles,
    namespace: str,
    name: SpeakerName,
    alias: str,
    *,
    by: str,
    check: Check | None = None,
) -> None:
    """Let `default` move by itself again, or remove any other alias.

    Raises `VoiceNotFound`, `AliasNotFound`, `Unavailable`, and any error of `check`.
    """
    found = change_live_voice(
        speakers,
        namespace,
        name,
        lambda document: without_alias(document, alias, profiles.required),
        did="alias",
        by=by,
        check=check,
        takes_away=True,
    )
    log.info("alias.reset", speaker=str(found.id), alias=alias)


def _numbered(document: SpeakerDocument, number: int) -> Version:
    try:
        return document.numbered(number)
    except VersionNotFound as error:
        raise VersionNotFound(error.message, param="version") from None
