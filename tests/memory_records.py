"""Processes that share profiles and API keys: the real rooms on a store and a Redis in memory."""

from collections.abc import Callable, Iterable
from typing import Any

from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.operations.promote import promote
from services.shared.bucket.documents import Documents
from services.shared.model.encoders import Encoder
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.announce import announce
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.shared_documents import SharedDocuments
from services.shared.view.generation import SETTLED_SECONDS, Generation
from services.shared.view.workers import Workers
from tests.memory_redis import MemoryClient, Weather
from tests.memory_registry import PROFILES, World

PROFILE, OTHER = (profile.name for profile in PROFILES)
A, B, C = ("sha256:" + letter * 64 for letter in "abc")


def one_by_one(steps: Iterable[Callable[[], object]]) -> None:
    for step in steps:
        step()


class Process:
    """One process of the registry: profiles, workers and keys over one connection to Redis."""

    def __init__(
        self,
        world: World,
        *,
        store: Any = None,
        weather: Weather = lambda _, call: call(),
        run_in_background: Callable[[Callable[[], None]], None] = lambda do: do(),
    ) -> None:
        store = store or world.store
        documents = Documents(store, world.clock)
        self.generation = Generation(
            "",
            "bucket",
            documents,
            world.clock,
            connect=lambda _, **options: MemoryClient(lambda: world.server, weather, **options),
            run_in_background=lambda do: do(),
        )
        self.shared = SharedDocuments(
            documents=documents,
            generation=self.generation,
            clock=world.clock,
            now=lambda: int(store.now().timestamp()),
        )
        self.profiles = ProfileRecords(self.shared, world.clock)
        self.workers = Workers(self.generation)
        self.catalogue = ProfileCatalogue(PROFILES, [PROFILE])
        self.keys = HeldKeys(self.shared, store, world.clock, one_by_one, run_in_background)

    @classmethod
    def settled(cls, world: World) -> "Process":
        """Return a process whose view is old enough that nothing has to wait for it."""
        started = cls(world)
        started.generation.for_reading()
        world.pass_time(SETTLED_SECONDS)
        return started

    def announce(self, fingerprint: str, profile: str = PROFILE, *, untrained: bool = False) -> bool:
        encoder = Encoder(
            profile=profile,
            fingerprint=fingerprint,
            extractor={"model": fingerprint},
            untrained=untrained,
        )
        return announce(self.profiles, encoder, worker="w")

    def promote(self, fingerprint: str, profile: str = PROFILE, **options: Any) -> Any:
        return promote(
            self.profiles, self.workers, self.catalogue, profile, fingerprint, by="operator", **options
        )

    @property
    def known(self) -> tuple[str, list[str], list[str]]:
        """Return the current, the former and the candidate fingerprints as this process answers them."""
        document = self.profiles.read(PROFILE)
        return (
            document.fingerprint,
            list(document.former_fingerprints),
            [one.fingerprint for one in document.candidates],
        )
