"""Opens store, index and queue as the settings say, and puts the registrar over them. Used by every
process's `__main__`.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context

import redis

from services.shared.announcements import Announcements
from services.shared.clock import Clock
from services.shared.dispatch import RqDispatcher
from services.shared.facts import bucket_identity
from services.shared.index import SpeakerIndex
from services.shared.profiles import ProfileCatalogue
from services.shared.redis_access import connect
from services.shared.registrar import Registrar
from services.shared.settings import RegistrySettings, StoreSettings
from services.shared.store import open_store, prepare_bucket


def open_registrar(store_settings: StoreSettings, settings: RegistrySettings) -> Registrar:
    """A registrar on the bucket and Redis of the settings.

    Raises:
        StoreUnfit: the bucket is not consistent enough to be the truth. ProfileUnknown: a profile nobody
        knows.
    """
    clock = Clock()
    prepare_bucket(store_settings)
    store = open_store(store_settings)
    store.probe()
    index = SpeakerIndex(settings.redis_address, bucket_identity(store, clock.new_id()), clock=clock.now)
    return Registrar(
        store=store,
        index=index,
        announcements=Announcements(store, index, clock),
        catalogue=ProfileCatalogue.load(settings.profiles),
        dispatcher=RqDispatcher(open_queue_connection(settings), job_seconds=settings.job_seconds),
        settings=settings,
        clock=clock,
        run_all=AtOnce(),
    )


class AtOnce:
    """Runs steps on threads: what each waits for is mostly the disk or the network."""

    def __init__(self, threads: int = 8) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="at-once")

    def __call__(self, steps: Iterable[Callable[[], object]]) -> None:
        """Returns when all have ended. Raises the first one's error."""
        # In our context: their log lines carry the request's id.
        futures = [self._pool.submit(copy_context().run, step) for step in steps]
        wait(futures)
        for future in futures:
            future.result()


def open_queue_connection(settings: RegistrySettings) -> redis.Redis:
    """RQ reads bytes; everything else here reads text."""
    return connect(settings.redis_address, decode_responses=False)
