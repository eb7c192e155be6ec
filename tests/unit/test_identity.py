"""Tests of the bucket's identity, which every process has to read alike, for ever."""

import pytest

from services.shared.bucket.connection import StoreUnfit
from services.shared.bucket.identity import bucket_identity
from services.shared.model.clock import Clock
from tests.simulation.store import PerfectStore


class OwnTime(Clock):
    """Sleeping takes no time."""

    seconds = 1_800_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class PoorStore(PerfectStore):
    """Has no conditional writes."""

    def create(self, key: str, data: bytes) -> None:  # type: ignore[override]
        return None


@pytest.fixture
def clock() -> OwnTime:
    return OwnTime()


@pytest.fixture(params=[PerfectStore, PoorStore])
def store(request: pytest.FixtureRequest, clock: OwnTime) -> PerfectStore:
    return request.param(clock.now)


def test_the_identity_is_made_once_and_stays(store: PerfectStore, clock: OwnTime):
    """Somebody else's object of any name, older or younger, changes nothing."""
    identity = bucket_identity(store, clock)
    for name in ("0" * 32, "f" * 32, ".DS_Store", "readme"):
        store.drop(f"_registry/{name}", b"{}")
        assert bucket_identity(store, clock) == identity


@pytest.mark.parametrize("names", [["b" * 32], ["b" * 32, "a" * 32]])
def test_a_bucket_of_an_older_release_keeps_its_identity(
    store: PerfectStore, clock: OwnTime, names: list[str]
):
    """It had only candidates. Of several, the oldest one counts: nobody can put an older one."""
    for name in names:
        store.put(f"_registry/{name}", b"{}")
        clock.sleep(10)
    assert bucket_identity(store, clock) == names[0]
    store.delete([f"_registry/{name}" for name in names])
    assert bucket_identity(store, clock) == names[0]


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 32])
def test_a_damaged_identity_is_said_to_be_one(store: PerfectStore, clock: OwnTime, body: bytes):
    """Processes that know the former identity would work against those that read another one in its place."""
    store.put("_registry/identity", body)
    with pytest.raises(StoreUnfit, match="'_registry/identity' of the bucket is damaged"):
        bucket_identity(store, clock)
