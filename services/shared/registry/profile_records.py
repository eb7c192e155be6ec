"""Tells with which encoder each profile is made now, from the documents of profiles.

Reading costs at most one round trip a second for each profile, and goes on from the bucket while Redis is
away. `model/profile_document` has the rules.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from services.shared.bucket.layout import profile_key
from services.shared.bucket.store import ObjectUnavailable
from services.shared.model.clock import Clock
from services.shared.model.encoders import Encoder
from services.shared.model.profile_document import ProfileDocument
from services.shared.registry.shared_documents import DocumentUnusable, SharedDocuments
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

REMEMBERED_SECONDS = 1.0
"""A document that was read is used for this long."""
_SETTLED_SECONDS = REMEMBERED_SECONDS + 0.1
"""A promotion is acknowledged after this time. It is a little longer, because the clocks of two machines do
not run at exactly the same speed.
"""
_UNREADABLE_SECONDS = 10.0
"""The bucket is not asked again for this long after a document could not be read. Redis is still asked."""
_MISSING_SECONDS = 60.0
"""The bucket is not asked again for this long after it had no document of a profile. Redis is still asked:
the worker that first announces the profile tells it.
"""


@dataclass(frozen=True, slots=True)
class _Remembered:
    document: ProfileDocument
    until: float


def _wait_for_nobody() -> None:
    """Wait for nobody, because no process keeps answers in memory."""


class ProfileRecords:
    """The documents of all profiles. Safe to use from several threads.

    Args:
        wait: returns when every process that answers from memory has heard of the last change.
    """

    def __init__(
        self,
        shared: SharedDocuments,
        clock: Clock,
        *,
        wait: Callable[[], None] = _wait_for_nobody,
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._wait = wait
        self._remembered: dict[str, _Remembered] = {}  # bounded: only names of profiles get here
        self._times_forgotten = 0
        self._not_asked_until: dict[str, float] = {}  # likewise

    def read(self, profile: str) -> ProfileDocument:
        """Return the document of a profile, at most a second old. One without a worker has revision 0.

        Raises `Unavailable`.
        """
        known = self._remembered.get(profile)
        if known is None or known.until <= self._clock.since_boot():
            times_forgotten = self._times_forgotten
            began = self._clock.since_boot()
            known = _Remembered(self._look_up(profile), began + REMEMBERED_SECONDS)
            if times_forgotten == self._times_forgotten:  # else the look-up may have come before the news
                self._remembered[profile] = known
        return known.document

    def read_anew(self, profile: str) -> ProfileDocument:
        """Return the document of a profile as it is now. Raises `Unavailable`."""
        self._forget(profile)
        return self.read(profile)

    def current(self, profile: str) -> Encoder | None:
        """Return the current encoder of a profile; None while no worker has announced one."""
        return self.read(profile).current

    def copied(self, profiles: Iterable[str]) -> dict[str, ProfileDocument]:
        """Return the documents of which Redis has copies, in one round trip. Raises `Unavailable`."""
        names = {profile_key(name): name for name in profiles}
        found = self._shared.copies_of(ProfileDocument, list(names))
        return {names[path]: document for path, document in found.items()}

    def fingerprint(self, profile: str) -> str:
        """Return the current fingerprint of a profile; empty while no worker has announced one."""
        return self.read(profile).fingerprint

    def made_with(self, profiles: Iterable[str]) -> str:
        """Return a text that differs whenever housekeeping has to look at every voice: after another encoder
        became current, and when other profiles are required.
        """
        return ",".join(f"{name}={self.fingerprint(name)}" for name in sorted(profiles))

    def look_anew(self) -> None:
        """Forget what is remembered, so that later reads look it up again."""
        self._times_forgotten += 1
        self._remembered.clear()
        self._not_asked_until.clear()

    def hear(self, event: Mapping[str, Any]) -> None:
        """Look up again what an event says has changed."""
        if event.get("what") == ProfileDocument.UPDATED:
            self._forget(event["profile"])

    def change(
        self, profile: str, decide: Callable[[ProfileDocument], ProfileDocument], *, by: str, did: str
    ) -> ProfileDocument:
        """Commit what `decide` makes of the newest document, and show it to every process.

        A document that is damaged is replaced by its copy in Redis, or by an empty one.

        Raises:
            Unavailable: the change was not made, or stands but could not be shown. What `decide` raises.
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
        return changed.expect_told().document

    def settle(self) -> None:
        """Return when no process answers any more by what a profile was before the last change.

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
            return copy
        if self._clock.since_boot() < self._not_asked_until.get(profile, 0.0):
            return ProfileDocument()
        path = profile_key(profile)
        try:
            found = self._shared.read(ProfileDocument, path)
        except (DocumentUnusable, ObjectUnavailable) as error:
            log.error("profile.unreadable", profile=profile, reason=error.message)
            self._not_asked_until[profile] = self._clock.since_boot() + _UNREADABLE_SECONDS
            return ProfileDocument()
        if found.etag is None:
            self._not_asked_until[profile] = self._clock.since_boot() + _MISSING_SECONDS
            return found.document
        with suppress(Unavailable):  # the copy only saves the next reader a look at the bucket
            self._shared.share(path, found, with_body=True)
        return found.document

    def _copy(self, profile: str) -> ProfileDocument | None:
        with suppress(Unavailable):
            return self._shared.copy(ProfileDocument, profile_key(profile))
        return None
