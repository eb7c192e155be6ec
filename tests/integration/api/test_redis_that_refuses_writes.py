"""Tests in which Redis answers and refuses writes: it is full, a read-only replica, cannot save or
replicate them, or denies its user a right. Reads go on as if nothing had happened, and writes are answered
503 with Retry-After. Before errors were distinguished by class, every request was answered 500 while the
server was full or read-only, reads included.
"""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis
from structlog.testing import capture_logs

from services.embedded.valkey import ValkeyServer
from services.registry_api.access.rate_limits import MINUTE
from services.shared.configuration.access import RateSettings
from services.shared.queue.rq_jobs import JobQueue, queue_name
from services.shared.telemetry.logs import LogThrottle
from services.shared.view import generation, redis_access
from services.shared.view.keys import shared_key
from services.shared.view.redis_access import connect, unavailable_without_redis
from speaker_registry.errors import Unavailable
from tests.integration.api.access import CLOSED, bearer, key
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, EMBEDDING, PROFILE, Registry
from tests.queue_workers import wait_until

LUA = Path(generation.__file__).parent / "lua"
NAME = "alice"
ARTIFACT = f"/v1/voices/{NAME}/versions/default/artifacts/{PROFILE}"


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """Start a server whose settings these tests may change."""
    with ValkeyServer(tmp_path_factory.mktemp("refusing")) as server:
        yield server


@pytest.fixture
def registry(start: Start, own_valkey: ValkeyServer) -> Registry:
    """A registry that requires keys and counts requests, with a voice that has its artifact."""
    with Redis.from_url(own_valkey.url) as redis:
        redis.flushall()  # the test before had another bucket
    registry = start(
        own_valkey.url,
        access=CLOSED,
        rates=RateSettings(requests_per_minute=10_000, uploads_per_minute=10_000),
    )
    token = key(registry, "engine", "voices:write", "voices:delete", "audio:read")
    registry.client.headers["Authorization"] = f"Bearer {token}"
    registry.ready(NAME)
    return registry


def fill_up(redis: Redis, _: Path) -> None:
    redis.config_set("maxmemory", 1)


def make_room(redis: Redis, _: Path) -> None:
    redis.config_set("maxmemory", 0)


def become_a_replica(redis: Redis, _: Path) -> None:
    """Make the server a replica of one that does not exist, so that the data stays as it is. A port that was
    free a moment ago may be that of another test's server by now, whose data would replace these.
    """
    redis.replicaof("127.0.0.1", 1)


def become_the_primary(redis: Redis, _: Path) -> None:
    redis.replicaof("NO", "ONE")


def lose_the_replicas(redis: Redis, _: Path) -> None:
    redis.config_set("min-replicas-to-write", 1)


def do_without_replicas(redis: Redis, _: Path) -> None:
    redis.config_set("min-replicas-to-write", 0)


def fail_to_save(redis: Redis, folder: Path) -> None:
    """Make snapshots fail by putting a folder in the place of the snapshot's file, if there is one."""
    redis.config_set("save", "")
    wait_until(lambda: not redis.info("persistence")["rdb_bgsave_in_progress"])
    (folder / "dump.rdb").unlink(missing_ok=True)
    (folder / "dump.rdb").mkdir()
    redis.config_set("save", "3600 1000000")
    redis.bgsave()
    wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err")


def need_no_snapshots(redis: Redis, folder: Path) -> None:
    redis.config_set("save", "")
    (folder / "dump.rdb").rmdir()


REFUSALS = {
    "full": (fill_up, make_room),
    "read-only": (become_a_replica, become_the_primary),
    "too few replicas": (lose_the_replicas, do_without_replicas),
    "cannot save": (fail_to_save, need_no_snapshots),
}


def set_rights(rights: str) -> Callable[[Redis, Path], None]:
    """Return a function that changes the rights of the registry's user."""
    return lambda redis, _: redis.execute_command("ACL", "SETUSER", "default", *rights.split())


DENIALS = {
    "no right to write": (set_rights("-@write"), set_rights("+@all")),
    "no right to scripts": (set_rights("-@scripting"), set_rights("+@all")),
}


