"""Tests of what people say about a voice: its description, labels and pin, and lists by label."""

import asyncio
from typing import Any

import httpx
import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient, cli
from speaker_registry.errors import InvalidRequest, PreconditionFailed
from tests.integration.api.conftest import Start
from tests.integration.api.registry import Registry


def edit(registry: Registry, name: str, body: Any, **headers: str) -> httpx.Response:
    return registry.client.patch(f"/v1/voices/{name}", json=body, headers=headers)


def about(registry: Registry, name: str) -> tuple[str | None, dict[str, str], bool]:
    voice = registry.client.get(f"/v1/voices/{name}").json()
    return voice["description"], voice["labels"], voice["pinned"]


def test_an_edit_changes_what_it_names_and_nothing_else(registry: Registry, name: str):
    """It is no new version, and no engine has to do anything."""
    registry.ready(name)
    file = registry.file(name)
    assert about(registry, name) == (None, {}, False)
    labels = {"team": "blue", "example.com/tier": "gold"}
    made = edit(registry, name, {"description": " Calm. ", "labels": labels, "pinned": True})
    assert made.status_code == 200
    seen = registry.client.get(f"/v1/voices/{name}")
    assert (made.json(), made.headers["ETag"]) == (seen.json(), seen.headers["ETag"])
    assert about(registry, name) == ("Calm.", labels, True)
    edit(registry, name, {"labels": {"team": None}})
    assert about(registry, name) == ("Calm.", {"example.com/tier": "gold"}, True)
    edit(registry, name, {"description": None, "pinned": False})
    assert about(registry, name) == (None, {"example.com/tier": "gold"}, False)
    assert edit(registry, name, {}).status_code == 200
    assert registry.file(name).headers["ETag"] == file.headers["ETag"]
    assert registry.worker.queued(name) == []


