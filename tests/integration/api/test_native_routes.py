"""Tests of the registry's own routes: voices, versions, artifacts, jobs, profiles,
health; waiting and conditions.
"""

import json
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from services.embedded.valkey import ValkeyServer
from services.registry_api.serving import long_polls, readiness
from services.registry_api.wire import answers, paging
from services.shared.configuration.uploads import UploadLimits
from services.shared.model.speaker import SpeakerId
from services.shared.view.keys import shared_key
from speaker_registry import RegistryClient, cli
from speaker_registry.artifact import Artifact, sha256_digest
from speaker_registry.errors import AudioNotFound, InvalidAudio
from tests.encoders import make_current
from tests.integration.api import raw
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, WIDER, Registry
from tests.integration.api.worker import FINGERPRINT
from tests.queue_workers import wait_until
from tests.unit.audio import clips

NEWER = "sha256:" + "2" * 64
CUSTOM_WEIGHTS = {"weights": {"untrained": False, "custom": True}}
"""The provenance that an encoder with custom weights announces."""
LONGER_THAN_CLIENTS = 60
"""A `wait` for answers that must not take that long: the client of `Registry` gives up earlier."""


def get(registry: Registry, path: str, **params: Any) -> Any:
    response = registry.client.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def artifact_path(name: str, ref: int | str = "default", profile: str = PROFILE) -> str:
    return f"/v1/voices/{quote(name, safe='')}/versions/{ref}/artifacts/{profile}"


def audio_path(name: str, ref: int | str = "default") -> str:
    return f"/v1/voices/{quote(name, safe='')}/versions/{ref}/audio"


def ready_now(registry: Registry) -> httpx.Response:
    """Read the readiness once the cached result has expired."""
    time.sleep(readiness.CACHE_SECONDS + 0.05)
    return registry.client.get("/readyz")


def keys(page: dict[str, Any]) -> list[str]:
    return [one["key"] for one in page["data"]]


# -- lists


def test_pages_hold_every_voice_once_also_while_voices_come_and_go(start: Start):
    """Pages hold every voice once, also while voices are added and deleted. A cursor that counts would skip
    one voice for each that was deleted before it.
    """
    registry = start()
    for name in ("B", "d", "f", "h"):
        registry.upload(name)
    first = get(registry, "/v1/voices", limit=2)
    assert (keys(first), first["first_id"], first["last_id"], first["has_more"]) == (
        ["b", "d"],
        "b",
        "d",
        True,
    )
    registry.upload("a")
    registry.upload("e")
    registry.client.delete("/v1/voices/d")
    second = get(registry, "/v1/voices", limit=2, after=first["last_id"])
    assert (keys(second), second["has_more"]) == (["e", "f"], True)
    last = get(registry, "/v1/voices", limit=2, after=second["last_id"])
    assert (keys(last), last["has_more"]) == (["h"], False)
    beyond = get(registry, "/v1/voices", after="z")
    assert (beyond["data"], beyond["first_id"], beyond["has_more"]) == ([], None, False)


def test_the_list_can_be_narrowed_by_profile_state_and_part_of_the_name(start: Start):
    """The list can be filtered by profile, by state and by part of the name, alone and together."""
    registry = start()
    registry.ready("Ann Marie")
    registry.upload("Annika")
    registry.upload("Bo", clip=None, speaker_embedding=EMBEDDING)
    registry.worker.finish_all()
    registry.upload("Zoë")
    assert keys(get(registry, "/v1/voices")) == ["ann marie", "annika", "bo", "zoë"]
    assert keys(get(registry, "/v1/voices", state="ready")) == ["ann marie", "annika", "bo"]
    assert keys(get(registry, "/v1/voices", state="pending")) == ["zoë"]
    assert keys(get(registry, "/v1/voices", profile=WIDER)) == ["ann marie", "annika", "zoë"]
    assert keys(get(registry, "/v1/voices", profile=WIDER, state="ready")) == []
    assert keys(get(registry, "/v1/voices", q="ANN")) == ["ann marie", "annika"]
    assert keys(get(registry, "/v1/voices", q="Zoe\u0308")) == ["zoë"], "written in two characters"
    assert keys(get(registry, "/v1/voices", q="ann", profile=PROFILE, limit=1)) == ["ann marie"]


@pytest.mark.parametrize("path", ["/v1/voices", "/v1/audio/voices"])
def test_a_page_that_finds_nothing_in_what_it_looked_at_still_leads_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str
):
    """A page without matches still leads on. One request examines a limited number of voices, and without a
    cursor the rest could never be reached.
    """
    registry = start()
    for name in ("a", "b", "c", "d"):
        registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    registry.upload("e")
    monkeypatch.setattr(paging, "MAX_EXAMINED", 2)
    page = get(registry, path, profile=WIDER, limit=1)
    assert page["data"] == []
    seen = []
    while page["has_more"]:
        page = get(registry, path, profile=WIDER, limit=1, after=page["last_id"])
        seen += [one["name"] for one in page["data"]]
    assert seen == ["e"]


# -- voices and versions


def test_a_voice_says_what_its_name_stands_for(registry: Registry, name: str):
    """A voice shows which version its name stands for: here version 2 is ready and
    served, and 3 is being extracted.
    """
    registry.ready(name.upper())
    second = registry.ready(name.upper(), clip=OTHER_CLIP)
    registry.upload(name.upper(), consent="cons_2")
    voice = get(registry, f"/v1/voices/{name}")
    assert (voice["object"], voice["name"], voice["key"]) == ("voice", name.upper(), name)
    assert (voice["version"], voice["latest"], voice["versions"]) == (2, 3, 3)
    assert (voice["state"], voice["aliases"]) == ("ready", {"default": 2})
    assert voice["created_at"] == second["created_at"]
    [artifact] = voice["artifacts"]
    assert (artifact["profile"], artifact["state"], artifact["current"]) == (PROFILE, "ready", True)
    assert artifact["digest"] == sha256_digest(registry.file(name).content)


def test_versions_are_paged_newest_first(registry: Registry, name: str):
    """Versions are paged newest first, because callers look for what was uploaded last."""
    for number in range(5):
        registry.upload(name, consent=f"cons_{number}")
    first = get(registry, f"/v1/voices/{name}/versions", limit=3)
    assert [one["version"] for one in first["data"]] == [5, 4, 3]
    assert (first["first_id"], first["last_id"], first["has_more"]) == ("5", "3", True)
    assert get(registry, f"/v1/voices/{name}/versions", limit=3, after="") == first
    registry.upload(name)
    second = get(registry, f"/v1/voices/{name}/versions", limit=3, after=first["last_id"])
    assert ([one["version"] for one in second["data"]], second["has_more"]) == ([2, 1], False)