@pytest.fixture(params=[*REFUSALS.values(), *DENIALS.values()], ids=[*REFUSALS, *DENIALS])
def refusing(
    request: pytest.FixtureRequest,
    registry: Registry,
    own_valkey: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Make the server refuse writes when a minute has just begun and the copies of profiles are gone. The
    last check of the view that succeeded is too old, as it is when this goes on.
    """
    begin, end = request.param
    monkeypatch.setattr(generation, "UNWATCHED_SECONDS", 0.0)
    registry.app.state.parts.services.access.rate_limits.now = lambda: time.time() + MINUTE
    with Redis.from_url(own_valkey.url) as redis:
        redis.delete(shared_key(registry.opened.generation.for_reading()))
        registry.opened.profile_records.clear_cache()
        begin(redis, own_valkey.data_dir)
        try:
            yield
        finally:
            end(redis, own_valkey.data_dir)


READS = [
    "/v1/audio/voices",
    f"/v1/audio/voices/{NAME}/cache",
    "/v1/voices?limit=5",
    f"/v1/voices/{NAME}",
    f"/v1/voices/{NAME}/versions/1",
    f"/v1/voices/{NAME}/versions/1/audio",
    ARTIFACT,
    f"{ARTIFACT}/file",
    "/v1/jobs",
    "/v1/jobs/summary",
    "/v1/profiles",
    "/v1/quota",
]


@pytest.mark.usefixtures("refusing")
def test_reads_go_on(registry: Registry):
    """Reads go on. Engines need none of the writes that come with a read: counting it, or storing a copy of
    what was looked up.
    """
    for path in READS:
        response = registry.client.get(path)
        assert response.status_code == 200, f"{path}: {response.text}"


@pytest.mark.parametrize("kept", [b"", b"sr:view"], ids=["all", "all but the stamp"])
def test_keys_that_hold_something_else_are_an_outage_of_redis(
    registry: Registry, own_valkey: ValkeyServer, kept: bytes, monkeypatch: pytest.MonkeyPatch
):
    """Every request that met one was answered 500."""
    monkeypatch.setattr(generation, "UNWATCHED_SECONDS", 0.0)
    with Redis.from_url(own_valkey.url) as redis:
        keys = [key for key in redis.keys("sr:*") if redis.type(key) != b"zset" and key != kept]
        assert keys
        for key in keys:
            redis.delete(key)
            redis.zadd(key, {"foreign": 1})
        for path in (f"/v1/voices/{NAME}", ARTIFACT, f"{ARTIFACT}/file"):
            response = registry.client.get(path)
            assert response.status_code == 200, f"{path}: {response.text}"
        for response in writes(registry.client):
            assert response.status_code == 503, response.text
        assert "refuses commands" in registry.client.get("/readyz").json()["parts"]["view"]


def test_an_upload_is_answered_as_usual_if_its_queue_holds_something_else(
    registry: Registry, own_valkey: ValkeyServer
):
    """The voice is stored, and housekeeping starts its extraction once the queue takes jobs. The answer was
    500, and later ones that the voice exists.
    """
    with Redis.from_url(own_valkey.url) as redis:
        queue = JobQueue(queue_name(PROFILE), redis).key
        redis.delete(queue)
        redis.hset(queue, "foreign", 1)
        assert registry.upload("new")["version"] == 1
        assert registry.client.get("/v1/voices/new").json()["state"] == "pending"


def writes(client: httpx.Client) -> Iterator[httpx.Response]:
    form = {"name": "new", "consent": "cons_1"}
    yield client.post("/v1/audio/voices", data=form, files={"audio_sample": ("clip.wav", CLIP, "audio/wav")})
    yield client.post("/v1/audio/voices", data={**form, "speaker_embedding": EMBEDDING})
    yield client.delete(f"/v1/audio/voices/{NAME}")
    yield client.delete(f"/v1/voices/{NAME}")
    yield client.post(f"/v1/audio/voices/{NAME}/cache", params={"force": "true"})


@pytest.mark.usefixtures("refusing")
def test_writes_are_told_to_come_back(registry: Registry):
    """Writes are answered 503 with Retry-After. A 500 would mean that something is broken here, and no client
    repeats it.
    """
    for response in writes(registry.client):
        assert response.status_code == 503, response.text
        assert int(response.headers["Retry-After"]) >= 1


@pytest.mark.usefixtures("refusing")
def test_operators_are_told(registry: Registry):
    """Nothing else tells an operator why uploads wait."""
    answer = registry.client.get("/readyz")
    assert answer.status_code == 503
    assert "Redis" in answer.json()["parts"]["view"]
    assert not registry.opened.generation.takes_writes, "registry_view_in_use would be 1"


@pytest.mark.usefixtures("refusing")
def test_a_key_can_be_made_and_used(registry: Registry):
    """A key can be made and used. It stands in the bucket, where a key that Redis lacks is looked up."""
    token = key(registry, "engine")
    assert registry.client.get(f"/v1/voices/{NAME}", headers=bearer(token)).status_code == 200


@pytest.mark.parametrize(("begin", "end"), REFUSALS.values(), ids=REFUSALS)
def test_a_transaction_is_refused_as_a_command_is(
    own_valkey: ValkeyServer, begin: Callable[[Redis, Path], None], end: Callable[[Redis, Path], None]
):
    """A server that begins to refuse writes after it has queued the commands of a transaction, and before
    EXEC, refuses all of it with an error of its own. An upload whose job met this was answered 500.
    """
    connection = connect(own_valkey.url).connection_pool.get_connection()
    for command in (("MULTI",), ("SET", "name", "value")):
        connection.send_command(*command)
        connection.read_response()
    with Redis.from_url(own_valkey.url) as redis:
        begin(redis, own_valkey.data_dir)
        try:
            connection.send_command("EXEC")
            with pytest.raises(Unavailable), unavailable_without_redis():
                connection.read_response()
        finally:
            end(redis, own_valkey.data_dir)
            connection.disconnect()


@pytest.mark.parametrize("rights", ["resetkeys ~rq:*", "-info"])
def test_the_bucket_is_read_without_rights(
    registry: Registry, own_valkey: ValkeyServer, rights: str, monkeypatch: pytest.MonkeyPatch
):
    """Every request was answered 500, with a traceback in the log."""
    monkeypatch.setattr(generation, "UNWATCHED_SECONDS", 0.0)
    with Redis.from_url(own_valkey.url) as redis:
        set_rights(rights)(redis, own_valkey.data_dir)
        try:
            for path in ("/v1/voices?limit=5", f"/v1/voices/{NAME}", f"{ARTIFACT}/file"):
                response = registry.client.get(path)
                assert response.status_code == 200, f"{path}: {response.text}"
            for response in writes(registry.client):
                assert response.status_code == 503, response.text
            assert "lacks a right" in registry.client.get("/readyz").json()["parts"]["view"]
        finally:
            set_rights("allkeys +@all")(redis, own_valkey.data_dir)


def test_a_command_that_a_script_must_not_use_is_refused_as_any_other(own_valkey: ValkeyServer):
    """The error of the server has no code of its own, and looked like a fault of the script."""
    with connect(own_valkey.url) as client, Redis.from_url(own_valkey.url) as redis:
        set_rights("-@stream")(redis, own_valkey.data_dir)
        try:
            with pytest.raises(Unavailable, match="lacks a right"), unavailable_without_redis():
                client.eval("redis.call('XADD', KEYS[1], '*', 'a', 'b')", 1, "sr:test")
        finally:
            set_rights("+@all")(redis, own_valkey.data_dir)


@pytest.mark.parametrize(
    "rights",
    ["-evalsha", "-multi", "-hgetall", "-zadd", "-xadd", "-xinfo", "-hincrby", "-hsetnx", "resetkeys ~sr:*"],
)
def test_operators_are_told_of_a_right_that_only_some_writes_need(
    registry: Registry, own_valkey: ValkeyServer, rights: str
):
    """`/readyz` was 200 while uploads were refused, or could not be queued."""
    with Redis.from_url(own_valkey.url) as redis:
        set_rights(rights)(redis, own_valkey.data_dir)
        try:
            assert "lacks a right" in registry.client.get("/readyz").json()["parts"]["view"]
            assert not registry.opened.generation.takes_writes
        finally:
            set_rights("allkeys +@all")(redis, own_valkey.data_dir)
    registry.opened.generation.check()


def test_every_command_of_the_scripts_is_tried():
    """Operators are told of a missing right before a write needs it."""
    tried, *others = sorted(LUA.glob("*.lua"), key=lambda path: path.name != "_words.lua")
    used = {one for path in others for one in re.findall(r"redis\.call\('([A-Z]+)'", path.read_text())}
    assert used - set(re.findall(r"'([A-Z]+)'", tried.read_text())) == {"HSET"}, "each word is set with HSET"


def test_a_transaction_that_must_not_begin_is_refused_as_any_other_command(own_valkey: ValkeyServer):
    """The server carries out the commands, and says of EXEC that nothing had begun."""
    with connect(own_valkey.url) as client, Redis.from_url(own_valkey.url) as redis:
        set_rights("-multi")(redis, own_valkey.data_dir)
        try:
            with pytest.raises(Unavailable, match="lacks a right"), unavailable_without_redis():
                client.pipeline(transaction=True).get("sr:test").execute()
        finally:
            set_rights("+@all")(redis, own_valkey.data_dir)


def test_a_database_that_does_not_exist_makes_redis_unavailable(
    own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
):
    """The log names the setting and the cause once, however many requests meet it."""
    monkeypatch.setattr(redis_access, "_throttle", LogThrottle(60.0))  # other tests may have met the same
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(Unavailable, match="refuses commands"), unavailable_without_redis():
                connect(own_valkey.url.replace("db=0", "db=99")).ping()
    [line] = logs
    assert (line["event"], line["setting"]) == ("redis.refused", "SPEAKER_REDIS_URL")
    assert "DB index is out of range" in line["cause"]
