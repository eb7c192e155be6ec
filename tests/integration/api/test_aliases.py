"""Tests of aliases that are moved by hand: answers, refusals, and that engines follow at once."""

import asyncio
from typing import Any

import httpx
import pytest

from services.embedded.valkey import ValkeyServer
from speaker_registry import AsyncRegistryClient, RegistryClient, cli
from speaker_registry.errors import InvalidArtifact, PreconditionFailed, VersionNotFound
from tests.integration.api.conftest import Start, empty
from tests.integration.api.registry import PROFILE, Registry
from tests.integration.api.test_events import listening
from tests.integration.api.test_express_lane import Lane
from tests.unit.audio import clips

FILE = "/v1/voices/{}/versions/{}/artifacts/" + PROFILE + "/file"


def make_versions(registry: Registry, name: str, many: int = 2) -> None:
    """Register a voice with that many ready versions."""
    for number in range(many):
        registry.ready(name, clip=clips.wav(1.2 + number / 10))


def put(registry: Registry, name: str, alias: str, body: Any, **headers: str) -> httpx.Response:
    body = {"version": body} if isinstance(body, int) else body
    return registry.client.put(f"/v1/voices/{name}/aliases/{alias}", json=body, headers=headers)


def get(registry: Registry, name: str, alias: str = "default") -> httpx.Response:
    response = registry.client.get(f"/v1/voices/{name}/aliases/{alias}")
    assert response.status_code == 200, response.text
    return response


def version_of(registry: Registry, voice: str) -> int:
    """Return the version that a reference stands for, as an engine learns it."""
    asked = {"voices": [voice], "profiles": [PROFILE]}
    [entry] = registry.client.post("/v1/resolve", json=asked).json()["data"]
    return int(entry["version"])


def test_a_move_is_seen_everywhere_and_a_repeat_changes_nothing(registry: Registry, name: str):
    """Bare name, alias, list and manifest agree on what engines get, and nothing is extracted again."""
    make_versions(registry, name)
    assert get(registry, name).json() | {"moved": 0} == {
        "object": "voice.alias",
        "voice": name,
        "alias": "default",
        "version": 2,
        "by_hand": False,
        "moved": 0,
    }
    moved = put(registry, name, "default", 1)
    made = put(registry, name, "prod", 2)
    assert (moved.json()["previous_version"], moved.json()["by_hand"]) == (2, True)
    assert moved.headers["ETag"] == get(registry, name).headers["ETag"]
    assert made.json()["previous_version"] is None
    again = put(registry, name, "default", 1)
    assert again.status_code == 200
    assert again.json() == {**moved.json(), "previous_version": 1}
    assert registry.client.get(f"/v1/voices/{name}").json()["aliases"] == {"default": 1, "prod": 2}
    assert [version_of(registry, one) for one in (name, f"{name}@prod", f"{name}@latest")] == [1, 2, 2]
    manifest = registry.client.get(f"/v1/profiles/{PROFILE}/manifest").json()
    assert {one["voice"]: one["version"] for one in manifest["data"]}[name] == 1
    assert registry.worker.queued(name) == []


def test_aliases_are_listed_by_name(registry: Registry, name: str):
    make_versions(registry, name, 1)
    for alias in ("prod", "beta"):
        put(registry, name, alias, 1)
    first = registry.client.get(f"/v1/voices/{name}/aliases", params={"limit": 2}).json()
    assert ([one["alias"] for one in first["data"]], first["has_more"]) == (["beta", "default"], True)
    rest = registry.client.get(f"/v1/voices/{name}/aliases", params={"after": first["last_id"]}).json()
    assert ([one["alias"] for one in rest["data"]], rest["has_more"]) == (["prod"], False)


def test_a_move_that_somebody_overtook_is_refused(registry: Registry, name: str):
    """`If-Match` is for two people who move one alias. A repeat of one's own move is no conflict."""
    make_versions(registry, name, 3)
    seen = get(registry, name).headers["ETag"]
    first = put(registry, name, "default", 1, **{"If-Match": seen})
    assert first.status_code == 200
    assert put(registry, name, "default", 1, **{"If-Match": seen}).status_code == 200
    refused = put(registry, name, "default", 2, **{"If-Match": seen})
    assert (refused.status_code, refused.json()["error"]["code"]) == (412, "precondition_failed")
    assert put(registry, name, "new", 1, **{"If-Match": "*"}).status_code == 412
    if_new = {"If-None-Match": "*"}
    taken = put(registry, name, "default", 2, **if_new).json()["error"]
    assert (taken["code"], taken["param"]) == ("precondition_failed", "If-None-Match")
    assert "alias 'default' points to version 1" in taken["message"]
    assert [put(registry, name, "new", 1, **if_new).status_code for _ in range(2)] == [200, 200]
    assert put(registry, name, "new", 2, **if_new).status_code == 412
    path = f"/v1/voices/{name}/aliases/default"
    assert registry.client.delete(path, headers={"If-Match": seen}).status_code == 412
    assert version_of(registry, name) == 1
    for _ in range(2):
        assert registry.client.delete(path, headers={"If-Match": first.headers["ETag"]}).status_code == 204


