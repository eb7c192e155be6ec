"""Progress bars on the terminal: for the wait for a version, and for work on many voices. Pauses that the
registry asks for are announced beside them.
"""

import argparse
import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from speaker_registry.cli.command import PROGRAM
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.terminal import printable

if TYPE_CHECKING:
    from tqdm import tqdm

    from speaker_registry import Campaign, Readiness, RegistryClient

_MAX_SILENT_SECONDS = 5.0
"""Pauses are announced once they add up to this much."""
_FORGOTTEN_AFTER_SECONDS = 60.0
"""A pause does not add to earlier ones if the last of them began longer ago than this."""
_SAME_PAUSE_SECONDS = 8.0
"""Pauses of several threads that end within this time of each other are one. The client ends them at random
times, so that not all requests return at once.
"""


def wait_ready(
    client: "RegistryClient", speaker: str, profile: str | None, arguments: argparse.Namespace
) -> "Readiness":
    with _bar(speaker, "profile", quiet=arguments.json) as bar:

        def update(seen: "Readiness") -> None:
            bar.total, bar.n = len(seen.artifacts), sum(status.state == "ready" for status in seen.artifacts)
            if seen.job:
                bar.set_postfix_str(
                    printable(f"{seen.job.profile}: {seen.job.progress.stage}"), refresh=False
                )
            bar.refresh()

        return client.wait_ready(speaker, profile, arguments.timeout, update)


@contextlib.contextmanager
def covering(campaign: "Campaign", *, quiet: bool) -> Iterator[Callable[["Campaign"], object]]:
    """Show how many voices a campaign has covered."""
    with _bar(campaign.profile, "voice", quiet=quiet) as bar:

        def update(seen: "Campaign") -> None:
            done = seen.progress
            bar.total, bar.n = done.voices, done.ready + done.failed + done.skipped
            bar.set_postfix_str(printable(seen.reason or seen.state), refresh=False)
            bar.refresh()

        update(campaign)
        yield update


@contextlib.contextmanager
def counting(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[object], object]]:
    """Show how many of `total` voices are done. The yielded function counts one, whatever its argument is."""
    with _bar(title, "voice", total=total, quiet=quiet) as bar:
        yield lambda _: bar.update()


def _bar(title: str, unit: str, *, quiet: bool, total: int | None = None) -> "tqdm[NoReturn]":
    """Return a progress bar on stderr, which shows nothing if `quiet` is set or stderr is no terminal."""
    from tqdm import tqdm  # noqa: PLC0415  only commands that take long need it

    disable = True if quiet else None  # None disables the bar unless it is shown on a terminal
    return tqdm(desc=printable(title), total=total, unit=unit, leave=False, file=sys.stderr, disable=disable)


class PauseNotices:
    """Announces on standard error the pauses that the registry asks for. Call it before each pause. Short
    pauses are announced once they add up to `_MAX_SILENT_SECONDS`. A pause that ends with one that was
    announced is not announced, because several threads may be asked to pause at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._clock, self._last_at, self._silent_seconds = clock, clock(), 0.0
        self._announced_until = 0.0
        self._lock = threading.Lock()

    def __call__(self, error: SpeakerRegistryError, seconds: float) -> None:
        with self._lock:
            if self._add(seconds):
                self._announce(error, seconds)

    def _add(self, seconds: float) -> bool:
        """Add a pause to the silent ones. Returns whether it has to be announced."""
        now = self._clock()
        if now + seconds <= self._announced_until:
            return False
        if now - self._last_at > _FORGOTTEN_AFTER_SECONDS:
            self._silent_seconds = 0.0
        self._last_at = now
        self._silent_seconds += seconds
        if self._silent_seconds < _MAX_SILENT_SECONDS:
            return False
        self._silent_seconds, self._announced_until = 0.0, now + seconds + _SAME_PAUSE_SECONDS
        return True

    def _announce(self, error: SpeakerRegistryError, seconds: float) -> None:
        from tqdm import tqdm  # noqa: PLC0415  only pauses and progress bars need it

        # More than `seconds` if a pause gets longer.
        asked = math.ceil(error.retry_after_seconds or seconds)
        notice = f"{PROGRAM}: waiting {asked} s, as the registry asks: {printable(error)}"
        document = {"pause": {"seconds": asked, "code": error.code, "message": error.message}}
        # A progress bar that is on the terminal is drawn anew below the notice.
        tqdm.write(json.dumps(document) if self._as_json else notice, file=sys.stderr)
