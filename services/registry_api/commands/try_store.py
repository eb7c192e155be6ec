"""`try-store`: test whether a bucket or folder has everything that the registry needs, and print the results.

Operators run it on a store before they trust it with voices. It needs no Redis.
"""

import os
import sys
from collections.abc import Callable

from pydantic import ValidationError

from services.registry_api.commands.exit_statuses import DONE, WRONG_SETTINGS
from services.registry_api.commands.store_errors import status_of
from services.shared.bucket.connection import StoreUnfit, describe, prepare_bucket
from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import ROUNDS, WRITERS, probe_consistency, probe_swaps
from services.shared.bucket.store import ObjectStore
from services.shared.configuration.explanation import explain
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.store import StoreSettings
from services.shared.configuration.telemetry import LogSettings
from services.shared.telemetry.logs import configure_logs
from speaker_registry.errors import Unavailable

_PROBES: dict[str, Callable[[ObjectStore], None]] = {
    "what was put or deleted shows at once in reads and listings": probe_consistency,
    f"of {WRITERS} simultaneous writers one replaces an object, in {ROUNDS} rounds": probe_swaps,
}
"""Maps each requirement, as it is printed, to the probe that raises if the store does not meet it."""


def run() -> int:
    """Return the exit status. The results are printed, with the reason for a failure."""
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        settings = StoreSettings()
        prepare_bucket(settings)
        store = open_store(settings)
        _check_rights(settings)
        return _try(store)
    except ValidationError as error:
        return _failed(explain(error), WRONG_SETTINGS)
    except (StoreUnfit, Unavailable) as error:
        return _failed("; ".join([str(error), *getattr(error, "__notes__", ())]), status_of(error))


def _check_rights(settings: StoreSettings) -> None:
    """Raise `StoreUnfit` if this user may not write to the folder, which no later try changes."""
    if settings.folder and not os.access(settings.folder, os.R_OK | os.W_OK | os.X_OK):
        raise StoreUnfit(describe(settings, "this user may not read and write there"))


def _try(store: ObjectStore) -> int:
    for need, probe in _PROBES.items():
        probe(store)
        print(f"try-store: yes: {need}", flush=True)
    print("try-store: the registry can use this store")
    return DONE


def _failed(reason: str, status: int) -> int:
    print(f"try-store: no: {reason}", file=sys.stderr)
    return status
