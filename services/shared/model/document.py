"""The document that holds everything about one speaker. `changes` makes the next document from it.

Pure: no clock, no bucket, no Redis. A document is parsed from the JSON in the bucket, has methods that query
it, and remembers the last changes that callers made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field

from services.shared.model.records import About, Alias, ArtifactRecord, Record, Version
from services.shared.model.stored_document import FAR_ABOVE, StoredDocument
from speaker_registry.errors import AliasNotFound, IdempotencyKeyReused, VersionNotFound
from speaker_registry.names import DEFAULT, LATEST

_SHOWN_VERSIONS = 20
"""Largest number of versions that an error lists."""
KEPT_ENTRIES = 100
"""Largest number of changes that the history of a voice remembers."""
BY_PEOPLE = frozenset(
    {"register", "bring", "delete", "delete_version", "undelete", "alias", "edit", "cancel"}
)
"""The changes that the history remembers, by their values of `StoredDocument.did`. Changes by workers and
housekeeping are left out, because their number is not bounded.
"""


class Marks(Record):
    """The highest values that a name has ever used. They never fall, not even after deletes and erasures."""

    number: int = 0
    created_at: int = 0
    life: int = 1
    """The number of the name's current life. Every delete begins another life."""


class Life(Record):
    """Deleted versions, whose bytes are kept for the grace period."""

    life: int
    deleted_at: int
    whole: bool = True
    """False for one version that was deleted while the voice lived on."""
    versions: tuple[Version, ...]
    aliases: dict[str, Alias] = Field(default_factory=dict)
    about: About = About()
    first: Annotated[str | None, Field(exclude_if=lambda first: first is None)] = None
    """The id of the voice's first version, if that version had been deleted before."""

    @property
    def ids(self) -> frozenset[str]:
        """The ids by which callers could refer to the voice."""
        ids = frozenset(version.id for version in self.versions)
        return ids if self.first is None else ids | {self.first}


class FirstVersion(Record):
    """The first version of a voice, which was deleted while the voice lived on. The voice keeps its id."""

    id: str
    life: int
    """The life of the name to which this belongs. A release that does not know this record may end that life
    and keep the record.
    """


class Entry(Record):
    """One change that a caller made to a voice."""

    revision: int
    at: int
    by: str
    did: str
    version: int | None = None
    """The version that was changed, if the change concerned a single version."""
    alias: str | None = None


RECORD_BYTES = 1024
"""A deleted version takes about this many bytes of the document, and so of Redis, besides its texts."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers and bytes that a speaker adds to the usage of its namespace."""

    voices: int
    bytes: int
    text_bytes: int
    deleted_bytes: int = 0
    """The bytes of deleted versions, which are kept until their grace period ends."""
    deleted_text_bytes: int = 0
    """The bytes of the texts of deleted versions, and `RECORD_BYTES` for each of these versions."""


