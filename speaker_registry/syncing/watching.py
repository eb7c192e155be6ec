"""Syncs repeatedly, and continues after times in which the registry cannot be reached or the folder cannot
be written to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

from speaker_registry.errors import (
    InvalidApiKey,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    SpeakerRegistryError,
)
from speaker_registry.syncing.synchronization import Report

_FINAL = (InvalidRequest, InvalidApiKey, PermissionDenied, NotFound)
"""Errors that a retry would meet again, because only the caller can resolve them, unless a proxy sent
them.
"""


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
    on_error: Callable[[SpeakerRegistryError | OSError], object]
    """Called when the registry cannot be reached, or the folder cannot be written to, once until the next
    sync that can.
    """

    def forever(self) -> NoReturn:
        """Sync until an error occurs that waiting does not resolve, and raise it.

        A proxy or another server that answers in place of the registry or the TTS server, for example with
        404, is waited for after the first sync. Before it, the address is probably wrong. In the same way a
        folder that cannot be written to, for example on a full disk, is waited for after the first sync.
        """
        last: Report | None = None
        failing: Literal["registry", "folder"] | None = None
        while True:
            try:
                report = self.run()
            except (SpeakerRegistryError, OSError) as error:
                if _is_final(error) or (last is None and _tells_of_a_mistake(error)):
                    raise
                former, failing = failing, "folder" if isinstance(error, OSError) else "registry"
                if failing != former:
                    self.on_error(error)
            else:
                if failing or report.is_changed or last is None or _lacks(report) != _lacks(last):
                    self.on_report(report)
                last, failing = report, None
            self.wait()


def _is_final(error: SpeakerRegistryError | OSError) -> bool:
    return isinstance(error, _FINAL) and not error.is_foreign


def _tells_of_a_mistake(error: SpeakerRegistryError | OSError) -> bool:
    """Return whether an error before the first sync probably means that the address or the path is wrong:
    something else than the registry or the TTS server refuses the request, or the folder cannot be written
    to.
    """
    return isinstance(error, OSError) or (error.is_foreign and not error.retryable)


def _lacks(report: Report) -> tuple[set[tuple[str, str | None]], str]:
    """Return what a sync has left to the next one, and why."""
    return {(one.name, one.reason) for one in report.outcomes if one.reason}, str(report.fault)
