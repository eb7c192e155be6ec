"""Finds out for `/readyz` whether the store and the view can be used, and which profiles no worker serves."""

import asyncio
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from services.shared.bucket.store import ObjectStore
from services.shared.registry.profiles import Profiles
from services.shared.view.generation import Generation
from speaker_registry.errors import SpeakerRegistryError

CACHE_SECONDS = 0.5


class Readiness:
    """Checks bucket and view, and caches the result for `CACHE_SECONDS`. One per process.

    The cache bounds the work: `/readyz` needs no API key, and each check takes a thread and a request to the
    bucket.
    """

    def __init__(self, store: ObjectStore, generation: Generation, profiles: Profiles) -> None:
        self._store, self._generation, self._profiles = store, generation, profiles
        self._check: asyncio.Task[dict[str, str]] | None = None
        self._checked_at = float("-inf")
        self.unserved: dict[str, str] = {}
        """Maps the name of each required profile that no worker serves to an explanation."""

    async def parts(self) -> dict[str, str]:
        """Return the state of each part by its name: `ok`, or what is wrong with it."""
        old = time.monotonic() - self._checked_at > CACHE_SECONDS
        if self._check is None or (self._check.done() and old):
            self._check = asyncio.create_task(self._check_now())
        return await asyncio.shield(self._check)  # a caller that disconnects must not cancel it for the rest

    async def _check_now(self) -> dict[str, str]:
        checks = {"store": self._store.check, "view": self._generation.check}
        found = {name: await run_in_threadpool(_state, check) for name, check in checks.items()}
        self.unserved = await run_in_threadpool(_unserved, self._profiles)
        self._checked_at = time.monotonic()
        return found


def _unserved(profiles: Profiles) -> dict[str, str]:
    """Return why no worker is known to serve some required profiles. Returns none if this cannot be found
    out.
    """
    wanted = [one.name for one in profiles.required if not one.not_extractable]
    return {name: reason for name in wanted if (reason := profiles.waiting_reason(name)) is not None}


def _state(check: Callable[[], object]) -> str:
    try:
        check()
    except SpeakerRegistryError as error:
        return error.message
    return "ok"
