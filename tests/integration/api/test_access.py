"""Tests of authorization: every route × own and foreign namespace, with a scope that the route accepts and
one that it does not, and what unauthenticated callers can learn.
"""

import json
import re
import select
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from redis import Redis

from services.registry_api.access.authentication import AccessMisconfigured, open_access
from services.registry_api.access.rules import accepted_scopes, check_rules, our_routes, tenant_of
from services.registry_api.keys.api_keys import ALL_SCOPES, Token, new_token, parse_token
from services.registry_api.protocol.routing import is_page
from services.shared.configuration.access import AccessSettings, RateSettings
from services.shared.configuration.api import ApiSettings
from speaker_registry import RegistryClient, cli
from speaker_registry.cli.keys import SCOPES
from speaker_registry.errors import (
    ApiKeyNotFound,
    InvalidApiKey,
    InvalidRequest,
    PermissionDenied,
    VoiceNotFound,
)
from tests.integration.api import raw
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start, empty
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import CLIP, PROFILE, WIDER, Registry
from tests.integration.api.worker import FINGERPRINT
from tests.queue_workers import wait_until

PATIENT = RateSettings(failures_per_minute=1_000_000)


@pytest.fixture
def closed(start: Start) -> Registry:
    """A registry that requires keys."""
    return start(access=CLOSED)


def parsed(token: str) -> Token:
    found = parse_token(token)
    assert found is not None
    return found


def tenant_told_from(registry: Registry, headers: dict[str, str], address: str = "192.0.2.7") -> str:
    sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return tenant_of(
        registry.app.state.parts.services.access, {"type": "http", "headers": sent, "client": (address, 1)}
    )


def test_a_request_takes_the_share_of_its_namespace_or_while_its_key_is_unknown_of_its_address(
    closed: Registry,
):
    """All keys of a tenant have one share together, and made-up keys have no part in a tenant's share."""
    first, second = (key(closed, namespace="tenant-1") for _ in range(2))
    assert tenant_told_from(closed, bearer(first)) == tenant_told_from(closed, bearer(second))
    assert tenant_told_from(closed, bearer(first)) == "namespace tenant-1"
    named = bearer(BOOTSTRAP, "tenant-1")
    assert tenant_told_from(closed, named) == "namespace tenant-1"
    assert tenant_told_from(closed, bearer(BOOTSTRAP)) == "namespace default"
    revoked = closed.client.delete(f"/v1/keys/{parsed(first).id}", headers=bearer(BOOTSTRAP))
    assert revoked.status_code == 204
    forged = str(parsed(second))[:-8] + str(new_token())[-8:]
    for strange in (first, forged, new_token(), "eyJhbGciOi", ""):
        assert tenant_told_from(closed, bearer(strange)) == "address 192.0.2.7"
    assert tenant_told_from(closed, {}) == "address 192.0.2.7"
    assert tenant_told_from(closed, {}, "2001:db8::1") == tenant_told_from(closed, {}, "2001:db8::2")


# -- the matrix


FOR_BROWSERS = {"GET /"}
"""The operations that other clients find nothing at, whatever their key may do."""
PUT_ARTIFACT = "PUT /v1/voices/{name}/versions/{ref}/artifacts/{profile}"
RESTORE = "PUT /v1/voices/{name}/versions/{ref}"
EXPECTED = {
    "GET /v1/audio/voices": {"voices:read", "engine"},
    "POST /v1/audio/voices": {"voices:write"},
    "DELETE /v1/audio/voices/{name}": {"voices:delete"},
    "GET /v1/audio/voices/{name}/cache": {"voices:read", "engine"},
    "POST /v1/audio/voices/{name}/cache": {"jobs:write", "engine"},
    "GET /v1/voices": {"voices:read", "engine"},
    "POST /v1/voices": {"voices:write"},
    "GET /v1/voices/{name}": {"voices:read", "engine"},
    "DELETE /v1/voices/{name}": {"voices:delete"},
    "GET /v1/voices/{name}/versions": {"voices:read", "engine"},
    "POST /v1/voices/{name}/versions": {"voices:write"},
    RESTORE: {"admin"},
    "GET /v1/voices/{name}/versions/{ref}": {"voices:read", "engine"},
    "GET /v1/voices/{name}/versions/{ref}/audio": {"audio:read"},
    "GET /v1/voices/{name}/versions/{ref}/audio/samples": {"audio:read"},
    "GET /v1/voices/{name}/versions/{ref}/waveform.svg": {"audio:read"},
    "GET /v1/voices/{name}/versions/{ref}/mel.png": {"audio:read"},
    "GET /v1/voices/{name}/versions/{ref}/artifacts": {"artifacts:read", "engine"},
    "GET /v1/voices/{name}/versions/{ref}/artifacts/{profile}": {"artifacts:read", "engine"},
    "GET /v1/voices/{name}/versions/{ref}/artifacts/{profile}/file": {"artifacts:read", "engine"},
    "GET /v1/blobs/{digest}": {"artifacts:read", "engine"},
    "POST /v1/resolve": {"artifacts:read", "engine"},
    "GET /v1/profiles/{profile}/manifest": {"artifacts:read", "engine"},
    PUT_ARTIFACT: {"voices:write"},
    "GET /v1/voices/{name}/history": {"voices:read", "engine"},
    "PATCH /v1/voices/{name}": {"voices:write"},
    "POST /v1/voices/{name}/undelete": {"voices:delete"},
    "DELETE /v1/voices/{name}/versions/{ref}": {"voices:delete"},
    "GET /v1/voices/{name}/aliases": {"voices:read", "engine"},
    "GET /v1/voices/{name}/aliases/{alias}": {"voices:read", "engine"},
    "PUT /v1/voices/{name}/aliases/{alias}": {"voices:write"},
    "DELETE /v1/voices/{name}/aliases/{alias}": {"voices:write"},
    "GET /v1/events": {"voices:read", "engine"},
    "GET /v1/jobs": {"jobs:read", "engine"},
    "GET /v1/jobs/summary": {"jobs:read", "engine"},
    "GET /v1/jobs/{job_id}": {"jobs:read", "engine"},
    "POST /v1/jobs/{job_id}/cancel": {"jobs:write"},
    "POST /v1/voices/{name}/versions/{ref}/extractions": {"jobs:write", "engine"},
    "GET /v1/profiles": set(ALL_SCOPES),
    "GET /v1/profiles/{profile}/history": {"voices:read", "engine"},
    "POST /v1/profiles/{profile}/promote": {"admin"},
    "GET /v1/profiles/{profile}/campaigns": {"admin"},
    "POST /v1/profiles/{profile}/campaigns": {"admin"},
    "GET /v1/profiles/{profile}/campaigns/{campaign_id}": {"admin"},
    "POST /v1/profiles/{profile}/campaigns/{campaign_id}/pause": {"admin"},
    "POST /v1/profiles/{profile}/campaigns/{campaign_id}/resume": {"admin"},
    "POST /v1/profiles/{profile}/campaigns/{campaign_id}/cancel": {"admin"},
    "GET /v1/quota": set(ALL_SCOPES),
    "GET /v1/keys": {"admin"},
    "POST /v1/keys": {"admin"},
    "GET /v1/keys/{key_id}": {"admin"},
    "DELETE /v1/keys/{key_id}": {"admin"},
    "POST /v1/keys/{key_id}/rotate": {"admin"},
    "GET /metrics": {"admin"},
    "GET /healthz": None,
    "GET /": None,
    "GET /favicon.ico": None,
    "GET /readyz": None,
}
"""The scopes that may call each operation; None: no key is needed. The table repeats the rules of the routes,
so that no route is opened by mistake.
"""
CAMPAIGNS = "/v1/profiles/{profile}/campaigns"
OF_ALL_NAMESPACES = {
    "GET /metrics",
    "POST /v1/profiles/{profile}/promote",
    f"GET {CAMPAIGNS}",
    f"POST {CAMPAIGNS}",
    *(operation for operation in EXPECTED if f"{CAMPAIGNS}/" in operation),
}
"""Operations that need a key for all namespaces."""
OWNED = re.compile(r"\{(name|job_id|key_id|digest)\}")
"""Matches paths of something that a tenant owns."""