class SpeakerDocument(StoredDocument):
    """Everything that is true about one speaker. A change makes a new document with the next revision."""

    namespace: Annotated[str | None, Field(exclude_if=lambda namespace: namespace is None)] = None
    """The namespace of the speaker. Documents that were last changed before this was recorded lack it."""
    key: str | None = None
    """The key of the speaker's name. None before the first version and after an erasure."""
    marks: Marks = Marks()
    versions: tuple[Version, ...] = ()
    """The live versions, oldest first."""
    first: Annotated[FirstVersion | None, Field(exclude_if=lambda first: first is None)] = None
    """None as long as the first version of the voice is live."""
    extractors: dict[str, dict[str, object]] = Field(default_factory=dict)
    """Maps an encoder's fingerprint to the inputs that all its artifacts have in common."""
    aliases: dict[str, Alias] = Field(default_factory=dict)
    about: About = About()
    dead: tuple[Life, ...] = ()
    erasing: Annotated[tuple[str, ...], Field(exclude_if=lambda erasing: not erasing)] = ()
    """The vuids of versions that the document has forgotten and whose bytes are not removed yet. An erasure
    that was interrupted goes on with them.
    """
    swept: dict[str, int] = Field(default_factory=dict)
    """Maps ids whose bytes were collected as garbage to the time of collection. No later change may name
    them.
    """
    history: tuple[Entry, ...] = ()
    """The last changes that people and their keys have made, newest last."""

    @classmethod
    def after_damage(cls, known: Self | None, now: int) -> Self:
        """Return the empty document that a delete puts in place of a damaged one.

        Its numbers, life and revision are far above any value that the damaged document may have had.

        Args:
            known: the last known copy of the document.
            now: the store's time.
        """
        known = known or cls()
        number = max(now, known.marks.number + FAR_ABOVE)
        life = max(now, known.marks.life + FAR_ABOVE)
        marks = Marks(number=number, created_at=max(now, known.marks.created_at), life=life)
        return cls(marks=marks, revision=max(now, known.revision + FAR_ABOVE), swept=known.swept)

    def following(self, before: Self, change_id: str | None, *, at: int, by: str, did: str) -> Self:
        after = super().following(before, change_id, at=at, by=by, did=did)
        return after.having(history=_remembered(before, after))

    # Questions

    @property
    def live(self) -> bool:
        """Return whether the speaker can be resolved."""
        return bool(self.versions)

    @property
    def default(self) -> Version:
        """Return the version that the alias `default` points to. Only a live speaker has one."""
        found = self.version(self.aliases[DEFAULT].vuid)
        assert found is not None, "every alias points to a version of the document"
        return found

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    @property
    def last_deleted(self) -> Life | None:
        """Return the life that an undelete would restore, or None if there is none."""
        return next((life for life in reversed(self.dead) if life.whole), None)

    def version(self, vuid: str) -> Version | None:
        """Return the live version that is stored under this id."""
        return next((version for version in self.versions if version.vuid == vuid), None)

    def outcome(
        self, vuid: str, profile: str, fingerprint: str, build: int
    ) -> Literal["succeeded", "canceled"] | None:
        """Return `Version.outcome` of a live version, or None if the version is gone."""
        version = self.version(vuid)
        return version.outcome(profile, fingerprint, build) if version is not None else None

    @property
    def deleted_first_id(self) -> str | None:
        """The id of the first version of the live voice, if that version is deleted, else None."""
        return self.first.id if self.first is not None and self.first.life == self.marks.life else None

    @property
    def first_id(self) -> str | None:
        """The id of the first version of the live voice, by which callers know it. It may be deleted."""
        return self.deleted_first_id or (self.versions[0].id if self.versions else None)

    def is_known_by(self, version_id: str) -> bool:
        """Return whether the live voice can be referred to by the id of this version."""
        return self.live and version_id in {self.first_id, *(version.id for version in self.versions)}

    def resolve(self, reference: int | str, complete: Callable[[Version], bool]) -> Version:
        """Return the live version that a reference (a number, an alias or `latest`) stands for.

        Args:
            complete: returns whether a version is complete, so that `latest` may stand for it. If no version
                is complete, `latest` is the newest one.

        Raises:
            VersionNotFound, AliasNotFound: the document has no such version or alias.
        """
        if reference == LATEST:
            return next((version for version in reversed(self.versions) if complete(version)), self.newest)
        if isinstance(reference, int):
            return self.numbered(reference)
        alias = self.aliases.get(reference)
        found = self.version(alias.vuid) if alias else None
        if found is None:
            raise AliasNotFound(
                f"Voice '{self.newest.name}' has no alias '{reference}'. "
                f"It has: {', '.join(sorted({LATEST, *self.aliases}))}.",
                param="ref",
            )
        return found

    def numbered(self, number: int) -> Version:
        """Return the live version with this number. Raises `VersionNotFound`, which lists the existing
        versions.
        """
        for version in self.versions:
            if version.number == number:
                return version
        existing = [str(version.number) for version in self.versions]
        shown = [*(["…"] if len(existing) > _SHOWN_VERSIONS else []), *existing[-_SHOWN_VERSIONS:]]
        raise VersionNotFound(
            f"Voice '{self.newest.name}' has no version {number}. The newest is {existing[-1]}. "
            f"It has: {', '.join(shown)}.",
            param="ref",
        )

    def answer_to(self, request: str, idempotency: str | None) -> Version | None:
        """Return the version that an earlier attempt of a request has created, or None.

        This is the version with the request's Idempotency-Key, or else the newest version if an equal request
        created it. Raises `IdempotencyKeyReused` if the key was used for another request.
        """
        made = next((v for v in self.versions if idempotency and v.idempotency == idempotency), None)
        if made is not None and made.request != request:
            raise key_reused()
        if made is None and self.live and self.newest.request == request:
            return self.newest
        return made

    def extractor(self, record: ArtifactRecord) -> dict[str, object]:
        """Return the inputs of an artifact's fingerprint, or an empty dictionary if they are not known."""
        return record.extractor or self.extractors.get(record.fingerprint, {})

    @property
    def version_ids(self) -> frozenset[str]:
        """Return the ids of all versions, including those of deleted ones that can still be restored, and of
        the first version of a voice.
        """
        dead = (version for life in self.dead for version in life.versions)
        ids = frozenset(name for one in (*self.versions, *dead) for name in (one.id, one.vuid))
        known = {self.first_id} if self.first_id is not None else set()
        return ids.union(known, *(life.ids for life in self.dead))

    @property
    def names_of_bytes(self) -> frozenset[str]:
        """Return every id that the document names, including those of deleted versions. Their bytes must be
        kept.
        """
        dead = (version for life in self.dead for version in life.versions)
        return frozenset().union(*(version.names_of_bytes for version in (*self.versions, *dead)))

    @property
    def digests(self) -> frozenset[str]:
        """Return the digests of all artifacts of live versions (`sha256:…`)."""
        return frozenset(
            one.digest for version in self.versions for made in version.artifacts.values() for one in made
        )

    @property
    def counts(self) -> Counts:
        """Return the numbers and bytes that the speaker adds to the usage of its namespace."""
        deleted = [version for life in self.dead for version in life.versions]
        texts = self.about.text_bytes + sum(version.text_bytes for version in self.versions)
        deleted_texts = sum(life.about.text_bytes for life in self.dead)
        deleted_texts += sum(version.text_bytes for version in deleted)
        return Counts(
            voices=int(self.live),
            bytes=texts + sum(version.uploaded_bytes for version in self.versions),
            text_bytes=texts,
            deleted_bytes=deleted_texts + sum(version.uploaded_bytes for version in deleted),
            deleted_text_bytes=deleted_texts + RECORD_BYTES * len(deleted),
        )


