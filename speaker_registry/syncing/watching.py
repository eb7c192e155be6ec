"""Syncs repeatedly, and continues after times in which the registry cannot be reached."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from speaker_registry.errors import (
    InvalidApiKey,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    SpeakerRegistryError,
)
from speaker_registry.syncing.synchronization import Report

_FINAL = (InvalidRequest, InvalidApiKey, PermissionDenied, NotFound)
"""Errors that a retry would meet again, because only the caller can resolve them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Keeps a folder equal to the registry for as long as the process lives."""

    run: Callable[[], Report]
    """Syncs once."""
    wait: Callable[[], object]
    """Returns when it is time to sync again."""
    on_report: Callable[[Report], object]
    """Called after the first sync, and after each one with another outcome or another fault than the one
    before.
    """
    on_error: Callable[[SpeakerRegistryError], object]
    """Called when the registry cannot be reached, once until it can be reached again."""

    def forever(self) -> NoReturn:
        """Sync until an error occurs that waiting does not resolve, and raise it.

        A proxy or another server that answers in place of the registry, for example with 404, is waited for
        if the registry was reached before. Otherwise the address is probably wrong.
        """
        last: Report | None = None
        is_away = False
        while True:
            try:
                report = self.run()
            except SpeakerRegistryError as error:
                if isinstance(error, _FINAL) or (last is None and _comes_from_elsewhere(error)):
                    raise
                if not is_away:
                    self.on_error(error)
                is_away = True
            else:
                if is_away or report.is_changed or last is None or _lacks(report) != _lacks(last):
                    self.on_report(report)
                last, is_away = report, False
            self.wait()


def _comes_from_elsewhere(error: SpeakerRegistryError) -> bool:
    """Return whether something that is not the registry refuses the request."""
    return error.is_foreign and not error.retryable


def _lacks(report: Report) -> tuple[set[tuple[str, str | None]], str]:
    """Return what a sync has left to the next one, and why."""
    return {(one.name, one.reason) for one in report.outcomes if one.reason}, str(report.fault)
