"""An artifact is checked before anybody gets it, and comes from memory only while the registry says so."""

import hashlib
import json
import math

import httpx
import numpy as np
import pytest

from speaker_registry import ArtifactCache, Clip, ClipPicture, ReferenceAudio, errors
from tests.unit.sdk.conftest import Connect, on_one_client
from tests.unit.sdk.fake_registry import (
    ECAPA,
    FakeRegistry,
    FakeTime,
    artifact_file,
    error_answer,
    file_answer,
    file_headers,
)

GOOD = artifact_file()


def test_what_is_fetched_is_what_was_made(connect: Connect, registry: FakeRegistry):
    """Tensors as numpy arrays, with the manifest and the digest of the file."""
    registry.add_version("alice")
    artifact = connect().fetch("alice", ECAPA)
    assert np.array_equal(artifact.tensors["speaker_embedding"], np.full(192, 1, np.float32))
    assert artifact.manifest.profile == ECAPA
    assert artifact.digest == "sha256:" + hashlib.sha256(registry.voices["alice"][0].files[ECAPA]).hexdigest()
    assert registry.requests[0].headers["accept-encoding"] == "identity"


def flipped(data: bytes) -> bytes:
    """One bit of the last tensor."""
    return data[:-1] + bytes([data[-1] ^ 1])


@on_one_client
@pytest.mark.parametrize(
    "answer",
    [
        lambda: file_answer(GOOD, etag=f'"sha256:{"0" * 64}"'),
        lambda: file_answer(GOOD, **{"content-digest": "sha-256=:AAAA:"}),
        lambda: file_answer(GOOD, **{"content-digest": "sha-256=:A:"}),
        lambda: httpx.Response(200, content=flipped(GOOD), headers=file_headers(GOOD)),
        lambda: httpx.Response(200, content=GOOD[:-100], headers=file_headers(GOOD)),
        lambda: httpx.Response(200, content=b"", headers=file_headers(GOOD)),
    ],
    ids=["etag", "digest", "unreadable", "bit", "short", "empty"],
)
def test_bytes_that_are_not_what_their_digest_says_are_refused(
    connect: Connect, registry: FakeRegistry, answer
):
    """One wrong bit in a speaker embedding is another voice."""
    cache = ArtifactCache()
    registry.faults.append(answer())
    with pytest.raises(errors.DigestMismatch):
        connect(cache=cache).fetch("alice", ECAPA)
    assert cache.stats().entries == 0


@on_one_client
@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(200, html="<html>Sign in</html>"),
        lambda: httpx.Response(200, content=GOOD, headers={"etag": '"v1"', "content-type": "text/html"}),
    ],
    ids=["page", "foreign etag"],
)
def test_what_has_no_digest_is_no_answer_of_the_registry(connect: Connect, registry: FakeRegistry, answer):
    """A proxy's page must be told from damage, and must not cost the engine the artifact that it has."""
    registry.add_version("alice")
    client = connect(cache=ArtifactCache())
    held = client.fetch("alice", ECAPA)
    registry.faults.append(answer())
    with pytest.raises(errors.Unavailable, match=r"'text/html.* without a digest: is there a speaker"):
        client.fetch("alice", ECAPA)
    registry.faults.append(answer())
    assert client.fetch("alice", ECAPA, stale_if_error=60).digest == held.digest


@on_one_client
@pytest.mark.parametrize(
    "headers",
    [
        {"etag": f'W/"sha256:{hashlib.sha256(GOOD).hexdigest()}"', "content-digest": ""},
        {"etag": '"something else"'},
        {"etag": "", "content-digest": "sha-512=:AAAA:, " + file_headers(GOOD)["content-digest"]},
    ],
    ids=["weakened", "replaced", "several"],
)
def test_one_good_digest_is_enough(connect: Connect, registry: FakeRegistry, headers: dict[str, str]):
    """Proxies weaken or replace an ETag; the other header still says it."""
    registry.faults.append(file_answer(GOOD, **headers))
    assert connect().fetch("alice", ECAPA).manifest.version == 1