@pytest.mark.parametrize(
    ("alias", "body", "status", "said"),
    [
        ("latest", {"version": 1}, 400, "'latest' is reserved"),
        ("7", {"version": 1}, 400, "Invalid alias '7'"),
        ("a" * 200, {"version": 1}, 400, "1 to 64 of the characters"),
        ("Pr%C3%B6d", {"version": 1}, 400, "Invalid alias 'Pröd'"),
        ("prod", {}, 400, "'version' is missing"),
        ("prod", {"version": "1"}, 400, "'version' is '1'"),
        ("prod", {"version": True}, 400, "'version' is"),
        ("prod", {"version": 1, "to": 2}, 400, "'to' is not known"),
        ("prod", {"version": 9}, 404, "no version 9. The newest is 1. It has: 1."),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    registry: Registry, name: str, alias: str, body: dict[str, Any], status: int, said: str
):
    make_versions(registry, name, 1)
    before = registry.client.get(f"/v1/voices/{name}").json()
    refused = put(registry, name, alias, body)
    assert refused.status_code == status
    assert said in refused.json()["error"]["message"]
    assert registry.client.get(f"/v1/voices/{name}").json() == before


def test_no_alias_moves_to_a_version_that_failed(registry: Registry, name: str):
    """The refusal names the profile, and the command that helps."""
    make_versions(registry, name, 1)
    registry.upload(name, clip=clips.wav(2.0))
    registry.worker.fail_all(name, InvalidArtifact("hopeless"))
    refused = put(registry, name, "default", 2)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "artifact_failed")
    assert PROFILE in refused.json()["error"]["message"]
    assert version_of(registry, name) == 1


def test_another_process_answers_by_a_move_at_once(start: Start, valkey: ValkeyServer):
    """Engines ask any process, and most of their answers come from its memory."""
    url = empty(valkey, 13)
    one = start(url)
    other = start(url, folder=one.folder, heartbeat_seconds=0.1)
    make_versions(one, "alice")
    put(one, "alice", "prod", 2)
    watched = Lane(other)
    references = ("default", "prod")
    before = {ref: watched.get(FILE.format("alice", ref)).content for ref in references}
    old = one.client.get(FILE.format("alice", 1)).content
    for ref in references:
        assert before[ref] != old
        put(one, "alice", ref, 1)
        assert other.client.get(FILE.format("alice", ref)).content == old
        assert watched.get(FILE.format("alice", ref)).content == old
    assert version_of(other, "alice") == 1
    with listening(other, voice="alice") as stream:
        put(one, "alice", "default", 2)
        [*_, event] = stream.until(lambda frame: frame.type == "alias.updated")
        assert event.data["alias"] == "default"
    assert one.client.delete("/v1/voices/alice/aliases/prod").status_code == 204
    assert other.client.get(FILE.format("alice", "prod")).status_code == 404


def test_the_sdk_rolls_a_voice_back_and_forth(registry: Registry, name: str):
    make_versions(registry, name, 3)
    with RegistryClient(registry.url, cache=None) as client:
        client.move_alias(name, "prod", 2)
        back = client.rollback(name)
        assert (back.version, back.previous_version, back.by_hand) == (2, 3, True)
        assert client.alias(name).etag == back.etag
        assert client.rollback(name, to=1).previous_version == 2
        with pytest.raises(VersionNotFound, match="and there is no older version"):
            client.rollback(name)
        with pytest.raises(PreconditionFailed):
            client.move_alias(name, "default", 3, if_match=back.etag)
        client.remove_alias(name, "default")
        assert {one.alias: one.version for one in client.aliases(name)} == {"default": 3, "prod": 2}

    async def roll_back() -> tuple[int, int, list[str]]:
        async with AsyncRegistryClient(registry.url, cache=None) as client:
            back = await client.rollback(name)
            forth = await client.move_alias(name, "default", 3, if_match=back.etag)
            await client.remove_alias(name, "prod")
            await client.alias(name)
            return back.version, forth.version, [one.alias async for one in client.aliases(name)]

    assert asyncio.run(roll_back()) == (2, 3, ["default"])


def test_the_command_line_says_what_it_was_and_how_to_undo_it(
    registry: Registry, name: str, capsys: pytest.CaptureFixture[str]
):
    make_versions(registry, name)

    def run(*words: str) -> str:
        assert cli.main([*words, "--url", registry.url]) == 0
        return capsys.readouterr().out

    said = run("rollback", name)
    assert f"{name}@default is version 1; it was version 2 before" in said
    assert f"`speaker-registry alias set {name} default 2` undoes that" in said
    assert f"`speaker-registry alias rm {name} default` lets it move to new versions by itself" in said
    assert f"`speaker-registry alias rm {name} prod` removes it" in run("alias", "set", name, "prod", "2")
    assert ["default", "1", "by", "hand"] in [
        line.split() for line in run("alias", "list", name).splitlines()
    ]
    assert "moves by itself again" in run("alias", "rm", name, "default")
    assert f"`speaker-registry alias set {name} prod 2`" in run("alias", "rm", name, "prod")
    assert version_of(registry, name) == 2
