"""`sweep`: request a sweep of all voices now, for operators who want to choose the time.

The command leaves the work to the API processes: one of them begins within seconds. They also sweep by
themselves. Several requests before a sweep begins lead to one sweep.
"""

import time

import structlog
from pydantic import ValidationError

from services.registry_api.commands.exit_statuses import DONE, NOT_NOW, WRONG_SETTINGS
from services.registry_api.maintenance.sweep import ask_for_sweep
from services.shared.configuration.explanation import explain
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.telemetry import LogSettings
from services.shared.telemetry.logs import configure_logs
from services.shared.view.redis_access import connect
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

TIMEOUT_SECONDS = 300.0
RETRY_SECONDS = 5.0


def run(*, timeout_seconds: float = TIMEOUT_SECONDS) -> int:
    """Return the exit status. The reason for a failure is logged."""
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        settings = RegistrySettings()
    except ValidationError as error:
        log.error("sweep.cannot_start", reason=explain(error))
        return WRONG_SETTINGS
    return _request_sweep(settings.redis_address, time.monotonic() + timeout_seconds)


def _request_sweep(redis_address: str, deadline: float) -> int:
    """Request the sweep, and try again until the deadline while Redis is unavailable."""
    with connect(redis_address) as client:
        while True:
            try:
                ask_for_sweep(client)
            except Unavailable as error:
                if time.monotonic() >= deadline:
                    log.error("sweep.failed", reason=error.message)
                    return NOT_NOW
                log.info("sweep.waiting", reason=error.message)
                time.sleep(RETRY_SECONDS)
            else:
                log.info("sweep.requested")
                return DONE
