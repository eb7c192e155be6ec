"""`python -m services.registry_api.maintenance.sweep`: have every voice settled
and deleted what nobody can reach, now.

It only asks: one of the API processes does it, and begins within seconds. They do so by themselves as well,
now and then: this is for whoever wants to say when. Asked twice, it is done once. Exit status: 0 asked,
1 settings wrong, 75 not now.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import structlog
from pydantic import ValidationError

from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.settings import LogSettings, RegistrySettings, explain
from services.shared.index.announcements import ask_for_sweep
from services.shared.index.redis_access import connect
from services.shared.telemetry.logs import configure_logs
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

ASKED, WRONG, NOT_NOW = 0, 1, 75

PATIENCE_SECONDS = 300.0
PAUSE_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None, *, patience_seconds: float = PATIENCE_SECONDS) -> int:
    """Returns the exit status. `arguments`: those of the command line, if None."""
    _parser().parse_args(arguments)
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        settings = RegistrySettings()
    except ValidationError as error:
        log.error("sweep.cannot_start", reason=explain(error))
        return WRONG
    return _ask(settings.redis_address, time.monotonic() + patience_seconds)


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="python -m services.registry_api.maintenance.sweep",
        description="Ask the API processes to settle every voice now, and to delete what nobody can reach.",
        epilog="It reads SPEAKER_REDIS_URL, and SPEAKER_REDIS_PASSWORD if that is set. While Redis does not "
        f"answer, it asks again for {PATIENCE_SECONDS:g} s. Exit status: {ASKED} asked, {WRONG} settings "
        f"wrong, {NOT_NOW} Redis did not answer in time.",
    )


def _ask(redis_address: str, deadline: float) -> int:
    """While Redis is away: wait."""
    with connect(redis_address) as client:
        while True:
            try:
                ask_for_sweep(client)
            except Unavailable as error:
                if time.monotonic() >= deadline:
                    log.error("sweep.failed", reason=error.message)
                    return NOT_NOW
                log.info("sweep.waits", reason=error.message)
                time.sleep(PAUSE_SECONDS)
            else:
                log.info("sweep.asked")
                return ASKED


if __name__ == "__main__":
    sys.exit(main())
