"""Tests of uploading artifacts that were made elsewhere: what is accepted, what is refused, and what engines
get then.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import safetensors.numpy

from services.shared.model.fingerprint import Fingerprint
from speaker_registry import cli
from speaker_registry.artifact import Artifact, Manifest, encode
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, WIDER, Registry
from tests.integration.api.worker import FINGERPRINT

VOXTRAL = "voxtral"
OTHER = "sha256:" + "9" * 64


def tensors(seconds: float = 2.0, width: int = 1024, fill: float = 0.5) -> dict[str, np.ndarray]:
    codes = np.full((round(seconds * 12.5), 16), 7, np.int32)
    return {"speaker_embedding": np.full(width, fill, np.float32), "ref_code": codes}


def file(content: dict[str, np.ndarray] | None = None, **facts: Any) -> bytes:
    """Return an artifact file as another registry would hand it out."""
    manifest = Manifest(
        **{
            "profile": PROFILE,
            "model_type": "qwen3_tts",
            "fingerprint": FINGERPRINT,
            "voice": "somebody",
            "version": 7,
            "version_id": "elsewhere",
            "created_at": 1,
            "source": "audio",
            "extractor": {"made": "elsewhere"},
            **facts,
        }
    )
    return encode(tensors() if content is None else content, manifest)


def put(
    registry: Registry, name: str, data: bytes, ref: int | str = 1, profile: str = PROFILE, **headers: str
) -> httpx.Response:
    path = f"/v1/voices/{quote(name, safe='')}/versions/{ref}/artifacts/{profile}"
    return registry.client.put(path, content=data, headers=headers)


def refused(response: httpx.Response, status: int, code: str, says: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), error
    assert says in error["message"]


def seconds_of(registry: Registry, name: str) -> float:
    return float(registry.client.get(f"/v1/voices/{name}/versions/1").json()["audio"]["seconds"])


@pytest.fixture
def brought(registry: Registry, name: str) -> bytes:
    """Return an artifact for the voice `name`, which has a clip and nothing else yet."""
    registry.upload(name)
    return file(tensors(seconds_of(registry, name)))


def test_a_ready_artifact_is_served_as_this_versions(registry: Registry, name: str, brought: bytes):
    """An uploaded artifact is served as this version's: its tensors bit by bit, under a manifest that names
    the voice and version here and the extractor that our worker announced.
    """
    response = put(registry, name, brought)
    assert response.status_code == 201, response.text
    assert response.json()["state"] == "ready"
    served = Artifact.parse(registry.file(name).content)
    assert (
        served.content_digest == Artifact.parse(brought).content_digest == response.json()["content_digest"]
    )
    assert (served.manifest.voice, served.manifest.version) == (name, 1)
    assert served.manifest.extractor == {"model": "made up"}, "what our worker announced"
    assert served.digest == response.json()["digest"]


def test_the_same_again_changes_nothing(registry: Registry, name: str, brought: bytes):
    first, again = put(registry, name, brought), put(registry, name, brought)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["digest"] == again.json()["digest"]


@pytest.mark.parametrize("equal", [True, False])
def test_of_two_uploads_at_once_equal_ones_succeed(
    registry: Registry, name: str, brought: bytes, monkeypatch: pytest.MonkeyPatch, *, equal: bool
):
    """Of two uploads at the same moment, equal ones both succeed, as a client that sends its request again
    expects. A different one must be told that it is not served.
    """
    store, blobs = registry.opened.blobs.store_artifact, registry.opened.blobs
    another = brought if equal else file(tensors(seconds_of(registry, name), fill=0.25))

    def store_after_another(*arguments: Any) -> None:
        monkeypatch.undo()
        assert put(registry, name, brought).status_code == 201
        store(*arguments)

    monkeypatch.setattr(blobs, "store_artifact", store_after_another)
    response = put(registry, name, another)
    if equal:
        assert (response.status_code, response.json()["state"]) == (200, "ready")
    else:
        refused(response, 409, "conflict", "Send this one again")
    assert Artifact.parse(registry.file(name).content).tensors["speaker_embedding"][0] == 0.5


def test_the_answer_describes_what_was_stored_though_the_alias_is_moved(
    registry: Registry, name: str, brought: bytes, monkeypatch: pytest.MonkeyPatch
):
    """The alias of the request may stand for another version when the file has been stored."""
    registry.worker.finish_all(name)

    def move() -> None:
        registry.upload(name, clip=OTHER_CLIP)
        registry.worker.finish_all(name)

    answer = put_while(registry, monkeypatch, move, name, brought)
    assert registry.client.get(f"/v1/voices/{name}").json()["version"] == 2
    assert (answer["version"], answer["digest"]) == (1, registry.file(name, 1).headers["etag"].strip('"'))


def test_the_answer_describes_what_was_stored_though_an_encoder_is_promoted(
    registry: Registry, name: str, brought: bytes, monkeypatch: pytest.MonkeyPatch
):
    """The version may be served with the artifact of another encoder when the file has been stored."""
    registry.worker.announce(OTHER)
    other = put(registry, name, file(tensors(seconds_of(registry, name)), fingerprint=OTHER))
    registry.worker.announce()
    answer = put_while(registry, monkeypatch, lambda: registry.worker.announce(OTHER), name, brought)
    assert registry.file(name).headers["etag"].strip('"') == other.json()["digest"]
    assert answer["fingerprint"] == FINGERPRINT
    registry.worker.announce()
    assert answer["digest"] == registry.file(name).headers["etag"].strip('"')


def put_while(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[], None],
    name: str,
    data: bytes,
) -> dict[str, Any]:
    """Upload an artifact of the default version, which is stored when `change` has been made."""
    blobs = registry.opened.blobs
    store = blobs.store_artifact

    def store_and_change(*arguments: Any) -> None:
        monkeypatch.undo()
        store(*arguments)
        change()

    monkeypatch.setattr(blobs, "store_artifact", store_and_change)
    response = put(registry, name, data, "default")
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


def test_it_takes_the_place_of_what_a_worker_made(registry: Registry, name: str, brought: bytes):
    """An uploaded artifact replaces the one that a worker made. A job that was already running ends
    successfully without undoing the upload.
    """
    registry.worker.finish_all(name)
    made = registry.file(name).headers["etag"]
    assert put(registry, name, brought).status_code == 201
    assert registry.file(name).headers["etag"] != made
    another = file(tensors(seconds_of(registry, name), fill=0.25))
    assert put(registry, name, another).status_code == 201
    assert Artifact.parse(registry.file(name).content).tensors["speaker_embedding"][0] == 0.25


def test_a_job_on_its_way_ends_without_undoing_it(registry: Registry, name: str, brought: bytes):
    put(registry, name, brought)
    registry.worker.finish_all(name)
    assert Artifact.parse(registry.file(name).content).tensors["speaker_embedding"][0] == 0.5
    (job,) = registry.client.get("/v1/jobs", params={"voice": name}).json()["data"]
    assert job["state"] == "succeeded"


def test_default_moves_to_a_version_that_is_ready_by_it(registry: Registry, name: str):
    registry.ready(name)
    registry.upload(name, clip=OTHER_CLIP)
    seconds = registry.client.get(f"/v1/voices/{name}/versions/2").json()["audio"]["seconds"]
    put(registry, name, file(tensors(seconds)), ref=2)
    assert registry.client.get(f"/v1/voices/{name}").json()["version"] == 2


def test_it_survives_the_loss_of_redis(start: Start):
    registry = start(kept_bytes=0)
    registry.upload("alice")
    put(registry, "alice", file(tensors(seconds_of(registry, "alice"))))
    before = registry.file("alice").content
    registry.redis.flushdb()
    assert registry.file("alice").content == before


def test_an_artifact_that_something_else_made_is_refused(registry: Registry, name: str, brought: bytes):
    """An artifact of another fingerprint is refused. It would be served beside those of the current encoder,
    and the difference would be hard to hear.
    """
    data = file(tensors(seconds_of(registry, name)), fingerprint=OTHER)
    refused(put(registry, name, data), 409, "fingerprint_mismatch", f"made with {FINGERPRINT} now")
    assert registry.file(name).status_code == 202


@pytest.mark.parametrize("manifest", [True, False])
def test_what_an_untrained_encoder_made_is_never_passed_off_as_trained(start: Start, manifest: bool):
    """An artifact of an untrained encoder is always marked as untrained, whether its manifest says otherwise
    or it has none.
    """
    registry = start()
    registry.worker.announce(OTHER, untrained=True)
    registry.upload("alice")
    content = tensors(seconds_of(registry, "alice"))
    data = file(content, fingerprint=OTHER) if manifest else safetensors.numpy.save(content)
    response = put(registry, "alice", data, **{"X-Artifact-Fingerprint": OTHER})
    assert response.status_code == 201, response.text
    assert response.json()["untrained"] is True
    assert Artifact.parse(registry.file("alice").content).manifest.untrained


def test_where_no_worker_ever_was_the_file_must_say_what_made_it(start: Start):
    """A file must hold the inputs of its fingerprint where no worker ever announced its encoder. In a
    registry that only hands out artifacts, their hash is the one proof that they belong to the fingerprint.
    """
    registry = start(announced=False)
    registry.upload("alice")
    content = tensors(seconds_of(registry, "alice"))
    made = Fingerprint.of(scale=1e-05, weights={"untrained": True, "files": None})
    alone = put(registry, "alice", safetensors.numpy.save(content), **{"X-Artifact-Fingerprint": made.digest})
    refused(alone, 422, "artifact_schema", f"No worker has announced the inputs of {made.digest}")
    lies = file(content, fingerprint=made.digest, extractor={"weights": {"untrained": False}})
    refused(
        put(registry, "alice", lies), 422, "artifact_schema", "a manifest with the inputs of its fingerprint"
    )
    for silent in ({}, {"weights": "secret"}):
        data = file(content, fingerprint=Fingerprint(silent).digest, extractor=silent)
        refused(put(registry, "alice", data), 422, "artifact_schema", "extractor.weights.untrained")
    good = file(content, fingerprint=made.digest, extractor=made.inputs, untrained=False)
    assert put(registry, "alice", good).status_code == 201
    served = Artifact.parse(registry.file("alice").content).manifest
    assert (served.extractor, served.untrained) == (made.inputs, True)


def test_an_artifact_of_another_clip_is_refused(registry: Registry, name: str, brought: bytes):
    """An artifact of another clip is refused. Nothing else would reveal a clip of the same length, and the
    name would speak with another person's voice.
    """
    content, clip = Artifact.parse(brought).tensors, hashlib.sha256(CLIP).hexdigest()
    other = file(dict(content), audio_sha256="e" * 64)
    says = f"made from the clip {'e' * 64}; version 1 of voice '{name}' has the clip {clip}"
    refused(put(registry, name, other), 422, "artifact_schema", says)
    registry.upload(f"{name}-ready", clip=None, speaker_embedding=EMBEDDING)
    refused(put(registry, f"{name}-ready", other), 422, "artifact_schema", "has no clip")
    assert put(registry, name, file(dict(content), audio_sha256=clip)).status_code == 201


def test_an_artifact_that_needs_a_transcript_is_refused_where_there_is_none(registry: Registry, name: str):
    """An artifact that needs a transcript is refused for a version without one, as extraction refuses it,
    because an engine could not use it.
    """
    headers = {"X-Artifact-Fingerprint": FINGERPRINT}
    for voice, said in ((name, {}), (f"{name}-said", {"ref_text": "What is said."})):
        registry.upload(voice, **said)
        codes = np.zeros((8, round(seconds_of(registry, voice) * 25)), np.int64)
        data = safetensors.numpy.save({"ref_audio_tokens": codes})
        response = put(registry, voice, data, profile="higgs-audio-v2", **headers)
        if said:
            assert response.status_code == 201, response.text
        else:
            says = "Profile 'higgs-audio-v2' needs a transcript; version 1 has no ref_text."
            refused(response, 400, "cache_unsupported", says)


def test_an_artifact_that_leaves_silence_out_goes_from_one_voice_to_another(registry: Registry, name: str):
    """An artifact without the clip's silence can be copied from one voice to another. OmniVoice's own package
    cuts silence out, so the number of frames must match the audio that was used, whose length the manifest
    states.
    """
    there, seconds = f"{name}-there", 0.8
    for voice in (name, there):
        registry.upload(voice)
    registry.client.post(f"/v1/audio/voices/{name}/cache", params={"profile": "omnivoice", "wait": 0})
    (work,) = (work for work in registry.worker.take_all(name) if work.provenance.profile.name == "omnivoice")
    codes = {"ref_audio_tokens": np.full((8, 20), 7, np.int64)}
    assert registry.worker.publish(work, codes, seconds)
    made = registry.file(name, profile="omnivoice").content
    assert Artifact.parse(made).manifest.used_seconds == seconds
    assert put(registry, there, made, profile="omnivoice").status_code == 201
    served = Artifact.parse(registry.file(there, profile="omnivoice").content)
    assert served.manifest.used_seconds == seconds
    manifest = Artifact.parse(made).manifest
    for used, says in (
        (None, "has 20 frames"),
        (0.4, "has 20 frames"),
        (9.0, "9 s of audio are said to be used"),
    ):
        changed = {"ref_audio_tokens": np.full((8, 20), 8, np.int64)}
        data = encode(changed, manifest.model_copy(update={"used_seconds": used}))
        refused(put(registry, there, data, profile="omnivoice"), 422, "artifact_schema", says)


@pytest.mark.parametrize(
    "written", ["5e-324", "1e-7", "0", "-1", "1e400", "-1e400", "NaN", "Infinity", '"long"', "[0.8]", "{}"]
)
def test_a_length_of_used_audio_that_is_none_is_refused(
    registry: Registry, name: str, brought: bytes, written: str
):
    """A length of used audio that is not a positive number is refused, as a file written by hand may contain
    it. Lengths are rounded, so the smallest one becomes zero.
    """
    plain = Artifact.parse(brought)
    manifest = json.dumps({**plain.manifest.model_dump(mode="json"), "used_seconds": "here"})
    metadata = {"manifest": manifest.replace('"here"', written)}
    data = safetensors.numpy.save(dict(plain.tensors), metadata=metadata)
    refused(put(registry, name, data), 422, "artifact_schema", "used")
    assert registry.file(name).status_code != 200


def test_a_file_without_a_manifest_needs_a_fingerprint_beside_it(
    registry: Registry, name: str, brought: bytes
):
    """A file without a manifest needs a fingerprint in a header. An engine's own script writes such files."""
    plain = safetensors.numpy.save(dict(Artifact.parse(brought).tensors))
    refused(put(registry, name, plain), 422, "artifact_schema", "does not name its fingerprint")
    header = {"X-Artifact-Fingerprint": FINGERPRINT}
    assert put(registry, name, plain, **header).status_code == 201


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"speaker_embedding": np.zeros(512, np.float32)}, "shape [512], but the profile requires [1024]"),
        ({"speaker_embedding": np.zeros(1024, np.float64)}, "is F64, but the profile requires F32"),
        ({"speaker_embedding": np.full(1024, np.nan, np.float32)}, "values that are not finite"),
        ({"ref_code": lambda codes: np.full_like(codes, 2048)}, "values from 2048 to 2048"),
        ({"ref_code": lambda codes: codes.T}, "has shape [16, "),
        ({"ref_code": np.zeros((999, 16), np.int32)}, "has 999 frames"),
        ({"extra": np.zeros(1, np.float32)}, "unexpected tensors ['extra']"),
    ],
)
def test_what_is_not_as_the_profile_says_is_refused(
    registry: Registry, name: str, brought: bytes, change: dict[str, Any], says: str
):
    """An artifact whose tensors do not match the profile is refused, and nothing is stored."""
    before = registry.stored()
    content = dict(Artifact.parse(brought).tensors)
    for tensor, wrong in change.items():
        content[tensor] = wrong(content[tensor]) if callable(wrong) else wrong
    refused(put(registry, name, file(content)), 422, "artifact_schema", says)
    assert registry.stored() == before


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not a safetensors file"),
        (b"x" * 100, "header declares"),
        (b"PK\x03\x04" + bytes(200), "header declares"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(
    registry: Registry, name: str, brought: bytes, data: bytes, says: str
):
    refused(put(registry, name, data), 422, "artifact_schema", says)


def test_an_artifact_for_another_profile_is_refused(registry: Registry, name: str, brought: bytes):
    data = file(tensors(width=2048), profile=WIDER)
    refused(put(registry, name, data), 422, "artifact_schema", f"is for profile '{WIDER}'")


def test_unknown_voices_versions_and_profiles_are_not_found(registry: Registry, name: str, brought: bytes):
    refused(put(registry, "nobody", brought), 404, "voice_not_found", "nobody")
    refused(put(registry, name, brought, ref=9), 404, "version_not_found", "has no version 9")
    refused(put(registry, name, brought, profile="what"), 404, "profile_unknown", "'what'")


def test_a_file_that_is_too_large_is_refused(registry: Registry, name: str, brought: bytes):
    response = put(registry, name, bytes(11 * 1024**2))
    refused(response, 413, "payload_too_large", "The body has 11534336 bytes; accepted here: 10747904.")
    assert response.json()["error"]["param"] is None, "there is no form"


@pytest.mark.parametrize("ref_text", [None, "What is said."])
def test_a_tensor_that_needs_a_transcript_is_taken_where_there_is_one(
    registry: Registry, name: str, ref_text: str | None
):
    """A tensor that needs a transcript is accepted for a version that has one. An engine that found VoxCPM2's
    `audio_feat` would want to continue a transcript.
    """
    registry.upload(name, **({"ref_text": ref_text} if ref_text else {}))
    patches = np.ones((round(seconds_of(registry, name) * 6.25), 4, 64), np.float32)
    data = safetensors.numpy.save({"ref_audio_feat": patches, "audio_feat": patches})
    answers = [
        put(registry, name, data, profile="voxcpm2", **{"X-Artifact-Fingerprint": FINGERPRINT})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [201, 200], answers[0].text
    served = Artifact.parse(registry.file(name, profile="voxcpm2").content)
    assert served.tensors.keys() == ({"ref_audio_feat", "audio_feat"} if ref_text else {"ref_audio_feat"})


def test_a_voice_whose_encoder_is_not_published_is_brought_ready_made(registry: Registry, name: str):
    """A voice of a model whose encoder is not published, such as Voxtral, can be uploaded ready-made, also
    beside an embedding. Extraction says why it cannot make the artifact.
    """
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    response = registry.client.post(f"/v1/audio/voices/{name}/cache", params={"profile": VOXTRAL})
    assert response.status_code == 400
    other = f"{name}-clip"
    registry.upload(other)
    response = registry.client.post(f"/v1/audio/voices/{other}/cache", params={"profile": VOXTRAL})
    assert response.json()["error"]["reason"] == "cache_unsupported"
    assert "not published Voxtral's encoder" in response.json()["error"]["message"]
    voice = {"voice_embedding": np.ones((147, 3072), np.float32)}
    for one in (name, other):
        response = put(registry, one, safetensors.numpy.save(voice), profile=VOXTRAL)
        assert response.status_code == 201, response.text
        served = Artifact.parse(registry.file(one, profile=VOXTRAL).content)
        assert served.tensors["voice_embedding"].shape == (147, 3072)
    infinite = {"voice_embedding": np.full((2, 3072), np.inf, np.float32)}
    refused(
        put(registry, name, safetensors.numpy.save(infinite), profile=VOXTRAL),
        422,
        "artifact_schema",
        "finite",
    )


def test_the_artifact_of_an_embedding_is_the_embedding_itself(registry: Registry, name: str):
    """A version never changes. An export would otherwise hold another embedding as the person's."""
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    own = registry.file(name).content
    given = Artifact.parse(own).tensors["speaker_embedding"]
    for same in (own, file({"speaker_embedding": given})):
        assert put(registry, name, same).status_code == 200
    other = file({"speaker_embedding": np.full(1024, 0.5, np.float32)})
    refused(put(registry, name, other), 409, "conflict", "Register another embedding instead.")
    assert registry.file(name).content == own
    entries = registry.client.get(f"/v1/voices/{name}/history").json()["data"]
    assert [entry["did"] for entry in entries] == ["register"]


def test_an_artifact_that_no_encoder_made_is_refused(registry: Registry, name: str, brought: bytes):
    """The embedding of one voice is no artifact of another voice's clip."""
    registry.upload(f"{name}-ready", clip=None, speaker_embedding=EMBEDDING)
    given = registry.file(f"{name}-ready").content
    says = "made from an uploaded embedding. Accepted"
    refused(put(registry, name, given), 409, "fingerprint_mismatch", says)


def test_what_made_one_brought_artifact_is_not_said_of_another(registry: Registry, name: str):
    """Nothing here makes Voxtral's artifacts, so each file alone says what made it. A second version's must
    not be described by the first one's, nor change what is said of that.
    """
    registry.upload(name)
    registry.upload(name, clip=OTHER_CLIP)
    for number in (1, 2):
        voice = {"voice_embedding": np.full((147, 3072), number, np.float32)}
        data = file(voice, profile=VOXTRAL, extractor={"made": f"by {number}"})
        assert put(registry, name, data, ref=number, profile=VOXTRAL).status_code == 201
    for number in (1, 2):
        path = f"/v1/voices/{name}/versions/{number}/artifacts/{VOXTRAL}"
        said = registry.client.get(path).json()["extractor"]
        assert said == {"made": f"by {number}"}
        served = Artifact.parse(registry.file(name, number, VOXTRAL).content).manifest
        assert served.extractor == said


def test_facts_that_leave_no_room_for_the_transcript_are_refused(registry: Registry, name: str):
    """A manifest that leaves no room for the transcript is refused. A file's header has at most 64 KiB, and
    no reader would accept a longer one.
    """
    registry.upload(name, ref_text="What is said. " * 500)
    voice = {"voice_embedding": np.ones((147, 3072), np.float32)}
    data = file(voice, profile=VOXTRAL, extractor={"made": "e" * 60_000})
    refused(put(registry, name, data, profile=VOXTRAL), 422, "artifact_schema", "header declares")
    fits = file(voice, profile=VOXTRAL, extractor={"made": "e" * 50_000})
    assert put(registry, name, fits, profile=VOXTRAL).status_code == 201
    assert Artifact.parse(registry.file(name, profile=VOXTRAL).content)


def test_an_artifact_goes_from_one_registry_to_another_on_the_command_line(
    registry: Registry, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """An artifact can be copied on the command line from the registry where it was tried out to the one where
    it is used, and nothing is computed again.
    """
    registry.ready(name)
    other = f"{name}-there"
    registry.upload(other)
    path = tmp_path / "artifact.safetensors"

    def run(*words: str) -> str:
        assert cli.main(["--url", registry.url, *words]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    run("fetch", name, "--profile", PROFILE, "-o", str(path))
    assert f"{other}@1 is ready for {PROFILE}: sha256:" in run(
        "put", f"{other}@1", str(path), "--profile", PROFILE
    )
    assert (
        Artifact.parse(registry.file(other).content).content_digest
        == Artifact.parse(path.read_bytes()).content_digest
    )
    assert cli.main(["--url", registry.url, "put", other, str(path), "--profile", WIDER]) == 1
    assert "is for profile" in capsys.readouterr().err
