"""Tests that parameters which a route does not take are refused on the registry's own routes, and ignored on
vLLM-Omni's.
"""

from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from services.registry_api.access.rules import our_routes
from services.registry_api.keys.api_keys import new_token
from services.registry_api.protocol.routing import is_page
from services.shared.configuration.access import AccessSettings
from speaker_registry import RegistryClient
from tests.integration.api.conftest import Start
from tests.integration.api.registry import PROFILE, Registry

TOLERANT = ("/v1/audio/", "/healthz", "/readyz", "/metrics", "/favicon.ico")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/voices/{name}/versions/{ref}/extractions": {},
    "/v1/voices/{name}": {"pinned": True},
    "/v1/voices/{name}/aliases/{alias}": {"version": 1},
    "/v1/resolve": {"voices": ["x"], "profiles": [PROFILE]},
    "/v1/keys": {"name": "test", "scopes": ["engine"]},
}


def told(response: httpx.Response) -> tuple[int, str, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"], error["message"]


def test_every_route_of_ours_refuses_a_parameter_that_it_does_not_take(registry: Registry):
    """Every route of the registry's own refuses a parameter that it does not take. A mistyped one would
    otherwise be ignored, and the answer would be to another question.
    """
    routes = [
        route
        for route in our_routes(registry.app)
        if route.path != "/" and not str(route.path).startswith(TOLERANT) and not is_page(str(route.path))
    ]
    assert len(routes) > 15
    for route in routes:
        values = {"name": "x", "ref": "1", "profile": PROFILE, "job_id": "job_x", "key_id": "x"}
        values |= {"alias": "prod", "campaign_id": "x", "digest": "sha256:" + "0" * 64}
        path = str(route.path).format(**values)
        for method in route.methods or ():
            said = BODIES.get(str(route.path)) if method in {"POST", "PUT", "PATCH"} else None
            response = registry.client.request(method, path, params={"surprise": "1"}, json=said)
            keys_are_off = path.startswith("/v1/keys")  # which is said first
            assert response.status_code == (409 if keys_are_off else 400), (method, path)
            if method != "HEAD" and not keys_are_off:
                assert told(response)[:3] == (400, "invalid_request", "surprise"), (method, path)


@pytest.mark.parametrize(
    ("path", "param", "says"),
    [
        (
            "/v1/voices?profil=x",
            "profil",
            "Query parameter 'profil' is not known here; did you mean 'profile'? "
            "Accepted: after, label, limit, profile, q, state.",
        ),
        (
            "/v1/jobs?limit=1&waits=5",
            "waits",
            "Query parameter 'waits' is not known here. "
            "Accepted: after, created_after, limit, profile, state, voice.",
        ),
        (
            f"/v1/voices/x/versions/1/artifacts/{PROFILE}/file?currant=true",
            "currant",
            "did you mean 'current'? Accepted: current, fingerprint, redirect, wait.",
        ),
        (
            "/v1/jobs?limit=1&limit=2",
            "limit",
            "Query parameter 'limit' is given 2 times; accepted: once, because it would not be clear which "
            "of them counts.",
        ),
        ("/v1/voices/x?%00%0a=1", "\0\n", r"Query parameter '\x00\n' is not known here. Accepted: none."),
    ],
)
def test_the_error_names_the_parameter_the_nearest_one_and_all_that_are_accepted(
    registry: Registry, path: str, param: str, says: str
):
    """The error names the parameter, the nearest valid one and all that are accepted, so that callers need
    not look anything up.
    """
    status, code, named, message = told(registry.client.get(path))
    assert (status, code, named) == (400, "invalid_request", param)
    assert says in message


def test_a_field_of_a_body_that_is_not_taken_is_named_too(registry: Registry, name: str):
    """The error for an unknown field of a body names the field in the same words."""
    registry.upload(name)
    path = f"/v1/voices/{name}/versions/1/extractions"
    assert told(registry.client.post(path, json={"profile": PROFILE})) == (
        400,
        "invalid_request",
        "profile",
        "Field 'profile' is not known here; did you mean 'profiles'? Accepted: force, profiles.",
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "count"),
    [
        ("POST", "/v1/keys", '{"namespace": "a", "name": "x", "namespace": "*"}', "namespace", 2),
        ("PATCH", "/v1/voices/{name}", '{"labels": {"k": "1", "k": "2", "\\u006b": "3"}}', "k", 3),
        ("PUT", "/v1/voices/{name}/aliases/prod", '{"version": 1, "version": 1}', "version", 2),
        ("POST", "/v1/resolve", '[{"a": 1}, {"b": [{"": 1, "": 2}]}]', "", 2),
    ],
)
def test_a_field_that_is_given_twice_is_refused_at_every_level(
    registry: Registry, name: str, method: str, path: str, body: str, field: str, count: int
):
    """A repeated field of a JSON body is refused, because a proxy in front of the registry may read the first
    one and let the request through.
    """
    registry.upload(name)
    refused = registry.client.request(
        method, path.format(name=name), content=body, headers={"Content-Type": "application/json"}
    )
    reason = "because it would not be clear which of them counts"
    said = f"Field '{field}' is given {count} times; accepted: once, {reason}."
    assert told(refused) == (400, "invalid_request", field, said)


