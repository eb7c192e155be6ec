"""`python -m services.shared.sweep`: settle every voice and delete what nobody can reach, once, now.

API processes do so by themselves, once a day: this is for whoever wants to say when. Waits while the index is
not trusted, and while somebody else is at it. Exit status: 0 done, 1 settings or bucket wrong, 75 not now.
"""

import sys
import time

import structlog
from pydantic import ValidationError

from services.shared.housekeeping import Housekeeper
from services.shared.logs import configure_logs
from services.shared.opening import open_registrar
from services.shared.settings import (
    HousekeepingSettings,
    LogSettings,
    RegistrySettings,
    StoreSettings,
    explain,
)
from services.shared.store import StoreUnfit
from speaker_registry.errors import SpeakerRegistryError, Unavailable

log = structlog.get_logger()

DONE, WRONG, NOT_NOW = 0, 1, 75

PATIENCE_SECONDS = 300.0
PAUSE_SECONDS = 5.0


def main(patience_seconds: float = PATIENCE_SECONDS) -> int:
    """Returns the exit status."""
    configure_logs(LogSettings().level)
    try:
        registrar = open_registrar(StoreSettings(), RegistrySettings())
        return _sweep(Housekeeper(registrar, HousekeepingSettings()), time.monotonic() + patience_seconds)
    except ValidationError as error:
        log.error("sweep.failed", reason=explain(error))
    except (SpeakerRegistryError, StoreUnfit) as error:
        log.error("sweep.failed", reason=str(error))
    return WRONG


def _sweep(housekeeper: Housekeeper, deadline: float) -> int:
    started = time.monotonic()
    while True:
        try:
            housekeeper.sweep_now()
        except Unavailable as error:
            if time.monotonic() >= deadline:
                log.error("sweep.failed", reason=error.message)
                return NOT_NOW
            log.info("sweep.waits", reason=error.message)
            time.sleep(PAUSE_SECONDS)
        else:
            log.info("sweep.done", seconds=round(time.monotonic() - started, 1))
            return DONE


if __name__ == "__main__":
    sys.exit(main())
