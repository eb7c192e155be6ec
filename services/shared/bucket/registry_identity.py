"""Records which registry a bucket belongs to, and where it is, in the document `_registry.json`.

The identity distinguishes the view of one bucket from that of another. A copy of a bucket contains the same
identity, so two registries could mistake one for the other. Therefore the document also records the bucket's
location, and a bucket that records another location is refused until an operator decides. This module treats
a local folder as a bucket. Buckets with the layout of an earlier release (facts) are refused.

`python -m services.registry_api adopt-bucket` makes the bucket of the settings a registry of its own.
"""

import re
from collections.abc import Callable

import structlog

from services.shared.bucket.connection import StoreUnfit
from services.shared.bucket.documents import Base, Documents, IsMade
from services.shared.bucket.layout import API_KEYS, PROFILES, REGISTRY, VIEW, api_key_of, profile_of
from services.shared.bucket.store import Store
from services.shared.configuration.store import StoreSettings
from services.shared.model.clock import Clock
from services.shared.model.stored_document import DocumentDamaged, DocumentNewer, StoredDocument

log = structlog.get_logger(__name__)

LAYOUT = 2
"""The number of the layout of buckets, see `layout`. The earlier layout (facts) had no number."""
_FACTS = ("_epochs", "_place", "_registry")
"""Folders at the top of a bucket that every start of an earlier release has filled."""
_ID = re.compile(r"[0-9a-f]{32}")


class BucketCopied(StoreUnfit):
    """The bucket records another location: it is a copy, or its name or address has changed."""


class RegistryDocument(StoredDocument):
    """The document that says which registry a bucket belongs to."""

    identity: str = ""
    """The identity, 32 hex digits. Adopting the bucket replaces it."""
    generation: int = 0
    """The number of times that the bucket was made a registry's own: 1 for an original."""
    layout: int = LAYOUT
    name: str = ""
    """The recorded location of the bucket, see `recorded_name`."""


def open_identity(
    store: Store, documents: Documents, settings: StoreSettings, clock: Clock, *, now: Callable[[], int]
) -> RegistryDocument:
    """Return the identity of the registry that the bucket belongs to. The first start on a bucket without a
    registry creates it. Objects of other programs do not count.

    If several processes start at once, one creates the identity, and all return the same.

    Args:
        now: returns the store's time in Unix seconds.

    Raises:
        StoreUnfit: the bucket has the layout of an earlier or of a newer release, or its document is damaged
            or lost.
        BucketCopied: the bucket records another location.
        Unavailable: the store does not answer.
    """
    _refuse_facts(store)
    base = documents.read(REGISTRY)
    if base.body is None and (used_by := _trace(store, documents)):
        base = documents.read(REGISTRY)  # another process may have created it, and left the trace, meanwhile
        if base.body is None:
            raise _unknown(f"lost, but '{used_by}' belongs to a registry")
    document = _parse(base) if base.body is not None else _claim(documents, settings, clock, now)
    _check_name(document, settings)
    return document


def adopt(
    store: Store, documents: Documents, settings: StoreSettings, clock: Clock, *, now: Callable[[], int]
) -> RegistryDocument:
    """Make the bucket a registry of its own, distinct from the one that it was copied from.

    A damaged document is replaced as well, because an operator has decided. Raises `StoreUnfit` for a bucket
    of another layout, and `Unavailable`.
    """
    _refuse_facts(store)
    identity = clock.new_id()

    def decide(base: Base) -> bytes:
        before = RegistryDocument() if base.damaged else _parse_any(base)
        return _made(before, identity, settings, now(), did="adopt").to_bytes()

    changed = documents.change(REGISTRY, decide, is_made=_holding(identity))
    log.info("bucket.adopted", name=recorded_name(settings), identity=identity)
    return _parse(changed)


def recorded_name(settings: StoreSettings) -> str:
    """Return the location that a document of this bucket records: the setting `known_as`, or else the
    bucket's actual location.
    """
    return settings.known_as or actual_location(settings)


def actual_location(settings: StoreSettings) -> str:
    """Return where the bucket actually is: endpoint, bucket and prefix, or the folder."""
    if settings.folder:
        return settings.folder.resolve().as_uri()
    return f"{settings.url} at {settings.endpoint or 'AWS'}"


