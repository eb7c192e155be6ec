"""The only module that changes the documents of profiles and API keys. Every process keeps copies of them.

    decide on the document -> swap, the commit -> tell Redis -> confirm

The swap alone decides whether a change is made. Redis records which copies are outdated, and may lose this
record. This module does not know what the documents contain.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from services.shared.bucket.documents import SEND_AGAIN, Base, BeforeCommit, Documents
from services.shared.bucket.layout import name_of
from services.shared.model.clock import Clock
from services.shared.model.stored_document import DocumentDamaged, DocumentNewer, StoredDocument
from services.shared.telemetry.logs import LogThrottle
from services.shared.telemetry.metrics import INTEGRITY_FAILURES
from services.shared.view.generation import Generation
from services.shared.view.shared_copies import SharedCopies
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

D = TypeVar("D", bound=StoredDocument)

_LOGGED_SECONDS = 600.0
"""A document of a newer release is logged this often. It is read again every few seconds."""


class DocumentUnusable(Unavailable):
    """A document in the bucket is damaged, is that of another profile or key, or was written by a newer
    release.
    """


@dataclass(frozen=True, slots=True)
class Found(Generic[D]):
    """A document as the bucket has it."""

    document: D
    etag: str | None
    """None if the bucket has no such document."""


@dataclass(frozen=True, slots=True)
class Changed(Found[D]):
    """A document after a change."""

    shared: bool
    """False if the change was made, but Redis may not have recorded it."""

    def expect_shared(self) -> "Changed[D]":
        """Return this change. Raises `Unavailable` if other processes may not learn of it."""
        if not self.shared:
            raise change_not_shared()
        return self


class SharedDocuments:
    """Reads and changes documents by their paths in the bucket."""

    def __init__(
        self, *, documents: Documents, generation: Generation, clock: Clock, now: Callable[[], int]
    ) -> None:
        """Use a bucket's documents and their copies. `now` returns the store's time in Unix seconds, which
        dates documents.
        """
        self.copies = SharedCopies(generation)
        self.now = now
        self.before_commit: BeforeCommit = lambda: None
        self._documents = documents
        self._generation = generation
        self._clock = clock
        self._throttle = LogThrottle(_LOGGED_SECONDS)

    def read(self, kind: type[D], path: str) -> Found[D]:
        """Return the document in the bucket. Raises `DocumentUnusable`, or `Unavailable`."""
        base = self._documents.read(path)
        return Found(self._understood(kind, path, base), base.etag)

    def is_outdated(self, path: str, found: Found[D]) -> bool:
        """Return whether Redis has recorded a later revision than the bucket's answer has. Without Redis,
        nothing is known of one.
        """
        with suppress(Unavailable):
            return self.copies.revision(path) > found.document.revision
        return False

    def copy(self, kind: type[D], path: str) -> D | None:
        """Return the copy in Redis, or None if there is none. Raises `Unavailable`."""
        base = self.copies.get(path)
        return self._understood(kind, path, base) if base else None

    def copies_of(self, kind: type[D], paths: Sequence[str]) -> dict[str, D]:
        """Return the copies in Redis of several documents by path, in one round trip.

        Documents without a copy are left out. Raises `Unavailable`.
        """
        bases = self.copies.get_many(paths)
        return {
            path: self._understood(kind, path, base)
            for path, base in zip(paths, bases, strict=True)
            if base is not None
        }

    def share(self, path: str, found: Found[D], *, with_body: bool) -> None:
        """Record in Redis a document that was read from the bucket. Raises `Unavailable`."""
        self._apply(path, found.document, found.etag, self._generation.for_reading(), with_body=with_body)

    def change(
        self,
        kind: type[D],
        path: str,
        decide: Callable[[D], D],
        *,
        by: str,
        did: str,
        with_body: bool,
        mend: Callable[[], D] | None = None,
    ) -> Changed[D]:
        """Commit the document that `decide` makes from the newest one, and record the change in Redis.

        If the bucket has an older document than Redis has a copy of, as after an operator put back an older
        one, the change is refused. Redis would take no later document either.

        Args:
            decide: returns the next document, or its argument if there is nothing to change. It refuses by
                raising an error of the registry, and may be called several times.
            with_body: whether Redis keeps a copy of the JSON.
            mend: returns a document to decide on in place of a damaged one, or of one that the bucket has
                lost although Redis has a copy.

        Raises:
            DocumentUnusable: the document cannot be understood.
            Unavailable: the change was not made, or it is not known whether it was. Errors that `decide` and
                `before_commit` raise are passed on.
        """
        generation, change_id = self._usable_generation(), self._clock.new_id()

        def next_body(base: Base) -> bytes | None:
            before, is_mended = self._start(kind, path, base, mend)
            after = decide(before)
            if after is before and not is_mended:
                return None
            after = after.following(before, change_id, at=self.now(), by=by, did=did)
            body = after.to_bytes()
            self.before_commit()
            return body

        committed = self._documents.change(
            path,
            next_body,
            is_made=kind.holding(change_id),
            known_revision=self._copied_revision(kind, path),
            is_damaged=lambda base: _is_damaged(kind, path, base),
        )
        document = self._understood(kind, path, committed)
        shared = self._share_commit(path, document, committed.etag, generation, with_body=with_body)
        return Changed(document, committed.etag, shared)

    def settle(self) -> None:
        """Wait until no process uses an older generation of the view any more. Raises `Unavailable`."""
        self._generation.settle()

    def expect_view(self) -> None:
        """Raise `Unavailable` if there is no view through which other processes could learn of a change."""
        self._generation.read(lambda _pipeline, _generation: None)

    def _start(self, kind: type[D], path: str, base: Base, mend: Callable[[], D] | None) -> tuple[D, bool]:
        """Return the document that a change starts from, and whether it takes the place of a damaged or lost
        one. Raises `DocumentUnusable`.
        """
        try:
            document = _parse(kind, path, base)
        except (DocumentDamaged, DocumentNewer) as error:
            if mend is not None and isinstance(error, DocumentDamaged):
                return mend(), True
            raise self._unusable(path, error) from None
        if mend is not None and base.etag is None and self._copied_revision(kind, path):
            log.error("document.lost", path=path)
            return mend(), True
        return document, False

    def _copied_revision(self, kind: type[D], path: str) -> int:
        """Return the revision of the copy in Redis, or 0 if it has no usable copy."""
        with suppress(Unavailable):
            copy = self.copy(kind, path)
            return 0 if copy is None else copy.revision
        return 0

    def _understood(self, kind: type[D], path: str, base: Base) -> D:
        """Parse a document. Raises `DocumentUnusable`."""
        try:
            return _parse(kind, path, base)
        except (DocumentDamaged, DocumentNewer) as error:
            raise self._unusable(path, error) from None

    def _unusable(self, path: str, error: DocumentDamaged | DocumentNewer) -> DocumentUnusable:
        """Log why a document cannot be used, and return the error for callers."""
        if isinstance(error, DocumentDamaged):
            log.error("document.damaged", path=path, reason=str(error))
            INTEGRITY_FAILURES.labels("record").inc()
            advice = "is damaged. Restore it from a backup."
        else:
            if self._throttle.due((path, str(error))):
                log.error("document.newer", path=path, reason=str(error))
            advice = (
                f"was written by a newer release: {error}. Accepted: a release of the registry that is at "
                "least as new."
            )
        return DocumentUnusable(f"The object '{path}' in the bucket {advice}", retry_after_seconds=60)

    def _usable_generation(self) -> str | None:
        """Return the generation in use before the commit, so that every later one reads the commit.

        This asks Redis, because it may have lost the view since the last call.
        """
        try:
            self._generation.read(lambda _pipeline, _generation: None)
            return self._generation.for_reading()
        except Unavailable:
            return None

    def _share_commit(
        self, path: str, document: D, etag: str | None, generation: str | None, *, with_body: bool
    ) -> bool:
        """Record a commit in Redis. Returns whether every process will learn of it."""
        if generation is None:
            return False
        try:
            self._apply(path, document, etag, generation, with_body=with_body)
            self._generation.confirm(generation)
        except Unavailable as error:
            log.warning("document.not_shared", path=path, reason=error.message)
            return False
        return True

    def _apply(self, path: str, document: D, etag: str | None, generation: str, *, with_body: bool) -> None:
        if etag is not None:
            body = document.to_bytes() if with_body else b""
            self.copies.apply(
                path,
                document.revision,
                etag,
                body,
                generation=generation,
                event=document.UPDATED,
                news=document.news,
            )


def change_not_shared() -> Unavailable:
    """Return the error for a change that was made although other processes may learn of it late."""
    return Unavailable(
        "The change was made, but could not be recorded in Redis, so other processes may learn of it late. "
        f"{SEND_AGAIN}",
        retry_after_seconds=1,
    )


def _parse(kind: type[D], path: str, base: Base) -> D:
    """Parse a document. Raises `DocumentDamaged` or `DocumentNewer`.

    The document of another profile or key, copied to this path by mistake, is damaged. Its digest is right,
    so nothing else would show the mistake.
    """
    document = kind.parse(base.body)
    if document.named not in {None, name_of(path)}:
        raise DocumentDamaged(f"the document is that of {document.named!r}")
    return document


def _is_damaged(kind: type[D], path: str, base: Base) -> bool:
    try:
        _parse(kind, path, base)
    except (DocumentDamaged, DocumentNewer) as error:
        return isinstance(error, DocumentDamaged)
    return False
