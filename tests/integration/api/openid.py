"""An OpenID provider on loopback, with real signatures."""

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from pydantic import SecretStr

from services.shared.configuration.access import AccessSettings
from tests.integration.api.access import BOOTSTRAP

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
AUDIENCE = "speaker-registry"
CLIENT = "registry-dashboard"


class Provider:
    """An OpenID provider that serves its identity and its signing keys. Tests may change both."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.keys = {"one": RSA_KEY}
        self.away = False
        self.answers = threading.Event()
        """The provider is silent until this is set."""
        self.answers.set()
        self.about: dict[str, Any] = {}
        self.more_keys: list[Any] = []

        self.issuer = ""
        self.begun: dict[str, dict[str, str]] = {}
        """Code -> what the client asked for when the person signed in."""
        self.claims: dict[str, Any] = {}
        """Claims of the access token of whoever signs in."""
        self.identity: dict[str, Any] = {}
        """Claims of their ID token, besides the right ones."""
        self.authorizations: list[str | None] = []
        self.refusal: tuple[int, bytes] | None = None
        """The answer to every code, unless it is None."""

    def __call__(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        self.asked.append(request.path)
        self.answers.wait(60)
        if request.command == "POST":
            return self._exchange(dict(parse_qsl(body.decode())), request.headers.get("Authorization"))
        return 503 if self.away else 200, json.dumps(self.answer(request.path)).encode()

    def answer(self, path: str) -> dict[str, Any]:
        if path.endswith("/.well-known/openid-configuration"):
            return {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                **self.about,
            }
        if "keys" in self.about:
            return self.about
        return {"keys": [*self.more_keys, *(public_key(kid, key) for kid, key in self.keys.items())]}

    @property
    def times_asked(self) -> int:
        return sum(path.endswith("/keys") for path in self.asked)

    def token(
        self, *, key: Any = RSA_KEY, kid: str | None = "one", algorithm: str = "RS256", **claims: Any
    ) -> str:
        said = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "robin@example.org",
            "exp": int(time.time()) + 600,
            **claims,
        }
        kept = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(kept, key, algorithm=algorithm, headers={"kid": kid} if kid else None)

    def sign_in(self, address: str) -> str:
        """Play a person who signs in at this address. Return the address that the provider leads back to."""
        assert address.startswith(f"{self.issuer}/authorize?")
        asked = dict(parse_qsl(urlsplit(address).query))
        assert asked["response_type"] == "code"
        code = f"code-{len(self.begun)}"
        self.begun[code] = asked
        answer = {"code": code, "state": asked["state"], "iss": self.issuer, "session_state": "x"}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def _exchange(self, form: dict[str, str], authorization: str | None) -> tuple[int, bytes]:
        """Give tokens for a code, once, to the client that proves that it began the sign-in."""
        self.authorizations.append(authorization)
        if self.away:
            return 503, b""
        if self.refusal is not None:
            return self.refusal
        asked = self.begun.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            asked is None
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return 400, b'{"error": "invalid_grant"}'
        identity = {"aud": CLIENT, "nonce": asked["nonce"], **self.identity}
        answer = {"access_token": self.token(**self.claims), "id_token": self.token(**identity)}
        return 200, json.dumps(answer).encode()


def public_key(kid: str, key: Any) -> dict[str, Any]:
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}


def provided_by(provider: Provider) -> AccessSettings:
    """Return the settings of a registry that requires keys, and whose pages know the provider."""
    return AccessSettings(
        bootstrap_key=SecretStr(str(BOOTSTRAP)),
        oidc_issuer=provider.issuer,
        oidc_audience=AUDIENCE,
        oidc_client_id=CLIENT,
        oidc_client_secret=SecretStr("s3cret"),
    )
