"""Signs people in at the OpenID provider: the authorization code flow with PKCE (RFC 6749, RFC 7636).

This module knows neither routes nor cookies: its caller keeps the `SignIn` in the browser, and passes it in
again together with the code.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode

import httpx
import structlog

from services.registry_api.access.provider import (
    PROVIDER_ERRORS,
    ProviderRefused,
    fetch_json,
    provider_client,
)
from services.registry_api.access.tokens import JwtVerifier
from services.shared.configuration.access import AccessSettings
from speaker_registry.errors import InvalidApiKey, Unavailable

log = structlog.get_logger()

SIGN_IN_SECONDS = 600
"""A person has this long to sign in at the provider."""
BEGIN_AGAIN = "Begin again. If this happens every time, tell the operator of this registry."
"""What a person can do about a sign-in that failed."""
_NOT_OUR_CLIENT = frozenset({"invalid_client", "unauthorized_client", "unsupported_grant_type"})
"""Error codes of a provider at which this registry is not registered as its settings say."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in that has begun in one browser. Secret: it belongs in a sealed cookie.

    Everything that the provider is told of it is derived from one secret, so that the cookie is small.
    """

    secret: str
    following: str
    """The page that the person asked for."""

    @classmethod
    def new(cls, following: str) -> "SignIn":
        return cls(secrets.token_urlsafe(32), following)

    @property
    def state(self) -> str:
        return self._derived("state")

    @property
    def nonce(self) -> str:
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        return self._derived("verifier")

    def belongs_to(self, state: str) -> bool:
        """Return whether an answer of the provider with this state belongs to this sign-in."""
        return hmac.compare_digest(self.state.encode(), state.encode())

    def _derived(self, purpose: str) -> str:
        return _base64url(hmac.digest(self.secret.encode(), purpose.encode(), "sha256"))


class ProviderSignIn:
    """Sends people to the provider, and exchanges the code that they return with for a token."""

    def __init__(self, settings: AccessSettings, jwts: JwtVerifier) -> None:
        assert settings.oidc_client_id is not None
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.client_secret
        self._audience = settings.oidc_audience or ""
        self._scopes = settings.oidc_sign_in_scopes
        self.issuer = settings.oidc_issuer
        self._jwts = jwts

    def address(self, sign_in: SignIn, redirect_uri: str) -> str:
        """Return the address of the provider's sign-in page. Raises `Unavailable`."""
        digest = hashlib.sha256(sign_in.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scopes,
            "audience": self._audience,  # some providers need it; others must ignore it
            "state": sign_in.state,
            "nonce": sign_in.nonce,
            "code_challenge": _base64url(digest),
            "code_challenge_method": "S256",
        }
        address = self._jwts.endpoint("authorization_endpoint")
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"

    def finish(self, sign_in: SignIn, code: str, redirect_uri: str) -> str:
        """Return the token of the person who signed in, which is a bearer token of the API.

        Raises:
            InvalidApiKey: the provider does not accept the code, or its tokens are not valid or not for this
                sign-in.
            Unavailable: the provider cannot be reached, or does not accept this registry as a client.
        """
        answer = self._exchange(sign_in, code, redirect_uri)
        identity, access = answer.get("id_token"), answer.get("access_token")
        if not (isinstance(identity, str) and isinstance(access, str)):
            self._log_failure(status=200, error="the answer lacks a token")
            raise _not_accepted()
        # If a provider's access tokens are only meant for the provider, the ID token is the only one that we
        # can read.
        token = identity if self._audience == self._client_id else access
        try:
            self._jwts.check_identity(identity, client_id=self._client_id, nonce=sign_in.nonce)
            self._jwts.check_claims(token)
        except InvalidApiKey as refusal:  # a clock or a setting is wrong, which the person cannot mend
            self._log_failure(status=200, error=refusal.message)
            raise
        return token

    def _exchange(self, sign_in: SignIn, code: str, redirect_uri: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": sign_in.verifier,
        }
        # RFC 6749, section 2.3.1: both are encoded before Basic authentication.
        auth = (quote_plus(self._client_id), quote_plus(self._client_secret)) if self._client_secret else None
        endpoint = self._jwts.endpoint("token_endpoint")
        try:
            with provider_client() as http:
                return fetch_json(http, endpoint, form, auth)
        except ProviderRefused as refusal:
            self._log_failure(status=refusal.status, error=refusal.code)
            raise _refused(refusal) from None
        except httpx.ProtocolError as error:  # its text quotes the answer
            self._log_failure(error=type(error).__name__)
            raise _provider_away() from None
        except PROVIDER_ERRORS as error:
            self._log_failure(error=f"{type(error).__name__}: {error}"[:300])
            raise _provider_away() from None

    def _log_failure(self, **fields: Any) -> None:
        log.warning("issuer.sign_in_failed", issuer=self.issuer, **fields)


def _refused(refusal: ProviderRefused) -> InvalidApiKey | Unavailable:
    """Return the error that tells a person why the provider gave no token."""
    if refusal.status >= 500 or refusal.status in {408, 429}:
        return _provider_away()
    if refusal.status == 400 and refusal.code not in _NOT_OUR_CLIENT:
        return _not_accepted()
    return Unavailable(
        "The provider does not accept this registry, so nobody can sign in there. Tell the operator of this "
        "registry: its log has the provider's answer."
    )


def _not_accepted() -> InvalidApiKey:
    return InvalidApiKey(f"The provider did not accept this sign-in. {BEGIN_AGAIN}")


def _provider_away() -> Unavailable:
    return Unavailable(
        "The OpenID provider cannot be reached now. Sign in again in a moment.", retry_after_seconds=5
    )


def _base64url(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
