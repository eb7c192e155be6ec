"""Tests of deleting single versions, and of undeleting voices."""

import asyncio

import httpx
import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient, cli
from speaker_registry.errors import Conflict, VersionNotFound, VoiceExists, VoiceNotFound
from tests.integration.api.registry import PROFILE, Registry
from tests.integration.api.test_aliases import get, make_versions, put
from tests.integration.api.test_voices_by_id import once_before_a_change
from tests.unit.audio import clips


def numbers(registry: Registry, name: str) -> list[int]:
    return [one["version"] for one in registry.client.get(f"/v1/voices/{name}/versions").json()["data"]]


def remove(registry: Registry, name: str, ref: int | str, **headers: str) -> httpx.Response:
    return registry.client.delete(f"/v1/voices/{name}/versions/{ref}", headers=headers)


def undelete(registry: Registry, name: str) -> httpx.Response:
    return registry.client.post(f"/v1/voices/{name}/undelete")


def refusal(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_a_version_is_deleted_while_the_others_stay(registry: Registry, name: str):
    """Its number is not used again, and engines never see the voice go."""
    make_versions(registry, name, 3)
    file = registry.file(name, 1)
    refused = remove(registry, name, 3)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "default points to it" in refused.json()["error"]["message"]
    stale = registry.client.get(f"/v1/voices/{name}/versions/2").headers["ETag"]
    assert remove(registry, name, 1, **{"If-Match": stale}).status_code == 412
    assert remove(registry, name, 2, **{"If-Match": stale}).status_code == 204
    assert numbers(registry, name) == [3, 1]
    again = remove(registry, name, 2)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "version_not_found")
    assert remove(registry, name, "default").status_code == 400
    assert registry.file(name, 2).status_code == 404
    assert registry.file(name, 1).content == file.content
    assert registry.upload(name, clip=clips.wav(2.0))["version"] == 4


def test_the_jobs_of_a_deleted_version_end(registry: Registry, name: str):
    """Nobody waits for what cannot come any more, and what a worker still publishes is not served."""
    make_versions(registry, name, 1)
    jobs = registry.upload(name, clip=clips.wav(2.0))["jobs"]
    attempts = registry.worker.take_all(name)
    assert remove(registry, name, 2).status_code == 204
    states = {registry.client.get(f"/v1/jobs/{job}").json()["state"] for job in jobs.values()}
    assert states == {"superseded"}
    assert [registry.worker.publish(one) for one in attempts] == [False] * len(attempts)
    assert numbers(registry, name) == [1]


def test_the_last_version_takes_the_voice_along_and_both_come_back(registry: Registry, name: str):
    """What comes back is what there was: versions, numbers, artifacts and the move by hand."""
    make_versions(registry, name)
    put(registry, name, "default", 1)
    put(registry, name, "prod", 1)
    before, file = registry.client.get(f"/v1/voices/{name}").json(), registry.file(name).content
    registry.delete(name)
    assert registry.file(name).status_code == 404
    assert undelete(registry, name).json() == before
    assert registry.client.get(f"/v1/voices/{name}").json() == before
    assert get(registry, name).json()["by_hand"] is True
    assert registry.file(name).content == file
    assert registry.worker.queued(name) == []
    again = undelete(registry, name)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "voice_exists")
    assert remove(registry, name, 2).status_code == 204
    assert remove(registry, name, 1).status_code == 204
    assert registry.client.get(f"/v1/voices/{name}").status_code == 404
    assert undelete(registry, name).json()["versions"] == 1


def test_a_voice_comes_back_by_its_id(registry: Registry, name: str, capsys: pytest.CaptureFixture[str]):
    """The id need not contain the name. A second attempt is told that the voice is there."""
    before = registry.ready(f"{name} Å")["id"]
    registry.delete(before)
    assert undelete(registry, before).json()["id"] == before
    assert refusal(undelete(registry, before)) == (409, "voice_exists")
    registry.delete(before)
    assert cli.main(["undelete", before, "--url", registry.url]) == 0
    assert f"{name} Å is back" in capsys.readouterr().out


