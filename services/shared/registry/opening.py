"""Opens store, index and queue as the settings say. Every process calls it once, at its start."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from typing import TypeVar

import redis
import structlog

from services.shared.bucket.connection import StoreUnreachable, describe, prepare_bucket
from services.shared.bucket.documents import Documents
from services.shared.bucket.epochs import Epochs
from services.shared.bucket.facts import truth_of
from services.shared.bucket.identity import bucket_identity
from services.shared.bucket.opening import open_store
from services.shared.bucket.place import check_place
from services.shared.bucket.probe import probe_consistency
from services.shared.bucket.store import ObjectStore
from services.shared.configuration.settings import RegistrySettings, StoreSettings
from services.shared.index.leases import Leases
from services.shared.index.profile_events import ProfileEvents
from services.shared.index.redis_access import connect
from services.shared.index.speaker_index import SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.model.profiles import ProfileCatalogue
from services.shared.queue.dispatch import RqDispatcher
from services.shared.registry.parts import RegistryParts
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.served import ServedEncoders
from services.shared.registry.shared_documents import SharedDocuments
from services.shared.view.generation import Generation
from services.shared.view.workers import Workers
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 10.0
"""The pause between two attempts to reach the store at the start grows from the first to the longest."""


def open_parts(store_settings: StoreSettings, settings: RegistrySettings) -> RegistryParts:
    """Open the bucket and Redis of the settings.

    Raises:
        StoreUnfit: the bucket is missing, refused to us, or not consistent enough to be the truth, or it was
            not reached within `start_seconds`. ProfileUnknown: a profile is not known.
    """
    clock = Clock()
    store, identity = _patiently(partial(_open_bucket, store_settings, clock), store_settings, clock)
    return parts_over(store, identity, settings, clock)


def parts_over(store: ObjectStore, identity: str, settings: RegistrySettings, clock: Clock) -> RegistryParts:
    """Open Redis for a store whose bucket has this identity. Raises `ProfileUnknown`."""
    index = SpeakerIndex(
        settings.redis_address, identity, truth_of(store), Epochs(store, clock), clock=clock.now
    )
    documents = Documents(store, clock)
    generation = Generation(settings.redis_address, identity, documents, clock)
    shared = SharedDocuments(
        documents=documents,
        generation=generation,
        clock=clock,
        now=lambda: int(store.now().timestamp()),
    )
    leases, workers = Leases(index, clock), Workers(generation)
    events = ProfileEvents(index, leases, clock)
    return RegistryParts(
        store=store,
        documents=documents,
        generation=generation,
        shared=shared,
        index=index,
        leases=leases,
        profile_records=ProfileRecords(shared, clock, tell=events.tell, wait=events.settle),
        workers=workers,
        served=ServedEncoders(workers, clock),
        catalogue=ProfileCatalogue.load(settings.profiles),
        dispatcher=RqDispatcher(open_queue_connection(settings), job_seconds=settings.job_seconds),
        settings=settings,
        clock=clock,
        run_all=ConcurrentRunner(),
    )


Opened = TypeVar("Opened")


def _patiently(opening: Callable[[], Opened], settings: StoreSettings, clock: Clock) -> Opened:
    """Call `opening` until it no longer raises `StoreUnreachable`, with growing pauses.

    One truncated answer of the store must not end the start. Gives up after `start_seconds`.
    """
    deadline, pause = clock.monotonic() + settings.start_seconds, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return opening()
        except StoreUnreachable as error:
            if clock.monotonic() + pause > deadline:
                raise
            log.warning("store.unreachable", reason=str(error), again_in_seconds=pause)
        clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _open_bucket(settings: StoreSettings, clock: Clock) -> tuple[ObjectStore, str]:
    """Return the probed store and its bucket's identity."""
    prepare_bucket(settings)
    store = open_store(settings)
    try:
        _probe(store, settings)
        place = check_place(store, settings, clock)
        return store, bucket_identity(store, clock) + place.suffix
    except Unavailable as error:
        cause = "; ".join(getattr(error, "__notes__", [error.message]))
        raise StoreUnreachable(describe(settings, cause)) from None


def _probe(store: ObjectStore, settings: StoreSettings) -> None:
    """Probe the store. A folder of ours that can only be read is accepted.

    If it cannot be written because the disk is full or read-only, writes are refused one by one until there
    is room again.
    """
    try:
        probe_consistency(store)
    except Unavailable as error:
        if settings.folder is None or not store.list("_registry/").objects:
            raise
        log.error("store.read_only", reason="; ".join(getattr(error, "__notes__", [error.message])))


class ConcurrentRunner:
    """Runs steps on threads, because they mostly wait for the disk or the network."""

    def __init__(self, threads: int = 8) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="at-once")

    def __call__(self, steps: Iterable[Callable[[], object]]) -> None:
        """Run all steps and return when all have ended. Raises the error of the first that failed."""
        # In our context: their log lines carry the request's id.
        futures = [self._pool.submit(copy_context().run, step) for step in steps]
        wait(futures)
        for future in futures:
            future.result()


def open_queue_connection(settings: RegistrySettings) -> redis.Redis:
    """Return a Redis client for RQ, which reads bytes. Everything else here reads text."""
    return connect(settings.redis_address, decode_responses=False)
