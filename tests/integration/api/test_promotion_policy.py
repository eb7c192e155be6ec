"""Tests of the promotion policy of a voice: what engines get, and when, and where it is set and shown."""

import asyncio
from pathlib import Path

import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient, cli
from speaker_registry.errors import InvalidRequest
from speaker_registry.moving.exporting import Export
from tests.integration.api.conftest import Start
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import Registry
from tests.integration.api.test_aliases import make_versions, put
from tests.integration.api.test_editing import edit
from tests.integration.api.test_moving_what_is_said import lost_after, restored, states
from tests.integration.api.test_pages_of_a_voice import edit_form
from tests.unit.audio import clips


def test_the_policy_is_shown_and_remembered(registry: Registry, name: str):
    """Lists show it as the voice does, and the history says who changed it."""
    registry.upload(name)
    assert registry.client.get(f"/v1/voices/{name}").json()["promotion"] == "on_ready"
    edit(registry, name, {"promotion": "manual"})
    listed = registry.client.get("/v1/voices", params={"q": name}).json()["data"]
    assert [one["promotion"] for one in listed] == ["manual"]
    edit(registry, name, {"pinned": True})
    assert registry.client.get(f"/v1/voices/{name}").json()["promotion"] == "manual"
    changes = registry.client.get(f"/v1/voices/{name}/history").json()["data"]
    assert [one["did"] for one in changes] == ["edit", "edit", "register"]


@pytest.mark.parametrize(("value", "quoted"), [("never", "'never'"), (None, "null"), (True, "true")])
def test_another_policy_is_refused_with_those_that_are_accepted(
    registry: Registry, name: str, value: object, quoted: str
):
    registry.upload(name)
    refused = edit(registry, name, {"promotion": value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "promotion")
    message = refused.json()["error"]["message"]
    assert f"'promotion' is {quoted}" in message
    assert "accepted: 'on_ready', 'manual'" in message


def test_the_sdk_and_the_command_line_set_it(
    registry: Registry, name: str, capsys: pytest.CaptureFixture[str]
):
    registry.upload(name)
    with RegistryClient(registry.url, cache=None) as client:
        assert client.edit_voice(name, promotion="manual").promotion == "manual"
        assert client.edit_voice(name, pinned=True).promotion == "manual"
        with pytest.raises(InvalidRequest, match="accepted: 'on_ready', 'manual'"):
            client.edit_voice(name, promotion="never")  # type: ignore[arg-type]

    async def set_on_ready() -> str:
        async with AsyncRegistryClient(registry.url, cache=None) as client:
            return (await client.edit_voice(name, promotion="on_ready")).promotion

    assert asyncio.run(set_on_ready()) == "on_ready"
    assert cli.main(["edit", name, "--promotion", "manual", "--url", registry.url]) == 0
    assert "promotion    manual" in capsys.readouterr().out
    assert cli.main(["edit", name, "--promotion", "on_ready", "--url", registry.url]) == 0
    assert "promotion    on_ready" in capsys.readouterr().out


def test_the_policy_moves_to_another_registry(start: Start, tmp_path: Path):
    """`default` means the same version there, although nobody has moved it by hand here, and although the
    connection is lost after each step of the import.
    """
    registry, path = start(), tmp_path / "x.tar"
    make_versions(registry, "alice", 2)
    edit(registry, "alice", {"promotion": "manual"})
    registry.ready("alice", clip=clips.wav(2.0))
    with RegistryClient(registry.url) as client:
        exported = Export(client).write(path, "default")
    other = start()
    for steps in (0, 1):
        assert restored(other, path, fault=lost_after(steps)).stopped is not None
    for state in ("registered", "unchanged"):
        assert states(restored(other, path)) == {"alice": state}
        voice = other.client.get("/v1/voices/alice").json()
        assert (voice["promotion"], voice["version"], voice["latest"]) == ("manual", 2, 3)
    with RegistryClient(other.url) as client:
        assert Export(client).write(tmp_path / "y.tar", "default").end == exported.end


def test_the_dashboard_sets_it(registry: Registry, name: str):
    """The form shows what is saved, and the page of the voice what follows from it."""
    make_versions(registry, name, 2)
    with Visitor(registry) as visitor:
        path = f"/voices/{name}/about"
        assert '<option value="manual">' in visitor.get(path).text
        put(registry, name, "default", 1)
        assert "Let it move by itself" in visitor.get(f"/voices/{name}").text
        hidden = edit_form(visitor, name)
        refused = visitor.post(path, hidden | {"promotion": "never"})
        assert refused.status_code == 400
        assert "accepted: on_ready or manual" in refused.text
        page = visitor.post(path, hidden | {"promotion": "manual"}).text
        assert registry.client.get(f"/v1/voices/{name}").json()["promotion"] == "manual"
        assert "Let it move by itself" not in page
        assert "by itself, to the newest version that serves as much" not in page
        assert '<option value="manual" selected>' in visitor.get(path).text
        stale = visitor.post(path, hidden | {"promotion": "on_ready"})
        assert stale.status_code == 412
        assert "default moves only by hand" in stale.text
