"""Tests of a store whose server fails, lags, lies or is away. The result is the true answer or `Unavailable`,
nothing in between.
"""

import ipaddress
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import product
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from services.shared.bucket.connection import StoreUnfit, prepare_bucket
from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import probe_consistency
from services.shared.bucket.store import ObjectStore, ObjectUnavailable, StoreFull
from services.shared.configuration.registry import RegistrySettings
from services.shared.registry import opening
from services.shared.registry.opening import open_registry
from speaker_registry.errors import Unavailable
from tests.integration.conftest import bucket_settings
from tests.servers import CutOff, Request, Response, S3Proxy, S3Server

KEY = "default/v/alice/r/1"
RETRY_SECONDS = "services.shared.bucket.opening.RETRY_SECONDS"
DATA = bytes(range(256)) * 200

Fault = Callable[[S3Proxy, Request], Response]


def status(code: int) -> Fault:
    return lambda _proxy, _request: Response(code, body=b"<Error><Code>SlowDown</Code></Error>")


def reset(_proxy: S3Proxy, _request: Request) -> Response:
    raise CutOff


def lose_the_reply(proxy: S3Proxy, request: Request) -> Response:
    proxy.forward(request)
    raise CutOff


def truncate(proxy: S3Proxy, request: Request) -> Response:
    response = proxy.forward(request)
    response.sent = len(response.body) // 2
    return response


def hang(proxy: S3Proxy, _request: Request) -> Response:
    """Do not answer until the test is over. A client that waits for the answer runs into
    the test's time-out.
    """
    proxy.over.wait()
    raise CutOff


PASSING: dict[str, Fault] = {
    "500": status(500),
    "503": status(503),
    "429": status(429),
    "reset": reset,
    "lost reply": lose_the_reply,
}
LASTING: dict[str, Fault] = {"503": status(503), "reset": reset, "hang": hang, "truncate": truncate}

OPERATIONS: dict[str, Callable[[ObjectStore], Any]] = {
    "put": lambda store: store.put("default/v/bob/r/1", DATA),
    "get": lambda store: store.get(KEY),
    "list": lambda store: [stored.key for stored in store.list("default/v/alice/").objects],
    "folders": lambda store: store.folders("default/v/"),
    "delete": lambda store: store.delete(["default/v/carol/r/1"]),
}


class FaultyProxy(S3Proxy):
    """A proxy that answers each request with the next fault, then truthfully. Requests for the server's time
    are not changed.
    """

    faults: list[Fault]
    lasting: Fault | None = None

    def answer(self, request: Request) -> Response:
        if request.method == "HEAD":
            return self.forward(request)
        fault = self.faults.pop(0) if self.faults else self.lasting
        return fault(self, request) if fault else self.forward(request)


