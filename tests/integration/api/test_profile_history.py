"""Tests of promotions after the fact, over HTTP: in the histories of the profile and of voices, in events, in
the SDK, on the command line and on pages.
"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient, cli
from speaker_registry.errors import ProfileUnknown
from tests.encoders import come_with
from tests.integration.api.access import CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import PROFILE, Registry
from tests.integration.api.test_events import listening
from tests.integration.api.worker import FINGERPRINT

NEWER = "sha256:" + "2" * 64
HISTORY = f"/v1/profiles/{PROFILE}/history"


def candidate(registry: Registry) -> Registry:
    come_with(registry.opened.profile_records, PROFILE, NEWER)
    registry.opened.workers.beat("w1", {PROFILE: FINGERPRINT})
    registry.opened.workers.beat("w2", {PROFILE: NEWER})
    return registry


@pytest.fixture
def registry(start: Start) -> Registry:
    """A registry with a candidate for `PROFILE` that has a live worker."""
    return candidate(start(profiles=(PROFILE,)))


def promote(registry: Registry, fingerprint: str, **options: Any) -> None:
    body = {"fingerprint": fingerprint}
    answer = registry.client.post(f"/v1/profiles/{PROFILE}/promote", json=body, **options)
    assert answer.status_code == 200, answer.text


def later(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the store's clock by a second, so that the order of what happens before and after is known.
    Histories tell times in whole seconds.
    """
    now = registry.opened.store.now
    monkeypatch.setattr(registry.opened.store, "now", lambda: now() + timedelta(seconds=1))


def there_and_back(registry: Registry) -> None:
    promote(registry, NEWER)
    promote(registry, FINGERPRINT)


def test_the_history_of_a_profile_says_who_made_which_encoder_current(start: Start):
    registry = candidate(start(access=CLOSED, profiles=(PROFILE,)))
    operator, reader = key(registry, "admin", namespace="*"), key(registry, "voices:read")
    promote(registry, NEWER, headers=bearer(operator))
    promote(registry, FINGERPRINT, headers=bearer(operator))
    shown = registry.client.get(HISTORY, headers=bearer(reader)).json()["data"]
    assert [(one["did"], one["fingerprint"], one["former_fingerprint"]) for one in shown] == [
        ("roll_back", FINGERPRINT, NEWER),
        ("promote", NEWER, FINGERPRINT),
        ("announce", FINGERPRINT, None),
    ]
    assert [one["by"] for one in shown[:2]] == [id_of(operator)] * 2
    assert all(one["object"] == "profile.change" and one["at"] > 0 for one in shown)
    refused = registry.client.get(HISTORY, headers=bearer(key(registry, "jobs:read")))
    assert refused.status_code == 403


def test_the_history_of_a_profile_is_read_page_by_page(
    registry: Registry, capsys: pytest.CaptureFixture[str]
):
    there_and_back(registry)
    first = registry.client.get(HISTORY, params={"limit": 2}).json()
    rest = registry.client.get(HISTORY, params={"after": first["last_id"]}).json()
    assert [one["did"] for one in first["data"] + rest["data"]] == ["roll_back", "promote", "announce"]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    with RegistryClient(registry.url, cache=None) as client:
        assert [one.did for one in client.profile_history(PROFILE, limit=2)] == ["roll_back", "promote"]
        with pytest.raises(ProfileUnknown, match="nosuch"):
            list(client.profile_history("nosuch"))

    async def read() -> list[str]:
        async with AsyncRegistryClient(registry.url, cache=None) as client:
            return [one.did async for one in client.profile_history(PROFILE)]

    assert asyncio.run(read()) == ["roll_back", "promote", "announce"]
    assert cli.main(["profiles", "history", PROFILE, "--url", registry.url]) == 0
    lines = [line.split()[-4:] for line in capsys.readouterr().out.splitlines()]
    assert ["promote", NEWER, FINGERPRINT, "-"] in lines


def test_an_unknown_profile_has_no_history(registry: Registry):
    answer = registry.client.get("/v1/profiles/nosuch/history")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "profile_unknown")
    assert "nosuch" in answer.json()["error"]["message"]
    for wrong in ({"after": "x"}, {"after": "-1"}, {"limit": 0}):
        assert registry.client.get(HISTORY, params=wrong).status_code == 400