@dataclass
class Tenant:
    """A namespace with its keys and its voice."""

    namespace: str
    keys: dict[str, str]
    """Scope -> a key for that scope alone."""
    values: dict[str, str]
    """Values of the tenant's voice that fill the parameters of paths."""


def tenant(registry: Registry, namespace: str) -> Tenant:
    keys = {scope: key(registry, scope, namespace=namespace) for scope in sorted(ALL_SCOPES)}
    headers = bearer(BOOTSTRAP, namespace)
    name = f"{namespace}s-voice"
    voice = registry.upload(name, headers=headers)
    registry.worker.finish_all(name, namespace=namespace)
    file = registry.client.get(f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}/file", headers=headers)
    key_id = id_of(keys["audio:read"])
    values = {
        "name": name,
        "ref": "1",
        "profile": PROFILE,
        "job_id": voice["job_id"],
        "key_id": key_id,
        "digest": file.headers["ETag"].strip('"'),
        "campaign_id": "none",
        "alias": "default",
    }
    return Tenant(namespace, keys, values)


@pytest.fixture(scope="module")
def tenants(
    tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any
) -> Iterator[tuple[Registry, Tenant, Tenant]]:
    """Two tenants of one registry."""
    folder = tmp_path_factory.mktemp("tenants")
    with Registry(folder, empty(valkey, 12), decoder, access=CLOSED, rates=PATIENT) as registry:
        yield registry, tenant(registry, "ours"), tenant(registry, "theirs")


def operations() -> list[str]:
    return sorted(EXPECTED)


def ask(registry: Registry, operation: str, values: dict[str, str], token: str | None) -> httpx.Response:
    """Send a request that would take effect if it were allowed."""
    method, template = operation.split()
    path = template.format(**values)
    options: dict[str, Any] = {"headers": bearer(token) if token else {}}
    if operation == "POST /v1/keys":
        options["json"] = {"name": "x", "scopes": ["engine"]}
    if operation == "POST /v1/resolve":
        options["json"] = {"voices": [values["name"]], "profiles": [PROFILE]}
    if template.endswith("/extractions"):
        options["json"] = {}
    if operation == "POST /v1/audio/voices":
        options |= {"data": {"name": "new", "consent": "c"}, "files": {"audio_sample": CLIP}}
    if operation == "POST /v1/voices":
        options |= {"data": {"name": "new", "consent": "c"}, "files": {"audio": CLIP}}
    if operation == "POST /v1/voices/{name}/versions":
        options |= {"data": {"consent": "c"}, "files": {"audio": CLIP}}
    if operation == RESTORE:
        options |= {"data": {"consent": "c", "created_at": "0"}, "files": {"audio": CLIP}}  # makes no voice
    if template.endswith("/promote") or operation == f"POST {CAMPAIGNS}":
        options["json"] = {"fingerprint": FINGERPRINT}  # the current one
    if method == "PATCH":
        options["json"] = {"pinned": True}
    if template.endswith("/{alias}"):
        options["json"] = {"version": 1}
    if operation == PUT_ARTIFACT:
        options["content"] = b"no safetensors"
    if template.endswith("/cache") and method == "POST":
        options["params"] = {"wait": 0}
    if template == "/v1/events":
        return ask_for_events(registry, path, options["headers"])
    return registry.client.request(method, path, **options)


def ask_for_events(registry: Registry, path: str, headers: dict[str, str]) -> httpx.Response:
    """Return the answer without its body, if that is events: they have no end."""
    with (
        httpx.Client(base_url=registry.url, headers=headers) as client,
        client.stream("GET", path) as response,
    ):
        if response.is_error:
            response.read()
        return response