def test_a_version_is_found_by_number_alias_default_and_latest(registry: Registry, name: str):
    """A version is found by number, alias, `default` and `latest`. `default` is served, `latest` is the
    newest that is complete, and a number never changes its meaning.
    """
    registry.ready(name)
    registry.ready(name, clip=OTHER_CLIP, ref_text="The words.", speaker_description="A voice.")
    registry.upload(name, consent="cons_2")
    path = f"/v1/voices/{name}/versions"
    assert [get(registry, f"{path}/{ref}")["version"] for ref in (1, 2, 3, "default", "latest")] == [
        1,
        2,
        3,
        2,
        2,
    ]
    version = get(registry, f"{path}/2")
    assert (version["voice"], version["source"], version["state"]) == (name, "audio", "ready")
    assert (version["ref_text"], version["description"]) == ("The words.", "A voice.")
    assert version["audio"]["digest"] == sha256_digest(OTHER_CLIP)
    assert (version["audio"]["size"], version["audio"]["mime_type"]) == (len(OTHER_CLIP), "audio/flac")
    assert (version["audio"]["seconds"], version["audio"]["sample_rate"]) == (1.6, 16000)


def test_a_version_of_a_given_embedding_says_so(registry: Registry, name: str):
    """A version of a given embedding is marked as one. It is complete at once, and has no audio."""
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    version = get(registry, f"/v1/voices/{name}/versions/1")
    assert (version["source"], version["state"], version["audio"]) == ("embedding", "ready", None)
    assert version["embedding_dim"] == 1024
    assert Artifact.parse(registry.file(name).content).tensors["speaker_embedding"].shape == (1024,)


@pytest.mark.parametrize(
    "name", ["李雷", "Ann Marie", "a:b;c?d#e", "100%", "%2F", "a+b", "Zoe\u0308", "T\u0308oby", "🎙", "..x.."]
)
def test_a_name_in_any_script_is_found_on_every_route(registry: Registry, name: str):
    """A name in any script is found on every route as percent-encoded UTF-8, and the `url` of a descriptor
    works as it stands.
    """
    registry.ready(name)
    for path in ("", "/versions", "/versions/1", "/versions/1/artifacts"):
        get(registry, f"/v1/voices/{quote(name, safe='')}{path}")
    descriptor = get(registry, artifact_path(name))
    assert registry.client.get(descriptor["url"]).status_code == 200
    assert get(registry, "/v1/jobs", voice=name)["data"]
    (listed,) = get(registry, "/v1/voices", q=name)["data"]
    assert get(registry, f"/v1/voices/{quote(listed['key'], safe='')}") == listed
    assert registry.client.delete(f"/v1/voices/{quote(name, safe='')}").status_code == 204


# -- artifacts


def test_the_descriptor_has_all_that_an_engine_needs(registry: Registry, name: str):
    """The descriptor has all that an engine needs in one read: if there is an artifact, which one, and where
    to fetch it.
    """
    registry.ready(name, ref_text="The words.")
    found = get(registry, artifact_path(name, 1))
    file = registry.client.get(found["url"])
    artifact = Artifact.parse(file.content)
    assert (found["object"], found["voice"], found["version"], found["profile"]) == (
        "voice.artifact",
        name,
        1,
        PROFILE,
    )
    assert (found["state"], found["current"], found["mode"], found["model_type"]) == (
        "ready",
        True,
        "icl",
        "qwen3_tts",
    )
    assert (found["digest"], found["size"]) == (artifact.digest, len(file.content))
    assert found["content_digest"] == artifact.content_digest
    assert (found["fingerprint"], found["extractor"]) == (FINGERPRINT, {"model": "made up"})
    assert found["tensors"]["speaker_embedding"] == {"dtype": "F32", "shape": [1024]}
    assert found["tensors"]["ref_code"] == {"dtype": "I32", "shape": [15, 16]}
    assert artifact.manifest.version_id == found["version_id"]
    assert get(registry, f"/v1/voices/{name}/versions/1/artifacts")["data"] == [found]


def test_without_a_transcript_only_the_embedding_is_of_use(registry: Registry, name: str):
    """An artifact without a transcript has only the embedding's mode, because in-context
    cloning needs the words.
    """
    registry.ready(name)
    assert get(registry, artifact_path(name))["mode"] == "xvec"


def test_the_file_is_whole_and_says_what_it_is(registry: Registry, name: str):
    """The file is complete and describes itself. An engine checks it against the digest, and caches it by
    version and time.
    """
    uploaded = registry.ready(name)
    response = registry.file(name)
    digest = sha256_digest(response.content)
    assert response.headers["Content-Type"] == "application/vnd.safetensors"
    assert response.headers["ETag"] == f'"{digest}"'
    assert re.fullmatch(r"sha-256=:[A-Za-z0-9+/]{43}=:", response.headers["Content-Digest"])
    assert response.headers["X-Voice-Version"] == "1"
    assert response.headers["X-Voice-Created-At"] == str(uploaded["created_at"])
    assert response.headers["X-Artifact-Fingerprint"] == FINGERPRINT
    again = registry.client.get(f"{artifact_path(name)}/file", headers={"If-None-Match": f'"{digest}"'})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", f'"{digest}"')
    head = registry.client.head(f"{artifact_path(name)}/file")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(response.content))
    assert head.headers["ETag"] == response.headers["ETag"]


def test_the_old_version_serves_until_the_new_one_is_ready(registry: Registry, name: str):
    """The old version is served until the new one is ready, and not a moment longer: descriptor, file and
    voice change together.
    """
    registry.ready(name)
    before = registry.file(name)
    registry.upload(name, clip=OTHER_CLIP)
    assert registry.file(name).content == before.content
    assert registry.file(name, 2).status_code == 202
    registry.worker.finish_all()
    assert registry.file(name).content == registry.file(name, 2).content != before.content
    assert registry.file(name, 1).content == before.content


def test_a_new_version_that_fails_changes_nothing(registry: Registry, name: str):
    """A new version that fails changes nothing. The voice stays what it was, and the version says why it is
    not available.
    """
    registry.ready(name)
    before = registry.file(name)
    registry.upload(name, clip=OTHER_CLIP)
    registry.worker.fail_all(name, InvalidAudio("No speech was found."))
    assert registry.file(name).content == before.content
    refused = registry.file(name, 2)
    assert error_of(refused) == (409, "artifact_failed")
    assert refused.headers["x-should-retry"] == "false"
    assert "No speech was found." in refused.json()["error"]["message"]


