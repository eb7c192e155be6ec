"""Tests of the history of a voice over HTTP: who did what, newest first."""

import asyncio

import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient, cli
from tests.integration.api.access import CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start
from tests.integration.api.registry import Registry
from tests.integration.api.test_aliases import make_versions


def test_a_history_says_which_key_did_what(start: Start):
    """Also of a deleted voice. Those of other namespaces and of names without a voice are not found."""
    registry = start(access=CLOSED)
    owner = key(registry, "voices:write", "voices:read", "voices:delete", namespace="tenant")
    registry.upload("alice", headers=bearer(owner))
    for method, path, body in (
        ("PUT", "/aliases/prod", {"version": 1}),
        ("PATCH", "", {"pinned": True}),
        ("PATCH", "", {"pinned": True}),
        ("DELETE", "", None),
    ):
        done = registry.client.request(method, f"/v1/voices/alice{path}", json=body, headers=bearer(owner))
        assert done.status_code in {200, 204}, done.text
    shown = registry.client.get("/v1/voices/alice/history", headers=bearer(owner)).json()["data"]
    assert [one["did"] for one in shown] == ["delete", "edit", "alias", "register"]
    assert {one["by"] for one in shown} == {id_of(owner)}
    assert (shown[2]["alias"], shown[2]["version"]) == ("prod", 1)
    assert [one["revision"] for one in shown] == sorted({one["revision"] for one in shown}, reverse=True)
    other = key(registry, "voices:read", namespace="other")
    assert registry.client.get("/v1/voices/alice/history", headers=bearer(other)).status_code == 404
    assert registry.client.get("/v1/voices/nobody/history", headers=bearer(owner)).status_code == 404


def test_the_history_of_a_deleted_voice_is_found_by_its_id(registry: Registry, name: str):
    """Until the name is registered again: the history is then that of another voice."""
    voice_id = registry.ready(name)["id"]
    registry.delete(name)
    by_name, by_id = (registry.client.get(f"/v1/voices/{one}/history") for one in (name, voice_id))
    assert (by_id.status_code, by_id.json()) == (200, by_name.json())
    assert [one["did"] for one in by_id.json()["data"]] == ["delete", "register"]
    registry.ready(name)
    assert registry.client.get(f"/v1/voices/{voice_id}/history").status_code == 404


def test_a_history_is_read_page_by_page(registry: Registry, name: str, capsys: pytest.CaptureFixture[str]):
    make_versions(registry, name, 3)
    path = f"/v1/voices/{name}/history"
    first = registry.client.get(path, params={"limit": 2}).json()
    rest = registry.client.get(path, params={"after": first["last_id"]}).json()
    assert [one["version"] for one in first["data"] + rest["data"]] == [3, 2, 1]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    with RegistryClient(registry.url, cache=None) as client:
        assert [one.version for one in client.history(name, limit=2)] == [3, 2]

    async def read() -> list[int | None]:
        async with AsyncRegistryClient(registry.url, cache=None) as client:
            return [one.version async for one in client.history(name)]

    assert asyncio.run(read()) == [3, 2, 1]
    assert cli.main(["history", name, "--url", registry.url]) == 0
    shown = [line.split()[-3:] for line in capsys.readouterr().out.splitlines()]
    assert ["register", "-", "3"] in shown
