"""The one gate through which a speaker is read and changed. The bucket has the truth, the view a copy of it.

Reading takes the copy and, where the view lacks one, the document in the bucket. Changing is one way:

    announce the write -> decide on the document -> swap, the commit -> apply to the view -> confirm

Only the swap decides. If a step after it fails, the change stands and the caller is told to ask again; the
repeat finds what it did. Nothing else in the code base swaps a speaker's document or writes a copy of it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import structlog

from services.shared.bucket.documents import Base, Documents
from services.shared.bucket.layout import document_key
from services.shared.bucket.store import MAX_READ_BYTES
from services.shared.model.changes import fitting
from services.shared.model.clock import Clock
from services.shared.model.document import Counts, SpeakerDocument
from services.shared.model.events import events_between
from services.shared.model.speaker import Speaker, SpeakerId
from services.shared.model.stored_document import DocumentDamaged, DocumentNewer
from services.shared.registry.parsed import MissingSpeakers, ParsedDocuments
from services.shared.telemetry.metrics import INTEGRITY_FAILURES
from services.shared.view.agenda import Agenda
from services.shared.view.answers import Answers
from services.shared.view.copies import Copy, Held, SpeakerView
from services.shared.view.generation import Generation, ViewAway
from services.shared.view.leases import Leases
from speaker_registry.errors import SpeakerRegistryError, Unavailable, VoiceDamaged, VoiceUnreadable

log = structlog.get_logger(__name__)

MAX_DOCUMENT_BYTES = 1024 * 1024
_NOTHING = SpeakerDocument()
Answer = TypeVar("Answer")

Decide = Callable[[SpeakerDocument], SpeakerDocument]
"""A decision returns the next document, or its argument if nothing is to be changed. It refuses by raising an
error of the registry. It may be called several times, on newer documents.
"""
Done = Callable[[SpeakerDocument], bool]
"""This says whether a document holds the change already."""
NotUnderstood = VoiceDamaged | VoiceUnreadable
"""The reason why a document that was read says nothing about its speaker."""
RunAll = Callable[[Iterable[Callable[[], object]]], None]
"""This runs steps that do not depend on each other, and returns when all have ended."""


@dataclass(frozen=True, slots=True)
class FoundSpeaker(Speaker):
    """A speaker as it was read, with its id."""

    id: SpeakerId = field(kw_only=True)
    of_view: bool = field(default=True, kw_only=True)
    """False if the document comes from the bucket, because the view did not have it. Then the event stream
    need not tell of what changes it.
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
        """Take what reads and changes speakers.

        Args:
            now: returns the store's time in Unix seconds, by which everything in a document is dated.
            run_all: reads several documents from the bucket at once.
        """
        self.documents = documents
        self.generation = generation
        self.view = SpeakerView(generation)
        self.agenda = Agenda(generation)
        self.answers = Answers(generation)
        self.leases = Leases(generation, clock)
        self.clock = clock
        self.now = now
        self.max_document_bytes = max_document_bytes
        self.reading_bucket: Callable[[], AbstractContextManager[None]] = nullcontext
        """Returns a context in which documents are read for requests that the view cannot answer. The API
        limits how many of them are active at once.
        """
        self._run_all = run_all
        self._parsed = ParsedDocuments()
        self._missing = MissingSpeakers()

    # Reading

    def read(self, speaker_id: SpeakerId) -> FoundSpeaker:
        """Return a speaker. One that does not exist has the document of revision 0.

        Raises:
            VoiceDamaged, VoiceUnreadable: its document cannot be understood.
            Unavailable: neither view nor bucket could be read.
        """
        [found] = self.read_many([speaker_id])
        if isinstance(found, FoundSpeaker):
            return found
        raise found

    def read_many(self, speaker_ids: Sequence[SpeakerId]) -> list[FoundSpeaker | NotUnderstood]:
        """Return several speakers, with one round trip for those that the view has.

        One whose document cannot be understood is an error in its place. Raises `Unavailable`.
        """
        known = {one: etag for one in speaker_ids if (etag := self._parsed.etag(one))}
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
        kept = self._parsed.get(speaker_id, copy.etag) if copy.body is None else None
        if kept is not None:
            return FoundSpeaker(kept, copy.open_jobs, id=speaker_id)
        if copy.body is None:  # this process dropped it meanwhile, and the view may have lost it as well
            return self.read(speaker_id)
        document = self.parse(speaker_id, Base(copy.body, copy.etag))
        return FoundSpeaker(document, copy.open_jobs, id=speaker_id)

    def _from_bucket(self, speaker_id: SpeakerId, *, view_lacks_it: bool = False) -> SpeakerDocument:
        """Return the document in the bucket. Only if that is missing, there is no such speaker.

        What this process remembers of its absence counts only if the view was read and lacks the speaker,
        too: otherwise another process may have registered it since.
        """
        generation = None
        with suppress(Unavailable):
            generation = self.generation.for_reading()
        if view_lacks_it and self._missing.holds(speaker_id, generation, self.clock.monotonic()):
            return _NOTHING
        with self.reading_bucket():
            base = self.documents.read(document_key(speaker_id))
        document = self.parse(speaker_id, base)
        if base.etag is None:
            self._missing.put(speaker_id, generation, self.clock.monotonic())
        elif generation:
            with suppress(Unavailable):
                self.apply(speaker_id, document, base, generation, _NOTHING)
        return document

    def refresh(self, speaker_id: SpeakerId) -> SpeakerDocument:
        """Return the document in the bucket, after the view's copy was brought up to it.

        Raises `ViewAway` if there is no view to bring up, or as `read` does.
        """
        generation = self.generation.for_reading()  # first: a later one might need a newer document
        base = self.documents.read(document_key(speaker_id))
        document = self.parse(speaker_id, base)
        if base.etag is not None:
            self.apply(speaker_id, document, base, generation, _NOTHING)
        return document

    def show_each(self, found: Sequence[Held], generation: str) -> list[SpeakerId]:
        """Bring the view's copies of several speakers up to what the bucket has of them.

        Returns the speakers of whom the view has a copy that is as new. Raises `ViewAway` or `Unavailable`.

        Args:
            found: speakers of one namespace, read after the generation began.
        """
        kept = self.view.apply_each(found, generation=generation)
        for one in found:
            self._missing.drop(one.speaker_id)
        return kept

    def usage(self, namespace: str) -> Counts | None:
        """Return what the speakers of a namespace use, or None while the view does not hold all of them."""
        with suppress(Unavailable):
            if self.view.is_complete():
                return self.view.usage(namespace)
        return None

    def usage_so_far(self, namespace: str) -> Counts:
        """Return what those speakers of a namespace use that the view holds. Raises `Unavailable`."""
        return self.view.usage(namespace)

    @contextmanager
    def reserving(self, speaker_id: SpeakerId, document: SpeakerDocument) -> Iterator[Counts]:
        """Yield what those speakers of a namespace use that the view holds. Raises `Unavailable`.

        A voice that is not live in `document` counts meanwhile: of several that are registered at once, each
        finds those counted that came before it.
        """
        if document.live:
            yield self.usage_so_far(speaker_id.namespace)
            return
        try:
            yield self.view.reserve(speaker_id)
        finally:
            with suppress(Unavailable):  # then it counts until it is outdated
                self.view.release(speaker_id)

    # Changing

    @contextmanager
    def changing(self, speaker_id: SpeakerId, *, by: str, until: float | None = None) -> Iterator["Change"]:
        """Begin a change of a speaker: announce it, and read the document that it starts from.

        Args:
            by: the id of the API key, or the name of what changes the speaker.
            until: the deadline of the request, from `deadline`. By default the request arrives now.

        Raises:
            Unavailable: it could not be announced. Then nothing may be written.
        """
        until = self.deadline() if until is None else until
        token = self.clock.new_id()
        generation = self._announce(speaker_id, token)
        change = Change(self, speaker_id, token, generation, by=by, until=until)
        try:
            yield change
        finally:
            if change.is_settled:
                with suppress(Unavailable):  # then housekeeping finds it, and fences it
                    self.agenda.withdraw(speaker_id, token)

    def _announce(self, speaker_id: SpeakerId, token: str) -> str:
        """Announce a write. Returns the generation in which it was announced."""
        with suppress(ViewAway):  # Redis lost the view since the last call, and another one begins
            generation = self.generation.for_reading()
            self.agenda.announce(speaker_id, token, generation)
            return generation
        generation = self.generation.for_reading()
        self.agenda.announce(speaker_id, token, generation)
        return generation

    def deadline(self) -> float:
        """Return the moment until which a request that arrives now may change speakers."""
        return self.documents.deadline()

    def change(
        self, speaker_id: SpeakerId, decide: Decide, *, by: str, did: str, until: float | None = None
    ) -> SpeakerDocument:
        """Make a change that needs no bytes. Arguments and errors are those of `Change.commit`."""
        with self.changing(speaker_id, by=by, until=until) as change:
            return change.commit(decide, did=did)

    def parse(self, speaker_id: SpeakerId, base: Base, *, keep: bool = True) -> SpeakerDocument:
        """Parse a document. Raises `VoiceDamaged` or `VoiceUnreadable`.

        Args:
            keep: the document is taken from memory if it is there, whatever the body is, and kept there. If
                False, it is what the body says.
        """
        if keep and base.etag and (kept := self._parsed.get(speaker_id, base.etag)):
            return kept
        try:
            document = SpeakerDocument.parse(base.body, base.members)
        except DocumentDamaged as error:
            log.error("document.damaged", speaker=str(speaker_id), reason=str(error))
            INTEGRITY_FAILURES.labels("record").inc()
            raise _damaged(speaker_id, base.oversize) from None
        except DocumentNewer as error:
            log.error("document.newer", speaker=str(speaker_id), reason=str(error))
            raise _newer(error) from None
        if keep and base.etag and base.body:
            self._parsed.put(speaker_id, base.etag, document, len(base.body))
        return document

    def apply(
        self,
        speaker_id: SpeakerId,
        document: SpeakerDocument,
        base: Base,
        generation: str,
        before: SpeakerDocument,
    ) -> None:
        assert base.etag is not None
        # The body that was read may be damaged, and the document of this ETag be from memory.
        held = Held(speaker_id, document, base.etag, document.to_bytes())
        self.view.apply(held, generation=generation, base=before)
        self._missing.drop(speaker_id)