@pytest.fixture
def proxy(rclone_server: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(rclone_server) as proxy:
        proxy.faults = []
        yield proxy


def behind(proxy: S3Proxy) -> ObjectStore:
    return open_store(bucket_settings(proxy.server, endpoint=proxy.endpoint))


def filled(store: ObjectStore) -> ObjectStore:
    store.put(KEY, DATA)
    store.put("default/v/carol/r/1", DATA)
    return store


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_passing_fault_is_not_noticed(proxy: FaultyProxy, operation: str, fault: str) -> None:
    """A transient fault is not noticed. Real buckets answer 503 now and then, and no user should see one."""
    store = filled(behind(proxy))
    expected = OPERATIONS[operation](store)
    store = filled(behind(proxy))
    proxy.faults = [PASSING[fault]] * (2 if fault == "503" else 1)
    assert OPERATIONS[operation](store) == expected
    assert proxy.faults == []


@pytest.mark.parametrize(
    ("operation", "fault"),
    # The answers to a put and a delete have no body that could be cut off.
    [
        pair
        for pair in product(OPERATIONS, LASTING)
        if pair not in (("put", "truncate"), ("delete", "truncate"))
    ],
)
def test_a_lasting_fault_ends_as_unavailable_and_in_time(
    proxy: FaultyProxy, operation: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lasting fault ends as `Unavailable` in time. A caller gets a 503 with Retry-After, not a hanging
    request, and everything works afterwards.
    """
    settings = bucket_settings(proxy.server, endpoint=proxy.endpoint)
    store = filled(open_store(settings))
    expected = OPERATIONS[operation](store)
    monkeypatch.setattr("services.shared.bucket.opening.REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(RETRY_SECONDS, 0.3)
    hasty = open_store(settings)
    proxy.lasting = LASTING[fault]
    with pytest.raises(Unavailable) as caught:
        OPERATIONS[operation](hasty)
    assert caught.value.retry_after_seconds
    proxy.lasting = None
    assert OPERATIONS[operation](store) == expected


@pytest.mark.parametrize("faults", [1, 2, 3])
def test_a_cut_off_object_is_never_returned(proxy: FaultyProxy, faults: int) -> None:
    """A truncated object is never returned, because half an artifact would be half a voice."""
    store = filled(behind(proxy))
    proxy.faults = [truncate] * faults
    try:
        assert store.get(KEY) == DATA
    except Unavailable:
        assert store.get(KEY) == DATA


def test_a_put_without_a_reply_was_or_was_not_done_and_can_be_repeated(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put without a reply either took effect or did not, and can be repeated. The caller cannot know, so
    repeating must be safe.
    """
    monkeypatch.setattr(RETRY_SECONDS, 0)
    store = behind(proxy)
    proxy.faults = [lose_the_reply]
    with pytest.raises(Unavailable):
        store.put(KEY, DATA)
    assert store.get(KEY) == DATA
    store.put(KEY, DATA)
    assert store.get(KEY) == DATA


def test_a_large_object_goes_in_one_request(proxy: FaultyProxy) -> None:
    """A large object is sent in one request. The parts of an interrupted upload would stay in the bucket
    unlisted, out of reach of every erase.
    """
    behind(proxy).put(KEY, b"x" * 7_000_000)
    assert [request.method for request in proxy.seen] == ["PUT"]


def test_readiness_does_not_wait_for_retries(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readiness does not wait for retries. A probe gives up within seconds, and would take a missing answer
    for a dead process.
    """
    monkeypatch.setattr("services.shared.bucket.opening.CHECK_SECONDS", 0.3)
    monkeypatch.setattr("services.shared.bucket.opening.REQUEST_SECONDS", 600)
    monkeypatch.setattr(RETRY_SECONDS, 600)
    store = behind(proxy)
    store.check()
    proxy.lasting = hang
    with pytest.raises(Unavailable):
        store.check()


@pytest.mark.parametrize("refused", ["PUT", "GET"])
def test_a_bucket_that_only_reads_or_only_writes_fails_the_check(proxy: FaultyProxy, refused: str) -> None:
    """A worker that may not write would otherwise take jobs and use up their attempts."""
    store = behind(proxy)
    proxy.lasting = lambda proxy, request: (
        Response(403) if request.method == refused else proxy.forward(request)
    )
    with pytest.raises(Unavailable):
        store.check_writing()


@pytest.mark.parametrize(
    ("status", "code"),
    [(507, "XMinioStorageFull"), (403, "QuotaExceeded"), (400, "XMinioAdminBucketQuotaExceeded")],
)
def test_a_bucket_without_room_says_so(proxy: FaultyProxy, status: int, code: str) -> None:
    store = behind(proxy)
    proxy.lasting = lambda _proxy, _request: Response(
        status, body=f"<Error><Code>{code}</Code></Error>".encode()
    )
    with pytest.raises(StoreFull):
        store.put(KEY, DATA)


def test_a_server_that_is_not_there_is_unavailable(
    rclone_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that cannot be reached is unavailable. No server listens on port 1."""
    monkeypatch.setattr(RETRY_SECONDS, 0.2)
    store = open_store(bucket_settings(rclone_server, endpoint="http://127.0.0.1:1"))
    for operation in OPERATIONS.values():
        with pytest.raises(Unavailable):
            operation(store)
    with pytest.raises(Unavailable):
        store.check()


def test_a_missing_bucket_is_not_taken_for_a_missing_object(rclone_server: S3Server) -> None:
    """A missing bucket is not taken for a missing object. A typo in the configuration would otherwise look
    like the loss of every voice.
    """
    store = open_store(bucket_settings(rclone_server, url="s3://another-bucket"))
    for operation in OPERATIONS.values():
        with capture_logs() as logs, pytest.raises(Unavailable):
            operation(store)
        assert logs[0]["reason"] == "404 NoSuchBucket"
    with pytest.raises(Unavailable):
        store.check()


def test_a_404_that_is_not_the_stores_is_not_taken_for_a_missing_object(proxy: FaultyProxy) -> None:
    """A 404 that is not the store's is not taken for a missing object, because a gateway whose route is gone
    answers 404 as well.
    """
    proxy.lasting = lambda _proxy, _request: Response(404, body=b"<html>no such route</html>")
    with pytest.raises(Unavailable):
        behind(proxy).get(KEY)


@pytest.mark.parametrize("operation", ["list", "folders"])
def test_the_list_of_another_prefix_is_no_answer(proxy: FaultyProxy, operation: str) -> None:
    """The list of another prefix is refused. A proxy that mixed up the answers of two requests gave one voice
    the records of another one: they were served under its name, and its own versions were lost.
    """
    store = filled(behind(proxy))
    store.put("other/v/dave/r/1", DATA)
    ask: dict[str, Callable[[str], Any]] = {"list": store.list, "folders": store.folders}
    answers: list[Response] = []

    def keep(request: Request) -> Response:
        answers.append(proxy.forward(request))
        return answers[-1]

    proxy.answer = keep
    ask[operation]("other/v/")
    other = next(answer for answer in answers if b"other/v/dave" in answer.body)
    proxy.answer = lambda request: other
    with pytest.raises(Unavailable):
        ask[operation]("default/v/")


@pytest.mark.parametrize("answer", [403, 500])
@pytest.mark.parametrize("operation", ["get", "delete"])
def test_trouble_with_one_object_is_told_from_an_outage(
    proxy: FaultyProxy, operation: str, answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of one object is distinguished from an outage. An archived object is refused for ever, and a
    caller that took that for an outage would wait for ever.
    """
    monkeypatch.setattr(RETRY_SECONDS, 0.3)
    store = filled(behind(proxy))
    probe_consistency(store)

    def refuse_one(request: Request) -> Response:
        refused = request.method == operation.upper() and request.path.endswith("/1")
        return status(answer)(proxy, request) if refused else proxy.forward(request)

    proxy.answer = refuse_one
    with pytest.raises(ObjectUnavailable):
        OPERATIONS[operation](store)
    proxy.answer = lambda request: status(answer)(proxy, request)
    with pytest.raises(Unavailable) as caught:
        OPERATIONS[operation](store)
    assert not isinstance(caught.value, ObjectUnavailable)


def test_an_object_that_cannot_be_removed_keeps_no_other(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RETRY_SECONDS, 0.3)
    store = filled(behind(proxy))
    probe_consistency(store)
    stubborn = [f"n/{number}" for number in range(3)]
    for key in stubborn:
        store.put(key, DATA)

    def answer(request: Request) -> Response:
        refused = request.method == "DELETE" and request.path.endswith("n/1")
        return status(403)(proxy, request) if refused else proxy.forward(request)

    proxy.answer = answer
    with pytest.raises(ObjectUnavailable):
        store.delete(stubborn)
    assert [stored.key for stored in store.list("n/").objects] == ["n/1"]


def test_only_a_get_can_find_an_object_missing(proxy: FaultyProxy) -> None:
    """Only a get can find an object missing. A 404 to any other request is a fault of the server's, which
    callers must not take for an answer.
    """
    store = behind(proxy)
    proxy.lasting = lambda _proxy, _request: Response(404, body=b"<Error><Code>NoSuchKey</Code></Error>")
    for name, operation in OPERATIONS.items():
        with pytest.raises(FileNotFoundError if name == "get" else Unavailable):
            operation(store)


def test_refused_keys_are_explained_in_the_log_and_hidden_from_callers(rclone_server: S3Server) -> None:
    """Refused keys are explained in the log and hidden from callers. Operators need the reason; callers must
    learn no bucket, and the log no voice's name.
    """
    store = open_store(bucket_settings(rclone_server, secret_access_key="not-the-secret"))
    for operation in OPERATIONS.values():
        with capture_logs() as logs, pytest.raises(Unavailable) as caught:
            operation(store)
        assert logs[0]["reason"] == "403 SignatureDoesNotMatch"
        assert "alice" not in str(logs)
        assert str(caught.value) == "The object store is not available."


class OneTruncated(S3Proxy):
    """A proxy that truncates one answer, by its number from 0."""

    def __init__(self, server: S3Server, number: int) -> None:
        super().__init__(server)
        self._left = number

    def answer(self, request: Request) -> Response:
        response = self.forward(request)
        if request.method == "GET" and response.body:
            self._left -= 1
            response.sent = len(response.body) // 2 if self._left == -1 else None
        return response


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2, 3, 10, 24, 25, 26])
def test_a_start_outlives_one_answer_that_is_cut_short(
    seaweedfs_server: S3Server, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A start survives one truncated answer, whichever it is: the one that describes the bucket, lists it, or
    returns an object.
    """
    monkeypatch.setattr(opening, "_FIRST_PAUSE_SECONDS", 0.01)
    with OneTruncated(seaweedfs_server, number) as proxy:
        settings = bucket_settings(seaweedfs_server, endpoint=proxy.endpoint)
        open_registry(settings, RegistrySettings(redis_url="redis://127.0.0.1:1/0")).close()


class StaleLists(S3Proxy):
    """A store whose listings stay old for some time after a put or a delete."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(server)
        self._listed: dict[str, Response] = {}

    def answer(self, request: Request) -> Response:
        if "list-type=2" not in request.path:
            return self.forward(request)
        return self._listed.setdefault(request.path, self.forward(request))


class LateWrites(S3Proxy):
    """A store that acknowledges a put before it can be seen."""

    def answer(self, request: Request) -> Response:
        if request.method == "PUT" and request.path.endswith("19"):
            return Response(200, {"ETag": '"late"'})
        return self.forward(request)


class RememberedMisses(S3Proxy):
    """A store behind a cache that remembers that an object was missing."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(server)
        self._missed: dict[str, Response] = {}

    def answer(self, request: Request) -> Response:
        if request.method != "GET":
            return self.forward(request)
        response = self._missed.get(request.path) or self.forward(request)
        if response.status == 404:
            self._missed[request.path] = response
        return response


class KeepsDeleted(S3Proxy):
    """A store that acknowledges deletes without effect."""

    def answer(self, request: Request) -> Response:
        return Response(204) if request.method == "DELETE" else self.forward(request)


class WrongClock(S3Proxy):
    """A store that dates its answers two days after its objects: what was just put would
    seem old enough to collect.
    """

    def answer(self, request: Request) -> Response:
        response = self.forward(request)
        return _dated(response, datetime.now(UTC) + timedelta(days=2))


def _dated(response: Response, date: datetime) -> Response:
    response.headers["Date"] = format_datetime(date, usegmt=True)
    return response


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        (StaleLists, "listed what was just deleted"),
        (LateWrites, "did not list what was just put"),
        (RememberedMisses, "did not return what was just put"),
        (KeepsDeleted, "listed what was just deleted"),
        (WrongClock, "apart"),
    ],
)
def test_the_probe_refuses_a_store_that_we_could_not_rely_on(
    rclone_server: S3Server, unfit: type[S3Proxy], why: str
) -> None:
    """The probe refuses a store that the registry could not rely on. The whole design depends on reading what
    was written, and not starting is better than losing voices unnoticed.
    """
    with unfit(rclone_server) as proxy, pytest.raises(StoreUnfit, match=why):
        probe_consistency(behind(proxy))


def test_a_probe_that_failed_leaves_nothing_either(rclone_server: S3Server) -> None:
    """A probe that failed leaves nothing either, because it is tried again at every restart."""
    settings = bucket_settings(rclone_server)
    with WrongClock(rclone_server) as proxy, pytest.raises(StoreUnfit):
        probe_consistency(open_store(settings.model_copy(update={"endpoint": proxy.endpoint})))
    assert open_store(settings).list(".probe/").objects == ()


def test_a_probe_clears_up_what_a_killed_one_left(
    rclone_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe deletes what a killed one left. A process that is killed at every start
    must not fill the bucket.
    """
    store = open_store(bucket_settings(rclone_server))
    store.put(".probe/killed/01", b"1")
    probe_consistency(store)
    assert [stored.key for stored in store.list(".probe/").objects] == [".probe/killed/01"]  # may be in use
    monkeypatch.setattr("services.shared.bucket.probe.OLD_PROBE", timedelta(seconds=-10))
    probe_consistency(store)
    assert store.list(".probe/").objects == ()


class DatedProxy(S3Proxy):
    date: datetime | None

    def answer(self, request: Request) -> Response:
        response = self.forward(request)
        if self.date:
            return _dated(response, self.date)
        response.headers.pop("Date")
        return response


def test_listings_are_dated_by_the_servers_clock_asked_once_in_a_while(rclone_server: S3Server) -> None:
    """Listings are dated by the server's clock, which is asked once in a while. A wrong local clock must not
    make garbage of a new upload; nor may asking double the requests.
    """
    with DatedProxy(rclone_server) as proxy:
        proxy.date = datetime(2031, 5, 4, tzinfo=UTC)
        store = behind(proxy)
        dates = [store.list("a/").taken_at for _ in range(3)]
        assert proxy.date <= dates[0] < dates[1] < dates[2] < proxy.date + timedelta(seconds=20)
        assert [request.method for request in proxy.seen].count("HEAD") == 1


def test_a_server_that_does_not_say_its_time_is_unavailable(rclone_server: S3Server) -> None:
    """A server that does not tell its time is unavailable, because a guess could delete needed objects."""
    with DatedProxy(rclone_server) as proxy, capture_logs() as logs:
        proxy.date = None
        with pytest.raises(Unavailable):
            behind(proxy).list("a/")
    assert "Date" in logs[0]["reason"]


def test_keys_given_to_us_are_not_mixed_with_those_of_the_environment(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configured keys are not mixed with those of the environment. A session token that belongs to other keys
    would make every request fail.
    """
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of other keys")
    filled(behind(proxy))
    assert proxy.seen
    assert not [request for request in proxy.seen if "x-amz-security-token" in request.headers]


def test_without_keys_boto3_looks_for_them(rclone_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store opens without configured keys, because boto3 looks for them. In a cloud, keys come from the
    machine's role and change, and operators should not have to copy them.
    """
    settings = bucket_settings(rclone_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", settings.access_key_id or "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", settings.secret or "")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    keyless = bucket_settings(rclone_server, access_key_id=None, secret_access_key=None, region=None)
    prepare_bucket(keyless)
    probe_consistency(open_store(keyless))


def test_without_any_keys_opening_fails(rclone_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a store without any keys fails at start, where an operator looks, and not at the first upload.
    The message names the settings that would give some.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the keys that another test gave
    keyless = bucket_settings(rclone_server, access_key_id=None, secret_access_key=None)
    for use in (open_store, prepare_bucket):
        with pytest.raises(StoreUnfit, match=r"^SPEAKER_STORE_ACCESS_KEY_ID: .* no credentials are given by"):
            use(keyless)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "private authority")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(address, critical=False)
    signed = builder.sign(key, hashes.SHA256())
    folder = tmp_path_factory.mktemp("certificate")
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate, private


def test_a_private_authority_is_trusted_when_it_is_named_and_not_before(
    rclone_server: S3Server, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private authority is trusted when a setting names it and not before. S3 servers inside a company have
    such certificates, and operators must not have to switch verification off.
    """
    with S3Proxy(rclone_server, certificate=certificate) as proxy:
        trusting = bucket_settings(rclone_server, endpoint=proxy.endpoint, ca_file=certificate[0])
        prepare_bucket(trusting)
        probe_consistency(open_store(trusting))
        monkeypatch.setattr(RETRY_SECONDS, 0)
        with pytest.raises(Unavailable):
            behind(proxy).get(KEY)
