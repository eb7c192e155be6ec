"""Tests of files that are missing from the bucket or damaged: what callers get, and how
the files are replaced.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import safetensors.numpy

from services.embedded.valkey import ValkeyServer
from services.shared.audio import AudioDecoder, DecodedClip, ReferenceAudio
from services.shared.bucket.store import ObjectUnavailable
from services.shared.model.speaker import SpeakerId
from services.shared.registry.fail import fail
from services.shared.registry.publish import Attempt
from services.shared.registry.repair import Decode, sound_rendition
from speaker_registry.artifact import Artifact, sha256_digest
from speaker_registry.errors import (
    ClipDamaged,
    ExtractorFailed,
    InvalidAudio,
    PayloadTooLarge,
    SpeakerRegistryError,
)
from speaker_registry.names import parse_speaker_name
from tests.integration.api.conftest import empty
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, Registry

CACHE = "/v1/audio/voices/{}/cache"


def remove(file: Path) -> None:
    file.unlink()


def zero_the_second_half(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


DAMAGES = pytest.mark.parametrize("damage", [remove, zero_the_second_half])


def artifact_file(registry: Registry, name: str) -> Path:
    """Return the path of the newest artifact's file."""
    return max(registry.folder.rglob(f"*/{name}/**/*.safetensors"))


def blob(registry: Registry, name: str, *, uploaded: bool) -> Path:
    """Return the path of the clip as it was uploaded, or as it was decoded."""
    [found] = registry.folder.rglob(f"*/{name}/*/{'clip' if uploaded else 'rendition'}")
    return found


@pytest.fixture(scope="module")
def registry(
    tmp_path_factory: pytest.TempPathFactory, valkey: ValkeyServer, decoder: AudioDecoder
) -> Iterator[Registry]:
    """Yield a registry that keeps no artifact in memory, where lost bytes would stay unnoticed."""
    with Registry(tmp_path_factory.mktemp("bucket"), empty(valkey, 1), decoder, kept_bytes=0) as running:
        yield running


def read_clip(registry: Registry, work: Attempt, decode: Decode) -> ReferenceAudio:
    """Return the clip that a worker extracts from."""
    return sound_rendition(registry.opened.blobs, work.speaker_id, work.version, decode)


@DAMAGES
def test_a_clip_that_is_lost_is_stored_again_when_its_owner_sends_it_again(
    registry: Registry, name: str, damage: Callable[[Path], None]
):
    """A clip that is lost is stored again when its owner sends it again. The upload used to be answered as a
    success while the clip stayed lost, though it had just been sent.
    """
    registry.ready(name)
    damage(blob(registry, name, uploaded=True))
    assert registry.upload(name)["version"] == 1
    served = registry.client.get(f"/v1/voices/{name}/versions/1/audio")
    assert (served.status_code, served.content) == (200, CLIP)


@DAMAGES
def test_decoded_samples_that_are_lost_are_decoded_again_when_they_are_fetched(
    registry: Registry, name: str, damage: Callable[[Path], None]
):
    """The samples follow from the clip, so a caller gets them all the same."""
    registry.upload(name)
    path = f"/v1/voices/{name}/versions/1/audio/samples"
    before = registry.client.get(path).content
    damage(blob(registry, name, uploaded=False))
    assert registry.client.get(path).content == before
    assert blob(registry, name, uploaded=False).read_bytes() == before
    damage(blob(registry, name, uploaded=False))
    damage(blob(registry, name, uploaded=True))
    with httpx.Client(base_url=registry.url) as client:
        assert client.get(path).json()["error"]["code"] == "clip_damaged"


@pytest.mark.parametrize("path", ["audio", "audio/samples", f"artifacts/{PROFILE}/file"])
def test_bytes_that_the_store_does_not_give_out_concern_their_voice_alone(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch, path: str
):
    """Clients that take all voices must neither end at this one nor wait for it. The reason may be a bad disk
    block, or an object that was archived or belongs to another account.
    """
    registry.ready(name)
    get = registry.opened.store.get

    def refusing(key: str) -> bytes:
        if f"/d/{name}/" in key:
            raise ObjectUnavailable("archived")
        return get(key)

    monkeypatch.setattr(registry.opened.store, "get", refusing)
    with httpx.Client(base_url=registry.url) as client:
        answer = client.get(f"/v1/voices/{name}/versions/1/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "voice_unreadable")
    assert "retry-after" not in answer.headers


@DAMAGES
def test_an_artifact_whose_bytes_are_lost_is_extracted_again(
    registry: Registry, name: str, damage: Callable[[Path], None]
):
    """An artifact whose bytes are lost is extracted again by itself when a caller requests it. It gets
    another build, because the bytes of a build never change.
    """
    registry.ready(name)
    before = registry.file(name)
    damage(artifact_file(registry, name))
    asked = registry.file(name)
    assert (asked.status_code, asked.json()["state"]) == (202, "pending")
    assert registry.client.get(f"/v1/voices/{name}").json()["state"] == "pending"
    registry.worker.finish_all(name)
    after = registry.file(name)
    assert after.status_code == 200
    assert (
        sha256_digest(after.content) == after.headers["ETag"].strip('"') != before.headers["ETag"].strip('"')
    )
    assert Artifact.parse(after.content).manifest.version == 1


def test_whoever_waits_is_given_the_artifact_that_replaces_it(registry: Registry, name: str):
    registry.ready(name)
    remove(artifact_file(registry, name))
    with registry.worker.working():
        path = f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}/file"
        answer = registry.client.get(path, params={"wait": 20})
    assert answer.status_code == 200


