"""Names, ids and references as callers write them: `alice`, `alice@3`, `alice@prod`. Parsed once, at the
door.

A name's identity is its *key*: trimmed, lower-cased, NFC. The rules are vLLM-Omni's, less `@` (it separates
name and version), control characters, anything over 128 characters, and names that nobody can see.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass

from speaker_registry.errors import InvalidReference, InvalidVoiceName

MAX_NAME_LENGTH = 128
DEFAULT = "default"
"""The alias that always exists."""
LATEST = "latest"
"""Computed, never set: the newest version that is complete."""

_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols that are drawn as nothing."""
_DRAWN = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd]")
"""The format characters that are drawn: signs that enclose numbers."""
NAMESPACE_PATTERN = r"[a-z0-9][a-z0-9-]{0,31}"
ACCEPTED_NAMESPACES = "1 to 32 of a-z, 0-9 and '-'"
"""The same, for people."""
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VOICE_ID = re.compile(rf"voice_([0-9a-f]{{32}})_({_SLUG.pattern})")
_ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,63}")
MAX_VERSION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SpeakerName:
    """A valid name as the caller typed it (trimmed, NFC), and its identity within a namespace."""

    name: str
    key: str


def parse_speaker_name(text: str) -> SpeakerName:
    """Accept a voice name, or raise `InvalidVoiceName` saying what is wrong with it."""
    name = unicodedata.normalize("NFC", text).strip()
    fault = _fault_of(name)
    if fault:
        raise InvalidVoiceName(
            f"Invalid voice name {_shown(name)}: must be non-empty, no path separators or NUL; {fault}. "
            f"Accepted: 1 to {MAX_NAME_LENGTH} characters, without '/', '\\', '@' and control characters.",
            param="name",
        )
    return SpeakerName(name, key_of_name(name))


def key_of_name(name: str) -> str:
    """What a trimmed name, or a part of one, is known by in whatever way it is typed."""
    # NFC again: `T` and U+0308 have no form in one character, but what `lower` makes of them has.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).lower())


def slug_of(key: str) -> str:
    """A name's key in an alphabet that needs no escapes: itself where it fits, else `x-` and a hash of it."""
    if _SLUG.fullmatch(key) and not key.startswith("x-") and not key.endswith(".") and ".." not in key:
        return key
    return "x-" + hashlib.sha256(key.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class VoiceId:
    """The id of a voice, `voice_{vuid}_{slug}`.

    It is of one life of a name: a name that is deleted and registered again gets another id. The slug in it
    says where the voice is to be found, so no index from ids to names is needed, or can be lost.
    """

    vuid: str
    """Id of one of its versions, usually the first."""
    slug: str
    """Of its name's key."""

    def __str__(self) -> str:
        return f"voice_{self.vuid}_{self.slug}"


def parse_voice_id(text: str) -> VoiceId | None:
    """None if the text cannot be a voice's id."""
    match = _VOICE_ID.fullmatch(text)
    return VoiceId(match[1], match[2]) if match else None


def stands_for(known_as: str, key: str) -> bool:
    """Whether a parsed name's key, which may be an id instead, can stand for the voice with this key."""
    voice_id = parse_voice_id(known_as)
    return known_as == key or (voice_id is not None and voice_id.slug == slug_of(key))


def _fault_of(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name)} characters"
    if name in {".", ".."}:
        return "it is a path"
    for character in name:
        if character in "/\\@" or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
            return f"it contains {character!a}"
    if not any(map(_is_visible, name)):
        return "it has no visible character"
    return None


def _is_visible(character: str) -> bool:
    if unicodedata.category(character) == "Cf":
        return _DRAWN.fullmatch(character) is not None
    return not character.isspace() and _BLANK.fullmatch(character) is None


def _shown(name: str) -> str:
    """Printable and short: names end up in logs and terminals."""
    hidden = _BLANK.search(name) or any(unicodedata.category(c).startswith("C") for c in name)
    shown = ascii(name) if hidden else repr(name)
    return shown if len(shown) <= 80 else shown[:80] + "…"


def is_namespace(text: str) -> bool:
    return re.fullmatch(NAMESPACE_PATTERN, text) is not None


def parse_reference(text: str) -> int | str:
    """A version number, or an alias (`default`, `latest`, `prod`, …).

    Raises:
        InvalidReference: neither a number from 1 to `MAX_VERSION` nor `[a-z][a-z0-9._-]{0,63}`.
    """
    if text.isascii() and text.isdigit() and not text.startswith("0") and int(text[:12]) <= MAX_VERSION:
        return int(text)
    if _ALIAS.fullmatch(text):
        return text
    raise InvalidReference(
        f"Invalid version or alias {_shown(text)}. Accepted: a version number from 1 to {MAX_VERSION}, "
        "'default', 'latest' or an alias of 1 to 64 of the characters a-z 0-9 . _ - that starts with a "
        "letter.",
        param="ref",
    )
