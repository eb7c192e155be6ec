"""Finds a speaker, and a version of it, by the text that a caller sent."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.shared.model.document import SpeakerDocument
from services.shared.model.records import Version
from services.shared.model.speaker import SpeakerId
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.errors import (
    InvalidApiKey,
    RateLimited,
    SpeakerRegistryError,
    Unavailable,
    VoiceDamaged,
    VoiceNotFound,
    VoiceUnreadable,
)
from speaker_registry.names import (
    DEFAULT,
    SpeakerName,
    VoiceId,
    parse_reference,
    parse_speaker_name,
    parse_voice_id,
    slug_of,
    split_reference,
)


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A live speaker, and the version of it that a reference stands for."""

    speaker: FoundSpeaker
    version: Version


@dataclass(frozen=True, slots=True)
class IdBeforeName(SpeakerName):
    """An id of a voice, which means that voice even if another one has the id as its name."""

    or_name: bool
    """True if an id without a voice means the voice of that name."""


def find(speakers: Speakers, namespace: str, name: SpeakerName) -> FoundSpeaker:
    """Return the live speaker with this name or, if there is none, with this voice id.

    For an `IdBeforeName`, the speaker with this voice id comes first.

    Raises:
        VoiceNotFound, VoiceDamaged, VoiceUnreadable, Unavailable.
    """
    speaker = locate(speakers, namespace, name)
    if not speaker.document.live:
        raise not_found(name)
    return speaker


def locate(
    speakers: Speakers, namespace: str, name: SpeakerName, *, also_deleted: bool = False
) -> FoundSpeaker:
    """Return the same speaker as `find`, even if it is not live.

    Args:
        also_deleted: accept the id of the voice that was deleted last under a name as that name.
    """
    named = speakers.read(SpeakerId.of(namespace, name))
    return _by_name_or_id(speakers, namespace, name, named, also_deleted=also_deleted)


def locate_deleted(speakers: Speakers, namespace: str, name: SpeakerName) -> FoundSpeaker:
    """Return the speaker of which an undelete restores a voice. Its name comes before the id of another one,
    also if it is deleted. It may have nothing to restore: see `expect_deleted`.
    """
    named = speakers.read(SpeakerId.of(namespace, name))
    if named.document.last_deleted is not None:
        return named
    return _by_name_or_id(speakers, namespace, name, named, also_deleted=True)


def _by_name_or_id(
    speakers: Speakers,
    namespace: str,
    name: SpeakerName,
    named: FoundSpeaker,
    *,
    also_deleted: bool = False,
) -> FoundSpeaker:
    """Return the speaker with this name or, if it is not live, the one with this voice id.

    For an `IdBeforeName`, the one with this voice id comes first.
    """
    voice_id = parse_voice_id(name.key)
    id_first = isinstance(name, IdBeforeName)
    if voice_id is None or (named.document.live and not id_first):
        return named
    with_id = speakers.read(SpeakerId(namespace, voice_id.slug))
    if with_id.document.is_known_by(voice_id.version_id):
        return with_id
    if _needs_id(name):
        raise not_found(name)
    # If the voice with this id was deleted, the id does not stand for a new voice of the same name.
    may_be_deleted = also_deleted and (id_first or named.document.last_deleted is None)
    last = with_id.document.last_deleted if may_be_deleted and not with_id.document.live else None
    return with_id if last and voice_id.version_id in last.ids else named


def expect(document: SpeakerDocument, name: SpeakerName, speaker_id: SpeakerId) -> None:
    """Check that a newer document still belongs to the voice that the caller of `locate` asked for.

    Raises `VoiceNotFound` if the voice was deleted, or if the caller used the id of a voice whose name has
    been registered again since: the new voice has another id.
    """
    voice_id = _id_used(name, speaker_id)
    if not document.live or (voice_id and not document.is_known_by(voice_id.version_id)):
        raise not_found(name)


