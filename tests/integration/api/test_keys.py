"""Tests of API keys by HTTP, SDK and command line: whose they are, what they may be given, how they end."""

import re
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from services.embedded.valkey import ValkeyServer
from services.registry_api.access.authentication import AccessMisconfigured, open_access
from services.registry_api.keys import key_rules
from services.registry_api.keys.api_keys import new_token
from services.shared.audio import AudioDecoder
from services.shared.configuration.access import AccessSettings, RateSettings
from services.shared.configuration.api import ApiSettings
from speaker_registry import RegistryClient, cli
from speaker_registry.errors import ApiKeyNotFound, ApiKeysOff
from tests.integration.api.access import BOOTSTRAP, CLOSED, ask_for_key, bearer, id_of, key
from tests.integration.api.conftest import Start, empty
from tests.integration.api.registry import Registry


@pytest.fixture
def closed(start: Start) -> Registry:
    """A registry that requires keys."""
    return start(access=CLOSED, rates=RateSettings(requests_per_minute=10_000))


def message(response: httpx.Response) -> str:
    said: str = response.json()["error"]["message"]
    return said


# -- the first one


def open_with(registry: Registry, settings: AccessSettings) -> None:
    """Begin a registry's authentication with other settings, as a process does at its start."""
    open_access(
        ApiSettings(), settings, RateSettings(), registry.keys, registry.key_uses, registry.plain_redis
    )


@pytest.mark.parametrize("text", ["hunter2", str(BOOTSTRAP)[:-1]], ids=["another", "cut short"])
def test_a_bootstrap_key_that_is_none_is_refused_by_where_it_is(
    registry: Registry, tmp_path: Path, text: str
):
    """A bootstrap key that is invalid is refused with the name of the setting or file that holds it, because
    operators look there. The text itself is not shown.
    """
    path = tmp_path / "key"
    path.write_text(text)
    in_a_file = AccessSettings(bootstrap_key_file=path)
    with pytest.raises(
        AccessMisconfigured, match=rf"SPEAKER_AUTH_BOOTSTRAP_KEY_FILE \({path}\) holds no API key"
    ) as caught:
        open_with(registry, in_a_file)
    assert text not in str(caught.value)
    itself = AccessSettings(bootstrap_key=SecretStr(text))
    with pytest.raises(
        AccessMisconfigured, match=r"^SPEAKER_AUTH_BOOTSTRAP_KEY is no API key.*new-key"
    ) as caught:
        open_with(registry, itself)
    assert text not in str(caught.value)


# -- while they are not required


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/keys"),
        ("GET", "/v1/keys"),
        ("HEAD", "/v1/keys"),
        ("GET", "/v1/keys/nokeyid0"),
        ("DELETE", "/v1/keys/nokeyid0"),
        ("POST", "/v1/keys/nokeyid0/rotate"),
    ],
)
def test_there_are_no_keys_while_none_is_required(registry: Registry, method: str, path: str):
    """Keys cannot be made while none is required. Any process on the machine could make one for itself, and
    that key would open the registry for as long as it lives once keys are required.
    """
    body = {"json": {"name": "x", "scopes": ["admin"]}} if path == "/v1/keys" and method == "POST" else {}
    refused = registry.client.request(method, path, **body)  # type: ignore[arg-type]
    assert refused.status_code == 409
    assert refused.headers["x-should-retry"] == "false"
    if method != "HEAD":
        assert refused.json()["error"]["code"] == "api_keys_off"
        assert "SPEAKER_AUTH_REQUIRED=true" in message(refused)
    assert registry.keys.all("*") == []


