"""Finds a speaker, and a version of it, by what a caller typed."""

from services.shared.bucket.keys import SpeakerId
from services.shared.model.records import Version
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.errors import VoiceNotFound
from speaker_registry.names import SpeakerName, parse_voice_id


def find(speakers: Speakers, namespace: str, name: SpeakerName) -> FoundSpeaker:
    """Return the live speaker of this name or, if no voice has it, of this voice id.

    Raises:
        VoiceNotFound, VoiceDamaged, VoiceUnreadable, Unavailable.
    """
    speaker = locate(speakers, namespace, name)
    if not speaker.document.live:
        raise not_found(name)
    return speaker


def locate(speakers: Speakers, namespace: str, name: SpeakerName) -> FoundSpeaker:
    """Return the speaker that `find` looks for, which need not be live."""
    named = speakers.read(SpeakerId.of(namespace, name))
    voice_id = parse_voice_id(name.key)
    if voice_id is None or named.document.live:
        return named
    meant = speakers.read(SpeakerId(namespace, voice_id.slug))
    # If the voice with this id was deleted, a new voice with its name is not meant.
    return named if meant.document.version(voice_id.vuid) is None else meant


def find_version(
    speakers: Speakers, profiles: Profiles, namespace: str, name: SpeakerName, reference: int | str
) -> tuple[FoundSpeaker, Version]:
    """Return a live speaker, and the version that a number or an alias stands for.

    Raises:
        VersionNotFound, AliasNotFound, and what `find` raises.
    """
    speaker = find(speakers, namespace, name)
    version = speaker.document.resolve(reference, lambda one: profiles.is_complete(speaker, one))
    return speaker, version


def not_found(name: SpeakerName) -> VoiceNotFound:
    return VoiceNotFound(f"Voice '{name.name}' not found", param="name")