def test_what_nobody_asked_for_is_not_found_and_says_how_to_get_it(registry: Registry, name: str):
    """An artifact that was never requested is not found, and the message says how to get
    it. That way works.
    """
    registry.ready(name)
    missing = registry.client.get(artifact_path(name, profile=WIDER))
    assert error_of(missing) == (404, "artifact_not_found")
    path, said = re.search(r"POST (/\S+) (.*)\.$", missing.json()["error"]["message"]).groups()  # type: ignore[union-attr]
    assert registry.client.post(path, json=json.loads(said)).status_code == 202
    registry.worker.finish_all()
    assert registry.file(name, profile=WIDER).status_code == 200


def test_what_can_never_be_extracted_is_not_found(registry: Registry, name: str):
    """An artifact that can never be extracted is not found. For a given embedding of another width, waiting
    would not help.
    """
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    response = registry.client.get(artifact_path(name, profile=WIDER), params={"wait": LONGER_THAN_CLIENTS})
    assert error_of(response) == (404, "artifact_not_found")
    assert "1024" in response.json()["error"]["message"]


def test_the_last_good_artifact_is_served_until_the_new_one_is_ready(start: Start):
    """The last good artifact is served until the new one is ready, and says that it is not current. Only a
    caller that insists on the current encoder is refused.
    """
    registry = start()
    registry.ready("alice")
    path, before = artifact_path("alice"), registry.file("alice")
    assert before.headers["X-Artifact-Current"] == "true"
    registry.worker.announce(NEWER)
    registry.redis.delete(shared_key(registry.opened.generation.for_reading()))
    registry.opened.profile_records.clear_cache()
    registry.opened.profile_records.read(PROFILE)
    refused = registry.client.get(path, params={"current": True})
    assert error_of(refused) == (409, "artifact_stale")
    assert "not made by the current encoder" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert error_of(registry.client.get(f"{path}/file?current=true")) == (409, "artifact_stale")
    for claimed in (False, True):
        found, file = get(registry, path), registry.file("alice")
        assert (found["state"], found["current"], found["fingerprint"]) == ("ready", False, FINGERPRINT)
        assert (file.status_code, file.content) == (200, before.content)
        assert file.headers["X-Artifact-Fingerprint"] == FINGERPRINT
        assert file.headers["X-Artifact-Current"] == "false"
        assert get(registry, "/v1/voices/alice")["state"] == "ready"
        if not claimed:
            registry.client.post("/v1/audio/voices/alice/cache", params={"wait": 0})
            assert registry.client.get(path, params={"current": True}).status_code == 202
    registry.worker.finish_all()
    assert registry.file("alice").headers["X-Artifact-Fingerprint"] == NEWER
    assert get(registry, path, current=True)["current"] is True


def test_a_fingerprint_can_be_pinned(start: Start):
    """An engine that was tested with one encoder can go on with its artifacts after a promotion."""
    registry = start()
    registry.ready("alice")
    path, before = artifact_path("alice"), registry.file("alice")
    registry.worker.announce(NEWER)
    registry.client.post("/v1/audio/voices/alice/cache", params={"wait": 0})
    registry.worker.finish_all()
    assert registry.file("alice").content != before.content
    pinned = get(registry, path, fingerprint=FINGERPRINT)
    assert (pinned["state"], pinned["current"], pinned["fingerprint"]) == ("ready", False, FINGERPRINT)
    assert registry.client.get(pinned["url"]).content == before.content
    assert get(registry, path, fingerprint=NEWER)["current"] is True
    unknown = registry.client.get(path, params={"fingerprint": "sha256:" + "9" * 64})
    assert error_of(unknown) == (404, "artifact_not_found")
    assert "was made with sha256:9999" in unknown.json()["error"]["message"]
    assert error_of(registry.client.get(path, params={"fingerprint": "newest"})) == (400, "invalid_request")


# -- waiting


@pytest.mark.parametrize("lost", [False, True], ids=["by the event", "though the event is lost"])
def test_waiting_ends_as_soon_as_the_artifact_is_ready(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch, lost: bool
):
    """Waiting ends as soon as the artifact is ready, not at the end of the wait. An event ends it; without
    one, the next look does.
    """
    if lost:
        monkeypatch.setattr(registry.long_polls, "_polls_of", lambda _: [])
    else:
        monkeypatch.setattr(long_polls, "POLL_SECONDS", 60)
    registry.upload(name)
    wait = {"wait": LONGER_THAN_CLIENTS}
    with ThreadPoolExecutor() as pool:
        file = pool.submit(registry.client.get, f"{artifact_path(name)}/file", params=wait)
        descriptor = pool.submit(registry.client.get, artifact_path(name), params=wait)
        time.sleep(0.2)
        assert not file.done()
        registry.worker.finish_all()
        assert (file.result().status_code, descriptor.result().status_code) == (200, 200)
    assert descriptor.result().json()["digest"] == sha256_digest(file.result().content)


def test_waiting_in_vain_says_where_it_stands(registry: Registry, name: str):
    """A wait that ends without an artifact answers 202 with the descriptor, and when to ask again."""
    uploaded = registry.upload(name)
    for path in (artifact_path(name), f"{artifact_path(name)}/file"):
        response = registry.client.get(path, params={"wait": 0.2})
        assert response.status_code == 202
        assert int(response.headers["Retry-After"]) >= 1
        assert (response.json()["state"], response.json()["job_id"]) == ("pending", uploaded["job_id"])
        assert (response.json()["digest"], response.json()["url"]) == (None, None)


@pytest.mark.parametrize("end", ["failed", "deleted"])
def test_waiting_ends_when_there_is_nothing_to_wait_for_any_more(registry: Registry, name: str, end: str):
    """Waiting ends when there is nothing left to wait for. A failure or a delete is an answer too."""
    registry.upload(name)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(registry.client.get, artifact_path(name), params={"wait": 30})
        time.sleep(0.2)
        if end == "failed":
            registry.worker.fail_all(name, InvalidAudio("No speech was found."))
            assert error_of(waiting.result(15)) == (409, "artifact_failed")
        else:
            registry.client.delete(f"/v1/voices/{name}")
            assert error_of(waiting.result(15)) == (404, "voice_not_found")


