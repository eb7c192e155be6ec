"""Finds the version that a voice's page shows beside a version's clip. It may belong to another voice."""

from dataclasses import dataclass

from services.registry_api.dependencies import Services
from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.error_answers import status_of
from services.registry_api.protocol.routing import PAGES
from services.registry_api.wire import rendering
from services.shared.model.records import Version
from services.shared.registry.lookup import find_version
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry import schemas
from speaker_registry.errors import InvalidRequest, NotFound, VoiceNotFound
from speaker_registry.names import DEFAULT, parse_reference, parse_speaker_name


@dataclass(frozen=True, slots=True)
class Side:
    """A version whose clip is shown."""

    version: schemas.VoiceVersion
    path: str
    """The path of the page of its voice."""
    voice: str | None = None
    """The name of its voice, if that is not the voice of the page."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The sides of a comparison. There is one side if no other version was requested or found."""

    sides: list[Side]
    asked: str
    problem: str | None = None
    status: int = 200


def compare(
    services: Services, caller: Caller, speaker: FoundSpeaker, one: Version, beside: str
) -> Comparison:
    """Return a version together with the one that `beside` names.

    Args:
        beside: the number of a version of the same voice, or `name`, `name@version` or `name@alias`.

    Raises:
        RateLimited: the caller has asked for too many names without a voice.
        VoiceDamaged, VoiceUnreadable, Unavailable.
    """
    beside = beside.strip()
    first = _side(services, speaker, one)
    if beside in {"", "0"}:
        return Comparison([first], "")
    try:
        other, version = _named(services, caller, speaker, beside)
    except (NotFound, InvalidRequest) as error:
        return Comparison([first], beside, error.message, status_of(error, compatible=False))
    if version.vuid == one.vuid:
        return Comparison([first], "")
    another = other.id != speaker.id
    return Comparison([first, _side(services, other, version, version.name if another else None)], beside)


def _named(
    services: Services, caller: Caller, speaker: FoundSpeaker, beside: str
) -> tuple[FoundSpeaker, Version]:
    speakers, profiles = services.speakers, services.profiles
    if beside.isdigit():
        number = parse_reference(beside)
        return speaker, speaker.document.resolve(number, lambda one: profiles.is_complete(speaker, one))
    voice, _, reference = beside.partition("@")
    name = parse_speaker_name(voice)
    services.access.unknown_names.check(caller)
    try:
        return find_version(
            speakers, profiles, speaker.id.namespace, name, parse_reference(reference or DEFAULT)
        )
    except VoiceNotFound:
        services.access.unknown_names.note(caller, voice)
        raise VoiceNotFound(f"There is no voice '{name.name}' in this namespace.", param="beside") from None


def _side(services: Services, speaker: FoundSpeaker, one: Version, voice: str | None = None) -> Side:
    path = f"{PAGES}/voices/{rendering.voice_id(speaker.document)}"
    return Side(rendering.version(services.profiles, speaker, one), path, voice)
