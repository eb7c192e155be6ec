"""Everything that is true about one speaker, as one document. `changes` makes the next one of it.

Pure: no clock, no bucket, no Redis. A document is parsed from the JSON in the bucket, and answers questions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, ValidationError

from services.shared.model.records import Record, Version, seal, unseal
from speaker_registry.errors import AliasNotFound, IdempotencyKeyReused, VersionNotFound
from speaker_registry.names import DEFAULT, LATEST

FORMAT = 1
"""The highest format of a document that this release understands."""
KNOWN_NEEDS: frozenset[str] = frozenset()
"""The words in `needs` that this release understands."""
KEPT_CHANGES = 32
"""The number of change ids that a document keeps. A lost reply is settled by them within 30 seconds."""
_FAR_ABOVE = 1_000
"""The document after a damaged one goes on so far above what anybody may have seen of the damaged one."""


class DocumentDamaged(Exception):
    """The document does not verify or lacks a member. Nothing is guessed in its place."""


class DocumentNewer(Exception):
    """The document can only be understood by a newer release. It is neither served nor changed."""


class Alias(Record):
    """A name for one version of a speaker."""

    vuid: str
    by_hand: bool = False
    """True if a caller moved the alias. Then it stays until a caller takes the move back."""
    moved: int
    """The revision that moved the alias."""


class Marks(Record):
    """The highest values ever used. They never fall, also over deletes and erasures."""

    number: int = 0
    created_at: int = 0
    life: int = 1
    """The number of the present life of the name. Every delete begins another one."""


class Life(Record):
    """Versions that were deleted, whose bytes are kept for the grace period."""

    life: int
    deleted_at: int
    whole: bool = True
    """False for one version that was deleted while the voice lived on."""
    versions: tuple[Version, ...]
    aliases: dict[str, Alias] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counts:
    """The share of a speaker in what its namespace uses."""

    voices: int
    bytes: int
    text_bytes: int


class SpeakerDocument(Record):
    """Everything that is true about one speaker. A change makes a new document with the next revision."""

    format: Literal[1] = 1
    revision: int = 0
    """The number of changes so far. 0 is the document of a speaker that the bucket does not have."""
    needs: tuple[str, ...] = ()
    """Words that a reader must know. A reader that does not know one serves and changes nothing."""
    changes: dict[str, int] = Field(default_factory=dict)
    """Ids of the last changes that cannot be told by what they added, each with its revision."""
    at: int = 0
    """The store's time of the last change, in Unix seconds."""
    by: str = ""
    did: str = ""
    key: str | None = None
    """The key of the speaker's name. None before the first version and after an erasure."""
    marks: Marks = Marks()
    versions: tuple[Version, ...] = ()
    """The live versions, oldest first."""
    extractors: dict[str, dict[str, object]] = Field(default_factory=dict)
    """For each fingerprint what the artifacts that were made with it have in common."""
    aliases: dict[str, Alias] = Field(default_factory=dict)
    dead: tuple[Life, ...] = ()
    swept: dict[str, int] = Field(default_factory=dict)
    """Ids whose bytes were collected as garbage, each with the time. No change may name them any more."""

    # Reading and writing

    @classmethod
    def parse(cls, body: bytes | None) -> Self:
        """Parse a stored document; None is that of a speaker which the bucket does not have.

        Raises `DocumentDamaged` or `DocumentNewer`.
        """
        if body is None:
            return cls()
        try:
            members = unseal(body)
            _refuse_newer(members)
            return cls.model_validate(members)
        except (ValueError, ValidationError) as error:
            raise DocumentDamaged(str(error)) from None

    def to_bytes(self) -> bytes:
        """Return the document as it is stored."""
        return seal(self.model_dump(mode="json"))

    def following(self, before: Self, change_id: str | None, *, at: int, by: str, did: str) -> Self:
        """Return this document as the revision after `before`.

        Args:
            change_id: the id by which a repeat of the change is recognised. None if the change added
                something that has an id of its own.
        """
        revision = before.revision + 1
        changes = {**before.changes, **({change_id: revision} if change_id else {})}
        newest = dict(sorted(changes.items(), key=lambda change: change[1])[-KEPT_CHANGES:])
        return self.having(revision=revision, changes=newest, at=at, by=by, did=did)

    @classmethod
    def after_damage(cls, known: Self | None, now: int) -> Self:
        """Return the empty document that a delete puts in place of a damaged one.

        Number, life and revision go on far above everything that the damaged document may have said.

        Args:
            known: the last copy of the document that is known.
            now: the store's time.
        """
        known = known or cls()
        number = max(now, known.marks.number + _FAR_ABOVE)
        life = max(now, known.marks.life + _FAR_ABOVE)
        marks = Marks(number=number, created_at=max(now, known.marks.created_at), life=life)
        return cls(marks=marks, revision=max(now, known.revision + _FAR_ABOVE), swept=known.swept)

    # Questions

    @property
    def live(self) -> bool:
        """Return whether the speaker can be resolved."""
        return bool(self.versions)

    @property
    def default(self) -> Version:
        """Return the version that the alias `default` points to. Only a live speaker has one."""
        found = self.version(self.aliases[DEFAULT].vuid)
        assert found is not None, "no change leaves an alias without its version"
        return found

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    def version(self, vuid: str) -> Version | None:
        """Return the live version with this id."""
        return next((version for version in self.versions if version.vuid == vuid), None)

    def resolve(self, reference: int | str, complete: Callable[[Version], bool]) -> Version:
        """Return the live version that a reference stands for: a number, an alias or `latest`.

        Args:
            complete: says which versions `latest` may be. If it is none of them, `latest` is the newest.

        Raises:
            VersionNotFound, AliasNotFound: no other version is returned in its place.
        """
        if reference == LATEST:
            return next((version for version in reversed(self.versions) if complete(version)), self.newest)
        if isinstance(reference, int):
            return self._numbered(reference)
        alias = self.aliases.get(reference)
        found = self.version(alias.vuid) if alias else None
        if found is None:
            raise AliasNotFound(
                f"Voice '{self.newest.name}' has no alias '{reference}'. "
                f"It has: {', '.join(sorted({LATEST, *self.aliases}))}.",
                param="ref",
            )
        return found

    def _numbered(self, number: int) -> Version:
        for version in self.versions:
            if version.number == number:
                return version
        raise VersionNotFound(
            f"Voice '{self.newest.name}' has no version {number}. The newest is {self.newest.number}.",
            param="ref",
        )

    def answer_to(self, request: str, idempotency: str | None) -> Version | None:
        """Return the version that a request has made already, or None.

        That is the version with the request's Idempotency-Key, or else the newest one if it was made by an
        equal request. Raises `IdempotencyKeyReused` if the key was used for another request.
        """
        made = next((v for v in self.versions if idempotency and v.idempotency == idempotency), None)
        if made is not None and made.request != request:
            raise IdempotencyKeyReused(
                "This Idempotency-Key was used for another request. "
                "Accepted: that same request again, or a new key."
            )
        if made is None and self.live and self.newest.request == request:
            return self.newest
        return made

    @property
    def names_of_bytes(self) -> frozenset[str]:
        """Return every id that the document names, also of what was deleted. Their bytes have to stay."""
        dead = (version for life in self.dead for version in life.versions)
        return frozenset().union(*(version.names_of_bytes for version in (*self.versions, *dead)))

    @property
    def counts(self) -> Counts:
        """Return what the speaker adds to what its namespace uses."""
        return Counts(
            voices=int(self.live),
            bytes=sum(version.size for version in self.versions),
            text_bytes=sum(version.text_bytes for version in self.versions),
        )


def _refuse_newer(members: dict[str, object]) -> None:
    """Raise `DocumentNewer` if a document was written by a release that knows more than this one.

    Looked at before the members are validated, because a newer format may have others.
    """
    form, needs = members.get("format"), members.get("needs", ())
    if isinstance(form, int) and form > FORMAT:
        raise DocumentNewer(f"the document has format {form}; this release reads format {FORMAT}")
    unknown = {str(word) for word in needs} - KNOWN_NEEDS if isinstance(needs, list | tuple) else set()
    if unknown:
        raise DocumentNewer(f"the document needs {', '.join(sorted(unknown))}, which this release lacks")
