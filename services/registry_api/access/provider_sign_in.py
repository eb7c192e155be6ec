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
from urllib.parse import urlencode

import httpx

from services.registry_api.access.provider import fetch_json, provider_client
from services.registry_api.access.tokens import JwtVerifier
from services.shared.configuration.access import AccessSettings
from speaker_registry.errors import InvalidApiKey, Unavailable

SIGN_IN_SECONDS = 600
"""A person has this long to sign in at the provider."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in that has begun in one browser. Secret: it belongs in a sealed cookie."""

    state: str
    nonce: str
    verifier: str
    following: str
    """The page that the person asked for."""
    began_at: float

    @classmethod
    def new(cls, following: str, now: float) -> "SignIn":
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, following, now)

    def belongs_to(self, state: str, now: float) -> bool:
        """Return whether an answer of the provider with this state belongs to this sign-in and is in time."""
        in_time = 0 <= now - self.began_at <= SIGN_IN_SECONDS
        return in_time and hmac.compare_digest(self.state.encode(), state.encode())


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
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        address = self._jwts.endpoint("authorization_endpoint")
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"

    def finish(self, sign_in: SignIn, code: str, redirect_uri: str) -> str:
        """Return the token of the person who signed in, which is a bearer token of the API.

        Raises:
            InvalidApiKey: the provider does not accept the code, or its ID token is not for this sign-in.
            Unavailable: the provider cannot be reached.
        """
        answer = self._exchange(sign_in, code, redirect_uri)
        identity = str(answer.get("id_token"))
        self._jwts.check_identity(identity, client_id=self._client_id, nonce=sign_in.nonce)
        # If a provider's access tokens are only meant for the provider, the ID token is the only one that we
        # can read.
        return identity if self._audience == self._client_id else str(answer.get("access_token"))

    def _exchange(self, sign_in: SignIn, code: str, redirect_uri: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": sign_in.verifier,
        }
        auth = (self._client_id, self._client_secret) if self._client_secret else None
        try:
            with provider_client() as http:
                return fetch_json(http, self._jwts.endpoint("token_endpoint"), form, auth)
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                raise _provider_away() from None
            raise InvalidApiKey("The provider did not accept this sign-in. Begin again.") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
            raise _provider_away() from None


def _provider_away() -> Unavailable:
    return Unavailable(
        "The OpenID provider cannot be reached now. Sign in again in a moment.", retry_after_seconds=5
    )
