"""Files of the bucket that are missing or damaged: what callers are told, and how they are replaced."""

from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from services.shared.audio import AudioDecoder
from services.shared.registry.publication import Publisher
from speaker_registry.artifact import Artifact, sha256_digest
from speaker_registry.errors import ClipDamaged
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, Registry

CACHE = "/v1/audio/voices/{}/cache"


def remove(file: Path) -> None:
    file.unlink()


def zero_the_second_half(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


DAMAGES = pytest.mark.parametrize("damage", [remove, zero_the_second_half])


def artifact_file(registry: Registry, name: str) -> Path:
    """Where the newest artifact's bytes lie."""
    return max(registry.folder.rglob(f"*/{name}/**/*.safetensors"))


def blob(registry: Registry, name: str, *, uploaded: bool) -> Path:
    """The clip as it was uploaded, or as it was decoded."""
    sha256 = sha256_digest(CLIP).removeprefix("sha256:")
    files = list(registry.folder.rglob(f"*/{name}/**/blob/*"))
    [found] = [file for file in files if (file.name == sha256) == uploaded]
    return found


@pytest.fixture
def publisher(registry: Registry, decoder: AudioDecoder) -> Publisher:
    """A worker's, which can decode a clip again."""
    return Publisher(registry.parts, registry.registrar, decoder.decode)


@DAMAGES
def test_a_clip_that_is_lost_is_stored_again_when_its_owner_sends_it_again(
    registry: Registry, name: str, damage: Callable[[Path], None]
):
    """The upload was answered as a success, and its clip stayed lost, though it had just been sent."""
    registry.ready(name)
    damage(blob(registry, name, uploaded=True))
    assert registry.upload(name)["version"] == 1
    served = registry.client.get(f"/v1/voices/{name}/versions/1/audio")
    assert (served.status_code, served.content) == (200, CLIP)


@DAMAGES
def test_an_artifact_whose_bytes_are_lost_is_extracted_again(
    registry: Registry, name: str, damage: Callable[[Path], None]
):
    """By itself, because somebody asked for it; and under another build, because bytes never change."""
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
    """It said so, while fetching the file was a 500."""
    registry.ready(name)
    damage(artifact_file(registry, name))
    asked = registry.client.post(CACHE.format(name), params={"wait": 0})
    assert (asked.status_code, asked.json()["cache_status"]) == (202, "pending")
    assert "message" not in asked.json()
    registry.worker.finish_all(name)
    again = registry.client.post(CACHE.format(name), params={"wait": 0}).json()
    assert (again["cache_status"], again["message"]) == ("ready", "Cache already exists and is valid")
    assert registry.file(name).status_code == 200


def test_a_lost_artifact_stays_void_when_redis_is_lost(registry: Registry, name: str):
    """The bucket says so, so no rebuild brings the damaged bytes back."""
    registry.ready(name)
    remove(artifact_file(registry, name))
    assert registry.file(name).status_code == 202
    registry.redis.flushall()
    registry.housekeeper.rebuild()
    assert registry.file(name).status_code == 202
    assert registry.client.post(CACHE.format(name), params={"wait": 0}).json()["cache_status"] == "pending"
    registry.worker.finish_all(name)
    assert registry.file(name).status_code == 200


def test_an_artifact_may_be_brought_in_place_of_a_lost_one(registry: Registry, name: str):
    """Its build must be a new one, too."""
    registry.ready(name)
    lost = registry.file(name)
    remove(artifact_file(registry, name))
    registry.file(name)
    path = f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}"
    assert registry.client.put(path, content=lost.content).status_code == 201
    assert (
        Artifact.parse(registry.file(name).content).content_digest
        == Artifact.parse(lost.content).content_digest
    )


def test_one_wrong_answer_of_the_store_makes_nothing_void(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """It is asked twice before bytes are taken for lost."""
    registry.ready(name)
    get, lies = registry.parts.store.get, iter([True])

    def get_with_one_lie(key: str) -> bytes:
        if key.endswith(".safetensors") and next(lies, False):
            raise FileNotFoundError
        return get(key)

    monkeypatch.setattr(registry.parts.store, "get", get_with_one_lie)
    assert registry.file(name).status_code == 200


def test_an_embedding_that_its_owner_brought_cannot_be_replaced(registry: Registry, name: str):
    """There is nothing to extract it from: that is an error, and a restored file heals it."""
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


# -- the clip that a worker reads


@DAMAGES
def test_a_decoded_clip_that_is_lost_is_decoded_again(
    registry: Registry, name: str, publisher: Publisher, damage: Callable[[Path], None]
):
    """What is extracted from half of a clip would be served as the voice."""
    registry.upload(name)
    [work] = registry.worker.take_all(name)
    whole, file = publisher.read_clip(work), blob(registry, name, uploaded=False)
    stored = file.read_bytes()
    damage(file)
    again = publisher.read_clip(work)
    assert np.array_equal(again.samples, whole.samples)
    assert file.read_bytes() == stored


def test_nothing_is_extracted_from_a_clip_that_is_lost_altogether(
    registry: Registry, name: str, publisher: Publisher
):
    """The extraction fails, and says what to do; what was there before serves on."""
    registry.ready(name)
    before = registry.file(name)
    zero_the_second_half(blob(registry, name, uploaded=False))
    remove(blob(registry, name, uploaded=True))
    registry.client.post(CACHE.format(name), params={"wait": 0, "force": True})
    [work] = registry.worker.take_all(name)
    with pytest.raises(ClipDamaged, match="damaged, and so is the uploaded one") as caught:
        publisher.read_clip(work)
    for _ in range(work.max_attempts):
        publisher.fail(work, caught.value)
        [work] = registry.worker.take_all(name) or [work]
    job = registry.client.get(f"/v1/jobs/{work.job_id}").json()
    assert (job["state"], job["error"]["code"]) == ("failed", "clip_damaged")
    assert registry.file(name).content == before.content


def test_a_clip_that_decodes_to_other_samples_than_before_is_not_used(
    registry: Registry, name: str, decoder: AudioDecoder
):
    """As by another release of a library: the same version would then have two clips."""
    registry.upload(name)
    [work] = registry.worker.take_all(name)
    remove(blob(registry, name, uploaded=False))
    publisher = Publisher(registry.parts, registry.registrar, lambda _: decoder.decode(OTHER_CLIP))
    with pytest.raises(ClipDamaged, match="no longer decodes to the same samples"):
        publisher.read_clip(work)


def test_a_voice_that_was_deleted_meanwhile_is_not_taken_for_damaged(start: Start, decoder: AudioDecoder):
    """Its files are gone because it is."""
    registry = start()
    registry.upload("gone")
    [work] = registry.worker.take_all("gone")
    registry.client.delete("/v1/voices/gone")
    remove(blob(registry, "gone", uploaded=False))
    with pytest.raises(Exception, match="Voice 'gone' not found"):
        Publisher(registry.parts, registry.registrar, decoder.decode).read_clip(work)