@on_one_client
@pytest.mark.parametrize(
    ("data", "headers", "fact"),
    [
        (artifact_file(profile="another"), {}, "profile"),
        (artifact_file(voice="bob"), {}, "the artifact is of 'bob'@1"),
        (artifact_file(version=2), {"x-voice-version": "2"}, "the artifact is of 'alice'@2"),
        (artifact_file(), {"x-voice-version": "2"}, "version"),
        (artifact_file(), {"x-artifact-fingerprint": "sha256:0"}, "fingerprint"),
    ],
)
def test_an_artifact_of_something_else_is_refused(
    connect: Connect, registry: FakeRegistry, data: bytes, headers: dict[str, str], fact: str
):
    """Whole and well signed, but another speaker: the worst that a cache in between can do."""
    registry.faults.append(file_answer(data, **headers))
    with pytest.raises(errors.InvalidArtifact, match=fact):
        connect().fetch("Alice@1", ECAPA)


def test_a_file_that_is_no_artifact_is_refused(connect: Connect, registry: FakeRegistry):
    """Its digest only says that it arrived as it was sent."""
    registry.faults.append(file_answer(b"hello world, this is no artifact"))
    with pytest.raises(errors.InvalidArtifact):
        connect().fetch("alice", ECAPA)


def test_a_body_that_is_cut_short_is_fetched_again(connect: Connect, registry: FakeRegistry):
    """The length was promised; less than that is a lost connection."""
    registry.add_version("alice")
    cut = httpx.Response(
        200,
        headers={**file_headers(GOOD), "content-length": str(len(GOOD))},
        stream=httpx.ByteStream(GOOD[:50]),
    )
    registry.faults.append(cut)
    assert connect().fetch("alice", ECAPA).manifest.version == 1
    assert len(registry.requests) == 2


@on_one_client
@pytest.mark.parametrize("argument", ["wait", "max_age", "stale_if_error"])
@pytest.mark.parametrize("value", [-1, math.nan, "60"], ids=str)
def test_seconds_that_are_no_number_from_zero_on_are_refused_before_a_request(
    connect: Connect, registry: FakeRegistry, argument: str, value: object
):
    """A wrong `stale_if_error` would otherwise show only when the registry cannot be reached."""
    with pytest.raises(errors.InvalidRequest, match=f"{argument} is .*accepted: seconds from 0"):
        connect().fetch("alice", ECAPA, **{argument: value})
    assert registry.requests == []