def test_the_sdk_sends_nothing_that_is_not_taken(registry: Registry, name: str):
    """The SDK sends no parameter that a route does not take. The test makes each of its
    calls that has parameters.
    """
    job = registry.upload(name)["job_id"]
    registry.worker.finish_all(name)
    with RegistryClient(registry.url) as client:
        assert list(client.list(profile=PROFILE, state="ready", q=name, limit=1))
        assert list(client.versions(name, limit=1))
        assert list(client.jobs(voice=name, profile=PROFILE, state="succeeded", created_after=1, limit=1))
        assert client.jobs_summary().profiles
        assert client.job(job, wait=1).state == "succeeded"
        assert list(client.profiles())
        assert client.wait_ready(name).state == "ready"
        assert client.download(name, PROFILE, wait=1).data
        assert client.descriptor(name, PROFILE, wait=1).digest
        assert client.extract(name, PROFILE).state == "ready"
        assert client.quota()
        client.delete(name)


def test_the_routes_of_vllm_omni_ignore_what_they_do_not_know(registry: Registry, name: str):
    """The routes of vLLM-Omni ignore unknown fields. Clients of other servers send fields of theirs, and have
    to work unchanged.
    """
    registry.upload(name, params={"surprise": "1"}, model="tts-1", speed="1.0")
    for method, path in (
        ("GET", "/v1/audio/voices"),
        ("GET", f"/v1/audio/voices/{name}/cache"),
        ("DELETE", f"/v1/audio/voices/{name}"),
    ):
        response = registry.client.request(method, path, params={"surprise": "1"})
        assert response.status_code == 200, response.text


def test_an_upload_says_which_fields_it_ignored(registry: Registry, name: str):
    """An upload's answer lists the fields that it ignored. The loss of a transcript under a mistyped name is
    otherwise not noticed until the voice sounds wrong.
    """
    response = registry.post_voice(name, reftext="Hello there.", model="tts-1")
    assert response.status_code == 200, response.text
    accepted = "audio_sample, consent, name, ref_text, speaker_description, speaker_embedding"
    assert response.json()["warnings"] == [
        f"Field 'model' is not known here. Accepted: {accepted}. The field was ignored.",
        f"Field 'reftext' is not known here; did you mean 'ref_text'? Accepted: {accepted}. "
        "The field was ignored.",
    ]
    assert "warnings" not in registry.post_voice(name).json(), "nothing was ignored"


def test_who_may_not_ask_is_told_that_first(start: Start):
    """The error for a caller without a key comes before the error for an unknown parameter. Such a caller
    learns nothing else, and is counted among callers that guess keys.
    """
    closed = start(access=AccessSettings(bootstrap_key=SecretStr(str(new_token()))))
    assert closed.client.get("/v1/voices?surprise=1").status_code == 401