def test_waiting_covers_the_moment_before_a_lost_job_is_started_again(registry: Registry, name: str):
    """A long poll covers the moment before a lost job is started again. After a crash between a version's
    record and its job, housekeeping starts the job, and the waiting caller gets the artifact.
    """
    registry.upload(name)
    speaker = SpeakerId("default", name)
    [job] = registry.opened.speakers.read(speaker).open_jobs
    registry.opened.jobs.end(speaker, job, "superseded")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(registry.client.get, artifact_path(name), params={"wait": 30})
        time.sleep(0.2)
        assert not waiting.done()
        registry.repair(name)
        registry.worker.finish_all()
        assert waiting.result(15).status_code == 200


def test_a_hundred_that_wait_do_not_hold_up_the_others(registry: Registry, name: str):
    """A hundred waiting requests do not hold up the others. They wait without a thread each, and all of them
    are answered in the end.
    """
    registry.upload(name)
    registry.ready(f"{name}-other")
    with ThreadPoolExecutor(100) as pool, registry.new_client() as patient:
        path = f"{artifact_path(name)}/file"
        waiting = [pool.submit(patient.get, path, params={"wait": 25}) for _ in range(100)]
        wait_until(lambda: registry.long_polls.waiting == 100)
        for _ in range(20):
            get(registry, f"/v1/voices/{name}-other")
        assert not any(one.done() for one in waiting)
        registry.worker.finish_all()
        assert {one.result(20).status_code for one in waiting} == {200}


def test_uploads_that_arrive_slowly_do_not_keep_others_from_their_turn(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """Uploads that arrive slowly, however many, do not keep others from their slot. A slot is for work, not
    for waiting.
    """
    monkeypatch.setattr("services.shared.audio.decoder.WAIT_SECONDS", 0.5)
    registry = start(limits=UploadLimits(decoders=1))
    path = artifact_path("nobody")
    with ExitStack() as stack:
        for _ in range(12):
            slow = stack.enter_context(raw.connected(registry.port))
            slow.sendall(raw.head("PUT", path, "Content-Length: 1000") + b"x")
        time.sleep(0.3)
        registry.upload("alice")
        registry.ready("bob")


@pytest.mark.slow
def test_who_hangs_up_is_not_waited_for(registry: Registry, name: str):
    """A long poll ends when its client disconnects. A client that sends requests and disconnects again and
    again would otherwise keep the registry looking for minutes.
    """
    registry.upload(name)
    paths = [f"{artifact_path(name)}?wait=60", f"/v1/jobs/{registry.upload(name)['job_id']}?wait=60"]
    requests = [raw.head("GET", path) for path in paths]
    requests.append(raw.head("POST", f"/v1/audio/voices/{name}/cache?wait=300", "Content-Length: 0"))
    for request in requests:
        with raw.connected(registry.port) as connection:
            connection.sendall(request)
            wait_until(lambda: registry.long_polls.waiting == 1)
        wait_until(lambda: registry.long_polls.waiting == 0)


def test_who_uploads_is_told_why_the_name_will_not_stand_for_it(
    start: Start, capsys: pytest.CaptureFixture[str]
):
    """An upload's answer explains why the name will not stand for the new version. An embedding fits one of
    two models. The other model's engines keep the clip's voice, and that must not look like a mistake, by
    HTTP or on the command line.
    """
    registry = start(profiles=(PROFILE, WIDER))
    assert "held_back" not in registry.ready("alice")
    uploaded = registry.upload("alice", clip=None, speaker_embedding=EMBEDDING)
    says = f"`default` stays at version 1: version 2 will have no artifact for {WIDER}"
    assert says in uploaded["held_back"]
    assert says in get(registry, "/v1/voices/alice")["held_back"]
    assert says in get(registry, "/v1/voices/alice/versions/2")["held_back"]
    assert get(registry, "/v1/voices/alice/versions/1")["held_back"] is None
    embedding = registry.folder / "embedding.json"
    embedding.write_text(EMBEDDING)
    register = ["register", "alice", "--embedding", str(embedding), "--consent", "another"]
    for words in (register, ["show", "alice"], ["show", "alice@3"]):
        assert cli.main(["--url", registry.url, *words]) == 0
        assert "`default` stays at version 1" in capsys.readouterr().out

    assert "held_back" not in registry.upload("alice", clip=OTHER_CLIP)
    registry.worker.finish_all("alice")
    assert (get(registry, "/v1/voices/alice")["version"], get(registry, "/v1/voices/alice")["held_back"]) == (
        4,
        None,
    )


# -- jobs and profiles


def test_jobs_are_listed_newest_first_and_can_be_narrowed(start: Start):
    """Jobs are listed newest first, in pages that lead on, and can be filtered by state,
    voice and profile.
    """
    registry = start(profiles=(PROFILE, WIDER))
    registry.ready("alice")
    for consent in ("cons_1", "cons_2", "cons_3"):
        registry.upload("bob", consent=consent)
    jobs = get(registry, "/v1/jobs")["data"]
    assert [one["voice"] for one in jobs] == ["bob"] * 6 + ["alice"] * 2
    assert [one["state"] for one in get(registry, "/v1/jobs", state="succeeded")["data"]] == ["succeeded"] * 2
    assert {one["voice"] for one in get(registry, "/v1/jobs", voice="ALICE")["data"]} == {"alice"}
    assert {one["profile"] for one in get(registry, "/v1/jobs", profile=WIDER)["data"]} == {WIDER}
    for size in (1, 3):
        page = get(registry, "/v1/jobs", limit=size)
        seen = page["data"]
        while page["has_more"] and len(seen) < 20:
            page = get(registry, "/v1/jobs", limit=size, after=page["last_id"])
            seen += page["data"]
        assert [one["id"] for one in seen] == [one["id"] for one in jobs]


def test_a_job_tells_its_whole_life(registry: Registry, name: str):
    """A job shows its whole life: queued, processing, succeeded, with times, attempt and progress."""
    path = f"/v1/jobs/{registry.upload(name)['job_id']}"
    queued = get(registry, path)
    assert (queued["object"], queued["state"], queued["attempt"]) == ("job", "queued", 0)
    assert (queued["voice"], queued["version"], queued["profile"]) == (name, 1, PROFILE)
    assert (queued["started_at"], queued["finished_at"], queued["retry_after"]) == (None, None, 1.0)
    assert queued["progress"] == {"stage": "queued", "done": 0, "total": 3}
    [work] = registry.worker.take_all(name)
    processing = get(registry, path)
    assert (processing["state"], processing["attempt"], processing["worker"]) == ("processing", 1, "stand-in")
    assert processing["progress"] == {"stage": "loading", "done": 0, "total": 3}
    registry.opened.jobs.report(work.speaker_id, work.job, work.number, "publishing")
    assert get(registry, path)["progress"] == {"stage": "publishing", "done": 2, "total": 3}
    registry.worker.publish(work)
    done = get(registry, path)
    assert (done["state"], done["error"], done["retry_after"]) == ("succeeded", None, None)
    assert done["progress"] == {"stage": "done", "done": 3, "total": 3}
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]