def test_an_id_brings_no_other_voice_back(registry: Registry, name: str):
    """The name may have been registered again since, and that voice deleted as well."""
    first = registry.ready(name)["id"]
    registry.delete(name)
    second = registry.ready(name)["id"]
    assert refusal(undelete(registry, first)) == (404, "voice_not_found")
    assert registry.client.get(f"/v1/voices/{name}").json()["id"] == second
    registry.delete(name)
    refused = undelete(registry, first)
    assert refusal(refused) == (404, "voice_not_found")
    assert refused.json()["error"]["message"] == (
        f"There is no deleted voice '{first}' that can be restored. Accepted: the name or the id of a voice "
        "that was deleted within the grace period and whose name was not registered again."
    )
    assert registry.client.get(f"/v1/voices/{name}").status_code == 404
    assert undelete(registry, second).json()["id"] == second


def test_an_id_brings_no_voice_back_that_took_the_name_meanwhile(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Another client registers and deletes a voice of that name between the lookup and the restore."""
    first = registry.ready(name)["id"]
    registry.delete(name)

    def replace() -> None:
        registry.ready(name)
        registry.delete(name)

    once_before_a_change(registry, monkeypatch, replace)
    assert refusal(undelete(registry, first)) == (404, "voice_not_found")
    assert registry.client.get(f"/v1/voices/{name}").status_code == 404


def test_a_deleted_name_comes_back_before_the_voice_that_has_it_as_its_id(registry: Registry, name: str):
    """Names may look like anything. A live voice with this id must not keep the name's voice away."""
    voice_id = registry.ready(name)["id"]
    impostor = registry.ready(voice_id)["id"]
    registry.delete(voice_id)
    assert undelete(registry, voice_id).json()["id"] == impostor


def test_what_a_voice_lacks_when_it_comes_back_is_extracted(registry: Registry, name: str):
    """The jobs of a voice end with it."""
    registry.upload(name)
    registry.delete(name)
    assert registry.worker.queued(name) == []
    shown = undelete(registry, name).json()
    assert [one["state"] for one in shown["artifacts"] if one["profile"] == PROFILE] == ["pending"]
    registry.worker.finish_all(name)
    assert registry.file(name).status_code == 200


def test_the_sdk_deletes_versions_and_brings_voices_back(registry: Registry, name: str):
    make_versions(registry, name)
    with RegistryClient(registry.url, cache=None) as client:
        with pytest.raises(Conflict):
            client.delete_version(name, 2)
        client.delete_version(name, 1)
        with pytest.raises(VersionNotFound):
            client.delete_version(name, 1)
        client.delete(name)
        assert client.undelete(name).versions == 1
        with pytest.raises(VoiceExists):
            client.undelete(name)

    async def delete_and_undelete() -> int:
        async with AsyncRegistryClient(registry.url, cache=None) as client:
            await client.delete_version(name, 2)
            with pytest.raises(VoiceNotFound):
                await client.get(name)
            return (await client.undelete(name)).version

    assert asyncio.run(delete_and_undelete()) == 2


def test_the_command_line_says_how_a_delete_is_undone(
    registry: Registry, name: str, capsys: pytest.CaptureFixture[str]
):
    make_versions(registry, name, 3)

    def run(*words: str, status: int = 0) -> str:
        assert cli.main([*words, "--url", registry.url]) == status
        printed = capsys.readouterr()
        return printed.out + printed.err

    assert f"deleted {name}@1" in run("delete", f"{name}@1", "--yes")
    assert "takes the number of a version" in run("delete", f"{name}@prod", "--yes", status=2)
    listed = [line.split()[:3] for line in run("versions", name).splitlines()]
    assert ["3", "default", "ready"] in listed
    assert ["2", "-", "ready"] in listed
    assert f"`speaker-registry undelete {name}` restores it" in run("delete", name, "--yes")
    assert f"{name} is back, with 2 versions; its default is version 3" in run("undelete", name)
