"""Tests that every route that takes a name also takes the ids that answers contain. Clients of OpenAI's API
use nothing else (`client.audio.voices.delete(voice.id)`).
"""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from speaker_registry import RegistryClient, cli
from speaker_registry.errors import VoiceNotFound
from tests.integration.api.registry import OTHER_CLIP, PROFILE, Registry

NAMES = ("Wren", "名前", "a b", "x.y-z_1")


def id_of(registry: Registry, name: str) -> str:
    found: str = registry.client.get(f"/v1/voices/{name}").json()["id"]
    return found


@pytest.mark.parametrize("suffix", NAMES)
def test_every_answer_gives_the_same_id_and_every_route_takes_it(registry: Registry, name: str, suffix: str):
    """Every answer has the same id for a voice, and every route takes it, whatever the name looks like. An id
    has only letters that no URL has to escape.
    """
    name = f"{name} {suffix}"
    uploaded = registry.ready(name)
    voice_id, get = uploaded["id"], registry.client.get
    assert voice_id == id_of(registry, name)
    assert httpx.URL(f"http://a/{voice_id}").raw_path.decode() == f"/{voice_id}"
    listed = get("/v1/audio/voices").json()["data"]
    assert {"object": "audio.voice", "id": voice_id, "name": name}.items() <= next(
        one for one in listed if one["id"] == voice_id
    ).items()
    for template in (
        "/v1/voices/{}",
        "/v1/voices/{}/versions",
        "/v1/voices/{}/versions/default",
        "/v1/voices/{}/versions/1/audio",
        "/v1/voices/{}/versions/1/artifacts",
        f"/v1/voices/{{}}/versions/1/artifacts/{PROFILE}",
        f"/v1/voices/{{}}/versions/default/artifacts/{PROFILE}/file",
        "/v1/audio/voices/{}/cache",
        "/v1/jobs?voice={}",
    ):
        by_name, by_id = get(template.format(name)), get(template.format(voice_id))
        assert by_id.status_code == 200, template
        assert by_id.content == by_name.content, template


def test_extraction_is_asked_for_by_id(registry: Registry, name: str):
    """Extraction can be requested and awaited by id. The event that ends the wait names
    the voice, not its id.
    """
    voice_id = registry.upload(name)["id"]
    with registry.worker.working():
        cached = registry.client.post(f"/v1/audio/voices/{voice_id}/cache", params={"wait": 20})
    assert cached.json() == {"voice": name, "cache_status": "ready", "version": 1}
    registry.upload(name, clip=OTHER_CLIP)
    with registry.worker.working():
        path = f"/v1/voices/{voice_id}/versions/2/artifacts/{PROFILE}"
        assert registry.client.get(path, params={"wait": 20}).json()["state"] == "ready"


def test_a_voice_keeps_its_id_when_its_first_version_is_deleted(registry: Registry, name: str):
    """A voice keeps its id when its first version is deleted. Callers hold it, and engines that follow a
    manifest would take the voice for a deleted one.
    """
    first = registry.ready(name)["id"]
    registry.ready(name, clip=OTHER_CLIP)
    assert registry.client.delete(f"/v1/voices/{name}/versions/1").status_code == 204
    assert first == id_of(registry, name)
    with RegistryClient(registry.url, retries=0) as client:
        assert {one.voice: one.voice_id for one in client.manifest(PROFILE)}[name] == first
    file = registry.client.get(f"/v1/voices/{first}/versions/2/artifacts/{PROFILE}/file")
    assert file.status_code == 200
    assert registry.client.delete(f"/v1/voices/{first}").status_code == 204
    assert registry.client.get(f"/v1/voices/{first}").status_code == 404
    assert registry.client.post(f"/v1/voices/{name}/undelete").json()["id"] == first
    registry.client.delete(f"/v1/voices/{name}")
    assert registry.ready(name)["id"] != first
    assert registry.client.get(f"/v1/voices/{first}").status_code == 404


@pytest.mark.parametrize("route", ["/v1/voices/", "/v1/audio/voices/"])
def test_a_voice_is_deleted_by_its_id(registry: Registry, name: str, route: str):
    """A voice can be deleted by its id, as openai-python does it."""
    voice_id = registry.ready(name)["id"]
    gone = registry.client.delete(f"{route}{voice_id}")
    assert gone.status_code in {200, 204}
    if gone.content:
        assert gone.json()["id"] == voice_id
        assert gone.json()["message"] == f"Voice '{name}' deleted successfully"
    for known_as in (name, voice_id):
        assert registry.client.get(f"/v1/voices/{known_as}").status_code == 404
        assert registry.client.delete(f"{route}{known_as}").status_code == 404