def _trace(store: Store, documents: Documents) -> str | None:
    """Return the key of an object that only a process with an identity writes, or None if there is none.

    Voices are not looked for, which would need a listing of each namespace. Where voices are, at least one of
    these objects is as well.
    """
    if documents.read(VIEW).body is not None:
        return VIEW
    listed = (stored.key for prefix in (PROFILES, API_KEYS) for stored in store.list(prefix).objects)
    return next((key for key in listed if profile_of(key) or api_key_of(key)), None)


def _claim(
    documents: Documents, settings: StoreSettings, clock: Clock, now: Callable[[], int]
) -> RegistryDocument:
    """Create the identity of a new bucket, unless another process was first."""
    identity = clock.new_id()

    def decide(base: Base) -> bytes | None:
        if base.body is not None:
            return None
        return _made(RegistryDocument(), identity, settings, now(), did="claim").to_bytes()

    claimed = documents.change(REGISTRY, decide, is_made=_holding(identity))
    document = _parse(claimed)
    log.info("bucket.claimed", name=document.name, identity=document.identity)
    return document


def _made(
    before: RegistryDocument, identity: str, settings: StoreSettings, now: int, *, did: str
) -> RegistryDocument:
    after = before.having(
        identity=identity, generation=before.generation + 1, layout=LAYOUT, name=recorded_name(settings)
    )
    return after.following(before, None, at=now, by="operator", did=did)


def _parse(base: Base) -> RegistryDocument:
    """Parse the document of a bucket that has one. Raises `StoreUnfit`."""
    document = _parse_any(base) if not base.damaged else None
    if document is None or not _ID.fullmatch(document.identity):
        raise _unknown("damaged")
    return document


def _parse_any(base: Base) -> RegistryDocument:
    """Parse a document and verify its digest. Raises `StoreUnfit` if this release does not understand it."""
    try:
        document = RegistryDocument.parse(base.body)
    except DocumentDamaged:
        return RegistryDocument()
    except DocumentNewer as error:
        raise _newer(str(error)) from None
    if document.layout != LAYOUT:
        raise _newer(f"the bucket has layout {document.layout}; this release reads layout {LAYOUT}")
    return document


def _check_name(document: RegistryDocument, settings: StoreSettings) -> None:
    """Raise `BucketCopied` unless the bucket records its actual location, or the one of the settings."""
    if document.name not in (actual_location(settings), recorded_name(settings)):
        raise BucketCopied(
            f"SPEAKER_STORE_URL: the bucket at '{actual_location(settings)}' says that it is "
            f"'{document.name}'. If it is a copy, make it a registry of its own by `python -m "
            "services.registry_api adopt-bucket`, and start it with an empty Redis. If it is the same bucket "
            f"by another name or address, set SPEAKER_STORE_KNOWN_AS='{document.name}'"
        )


def _refuse_facts(store: Store) -> None:
    """Raise `StoreUnfit` if an earlier release has written to the bucket, even after this one did."""
    folders = store.folders("")
    found = [f"'{name}/'" for name in _FACTS if name in folders]
    if found:
        raise StoreUnfit(
            "SPEAKER_STORE_URL: this bucket was written by an earlier release, whose layout this one does "
            f"not read: it holds {', '.join(found)}. Accepted: an empty bucket or prefix. To move the "
            "voices, start the earlier release on this bucket and run `speaker-registry export FILE`; then "
            "start this release on an empty bucket and run `speaker-registry import FILE` (docs/moving.md)"
        )


def _unknown(what: str) -> StoreUnfit:
    """Return the error for a bucket whose document does not tell its identity."""
    return StoreUnfit(
        f"SPEAKER_STORE_URL: the object '{REGISTRY}' of the bucket is {what}. Restore it from a backup. "
        "Or, if this bucket is not a copy that could be mistaken for its original, stop the registry, run "
        "`python -m services.registry_api adopt-bucket`, and empty Redis (docs/operations.md, Backup and "
        "restore)"
    )


def _newer(reason: str) -> StoreUnfit:
    return StoreUnfit(
        f"SPEAKER_STORE_URL: a newer release has written the bucket: {reason}. Accepted: a release of the "
        "registry that is at least as new"
    )


def _holding(identity: str) -> IsMade:
    return RegistryDocument.holding("", lambda document: document.identity == identity)