def test_a_job_that_failed_says_why(registry: Registry, name: str):
    """A job that failed says why, with the code that the SDK raises."""
    path = f"/v1/jobs/{registry.upload(name)['job_id']}"
    registry.worker.fail_all(name, InvalidAudio("No speech was found."))
    failed = get(registry, path)
    assert failed["state"] == "failed"
    assert failed["error"] == {
        "code": "invalid_audio",
        "message": "No speech was found.",
        "retryable": False,
        "attempt": 1,
    }


def test_waiting_for_a_job_ends_with_every_change_of_it(registry: Registry, name: str):
    """A long poll for a job ends with every change of it, so that a progress bar moves without polling. A
    finished job is answered at once.
    """
    path = f"/v1/jobs/{registry.upload(name)['job_id']}"
    with ThreadPoolExecutor() as pool:
        started = pool.submit(get, registry, path, wait=LONGER_THAN_CLIENTS)
        time.sleep(0.2)
        assert not started.done()
        [work] = registry.worker.take_all(name)
        assert started.result()["state"] == "processing"
        ended = pool.submit(get, registry, path, wait=LONGER_THAN_CLIENTS)
        time.sleep(0.2)
        registry.worker.publish(work)
        assert ended.result()["state"] == "succeeded"
    assert get(registry, path, wait=LONGER_THAN_CLIENTS)["state"] == "succeeded"


def test_waiting_for_a_job_in_vain_answers_how_it_stands(registry: Registry, name: str):
    """A wait for a job that does not change answers its current state with 200, because it is a job, whatever
    its state.
    """
    path = f"/v1/jobs/{registry.upload(name)['job_id']}"
    assert get(registry, path, wait=0.2)["state"] == "queued"
    registry.worker.finish_all()


def test_profiles_are_listed_page_by_page(registry: Registry):
    """Profiles are listed in pages, like all lists. The SDK requests them with a limit."""
    everything = [one["id"] for one in get(registry, "/v1/profiles")["data"]]
    assert everything == sorted(everything)
    seen: list[str] = []
    page: dict[str, Any] = {"has_more": True}
    while page["has_more"]:
        page = get(registry, "/v1/profiles", limit=7, after=seen[-1] if seen else "")
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        seen += [one["id"] for one in page["data"]]
    assert seen == everything
    last = get(registry, "/v1/profiles", after=everything[-1])
    assert (last["data"], last["last_id"], last["has_more"]) == ([], None, False)
    assert error_of(registry.client.get("/v1/profiles?after=nope")) == (404, "profile_unknown")
    with RegistryClient(registry.url) as client:
        assert [profile.id for profile in client.profiles()] == everything


def test_a_profile_that_is_made_with_custom_weights_says_so(start: Start):
    """A profile that is made with custom weights is marked, because its voices do not sound as with the
    published weights.
    """
    registry = start(profiles=(PROFILE, WIDER))
    assert not any(one["custom_weights"] for one in get(registry, "/v1/profiles")["data"])
    make_current(registry.opened.profile_records, PROFILE, NEWER, CUSTOM_WEIGHTS)
    shown = {one["id"]: one for one in get(registry, "/v1/profiles")["data"]}
    assert (shown[PROFILE]["custom_weights"], shown[WIDER]["custom_weights"]) == (True, False)


def test_a_job_says_which_weights_it_is_made_with(start: Start):
    """A job shows which weights it is made with as long as they are those of the profile. The weights of an
    encoder that was replaced are no longer known.
    """
    registry = start(profiles=(PROFILE,))
    announce = partial(make_current, registry.opened.profile_records, PROFILE)
    announce(NEWER, CUSTOM_WEIGHTS)
    job_id = registry.upload("alice")["job_id"]
    job = get(registry, f"/v1/jobs/{job_id}")
    assert (job["fingerprint"], job["custom_weights"], job["untrained"]) == (NEWER, True, False)
    announce("sha256:" + "3" * 64, {}, untrained=True)
    [job] = get(registry, "/v1/jobs")["data"]
    assert (job["fingerprint"], job["custom_weights"], job["untrained"]) == (NEWER, None, None)


def test_profiles_say_what_they_hold_and_who_makes_them(registry: Registry):
    """A profile lists its tensors and the workers that make it. An engine chooses by them, and sees if a
    worker lives.
    """
    profiles = {one["id"]: one for one in get(registry, "/v1/profiles")["data"]}
    assert {PROFILE, WIDER} <= profiles.keys()
    assert (profiles[PROFILE]["required"], profiles[WIDER]["required"]) == (True, False)
    assert profiles[PROFILE]["tensors"]["speaker_embedding"]["shape"] == [1024]
    assert profiles[PROFILE]["fingerprint"] == FINGERPRINT
    assert profiles[PROFILE]["workers"] == 0
    registry.opened.workers.beat("w1", {PROFILE: FINGERPRINT})
    assert {one["id"]: one["workers"] for one in get(registry, "/v1/profiles")["data"]}[PROFILE] == 1


# -- conditions, ids, forms of errors


