"""Runs work on many speakers, so that a failure of one speaker does not stop the others."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar, cast

import structlog

from services.shared.bucket.store import ObjectUnavailable
from services.shared.model.speaker import SpeakerId
from speaker_registry.errors import Unavailable, VoiceDamaged, VoiceUnreadable

log = structlog.get_logger()

Item = TypeVar("Item")
Result = TypeVar("Result")
Otherwise = TypeVar("Otherwise")


def safely(
    work: Callable[[SpeakerId], Result], speaker_id: SpeakerId, *, otherwise: Otherwise
) -> Result | Otherwise:
    """Return the result of `work`, or `otherwise` if it fails for this speaker.

    A failure of one speaker must not block the work on other speakers, nor keep the gate closed.

    Raises:
        Unavailable: bucket or Redis is unavailable, which concerns all speakers.
    """
    try:
        return work(speaker_id)
    except (ObjectUnavailable, VoiceDamaged, VoiceUnreadable) as error:
        log.error("speaker.unreadable", speaker=str(speaker_id), error=str(error))
        return otherwise
    except Unavailable:
        raise
    except Exception:
        log.exception("speaker.skipped", speaker=str(speaker_id))
        return otherwise


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the result of `work` for each item, in order.

    The work runs on threads, because it mostly waits for the bucket. At most as many items are taken ahead as
    there are threads. With one thread, the calling thread does the work.
    """
    if threads == 1:
        yield from map(work, items)
        return
    pool, under_way = ThreadPoolExecutor(threads), deque[Future[Result]]()
    try:
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items in order. Another thread gets the next one while the caller works on an item."""
    with ThreadPoolExecutor(1) as pool:
        end = object()
        upcoming = pool.submit(next, items, end)
        while (item := upcoming.result()) is not end:
            upcoming = pool.submit(next, items, end)
            yield cast(Item, item)


def in_batches(items: Iterator[Item], size: int) -> Iterator[tuple[Item, ...]]:
    """Yield the items in tuples of `size`; the last one may be shorter."""
    return iter(lambda: tuple(islice(items, size)), ())