@DAMAGES
def test_a_cache_call_does_not_call_an_artifact_valid_whose_bytes_are_lost(
    registry: Registry, name: str, damage: Callable[[Path], None]
):
    """A cache call does not call an artifact valid whose bytes are lost. It did so, while fetching the file
    was a 500.
    """
    registry.ready(name)
    damage(artifact_file(registry, name))
    asked = registry.client.post(CACHE.format(name), params={"wait": 0})
    assert (asked.status_code, asked.json()["cache_status"]) == (202, "pending")
    assert "message" not in asked.json()
    registry.worker.finish_all(name)
    again = registry.client.post(CACHE.format(name), params={"wait": 0}).json()
    assert (again["cache_status"], again["message"]) == ("ready", "Cache already exists and is valid")
    assert registry.file(name).status_code == 200


def test_a_lost_artifact_is_never_served_when_redis_is_lost(registry: Registry, name: str):
    """Redis forgets that the artifact is made again. The next request finds that its bytes are lost, and asks
    for it once more.
    """
    registry.ready(name)
    remove(artifact_file(registry, name))
    assert registry.file(name).status_code == 202
    registry.redis.flushall()
    registry.rebuild()
    assert registry.file(name).status_code == 202
    assert registry.client.post(CACHE.format(name), params={"wait": 0}).json()["cache_status"] == "pending"
    registry.worker.finish_all(name)
    assert registry.file(name).status_code == 200


@pytest.mark.parametrize("document", ["older", "lost"])
def test_a_version_that_the_bucket_has_lost_with_its_bytes_is_not_told_as_deleted(
    registry: Registry, name: str, document: str
):
    """An older state of the bucket may be restored beside a Redis that still has the version. Engines forget
    a voice that is not found, so they are told to come back. Only a deletion is told as one.
    """
    registry.ready(name)
    [stored] = registry.folder.rglob(f"s/{name}.json")
    older = stored.read_bytes()
    registry.ready(name, clip=OTHER_CLIP)
    newest = stored.read_bytes()
    remove(artifact_file(registry, name))
    if document == "older":
        stored.write_bytes(older)
    else:
        stored.unlink()
    answer = registry.file(name)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "retry-after" in answer.headers
    stored.write_bytes(newest)
    assert registry.file(name).status_code == 202
    registry.delete(name)
    assert registry.file(name).status_code == 404


def test_an_artifact_may_be_brought_in_place_of_a_lost_one(registry: Registry, name: str):
    """An artifact may be uploaded to replace a lost one, also one that was uploaded before. It must get a new
    build, too, and what is lost is not named any more.
    """
    registry.ready(name)
    lost = registry.file(name)
    path = f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}"
    for _ in range(2):
        remove(artifact_file(registry, name))
        assert registry.client.put(path, content=lost.content).status_code == 201
        assert (
            Artifact.parse(registry.file(name).content).content_digest
            == Artifact.parse(lost.content).content_digest
        )
    [version] = registry.opened.speakers.read(
        SpeakerId.of("default", parse_speaker_name(name))
    ).document.versions
    assert [one.build for one in version.artifacts[PROFILE]] == [3]


def test_one_wrong_answer_of_the_store_makes_nothing_void(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """One wrong answer of the store makes nothing void. The store is asked twice before
    bytes are considered lost.
    """
    registry.ready(name)
    get, lies = registry.opened.store.get, iter([True])

    def get_with_one_lie(key: str) -> bytes:
        if key.endswith(".safetensors") and next(lies, False):
            raise FileNotFoundError
        return get(key)

    monkeypatch.setattr(registry.opened.store, "get", get_with_one_lie)
    assert registry.file(name).status_code == 200


def test_an_embedding_that_its_owner_brought_cannot_be_replaced(registry: Registry, name: str):
    """An embedding that its owner uploaded cannot be replaced, because there is nothing to extract it from.
    The answer is an error, and a restored file heals it.
    """
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    file = artifact_file(registry, name)
    data = file.read_bytes()
    remove(file)
    with httpx.Client(base_url=registry.url) as client:  # 500 is in no document
        path = f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}/file"
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "missing" in answer.json()["error"]["message"]
        file.write_bytes(data)
        assert client.get(path).status_code == 200