def test_every_route_has_a_rule(registry: Registry):
    """Every route has exactly the rule of the table, and HEAD has the rule of its GET. A route without its
    rule would be open by mistake.
    """
    found = {}
    for route in our_routes(registry.app):
        if is_page(str(route.path)):
            continue  # see `test_pages.py`
        scopes = accepted_scopes(route)
        for method in route.methods or ():
            found[f"{method} {route.path}"] = set(ALL_SCOPES) if scopes == frozenset() else scopes
    heads = {f"HEAD{what[3:]}": scopes for what, scopes in EXPECTED.items() if what.startswith("GET")}
    assert found == EXPECTED | heads


def test_a_route_without_a_rule_is_no_route(start: Start):
    """A process does not start with a route that has no rule, because that route would be
    open to every caller.
    """
    app = start().app
    router = APIRouter()

    @router.get("/v1/forgotten")
    def forgotten() -> None:
        pass

    app.include_router(router)
    with pytest.raises(ValueError, match="/v1/forgotten has no rule"):
        check_rules(app)


@pytest.mark.parametrize("operation", operations())
def test_strangers_stay_out(tenants: tuple[Registry, Tenant, Tenant], operation: str):
    """A request without a key, with a mistyped key or with a key that was never made is refused with 401
    unless the route needs no key.
    """
    registry, ours, _ = tenants
    expected = EXPECTED[operation]
    for token in (None, str(new_token())[:-1] + "_", str(new_token())):
        response = ask(registry, operation, ours.values, token)
        if expected is None:
            assert response.status_code in ({404} if operation in FOR_BROWSERS else {200, 503})
            continue
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        error = response.json()["error"]
        assert "invalid_api_key" in {error["code"], error.get("reason")}
        assert error["type"] in {"authentication_error", "AuthenticationError"}


@pytest.mark.parametrize("operation", operations())
def test_a_key_is_for_what_it_says(tenants: tuple[Registry, Tenant, Tenant], operation: str):
    """A key works for its own scopes and namespace only. Operations outside its scopes are refused, and
    another tenant's objects are reported as not found. One scope of each kind is enough: which scopes are
    accepted is in the table above, and what the route does with one does not depend on which it is.
    """
    expected = ALL_SCOPES if EXPECTED[operation] is None else EXPECTED[operation] or ()
    for scope in filter(None, (min(expected), min(ALL_SCOPES - set(expected), default=None))):
        assert_scope_is_respected(tenants, operation, scope, is_accepted=scope in expected)


def assert_scope_is_respected(
    tenants: tuple[Registry, Tenant, Tenant], operation: str, scope: str, *, is_accepted: bool
) -> None:
    registry, ours, theirs = tenants
    foreign = ask(registry, operation, theirs.values, ours.keys[scope])
    # Destructive requests name something that does not exist: the rule is checked first.
    destroys = operation.startswith("DELETE") or operation.endswith("rotate")
    nobodys = {"name": "nobody", "key_id": "nokeyid0"}
    values = {**ours.values, **nobodys} if destroys else ours.values
    own = ask(registry, operation, values, ours.keys[scope])
    if not is_accepted:
        for response in (own, foreign):
            assert response.status_code == 403
            assert f"the scopes: {scope}" in response.json()["error"]["message"]
    elif operation in OF_ALL_NAMESPACES:
        for response in (own, foreign):
            assert response.status_code == 403
            assert "for namespace 'ours'" in response.json()["error"]["message"]
    elif operation == RESTORE:  # would create a voice of this name in the caller's own namespace
        assert (own.status_code, foreign.status_code) == (400, 400)
    elif OWNED.search(operation):
        assert foreign.status_code == 404
        assert own.status_code == (404 if destroys else 422 if operation == PUT_ARTIFACT else own.status_code)
        assert own.status_code < 500
        assert destroys or own.status_code != 404
    else:
        assert own.status_code in ({404} if operation in FOR_BROWSERS else {200, 201})


def test_what_is_of_all_namespaces_is_for_keys_for_any(closed: Registry):
    """Operations on all namespaces need a key for all namespaces. A caller that may see one tenant's voices
    need not see how often all other tenants' voices are requested.
    """
    for operation in sorted(OF_ALL_NAMESPACES):
        [scope] = EXPECTED[operation] or ()
        values = {"profile": PROFILE, "campaign_id": "none"}
        answer = ask(closed, operation, values, key(closed, scope, namespace="*"))
        refused = {f"POST {CAMPAIGNS}": 409, "POST /v1/profiles/{profile}/promote": 409}
        expected = 404 if "{campaign_id}" in operation else refused.get(operation, 200)
        assert answer.status_code == expected, operation


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/keys"),
        ("POST", "/v1/audio/voices"),
        ("POST", "/v1/voices"),
        ("POST", "/v1/voices/alice/versions"),
        ("PUT", "/v1/voices/alice/versions/7"),
        ("PUT", f"/v1/voices/alice/versions/1/artifacts/{PROFILE}"),
        ("POST", "/v1/nowhere"),
    ],
)
def test_a_stranger_is_refused_before_its_body_comes(
    tenants: tuple[Registry, Tenant, Tenant], method: str, path: str
):
    """A request without a valid key is refused before its body arrives. Nothing is read, parsed or kept for
    it, and a body that is sent all the same is not taken for another request.
    """
    registry, _, _ = tenants
    for length in ("Content-Length: 60000", "Transfer-Encoding: chunked"):
        answer = raw.ask(registry.port, raw.head(method, path, length))
        assert (answer.status, answer.headers["connection"]) == (401, "close")


