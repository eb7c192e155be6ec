"""The number, the creation time and the id of a new version. Pure.

A version normally takes the next number, the present time and an id of its own. An operator may request other
values, to move a voice unchanged to another registry. In both cases, the numbers and times of a name always
rise, even after deletes.
"""

from dataclasses import dataclass

from services.shared.model.document import Marks, SpeakerDocument
from services.shared.model.records import Version
from speaker_registry.errors import Conflict, InvalidRequest, QuotaExceeded
from speaker_registry.names import MAX_VERSION

MAX_AHEAD_SECONDS = 300
"""A wanted time may be this much later than the store's. The clocks of two registries differ a little, and
versions that were registered within the same second are dated one second apart.
"""


@dataclass(frozen=True, slots=True)
class Numbering:
    """The number, the creation time (Unix seconds) and the id that an operator wants for a version."""

    number: int
    """The number is at least 1 and at most `MAX_VERSION`."""
    created_at: int
    id: str | None = None
    """The id that callers see, or None if the registry chooses one."""


def next_marks(document: SpeakerDocument, now: int, wanted: Numbering | None = None) -> Marks:
    """Return the marks after the next version was added. They contain its number and its creation time.

    Args:
        now: the store's time.
        wanted: the number and the time to use instead of the next ones.

    Raises:
        Conflict: the voice has had a version with the wanted number or time, or with a later one, or has a
            version with the wanted id.
        InvalidRequest: the wanted time is in the future.
        QuotaExceeded: the voice has had a version with the highest number.
    """
    marks = document.marks
    if marks.number >= MAX_VERSION:
        raise QuotaExceeded(
            f"The newest version of the voice had the number {marks.number}. Accepted: up to {MAX_VERSION}. "
            "Take another name."
        )
    if wanted is None:
        return marks.having(number=marks.number + 1, created_at=max(now, marks.created_at + 1))
    _check(wanted, marks, now)
    if wanted.id in document.version_ids:
        raise Conflict(
            f"Field 'id' is {wanted.id}, and the voice has another version with this id, or had one that can "
            "still be restored. Accepted: another id, or none, so that the registry chooses one.",
            param="id",
        )
    return marks.having(number=wanted.number, created_at=wanted.created_at)


def _check(wanted: Numbering, marks: Marks, now: int) -> None:
    if wanted.number <= marks.number:
        raise Conflict(
            f"Version {wanted.number} cannot be registered, because the voice has had version "
            f"{marks.number}, and no number is given twice, even after deletes. Accepted: a number from "
            f"{marks.number + 1} to {MAX_VERSION}.",
            param="ref",
        )
    # Engines distinguish the versions of a voice by these times.
    if wanted.created_at <= marks.created_at:
        raise Conflict(
            f"Field 'created_at' is {wanted.created_at}, and the voice has had a version that was created at "
            f"{marks.created_at}. Accepted: a later time.",
            param="created_at",
        )
    if wanted.created_at > now + MAX_AHEAD_SECONDS:
        raise InvalidRequest(
            f"Field 'created_at' is {wanted.created_at}, which is in the future: now is {now}. Accepted: "
            f"Unix seconds that are at most {MAX_AHEAD_SECONDS} later than now.",
            param="created_at",
        )


def registered_as(document: SpeakerDocument, wanted: Numbering, request: str) -> Version | None:
    """Return the live version that a request for this number has made already, or None if there is none.

    Args:
        request: the hash of the source and the texts of the request.

    Raises:
        Conflict: the voice has another version with this number, or the same one with another id.
    """
    found = next((one for one in document.versions if one.number == wanted.number), None)
    if found is not None and (differs := _difference(found, wanted, request)):
        raise Conflict(
            f"The voice has a version {wanted.number} already, with another {differs}. Accepted: the same "
            "version again, or a number that the voice has not had yet.",
            param="ref",
        )
    return found


def _difference(found: Version, wanted: Numbering, request: str) -> str | None:
    """Return the property in which a version differs from the wanted one, or None if there is none."""
    if found.request != request:
        return "content"
    if found.created_at != wanted.created_at:
        return f"creation time, {found.created_at}"
    return f"id, {found.id}" if wanted.id not in {None, found.id} else None
