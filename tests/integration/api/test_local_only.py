"""Tests that a registry without keys answers this machine only: no web page of another origin, and no client
behind a proxy.
"""

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from services.registry_api.keys.api_keys import new_token
from services.shared.configuration.access import AccessSettings
from services.shared.configuration.api import ApiSettings
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, Registry

FORM = {"name": "alice", "consent": "c"}


def refusal(response: httpx.Response) -> str:
    assert response.status_code == 403
    error = response.json()["error"]
    assert "permission_denied" in {error["code"], error.get("reason")}
    message: str = error["message"]
    return message


@pytest.mark.parametrize("host", ["localhost", "localhost:8300", "127.0.0.1:8300", "[::1]:8300", "127.9.9.9"])
def test_this_machine_is_answered_by_each_of_its_names(registry: Registry, host: str):
    assert registry.client.get("/v1/voices", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8300", "10.0.0.1", "127.0.0.1.evil.example", ""]
)
def test_a_page_whose_name_leads_here_is_refused(registry: Registry, host: str):
    """A page whose host name resolves to this machine is refused. This is DNS rebinding: the browser takes
    the page for one of the registry's origin, so it could read every answer.
    """
    message = refusal(registry.client.get("/v1/voices", headers={"Host": host}))
    assert repr(host) in message
    assert "SPEAKER_AUTH_REQUIRED" in message


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example"])
def test_a_page_from_elsewhere_cannot_send_us_forms(registry: Registry, origin: str):
    """A page of another origin cannot send forms to the registry. It needs no permission for that, and would
    not even see the answer.
    """
    before = registry.stored()
    response = registry.client.post(
        "/v1/audio/voices", data=FORM, files={"audio_sample": CLIP}, headers={"Origin": origin}
    )
    assert repr(origin) in refusal(response)
    assert registry.stored() == before


def test_a_page_of_this_machine_can(registry: Registry):
    """A page of this machine gets answers, because it can do anything else here too."""
    origin = {"Origin": "http://localhost:3000"}
    assert registry.client.get("/v1/voices", headers=origin).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Port",
        "X-Forwarded-Proto",
        "X-Forwarded-Server",
        "Forwarded",
        "Via",
        "X-Real-IP",
        "CF-Connecting-IP",
        "True-Client-IP",
    ],
)
def test_whom_a_proxy_lets_through_is_refused(registry: Registry, header: str):
    """A request that a proxy forwarded is refused without keys, because the proxy's
    operator has forgotten the keys.
    """
    message = refusal(registry.client.get("/v1/voices", headers={header: "203.0.113.7"}))
    assert message.startswith(header.lower())


def test_who_watches_may_come_through_anything(registry: Registry):
    """Health checks are answered under any host name and through any proxy, because they reveal nothing of
    any tenant. Metrics reveal a lot, and have a port of their own.
    """
    headers = {"Host": "registry.example", "X-Forwarded-For": "203.0.113.7"}
    for path in ("/readyz", "/healthz"):
        assert registry.client.get(path, headers=headers).status_code == 200
    refusal(registry.client.get("/metrics", headers=headers))
    assert registry.client.get("/metrics").status_code == 200


def test_with_keys_it_does_not_matter(start: Start):
    """Host, origin and proxies do not matter where keys are required. Keys keep others out there, and
    browsers do not send them by themselves.
    """
    token = new_token()
    closed = start(access=AccessSettings(bootstrap_key=SecretStr(str(token))))
    headers = {
        "Authorization": f"Bearer {token}",
        "Host": "registry.example",
        "Origin": "https://elsewhere.example",
        "X-Forwarded-For": "203.0.113.7",
    }
    assert closed.client.get("/v1/voices", headers=headers).status_code == 200


def test_behind_a_proxy_keys_are_needed():
    """Keys are required behind a proxy, on loopback too, because the proxy may let any client through."""
    behind = ApiSettings(trusted_proxies="127.0.0.1")
    assert AccessSettings().why_required_at(behind) is not None
    assert AccessSettings().why_required_at(ApiSettings()) is None
    with pytest.raises(ValueError, match="SPEAKER_API_TRUSTED_PROXIES is set"):
        AccessSettings(required=False).why_required_at(behind)


@pytest.mark.parametrize("given", ["*", "10.0.0.1/8", "proxy", "10.0.0.0/8,nonsense", "10.0.0"])
def test_proxies_are_addresses_or_networks(given: str):
    """Trusted proxies must be addresses or networks. A value that cannot be read would match no proxy, and
    all callers would appear as one address.
    """
    with pytest.raises(ValidationError, match="accepted: addresses and networks"):
        ApiSettings(trusted_proxies=given)
    read = ApiSettings(trusted_proxies="10.0.0.0/8, 192.168.1.7,fd00::/8")
    assert read.trusted_proxies == ("10.0.0.0/8", "192.168.1.7", "fd00::/8")
