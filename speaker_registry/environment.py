"""The environment variables that the SDK reads, and the checks of addresses, API keys and namespaces."""

from typing import Final

import httpx

from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace

URL_VARIABLE: Final = "SPEAKER_REGISTRY_URL"
API_KEY_VARIABLE: Final = "SPEAKER_REGISTRY_API_KEY"
NAMESPACE_VARIABLE: Final = "SPEAKER_REGISTRY_NAMESPACE"
CONTEXT_VARIABLE: Final = "SPEAKER_REGISTRY_CONTEXT"
CONFIG_VARIABLE: Final = "SPEAKER_REGISTRY_CONFIG"
SDK_VARIABLES: Final = (URL_VARIABLE, API_KEY_VARIABLE, NAMESPACE_VARIABLE, CONTEXT_VARIABLE, CONFIG_VARIABLE)


def parse_url(text: str) -> str:
    """Check a registry's address and remove a slash at its end. A path before `/v1` is kept.

    Raises:
        ValueError: The text is not such an address. The message says what is missing.
    """
    if not text:
        raise ValueError(f"no registry address: pass url= or set {URL_VARIABLE}")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"the registry address is not a URL: {error}") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("the registry address must look like https://host[:port][/path]")
    if url.userinfo or url.query or url.fragment:
        # The address is not shown, because it may contain a password.
        raise ValueError(
            "the registry address must have no user, query or fragment; an API key is given as api_key="
        )
    return str(url).rstrip("/")


def parse_api_key(text: str) -> str:
    """Check that an API key can be sent in a header. Raises ValueError, without showing the key, if not."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError(f"the API key must be printable ASCII without spaces: see {API_KEY_VARIABLE}")
    return key


def parse_namespace(text: str) -> str:
    """Check the name of a namespace. Raises ValueError if it is not accepted."""
    if not is_namespace(text):
        raise ValueError(f"the namespace is {text[:80]!a}; accepted: {ACCEPTED_NAMESPACES}")
    return text
