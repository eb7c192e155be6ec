"""`adopt-bucket`: make a copy of a bucket a registry of its own, so that its processes start."""

from contextlib import ExitStack

import structlog
from pydantic import ValidationError

from services.registry_api.commands.exit_statuses import DONE, WRONG_SETTINGS
from services.registry_api.commands.store_errors import status_of
from services.shared.bucket.connection import StoreUnfit, describe, prepare_bucket
from services.shared.bucket.documents import Documents
from services.shared.bucket.folder_lock import FolderInUseError, exclusive_lock
from services.shared.bucket.opening import open_store
from services.shared.bucket.registry_identity import adopt
from services.shared.configuration.explanation import explain
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.store import StoreSettings
from services.shared.configuration.telemetry import LogSettings
from services.shared.model.clock import Clock
from services.shared.telemetry.logs import configure_logs
from speaker_registry.errors import SpeakerRegistryError

log = structlog.get_logger()


def run() -> int:
    """Return the exit status. The reason for a failure is logged."""
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        settings = StoreSettings()
        prepare_bucket(settings)
        store, clock = open_store(settings), Clock()
        with ExitStack() as stack:
            _keep_stopped(stack, settings)
            adopt(
                store,
                Documents(store, clock),
                settings,
                clock,
                now=lambda: int(store.now().timestamp()),
            )
    except ValidationError as error:
        log.error("bucket.not_adopted", reason=explain(error))
        return WRONG_SETTINGS
    except (SpeakerRegistryError, StoreUnfit, ValueError) as error:
        log.error("bucket.not_adopted", reason=str(error))
        return status_of(error)
    return DONE


def _keep_stopped(stack: ExitStack, settings: StoreSettings) -> None:
    """Keep `make run` from starting on the folder until the stack is closed. Raises `StoreUnfit` if it
    runs, or if the folder cannot be locked.
    """
    if settings.folder is None:
        return
    try:
        stack.enter_context(exclusive_lock(settings.folder, wait_seconds=0))
    except FolderInUseError:
        raise StoreUnfit(describe(settings, "a running registry uses it. Stop the registry first")) from None
    except OSError as error:
        raise StoreUnfit(describe(settings, str(error.strerror))) from None
