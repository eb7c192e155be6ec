"""Contract tests of profiles, API keys and the identity of a bucket as documents: on a local folder and on a
real S3 server, each with a real Valkey.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.keys.forget import forget
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_changes import FRESH_SECONDS
from services.registry_api.keys.key_rules import KEPT_SECONDS
from services.registry_api.keys.make import make
from services.registry_api.keys.revoke import revoke
from services.registry_api.keys.rotate import rotate
from services.registry_api.operations.promote import promote
from services.shared.bucket.documents import Documents
from services.shared.bucket.layout import VIEW
from services.shared.bucket.registry_identity import open_identity
from services.shared.bucket.store import Moved, ObjectStore
from services.shared.configuration.store import StoreSettings
from services.shared.model.encoders import Encoder
from services.shared.model.profile_document import CampaignRecord, with_campaign
from services.shared.model.profiles import ProfileCatalogue
from services.shared.model.records import seal
from services.shared.registry.announce import announce
from services.shared.registry.opening import ConcurrentRunner
from services.shared.registry.profile_records import REMEMBERED_SECONDS, ProfileRecords
from services.shared.registry.shared_documents import SharedDocuments
from services.shared.view.generation import SETTLED_SECONDS, Generation
from services.shared.view.workers import FailedProof, Workers
from speaker_registry.errors import CampaignOpen, EncoderCurrent
from tests.integration.test_view import MovableClock
from tests.memory_registry import PROFILES

PROFILE = PROFILES[0].name
A, B, C = ("sha256:" + letter * 64 for letter in "abc")
BUCKET = StoreSettings(
    url="s3://voices", endpoint="http://127.0.0.1:9000", access_key_id="id", secret_access_key="secret"
)


class Process:
    """A process of the registry on a store and a Redis."""

    def __init__(self, store: ObjectStore, clock: MovableClock, url: str) -> None:
        self.documents = Documents(store, clock)
        now = lambda: int(store.now().timestamp() + clock.ahead)  # noqa: E731 - a name for one expression
        self.generation = Generation(url, "bucket", self.documents, clock)
        self.shared = SharedDocuments(
            documents=self.documents, generation=self.generation, clock=clock, now=now
        )
        self.profiles = ProfileRecords(self.shared, clock)
        self.workers = Workers(self.generation)
        self.catalogue = ProfileCatalogue(PROFILES, [PROFILE])
        self.keys = HeldKeys(self.shared, store, clock, ConcurrentRunner(), lambda do: do())

    def announce(self, fingerprint: str) -> bool:
        encoder = Encoder(profile=PROFILE, fingerprint=fingerprint, extractor={"model": fingerprint})
        return announce(self.profiles, encoder, worker="w")

    def start_campaign(self, fingerprint: str) -> CampaignRecord:
        new = CampaignRecord(id=fingerprint[-4:], profile=PROFILE, fingerprint=fingerprint, sample=1)
        self.profiles.change(PROFILE, partial(with_campaign, campaign=new), by="me", did="start")
        return new

    def promote(self, fingerprint: str) -> None:
        promote(self.profiles, self.workers, self.catalogue, PROFILE, fingerprint, by="operator", force=True)

    def state(self, key_id: str) -> str | None:
        found = self.keys.read(key_id)
        return found and self.keys.state(found)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def process(
    swapping_store: ObjectStore, clock: MovableClock, valkey: ValkeyServer, redis_client: Redis
) -> Iterator[Callable[[], Process]]:
    """Yield a function that starts a process. The view is old enough that nothing waits for it."""
    with ExitStack() as stack:

        def started() -> Process:
            new = Process(swapping_store, clock, valkey.url)
            stack.callback(new.generation.close)
            new.generation.for_reading()
            clock.ahead += SETTLED_SECONDS
            return new

        yield started


def at_once(*steps: Callable[[], object]) -> list[Exception | None]:
    """Carry out all steps at once, and return what each raised."""

    def tried(step: Callable[[], object]) -> Exception | None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error
        return None

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(tried, steps))


def test_all_processes_that_start_at_once_agree_about_the_bucket(
    swapping_store: ObjectStore, clock: MovableClock
) -> None:
    """Of several identities only one may be used, whichever process was first. A process that is ahead begins
    a view meanwhile, and the others must not believe that the identity was lost.
    """
    documents, now = Documents(swapping_store, clock), lambda: int(swapping_store.now().timestamp())
    found: list[str] = []

    def start() -> None:
        found.append(open_identity(swapping_store, documents, BUCKET, clock, now=now).identity)
        with suppress(Moved):
            swapping_store.swap(VIEW, seal({"revision": 1}), etag=None)

    assert at_once(*[start] * 4) == [None] * 4
    assert len(set(found)) == 1


def test_encoders_are_announced_and_promoted_by_several_at_once(
    process: Callable[[], Process], clock: MovableClock
) -> None:
    """No worker and no operator loses what the others did, and every process answers alike afterwards."""
    one, other = process(), process()
    others = [f"sha256:{number:064x}" for number in range(4)]
    assert one.announce(A)
    assert not other.announce(B)
    assert not other.announce(C)
    raised = at_once(
        lambda: one.promote(B),
        lambda: other.promote(C),
        *[partial(process().announce, fingerprint) for fingerprint in others],
    )
    assert raised == [None] * 6
    clock.ahead += REMEMBERED_SECONDS + 0.1
    first, second = one.profiles.read(PROFILE), other.profiles.read(PROFILE)
    assert first == second
    assert first.fingerprint in {B, C}
    assert {first.fingerprint, *first.former_fingerprints} == {A, B, C}
    assert {encoder.fingerprint for encoder in first.candidates} == {*others}
    raised = at_once(lambda: one.promote(A), lambda: other.promote(A))
    assert sorted(type(error) for error in raised if error) in ([], [EncoderCurrent])
    assert other.profiles.read(PROFILE).fingerprint == A


def test_a_loss_of_redis_loses_nothing_of_profiles_and_campaigns(
    process: Callable[[], Process], clock: MovableClock, redis_client: Redis
) -> None:
    """Redis gets its copies from the bucket again, and workers report again by themselves."""
    one = process()
    one.announce(A)
    one.announce(B)
    one.workers.beat("w", {PROFILE: B})
    one.workers.report_failed({PROFILE: FailedProof(worker="v", device="cpu", reason="codes differ")})
    assert one.workers.have(PROFILE, B)
    assert len(one.workers.failed([PROFILE])[PROFILE]) == 1
    campaign = one.start_campaign(B)
    with pytest.raises(CampaignOpen):
        one.start_campaign(B)
    redis_client.flushall()
    clock.ahead += REMEMBERED_SECONDS + 0.1
    assert one.profiles.fingerprint(PROFILE) == A
    assert process().profiles.read(PROFILE).open_campaign == campaign
    assert not one.workers.have(PROFILE, B)
    one.workers.beat("w", {PROFILE: B})
    one.workers.leave("w", {PROFILE: B})
    assert not one.workers.have(PROFILE, B)


def test_keys_are_made_rotated_revoked_and_forgotten(
    process: Callable[[], Process], clock: MovableClock, redis_client: Redis
) -> None:
    """No process accepts a revoked key from the answer on, also not after a loss of Redis."""
    here, there = process(), process()
    given = {"name": "engines", "namespace": "default", "scopes": ["engine"]}
    token, key = make(here.keys, created_by="test", **given)
    child, _ = make(here.keys, created_by=token.id, **given)
    assert [there.state(one.id) for one in (token, child)] == ["active"] * 2
    follower, _ = rotate(there.keys, key, grace_seconds=0, by="test")
    assert [here.state(one.id) for one in (token, child, follower)] == ["revoked", "active", "active"]
    revoke(there.keys, token.id, by="test", with_descendants=True)
    assert [here.state(one.id) for one in (token, child, follower)] == ["revoked", "revoked", "active"]
    redis_client.flushall()
    for one in (here, there, process()):
        assert [one.state(two.id) for two in (token, child, follower)] == ["revoked", "revoked", "active"]
    clock.ahead += KEPT_SECONDS + 60
    assert forget(here.keys) == 2
    clock.ahead += FRESH_SECONDS
    assert [process().state(one.id) for one in (token, child, follower)] == [None, None, "active"]


def test_a_key_that_is_revoked_while_it_is_rotated_leaves_no_follower_or_ends_after_it(
    process: Callable[[], Process],
) -> None:
    """The old key is refused in either case. If the revocation comes first, no key follows it."""
    here, there = process(), process()
    for _ in range(5):
        given = {"name": "engines", "namespace": "default", "scopes": ["engine"]}
        token, key = make(here.keys, created_by="test", **given)
        before = {one.record.id for one in here.keys.all("*")}
        refused, _ = at_once(
            lambda key=key: rotate(here.keys, key, grace_seconds=60, by="test"),
            lambda token=token: revoke(there.keys, token.id, by="test"),
        )
        follower = [one for one in there.keys.all("*") if one.record.id not in before]
        assert there.state(token.id) == here.state(token.id) == "revoked"
        active = [one for one in follower if there.keys.state(one) == "active"]
        assert len(active) == (0 if refused else 1)