def key_reused() -> IdempotencyKeyReused:
    return IdempotencyKeyReused(
        "This Idempotency-Key was used for another request. Accepted: the same request again, or a new key."
    )


def _remembered(before: SpeakerDocument, after: SpeakerDocument) -> tuple[Entry, ...]:
    """Return the history of a document, including the change that made it from `before`."""
    nothing_was_there = after.did == "delete" and not before.versions
    if after.did not in BY_PEOPLE or nothing_was_there:
        return after.history
    alias = _changed_alias(before, after) if after.did == "alias" else None
    entry = Entry(
        revision=after.revision,
        at=after.at,
        by=after.by,
        did=after.did,
        version=number_of(after, alias) if alias else _changed_version(before, after),
        alias=alias,
    )
    return (*after.history, entry)[-KEPT_ENTRIES:]


def _changed_alias(before: SpeakerDocument, after: SpeakerDocument) -> str | None:
    """Return the alias that a caller has moved, reset or removed, or None if there is none."""
    names = sorted({*before.aliases, *after.aliases})
    return next((one for one in names if before.aliases.get(one) != after.aliases.get(one)), None)


def number_of(document: SpeakerDocument, alias: str) -> int | None:
    """Return the number of the version that an alias points to, or None if there is no such alias."""
    present = document.aliases.get(alias)
    version = document.version(present.vuid) if present else None
    return version.number if version else None


def _changed_version(before: SpeakerDocument, after: SpeakerDocument) -> int | None:
    """Return the number of the one version that was added, removed or changed."""
    old, new = ({version.vuid: version for version in one.versions} for one in (before, after))
    changed = [vuid for vuid in old.keys() | new.keys() if old.get(vuid) != new.get(vuid)]
    if len(changed) != 1:
        return None
    version = new.get(changed[0]) or old[changed[0]]
    return version.number
