"""Opens store, view and queue according to the settings. Every process does so once, when it starts.

Only code that wires a process holds an `Opened`. All other code takes the parts that it needs.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from typing import TypeVar

import redis
import structlog

from services.shared.bucket.connection import StoreUnfit, StoreUnreachable, describe, prepare_bucket
from services.shared.bucket.documents import Documents
from services.shared.bucket.layout import REGISTRY
from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import probe_consistency, probe_swaps
from services.shared.bucket.registry_identity import open_identity
from services.shared.bucket.store import ObjectStore
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.model.clock import Clock
from services.shared.model.profiles import ProfileCatalogue
from services.shared.model.threads import started_pool
from services.shared.queue.dispatch import RqDispatcher
from services.shared.queue.jobs import Jobs
from services.shared.registry.opened import Opened
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.profiles import Profiles
from services.shared.registry.served import ServedEncoders
from services.shared.registry.shared_documents import SharedDocuments
from services.shared.registry.speakers import Speakers
from services.shared.view.generation import Generation
from services.shared.view.job_records import JobRecords
from services.shared.view.open_jobs import OpenJobs
from services.shared.view.redis_access import connect
from services.shared.view.workers import Workers
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 10.0
"""The pause between two attempts to reach the store at the start grows from the first to the longest."""


def open_registry(
    store_settings: StoreSettings, settings: RegistrySettings, clock: Clock | None = None
) -> Opened:
    """Open the bucket and Redis that the settings name. Redis is not contacted before the first use.

    Raises:
        StoreUnfit: the bucket is missing, has another layout, refuses access or is not consistent enough, or
            it was not reached within `start_seconds`.
        ProfileUnknown: a profile is not known.
    """
    clock = clock or Clock()
    store, identity = _retried_until_open(partial(_open_bucket, store_settings, clock), store_settings, clock)
    return registry_over(store, identity, settings, clock)


def registry_over(store: ObjectStore, identity: str, settings: RegistrySettings, clock: Clock) -> Opened:
    """Open a registry over a store whose bucket has this identity. Raises `ProfileUnknown`."""
    documents, run_all, now = Documents(store, clock), ConcurrentRunner(), partial(_now, store)
    generation = Generation(settings.redis_address, identity, documents, clock)
    shared = SharedDocuments(documents=documents, generation=generation, clock=clock, now=now)
    catalogue, workers = ProfileCatalogue.load(settings.profiles), Workers(generation)
    speakers = Speakers(documents=documents, generation=generation, clock=clock, now=now, run_all=run_all)
    records = ProfileRecords(shared, clock, wait=speakers.leases.settle)
    dispatcher = RqDispatcher(open_queue_connection(settings), job_seconds=settings.job_seconds)
    return Opened(
        store=store,
        documents=documents,
        clock=clock,
        settings=settings,
        catalogue=catalogue,
        generation=generation,
        speakers=speakers,
        blobs=StoredBytes(store),
        jobs=Jobs(
            OpenJobs(generation),
            JobRecords(generation),
            dispatcher,
            clock,
            max_attempts=settings.max_attempts,
        ),
        profiles=Profiles(catalogue, records, ServedEncoders(workers, clock)),
        profile_records=records,
        workers=workers,
        shared=shared,
        dispatcher=dispatcher,
        run_all=run_all,
    )


def _now(store: ObjectStore) -> int:
    """Return the store's time in Unix seconds."""
    return int(store.now().timestamp())


Result = TypeVar("Result")


def _retried_until_open(opening: Callable[[], Result], settings: StoreSettings, clock: Clock) -> Result:
    """Call `opening` until it no longer raises `StoreUnreachable`, with growing pauses.

    A single truncated answer of the store must not end the start. Gives up after `start_seconds`.
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
    """Open and probe the store. Returns the store and its bucket's identity."""
    prepare_bucket(settings)
    store = open_store(settings)
    documents = Documents(store, clock)
    try:
        _probe(store, documents, settings)
        document = open_identity(store, documents, settings, clock, now=partial(_now, store))
    except Unavailable as error:
        raise StoreUnreachable(describe(settings, _cause(error))) from None
    return store, document.identity


def _probe(store: ObjectStore, documents: Documents, settings: StoreSettings) -> None:
    """Probe the store. An existing registry's folder that can only be read is accepted.

    If the disk is full or read-only, or the process may open no more files, each write is refused until
    writing works again.
    """
    try:
        probe_consistency(store)
        probe_swaps(store)
    except StoreUnfit as error:
        raise StoreUnfit(describe(settings, str(error))) from None
    except Unavailable as error:
        if settings.folder is None or documents.read(REGISTRY).body is None:
            raise
        log.error("store.cannot_write", reason=_cause(error))


def _cause(error: Unavailable) -> str:
    """Return what failed in the store, and why."""
    return "; ".join(getattr(error, "__notes__", [error.message]))


class ConcurrentRunner:
    """Runs steps on threads, because they mostly wait for the disk or the network."""

    def __init__(self, threads: int = 8) -> None:
        self._threads = threads
        self._pool = started_pool(threads, "at-once")

    def __call__(self, steps: Iterable[Callable[[], object]]) -> None:
        """Run all steps and return when all have ended. Raises the error of the first failed step.

        The calling thread runs steps as well, so it never waits for the steps of other callers. The threads
        of the pool take steps of any caller when they are free.
        """
        work = _Work(steps)
        # The steps run in the caller's context, so that their log lines carry the request's id.
        helpers = [
            self._pool.submit(copy_context().run, work.run) for _ in range(min(self._threads, len(work) - 1))
        ]
        work.run()
        for helper in helpers:
            if not helper.cancel():  # it has begun
                helper.result()
        work.raise_first_error()


class _Work:
    """The steps of one caller, which several threads take one by one."""

    def __init__(self, steps: Iterable[Callable[[], object]]) -> None:
        self._left = deque(enumerate(steps))
        self._errors: dict[int, BaseException] = {}

    def __len__(self) -> int:
        return len(self._left)

    def run(self) -> None:
        """Take and run steps until none is left."""
        while True:
            try:
                number, step = self._left.popleft()
            except IndexError:
                return
            try:
                step()
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller
                self._errors[number] = error

    def raise_first_error(self) -> None:
        if self._errors:
            raise self._errors[min(self._errors)]


def open_queue_connection(settings: RegistrySettings) -> redis.Redis:
    """Return a Redis client for RQ, which reads bytes. All other clients read text."""
    return connect(settings.redis_address, decode_responses=False)