@pytest.mark.parametrize("size", [70_000, 5_000_000])
def test_a_body_that_is_no_upload_cannot_be_large(tenants: tuple[Registry, Tenant, Tenant], size: int):
    """A body that is no upload cannot be large, because it is parsed as a whole."""
    registry, ours, _ = tenants
    content = b"[" + b"{}," * (size // 3) + b"{}]"
    headers = {"Content-Type": "application/json", **bearer(ours.keys["admin"])}
    refused = registry.client.post("/v1/keys", content=content, headers=headers)
    assert refused.status_code == 413
    assert "accepted here: 65536" in refused.json()["error"]["message"]


def test_what_is_anothers_cannot_be_told_from_what_is_not(tenants: tuple[Registry, Tenant, Tenant]):
    """The answer about another tenant's voice equals the answer about a voice that does not exist, word for
    word except for the name in it. A difference would reveal the voice.
    """
    registry, ours, theirs = tenants
    for operation in (one for one in operations() if OWNED.search(one)):
        scope = sorted(EXPECTED[operation] or ())[0]
        nothing = {**theirs.values, "name": "nobody", "job_id": "job_0", "key_id": "nokeyid0"}
        said = []
        for values in (theirs.values, nothing):
            response = ask(registry, operation, values, ours.keys[scope])
            error = {**response.json()["error"], "request_id": None}
            text = str(error)
            for name in ("name", "job_id", "key_id"):
                text = text.replace(values[name], "…")
            said.append((response.status_code, text))
        assert said[0] == said[1], operation


# -- namespaces


def test_a_key_for_any_namespace_names_it(closed: Registry):
    """A caller with a key for any namespace names the namespace in a header, and `default` is used without
    it. A key that is bound to another namespace is not moved by the header.
    """
    closed.upload("alice", headers=bearer(BOOTSTRAP, "tenant"))
    get = closed.client.get
    assert get("/v1/voices/alice", headers=bearer(BOOTSTRAP)).status_code == 404
    there = bearer(BOOTSTRAP, "tenant")
    assert get("/v1/voices/alice", headers=there).status_code == 200
    bound = key(closed, namespace="tenant")
    assert get("/v1/voices/alice", headers=bearer(bound)).status_code == 200
    other = get("/v1/voices/alice", headers=bearer(bound, "default"))
    assert other.status_code == 403
    assert "this API key is for 'tenant'" in other.json()["error"]["message"]


@pytest.mark.parametrize("namespace", ["", "*", "a/b", "UP", "x" * 33])
def test_a_namespace_that_cannot_be_is_refused(closed: Registry, namespace: str):
    response = closed.client.get("/v1/voices", headers=bearer(BOOTSTRAP, namespace))
    assert response.status_code == 403
    assert repr(namespace) in response.json()["error"]["message"]


# -- keys


def test_a_key_is_shown_once(closed: Registry):
    """A key is shown once. Its id, its purpose and the time of its last use can be read at any time."""
    token = key(closed, "engine", name="fleet", expires_at=4_000_000_000)
    key_id = id_of(token)
    closed.client.get("/v1/voices", headers=bearer(token))
    shown = closed.client.get(f"/v1/keys/{key_id}", headers=bearer(BOOTSTRAP))
    assert token.split("_")[2] not in shown.text
    body = shown.json()
    assert {name: body[name] for name in ("name", "namespace", "scopes", "state", "expires_at")} == {
        "name": "fleet",
        "namespace": "default",
        "scopes": ["engine"],
        "state": "active",
        "expires_at": 4_000_000_000,
    }
    assert body["created_by"] == BOOTSTRAP.id
    assert body["last_used_at"] == pytest.approx(time.time(), abs=60)
    assert shown.headers["Cache-Control"] == "private, no-cache"


def test_the_answer_that_shows_a_key_is_kept_nowhere(closed: Registry):
    asked = {"name": "x", "scopes": ["engine"]}
    response = closed.client.post("/v1/keys", json=asked, headers=bearer(BOOTSTRAP))
    assert response.headers["Cache-Control"] == "no-store"


def test_a_revoked_key_is_refused(closed: Registry):
    """A revoked key is refused from the answer on by the process that revoked it, and
    within a second by the others.
    """
    token = key(closed)
    get = closed.client.get
    assert get("/v1/voices", headers=bearer(token)).status_code == 200
    key_id = id_of(token)
    assert closed.client.delete(f"/v1/keys/{key_id}", headers=bearer(BOOTSTRAP)).status_code == 204
    refused = get("/v1/voices", headers=bearer(token))
    assert refused.status_code == 401
    assert refused.json()["error"]["message"] == "This API key is revoked."
    shown = closed.client.get(f"/v1/keys/{key_id}", headers=bearer(BOOTSTRAP)).json()
    assert shown["state"] == "revoked"
    assert shown["expires_at"] == pytest.approx(time.time(), abs=60)


def test_an_expired_key_is_refused(closed: Registry):
    token = key(closed, expires_at=int(time.time()) + 2)
    assert closed.client.get("/v1/voices", headers=bearer(token)).status_code == 200
    wait_until(lambda: closed.client.get("/v1/voices", headers=bearer(token)).status_code == 401)
    said = closed.client.get("/v1/voices", headers=bearer(token)).json()["error"]["message"]
    assert said == "This API key is expired."


def test_a_namespaces_admin_makes_keys_for_it_alone(closed: Registry):
    """A namespace's admin key makes keys of any scope for its own namespace, but not for another namespace
    and not for all.
    """
    admin = key(closed, "admin", namespace="tenant")
    post = closed.client.post
    asked = {"name": "x", "scopes": ["voices:write"]}
    made = post("/v1/keys", json=asked, headers=bearer(admin))
    assert made.json()["namespace"] == "tenant"
    for namespace in ("default", "*"):
        refused = post("/v1/keys", json={**asked, "namespace": namespace}, headers=bearer(admin))
        assert refused.status_code == 403
        assert repr(namespace) in refused.json()["error"]["message"]
    bootstrap_id = f"/v1/keys/{BOOTSTRAP.id}"
    assert closed.client.get(bootstrap_id, headers=bearer(admin)).status_code == 404


def test_keys_come_in_pages(closed: Registry):
    """Keys are listed in pages, with no key twice and none left out."""
    made = {id_of(key(closed, "engine")) for _ in range(5)}
    found, after = [], ""
    for _ in range(3):
        page = closed.client.get(
            "/v1/keys", params={"limit": 2, "after": after}, headers=bearer(BOOTSTRAP)
        ).json()
        found += [one["id"] for one in page["data"]]
        after = page["last_id"]
    assert not page["has_more"]
    assert set(found) == made
    assert len(found) == 5
    lost = closed.client.get("/v1/keys", params={"after": "nokeyid0"}, headers=bearer(BOOTSTRAP))
    assert lost.status_code == 404


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"scopes": ["engine"]}, "name"),
        ({"name": "", "scopes": ["engine"]}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["voices:erase"]}, "voices:erase"),
        ({"name": "x", "scopes": ["engine"], "expires_at": 5}, "expires_at"),
        ({"name": "x", "scopes": ["engine"], "namespace": "A B"}, "namespace"),
        ({"name": "x", "scopes": ["engine"], "secret": "mine"}, "secret"),
        ({"name": "x", "scopes": ["engine"], "requests_per_minute": 0}, "requests_per_minute"),
        ({"name": "a\0b", "scopes": ["engine"]}, r"'name' contains the control character '\x00'"),
    ],
)
def test_a_key_that_cannot_be_made_is_refused(closed: Registry, asked: dict[str, Any], param: str):
    """A request for a key that cannot be made is refused, and the message names the
    parameter that is wrong.
    """
    response = closed.client.post("/v1/keys", json=asked, headers=bearer(BOOTSTRAP))
    assert response.status_code == 400
    assert param in response.json()["error"]["message"]


