"""Changes of a speaker: functions from a document to the next one. Pure: no clock, no bucket, no Redis.

A change that the document already contains returns its argument. A change that is impossible raises an error
of the registry, and is decided again if the document has changed meanwhile. Times are the store's.

This module has the changes of a speaker's versions and lives. The modules `aliases`, `artifacts` and `swept`
have the other changes, and `numbering` has the rules of numbers and times.
"""

from collections.abc import Collection, Sequence

from services.shared.model.document import FirstVersion, Life, Marks, SpeakerDocument
from services.shared.model.numbering import Numbering, next_marks
from services.shared.model.promotion import promoted
from services.shared.model.records import About, Alias, Version
from services.shared.model.swept import refuse_swept
from speaker_registry.engine import Profile
from speaker_registry.errors import (
    Conflict,
    QuotaExceeded,
    VersionNotFound,
    VoiceDeleted,
    VoiceExists,
    VoiceNotFound,
)
from speaker_registry.names import DEFAULT


class DocumentFull(QuotaExceeded):
    """The document of the voice has no room for what the change adds."""


def fitting(before: SpeakerDocument, body: bytes, *, max_bytes: int) -> bytes:
    """Return `body`, the stored form of the document after `before`.

    Raises `DocumentFull` if it is larger than `max_bytes` and adds to `before`.
    """
    size = len(body)
    if size > max_bytes and size > len(before.to_bytes()):
        raise DocumentFull(
            f"The document of this voice would take {size} bytes. Accepted: {max_bytes} bytes for all "
            "versions of a voice with their texts, including those that were deleted and whose grace period "
            "has not ended. Shorten the texts, delete versions and wait for their end, or register the clip "
            "under another name."
        )
    return body


def with_version(
    document: SpeakerDocument,
    version: Version,
    required: Sequence[Profile],
    *,
    key: str,
    life: int,
    now: int,
    numbering: Numbering | None = None,
) -> SpeakerDocument:
    """Add a version under the next number, or under the one that an operator wants.

    Args:
        life: the life of the name when the upload began. An upload that began before a delete is refused.
        numbering: the wanted number and creation time.

    Raises:
        VoiceDeleted, Swept: the version cannot be added.
        Conflict, InvalidRequest: it cannot have the wanted number or time.
    """
    if document.version(version.vuid) is not None:
        return document
    if life != document.marks.life or version.vuid in document.names_of_bytes:
        raise VoiceDeleted(f"Voice '{version.name}' was deleted while this version was being registered.")
    refuse_swept(document, version.names_of_bytes)
    marks = next_marks(document, now, numbering)
    numbered = version.having(number=marks.number, created_at=marks.created_at)
    added = document.having(
        key=key,
        marks=marks,
        versions=(*document.versions, numbered),
        aliases=document.aliases or {DEFAULT: Alias(vuid=version.vuid, moved=document.revision + 1)},
    )
    return promoted(added, required)


def edited(document: SpeakerDocument, about: About, required: Sequence[Profile]) -> SpeakerDocument:
    """Replace the description, labels, pin and promotion policy of the voice.

    If the promotion policy becomes `on_ready` again, `default` moves at once to a newer version that is
    ready, as it does when a move by hand is undone. Housekeeping would move it anyway, some time later.
    """
    if about == document.about:
        return document
    after = document.having(about=about)
    return after if about.promotion == document.about.promotion else promoted(after, required)


def deleted(document: SpeakerDocument, *, now: int) -> SpeakerDocument:
    """End the current life of the voice. `life` rises even if nothing is live, so that a running upload is
    refused.
    """
    ended = Life(
        life=document.marks.life,
        deleted_at=now,
        versions=document.versions,
        aliases=document.aliases,
        about=document.about,
        first=document.deleted_first_id,
    )
    return document.having(
        marks=document.marks.having(life=document.marks.life + 1),
        versions=(),
        aliases={},
        about=About(),
        first=None,
        dead=(*document.dead, ended) if document.live else document.dead,
    )


def without_version(document: SpeakerDocument, vuid: str, *, now: int) -> SpeakerDocument:
    """Delete one version. Deleting the last version deletes the voice, and deleting the first one keeps the
    voice's id.

    Raises `VersionNotFound`, or `Conflict` if an alias points to the version and it is not the last.
    """
    version = document.version(vuid)
    if version is None:
        raise VersionNotFound("The version was deleted already.", param="ref")
    if len(document.versions) == 1:
        return deleted(document, now=now)
    pointing = sorted(name for name, alias in document.aliases.items() if alias.vuid == vuid)
    if pointing:
        point, them = ("points", "the alias") if len(pointing) == 1 else ("point", "the aliases")
        raise Conflict(
            f"Version {version.number} is in use: {', '.join(pointing)} {point} to it. "
            f"Accepted: a version that no alias points to. Move {them} first."
        )
    ended = Life(life=document.marks.life, deleted_at=now, whole=False, versions=(version,))
    kept = tuple(one for one in document.versions if one.vuid != vuid)
    assert document.first_id is not None, "a live voice has a first version"
    first = FirstVersion(id=document.first_id, life=document.marks.life)
    return document.having(
        versions=kept,
        first=first if kept[0].id != first.id else None,
        dead=(*document.dead, ended),
    )


def undeleted(document: SpeakerDocument) -> SpeakerDocument:
    """Restore the voice that was deleted last. `life` does not fall, so uploads that began before the delete
    stay refused.

    Raises `VoiceExists` if the voice is live, `VoiceNotFound` if nothing is left to restore.
    """
    if document.live:
        raise VoiceExists(
            f"Voice '{document.newest.name}' is not deleted: it was restored already, or registered again."
        )
    last = document.last_deleted
    if last is None:
        raise VoiceNotFound("There is no deleted voice of this name that can be restored.")
    aliases = {name: alias.having(moved=document.revision + 1) for name, alias in last.aliases.items()}
    return document.having(
        versions=last.versions,
        aliases=aliases,
        about=last.about,
        first=FirstVersion(id=last.first, life=document.marks.life) if last.first else None,
        dead=tuple(one for one in document.dead if one is not last),
    )


def without_lives(document: SpeakerDocument, *, deleted_before: int) -> SpeakerDocument:
    """Forget versions that were deleted before this moment, and record that their bytes are to be removed.

    If nothing else is left, the voice is erased.
    """
    kept = tuple(life for life in document.dead if life.deleted_at >= deleted_before)
    if kept == document.dead:
        return document
    left = document.having(dead=kept) if kept or document.live else erased(document)
    forgotten = (version.vuid for life in document.dead for version in life.versions)
    return left.having(erasing=tuple(sorted({*left.erasing, *forgotten} - left.names_of_bytes)))


def with_bytes_removed(document: SpeakerDocument, vuids: Collection[str]) -> SpeakerDocument:
    """Record that the bytes of forgotten versions were removed."""
    kept = tuple(one for one in document.erasing if one not in vuids)
    return document if kept == document.erasing else document.having(erasing=kept)


def erased(document: SpeakerDocument) -> SpeakerDocument:
    """Forget everything of a deleted voice except marks, change ids, and the ids of bytes that were or are to
    be removed.

    `life` rose at the delete, so uploads that began before it stay refused. It does not rise again, because
    an upload that began since then may start from a copy in which the voice is deleted and not erased yet.

    Members of newer releases are forgotten too, because they may contain personal data.
    """
    marks = document.marks
    return SpeakerDocument(
        revision=document.revision,
        changes=document.changes,
        marks=Marks(number=marks.number, created_at=marks.created_at, life=marks.life),
        erasing=document.erasing,
        swept=document.swept,
    )
