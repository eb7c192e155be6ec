"""The URL paths of the registry for voices and their versions, profiles, campaigns and API keys.

Names are checked before they become part of a path.
"""

import dataclasses
import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from speaker_registry.errors import InvalidReference, InvalidRequest
from speaker_registry.names import (
    DEFAULT,
    KEY_ID_PATTERN,
    SpeakerName,
    key_of_name,
    parse_alias,
    parse_reference,
    parse_speaker_name,
    split_reference,
    stands_for,
)

_VOICE_PATH = re.compile(r"/v1/voices/([^/]+)")
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_KEY_ID = re.compile(rf"(?:sreg_)?({KEY_ID_PATTERN})(?:_.*)?")


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed reference to a voice or version, such as `alice`, `alice@3` or `alice@prod`."""

    speaker: SpeakerName
    reference: int | str | None
    """Version number or alias. None if only the name was given."""

    @property
    def voice_path(self) -> str:
        return f"/v1/voices/{quote(self.speaker.name, safe='')}"

    @property
    def version_path(self) -> str:
        return f"{self.voice_path}/versions/{self.reference or DEFAULT}"

    def artifact_path(self, profile: str) -> str:
        return f"{self.version_path}/artifacts/{segment(profile, 'profile')}"

    def can_mean(self, voice: str, version: int) -> bool:
        """Return False if this reference cannot lead to that version of the voice with that name."""
        is_number = isinstance(self.reference, int)
        is_voice = stands_for(self.speaker.key, key_of_name(voice.strip()))
        return is_voice and not (is_number and self.reference != version)

    def at(self, number: int) -> "Target":
        return dataclasses.replace(self, reference=number)

    def __str__(self) -> str:
        return f"{self.speaker.name}@{self.reference or DEFAULT}"


@lru_cache(maxsize=4096, typed=True)
def parse_target(speaker: str, version: int | str | None = None) -> Target:
    """Parse a name with or without `@reference`. The reference can be given as `version` instead.

    Results are cached, because parsing a name takes longer than finding its artifact in the cache.

    Raises:
        InvalidVoiceName: The name is not accepted.
        InvalidReference: The reference is not accepted, or two references were given.
    """
    name, reference = split_reference(speaker)
    if reference is not None and version is not None:
        raise InvalidReference("give the version either after '@' or as version=, not both", param="version")
    given = version if reference is None else reference
    return Target(parse_speaker_name(name), None if given is None else parse_reference(str(given)))


def voice_path(name: str) -> str:
    return Target(parse_speaker_name(name), None).voice_path


def voice_of(path: str) -> str | None:
    """Return the name or id of the voice that a path is about, or None if it is about none."""
    match = _VOICE_PATH.match(path)
    return unquote(match[1]) if match else None


def aliases_path(voice: str) -> str:
    return f"{voice_path(voice)}/aliases"


def alias_path(voice: str, alias: str) -> str:
    return f"{aliases_path(voice)}/{parse_alias(alias)}"


def manifest_path(profile: str) -> str:
    return f"/v1/profiles/{segment(profile, 'profile')}/manifest"


def campaigns_path(profile: str) -> str:
    return f"/v1/profiles/{segment(profile, 'profile')}/campaigns"


def campaign_path(profile: str, campaign_id: str) -> str:
    return f"{campaigns_path(profile)}/{segment(campaign_id, 'id')}"


def segment(text: str, param: str) -> str:
    """Check a segment of a path. Without the check, `..` would lead to another route, and an empty text to
    none.
    """
    if not _SEGMENT.fullmatch(text):
        raise InvalidRequest(f"Invalid {param} {text[:80]!a}. Accepted: A-Z a-z 0-9 . _ -", param=param)
    return text


def key_id_of(text: str) -> str:
    """Return the id of an API key, given the id or the whole key.

    The secret of a whole key must not become part of an address, because proxies log addresses.

    Raises:
        InvalidRequest: The text is neither an id nor a key. The message shows at most 8 characters of it.
    """
    match = _KEY_ID.fullmatch(text.strip())
    if match is None:
        shown = f"{text[:8]!a}" + ("…" if len(text) > 8 else "")
        raise InvalidRequest(
            f"{shown} is not the id of an API key. Accepted: 8 characters of 0-9 and a-z, or the whole key.",
            param="key_id",
        )
    return match[1]