def test_sdk_and_command_line_say_that_keys_are_off(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """SDK and command line report that keys are off, by the exception class of the code and in words that say
    what to do.
    """
    with RegistryClient(registry.url, retries=0) as client, pytest.raises(ApiKeysOff):
        client.create_key("fleet", ["engine"])
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", registry.url)
    assert cli.main(["keys", "list"]) != 0
    assert "SPEAKER_AUTH_REQUIRED=true" in capsys.readouterr().err


# -- whose they are


def test_who_names_a_namespace_asks_about_its_keys_alone(closed: Registry):
    """A caller with a key for any namespace that names a namespace sees and changes its keys alone, so that a
    script for one tenant cannot end another's key by a slip. Without a namespace, all keys are listed.
    """
    ours, theirs = (id_of(key(closed, namespace=one)) for one in ("ours", "theirs"))
    client, here = closed.client, bearer(BOOTSTRAP, "ours")

    def listed(headers: dict[str, str]) -> set[str]:
        return {one["id"] for one in client.get("/v1/keys", headers=headers).json()["data"]}

    assert listed(here) == {ours}
    assert listed(bearer(BOOTSTRAP)) == {ours, theirs}
    assert client.get(f"/v1/keys/{theirs}", headers=here).status_code == 404
    assert client.post(f"/v1/keys/{theirs}/rotate", headers=here).status_code == 404
    refused = client.delete(f"/v1/keys/{theirs}", headers=here)
    assert (refused.status_code, message(refused)) == (404, f"No API key '{theirs}' in namespace 'ours'.")
    assert client.get("/v1/keys", params={"after": theirs}, headers=here).status_code == 404
    assert client.get(f"/v1/keys/{ours}", headers=here).status_code == 200
    assert client.post(f"/v1/keys/{ours}/rotate", headers=here).json()["namespace"] == "ours"
    for key_id, headers in ((ours, here), (theirs, bearer(BOOTSTRAP))):
        assert client.delete(f"/v1/keys/{key_id}", headers=headers).status_code == 204


def test_a_tenants_keys_leave_room_for_others(closed: Registry, monkeypatch: pytest.MonkeyPatch):
    """A tenant's keys leave room for others. Whatever its admin does, other tenants and the operator can
    still make keys, and the refusal tells the tenant about its own keys alone.
    """
    monkeypatch.setattr(key_rules, "MAX_KEYS_OF_NAMESPACE", 3)
    monkeypatch.setattr(key_rules, "MAX_KEYS", 5)
    admin = key(closed, "admin", namespace="tenant")
    for _ in range(2):
        made = ask_for_key(closed, admin).json()["id"]
        closed.client.delete(f"/v1/keys/{made}", headers=bearer(admin))
    for by in (admin, BOOTSTRAP):
        refused = ask_for_key(closed, by, namespace="tenant")
        assert refused.status_code == 429
        assert re.match(r"There are 3 API keys in namespace 'tenant'.* 30 days later", message(refused))
    other = key(closed, "admin", namespace="other")
    assert ask_for_key(closed, other).status_code == 201
    refused = ask_for_key(closed, other)
    assert refused.status_code == 429
    assert not re.search(r"\d", message(refused))
    assert ask_for_key(closed, namespace="third").status_code == 201


# -- what they may be given


def test_a_tenant_gives_no_key_more_than_every_key_has(closed: Registry):
    """A tenant's admin gives no key more than the default limits. A limit would otherwise be whatever the
    tenant wants. The operator may give more.
    """
    admin = key(closed, "admin", namespace="tenant", requests_per_minute=20_000)
    for given, most in (({"requests_per_minute": 10_001}, 10_000), ({"uploads_per_minute": 601}, 600)):
        ((name, asked),) = given.items()
        refused = ask_for_key(closed, admin, **given)
        assert refused.status_code == 403
        assert message(refused) == f"'{name}' is {asked}; accepted from keys for 'tenant': up to {most}."
        assert refused.json()["error"]["param"] == name
        assert ask_for_key(closed, admin, **{name: most}).status_code == 201
        assert ask_for_key(closed, namespace="tenant", **given).status_code == 201


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"requests_per_minute": True}, "'requests_per_minute' is true; accepted: a whole number from 1 to"),
        ({"uploads_per_minute": "5"}, "'uploads_per_minute' is '5'; accepted: a whole number from 1 to"),
        ({"expires_at": "4000000000"}, "'expires_at' is '4000000000'; accepted: a whole number from 0 to"),
    ],
)
def test_a_number_of_a_key_is_a_number(closed: Registry, given: dict[str, object], says: str):
    """A limit of `true` requests would otherwise become a limit of 1."""
    refused = ask_for_key(closed, **given)
    assert refused.status_code == 400
    assert message(refused).startswith(says)


@pytest.mark.parametrize("name", [" ", "\u200b", "\u3164"])
def test_a_key_has_a_name_that_can_be_seen(closed: Registry, name: str):
    """In the list of keys it would be a key without a name."""
    refused = ask_for_key(closed, name=name)
    assert refused.status_code == 400
    assert message(refused) == (
        f"'name' is {name!a}: it has no visible character; accepted: text of 1 to 128 characters."
    )


def test_without_a_limit_there_is_nothing_to_exceed(start: Start):
    """A key may have any limit while `SPEAKER_LIMIT_REQUESTS_PER_MINUTE` is switched off, because there is no
    default limit to exceed.
    """
    closed = start(access=CLOSED, rates=RateSettings(requests_per_minute=None))
    admin = key(closed, "admin", namespace="tenant")
    assert ask_for_key(closed, admin, requests_per_minute=10**9).status_code == 201