class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Counts how much of it is read."""

    read = 0

    def __iter__(self):
        while True:
            Endless.read += 1
            yield bytes(1024**2)

    async def __aiter__(self):
        for chunk in self:
            yield chunk


@pytest.mark.parametrize("headers", [{}, {"content-length": str(2**40)}])
def test_a_body_larger_than_allowed_is_not_read(
    connect: Connect, registry: FakeRegistry, headers: dict[str, str]
):
    """Neither when it says so nor when it does not stop."""
    Endless.read = 0
    registry.faults.append(httpx.Response(200, headers=headers, stream=Endless()))
    with pytest.raises(errors.PayloadTooLarge):
        connect().fetch("alice", ECAPA)
    assert Endless.read == (0 if headers else 65)
    assert len(registry.requests) == 1


def test_a_compressed_body_is_not_unfolded(connect: Connect, registry: FakeRegistry):
    """A few bytes can become gigabytes before anybody has counted them."""
    registry.faults.append(
        httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"\x1f\x8b"))
    )
    with pytest.raises(errors.Unavailable, match="compressed"):
        connect(retries=0).fetch("alice", ECAPA)


def test_a_body_that_trickles_is_given_up_at_the_deadline(
    connect: Connect, registry: FakeRegistry, time: FakeTime
):
    """Each chunk is in time, the whole never: only the deadline ends that."""

    class Trickle(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self):
            while True:
                time.now += 1
                yield b"x"

        async def __aiter__(self):
            for chunk in self:
                yield chunk

    registry.faults.append(httpx.Response(200, stream=Trickle()))
    with pytest.raises(errors.Unavailable, match="in time"):
        connect(timeout=5).fetch("alice", ECAPA)
    assert time.now <= 1006


def test_what_has_not_changed_is_not_transferred_again(connect: Connect, registry: FakeRegistry):
    """The registry is asked, with the digest we hold, and answers without a body."""
    registry.add_version("alice")
    client = connect()
    first, second = client.fetch("alice", ECAPA), client.fetch("alice", ECAPA)
    assert first.digest == second.digest
    assert [request.headers.get("if-none-match") for request in registry.requests] == [
        None,
        f'"{first.digest}"',
    ]
    stats = client.cache.stats()
    assert (stats.hits, stats.misses, stats.entries) == (1, 1, 1)


def test_a_pinned_version_is_asked_for_too(connect: Connect, registry: FakeRegistry):
    """It may have been erased, or made again."""
    version = registry.add_version("alice")
    client = connect()
    client.fetch("alice@1", ECAPA)
    version.files[ECAPA] = artifact_file(width=64)
    assert client.fetch("alice@1", ECAPA).tensors["speaker_embedding"].shape == (64,)


def test_a_name_follows_its_alias(connect: Connect, registry: FakeRegistry):
    """An artifact that was cached for the name may not be what the name means now."""
    registry.add_version("alice")
    client = connect()
    assert client.fetch("alice", ECAPA).manifest.version == 1
    registry.add_version("alice")
    assert client.fetch("alice", ECAPA).manifest.version == 2
    assert client.fetch("alice@1", ECAPA).manifest.version == 1


def test_within_max_age_nothing_is_asked(connect: Connect, registry: FakeRegistry, time: FakeTime):
    """The way of an engine that must not wait: microseconds, no I/O."""
    registry.add_version("alice")
    cache = ArtifactCache(clock=time)
    client = connect(cache=cache)
    client.fetch("alice", ECAPA, max_age=10)
    time.now += 10
    client.fetch("ALICE ", ECAPA, max_age=10)
    assert len(registry.requests) == 1
    time.now += 0.1
    client.fetch("alice", ECAPA, max_age=10)
    assert len(registry.requests) == 2
    assert cache.stats().hits == 2


def test_age_counts_from_the_question(connect: Connect, registry: FakeRegistry, time: FakeTime):
    """A change that came while the answer was on its way is older than the arrival says."""
    registry.add_version("alice")

    def slow(request: httpx.Request) -> httpx.Response:
        time.now += 8
        return registry(request)

    registry.faults.append(slow)
    client = connect(cache=ArtifactCache(clock=time))
    client.fetch("alice", ECAPA)
    time.now += 3
    client.fetch("alice", ECAPA, max_age=10)
    assert len(registry.requests) == 3


def test_other_clients_do_not_see_each_others_voices(connect: Connect, registry: FakeRegistry):
    """A shared cache must not turn one tenant's key into another's."""
    registry.add_version("alice")
    cache = ArtifactCache()
    connect(cache=cache, api_key="one").fetch("alice", ECAPA)
    registry.faults.append(error_answer(404, "voice_not_found"))
    with pytest.raises(errors.VoiceNotFound):
        connect(cache=cache, api_key="two").fetch("alice", ECAPA, max_age=1e9)
    connect(cache=cache, api_key="one").fetch("alice", ECAPA, max_age=1e9)
    assert len(registry.requests) == 2


def test_an_erased_voice_leaves_the_memory(connect: Connect, registry: FakeRegistry):
    """Every version that was held of it is dropped, under every reference."""
    for name in ("alice", "alice", "bob"):
        registry.add_version(name)
    client = connect()
    for speaker in ("alice", "alice@1", "alice@2", "bob"):
        client.fetch(speaker, ECAPA)
    del registry.voices["alice"]
    with pytest.raises(errors.VoiceNotFound):
        client.fetch("alice@1", ECAPA)
    assert client.cache.stats().entries == 1
    for speaker in ("alice", "alice@2"):
        with pytest.raises(errors.VoiceNotFound):
            client.fetch(speaker, ECAPA, max_age=1e9)
    assert client.fetch("bob", ECAPA, max_age=1e9).manifest.voice == "bob"


def test_versions_are_told_apart_in_memory(connect: Connect, registry: FakeRegistry):
    """One of them for the other is another clip."""
    for _ in range(2):
        registry.add_version("alice")
    client = connect()
    for _ in range(2):
        for reference, number in (("@1", 1), ("@2", 2), ("", 2)):
            assert client.fetch(f"alice{reference}", ECAPA, max_age=1e9).manifest.version == number


def test_what_is_being_made_again_stays_in_memory(connect: Connect, registry: FakeRegistry):
    """Not ready yet is no refusal: without the registry, the old one is what there is."""
    version = registry.add_version("alice")
    client = connect(retries=0)
    client.fetch("alice", ECAPA)
    version.states[ECAPA] = "processing"
    with pytest.raises(errors.ArtifactNotReady):
        client.fetch("alice", ECAPA)
    registry.faults.append(httpx.ConnectError("refused"))
    assert client.fetch("alice", ECAPA, stale_if_error=1e9).manifest.version == 1


@pytest.mark.parametrize(
    "code", ["artifact_stale", "artifact_failed", "version_not_found", "alias_not_found"]
)
def test_what_the_registry_refuses_does_not_come_from_memory(
    connect: Connect, registry: FakeRegistry, code: str
):
    """`max_age` would otherwise return what was just withdrawn."""
    registry.add_version("alice")
    client = connect()
    client.fetch("alice", ECAPA)
    status = 404 if code.endswith("found") else 409
    registry.faults.extend(error_answer(status, code) for _ in range(2))
    for max_age in (None, 1e9):
        with pytest.raises(errors.BY_CODE[code]):
            client.fetch("alice", ECAPA, max_age=max_age)


def test_an_engine_goes_on_without_the_registry_if_it_says_so(
    connect: Connect, registry: FakeRegistry, time: FakeTime
):
    """Synthesis must not stop because the registry does; but only for as long as the engine allows."""
    registry.add_version("alice")
    client = connect(cache=ArtifactCache(clock=time), retries=0)
    client.fetch("alice", ECAPA)
    registry.faults.extend(httpx.ConnectError("refused") for _ in range(3))
    with pytest.raises(errors.Unavailable):
        client.fetch("alice", ECAPA)
    time.now += 50
    assert client.fetch("alice", ECAPA, stale_if_error=60).manifest.version == 1
    time.now += 50
    with pytest.raises(errors.Unavailable):
        client.fetch("alice", ECAPA, stale_if_error=60)


def test_tensors_are_read_only(connect: Connect, registry: FakeRegistry):
    """The same array is in other hands."""
    registry.add_version("alice")
    client = connect()
    for _ in range(2):
        tensor = client.fetch("alice", ECAPA).tensors["speaker_embedding"]
        with pytest.raises(ValueError, match="read-only"):
            tensor[0] = 7


def test_what_a_caller_does_to_its_artifact_stays_with_it(connect: Connect, registry: FakeRegistry):
    """Engines replace numpy arrays by their own tensors in place."""
    registry.add_version("alice")
    client = connect()
    for _ in range(3):
        tensors = client.fetch("alice", ECAPA, max_age=1e9).tensors
        assert isinstance(tensors["speaker_embedding"], np.ndarray)
        tensors["speaker_embedding"] = "on the GPU"
    assert len(registry.requests) == 1


def test_without_a_cache_every_fetch_is_a_transfer(connect: Connect, registry: FakeRegistry):
    """None means none."""
    registry.add_version("alice")
    client = connect(cache=None)
    for _ in range(2):
        client.fetch("alice", ECAPA, max_age=1e9)
    assert client.cache is None
    assert [request.headers.get("if-none-match") for request in registry.requests] == [None, None]


def test_a_download_gives_the_files_own_bytes(connect: Connect, registry: FakeRegistry):
    """The bytes are equal to the last one, and come from the registry even if the artifact is in memory."""
    version = registry.add_version("alice")
    client = connect()
    client.fetch("alice", ECAPA)
    file = client.download("alice", ECAPA)
    assert file.data == version.files[ECAPA]
    assert file.artifact.manifest.version == 1
    assert "if-none-match" not in registry.requests[-1].headers


def test_a_clip_comes_with_what_it_is(connect: Connect, registry: FakeRegistry):
    """A clip can be fetched by the name alone, or for one version."""
    headers = {**file_headers(b"RIFF", 3), "content-type": "audio/wav"}
    registry.faults.extend(httpx.Response(200, content=b"RIFF", headers=headers) for _ in range(2))
    client = connect()
    assert client.clip("alice") == client.clip("alice", 3) == Clip(b"RIFF", "audio/wav")
    assert registry.paths() == [f"GET /v1/voices/alice/versions/{ref}/audio" for ref in ("default", 3)]


def test_a_picture_is_awaited_until_it_is_drawn(connect: Connect, registry: FakeRegistry, time: FakeTime):
    """A worker draws it when it is requested for the first time, so the first answers say that it comes."""
    pending = {"voice": "alice", "version": 3, "picture": "mel.png", "reason": "A worker was asked."}
    registry.faults.extend(httpx.Response(202, json=pending) for _ in range(2))
    headers = {**file_headers(b"PNG", 3), "content-type": "image/png"}
    registry.faults.append(httpx.Response(200, content=b"PNG", headers=headers))
    assert connect().picture("alice@3", "mel") == ClipPicture(b"PNG", "image/png")
    assert registry.paths() == 3 * ["GET /v1/voices/alice/versions/3/mel.png"]
    assert time.slept == [0.1, 0.2]
    registry.faults.append(httpx.Response(202, json=pending))
    with pytest.raises(errors.ArtifactNotReady, match=r"mel.png of alice@3 is not drawn yet. A worker was"):
        connect().picture("alice", wait=0)
    assert registry.paths()[-1] == "GET /v1/voices/alice/versions/default/waveform.svg"


def test_a_picture_that_is_not_what_was_sent_is_refused(connect: Connect, registry: FakeRegistry):
    """A damaged picture would show another clip."""
    registry.faults.append(httpx.Response(200, content=b"PNG", headers=file_headers(b"other")))
    with pytest.raises(errors.DigestMismatch, match="the picture's bytes are"):
        connect().picture("alice")
    with pytest.raises(errors.InvalidRequest, match="kind is 'spectrum'; accepted: waveform, mel"):
        connect().picture("alice", "spectrum")  # type: ignore[arg-type]


def test_decoded_samples_are_verified(connect: Connect, registry: FakeRegistry):
    """Samples come with their rate. A file of another form is refused, and so are damaged bytes."""
    samples = ReferenceAudio(np.linspace(-1, 1, 100, dtype=np.float32), 16_000)
    data = samples.to_bytes()
    answers = [
        (data, file_headers(data, 3)),
        (b"RIFF", file_headers(b"RIFF")),
        (data, file_headers(b"other")),
    ]
    registry.faults.extend(httpx.Response(200, content=body, headers=headers) for body, headers in answers)
    client = connect()
    found = client.samples("alice", 3)
    assert (found.samples.tobytes(), found.sample_rate) == (samples.samples.tobytes(), 16_000)
    with pytest.raises(errors.InvalidAudio, match="not a stored clip"):
        client.samples("alice")
    with pytest.raises(errors.DigestMismatch, match="the decoded clip's bytes are"):
        client.samples("alice")
    assert registry.paths()[0] == "GET /v1/voices/alice/versions/3/audio/samples"


@pytest.mark.parametrize(
    ("headers", "error"),
    [({}, errors.Unavailable), (file_headers(b"other"), errors.DigestMismatch)],
    ids=["none", "other"],
)
def test_a_clip_that_is_not_what_it_says_is_refused(
    connect: Connect, registry: FakeRegistry, headers: dict[str, str], error: type[Exception]
):
    """A clip that was cut short is a clip still."""
    registry.faults.append(httpx.Response(200, content=b"RIFF", headers=headers))
    with pytest.raises(error, match=r"the clip's bytes are|without a digest"):
        connect().clip("alice")


@on_one_client
@pytest.mark.parametrize("method", ["clip", "samples", "picture"])
def test_the_clip_of_another_version_is_refused(connect: Connect, registry: FakeRegistry, method: str):
    """A proxy that mixes up two answers must not turn one clip into another."""
    registry.faults.append(httpx.Response(200, content=b"RIFF", headers=file_headers(b"RIFF", 2)))
    with pytest.raises(errors.Unavailable, match=r"of alice@3, but the answer is about version '2'"):
        getattr(connect(), method)("alice@3")


def test_an_unasked_for_304_is_no_answer(connect: Connect, registry: FakeRegistry):
    """There is nothing here that has not changed."""
    registry.faults.append(httpx.Response(304))
    with pytest.raises(errors.Unavailable, match="304"):
        connect().fetch("alice", ECAPA)


def test_without_wait_an_unready_artifact_is_an_error_that_says_when(
    connect: Connect, registry: FakeRegistry
):
    """An engine decides itself whether it waits."""
    registry.add_version("alice", "processing")
    with pytest.raises(errors.ArtifactNotReady, match="processing") as caught:
        connect().fetch("alice", ECAPA)
    assert caught.value.retry_after_seconds == 2
    assert "wait" not in registry.requests[0].url.params


def test_with_wait_the_artifact_comes_as_soon_as_it_is_there(
    connect: Connect, registry: FakeRegistry, time: FakeTime
):
    """The wait takes as many long polls as it needs, each of at most a minute."""
    version = registry.add_version("alice", "processing")
    for _ in range(2):
        registry.news.append(lambda: time.sleep(60))
    registry.news.append(lambda: registry.make_ready("alice", version))
    assert connect().fetch("alice", ECAPA, wait=300).manifest.version == 1
    assert [request.url.params["wait"] for request in registry.requests] == ["60", "60", "60"]


def test_a_wait_ends_when_it_was_said_to(connect: Connect, registry: FakeRegistry, time: FakeTime):
    """Also with a registry that does not hold its answers back."""
    registry.add_version("alice", "pending")
    with pytest.raises(errors.ArtifactNotReady):
        connect().fetch("alice", ECAPA, wait=7)
    assert time.now == 1007
    assert len(registry.requests) <= 5


def test_a_failed_artifact_says_why(connect: Connect, registry: FakeRegistry):
    """The reason is the worker's, the class is the caller's."""
    version = registry.add_version("alice", "failed")
    version.errors[ECAPA] = "the clip is silent"
    with pytest.raises(errors.ArtifactFailed, match="silent"):
        connect().fetch("alice", ECAPA, wait=60)
    assert len(registry.requests) == 1


def test_a_strange_success_is_no_artifact(connect: Connect, registry: FakeRegistry):
    """204, or a 202 whose body is not ours."""
    registry.faults.extend([httpx.Response(204), httpx.Response(202, content=json.dumps({}))])
    client = connect()
    for _ in range(2):
        with pytest.raises(errors.Unavailable):
            client.fetch("alice", ECAPA)


def test_an_artifact_of_a_former_encoder_is_refused_only_if_the_current_one_is_required(
    connect: Connect, registry: FakeRegistry
):
    """The two kinds of calls share no cached artifact, though they name the same voice and profile."""
    registry.add_version("alice")
    client = connect()
    held = client.fetch("alice", ECAPA, max_age=60)
    assert registry.requests[-1].url.query == b""
    registry.faults.append(error_answer(409, "artifact_stale"))
    with pytest.raises(errors.ArtifactStale):
        client.fetch("alice", ECAPA, max_age=60, require_current=True)
    assert registry.requests[-1].url.query == b"current=true"
    asked = len(registry.requests)
    assert client.fetch("alice", ECAPA, max_age=60).digest == held.digest
    assert len(registry.requests) == asked