def test_an_edit_that_somebody_overtook_is_refused(registry: Registry, name: str):
    registry.ready(name)
    seen = registry.client.get(f"/v1/voices/{name}").headers["ETag"]
    assert edit(registry, name, {"pinned": True}, **{"If-Match": seen}).status_code == 200
    assert edit(registry, name, {"pinned": True}, **{"If-Match": seen}).status_code == 200
    assert edit(registry, name, {"labels": {"a": "b"}}, **{"If-Match": seen}).status_code == 412
    assert about(registry, name) == (None, {}, True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"labels": {"a b": "c"}}, "The key 'a b' of a label"),
        ({"labels": {"team": "b c"}}, "The value 'b c' of label 'team'"),
        ({"labels": {"team": 3}}, "'labels[team]' is 3; accepted: text of up to 63 characters like blue_1.0"),
        ({"labels": {f"k{number}": "v" for number in range(33)}}, "33 labels"),
        ({"labels": {f"k{number}": "v" * 300 for number in range(32)}}, "The value 'vvv"),
        ({"labels": None}, "'labels' is null; accepted: a JSON object"),
        ({"labels": {f"k{number}": "v" for number in range(1001)}}, "a JSON object of up to 1000 entries."),
        ({"pinned": "yes"}, "'pinned' is 'yes'"),
        ({"description": "x" * 8001}, "8000"),
        ({"description": "a\u0000b"}, "control character"),
        ({"desciption": "x"}, "did you mean 'description'?"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(registry: Registry, name: str, body: Any, said: str):
    registry.upload(name)
    refused = edit(registry, name, body)
    assert refused.status_code == 400
    assert said in refused.json()["error"]["message"]
    assert about(registry, name) == (None, {}, False)


def test_a_name_that_is_half_of_a_character_is_refused_as_unknown(registry: Registry, name: str):
    """JSON can escape half of a surrogate pair. The answer called it the whole body."""
    registry.upload(name)
    head = {"Content-Type": "application/json"}
    refused = registry.client.patch(f"/v1/voices/{name}", content=rb'{"\ud800": 1}', headers=head)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(r"Field '\ud800' is not known here. Accepted: desc")


def test_what_was_said_ends_with_the_voice_and_comes_back_with_it(registry: Registry, name: str):
    """Who registers the name anew gets nothing of the voice that had it before."""
    registry.ready(name)
    edit(registry, name, {"description": "Calm.", "labels": {"a": "b"}, "pinned": True})
    registry.delete(name)
    registry.client.post(f"/v1/voices/{name}/undelete")
    assert about(registry, name) == ("Calm.", {"a": "b"}, True)
    registry.delete(name)
    registry.ready(name)
    assert about(registry, name) == (None, {}, False)


def test_texts_about_voices_count(start: Start):
    """Otherwise a tenant could keep any amount of text."""
    registry = start(max_text_bytes=200)
    registry.ready("alice")
    used = registry.client.get("/v1/quota").json()["text_bytes"]["used"]
    assert edit(registry, "alice", {"description": "x" * 100}).status_code == 200
    assert registry.client.get("/v1/quota").json()["text_bytes"]["used"] == used + 100
    refused = edit(registry, "alice", {"labels": {"k" * 60: "v" * 60}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
    assert edit(registry, "alice", {"description": None}).status_code == 200


def test_lists_are_filtered_by_labels(start: Start, capsys: pytest.CaptureFixture[str]):
    registry = start()
    for name, labels in {
        "a": {"team": "blue", "tier": "gold"},
        "b": {"team": "blue"},
        "c": {"team": "red"},
    }.items():
        registry.upload(name)
        edit(registry, name, {"labels": labels})

    def listed(*labels: str) -> list[str]:
        found = registry.client.get("/v1/voices", params={"label": labels}).json()["data"]
        return [one["name"] for one in found]

    assert listed("team=blue") == ["a", "b"]
    assert listed("team=blue", "tier=gold") == listed("team=blue,tier=gold") == ["a"]
    assert listed("team=green") == []
    refused = registry.client.get("/v1/voices", params={"label": "team"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "label")
    with RegistryClient(registry.url, cache=None) as client:
        assert [one.name for one in client.list(labels={"team": "blue", "tier": "gold"})] == ["a"]
    assert cli.main(["list", "--label", "team=blue", "--label", "tier=gold", "--url", registry.url]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.split()[1:2] == ["1"]]
    assert names == ["a"]
    for refused_command in (["list"], ["edit", "a"]):
        assert cli.main([*refused_command, "--label", "team", "--url", registry.url]) == 2
        assert "KEY=VALUE" in capsys.readouterr().err


def test_the_sdk_edits_voices(registry: Registry, name: str):
    registry.upload(name)
    with RegistryClient(registry.url, cache=None) as client:
        assert client.edit_voice(name, description="Calm.", labels={"a": "b"}).labels == {"a": "b"}
        assert client.edit_voice(name, pinned=True).description == "Calm."
        assert client.edit_voice(name, description=None, labels={"a": None}).labels == {}
        with pytest.raises(InvalidRequest, match="The key 'a b'"):
            client.edit_voice(name, labels={"a b": "c"})
        with pytest.raises(PreconditionFailed):
            client.edit_voice(name, pinned=False, if_match='W/"x"')

    async def unpin() -> bool:
        async with AsyncRegistryClient(registry.url, cache=None) as client:
            return (await client.edit_voice(name, pinned=False)).pinned

    assert asyncio.run(unpin()) is False


def test_the_command_line_edits_voices(registry: Registry, name: str):
    registry.upload(name)

    def run(*words: str) -> int:
        return cli.main(["edit", name, *words, "--url", registry.url])

    assert run("--description", "Calm.", "--label", "team=blue", "--label", "old=x", "--pin") == 0
    assert about(registry, name) == ("Calm.", {"old": "x", "team": "blue"}, True)
    assert run("--description", "", "--label", "old-", "--no-pin") == 0
    assert about(registry, name) == (None, {"team": "blue"}, False)
    assert run() == run("--label", "team") == 2