def test_a_good_id_with_another_secret_opens_nothing(closed: Registry):
    """A valid id with another secret grants nothing, because the id is no secret."""
    token = Token(id_of(key(closed)), new_token().secret)
    refused = closed.client.get("/v1/voices", headers=bearer(token))
    assert refused.status_code == 401
    assert refused.json()["error"]["message"] == "This API key is not known here."
    other = Token(BOOTSTRAP.id, new_token().secret)
    assert closed.client.get("/v1/voices", headers=bearer(other)).status_code == 401


def test_secrets_are_in_no_log(closed: Registry, capsys: pytest.CaptureFixture[str]):
    """Secrets appear in no log, whether a key is right, wrong, or in a query string."""
    token = key(closed)
    wrong = Token(id_of(token), new_token().secret)
    for one in (token, str(wrong), str(BOOTSTRAP)):
        closed.client.get("/v1/voices", headers=bearer(one))
        closed.client.get("/v1/voices", params={"api_key": one}, headers=bearer(one))
    logged = capsys.readouterr()
    for secret in (token.split("_")[2], wrong.secret, BOOTSTRAP.secret):
        assert secret not in logged.out + logged.err
    assert id_of(token) in logged.out


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer x ,y", "Basic dTpw", "sreg_x", "Bearer a b", "Bearer é"]
)
def test_a_header_that_is_no_bearer_is_no_key(closed: Registry, header: str):
    response = closed.client.get("/v1/voices", headers={"Authorization": header.encode()})
    assert response.status_code == 401


def test_many_wrong_keys_from_one_address_have_to_wait(start: Start):
    """Callers that send many wrong keys from one address have to wait. A valid key from that address still
    works, because other callers may share it.
    """
    closed = start(access=CLOSED, rates=RateSettings(failures_per_minute=5))
    stop_the_minute(closed)
    codes = [closed.client.get("/v1/voices", headers=bearer(new_token())).status_code for _ in range(8)]
    assert codes == [401] * 5 + [429] * 3
    refused = closed.client.get("/v1/voices")
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "15"
    assert closed.client.get("/v1/voices", headers=bearer(BOOTSTRAP)).status_code == 200


def test_guesses_at_an_address_lock_no_key_out_of_a_process_that_has_just_started(start: Start, valkey: Any):
    """A process knows from its start on which keys there are, so that it looks for them all the same."""
    url = empty(valkey, 13)
    before = start(url, access=CLOSED)
    token = key(before)
    rates = RateSettings(failures_per_minute=5)
    started = start(url, access=CLOSED, rates=rates, folder=before.folder)
    stop_the_minute(started)
    codes = [started.client.get("/v1/voices", headers=bearer(new_token())).status_code for _ in range(6)]
    assert codes == [401] * 5 + [429]
    assert started.client.get("/v1/voices", headers=bearer(token)).status_code == 200


# -- SDK and command line


def test_the_sdk_makes_rotates_and_revokes_keys(closed: Registry):
    """An operator's script can create, rotate, list and revoke keys through the SDK."""
    with RegistryClient(closed.url, api_key=str(BOOTSTRAP), retries=0) as operator:
        made = operator.create_key("fleet", ["engine"], namespace="tenant", requests_per_minute=100)
        with RegistryClient(closed.url, api_key=made.key, retries=0) as engine:
            assert engine.quota().namespace == "tenant"
            with pytest.raises(PermissionDenied, match="voices:write"):
                engine.register("alice", CLIP, consent="c")
        follower = operator.rotate_key(made.id, grace_seconds=0)
        states = {key.id: key.state for key in operator.api_keys()}
        assert states == {made.id: "revoked", follower.id: "active"}
        old = RegistryClient(closed.url, api_key=made.key, retries=0)
        with old, pytest.raises(InvalidApiKey, match="revoked"):
            old.quota()
        operator.revoke_key(follower.id)
        assert {key.state for key in operator.api_keys()} == {"revoked"}
        with pytest.raises(InvalidRequest, match="'scopes'"):
            operator.create_key("x", [])
        with pytest.raises(ApiKeyNotFound):
            operator.revoke_key("nokeyid0")


def test_the_sdk_asks_about_a_namespace(closed: Registry, monkeypatch: pytest.MonkeyPatch):
    """A client of the SDK with a key for any namespace works in the namespace that it names."""
    closed.upload("alice", headers=bearer(BOOTSTRAP, "tenant"))
    with RegistryClient(closed.url, api_key=str(BOOTSTRAP), namespace="tenant") as tenant:
        assert tenant.get("alice").name == "alice"
    with RegistryClient(closed.url, api_key=str(BOOTSTRAP)) as client, pytest.raises(VoiceNotFound):
        client.get("alice")
    monkeypatch.setenv("SPEAKER_REGISTRY_NAMESPACE", "tenant")
    with RegistryClient(closed.url, api_key=str(BOOTSTRAP)) as client:
        assert client.get("alice").name == "alice"
    with pytest.raises(ValueError, match="'A B'"):
        RegistryClient(closed.url, namespace="A B")


