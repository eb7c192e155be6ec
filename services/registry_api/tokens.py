"""JWT bearer tokens of an OpenID provider, as an alternative to API keys. Knows no routes.

The provider is found by OpenID Connect Discovery 1.0; PyJWT checks signatures (RFC 7515) and claims
(RFC 7519). Only algorithms with a public key are taken: with a shared one, whoever may check a token could
make one.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
import structlog

from services.registry_api.callers import OWN_NAMESPACE, Caller
from services.shared.api_keys import ALL_SCOPES, ANY_NAMESPACE
from services.shared.settings import AccessSettings
from speaker_registry.errors import InvalidApiKey, Unavailable
from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace

log = structlog.get_logger()

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_LEEWAY_SECONDS = 30
"""Between the provider's clock and ours."""
_KEPT_SECONDS = 300.0
"""The provider's keys are asked for again after that: one that it withdrew is not taken much longer."""
_AGAIN_SECONDS = 10.0
"""A token of a key we have not seen makes us ask, but not more often than that."""
_PATIENCE_SECONDS = 5.0
_MAX_BYTES = 256 * 1024
"""Of what a provider says of itself."""


class Tokens:
    """Reads tokens. For all threads."""

    def __init__(
        self,
        settings: AccessSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        assert settings.oidc_issuer is not None
        self._issuer = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._namespace_claim = settings.oidc_namespace_claim
        self._scopes_claim = settings.oidc_scopes_claim
        self._monotonic = monotonic
        self._asking = threading.Lock()
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._asked_at = float("-inf")

    def caller(self, text: str) -> Caller:
        """Whose token this is.

        Raises:
            InvalidApiKey: saying what is wrong with it. Unavailable: the provider cannot be asked for its
                keys.
        """
        try:
            key = self._key(jwt.get_unverified_header(text))
            claims = jwt.decode(
                text,
                key,
                algorithms=_ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise InvalidApiKey(f"This token is not accepted: {error}.") from None
        return self._caller(claims)

    def _caller(self, claims: dict[str, Any]) -> Caller:
        namespace = claims.get(self._namespace_claim, OWN_NAMESPACE)
        if namespace != ANY_NAMESPACE and not (isinstance(namespace, str) and is_namespace(namespace)):
            raise InvalidApiKey(
                f"The token's {self._namespace_claim!r} is {ascii(namespace)[:80]}; "
                f"accepted: {ACCEPTED_NAMESPACES}."
            )
        given = claims.get(self._scopes_claim, "")
        scopes = given.split() if isinstance(given, str) else given
        known = ALL_SCOPES.intersection(scopes if isinstance(scopes, list) else ())
        # Not the subject itself: it may be a person's address, and goes into logs.
        who = hashlib.sha256(str(claims["sub"]).encode()).hexdigest()[:12]
        return Caller(f"jwt:{who}", namespace, known)

    def _key(self, header: dict[str, Any]) -> jwt.PyJWK:
        """Raises `jwt.PyJWTError` where the provider has none of that name."""
        kid = header.get("kid")
        with self._asking:
            age = self._monotonic() - self._asked_at
            if age > _KEPT_SECONDS or (kid not in self._keys and age > _AGAIN_SECONDS):
                self._keys = self._fetch()
                self._asked_at = self._monotonic()
        try:
            return self._keys[kid]
        except (KeyError, TypeError):
            raise jwt.InvalidTokenError(f"its issuer has no key {ascii(kid)[:80]}") from None

    def _fetch(self) -> dict[str | None, jwt.PyJWK]:
        try:
            with httpx.Client(timeout=_PATIENCE_SECONDS) as http:
                about = _json_of(http, f"{self._issuer}/.well-known/openid-configuration")
                if about.get("issuer") != self._issuer:
                    raise ValueError(f"it calls itself {ascii(about.get('issuer'))[:200]}")
                found = _json_of(http, _same_security(str(about.get("jwks_uri")), self._issuer))
            keys = {key.key_id: key for key in jwt.PyJWKSet.from_dict(found).keys}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, jwt.PyJWTError) as error:
            log.warning("issuer.cannot_be_asked", issuer=self._issuer, error=str(error)[:300])
            raise Unavailable(
                "The issuer of tokens cannot be asked for its keys now.", retry_after_seconds=5
            ) from None
        log.info("issuer.keys", issuer=self._issuer, keys=len(keys))
        return keys


def _json_of(http: httpx.Client, url: str) -> dict[str, Any]:
    with http.stream("GET", url) as response:
        response.raise_for_status()
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _MAX_BYTES:
                raise ValueError(f"{url} has over {_MAX_BYTES} bytes")
    said = json.loads(body)
    if not isinstance(said, dict):
        raise ValueError(f"{url} holds no JSON object")
    return said


def _same_security(url: str, issuer: str) -> str:
    """Raises ValueError for keys over plain http where the issuer is not."""
    if urlsplit(url).scheme not in {"https", urlsplit(issuer).scheme}:
        raise ValueError(f"its keys lie at {ascii(url)[:200]}, which is not https")
    return url