def test_a_lost_embedding_may_be_brought_again(registry: Registry, name: str):
    """Only the same embedding is accepted, and it stays what the version was made from."""
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    lost = registry.file(name).content
    remove(artifact_file(registry, name))
    path = f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}"
    other = safetensors.numpy.save({"speaker_embedding": np.full(1024, 0.5, np.float32)})
    assert registry.client.put(path, content=other).status_code == 409
    assert registry.client.put(path, content=lost).status_code == 201
    assert registry.file(name).content == lost


# -- the clip that a worker reads


@DAMAGES
def test_a_decoded_clip_that_is_lost_is_decoded_again(
    registry: Registry, name: str, decoder: AudioDecoder, damage: Callable[[Path], None]
):
    """A decoded clip that is lost is decoded again. The result of half a clip would be
    served as the voice.
    """
    registry.upload(name)
    [work] = registry.worker.take_all(name)
    whole, file = read_clip(registry, work, decoder.decode), blob(registry, name, uploaded=False)
    stored = file.read_bytes()
    damage(file)
    again = read_clip(registry, work, decoder.decode)
    assert np.array_equal(again.samples, whole.samples)
    assert file.read_bytes() == stored


def test_nothing_is_extracted_from_a_clip_that_is_lost_altogether(
    registry: Registry, name: str, decoder: AudioDecoder
):
    """An extraction from a clip that is lost altogether fails and says what to do. The artifact from before
    is still served.
    """
    registry.ready(name)
    before = registry.file(name)
    zero_the_second_half(blob(registry, name, uploaded=False))
    remove(blob(registry, name, uploaded=True))
    registry.client.post(CACHE.format(name), params={"wait": 0, "force": True})
    [work] = registry.worker.take_all(name)
    with pytest.raises(ClipDamaged, match="damaged, and the uploaded one is missing") as caught:
        read_clip(registry, work, decoder.decode)
    for _ in range(work.max_attempts):
        opened = registry.opened
        fail(opened.speakers, opened.jobs, opened.profiles, work, caught.value)
        [work] = registry.worker.take_all(name) or [work]
    job = registry.client.get(f"/v1/jobs/{work.job.job_id}").json()
    assert (job["state"], job["error"]["code"]) == ("failed", "clip_damaged")
    assert registry.file(name).content == before.content


def test_what_failed_for_want_of_a_clip_is_extracted_when_its_owner_sends_it_again(
    registry: Registry, name: str, decoder: AudioDecoder
):
    """The error of a lost clip asks its owner to upload it again. The voice stayed failed nevertheless."""
    registry.upload(name)
    [work] = registry.worker.take_all(name)
    remove(blob(registry, name, uploaded=False))
    remove(blob(registry, name, uploaded=True))
    for _ in range(work.max_attempts):
        with pytest.raises(ClipDamaged) as caught:
            read_clip(registry, work, decoder.decode)
        opened = registry.opened
        fail(opened.speakers, opened.jobs, opened.profiles, work, caught.value)
        [work] = registry.worker.take_all(name) or [work]
    assert registry.client.get(f"/v1/voices/{name}").json()["state"] == "failed"
    assert registry.upload(name)["version"] == 1
    registry.worker.finish_all(name)
    assert registry.client.get(f"/v1/voices/{name}").json()["state"] == "ready"


@pytest.mark.parametrize(
    "error",
    [InvalidAudio("The WAV could not be decoded within 10s."), PayloadTooLarge("The file has 9 bytes.")],
)
def test_a_clip_that_cannot_be_decoded_again_is_not_called_lost(
    registry: Registry, name: str, error: SpeakerRegistryError
):
    """The decoder may have a limit or a fault, and to upload the clip again would not help."""
    registry.upload(name)
    [work] = registry.worker.take_all(name)
    remove(blob(registry, name, uploaded=False))

    def failing(_: bytes) -> DecodedClip:
        raise error

    with pytest.raises(ExtractorFailed) as caught:
        read_clip(registry, work, failing)
    assert caught.value.message == (
        "The decoded clip of version 1 is missing, and the uploaded one could not be decoded again. "
        f"{error.message}"
    )


def test_a_clip_that_decodes_to_other_samples_than_before_is_not_used(
    registry: Registry, name: str, decoder: AudioDecoder
):
    """A clip that decodes to other samples than before is not used, as can happen after another release of a
    library. The same version would then have two clips.
    """
    registry.upload(name)
    [work] = registry.worker.take_all(name)
    remove(blob(registry, name, uploaded=False))
    with pytest.raises(ClipDamaged, match="no longer decodes to the same samples"):
        read_clip(registry, work, lambda _: decoder.decode(OTHER_CLIP))