def test_the_command_line_makes_lists_and_revokes_keys(
    closed: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """An operator can create, list and revoke keys on the command line. A list never shows a secret."""
    monkeypatch.setenv("SPEAKER_REGISTRY_API_KEY", str(BOOTSTRAP))
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", closed.url)

    def said(*words: str) -> str:
        assert cli.main(words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    out = said(
        "keys", "create", "TTS fleet", "--scope", "engine", "--scope", "jobs:read", "--namespace", "tts"
    )
    token = next(line for line in out.splitlines() if line.startswith("sreg_"))
    assert closed.client.get("/v1/voices", headers=bearer(token)).status_code == 200
    key_id = id_of(token)
    listed = said("keys", "list")
    assert re.search(rf"{key_id} +TTS fleet +tts +engine,jobs:read +active +- +20", listed)
    assert token.split("_")[2] not in listed
    out = said("keys", "rotate", key_id, "--grace", "0", "--json")
    document = re.search(r"^\{$.*?^\}$", out, re.DOTALL | re.MULTILINE)  # among the server's log
    assert document
    rotated = json.loads(document[0])
    assert rotated["scopes"] == ["engine", "jobs:read"]
    assert "revoked" in said("keys", "revoke", rotated["id"], "--yes")
    assert closed.client.get("/v1/voices", headers=bearer(rotated["key"])).status_code == 401
    assert "voices" in said("quota")
    assert cli.main(["keys", "revoke", rotated["id"]]) == 2  # nobody is present to confirm
    assert cli.main(["keys", "create", "x", "--scope", "everything"]) == 2


def test_the_command_line_knows_every_scope():
    """The command line knows every scope without loading the schemas."""
    assert set(SCOPES) == ALL_SCOPES


# -- limits and quotas


def stop_the_minute(*registries: Registry) -> None:
    """Hold the clock of the limits still. They begin anew with each minute, which must not happen in the
    middle of a test.
    """
    for registry in registries:
        registry.app.state.parts.services.access.rate_limits.now = lambda: 1_775_133_885.0


def test_requests_are_limited_by_key(start: Start):
    """Requests are limited by key, and each answer says what is left of the limit."""
    closed = start(access=CLOSED)
    token = key(closed, requests_per_minute=5)
    stop_the_minute(closed)
    answers = [closed.client.get("/v1/profiles", headers=bearer(token)) for _ in range(7)]
    assert [one.status_code for one in answers] == [200] * 5 + [429] * 2
    assert [one.headers["RateLimit-Remaining"] for one in answers] == ["4", "3", "2", "1", "0", "0", "0"]
    assert {one.headers["RateLimit-Limit"] for one in answers} == {"5"}
    assert {one.headers["RateLimit-Policy"] for one in answers} == {"5;w=60"}
    assert answers[-1].headers["Retry-After"] == answers[-1].headers["RateLimit-Reset"]
    assert answers[-1].json()["error"]["code"] == "rate_limited"
    assert closed.client.get("/v1/profiles", headers=bearer(key(closed))).status_code == 200


def test_the_limit_that_is_nearer_is_told(start: Start):
    """The headers of an answer describe the limit that is nearest. A key with much left is refused all the
    same when its namespace has none.
    """
    closed = start(access=CLOSED, rates=RateSettings(namespace_requests_per_minute=10))
    stop_the_minute(closed)
    first, second = key(closed, requests_per_minute=6), key(closed)
    told = [
        closed.client.get("/v1/profiles", headers=bearer(token)).headers["RateLimit-Remaining"]
        for token in (first, first, second, second)
    ]
    used = 2  # by the key that made them
    assert told == ["5", "4", str(10 - used - 3), str(10 - used - 4)]


def test_processes_share_a_limit(start: Start, valkey: Any):
    """Processes share a limit: two of them accept as many requests as one, also if their clocks differ."""
    url = empty(valkey, 13)
    one = start(url, access=CLOSED)
    other = start(url, access=CLOSED, folder=one.folder)
    token = key(one, requests_per_minute=20)
    stop_the_minute(one)
    ahead = 1_775_133_885.0 + 3600
    other.app.state.parts.services.access.rate_limits.now = lambda: ahead
    answers = [
        registry.client.get("/v1/profiles", headers=bearer(token))
        for _ in range(15)
        for registry in (one, other)
    ]
    assert [answer.status_code for answer in answers].count(200) == 20
    seconds = int(answers[-1].headers["Retry-After"])
    with Redis.from_url(url) as redis:
        (counted,) = redis.keys("sr:rate:requests:key:" + id_of(token))
        assert 0 <= seconds - redis.ttl(counted) <= 30, "the minute ends when Redis says so"
        redis.delete(counted)
    assert other.client.get("/v1/profiles", headers=bearer(token)).status_code == 429
    ahead += seconds
    assert other.client.get("/v1/profiles", headers=bearer(token)).status_code == 200


def test_a_minute_that_redis_has_begun_again_ends_when_redis_says_so(start: Start, valkey: Any):
    """A caller that waits as long as it is told to is served, also after Redis has lost the counts."""
    registry = start(empty(valkey, 13), access=CLOSED)
    token = key(registry, requests_per_minute=20)
    now = 1_775_133_885.0
    registry.app.state.parts.services.access.rate_limits.now = lambda: now
    registry.client.get("/v1/profiles", headers=bearer(token))
    now += 45
    empty(valkey, 13)
    answers = [registry.client.get("/v1/profiles", headers=bearer(token)) for _ in range(25)]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["Retry-After"]) > 50


def test_uploads_are_limited_apart(start: Start):
    """Uploads have limits of their own, by key and by namespace. vLLM-Omni's route answers 429 as well."""
    closed = start(access=CLOSED, rates=RateSettings(uploads_per_minute=3, namespace_uploads_per_minute=4))
    stop_the_minute(closed)
    first, second = key(closed), key(closed)
    codes = [closed.post_voice(f"v{n}", headers=bearer(first)).status_code for n in range(4)]
    assert codes == [200, 200, 200, 429]
    codes = [closed.post_voice(f"w{n}", headers=bearer(second)).status_code for n in range(2)]
    assert codes == [200, 429]
    refused = closed.post_voice("x", headers=bearer(second))
    assert refused.json()["error"]["reason"] == "rate_limited"
    assert "this namespace" in refused.json()["error"]["message"]
    assert closed.client.get("/v1/voices", headers=bearer(first)).status_code == 200


def test_made_up_ids_are_limited_wherever_they_are_named(start: Start):
    """An id without a voice is looked for in the bucket, whether a path or a query names it."""
    closed = start(access=CLOSED, rates=RateSettings(unknown_names_per_minute=2))
    stop_the_minute(closed)
    closed.upload("alice", headers=bearer(key(closed)))

    def statuses(path: str, *, head: bool = False) -> list[int]:
        headers = bearer(key(closed))
        method = "HEAD" if head else "GET"
        ids = [f"voice_{number:032x}_alice" for number in range(3)]
        return [closed.client.request(method, path.format(one), headers=headers).status_code for one in ids]

    assert statuses("/v1/voices/{}") == [404, 404, 429]
    assert statuses("/v1/jobs?voice={}") == [200, 200, 429]
    assert statuses("/v1/events?voice={}", head=True) == [200, 200, 429]


def test_a_forced_extraction_counts_as_an_upload(start: Start):
    """A forced extraction counts as an upload. It makes the workers as much work, and
    used to be counted nowhere.
    """
    closed = start(access=CLOSED, rates=RateSettings(uploads_per_minute=3))
    stop_the_minute(closed)
    token = key(closed)
    closed.post_voice("alice", headers=bearer(token))
    cache = "/v1/audio/voices/alice/cache?wait=0"
    forced = [closed.client.post(f"{cache}&force=true", headers=bearer(token)).status_code for _ in range(2)]
    extractions = "/v1/voices/alice/versions/1/extractions"
    again = closed.client.post(extractions, json={"force": True}, headers=bearer(token))
    unforced = closed.client.post(cache, headers=bearer(token))
    assert (forced, again.status_code, unforced.status_code) == ([202, 202], 429, 202)


def test_a_new_extraction_of_a_profile_that_is_not_required_counts_as_an_upload(start: Start):
    """One counted upload led to a job in Redis for each profile, and without workers those never end."""
    closed = start(access=CLOSED, rates=RateSettings(uploads_per_minute=3))
    stop_the_minute(closed)
    token = key(closed)

    def ask(name: str, *profiles: str) -> int:
        path = f"/v1/voices/{name}/versions/1/extractions"
        return closed.client.post(path, json={"profiles": profiles}, headers=bearer(token)).status_code

    for name in ("alice", "bob"):
        closed.post_voice(name, headers=bearer(token))
    assert [ask("alice", PROFILE, WIDER), ask("alice", WIDER), ask("bob", PROFILE)] == [202, 202, 202]
    assert ask("bob", PROFILE, WIDER) == 429
    cache = f"/v1/audio/voices/bob/cache?wait=0&profile={WIDER}"
    assert closed.client.post(cache, headers=bearer(token)).status_code == 429
    jobs = closed.client.get("/v1/jobs", params={"profile": WIDER}, headers=bearer(token)).json()
    assert [job["voice"] for job in jobs["data"]] == ["alice"]


def test_one_key_s_waiting_requests_leave_connections_to_others(start: Start):
    """Waiting requests of one key leave connections to other callers. Before there was a limit, 1,500 long
    polls of one key were answered 202 after a minute, and nearly every second other request 503.
    """
    closed = start(access=CLOSED, rates=RateSettings(waiting_requests=2))
    one, other = key(closed), key(closed)
    closed.post_voice("alice", headers=bearer(one))
    path = f"/v1/voices/alice/versions/1/artifacts/{PROFILE}?wait=30"

    def ask(token: str) -> httpx.Response:
        return closed.client.get(path, headers=bearer(token))

    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(ask, one) for _ in range(2)]
        wait_until(lambda: closed.long_polls.waiting == 2)
        refused = ask(one)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        waiting.append(threads.submit(ask, other))
        wait_until(lambda: closed.long_polls.waiting == 3)
        closed.worker.finish_all("alice")
        assert [answer.result().status_code for answer in waiting] == [200] * 3