class Change:
    """One announced change of a speaker. `Speakers.changing` makes it."""

    def __init__(
        self,
        speakers: Speakers,
        speaker_id: SpeakerId,
        token: str,
        generation: str,
        *,
        by: str,
        until: float,
    ) -> None:
        self._speakers = speakers
        self._speaker_id = speaker_id
        self._key = document_key(speaker_id)
        self._generation = generation
        self._by = by
        self.token = token
        """The id of this change. It is new, so it may name what the change stores."""
        self.until = until
        self.is_settled = True
        """False while a swap of this change may still be carried out. Then the announcement stays."""
        self.mended = False
        """True if the change was decided in place of a damaged document."""
        self._base: Base | None = None

    @property
    def document(self) -> SpeakerDocument:
        """Return the document that the change starts from, which may be an outdated copy; after the commit,
        the one that it led to.
        """
        return self._understood(self._start())

    def ask(self, question: Callable[[SpeakerDocument], Answer]) -> Answer:
        """Return what `question` says of the document that the change starts from.

        A refusal of the copy is decided again on the document in the bucket: the copy may be outdated.
        """
        try:
            return question(self.document)
        except SpeakerRegistryError:
            self._base = self._speakers.documents.read(self._key)
            self._bring_up_view()
            return question(self.document)

    def commit(
        self,
        decide: Decide,
        *,
        did: str,
        done: Done | None = None,
        takes_away: bool = False,
        mends: bool = False,
    ) -> SpeakerDocument:
        """Commit what `decide` makes of the newest document. Returns the document then.

        Args:
            did: the kind of change, for those who read the document or the events.
            done: says whether a document holds the change already, where what it adds has an id. By default
                the document keeps the change's own id.
            takes_away: answer only when no reader of an older view is left.
            mends: decide on an empty document in place of a damaged one, instead of raising.

        Raises:
            Unavailable: the change was not made, or stands but could not be shown; a repeat finds out.
            VoiceDamaged, VoiceUnreadable: the document cannot be understood. What `decide` raises.
        """
        before, seen = _NOTHING, None

        def next_body(base: Base) -> bytes | None:
            nonlocal before, seen
            self.mended = mends and self._is_damaged(base)
            before = found = self._mended() if self.mended else self._understood(base)
            seen = base
            after = decide(found)
            if after is found and not self.mended:
                return None
            after = after.following(
                found, None if done else self.token, at=self._speakers.now(), by=self._by, did=did
            )
            if not takes_away:  # what was deleted is named with its date, and that must always fit
                fitting(found, after, max_bytes=self._speakers.max_document_bytes)
            body = after.to_bytes()
            self.is_settled = False  # from here on a swap may be on its way
            return body

        try:
            committed = self._speakers.documents.change(
                self._key, next_body, done=self._is_done(done), base=self._start(), until=self.until
            )
        except Unavailable:
            raise
        except SpeakerRegistryError:
            self.is_settled = True  # refused on a newer document, to which no earlier try can apply any more
            self._base = seen
            self._bring_up_view()
            raise
        self.is_settled, self._base = True, committed
        self._show(committed, before, takes_away=takes_away)
        return self.document

    def _show(self, committed: Base, before: SpeakerDocument, *, takes_away: bool) -> None:
        """Apply a document to the view, see that this view is still the one in use, and wait until nobody
        answers from memory what the change took away.
        """
        if committed.etag is not None:
            base = _NOTHING if self.mended else before
            self._speakers.apply(self._speaker_id, self.document, committed, self._generation, base)
        if takes_away:
            self._speakers.generation.settle()
        self._speakers.generation.confirm(self._generation)
        if takes_away or any(event.takes_away for event in events_between(before, self.document)):
            self._speakers.leases.settle()

    def _bring_up_view(self) -> None:
        """Apply the document in the bucket that a change is refused on, of which the copy may lag behind.

        Otherwise the caller could be told of a change that a later reader does not see.
        """
        base = self._base
        if base is not None and base.etag is not None and not self.mended:
            with suppress(Unavailable, VoiceDamaged, VoiceUnreadable):
                self._speakers.apply(
                    self._speaker_id, self._understood(base), base, self._generation, _NOTHING
                )

    def _start(self) -> Base:
        """Return the document that the change starts from, from the view or else from the bucket."""
        if self._base is None:
            [copy] = self._speakers.view.get([self._speaker_id], {})
            self._base = (
                Base(copy.body, copy.etag, copy.revision or 0)
                if copy.body and copy.etag
                else self._speakers.documents.read(self._key)
            )
        return self._base

    def _understood(self, base: Base) -> SpeakerDocument:
        return self._speakers.parse(self._speaker_id, base)

    def _is_damaged(self, base: Base) -> bool:
        try:
            self._understood(base)
        except VoiceDamaged:
            return True
        return False

    def _mended(self) -> SpeakerDocument:
        """Return the document that a delete decides on in place of a damaged one."""
        [copy] = self._speakers.view.get([self._speaker_id], {})
        known = SpeakerDocument.parse(copy.body) if copy.body else None
        return SpeakerDocument.after_damage(known, self._speakers.now())

    def _is_done(self, done: Done | None) -> Callable[[bytes], bool]:
        def holds(body: bytes) -> bool:
            try:
                document = SpeakerDocument.parse(body)
            except (DocumentDamaged, DocumentNewer):
                return False
            return self.token in document.changes if done is None else done(document)

        return holds


def _damaged(speaker_id: SpeakerId, oversize: int | None) -> VoiceDamaged:
    how = "is damaged"
    if oversize is not None:
        how = f"takes {oversize} bytes, more than the {MAX_READ_BYTES} bytes that are accepted,"
    return VoiceDamaged(
        f"The record of this voice {how} in the bucket, so what the name stands for is unknown. Restore "
        f"the object '{document_key(speaker_id)}' from a backup, or delete the voice."
    )


def _newer(error: DocumentNewer) -> VoiceUnreadable:
    return VoiceUnreadable(
        f"The record of this voice was written by a newer release: {error}. Accepted: a release of the "
        "registry that is at least as new.",
        retry_after_seconds=60,
    )