def expect_deleted(
    document: SpeakerDocument, name: SpeakerName, speaker_id: SpeakerId, *, deleted_since: int
) -> None:
    """Check that the voice that was deleted last is the one that the caller of `locate_deleted` asked for.

    Raises `VoiceNotFound` if no voice is deleted, if it was deleted before this moment, or if the caller used
    the id of another one. A live voice is left to `undeleted`.
    """
    voice_id, last = _id_used(name, speaker_id), document.last_deleted
    if last and last.deleted_at >= deleted_since and (not voice_id or voice_id.version_id in last.ids):
        return
    if not document.live:
        raise VoiceNotFound(
            f"There is no deleted voice '{name.name}' that can be restored. Accepted: the name or the id of "
            "a voice that was deleted within the grace period and whose name was not registered again.",
            param="name",
        )


def _id_used(name: SpeakerName, speaker_id: SpeakerId) -> VoiceId | None:
    """Return the id by which a caller referred to a speaker, or None if the caller used its name."""
    return parse_voice_id(name.key) if speaker_id.slug != slug_of(name.key) else None


def find_version(
    speakers: Speakers, profiles: Profiles, namespace: str, name: SpeakerName, reference: int | str
) -> tuple[FoundSpeaker, Version]:
    """Return a live speaker, and the version that a number or an alias stands for.

    Raises:
        VersionNotFound, AliasNotFound, and the errors of `find`.
    """
    speaker = find(speakers, namespace, name)
    return speaker, _resolved(profiles, speaker, reference)


def _resolved(profiles: Profiles, speaker: FoundSpeaker, reference: int | str) -> Version:
    return speaker.document.resolve(reference, lambda one: profiles.is_complete(speaker, one))


# Looking up many references at once


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A parsed reference to a version."""

    name: SpeakerName
    reference: int | str


def find_versions(
    speakers: Speakers, profiles: Profiles, namespace: str, voices: Sequence[str]
) -> list[FoundVersion | SpeakerRegistryError]:
    """Find many versions as `find_version` does, with one round trip to the view for nearly all of them.

    Args:
        voices: each a name, `name@version` or `name@alias`.

    Returns:
        For each voice, its speaker and version, or the error that explains why it was not found.

    Raises:
        Unavailable: neither view nor bucket could be read.
        InvalidApiKey, RateLimited: the request may not go on.
    """
    wanted = [_parsed(voice) for voice in voices]
    ids = list(dict.fromkeys(SpeakerId.of(namespace, one.name) for one in wanted if isinstance(one, _Wanted)))
    named = dict(zip(ids, speakers.read_many(ids), strict=True))

    def found(one: _Wanted | SpeakerRegistryError) -> FoundVersion | SpeakerRegistryError:
        if isinstance(one, SpeakerRegistryError):
            return one
        speaker = named[SpeakerId.of(namespace, one.name)]
        if isinstance(speaker, SpeakerRegistryError):
            return speaker
        return _found(speakers, profiles, namespace, one, speaker)

    return [found(one) for one in wanted]


def _parsed(voice: str) -> _Wanted | SpeakerRegistryError:
    name, reference = split_reference(voice)
    try:
        parsed = parse_reference(DEFAULT if reference is None else reference)
        return _Wanted(parse_speaker_name(name), parsed)
    except SpeakerRegistryError as error:
        return error


def _found(
    speakers: Speakers, profiles: Profiles, namespace: str, wanted: _Wanted, named: FoundSpeaker
) -> FoundVersion | SpeakerRegistryError:
    try:
        speaker = _by_name_or_id(speakers, namespace, wanted.name, named)
        if not speaker.document.live:
            raise not_found(wanted.name)
        return FoundVersion(speaker, _resolved(profiles, speaker, wanted.reference))
    except (VoiceDamaged, VoiceUnreadable) as error:
        return error
    except (Unavailable, RateLimited, InvalidApiKey):
        raise  # these concern the whole request, not this voice
    except SpeakerRegistryError as error:
        return error


def _needs_id(name: SpeakerName) -> bool:
    """Return whether a reference means a voice with this id and no other."""
    return isinstance(name, IdBeforeName) and not name.or_name


def not_found(name: SpeakerName) -> VoiceNotFound:
    if _needs_id(name):
        return VoiceNotFound(
            f"There is no voice with the id '{name.name}' any more. It was deleted, and its name may have "
            "been registered again since. Nothing was changed.",
            param="name",
        )
    return VoiceNotFound(f"Voice '{name.name}' not found", param="name")