def test_a_voice_tells_the_promotions_that_changed_what_it_serves(
    registry: Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """One of a voice without an artifact of the profile changed nothing that it serves."""
    registry.ready("alice")
    registry.upload("bob")
    there_and_back(registry)
    later(registry, monkeypatch)
    registry.client.patch("/v1/voices/alice", json={"pinned": True})
    path = "/v1/voices/alice/history"
    shown = registry.client.get(path).json()["data"]
    assert [(one["did"], one["profile"]) for one in shown] == [
        ("edit", None),
        ("roll_back", PROFILE),
        ("promote", PROFILE),
        ("register", None),
    ]
    assert (shown[2]["fingerprint"], shown[2]["former_fingerprint"]) == (NEWER, FINGERPRINT)
    bob = registry.client.get("/v1/voices/bob/history").json()["data"]
    assert [one["did"] for one in bob] == ["register"]
    read, after = list[str](), ""
    for _ in shown:
        page = registry.client.get(path, params={"limit": 1, "after": after}).json()
        read, after = [*read, page["data"][0]["did"]], page["last_id"]
    assert (read, page["has_more"]) == ([one["did"] for one in shown], False)
    with RegistryClient(registry.url, cache=None) as client:
        assert [one.profile for one in client.history("alice")] == [None, PROFILE, PROFILE, None]
    assert cli.main(["history", "alice", "--url", registry.url]) == 0
    assert any(
        line.split()[-3:] == [PROFILE, NEWER, FINGERPRINT] for line in capsys.readouterr().out.splitlines()
    )
    assert registry.client.delete("/v1/voices/alice").status_code == 204
    later(registry, monkeypatch)
    promote(registry, NEWER)
    deleted = registry.client.get(path).json()["data"]
    assert [one["did"] for one in deleted] == ["delete", *(one["did"] for one in shown)]


def test_a_place_that_no_history_has_is_an_error_that_names_it(registry: Registry):
    registry.upload("alice")
    for wrong in ("x", "1-2", "1-2-3", "-1", "9" * 30):
        answer = registry.client.get("/v1/voices/alice/history", params={"after": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
        assert wrong in answer.json()["error"]["message"]


def test_a_promotion_is_an_event_of_its_own(registry: Registry):
    """Listeners that know `profile.updated` only still hear of it. Other changes are no promotion."""
    with listening(registry, types="profile.promoted,profile.updated", profile=PROFILE) as listener:
        come_with(registry.opened.profile_records, PROFILE, "sha256:" + "5" * 64)
        promote(registry, NEWER)
        frames = listener.until(lambda frame: frame.type == "profile.promoted")
    assert [frame.type for frame in frames] == ["profile.updated", "profile.updated", "profile.promoted"]
    told = frames[-1].data
    assert (told["profile"], told["fingerprint"]) == (PROFILE, NEWER)
    assert told["former_fingerprint"] == FINGERPRINT
    assert "fingerprint" not in frames[0].data


def test_the_first_encoder_of_a_profile_is_no_promotion(start: Start):
    """A voice may wait for the first worker of a profile. Nothing was served before, so nothing changed."""
    registry = start(announced=False, profiles=(PROFILE,))
    registry.upload("alice")
    with listening(registry, types="profile.promoted", profile=PROFILE) as listener:
        registry.worker.announce()
        registry.repair("alice")
        registry.worker.finish_all("alice")
        assert registry.file("alice").status_code == 200
        history = registry.client.get("/v1/voices/alice/history").json()["data"]
        assert [one["did"] for one in history] == ["register"]
        promote(candidate(registry), NEWER)
        frames = listener.until(lambda frame: frame.data["fingerprint"] == NEWER)
    assert [frame.data["former_fingerprint"] for frame in frames] == [FINGERPRINT]


def test_the_pages_tell_promotions(registry: Registry):
    registry.ready("alice")
    there_and_back(registry)
    with Visitor(registry) as visitor:
        profiles, voice = visitor.get("/profiles").text, visitor.get("/voices/alice").text
    assert "promoted again" in profiles
    assert f'title="{NEWER}"' in profiles
    assert "came with the first worker" in profiles
    assert "promoted again" in voice
    assert f"for {PROFILE}" in voice
