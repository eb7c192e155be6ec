"""The only module that reads and changes speakers. The documents in the bucket are authoritative, and the
view holds copies.

Reading uses the copy or, if the view lacks one, the document in the bucket. Every change takes these steps:

    announce the write -> decide on the document -> swap, the commit -> apply to the view -> confirm

This module announces the write, and `change` does the rest. No other code swaps a speaker's document or
writes a copy of it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

from services.shared.bucket.documents import Base, BeforeCommit, Documents
from services.shared.model.clock import Clock
from services.shared.model.document import Counts, SpeakerDocument
from services.shared.model.speaker import Speaker, SpeakerId
from services.shared.registry.change import Change, Decide
from services.shared.registry.speaker_documents import SpeakerDocuments
from services.shared.view.agenda import Agenda
from services.shared.view.answers import Answers
from services.shared.view.away import ViewAway
from services.shared.view.copies import NO_DOCUMENT, Copy, SpeakerView
from services.shared.view.generation import Generation
from services.shared.view.leases import Leases
from speaker_registry.errors import Unavailable, VoiceDamaged, VoiceUnreadable

MAX_DOCUMENT_BYTES = 1024 * 1024
"""The size up to which callers can add versions and artifacts to a document."""
ARTIFACTS_BYTES = 2 * 1024 * 1024
"""The size by which the artifacts that workers make may exceed this limit. The sum leaves room below
`MAX_READ_BYTES` for changes that are not limited, which add little.
"""
NotUnderstood = VoiceDamaged | VoiceUnreadable
"""The errors for a document that cannot be understood."""
RunAll = Callable[[Iterable[Callable[[], object]]], None]
"""A function that runs independent steps, and returns when all have ended."""


@dataclass(frozen=True, slots=True)
class FoundSpeaker(Speaker):
    """A speaker as it was read, with its id."""

    id: SpeakerId = field(kw_only=True)
    of_view: bool = field(default=True, kw_only=True)
    """False if the document comes from the bucket, because the view did not have it. In that case, its
    changes may be missing from the event stream.
    """


def _one_by_one(steps: Iterable[Callable[[], object]]) -> None:
    for step in steps:
        step()


class Speakers:
    """Reads speakers and changes them."""

    def __init__(
        self,
        *,
        documents: Documents,
        generation: Generation,
        clock: Clock,
        now: Callable[[], int],
        max_document_bytes: int = MAX_DOCUMENT_BYTES,
        run_all: RunAll = _one_by_one,
    ) -> None:
        """Create an object that reads and changes the speakers of these documents.

        Args:
            now: returns the store's time in Unix seconds, which dates everything in a document.
            run_all: reads several documents from the bucket at once.
        """
        self.generation = generation
        self.view = SpeakerView(generation)
        self.documents = SpeakerDocuments(documents, self.view, clock)
        self.agenda = Agenda(generation)
        self.answers = Answers(generation)
        self.leases = Leases(generation, clock)
        self.clock = clock
        self.now = now
        self.max_document_bytes = max_document_bytes
        self.reading_bucket: Callable[[], AbstractContextManager[None]] = nullcontext
        """A function that returns the context in which documents are read for requests that the view cannot
        answer. The API uses it to limit the number of concurrent reads.
        """
        self.before_commit: BeforeCommit = lambda: None
        self._run_all = run_all

    # Reading

    def read(self, speaker_id: SpeakerId) -> FoundSpeaker:
        """Return a speaker. If it does not exist, its document has revision 0.

        Raises:
            VoiceDamaged, VoiceUnreadable: its document cannot be understood.
            Unavailable: neither view nor bucket could be read.
        """
        [found] = self.read_many([speaker_id])
        if isinstance(found, FoundSpeaker):
            return found
        raise found

    def read_many(self, speaker_ids: Sequence[SpeakerId]) -> list[FoundSpeaker | NotUnderstood]:
        """Return several speakers, with one round trip for all that the view has.

        For a document that cannot be understood, the error is returned in its place. Raises `Unavailable`.
        """
        known = {one: etag for one in speaker_ids if (etag := self.documents.parsed.etag(one))}
        copies: Sequence[Copy | None]
        try:
            copies = self.view.get(speaker_ids, known)
        except Unavailable:
            copies = [None] * len(speaker_ids)
        found: dict[SpeakerId, FoundSpeaker | NotUnderstood] = {}

        def read(speaker_id: SpeakerId, copy: Copy | None) -> None:
            try:
                found[speaker_id] = self._found(speaker_id, copy)
            except (VoiceDamaged, VoiceUnreadable) as error:
                found[speaker_id] = error

        steps = [partial(read, one, copy) for one, copy in zip(speaker_ids, copies, strict=True)]
        in_view = all(copy is not None and copy.etag is not None for copy in copies)
        (_one_by_one if in_view else self._run_all)(steps)
        return [found[one] for one in speaker_ids]

    def _found(self, speaker_id: SpeakerId, copy: Copy | None) -> FoundSpeaker:
        if copy is None or copy.etag is None:
            document = self._from_bucket(speaker_id, view_lacks_it=copy is not None)
            return FoundSpeaker(document, copy.open_jobs if copy else (), id=speaker_id, of_view=False)
        kept = self.documents.parsed.get(speaker_id, copy.etag) if copy.body is None else None
        if kept is not None:
            return FoundSpeaker(kept, copy.open_jobs, id=speaker_id)
        if copy.body is None:  # the cache dropped it meanwhile, and the view may have lost it as well
            return self.read(speaker_id)
        document = self.documents.parse(speaker_id, Base(copy.body, copy.etag))
        return FoundSpeaker(document, copy.open_jobs, id=speaker_id)

    def _from_bucket(self, speaker_id: SpeakerId, *, view_lacks_it: bool = False) -> SpeakerDocument:
        """Return the document in the bucket. Only if it is missing is there no such speaker.

        A remembered absence counts only if the view was read and lacks the speaker, too. Otherwise another
        process may have registered the speaker meanwhile.
        """
        generation = None
        with suppress(Unavailable):
            generation = self.generation.for_reading()
        missing = self.documents.missing
        if view_lacks_it and missing.holds(speaker_id, generation):
            return NO_DOCUMENT
        with self.reading_bucket():
            base = self.documents.read(speaker_id)
        document = self.documents.parse(speaker_id, base)
        if base.etag is None:
            missing.put(speaker_id, generation)
        elif generation:
            with suppress(Unavailable):
                self.documents.show(speaker_id, document, base, generation=generation)
        return document

    def refresh(self, speaker_id: SpeakerId) -> SpeakerDocument:
        """Return the document in the bucket, and update the view's copy to it.

        Raises `ViewAway` if there is no view to update, or the same errors as `read`.
        """
        generation = self.generation.for_reading()  # first, as a later one might need a newer document
        base = self.documents.read(speaker_id)
        document = self.documents.parse(speaker_id, base)
        if base.etag is not None:
            self.documents.show(speaker_id, document, base, generation=generation)
        return document

    def usage(self, namespace: str) -> Counts | None:
        """Return the usage of a namespace, or None while the view does not hold all of its speakers. Raises
        `Unavailable`.
        """
        return self.view.usage(namespace) if self.view.is_complete() else None

    def usage_so_far(self, namespace: str) -> Counts:
        """Return the usage of a namespace, counting only the speakers that the view holds. Raises
        `Unavailable`.
        """
        return self.view.usage(namespace)

    @contextmanager
    def reserving(self, speaker_id: SpeakerId, document: SpeakerDocument) -> Iterator[Counts]:
        """Yield the usage of a namespace, counting only the speakers that the view holds. Raises
        `Unavailable`.

        A voice that is not live in `document` is reserved within the context: other registrations count it,
        so that several at the same time cannot exceed a quota. Each context has a reservation of its own, so
        one that ends does not end those of other requests for the same voice.
        """
        if document.live:
            yield self.usage_so_far(speaker_id.namespace)
            return
        token = self.clock.new_id()
        try:
            yield self.view.reserve(speaker_id, token)
        finally:
            with suppress(Unavailable):  # otherwise the reservation expires by itself
                self.view.release(speaker_id, token)

    # Changing

    @contextmanager
    def changing(self, speaker_id: SpeakerId, *, by: str, until: float | None = None) -> Iterator[Change]:
        """Begin a change of a speaker: announce it, and read the document that it starts from.

        Args:
            by: the id of the API key or job, or the name of the worker or task, that makes the change.
            until: the deadline of the request, from `deadline`. By default the request counts as arriving
                now.

        Raises:
            Unavailable: it could not be announced. Then nothing may be written.
        """
        until = self.deadline() if until is None else until
        token = self.clock.new_id()
        generation = self._announce(speaker_id, token)
        change = Change(
            self.documents,
            self.generation,
            self.leases,
            speaker_id,
            token,
            announced_in=generation,
            by=by,
            until=until,
            now=self.now,
            before_commit=self.before_commit,
        )
        try:
            yield change
        finally:
            if change.is_settled:
                with suppress(Unavailable):  # otherwise housekeeping finds and fences it
                    self.agenda.withdraw(speaker_id, token)

    def _announce(self, speaker_id: SpeakerId, token: str) -> str:
        """Announce a write. Returns the generation in which it was announced."""
        with suppress(ViewAway):  # Redis lost the view since the last call, and a new generation begins
            generation = self.generation.for_reading()
            self.agenda.announce(speaker_id, token, generation)
            return generation
        generation = self.generation.for_reading()
        self.agenda.announce(speaker_id, token, generation)
        return generation

    def deadline(self) -> float:
        """Return the moment until which a request that arrives now may change speakers."""
        return self.documents.stored.deadline()

    def change(
        self, speaker_id: SpeakerId, decide: Decide, *, by: str, did: str, until: float | None = None
    ) -> SpeakerDocument:
        """Make a change that stores no bytes. The arguments and errors are those of `Change.commit`."""
        with self.changing(speaker_id, by=by, until=until) as change:
            return change.commit(decide, did=did)