@pytest.mark.parametrize(
    ("path", "kind", "connections"),
    [("/v1/resolve", "application/json", 8), ("/dashboard/login", "application/x-www-form-urlencoded", 16)],
)
def test_bodies_that_arrive_slowly_leave_connections_to_others(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str, kind: str, connections: int
):
    """Requests that sent only the beginning of their bodies could take all connections for half a minute. The
    form that signs people in needs no key for that.
    """
    monkeypatch.setenv("SPEAKER_API_MAX_CONNECTIONS", str(connections))
    closed = start(access=CLOSED)
    token, other = key(closed, namespace="acme"), key(closed)
    lines = [] if path == "/dashboard/login" else [f"Authorization: Bearer {token}"]
    begun = raw.head("POST", path, *lines, f"Content-Type: {kind}", "Content-Length: 500") + b"["
    with ExitStack() as opened:
        slow = [opened.enter_context(raw.connected(closed.port)) for _ in range(3)]
        for one in slow:
            one.sendall(begun)
        [refused], _, _ = select.select(slow, [], [], 10)
        answer = raw.read_answer(refused)
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert b"has reached its limit of 2 arriving requests at once" in answer.body
        assert closed.client.get("/v1/voices", headers=bearer(other)).status_code == 200
        asked = {"voices": ["alice"], "profiles": [PROFILE]}
        in_time = closed.client.post("/v1/resolve", json=asked, headers=bearer(token))
        assert in_time.status_code == 200, in_time.text
        with Visitor(closed, str(BOOTSTRAP)):
            pass  # has signed in
        slow.remove(refused)
        for one in slow:
            one.sendall(b" " * 499)
            assert raw.read_answer(one).status not in {429, 503}
        assert not closed.app.state.parts.services.access.arriving_requests._held


