"""API keys for tests, and the settings of a registry that requires keys."""

from typing import Any

import httpx
from pydantic import SecretStr

from services.registry_api.access.rules import NAMESPACE_HEADER
from services.registry_api.keys.api_keys import ALL_SCOPES, new_token
from services.shared.configuration.access import AccessSettings
from tests.integration.api.registry import Registry

BOOTSTRAP = new_token()
CLOSED = AccessSettings(bootstrap_key=SecretStr(str(BOOTSTRAP)))
"""Settings of a registry that requires keys. `BOOTSTRAP` is its first key."""


def bearer(token: object, namespace: str | None = None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {token}"}
    return headers if namespace is None else {**headers, NAMESPACE_HEADER: namespace}


def ask_for_key(registry: Registry, by: object = BOOTSTRAP, **wanted: Any) -> httpx.Response:
    body = {"name": "test", "scopes": ["engine"], **wanted}
    return registry.client.post("/v1/keys", json=body, headers=bearer(by))


def key(registry: Registry, *scopes: str, **wanted: Any) -> str:
    """Make a key with the bootstrap key. The key has all scopes unless some are named."""
    response = ask_for_key(registry, scopes=scopes or sorted(ALL_SCOPES), **wanted)
    assert response.status_code == 201, response.text
    made: str = response.json()["key"]
    return made


def id_of(token: str) -> str:
    return token.split("_")[1]
