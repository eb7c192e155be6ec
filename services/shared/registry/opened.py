"""The parts of an open registry, which `opening` returns together.

Only code that wires a process, and the services of an API process, hold all of them.
"""

from dataclasses import dataclass, fields
from typing import Any

from services.shared.bucket.documents import Documents
from services.shared.bucket.store import ObjectStore
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.configuration.registry import RegistrySettings
from services.shared.model.clock import Clock
from services.shared.model.profiles import ProfileCatalogue
from services.shared.queue.jobs import Dispatcher, Jobs
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.profiles import Profiles
from services.shared.registry.shared_documents import SharedDocuments
from services.shared.registry.speakers import RunAll, Speakers
from services.shared.view.generation import Generation
from services.shared.view.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The parts of an open registry. A process opens it once."""

    store: ObjectStore
    documents: Documents
    clock: Clock
    settings: RegistrySettings
    catalogue: ProfileCatalogue
    generation: Generation
    speakers: Speakers
    blobs: StoredBytes
    jobs: Jobs
    profiles: Profiles
    profile_records: ProfileRecords
    workers: Workers
    shared: SharedDocuments
    dispatcher: Dispatcher
    run_all: RunAll

    def close(self) -> None:
        """Close the connections to Redis, except those of the queue."""
        self.generation.close()

    def by_name(self) -> dict[str, Any]:
        """Return the parts by their names, to construct a class that has further parts."""
        return {one.name: getattr(self, one.name) for one in fields(Opened)}
