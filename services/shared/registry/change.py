"""One change of a speaker's document, from the decision to the confirmation. `Speakers.changing` begins it.

The swap alone decides whether a change is made. If a step after it fails, the change stands, and the caller
is asked to repeat the request, which then finds that the change was made.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from services.shared.bucket.documents import Base, BeforeCommit
from services.shared.bucket.layout import document_key
from services.shared.model.changes import fitting
from services.shared.model.document import SpeakerDocument
from services.shared.model.events import events_between
from services.shared.model.speaker import SpeakerId
from services.shared.registry.speaker_documents import SpeakerDocuments
from services.shared.view.copies import NO_DOCUMENT
from services.shared.view.generation import Generation
from services.shared.view.leases import Leases
from speaker_registry.errors import SpeakerRegistryError, Unavailable, VoiceDamaged, VoiceUnreadable

Answer = TypeVar("Answer")

Decide = Callable[[SpeakerDocument], SpeakerDocument]
"""A decision is a function that returns the next document, or its argument if nothing is to be changed. It
refuses by raising an error of the registry. It may be called several times, on newer documents.
"""
Done = Callable[[SpeakerDocument], bool]
"""A function that says whether a document already contains the change."""


class Change:
    """One announced change of a speaker."""

    def __init__(
        self,
        documents: SpeakerDocuments,
        generation: Generation,
        leases: Leases,
        speaker_id: SpeakerId,
        token: str,
        *,
        announced_in: str,
        by: str,
        until: float,
        now: Callable[[], int],
        before_commit: BeforeCommit,
    ) -> None:
        """Create an announced change.

        Args:
            announced_in: the generation in which it was announced.
            now: returns the store's time in Unix seconds.
        """
        self._documents = documents
        self._generation = generation
        self._leases = leases
        self._speaker_id = speaker_id
        self._announced_in = announced_in
        self._by = by
        self._now = now
        self._before_commit = before_commit
        self.token = token
        """The id of this change. No other change has it, so it can also name bytes that the change stores."""
        self.until = until
        self.is_settled = True
        """False while a swap of this change may still be carried out. The announcement then stays."""
        self.mended = False
        """True if the change was decided in place of a damaged document."""
        self._base: Base | None = None

    @property
    def document(self) -> SpeakerDocument:
        """Return the document that the change starts from, which may be an outdated copy. After the commit,
        return the newest document that was found, which others may have changed since.
        """
        return self._understood(self._start())

    def ask(self, question: Callable[[SpeakerDocument], Answer]) -> Answer:
        """Return the answer of `question` for the document that the change starts from.

        If `question` raises for the copy, it is asked again about the document in the bucket, because the
        copy may be outdated.
        """
        try:
            return question(self.document)
        except SpeakerRegistryError:
            self._base = self._documents.read(self._speaker_id)
            self._bring_up_view()
            return question(self.document)

    def commit(
        self,
        decide: Decide,
        *,
        did: str,
        done: Done | None = None,
        takes_away: bool = False,
        max_bytes: int | None = None,
        mends: bool = False,
    ) -> SpeakerDocument:
        """Commit the document that `decide` makes from the newest one.

        Returns the document as this change made it, also if others have changed it again since. So a caller
        finds in it what it has just changed, for example a version of a voice that was deleted meanwhile.

        Args:
            did: the kind of change, as it is recorded in the document.
            done: says whether a document already contains the change, if the change adds something with an
                id. By default the document keeps the change's own id.
            takes_away: return only when no process reads an older view any more.
            max_bytes: refuse to make the document larger than this. By default the change is never refused
                for its size, because it adds little, or ends something that would be tried again for ever.
            mends: decide on an empty document in place of a damaged one, instead of raising.

        Raises:
            Unavailable: the change was not made, or it was made but the view could not be updated. It can be
                repeated safely.
            VoiceDamaged, VoiceUnreadable: the document cannot be understood. Errors that `decide` and
                `before_commit` raise are passed on.
        """
        before, seen, made = NO_DOCUMENT, None, None

        def next_body(base: Base) -> bytes | None:
            nonlocal before, seen, made
            self.mended = mends and self._is_damaged(base)
            before, seen = self._empty_after_damage() if self.mended else self._understood(base), base
            after = decide(before)
            if after is before and not self.mended:
                made = base.body
                return None
            change_id = None if done else self.token
            after = after.following(before, change_id, at=self._now(), by=self._by, did=did)
            after = after.having(namespace=self._speaker_id.namespace)
            made = body = after.to_bytes()
            if max_bytes is not None:
                fitting(before, body, max_bytes=max_bytes)
            self._before_commit()
            self.is_settled = False  # from here on, a swap may be under way
            return body

        try:
            committed = self._documents.stored.change(
                document_key(self._speaker_id),
                next_body,
                is_made=SpeakerDocument.holding(self.token, done),
                base=self._start(),
                until=self.until,
                is_damaged=self._is_damaged,
            )
        except Unavailable:
            raise
        except SpeakerRegistryError:
            self.is_settled = True  # no earlier attempt can apply to this newer document
            self._base = seen
            self._bring_up_view()
            raise
        self.is_settled, self._base = True, committed
        self._show(committed, before, takes_away=takes_away)
        return self.document if committed.body == made else self._understood(Base(made, etag=None))

    def _show(self, committed: Base, before: SpeakerDocument, *, takes_away: bool) -> None:
        """Apply a document to the view, check that this view is still in use, and wait until no process
        answers from memory with data that the change took away.
        """
        if committed.etag is not None:
            self._bring_up_to(committed, NO_DOCUMENT if self.mended else before)
        if takes_away:
            self._generation.settle()
        self._generation.confirm(self._announced_in)
        if takes_away or any(event.takes_away for event in events_between(before, self.document)):
            self._leases.settle()

    def _bring_up_view(self) -> None:
        """Bring the view up to the document for which a change is refused, because the copy may be outdated.

        Otherwise the error could refer to a change that a read afterwards does not show.
        """
        base = self._base
        if base is not None and base.etag is not None and not self.mended:
            with suppress(Unavailable, VoiceDamaged, VoiceUnreadable):
                self._bring_up_to(base)

    def _bring_up_to(self, base: Base, before: SpeakerDocument = NO_DOCUMENT) -> None:
        """Bring the view's copy up to a document."""
        document = self._understood(base)
        self._documents.show(self._speaker_id, document, base, generation=self._announced_in, before=before)

    def _start(self) -> Base:
        """Read the document that the change starts from, from the view or else from the bucket."""
        if self._base is None:
            [copy] = self._documents.view.get([self._speaker_id], {})
            self._base = (
                Base(copy.body, copy.etag, copy.revision or 0)
                if copy.body and copy.etag
                else self._documents.read(self._speaker_id)
            )
        return self._base

    def _understood(self, base: Base) -> SpeakerDocument:
        return self._documents.parse(self._speaker_id, base)

    def _is_damaged(self, base: Base) -> bool:
        try:
            self._understood(base)
        except (VoiceDamaged, VoiceUnreadable) as error:
            return isinstance(error, VoiceDamaged)
        return False

    def _empty_after_damage(self) -> SpeakerDocument:
        """Return the empty document on which a delete decides in place of a damaged one."""
        [copy] = self._documents.view.get([self._speaker_id], {})
        known = SpeakerDocument.parse(copy.body) if copy.body else None
        return SpeakerDocument.after_damage(known, self._now())
