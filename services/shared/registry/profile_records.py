"""Finds the current encoder of each profile in the documents of profiles.

Reading costs at most one round trip per second for each profile. While Redis is unavailable, the bucket is
read. `model/profile_document` has the rules.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from services.shared.bucket.layout import profile_key
from services.shared.bucket.store import ObjectUnavailable
from services.shared.model.clock import Clock
from services.shared.model.profile_document import ProfileDocument
from services.shared.registry.shared_documents import DocumentUnusable, SharedDocuments
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

REMEMBERED_SECONDS = 1.0
"""A document is cached for this long."""
_SETTLED_SECONDS = REMEMBERED_SECONDS + 0.1
"""A promotion is acknowledged after this time. It is a little longer than `REMEMBERED_SECONDS`, because the
clocks of two machines do not run at exactly the same speed.
"""
_UNREADABLE_SECONDS = 10.0
"""The bucket is not asked again for this long after a document could not be read. Redis is still asked."""
_MISSING_SECONDS = 60.0
"""The bucket is not asked again for this long after it had no document of a profile. Redis is still asked,
because the first worker to announce the profile writes there.
"""


@dataclass(frozen=True, slots=True)
class _Remembered:
    document: ProfileDocument
    until: float


def _do_not_wait() -> None:
    """Return at once, because no process keeps answers in memory."""


class ProfileRecords:
    """The documents of all profiles. Safe to use from several threads.

    Args:
        wait: returns when every process that answers from memory has applied the last change.
    """

    def __init__(
        self,
        shared: SharedDocuments,
        clock: Clock,
        *,
        wait: Callable[[], None] = _do_not_wait,
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._wait = wait
        self._remembered: dict[str, _Remembered] = {}  # bounded, because all keys are names of profiles
        self._times_forgotten = 0
        self._not_asked_until: dict[str, float] = {}  # likewise
        self._problems: dict[str, str] = {}  # likewise

    def read(self, profile: str) -> ProfileDocument:
        """Return the document of a profile, at most a second old. The document of a profile without a worker
        has revision 0.

        Raises `Unavailable`.
        """
        known = self._remembered.get(profile)
        if known is None or known.until <= self._clock.since_boot():
            times_forgotten = self._times_forgotten
            began = self._clock.since_boot()
            known = _Remembered(self._look_up(profile), began + REMEMBERED_SECONDS)
            if times_forgotten == self._times_forgotten:  # else this may be older than the change
                self._remembered[profile] = known
        return known.document

    def read_uncached(self, profile: str) -> ProfileDocument:
        """Return the document of a profile without using the cache. Raises `Unavailable`."""
        self._forget(profile)
        return self.read(profile)

    def problem(self, profile: str) -> str | None:
        """Return why the document of a profile could not be used, or None if it was missing or used. This
        does no I/O: it tells of the last read.
        """
        return self._problems.get(profile)

    def copied(self, profiles: Iterable[str]) -> dict[str, ProfileDocument]:
        """Return the documents that Redis has copies of, in one round trip. Raises `Unavailable`."""
        names = {profile_key(name): name for name in profiles}
        found = self._shared.copies_of(ProfileDocument, list(names))
        return {names[path]: document for path, document in found.items()}

    def put_back(self, profiles: Iterable[str]) -> list[str]:
        """Return the profiles whose documents in the bucket are older than their copies in Redis, as after an
        operator put back an older document. Raises `Unavailable`.
        """
        return [name for name, copy in self.copied(profiles).items() if self._is_older(name, copy)]

    def _is_older(self, profile: str, copy: ProfileDocument) -> bool:
        try:
            found = self._shared.read(ProfileDocument, profile_key(profile))
        except (DocumentUnusable, ObjectUnavailable):
            return False  # the copy is all there is
        return found.etag is not None and found.document.revision < copy.revision

    def fingerprint(self, profile: str) -> str:
        """Return the current fingerprint of a profile. It is empty while no worker has announced one."""
        return self.read(profile).fingerprint

    def made_with(self, profiles: Iterable[str]) -> str:
        """Return a text that changes whenever housekeeping must look at every voice: when another encoder
        becomes current, and when other profiles are required.
        """
        return ",".join(f"{name}={self.fingerprint(name)}" for name in sorted(profiles))

    def clear_cache(self) -> None:
        """Clear the cache, so that later reads look up every document."""
        self._times_forgotten += 1
        self._remembered.clear()
        self._not_asked_until.clear()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Drop the document that has changed according to an event, so that it is read again."""
        if event.get("what") == ProfileDocument.UPDATED:
            self._forget(event["profile"])

    def change(
        self, profile: str, decide: Callable[[ProfileDocument], ProfileDocument], *, by: str, did: str
    ) -> ProfileDocument:
        """Commit the document that `decide` makes from the newest one, and show it to every process.

        A document that is damaged is replaced by its copy in Redis, or by an empty one. A document that the
        bucket has lost is replaced by its copy, too.

        Raises:
            Unavailable: the change was not made, or it was made but Redis could not be updated. Errors that
                `decide` raises are passed on.
        """
        self._shared.expect_view()
        changed = self._shared.change(
            ProfileDocument,
            profile_key(profile),
            decide,
            by=by,
            did=did,
            with_body=True,
            mend=lambda: ProfileDocument.after_damage(self._copy(profile), self._shared.now()),
        )
        self._forget(profile)
        return changed.expect_shared().document

    def settle(self) -> None:
        """Wait until no process uses the state of a profile from before the last change.

        Raises `Unavailable`.
        """
        self._shared.settle()
        began = self._clock.since_boot()
        self._wait()
        self._clock.sleep(max(0.0, began + _SETTLED_SECONDS - self._clock.since_boot()))

    def now(self) -> int:
        """Return the store's time in Unix seconds."""
        return self._shared.now()

    def _forget(self, profile: str) -> None:
        self._times_forgotten += 1
        self._remembered.pop(profile, None)
        self._not_asked_until.pop(profile, None)

    def _look_up(self, profile: str) -> ProfileDocument:
        if (copy := self._copy(profile)) is not None:
            self._problems.pop(profile, None)
            return copy
        if self._clock.since_boot() < self._not_asked_until.get(profile, 0.0):
            return ProfileDocument()
        path = profile_key(profile)
        try:
            found = self._shared.read(ProfileDocument, path)
        except (DocumentUnusable, ObjectUnavailable) as error:
            log.error("profile.unreadable", profile=profile, reason=error.message)
            self._not_asked_until[profile] = self._clock.since_boot() + _UNREADABLE_SECONDS
            unreadable = f"The object '{path}' in the bucket cannot be read."
            self._problems[profile] = error.message if isinstance(error, DocumentUnusable) else unreadable
            return ProfileDocument()
        self._problems.pop(profile, None)
        if found.etag is None:
            self._not_asked_until[profile] = self._clock.since_boot() + _MISSING_SECONDS
            return found.document
        with suppress(Unavailable):  # the copy only saves the next reader a read of the bucket
            self._shared.share(path, found, with_body=True)
        return found.document

    def _copy(self, profile: str) -> ProfileDocument | None:
        with suppress(Unavailable):
            return self._shared.copy(ProfileDocument, profile_key(profile))
        return None
