"""Tests that vLLM-Omni's clients run unchanged: with its keys, types, order and sentences on the routes that
it has, and with the `cache` route as its pull request 2457 designed it. The registry's additions to these
answers are not tested here.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from services.registry_api.wire.forms import MAX_CONSENT, MAX_TEXT
from speaker_registry.artifact import Artifact
from speaker_registry.errors import ExtractorFailed, InvalidAudio
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, WIDER, Registry
from tests.queue_workers import wait_until
from tests.unit.audio import clips

NONE = type(None)
Shape = dict[str, type]

LIST: Shape = {"voices": list, "uploaded_voices": list}
LISTED_CLIP: Shape = {
    "name": str,
    "consent": str,
    "created_at": int,
    "file_size": int,
    "mime_type": str,
    "embedding_source": str,
    "embedding_dim": NONE,
}
LISTED_EMBEDDING: Shape = {**LISTED_CLIP, "embedding_dim": int}
TEXTS: Shape = {"ref_text": str, "speaker_description": str}
UPLOAD: Shape = {"success": bool, "voice": dict}
UPLOADED_CLIP: Shape = {
    "name": str,
    "consent": str,
    "created_at": int,
    "mime_type": str,
    "file_size": int,
}
UPLOADED_EMBEDDING: Shape = {
    "name": str,
    "consent": str,
    "created_at": int,
    "embedding_source": str,
    "embedding_dim": int,
}
DELETED: Shape = {"success": bool, "message": str}
ERROR: Shape = {"message": str, "type": str, "param": NONE, "code": int}
CACHED: Shape = {"voice": str, "cache_status": str}
OPENAI_LIST: Shape = {"object": str, "data": list, "first_id": str, "last_id": str, "has_more": bool}
OPENAI_VOICE: Shape = {"object": str, "id": str, "name": str, "created_at": int}


def check(answer: dict[str, Any], shape: Shape) -> None:
    """Check that an answer is a superset: each key is present, with a value of exactly
    that type (a bool is no int).
    """
    assert {key: type(answer.get(key, check)) for key in shape} == shape


def listed(registry: Registry, name: str) -> dict[str, Any]:
    found = registry.client.get("/v1/audio/voices").json()["uploaded_voices"]
    entry: dict[str, Any] = next(one for one in found if one["name"] == name)
    return entry


def error_of(response: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


def cache(registry: Registry, name: str, method: str = "POST", **params: Any) -> Any:
    return registry.client.request(method, f"/v1/audio/voices/{name}/cache", params=params)


# -- shapes


def test_the_list_has_every_key_with_its_type(registry: Registry, name: str):
    """The list has every key with its type, because clients index into it without checking."""
    registry.upload(name, ref_text="The words.", speaker_description="A voice.")
    body = registry.client.get("/v1/audio/voices").json()
    check(body, LIST)
    assert {type(voice) for voice in body["voices"]} == {str}
    check(listed(registry, name), LISTED_CLIP | TEXTS)
    assert listed(registry, name)["embedding_source"] == "audio"
    assert listed(registry, name)["mime_type"] == "audio/wav"
    assert listed(registry, name)["file_size"] == len(CLIP)


def test_a_ready_embedding_is_listed_as_direct_with_its_width(registry: Registry, name: str):
    """A ready embedding is listed as `direct` with its width. `embedding_source` decides whether a client may
    request in-context cloning.
    """
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    check(listed(registry, name), LISTED_EMBEDDING)
    assert (listed(registry, name)["embedding_source"], listed(registry, name)["embedding_dim"]) == (
        "direct",
        1024,
    )


@pytest.mark.parametrize("source", ["clip", "embedding"])
def test_texts_that_were_not_given_have_no_key(registry: Registry, name: str, source: str):
    """Texts that were not given have no key. vLLM-Omni leaves them out, also where they were blank, and a
    client may test for the key.
    """
    given = {"clip": CLIP} if source == "clip" else {"clip": None, "speaker_embedding": EMBEDDING}
    uploaded = registry.upload(name, ref_text=" ", speaker_description="", **given)
    for entry in (uploaded, listed(registry, name)):
        assert not entry.keys() & TEXTS.keys()


def test_an_uploaded_clip_is_answered_with_every_key(registry: Registry, name: str):
    """The answer to an uploaded clip has every key. Its status is 200, not 201, because
    clients compare it.
    """
    response = registry.post_voice(name.upper(), ref_text=" The words. ", speaker_description="A voice.")
    assert response.status_code == 200
    check(response.json(), UPLOAD)
    voice = response.json()["voice"]
    check(voice, UPLOADED_CLIP | TEXTS)
    assert response.json()["success"] is True
    assert (voice["name"], voice["consent"], voice["ref_text"]) == (name.upper(), "cons_1", "The words.")


def test_an_uploaded_embedding_is_answered_with_every_key(registry: Registry, name: str):
    """The answer to an uploaded embedding, the other of the two shapes, has every key."""
    response = registry.post_voice(name, clip=None, speaker_embedding=EMBEDDING)
    assert response.status_code == 200
    check(response.json(), UPLOAD)
    check(response.json()["voice"], UPLOADED_EMBEDDING)
    assert response.json()["voice"]["embedding_source"] == "direct"


def test_a_deleted_voice_is_answered_with_its_key(registry: Registry, name: str):
    """The answer to a delete is vLLM-Omni's sentence with the voice's key, the name in lower case."""
    registry.upload(name)
    response = registry.client.delete(f"/v1/audio/voices/{name.upper()}")
    assert response.status_code == 200
    check(response.json(), DELETED)
    assert response.json()["success"] is True
    assert response.json()["message"] == f"Voice '{name}' deleted successfully"
    assert name not in registry.client.get("/v1/audio/voices").json()["voices"]


def test_an_unknown_voice_is_not_found_in_the_envelope(registry: Registry):
    """An unknown voice is not found, in vLLM-Omni's envelope. Its integer `code`
    distinguishes it from OpenAI's.
    """
    response = registry.client.delete("/v1/audio/voices/nobody")
    error = error_of(response)
    check(error | {"param": None}, ERROR)
    assert (response.status_code, error["code"], error["type"]) == (404, 404, "NotFoundError")
    assert error["message"] == "Voice 'nobody' not found"
    assert error["reason"] == "voice_not_found"


def test_a_bad_upload_is_a_bad_request_in_the_envelope(registry: Registry, name: str):
    """Every fault of an upload is a 400 in vLLM-Omni's envelope, whatever status it has on the registry's own
    routes.
    """
    for fields in ({"clip": b"text"}, {"clip": None, "speaker_embedding": "[1,2]"}):
        response = registry.post_voice(name, **fields)
        error = error_of(response)
        check(error | {"param": None}, ERROR)
        assert (response.status_code, error["code"], error["type"]) == (400, 400, "BadRequestError")


def test_voices_are_sorted_keys_with_default_among_them(start: Start):
    """Voices are listed as sorted keys with `default` among them, the placeholder for no voice at all. A
    client shows them in the order of the answer.
    """
    registry = start()
    for name in ("Zoë", "alice", "Émile", "Bob", "ALICE", "李雷"):
        registry.upload(name)
    body = registry.client.get("/v1/audio/voices").json()
    assert body["voices"] == ["alice", "bob", "default", "zoë", "émile", "李雷"]
    assert [one["name"] for one in body["uploaded_voices"]] == ["alice", "Bob", "Zoë", "Émile", "李雷"]


def test_the_list_of_an_empty_registry_is_just_default(start: Start):
    """The list of an empty registry is just `default`. It is a newcomer's first call."""
    body = start().client.get("/v1/audio/voices").json()
    assert (body["voices"], body["uploaded_voices"], body["data"]) == (["default"], [], [])
    assert (body["first_id"], body["last_id"], body["has_more"]) == (None, None, False)


