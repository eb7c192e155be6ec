"""Parsing of voice names, voice ids and references such as `alice`, `alice@3` and `alice@prod`.

A name is identified by its *key*, which is the name trimmed, lower-cased and in Unicode normal form NFC. The
rules are those of vLLM-Omni, with four further exclusions: `@` (because it separates name and version),
control characters, names of more than 128 characters, and names without a visible character.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from speaker_registry.errors import InvalidReference, InvalidVoiceName

MAX_NAME_LENGTH = 128
DEFAULT = "default"
"""The alias that always exists."""
LATEST = "latest"
"""The alias of the newest version that is complete. It is computed and cannot be set."""

_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols that are invisible when drawn."""
_DRAWN = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd]")
"""The only format characters that are visible: signs that enclose numbers."""
NAMESPACE_PATTERN = r"[a-z0-9][a-z0-9-]{0,31}"
ACCEPTED_NAMESPACES = "1 to 32 characters of a-z, 0-9 and '-', of which the first is not '-'"
"""`NAMESPACE_PATTERN` in words, for messages."""
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
KEY_ID_LETTERS = 8
"""Number of characters in the id of an API key."""
KEY_ID_PATTERN = rf"[0-9a-z]{{{KEY_ID_LETTERS}}}"
"""The form of the ids of API keys."""
VERSION_ID_PATTERN = r"[0-9a-f]{32}"
DIGEST_PATTERN = "^sha256:[0-9a-f]{64}$"
"""The form of digests and fingerprints. The anchors are for JSON schemas."""
_VOICE_ID = re.compile(rf"voice_({VERSION_ID_PATTERN})_({_SLUG.pattern})")
_ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,63}")
MAX_VERSION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SpeakerName:
    """A valid name as the caller typed it (trimmed and in NFC), and the key that identifies it in a
    namespace.
    """

    name: str
    key: str


def parse_speaker_name(text: str) -> SpeakerName:
    """Parse a voice name. Raises `InvalidVoiceName` with the reason if the name is not accepted."""
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
    """Return the key of a trimmed name, or of a part of one. Different spellings of one name have the same
    key.
    """
    # NFC is applied again: `T` with U+0308 has no single-character form, but its lower-case form has one.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).lower())


def slug_of(key: str) -> str:
    """Return the form of a name's key that needs no escaping: the key itself if it is safe, else `x-` and a
    hash.
    """
    if _SLUG.fullmatch(key) and not key.startswith("x-") and not key.endswith(".") and ".." not in key:
        return key
    return "x-" + hashlib.sha256(key.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class VoiceId:
    """The id of a voice, `voice_{version_id}_{slug}`.

    A name that is deleted and registered again gets another id. A voice keeps its id when one of its versions
    is deleted, also if that is the first. The slug in the id tells where the voice is
    stored, so there is no index from ids to names that could be lost.
    """

    version_id: str
    """Id of one version of the voice, usually the first."""
    slug: str
    """Slug of the key of the voice's name."""

    def __str__(self) -> str:
        return f"voice_{self.version_id}_{self.slug}"


def parse_voice_id(text: str) -> VoiceId | None:
    """Parse the id of a voice. Returns None if the text is no such id."""
    match = _VOICE_ID.fullmatch(text)
    return VoiceId(match[1], match[2]) if match else None


def stands_for(known_as: str, key: str) -> bool:
    """Return True if `known_as`, a name key or a voice id, can refer to the voice with the name key `key`."""
    return known_as == key or slug_of_voice(known_as) == slug_of(key)


@lru_cache(maxsize=4096)
def slug_of_voice(known_as: str) -> str:
    """Return the slug under which a voice is stored, given its name key or its id.

    Earlier voices of the same name have the same slug, and so has a name in the form of an id.
    """
    voice_id = parse_voice_id(known_as)
    return slug_of(known_as) if voice_id is None else voice_id.slug


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
    if not is_visible(name):
        return "it has no visible character"
    return None


def is_visible(text: str) -> bool:
    """Return whether a text has a character that is visible when drawn."""
    return any(map(_is_drawn, text))


def _is_drawn(character: str) -> bool:
    if unicodedata.category(character) == "Cf":
        return _DRAWN.fullmatch(character) is not None
    return not character.isspace() and _BLANK.fullmatch(character) is None


def _shown(name: str) -> str:
    """Make a name printable and short, because names end up in logs and terminals."""
    hidden = _BLANK.search(name) or any(unicodedata.category(c).startswith("C") for c in name)
    shown = ascii(name) if hidden else repr(name)
    return shown if len(shown) <= 80 else shown[:80] + "…"


def is_namespace(text: str) -> bool:
    return re.fullmatch(NAMESPACE_PATTERN, text) is not None


def split_reference(text: str) -> tuple[str, str | None]:
    """Split `name` or `name@reference` into the name and the reference, which is None if there is none."""
    name, separator, reference = text.partition("@")
    return name, reference if separator else None


def parse_reference(text: str) -> int | str:
    """Parse a version number or an alias (`default`, `latest`, `prod`, …).

    Raises:
        InvalidReference: The text is neither a number from 1 to `MAX_VERSION` nor `[a-z][a-z0-9._-]{0,63}`.
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


def parse_alias(text: str) -> str:
    """Parse an alias that may be set by hand: `default`, or another one than the reserved `latest`.

    Raises:
        InvalidReference: The text is reserved, or not `[a-z][a-z0-9._-]{0,63}`.
    """
    if text != LATEST and _ALIAS.fullmatch(text):
        return text
    reserved = f" '{LATEST}' is reserved for the newest complete version." if text == LATEST else ""
    raise InvalidReference(
        f"Invalid alias {_shown(text)}.{reserved} Accepted: 'default', or 1 to 64 of the characters "
        "a-z 0-9 . _ - that start with a letter.",
        param="alias",
    )