def test_the_quota_says_what_is_left(start: Start):
    """The quota shows what is left of each limit, so that callers can check it before bulk work."""
    closed = start(access=CLOSED, max_uploaded=7, max_stored_bytes=10 * len(CLIP))
    token = key(closed, requests_per_minute=100)
    stop_the_minute(closed)
    closed.upload("alice", headers=bearer(token))
    quota = closed.client.get("/v1/quota", headers=bearer(token)).json()
    assert quota["voices"] == {"used": 1, "limit": 7}
    assert quota["bytes"] == {"used": len(CLIP) + len("alicecons_1"), "limit": 10 * len(CLIP)}
    assert quota["text_bytes"] == {"used": len("alicecons_1"), "limit": 64 * 1024**2}
    assert (quota["max_versions"], quota["max_builds"]) == (200, 20)
    assert quota["requests_per_minute"]["remaining"] == 98
    assert quota["uploads_per_minute"]["remaining"] == 599
    assert quota["namespace_requests_per_minute"]["limit"] is None
    assert quota["max_clip_bytes"] == 10 * 1024**2


# -- the way in


def test_beyond_loopback_the_registry_needs_keys(registry: Registry):
    """A registry that listens beyond loopback needs keys. The process does not start with settings that would
    let in either no caller or every caller.
    """
    world = ApiSettings(host="0.0.0.0")
    with pytest.raises(
        AccessMisconfigured, match="need an API key, and there is none that could make others"
    ):
        open_access(
            world, AccessSettings(), RateSettings(), registry.keys, registry.key_uses, registry.plain_redis
        )
    with pytest.raises(AccessMisconfigured, match="listens on loopback only"):
        open_access(
            world,
            AccessSettings(required=False),
            RateSettings(),
            registry.keys,
            registry.key_uses,
            registry.plain_redis,
        )
    assert open_access(
        world, CLOSED, RateSettings(), registry.keys, registry.key_uses, registry.plain_redis
    ).required


@pytest.mark.parametrize(
    ("api", "access", "reason"),
    [
        ({}, {"required": True}, "SPEAKER_AUTH_REQUIRED is true, so"),
        ({"host": "0.0.0.0"}, {"required": True}, "SPEAKER_AUTH_REQUIRED is true, so"),
        ({"host": "0.0.0.0"}, {}, "SPEAKER_API_HOST is '0.0.0.0', which is not loopback, so"),
        ({"trusted_proxies": "10.0.0.0/8"}, {}, "SPEAKER_API_TRUSTED_PROXIES is set, so"),
    ],
)
def test_who_lacks_a_first_key_is_told_which_setting_asks_for_it_and_how_to_make_one(
    registry: Registry, api: dict[str, Any], access: dict[str, Any], reason: str
):
    """The error for a missing first key names the setting that requires one and says how to make it. The name
    of any other setting would send the operator looking in the wrong place.
    """
    with pytest.raises(AccessMisconfigured) as caught:
        open_access(
            ApiSettings.model_validate(api),
            AccessSettings.model_validate(access),
            RateSettings(),
            registry.keys,
            registry.key_uses,
            registry.plain_redis,
        )
    assert str(caught.value).startswith(reason)
    assert "new-key --out FILE" in str(caught.value)
    assert "SPEAKER_AUTH_BOOTSTRAP_KEY_FILE" in str(caught.value)


def test_a_key_from_before_is_a_way_in(start: Start):
    """A key from an earlier start is enough to start without the bootstrap key, which is needed once, to make
    the first key. A key that cannot make others is not enough.
    """
    closed = start(access=CLOSED)
    world = ApiSettings(host="::")
    key(closed, "engine")
    with pytest.raises(AccessMisconfigured):
        open_access(world, AccessSettings(), RateSettings(), closed.keys, closed.key_uses, closed.plain_redis)
    key(closed, "admin")
    assert open_access(
        world, AccessSettings(), RateSettings(), closed.keys, closed.key_uses, closed.plain_redis
    ).required


def test_the_document_says_whether_keys_are_needed(start: Start):
    """The OpenAPI document says whether keys are needed, because clients are generated from it."""
    operation = "/v1/voices"
    needed = start(access=CLOSED).client.get("/openapi.json").json()
    assert needed["paths"][operation]["get"]["security"] == [{"ApiKey": ["voices:read", "engine"]}]
    assert needed["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    assert "security" not in needed["paths"]["/healthz"]["get"]
    not_needed = start().client.get("/openapi.json").json()
    assert "security" not in str(not_needed["paths"][operation]["get"].keys())
    assert "securitySchemes" not in not_needed["components"]


# -- headers


@pytest.mark.parametrize("path", ["/v1/voices", "/healthz", "/v1/nothing", "/docs", "/openapi.json"])
def test_browsers_are_told_to_be_careful(registry: Registry, path: str):
    """Every answer carries the security headers for browsers, an error too."""
    headers = registry.client.get(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers


def test_browsers_are_told_so_by_refusals_too(start: Start):
    """Refusals of an overloaded process carry the security headers and a request id as well. Here the process
    may do nothing at all.
    """
    refused = start(max_active=0).client.get("/v1/voices")
    assert refused.status_code == 503
    assert refused.headers["X-Content-Type-Options"] == "nosniff"
    assert refused.headers["X-Request-Id"]


def test_a_web_page_of_another_origin_gets_no_permission(registry: Registry):
    """A web page of another origin gets no permission: CORS is off, and where no keys are needed, the page
    gets no answer.
    """
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
    response = registry.client.options("/v1/voices", headers=asked)
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control")]