def stop_the_clock(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the summary of jobs as it is. It counts the jobs of the last minute, which those of other tests
    would leave between two requests.
    """
    now = registry.opened.clock.now()
    monkeypatch.setattr(registry.opened.clock, "now", lambda: now)


def test_every_get_has_an_etag_that_saves_the_body(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Every GET has an ETag that saves the body. A dashboard that polls and an engine that revalidates get
    304 as long as nothing changed.
    """
    job = registry.ready(name)["job_id"]
    stop_the_clock(registry, monkeypatch)
    paths = ["/v1/voices", "/v1/audio/voices", "/v1/jobs", "/v1/jobs/summary", "/v1/profiles"]
    paths += [f"/v1/jobs/{job}"]
    paths += [
        f"/v1/voices/{name}{tail}" for tail in ("", "/versions", "/versions/1", "/versions/1/artifacts")
    ]
    paths += [artifact_path(name), f"{artifact_path(name)}/file", f"/v1/audio/voices/{name}/cache"]
    paths += [audio_path(name), f"{audio_path(name)}/samples"]
    for path in paths:
        tag = registry.client.get(path).headers["ETag"]
        strong = tag.removeprefix("W/")
        for given in (strong, f"W/{strong}", f'"other", {strong}', f'"other", W/{strong}', "*"):
            same = registry.client.get(path, headers={"If-None-Match": given})
            assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", tag), (path, given)
        for other in ('"other"', strong.strip('"'), "", ", ".join(['"x"'] * 2000)):
            assert registry.client.get(path, headers={"If-None-Match": other}).status_code == 200, (
                path,
                other,
            )


def test_every_get_has_a_head_that_says_the_same_without_the_body(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Every GET has a HEAD with the same headers and no body. RFC 9110 requires it, and
    monitors and caches use it.
    """
    # A quota's headers give the seconds until the next minute begins.
    monkeypatch.setattr(registry.app.state.parts.services.access.rate_limits, "now", lambda: 1_775_133_885.0)
    job_id = registry.ready(name)["job_id"]
    registry.upload(name, clip=OTHER_CLIP)  # on its way
    stop_the_clock(registry, monkeypatch)
    templates = [path for path, methods in registry.app.openapi()["paths"].items() if "get" in methods]
    assert len(templates) == 32
    templates.remove("/metrics")  # which counts the GET, and then says more
    templates.remove("/v1/events")  # which has no end
    there = {"name": name, "ref": 1, "profile": PROFILE, "job_id": job_id, "key_id": "nokeyid0"}
    there |= {"campaign_id": "no-campaign", "alias": "default"}
    there["digest"] = registry.file(name, 1).headers["ETag"].strip('"')
    not_there = {**there, "ref": 2, "job_id": "no-job", "alias": "prod", "digest": "sha256:" + "0" * 64}
    paths = [one.format(**values) for values in (there, not_there) for one in templates]
    for path in (*paths, "/docs", "/openapi.json"):
        got, head = (
            registry.client.request(
                method, path, headers={"X-Request-Id": "req_1", "Accept-Encoding": "identity"}
            )
            for method in ("GET", "HEAD")
        )
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert {**head.headers, "date": ""} == {**got.headers, "date": ""}, path
        assert int(head.headers["Content-Length"]) == len(got.content) > 0, path


def test_head_asks_whether_somebody_has_a_file_and_reads_none(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """HEAD checks that a file exists without reading it. Files are large, and their
    content would not be sent.
    """
    registry.ready(name)
    paths = (f"{artifact_path(name)}/file", audio_path(name))
    tags = [registry.client.get(path).headers["ETag"] for path in paths]
    monkeypatch.setattr(registry.opened.store, "get", None)
    for path, tag in zip(paths, tags, strict=True):
        assert registry.client.head(path).headers["ETag"] == tag
        assert registry.client.head(path, headers={"If-None-Match": tag}).status_code == 304


def test_head_waits_as_get_does(registry: Registry, name: str):
    """HEAD waits as GET does, because it must have the same answer."""
    registry.upload(name)
    start = time.monotonic()
    assert registry.client.head(artifact_path(name), params={"wait": "0.5"}).status_code == 202
    assert time.monotonic() - start >= 0.5


def test_an_etag_changes_with_what_it_stands_for(registry: Registry, name: str):
    """An ETag changes with the content that it identifies. A client would otherwise never
    see the new version.
    """
    registry.ready(name)
    tag = registry.client.get(f"/v1/voices/{name}").headers["ETag"]
    registry.upload(name, clip=OTHER_CLIP)
    changed = registry.client.get(f"/v1/voices/{name}", headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["latest"]) == (200, 2)


@pytest.mark.parametrize("tag", ["*", '"x"'])
def test_a_condition_for_reading_does_not_concern_a_write(registry: Registry, name: str, tag: str):
    """A condition for reads has no effect on a write. A 304 to an upload would look as if
    it had not happened.
    """
    headers = {"If-None-Match": tag}
    assert registry.post_voice(name, headers=headers).status_code == 200
    assert registry.client.delete(f"/v1/audio/voices/{name}", headers=headers).status_code == 200


def test_a_voice_is_deleted_only_in_the_state_that_the_caller_means(registry: Registry, name: str):
    """A voice is deleted only in the state that the caller's condition names, because another client may have
    uploaded a new version since.
    """
    registry.ready(name)
    path = f"/v1/voices/{name}"
    seen = registry.client.get(path).headers["ETag"]
    registry.ready(name, clip=OTHER_CLIP)
    refused = registry.client.delete(path, headers={"If-Match": seen})
    assert error_of(refused) == (412, "precondition_failed")
    assert registry.client.get(path).headers["ETag"] in refused.json()["error"]["message"]
    assert registry.client.get(path).status_code == 200
    now = registry.client.get(path).headers["ETag"]
    assert registry.client.delete(path, headers={"If-Match": now}).status_code == 204
    registry.upload(name)
    assert registry.client.delete(path, headers={"If-Match": "*"}).status_code == 204
    assert error_of(registry.client.delete(path, headers={"If-Match": "*"})) == (404, "voice_not_found")


def test_a_version_that_comes_between_look_and_delete_is_not_deleted(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """A version that is uploaded between the check and the delete is not deleted. It was acknowledged, and
    the deleting caller has not seen it.
    """
    registry.ready(name)
    path = f"/v1/voices/{name}"
    check = answers.check_if_match

    def check_and_upload(*arguments: Any) -> None:
        check(*arguments)
        registry.upload(name, clip=OTHER_CLIP)

    monkeypatch.setattr(answers, "check_if_match", check_and_upload)
    tag = registry.client.get(path).headers["ETag"]
    assert error_of(registry.client.delete(path, headers={"If-Match": tag})) == (412, "precondition_failed")
    assert get(registry, path)["versions"] == 2


def test_a_request_id_is_taken_over_or_made(registry: Registry):
    """A request id is adopted or made. It links a caller to the logs, in errors too."""
    given = registry.client.get("/v1/voices", headers={"X-Request-Id": "req-1.a_B"})
    assert given.headers["X-Request-Id"] == "req-1.a_B"
    for bad in ("", "a b", "x" * 129, "é"):
        made = registry.client.get("/v1/voices/nobody", headers=[(b"X-Request-Id", bad.encode())])
        assert re.fullmatch(r"req_[0-9a-f]{24}", made.headers["X-Request-Id"])
        assert made.json()["error"]["request_id"] == made.headers["X-Request-Id"]
    too_large = raw.ask(registry.port, raw.head("POST", "/v1/audio/voices", f"Content-Length: {10**9}"))
    assert too_large.error["request_id"] == too_large.headers["x-request-id"]


def test_a_crash_says_nothing_but_its_request_id(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    """A crash reveals nothing but its request id, because exception texts hold paths,
    keys and transcripts.
    """

    def crash(*_: Any) -> None:
        raise RuntimeError("the secret is /var/secret")

    monkeypatch.setattr(registry.opened.speakers, "read", crash)
    with httpx.Client(base_url=registry.url) as client:
        for path, code in (("/v1/voices/x", "internal_error"), ("/v1/audio/voices/x/cache", 500)):
            response = client.get(path, headers={"X-Request-Id": "req-1"})
            assert error_of(response) == (500, code)
            assert "secret" not in response.text
            assert response.headers["X-Request-Id"] == response.json()["error"]["request_id"] == "req-1"


def test_who_asks_for_problem_details_gets_them(registry: Registry):
    """A client that accepts problem details (RFC 9457) gets them, on every route."""
    headers = {"Accept": "application/problem+json", "X-Request-Id": "req-1"}
    for path in ("/v1/voices/nobody", "/v1/audio/voices/nobody/cache", "/v1/nowhere", "/v1/voices?limit=0"):
        response = registry.client.get(path, headers=headers)
        problem = response.json()
        assert response.headers["Content-Type"] == "application/problem+json"
        assert problem["status"] == response.status_code
        assert problem["type"] == f"urn:speaker-registry:error:{problem['code']}"
        assert problem["instance"] == path.partition("?")[0]
        assert {type(problem[key]) for key in ("title", "detail", "code", "request_id")} == {str}
        assert problem["request_id"] == "req-1"


def test_errors_on_our_own_routes_have_openais_types(registry: Registry, name: str):
    """Errors on the registry's own routes have OpenAI's types. The SDK chooses its
    exception by the string `code`.
    """
    registry.upload(name)
    kinds = {
        "/v1/voices/nobody": "not_found_error",
        "/v1/voices?limit=0": "invalid_request_error",
        "/v1/voices/a@b": "invalid_request_error",
    }
    for path, kind in kinds.items():
        error = registry.client.get(path).json()["error"]
        assert (error["type"], type(error["code"])) == (kind, str)
    registry.worker.fail_all(name, InvalidAudio("No speech."))
    assert registry.file(name).json()["error"]["type"] == "conflict_error"


# -- when parts fail


def test_health_says_only_that_the_process_lives(start: Start):
    """The health check says only that the process lives. Restarting it would not repair its dependencies."""
    registry = start()
    shutil.rmtree(registry.folder)
    assert get(registry, "/healthz") == {"status": "ok"}
    for path, status in (("/healthz", 200), ("/readyz", 503)):
        answer = registry.client.get(path)
        assert (answer.status_code, answer.headers["Cache-Control"]) == (status, "no-store")


def test_many_who_ask_whether_it_is_ready_cost_one_look(start: Start, monkeypatch: pytest.MonkeyPatch):
    """Many readiness checks at once cost one look. Any client may send them, and each look takes a thread and
    reads from the bucket.
    """
    registry = start()
    looks: list[float] = []

    def check() -> None:
        looks.append(time.monotonic())
        time.sleep(0.2)

    monkeypatch.setattr(registry.opened.store, "check", check)
    began = time.monotonic()
    with ThreadPoolExecutor(30) as pool:
        codes = list(pool.map(lambda _: registry.client.get("/readyz").status_code, range(90)))
    assert set(codes) == {200}
    assert 1 <= len(looks) <= 2 + (time.monotonic() - began) / readiness.CACHE_SECONDS


def test_readiness_names_the_store_when_it_is_gone(start: Start):
    """Readiness names the store when it is gone. Uploads are refused with a request to repeat them, and
    nothing of them exists afterwards.
    """
    registry = start()
    ready = get(registry, "/readyz")
    assert (ready["status"], ready["parts"]) == ("ok", {"store": "ok", "view": "ok"})
    registry.ready("alice")
    away = Path(shutil.move(registry.folder, registry.folder.with_suffix(".away")))
    ready = ready_now(registry)
    assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
    assert ready.json()["parts"]["view"] == "ok"
    assert "store" in ready.json()["parts"]["store"]
    assert str(registry.folder) not in ready.text
    for response in (
        registry.post_voice("bob"),
        registry.post_voice("bob", clip=None, speaker_embedding=EMBEDDING),
    ):
        assert (response.status_code, response.json()["error"]["reason"]) == (503, "unavailable")
        assert int(response.headers["Retry-After"]) >= 1
    assert error_of(registry.file("alice")) == (503, "unavailable")
    assert get(registry, "/v1/voices/alice")["state"] == "ready"
    shutil.move(away, registry.folder)
    assert ready_now(registry).status_code == 200
    assert get(registry, "/v1/audio/voices")["voices"] == ["alice", "default"]
    registry.upload("bob")


def test_reads_go_on_from_the_bucket_without_redis(start: Start, tmp_path: Path):
    """Reads go on from the bucket without Redis. Engines that start while Redis is away still get their
    voices, and writes wait for it. A cache call that finds everything in place is a read.
    """
    with ValkeyServer(tmp_path / "redis") as server:
        registry = start(server.url, kept_bytes=0)
        registry.ready("alice")
        file = registry.file("alice")
        server.stop()
        before = {path for path in registry.folder.rglob("*") if path.is_file()}

        ready = ready_now(registry)
        assert (ready.status_code, ready.json()["parts"]["store"]) == (503, "ok")
        assert "cannot be reached" in ready.json()["parts"]["view"]
        assert registry.file("alice").content == file.content
        assert get(registry, "/v1/voices/alice")["state"] == "ready"
        assert keys(get(registry, "/v1/voices")) == ["alice"]
        assert get(registry, "/v1/audio/voices")["voices"] == ["alice", "default"]
        assert get(registry, "/v1/audio/voices/alice/cache")["cache_status"] == "ready"
        cached = registry.client.post("/v1/audio/voices/alice/cache").json()
        assert (cached["cache_status"], cached["message"]) == (
            "ready",
            "Cache already exists and is valid",
        )
        writes = [
            registry.post_voice("bob"),
            registry.post_voice("bob", clip=None, speaker_embedding=EMBEDDING),
            registry.client.delete("/v1/audio/voices/alice"),
            registry.client.delete("/v1/voices/alice"),
            registry.client.post("/v1/audio/voices/alice/cache", params={"force": True}),
        ]
        for response in writes:
            assert response.status_code == 503, response.text
            assert int(response.headers["Retry-After"]) >= 1
        assert {path for path in registry.folder.rglob("*") if path.is_file()} == before


def test_a_redis_that_lost_everything_is_no_outage(start: Start):
    """A Redis that lost everything is no outage. Every voice is read from the bucket until the view has it,
    and writes go on.
    """
    registry = start(kept_bytes=0)
    registry.ready("alice")
    registry.redis.flushdb()
    assert ready_now(registry).status_code == 200
    assert registry.file("alice").status_code == 200
    assert keys(get(registry, "/v1/voices")) == ["alice"]
    registry.upload("bob")
    assert keys(get(registry, "/v1/voices")) == ["alice", "bob"]
    refused = registry.client.get("/v1/quota")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    registry.rebuild()
    assert registry.client.get("/v1/quota").status_code == 200
    assert keys(get(registry, "/v1/voices")) == ["alice", "bob"]


def test_a_redis_of_another_registry_is_said_to_be_one(start: Start):
    """A Redis that belongs to another registry is reported as such. Two registries that share one would take
    it from each other.
    """
    registry = start()
    registry.redis.set("sr:view", "some run/another bucket/4")
    ready = ready_now(registry)
    assert (ready.status_code, ready.json()["parts"]["store"]) == (503, "ok")
    assert ready.json()["parts"]["view"].startswith("Redis holds the view of another bucket. Accepted:")


# -- clips


@pytest.mark.parametrize(("clip", "mime_type"), [(CLIP, "audio/wav"), (OTHER_CLIP, "audio/flac")])
def test_a_clip_comes_back_as_it_was_uploaded(registry: Registry, name: str, clip: bytes, mime_type: str):
    """A clip is returned as it was uploaded: byte for byte, with its detected media type
    and the version's metadata.
    """
    registry.upload(name, clip=clip)
    facts = get(registry, f"/v1/voices/{name}/versions/1")["audio"]
    assert facts["url"] == audio_path(name, 1)
    for path in (facts["url"], audio_path(name)):
        response = registry.client.get(path)
        assert response.content == clip
        assert response.headers["Content-Type"] == mime_type == facts["mime_type"]
        assert response.headers["ETag"] == f'"{facts["digest"]}"'
        assert response.headers["X-Voice-Version"] == "1"
        assert response.headers["Content-Disposition"] == "attachment"
        assert response.headers["Cache-Control"] == "private, no-cache"
    with RegistryClient(registry.url) as client:
        assert client.clip(name) == client.clip(f"{name}@1") == (clip, mime_type)


def test_the_decoded_samples_of_a_clip_can_be_fetched(registry: Registry, name: str):
    """The samples are those that extractors read: mono, float32, at the rate of the clip."""
    registry.upload(name, clip=OTHER_CLIP)
    path = f"{audio_path(name)}/samples"
    response = registry.client.get(path)
    assert response.headers["Content-Type"] == "application/vnd.safetensors"
    assert response.headers["ETag"] == f'"{sha256_digest(response.content)}"'
    assert response.headers["Cache-Control"] == "private, no-cache"
    assert registry.client.get(path, headers={"If-None-Match": response.headers["ETag"]}).status_code == 304
    head = registry.client.head(path)
    assert (head.content, head.headers["Content-Length"]) == (b"", str(len(response.content)))
    expected = clips.tone(1.6, 16000)[:, 0]
    with RegistryClient(registry.url) as client:
        for found in (client.samples(name), client.samples(name, 1)):
            assert (found.sample_rate, found.samples.dtype, found.samples.shape) == (
                16000,
                np.float32,
                (25600,),
            )
            assert np.abs(found.samples - expected).max() < 1e-4, "FLAC has 16 bits"


def test_a_version_of_a_given_embedding_has_no_clip(registry: Registry, name: str):
    """A version of a given embedding has no clip, because none was uploaded."""
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    response = registry.client.get(audio_path(name))
    assert error_of(response) == (404, "audio_not_found")
    assert "precomputed speaker embedding" in response.json()["error"]["message"]
    assert error_of(registry.client.get(f"{audio_path(name)}/samples")) == (404, "audio_not_found")
    with RegistryClient(registry.url) as client:
        for fetch in (client.clip, client.samples):
            with pytest.raises(AudioNotFound):
                fetch(name)


# -- a file that is fetched while its voice goes


def test_a_file_whose_voice_is_deleted_while_it_is_fetched_is_not_found(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """A file whose voice is deleted while it is fetched is not found. The bytes may be deleted between the
    lookup and the read.
    """
    registry.ready(name)
    read = registry.opened.store.get

    def read_late(key: str) -> bytes:
        if key.endswith(".safetensors"):
            registry.delete(name)
            (registry.folder / key).unlink()
        return read(key)

    monkeypatch.setattr(registry.opened.store, "get", read_late)
    assert error_of(registry.file(name)) == (404, "voice_not_found")


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_clip_that_is_missing_or_damaged_is_never_served(registry: Registry, name: str, damage: str):
    """A clip that is missing or damaged is never served. The caller is told how to bring it back, and the
    registry's logs name the object.
    """
    registry.ready(name)
    path = audio_path(name)
    [file] = registry.folder.rglob(f"*/{name}/*/clip")
    assert registry.client.get(path).content == file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with httpx.Client(base_url=registry.url) as client:
        response = client.get(path)
    assert error_of(response) == (500, "clip_damaged")
    assert f"version 1 is {damage} in the bucket" in response.json()["error"]["message"]
    assert name not in response.text
    registry.upload(name)
    assert registry.client.get(path).content == file.read_bytes()


def test_fetches_racing_uploads_and_deletes_see_whole_files_or_none(registry: Registry, name: str):
    """Fetches that race uploads and deletes get whole files or none. Each answer is one version's own bytes,
    or says that there is none.
    """
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            registry.post_voice(name)
            registry.worker.finish_all()
            registry.client.delete(f"/v1/voices/{name}")

    def fetch() -> set[int]:
        seen = set()
        while not stop.is_set():
            response = registry.client.get(f"{artifact_path(name)}/file")
            seen.add(response.status_code)
            if response.status_code == 200:
                manifest = Artifact.parse(response.content).manifest
                assert str(manifest.version) == response.headers["X-Voice-Version"]
                assert sha256_digest(response.content) == json.loads(response.headers["ETag"])
        return seen

    with ThreadPoolExecutor(4) as pool:
        churning = pool.submit(churn)
        fetching = [pool.submit(fetch) for _ in range(3)]
        time.sleep(1.5)
        stop.set()
        churning.result(20)
        assert set().union(*(one.result(20) for one in fetching)) <= {200, 202, 404}
