"""The documents of speakers: in the bucket, as copies in the view, and as this process has parsed them.

`speakers` reads documents through this module, and `change` changes them. Nothing is decided here.
"""

from collections.abc import Sequence

import structlog

from services.shared.bucket.documents import Base, Documents
from services.shared.bucket.layout import document_key
from services.shared.bucket.store import MAX_READ_BYTES
from services.shared.model.clock import Clock
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.model.stored_document import DocumentDamaged, DocumentNewer
from services.shared.registry.parsed import MissingSpeakers, ParsedDocuments
from services.shared.telemetry.metrics import INTEGRITY_FAILURES
from services.shared.view.copies import NO_DOCUMENT, Held, Packed, SpeakerView
from speaker_registry.errors import VoiceDamaged, VoiceUnreadable
from speaker_registry.names import slug_of

log = structlog.get_logger(__name__)


class SpeakerDocuments:
    """The documents of speakers in the bucket, their copies in the view, and this process's cache of them."""

    def __init__(self, stored: Documents, view: SpeakerView, clock: Clock) -> None:
        self.stored = stored
        self.view = view
        self.parsed = ParsedDocuments()
        self.missing = MissingSpeakers(clock.monotonic)

    def read(self, speaker_id: SpeakerId) -> Base:
        """Return the stored document in the bucket, without parsing it. Raises `Unavailable`."""
        return self.stored.read(document_key(speaker_id))

    def parse(self, speaker_id: SpeakerId, base: Base, *, keep: bool = True) -> SpeakerDocument:
        """Parse a document. Raises `VoiceDamaged` or `VoiceUnreadable`.

        Args:
            keep: use the cache: a cached document with this ETag is returned whatever the body is, and a
                parsed one is cached. If False, the body is always parsed.
        """
        if keep and base.etag and (kept := self.parsed.get(speaker_id, base.etag)):
            return kept
        try:
            document = SpeakerDocument.parse(base.body, base.members)
            _refuse_another_speakers(document, speaker_id)
        except DocumentDamaged as error:
            log.error("document.damaged", speaker=str(speaker_id), reason=str(error))
            INTEGRITY_FAILURES.labels("record").inc()
            raise _damaged(speaker_id, base.oversize) from None
        except DocumentNewer as error:
            log.error("document.newer", speaker=str(speaker_id), reason=str(error))
            raise _newer(error) from None
        if keep and base.etag and base.body:
            self.parsed.put(speaker_id, base.etag, document, len(base.body))
        return document

    def show(
        self,
        speaker_id: SpeakerId,
        document: SpeakerDocument,
        base: Base,
        *,
        generation: str,
        before: SpeakerDocument = NO_DOCUMENT,
    ) -> None:
        """Bring the view's copy up to a document.

        Args:
            base: the stored document.
            generation: the generation that was in use before the document was read or changed.
            before: the document that the copy probably holds. Events are sent for the changes since then.

        Raises `ViewAway` or `Unavailable`.
        """
        assert base.etag is not None
        # A body that was read may be damaged, while the document with this ETag comes from the cache.
        body = base.body if base.sound and base.body else document.to_bytes()
        held = Held(speaker_id, document, base.etag, body)
        self.view.apply(held, generation=generation, base=before)
        self.missing.drop(speaker_id)

    def show_each(self, found: Sequence[Packed], generation: str) -> list[SpeakerId]:
        """Update the view's copies of several speakers to their documents in the bucket.

        Returns the speakers whose copies in the view were at least as new. Raises `ViewAway` or
        `Unavailable`.

        Args:
            found: speakers of one namespace, read after the generation began.
        """
        kept = self.view.apply_each(found, generation=generation)
        for one in found:
            self.missing.drop(one.speaker_id)
        return kept


def _refuse_another_speakers(document: SpeakerDocument, speaker_id: SpeakerId) -> None:
    """Raise `DocumentDamaged` if the document is that of another name or namespace, copied to the wrong place
    by mistake.

    Its digest is right, so nothing else would show that another voice is served under this name.
    """
    if document.namespace not in {None, speaker_id.namespace}:
        raise DocumentDamaged(f"the document is that of the namespace {document.namespace!r}")
    if document.key is not None and slug_of(document.key) != speaker_id.slug:
        raise DocumentDamaged(f"the document is that of the name {document.key!r}")


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