def test_keys_that_follow_one_another_have_one_limit(closed: Registry):
    """A key and its successors share one limit. All of them work for as long as their grace period, so a
    tenant could otherwise multiply its limit by rotating keys.
    """
    admin = key(closed, "admin", namespace="tenant")
    given = key(closed, "voices:read", "admin", namespace="tenant", requests_per_minute=1_000_000)
    remaining = []
    for _ in range(3):
        remaining.append(
            int(closed.client.get("/v1/voices", headers=bearer(given)).headers["RateLimit-Remaining"])
        )
        rotated = closed.client.post(
            f"/v1/keys/{id_of(given)}/rotate", params={"grace_seconds": 90 * 86_400}, headers=bearer(admin)
        )
        given = rotated.json()["key"]
    first, second, third = remaining
    assert first > second > third > 999_000


# -- how they end


def test_parameters_in_the_body_are_refused_where_the_query_has_them(closed: Registry):
    """If the body was ignored, keys would stay valid that the caller believes to have ended."""
    admin = key(closed)
    path = f"/v1/keys/{id_of(key(closed))}"
    for method, where, body in (
        ("POST", f"{path}/rotate", {"grace_seconds": 0}),
        ("DELETE", path, {"children": True}),
    ):
        refused = closed.client.request(method, where, json=body, headers=bearer(admin))
        assert refused.status_code == 400
        assert "accepted: none, because this route takes its parameters from the query" in message(refused)
    assert closed.client.get(path, headers=bearer(admin)).json()["state"] == "active"
    assert closed.client.post(f"{path}/rotate", json={}, headers=bearer(admin)).status_code == 201


def test_a_key_revokes_itself_with_all_that_it_made(closed: Registry):
    """The request is finished, although its own key ends first."""
    admin = key(closed, "admin", "voices:read")
    made = ask_for_key(closed, admin, scopes=["voices:read"]).json()["key"]
    path = f"/v1/keys/{id_of(admin)}"
    answer = closed.client.delete(path, params={"children": True}, headers=bearer(admin))
    assert answer.status_code == 204, answer.text
    assert status_of(closed, admin) == status_of(closed, made) == 401


def status_of(registry: Registry, token: str) -> int:
    return registry.client.get("/v1/voices", headers=bearer(token)).status_code


# -- when they were used


def test_the_use_of_a_key_outlives_the_process_that_saw_it(
    start: Start, tmp_path: Path, valkey: ValkeyServer, decoder: AudioDecoder
):
    """A process that is stopped writes down which keys were used. Every deployment stops all of them."""
    url = empty(valkey, 12)
    there = start(redis_url=url, folder=tmp_path / "shared", access=CLOSED)
    token = key(there)
    shown = f"/v1/keys/{id_of(token)}"
    with Registry(tmp_path / "shared", url, decoder, access=CLOSED) as here:
        assert status_of(here, token) == 200
        assert there.client.get(shown, headers=bearer(BOOTSTRAP)).json()["last_used_at"] is None
    assert there.client.get(shown, headers=bearer(BOOTSTRAP)).json()["last_used_at"]


# -- whole keys where an id is meant


def test_a_whole_key_is_not_repeated(closed: Registry):
    """No answer repeats a whole key that was sent in place of an id. The secret would end up in the logs of
    proxies on the way.
    """
    token = str(new_token())
    for refused in (
        closed.client.get(f"/v1/keys/{token}", headers=bearer(BOOTSTRAP)),
        closed.client.get("/v1/keys", params={"after": token}, headers=bearer(BOOTSTRAP)),
    ):
        assert refused.status_code == 404
        assert message(refused) == f"No API key '{token[:8]}'…."


def test_a_whole_key_stands_for_its_id(
    closed: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """SDK and command line accept a whole key in place of its id, because the key is what people have. No
    secret is printed.
    """
    with RegistryClient(closed.url, api_key=str(BOOTSTRAP), retries=0) as operator:
        made = operator.create_key("fleet", ["engine"])
        follower = operator.rotate_key(made.key, grace_seconds=0)
        operator.revoke_key(follower.key)
        assert {one.state for one in operator.api_keys()} == {"revoked"}
        with pytest.raises(ApiKeyNotFound):
            operator.revoke_key(str(new_token()))
    monkeypatch.setenv("SPEAKER_REGISTRY_API_KEY", str(BOOTSTRAP))
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", closed.url)
    token = key(closed)
    assert cli.main(["keys", "revoke", token, "--yes"]) == 0
    said = capsys.readouterr()
    assert f"revoked {id_of(token)}\n" in said.out
    assert token.split("_")[2] not in said.out + said.err