def test_openais_clients_find_their_keys_too(registry: Registry, name: str):
    """OpenAI's clients find their keys too: one answer serves both, with OpenAI's list
    and voice at the top level.
    """
    upload = registry.post_voice(name).json()
    check(upload, OPENAI_VOICE)
    assert (upload["object"], upload["name"]) == ("audio.voice", name)
    body = registry.client.get("/v1/audio/voices").json()
    check(body, OPENAI_LIST)
    for voice in body["data"]:
        check(voice, OPENAI_VOICE)
    assert body["object"] == "list"
    assert [one["name"] for one in body["data"]] == [one["name"] for one in body["uploaded_voices"]]
    deleted = registry.client.delete(f"/v1/audio/voices/{name}").json()
    assert (deleted["object"], deleted["deleted"], deleted["id"]) == ("audio.voice", True, upload["id"])


def test_the_list_can_be_paged_and_narrowed(start: Start):
    """The list can be paged and filtered. In mlx-audio #743 a client wants the voices that its model can use,
    and those that are ready.
    """
    registry = start()
    for name in ("b", "d"):
        registry.ready(name)
    for name in ("a", "c", "e"):
        registry.upload(name, clip=None, speaker_embedding=EMBEDDING)

    def page(**params: Any) -> tuple[list[str], bool]:
        body = registry.client.get("/v1/audio/voices", params=params).json()
        return [one["name"] for one in body["data"]], body["has_more"]

    assert page(limit=2) == (["a", "b"], True)
    assert page(limit=2, after="b") == (["c", "d"], True)
    assert page(limit=2, after="d") == (["e"], False)
    registry.upload("f")
    assert page(ready=True) == (["a", "b", "c", "d", "e"], False)
    assert page(profile=PROFILE) == (["a", "b", "c", "d", "e", "f"], False)
    assert page(profile=WIDER) == (["b", "d", "f"], False), "an embedding of 1024 is of no use to it"
    assert page(profile=WIDER, ready=True, limit=1) == ([], False)
    assert page(profile=WIDER, limit=2) == (["b", "d"], True)
    unknown = registry.client.get("/v1/audio/voices", params={"profile": "nope"})
    assert (unknown.status_code, error_of(unknown)["reason"]) == (404, "profile_unknown")


