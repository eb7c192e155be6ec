"""The parts of a registry: bucket, index, queue and what else its operations use. A process opens them once,
and hands each object the parts that it needs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from services.shared.bucket.documents import Documents
from services.shared.bucket.store import Store
from services.shared.configuration.settings import RegistrySettings
from services.shared.index.leases import Leases
from services.shared.index.speaker_index import SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.served import ServedEncoders
from services.shared.registry.shared_documents import SharedDocuments
from services.shared.view.generation import Generation
from services.shared.view.workers import Workers


class Dispatcher(Protocol):
    """Hands jobs to workers. A job carries ids only: no audio, no names and no transcripts."""

    def enqueue(self, job_id: str, queue: str, arguments: Mapping[str, Any]) -> None:
        """Put a job into a queue. Putting the same job there again does no harm."""

    def state(self, job_id: str, profile: str) -> str:
        """Return `alive` (queued or running), `failed` (given up) or `gone`."""

    def remove(self, job_id: str, queue: str) -> None:
        """Remove a job that is no longer wanted from its queue, unless a worker has taken it already."""

    def draw(self, speaker: str, vuid: str) -> bool:
        """Ask for the pictures of a version's clip. Returns False if they could not be drawn."""


def one_by_one(steps: Iterable[Callable[[], object]]) -> None:
    """Run independent steps one after the other. Processes run them concurrently: see `ConcurrentRunner`."""
    for step in steps:
        step()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryParts:
    """A process opens these parts at its start and hands each object those that it needs."""

    store: Store
    documents: Documents
    generation: Generation
    shared: SharedDocuments
    index: SpeakerIndex
    leases: Leases
    profile_records: ProfileRecords
    workers: Workers
    served: ServedEncoders
    catalogue: ProfileCatalogue
    dispatcher: Dispatcher
    settings: RegistrySettings
    clock: Clock
    run_all: Callable[[Iterable[Callable[[], object]]], None] = one_by_one
    """Runs steps that do not depend on each other and returns when all have ended."""

    def close(self) -> None:
        """Close the connections to Redis, except those of the queue."""
        self.index.close()
        self.generation.close()