def test_an_id_is_of_one_life_of_a_name(registry: Registry, name: str):
    """An id belongs to one life of a name. A caller that holds the id of a deleted voice must not get, or
    delete, the voice that has its name now.
    """
    old = registry.ready(name)["id"]
    registry.client.delete(f"/v1/voices/{name}")
    new = registry.ready(name)["id"]
    assert new != old
    for path in (f"/v1/voices/{old}", f"/v1/voices/{old}/versions/2/artifacts/{PROFILE}/file"):
        assert registry.client.get(path).status_code == 404
    assert registry.client.delete(f"/v1/voices/{old}").status_code == 404
    assert id_of(registry, name) == new


def test_a_delete_by_id_spares_a_voice_that_took_the_name_meanwhile(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """A delete by id spares a voice that took the name meanwhile, when another client deletes the voice and
    registers a new one between the lookup and the delete.
    """
    old = registry.ready(name)["id"]

    def replace() -> None:
        registry.delete(name)
        registry.ready(name)

    once_before_a_change(registry, monkeypatch, replace)
    assert registry.client.delete(f"/v1/voices/{old}").status_code == 404
    assert registry.client.get(f"/v1/voices/{name}").status_code == 200


def test_a_delete_by_id_is_not_stopped_by_another_change(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """A delete by id is not stopped by another change. A new version or a promotion does
    not make it another voice.
    """
    voice_id = registry.ready(name)["id"]
    once_before_a_change(registry, monkeypatch, lambda: registry.upload(name, clip=OTHER_CLIP))
    assert registry.client.delete(f"/v1/voices/{voice_id}").status_code == 204
    assert registry.client.get(f"/v1/voices/{name}").status_code == 404


def once_before_a_change(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object]
) -> None:
    """Let something happen after the next change has found its voice, and before it takes effect."""
    speakers = registry.opened.speakers
    changing = speakers.changing

    def late(*given: Any, **more: Any) -> Any:
        monkeypatch.undo()
        happen()
        return changing(*given, **more)

    monkeypatch.setattr(speakers, "changing", late)


def test_a_name_comes_before_an_id(registry: Registry, name: str):
    """A name takes precedence over an id. Names may look like anything, and a voice whose name looks like an
    id is found by it as before.
    """
    voice_id = registry.ready(name)["id"]
    impostor = registry.ready(voice_id)
    found = registry.client.get(f"/v1/voices/{voice_id}").json()
    assert (found["name"], found["id"]) == (voice_id, impostor["id"])
    assert registry.client.get(f"/v1/voices/{impostor['id']}").json()["name"] == voice_id
    registry.client.delete(f"/v1/voices/{voice_id}")
    assert registry.client.get(f"/v1/voices/{voice_id}").json()["name"] == name


@pytest.mark.parametrize("change", ["another vuid", "another slug", "no slug", "cut short"])
def test_what_is_nearly_an_id_is_none(registry: Registry, name: str, change: str):
    """A text that is almost an id is not found, so that no other voice is ever returned
    than the one that is meant.
    """
    voice_id = registry.ready(name)["id"]
    prefix, vuid, slug = voice_id.split("_", 2)
    other = {
        "another vuid": f"{prefix}_{'0' * 32}_{slug}",
        "another slug": f"{prefix}_{vuid}_{slug}x",
        "no slug": f"{prefix}_{vuid}",
        "cut short": f"{prefix}_{vuid[1:]}_{slug}",
    }[change]
    missing = registry.client.get(f"/v1/voices/{other}")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == f"Voice '{other}' not found"


def test_sdk_and_command_line_take_ids(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """SDK and command line take ids. The SDK compares each artifact with what was requested, which is not the
    name here.
    """
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", registry.url)
    voice_id = registry.ready(f"{name} Å")["id"]
    with RegistryClient(registry.url, retries=0) as client:
        assert client.wait_ready(voice_id).reference == f"{name} Å@1"
        artifact = client.fetch(f"{voice_id}@1", PROFILE)
        assert artifact.manifest.voice == f"{name} Å"
        assert client.fetch(f"{voice_id}@1", PROFILE).digest == artifact.digest
        assert cli.main(["show", voice_id]) == 0
        assert voice_id in capsys.readouterr().out
        client.delete(voice_id)
        with pytest.raises(VoiceNotFound):
            client.get(voice_id)