# -- the generation


def test_created_at_rises_with_every_upload_of_a_name_and_outlives_its_deletion(
    registry: Registry, name: str
):
    """`created_at` rises with every upload of a name and outlives its deletion. It is the generation in
    vLLM-Omni's cache keys: the same value twice would serve the old voice's tensors.
    """
    seen = [registry.upload(name, consent=f"cons_{number}")["created_at"] for number in range(3)]
    registry.client.delete(f"/v1/audio/voices/{name}")
    seen.append(registry.upload(name, consent="cons_0")["created_at"])
    assert seen == sorted(set(seen)), "several in one second still differ"
    assert abs(seen[0] - time.time()) < 60


def test_the_same_upload_again_is_the_same_generation(registry: Registry, name: str):
    """The same upload again is the same generation. A client that repeats a request whose answer it lost must
    not make every engine extract again.
    """
    first = registry.upload(name)
    again = registry.post_voice(name)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json()["created"] is False
    assert again.json()["voice"]["created_at"] == first["created_at"]
    assert registry.upload(name, params={"dedupe": "false"})["version"] == 2


def test_an_idempotency_key_says_which_request_is_meant(registry: Registry, name: str):
    """An idempotency key identifies one request. Reused for another request it would hide a mistake."""
    headers = {"Idempotency-Key": f"secret-{name}"}
    first = registry.upload(name, headers=headers)
    registry.upload(name, clip=OTHER_CLIP)
    assert registry.upload(name, headers=headers)["version"] == first["version"]
    reused = registry.post_voice(name, consent="cons_2", headers=headers)
    assert (reused.status_code, error_of(reused)["reason"]) == (400, "idempotency_key_reused")
    assert "Accepted: the same request again, or a new key." in error_of(reused)["message"]
    assert "secret" not in reused.text


# -- sentences

SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "too large": (
        {"clip": bytes(10 * 1024**2 + 1)},
        "File size exceeds maximum limit of 10MB. Got 10485761 bytes.",
    ),
    "too short": (
        {"clip": clips.wav(0.4)},
        "Reference audio too short (0.4s). At least 1s of clear speech is required.",
    ),
    "too long": (
        {"clip": clips.wav(31.2)},
        "Reference audio too long (31.2s). Maximum 30s supported — use a shorter clip.",
    ),
    "no JSON": ({"clip": None, "speaker_embedding": "[1,"}, "'speaker_embedding' must be valid JSON"),
    "no numbers": (
        {"clip": None, "speaker_embedding": "[]"},
        "'speaker_embedding' must be a non-empty list of numbers",
    ),
    "too many numbers": (
        {"clip": None, "speaker_embedding": str([0.5] * 4097)},
        "'speaker_embedding' exceeds maximum length (4096 elements)",
    ),
    "not numeric": (
        {"clip": None, "speaker_embedding": '[1, "2"]'},
        "'speaker_embedding' must contain only numeric values",
    ),
    "not finite": (
        {"clip": None, "speaker_embedding": "[1, NaN]"},
        "'speaker_embedding' values must be finite (no NaN or Inf)",
    ),
    "both": (
        {"speaker_embedding": EMBEDDING},
        "'audio_sample' and 'speaker_embedding' are mutually exclusive",
    ),
    "neither": ({"clip": None}, "Either 'audio_sample' or 'speaker_embedding' must be provided"),
    "blank name": ({"name": "   "}, "Invalid voice name '': must be non-empty, no path separators or NUL"),
    "path as name": (
        {"name": "a/b"},
        "Invalid voice name 'a/b': must be non-empty, no path separators or NUL",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_refusal_is_said_in_vllm_omnis_words(registry: Registry, name: str, case: str):
    """A refusal uses vLLM-Omni's words, because clients match on them for want of codes. The registry's
    additions come after.
    """
    fields, sentence = SENTENCES[case]
    response = registry.post_voice(**{"name": name, **fields})
    assert 400 <= response.status_code < 500
    assert error_of(response)["message"].startswith(sentence)


def test_a_full_registry_says_how_many_voices_it_takes(start: Start):
    """A full registry refuses a new voice with 400 and says in vLLM-Omni's words how many it takes. A new
    version of an existing voice is no new voice and is accepted.
    """
    registry = start(max_uploaded=1)
    registry.upload("alice")
    response = registry.post_voice("bob")
    assert (response.status_code, error_of(response)["reason"]) == (400, "quota_exceeded")
    assert error_of(response)["message"] == (
        "Uploaded voice limit reached (1). Delete an existing voice before registering a new one, or raise "
        "the cap via SPEAKER_MAX_UPLOADED."
    )
    registry.upload("alice", clip=OTHER_CLIP)


def test_an_immutable_registry_refuses_a_name_that_is_taken(start: Start):
    """An immutable registry refuses a name that is taken with 400, in vLLM-Omni's words.
    A delete frees the name.
    """
    registry = start(registration_policy="immutable")
    registry.upload("Alice")
    response = registry.post_voice("Alice", clip=OTHER_CLIP)
    assert (response.status_code, error_of(response)["reason"]) == (400, "voice_exists")
    assert error_of(response)["message"] == (
        "Voice 'Alice' already exists and VLLM_OMNI_SPEAKER_REGISTRATION_POLICY is 'immutable'; "
        "delete it first via DELETE /v1/audio/voices/alice."
    )
    registry.client.delete("/v1/audio/voices/alice")
    registry.upload("Alice", clip=OTHER_CLIP)


@pytest.mark.parametrize(
    "name", ["Ann Marie", "a:b", "voz-ñ", "李雷", "🎙", "x" * 128, "..x", "-", "%41", "a+b", "a&b"]
)
def test_names_that_vllm_omni_takes_are_taken(registry: Registry, name: str):
    """Every name that vLLM-Omni takes is taken, with spaces, colons and any script, and
    is found again in a path.
    """
    registry.upload(name)
    assert listed(registry, name)["name"] == name
    assert cache(registry, name.replace("%", "%25"), "GET").json()["voice"] == name.lower()


def test_the_longest_texts_still_make_an_artifact_that_can_be_read(registry: Registry, name: str):
    """The longest texts still make an artifact that can be read. They go into its header, whose size readers
    limit, so too long texts must be refused here, not by an engine.
    """
    hardest = '"'  # quoted twice: four bytes for one, like an emoji
    registry.ready(name, ref_text=hardest * MAX_TEXT, consent=hardest * MAX_CONSENT)
    assert Artifact.parse(registry.file(name).content).manifest.ref_text == hardest * MAX_TEXT
    registry.ready(name, ref_text="🎙" * MAX_TEXT, consent="🎙" * MAX_CONSENT)
    assert Artifact.parse(registry.file(name).content).manifest.consent == "🎙" * MAX_CONSENT
    response = registry.post_voice(name, ref_text="x" * (MAX_TEXT + 1))
    assert response.status_code == 400
    assert (
        f"'ref_text' has {MAX_TEXT + 1} characters; accepted: up to {MAX_TEXT}"
        in error_of(response)["message"]
    )


# -- cache


def test_cache_of_a_ready_voice_says_that_it_is_already_valid(registry: Registry, name: str):
    """A cache call for a ready voice answers that the cache is already valid, word for word as the second
    call of pull request 2457.
    """
    registry.ready(name)
    response = cache(registry, name)
    assert response.status_code == 200
    check(response.json(), CACHED | {"message": str})
    assert response.json()["voice"] == name
    assert response.json()["cache_status"] == "ready"
    assert response.json()["message"] == "Cache already exists and is valid"


def test_cache_waits_for_the_extraction_and_then_has_no_message(registry: Registry, name: str):
    """A cache call waits for the extraction and then answers "ready" without a message, as the first call of
    pull request 2457.
    """
    registry.upload(name)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(cache, registry, name)
        wait_until(lambda: registry.long_polls.waiting == 1)
        registry.worker.finish_all(name)
        response = waiting.result()
    assert response.status_code == 200
    said = {key: value for key, value in response.json().items() if key != "untrained"}  # as some workers are
    assert said == {"voice": name, "cache_status": "ready", "version": 1}


def test_cache_that_is_not_ready_in_time_is_accepted_and_says_where_to_look(registry: Registry, name: str):
    """A cache call that is not ready in time is answered 202 and says where to look, so that a client that
    cannot hold a connection polls the job.
    """
    uploaded = registry.upload(name)
    response = cache(registry, name, wait=0)
    assert response.status_code == 202
    check(response.json(), CACHED | {"job_id": str})
    assert response.json()["cache_status"] == "pending"
    assert response.headers["Location"] == f"/v1/jobs/{uploaded['job_id']}"
    assert int(response.headers["Retry-After"]) >= 1
    registry.worker.take_all(name)
    assert cache(registry, name, wait=0.2).json()["cache_status"] == "processing"


def test_cache_of_a_voice_that_failed_is_a_final_conflict(registry: Registry, name: str):
    """A cache call for a voice that failed is a final conflict. OpenAI's clients repeat a
    409 unless told not to.
    """
    registry.upload(name)
    registry.worker.fail_all(name, InvalidAudio("No speech was found."))
    response = cache(registry, name)
    assert response.status_code == 409
    assert response.headers["x-should-retry"] == "false"
    assert (error_of(response)["code"], error_of(response)["reason"]) == (409, "artifact_failed")
    assert "invalid_audio: No speech was found." in error_of(response)["message"]
    assert cache(registry, name, "GET").json()["cache_status"] == "failed"


def test_cache_by_force_gives_a_failed_voice_another_try(registry: Registry, name: str):
    """A forced cache call gives a failed voice another attempt. After the cause has been
    fixed, nothing else would.
    """
    registry.upload(name)
    registry.worker.fail_all(name, InvalidAudio("No speech was found."))
    with registry.worker.working():
        response = cache(registry, name, force=True)
    assert (response.status_code, response.json()["cache_status"]) == (200, "ready")


def test_cache_by_force_extracts_again_and_the_old_artifact_serves_meanwhile(registry: Registry, name: str):
    """A forced cache call extracts again, and the old artifact is served meanwhile, because a rebuild must
    not be an outage.
    """
    registry.ready(name)
    before = registry.file(name)
    response = cache(registry, name, force=True, wait=0)
    assert (response.status_code, response.json()["cache_status"]) == (202, "processing")
    assert registry.file(name).headers["ETag"] == before.headers["ETag"]
    registry.worker.finish_all()
    assert registry.file(name).headers["ETag"] != before.headers["ETag"]
    assert cache(registry, name).json()["message"] == "Cache already exists and is valid"


def test_cache_by_force_that_fails_says_so_and_the_old_artifact_serves(registry: Registry, name: str):
    """A forced cache call that fails says so, and the old artifact is served. "Ready" would make the caller
    believe that it was rebuilt.
    """
    registry.ready(name)
    before = registry.file(name)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(cache, registry, name, force=True)
        wait_until(lambda: registry.worker.queued(name) or waiting.done())
        registry.worker.fail_all(name, InvalidAudio("No speech was found."))
        response = waiting.result()
    assert (response.status_code, error_of(response)["reason"]) == (409, "artifact_failed")
    assert "is still served" in error_of(response)["message"]
    assert registry.file(name).headers["ETag"] == before.headers["ETag"]


def test_cache_goes_on_waiting_while_a_failed_attempt_is_tried_again(registry: Registry, name: str):
    """A cache call goes on waiting while a failed attempt is retried, because the cause may be temporary."""
    registry.upload(name)
    registry.worker.fail_all(name, ExtractorFailed("The device was reset."))
    response = cache(registry, name, wait=0)
    assert (response.status_code, response.json()["cache_status"]) == (202, "pending")


def test_cache_of_a_given_embedding_is_unsupported(registry: Registry, name: str):
    """A cache call for a given embedding is unsupported. There is no clip to extract anything from;
    vLLM-Omni's design refuses it too.
    """
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    for method in ("POST", "GET"):
        response = cache(registry, name, method)
        assert (response.status_code, error_of(response)["reason"]) == (400, "cache_unsupported")
        assert "1024" in error_of(response)["message"]


def test_cache_extracts_what_it_can_and_says_what_it_cannot(start: Start):
    """A cache call extracts what it can and names what it cannot. In a fleet of several engines, one that
    needs a transcript must not keep the others waiting.
    """
    registry = start(profiles=(PROFILE, "higgs-audio-v2"))
    registry.upload("alice")
    registry.worker.fail_all("alice", InvalidAudio("No speech was found."))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(cache, registry, "alice", force=True)
        wait_until(lambda: registry.worker.queued("alice") or waiting.done())
        registry.worker.finish_all("alice")
        response = waiting.result()
    assert (response.status_code, error_of(response)["reason"]) == (409, "artifact_failed")
    assert "higgs-audio-v2: profile 'higgs-audio-v2' needs a transcript" in error_of(response)["message"]
    assert registry.file("alice").status_code == 200


def test_cache_of_an_unknown_voice_or_profile_is_not_found(registry: Registry, name: str):
    """A cache call for an unknown voice or profile is not found, and never answered with
    another voice in its place.
    """
    registry.upload(name)
    for method in ("POST", "GET"):
        unknown = cache(registry, "nobody", method)
        assert (unknown.status_code, error_of(unknown)["message"]) == (404, "Voice 'nobody' not found")
        profile = cache(registry, name, method, profile="nope")
        assert (profile.status_code, error_of(profile)["reason"]) == (404, "profile_unknown")
        assert PROFILE in error_of(profile)["message"], "what is accepted"


def test_cache_for_another_profile_extracts_that_one(registry: Registry, name: str):
    """A cache call for another profile extracts that profile, because an engine of the
    other size may join later.
    """
    registry.ready(name)
    assert registry.file(name, profile=WIDER).status_code == 404
    with registry.worker.working():
        assert cache(registry, name, profile=WIDER).json()["cache_status"] == "ready"
    assert registry.file(name, profile=WIDER).status_code == 200


def test_asking_for_the_cache_status_starts_nothing(registry: Registry, name: str):
    """Reading the cache status starts no extraction, because dashboards poll it."""
    registry.ready(name)
    before = registry.stored()
    assert cache(registry, name, "GET", profile=WIDER).json()["cache_status"] == "pending"
    assert registry.stored() == before


@pytest.mark.parametrize("wait", ["-1", "300.5", "NaN", "inf", "soon", ""])
def test_a_wait_out_of_bounds_is_refused(registry: Registry, name: str, wait: str):
    """A wait out of bounds is refused, and the message names the value and the bounds."""
    registry.upload(name)
    response = cache(registry, name, wait=wait)
    assert (response.status_code, error_of(response)["param"]) == (400, "wait")
    assert f"'{wait}'" in error_of(response)["message"]
