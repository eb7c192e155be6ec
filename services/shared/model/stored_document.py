"""The common part of all documents in the bucket: a revision, the ids of the last changes, and a digest.

Pure: no clock, no bucket, no Redis. Each kind of document adds its own members, see `document` for speakers
and `profile_document` for profiles.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError

from services.shared.model.records import Record, seal, unseal

FORMAT = 1
"""The highest format of a document that this release understands."""
KNOWN_NEEDS: frozenset[str] = frozenset()
"""The words in `needs` that this release understands."""
KEPT_CHANGES = 32
"""Largest number of change ids that a document keeps. They show whether a change was made whose reply was
lost. If that many other changes follow before the document is read again, the outcome of the change counts as
unknown.
"""
FAR_ABOVE = 1_000
"""Distance of the numbers in the document after a damaged one from the last known ones."""


class DocumentDamaged(Exception):
    """The document's digest is wrong or a member is missing. No values are guessed."""


class DocumentNewer(Exception):
    """The document can only be understood by a newer release. It is neither served nor changed."""


class StoredDocument(Record):
    """A document that is replaced as a whole. A change makes a new one with the next revision."""

    UPDATED: ClassVar[str] = ""
    """The type of the event that announces a change, for documents of which every process keeps a copy."""

    format: Literal[1] = 1
    revision: int = 0
    """The number of changes so far. It is 0 if the bucket has no such document."""
    needs: tuple[str, ...] = ()
    """Features that a reader must support. A reader that does not know one of them neither serves nor changes
    the document.
    """
    changes: dict[str, int] = Field(default_factory=dict)
    """Maps the ids of the last changes to their revisions, except changes that added something with an id of
    its own.
    """
    at: int = 0
    """The store's time of the last change, in Unix seconds."""
    by: str = ""
    did: str = ""

    @property
    def named(self) -> str | None:
        """Return the name or id in the document's own path, or None if the document does not tell."""
        return None

    @property
    def news(self) -> tuple[dict[str, str], ...]:
        """Return the fields of further events for the last changes that have an event type of their own,
        oldest first. `what` is the type of an event, and `revision` that of its change.
        """
        return ()

    @classmethod
    def parse(cls, body: bytes | None, members: dict[str, Any] | None = None) -> Self:
        """Parse a stored document. None stands for a document that the bucket does not have.

        Args:
            members: the members that `unseal` returned for this body, if it was called before.

        Raises `DocumentDamaged` or `DocumentNewer`.
        """
        if body is None:
            return cls()
        try:
            members = unseal(body) if members is None else members
            _refuse_newer(members)
            return cls.model_validate(members)
        except (ValueError, ValidationError) as error:
            raise DocumentDamaged(str(error)) from None

    def to_bytes(self) -> bytes:
        """Return the stored form of the document."""
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

    def has_change(self, change_id: str, revision: int) -> bool | None:
        """Return whether the change with this id was made. None means that its id may have been dropped.

        Args:
            revision: the revision that the change would have made, or an earlier one. Ids of earlier
                revisions are dropped first.
        """
        if change_id in self.changes:
            return True
        may_have_dropped = len(self.changes) >= KEPT_CHANGES and min(self.changes.values()) > revision
        return None if may_have_dropped else False

    @classmethod
    def holding(
        cls, change_id: str, done: Callable[[Self], bool] | None = None
    ) -> Callable[[bytes, int], bool | None]:
        """Return a function that tells whether a stored body contains a change, as `has_change` does. A body
        that cannot be understood does not.

        Args:
            done: says whether a document contains the change, if that has an id of its own.
        """

        def holds(body: bytes, revision: int) -> bool | None:
            try:
                document = cls.parse(body)
            except (DocumentDamaged, DocumentNewer):
                return False
            return document.has_change(change_id, revision) if done is None else done(document)

        return holds


def _refuse_newer(members: dict[str, object]) -> None:
    """Raise `DocumentNewer` if a document was written by a release that knows more than this one.

    This is checked before the members are validated, because a newer format may have other members.
    """
    form, needs = members.get("format"), members.get("needs", ())
    if isinstance(form, int) and form > FORMAT:
        raise DocumentNewer(f"the document has format {form}; this release reads format {FORMAT}")
    unknown = {str(word) for word in needs} - KNOWN_NEEDS if isinstance(needs, list | tuple) else set()
    if unknown:
        raise DocumentNewer(f"the document needs {', '.join(sorted(unknown))}, which this release lacks")
