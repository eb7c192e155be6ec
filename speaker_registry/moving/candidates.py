"""Voices to register, as the readers found them, and the files or lines that describe no usable voice."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from speaker_registry.errors import InvalidRequest, SpeakerRegistryError
from speaker_registry.names import SpeakerName, parse_speaker_name
from speaker_registry.validation import shortened

Source = bytes | np.ndarray
"""A clip as the bytes of its file, or a speaker embedding as float32 [D]."""
_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts of a version, without blanks around them. Blank texts are None, as in the registry."""

    consent: str
    ref_text: str | None = None
    description: str | None = None

    @classmethod
    def of(cls, consent: str | None, ref_text: str | None, description: str | None = None) -> Self:
        """Normalize the texts. Raises `InvalidRequest` if there is no consent, or if one cannot be sent."""
        if not (consent := _text(consent)):
            raise InvalidRequest("there is no consent; pass --consent TEXT, or give one for each voice")
        return cls(consent=consent, ref_text=_text(ref_text), description=_text(description))


def _text(text: str | None) -> str | None:
    try:
        (text or "").encode()
    except UnicodeEncodeError:  # JSON can escape half of a surrogate pair, which is no character
        message = f"{shortened(text)} cannot be written as UTF-8; accepted: Unicode text"
        raise InvalidRequest(message) from None
    return (text or "").strip() or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One voice to register. Its clip or embedding is read only when it is sent, to save memory."""

    name: SpeakerName
    where: str
    """The file, or the line of a table, that describes the voice."""
    texts: Texts
    load: Callable[[], Source]
    """Reads the source. Raises `SpeakerRegistryError` if the file cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A file or line that describes no voice that could be registered."""

    where: str
    error: SpeakerRegistryError


Found = Candidate | Unusable


def candidate(where: str, name: str, texts: Callable[[], Texts], load: Callable[[], Source]) -> Found:
    """Make a candidate. A name or texts that are not accepted make it unusable instead."""
    try:
        return Candidate(name=parse_speaker_name(name), where=where, texts=texts(), load=load)
    except SpeakerRegistryError as error:
        return Unusable(where=where, error=error)


def check_distinct(found: Iterable[Found]) -> None:
    """Raise `InvalidRequest` if two candidates have the same name, in whatever spelling.

    Which of them would become the newest version would depend on the order in which the uploads finish.
    """
    places: dict[str, list[str]] = {}
    for one in found:
        if isinstance(one, Candidate):
            places.setdefault(one.name.key, []).append(one.where)
    twice = {key: where for key, where in places.items() if len(where) > 1}
    if twice:
        names = "1 such name" if len(twice) == 1 else f"{len(twice)} such names"
        shown = "; ".join(f"{key!a}: {', '.join(twice[key])}" for key in sorted(twice)[:_MAX_SHOWN])
        raise InvalidRequest(
            "There is more than one voice of a name, and nothing was uploaded. Names that differ only in "
            f"case or Unicode form are equal. {names}: {shown}"
        )
