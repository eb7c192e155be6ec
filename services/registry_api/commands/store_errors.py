"""The exit status of a command that a store has made fail. `exit_statuses` loads no library for stores."""

from services.registry_api.commands.exit_statuses import NOT_NOW, WRONG_SETTINGS
from services.shared.bucket.connection import StoreUnreachable
from speaker_registry.errors import Unavailable


def status_of(error: Exception) -> int:
    """Return the exit status for an error: whether a later try with the same settings may succeed."""
    return NOT_NOW if isinstance(error, StoreUnreachable | Unavailable) else WRONG_SETTINGS
