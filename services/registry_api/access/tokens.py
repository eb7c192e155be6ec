"""JWT bearer tokens of an OpenID provider, as an alternative to API keys. This module knows no routes.

The provider's keys are found by OpenID Connect Discovery 1.0. PyJWT checks signatures (RFC 7515) and claims
(RFC 7519). Only algorithms with public keys are accepted: with a shared key, a party that can check a token
could also make one. The key determines which algorithms are accepted, not the token.

While the provider is slow or unavailable, at most one thread waits for it, once every ten seconds. All other
threads continue at once with the known keys, or fail. Every client can send a token, so no token may keep
threads waiting. Requests of a process without keys wait for the fetch without a thread (`first_keys`).
"""

import hashlib
import hmac
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import jwt
import structlog
from jwt.types import Options

from services.registry_api.access.provider import (
    PROVIDER_ERRORS,
    fetch_json,
    provider_client,
    require_https,
)
from services.registry_api.keys.api_keys import ALL_SCOPES, ANY_NAMESPACE
from services.registry_api.protocol.callers import OWN_NAMESPACE, Caller
from services.shared.configuration.access import AccessSettings
from speaker_registry.errors import InvalidApiKey, Unavailable
from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace

log = structlog.get_logger()

_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
    "Ed448": ("EdDSA",),
}
"""Accepted algorithms by a key's curve, or by its type if it has no curve."""
_CHECKS: Options = {"require": ["exp", "iss", "aud", "sub"]}
_CHECKS_OF_CLAIMS: Options = {
    **_CHECKS,
    "verify_signature": False,
    "verify_exp": True,
    "verify_nbf": True,
    "verify_iat": True,
    "verify_aud": True,
    "verify_iss": True,
    "verify_sub": True,
    "verify_jti": True,
}
"""All checks but that of the signature. PyJWT leaves out the others with it unless they are named."""
_MAX_TRIED_KEYS = 8
"""A token that names no key is tried with up to this many keys of its algorithm."""
_LEEWAY_SECONDS = 30
"""Accepted difference between the provider's clock and ours."""
_LATEST_END = 2**53
"""The latest `exp` that is told apart from later ones, because larger numbers may not fit into a float."""
_REFRESH_SECONDS = 300.0
"""The provider's keys are fetched again after this time, so a withdrawn key is not accepted much longer."""
_MAX_STALE_SECONDS = 3600.0
"""The provider's keys are accepted for this long after the last fetch while the provider is unavailable."""
_MIN_INTERVAL_SECONDS = 10.0
"""Shortest time between two fetches of the keys, whatever the reason and the outcome."""
_UNREADABLE = (
    "This is neither an API key nor a token that can be read: it may be mistyped or cut short. Accepted: a "
    "complete 'sreg_…' key or a complete token."
)
_MAX_NEW_NAMES = 16
"""Unknown names of keys that are taken for new ones between two fetches. More are made up: anybody can send
such a token, and no provider adds so many keys at once.
"""
_MAX_UNKNOWN_NAMES = 256
"""The number of unknown names that are remembered."""


_KeyByAlgorithm = Mapping[str, jwt.PyJWK]
_Keys = Sequence[tuple[str | None, _KeyByAlgorithm]]
"""The provider's keys, each with its name (`kid`) if it has one."""


@dataclass(frozen=True, slots=True)
class _ProviderKeys:
    """The keys and addresses that the provider published at the last fetch."""

    keys: _Keys = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fetched_at: float = float("-inf")

    def named(self, kid: str | None) -> list[_KeyByAlgorithm]:
        """Return the keys of that name, or all keys for None."""
        return [key for name, key in self.keys if kid in {None, name}]


class _UnknownNames:
    """The names of keys that tokens had and the provider had not. Safe to use from several threads."""

    def __init__(self) -> None:
        self._first_met: dict[str | None, float] = {}
        """Maps each name to the time when it was first met, oldest first."""
        self._lock = threading.Lock()

    def is_new(self, name: str | None, met_at: float, fetched_at: float) -> bool:
        """Return whether the provider may have added a key of this name since the fetch that began at
        `fetched_at`. It has not if the name had been met before that.
        """
        with self._lock:
            if name not in self._first_met:
                if sum(at > fetched_at for at in self._first_met.values()) >= _MAX_NEW_NAMES:
                    return False
                if len(self._first_met) == _MAX_UNKNOWN_NAMES:
                    del self._first_met[next(iter(self._first_met))]
                self._first_met[name] = met_at
            return self._first_met[name] > fetched_at


class JwtVerifier:
    """Verifies JWTs. Safe to use from several threads."""

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
        self._fetching = threading.Lock()
        self._provider = _ProviderKeys()
        self._tried_at = float("-inf")
        self._unknown = _UnknownNames()

    def verify(self, text: str) -> Caller:
        """Verify a token, and return its caller.

        Raises:
            InvalidApiKey: the token is not valid; the message says why.
            Unavailable: the token may be valid, but its key cannot be fetched from the provider.
        """
        return self._caller(self._claims(text, self._audience))

    def check_claims(self, text: str) -> None:
        """Check the claims of a token but not its signature, which takes no key.

        Raises `InvalidApiKey` for a token that no key can make valid.
        """
        with _invalid_if_refused():
            self._decode(text, self._audience, options=_CHECKS_OF_CLAIMS)

    def check_identity(self, text: str, *, client_id: str, nonce: str) -> None:
        """Check the ID token that the provider gave for a sign-in.

        Raises:
            InvalidApiKey: the token is not valid, or not for this client and this sign-in.
            Unavailable: the token may be valid, but its key cannot be fetched from the provider.
        """
        claims = self._claims(text, client_id)
        claimed = str(claims.get("nonce")).encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(claimed, nonce.encode()):
            raise InvalidApiKey("The provider's ID token belongs to another sign-in.")
        if _authorized_party(claims, client_id) != client_id:
            raise InvalidApiKey("The provider's ID token was issued to another client.")

    def endpoint(self, name: str) -> str:
        """Return an address of the provider by its name in OpenID Connect Discovery. Raises `Unavailable`."""
        if self._age_seconds() > _REFRESH_SECONDS:
            self.fetch_if_due()
        if not self.has_keys:
            raise self._provider_unavailable()
        try:
            return require_https(str(self._provider.metadata.get(name)), self._issuer)
        except ValueError:
            raise Unavailable(f"The OpenID provider publishes no {name} over https.") from None

    @property
    def has_keys(self) -> bool:
        """True if the last fetch succeeded recently enough for its keys to be used."""
        return self._age_seconds() <= _MAX_STALE_SECONDS

    def fetch_if_due(self) -> None:
        """Fetch the keys if the minimum interval is over and no other thread is fetching them."""
        if not self._may_fetch() or not self._fetching.acquire(blocking=False):
            return
        try:
            if self._may_fetch():
                self._fetch()
        finally:
            self._fetching.release()

    def _claims(self, text: str, audience: str | None) -> dict[str, Any]:
        """Return the claims of a token for this audience. Raises `InvalidApiKey` and `Unavailable`."""
        with _invalid_if_refused():
            # A token that no key can make valid is refused before it causes a fetch.
            self._decode(text, audience, options=_CHECKS_OF_CLAIMS)
            known = self._provider
            try:
                return self._signed_claims(text, audience)
            except (jwt.InvalidSignatureError, jwt.InvalidKeyError):
                # The provider may have replaced a key and kept its name.
                self.fetch_if_due()
                if self._provider is known:
                    raise
            return self._signed_claims(text, audience)

    def _signed_claims(self, text: str, audience: str | None) -> dict[str, Any]:
        """Return the claims of a token that is signed with a known key. Raises the errors of `_fitting_keys`
        and of `jwt.decode`.
        """
        for key in self._fitting_keys(jwt.get_unverified_header(text)):
            with suppress(jwt.InvalidSignatureError):
                return self._decode(text, audience, key=key, algorithms=[key.algorithm_name], options=_CHECKS)
        raise jwt.InvalidSignatureError("its signature does not fit its issuer's keys")

    def _decode(self, text: str, audience: str | None, **how: Any) -> dict[str, Any]:
        """Return the claims of a token. `how` are further arguments of `jwt.decode`. Raises its errors."""
        try:
            claims: dict[str, Any] = jwt.decode(
                text, audience=audience, issuer=self._issuer, leeway=_LEEWAY_SECONDS, **how
            )
        except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError, jwt.InvalidIssuerError) as error:
            claimed = jwt.decode(text, options={"verify_signature": False})
            raise type(error)(_in_words(error, claimed, self._issuer)) from None
        if not claims["sub"]:
            raise jwt.InvalidTokenError("its subject (sub) is empty")
        return claims

    def _caller(self, claims: dict[str, Any]) -> Caller:
        namespace = claims.get(self._namespace_claim, OWN_NAMESPACE)
        if namespace != ANY_NAMESPACE and not (isinstance(namespace, str) and is_namespace(namespace)):
            raise InvalidApiKey(
                f"The token's {self._namespace_claim!r} is {ascii(namespace)[:80]}; "
                f"accepted: {ACCEPTED_NAMESPACES}."
            )
        given = claims.get(self._scopes_claim, "")
        scopes = given.split() if isinstance(given, str) else given
        texts = [scope for scope in scopes if isinstance(scope, str)] if isinstance(scopes, list) else []
        known = ALL_SCOPES.intersection(texts)
        # A digest, because the subject may be a person's e-mail address, and the id goes into logs.
        subject_digest = hashlib.sha256(claims["sub"].encode("utf-8", "surrogatepass")).hexdigest()[:12]
        ends_at = float(min(int(claims["exp"]), _LATEST_END) + _LEEWAY_SECONDS)
        caller_id = f"jwt:{subject_digest}"
        # A subject with tokens for several namespaces has the limits of one API key in each of them.
        return Caller(caller_id, namespace, known, ends_at=ends_at, limits_id=f"{caller_id}:{namespace}")

    def _fitting_keys(self, header: dict[str, Any]) -> list[jwt.PyJWK]:
        """Return the keys that a token with this header may be signed with.

        Raises:
            jwt.PyJWTError: the provider has no key of that name for that algorithm.
            Unavailable: the provider may have one by now.
        """
        algorithm = str(header.get("alg"))
        if not any(algorithm in of_a_kind for of_a_kind in _ALGORITHMS.values()):
            raise jwt.InvalidAlgorithmError(
                f"its algorithm is {ascii(algorithm)[:80]}, which is not accepted"
            )
        kid = header.get("kid")
        keys = self._keys_named(kid)
        fitting = [key[algorithm] for key in keys if algorithm in key]
        if not fitting:
            accepted = ", ".join(dict.fromkeys(chain(*keys)))
            whose = "its issuer has keys" if kid is None else "its key is"
            raise jwt.InvalidKeyError(f"its algorithm is {algorithm!r}, but {whose} for {accepted}")
        return fitting[:_MAX_TRIED_KEYS]

    def _keys_named(self, kid: str | None) -> list[_KeyByAlgorithm]:
        """Return the keys of that name, or all keys for None.

        Raises:
            jwt.InvalidTokenError: the provider has none.
            Unavailable: the provider may have one by now.
        """
        asked_at = self._monotonic()
        if not self._provider.named(kid) or self._age_seconds() > _REFRESH_SECONDS:
            self.fetch_if_due()
        provider = self._provider
        if not self.has_keys:
            raise self._provider_unavailable()
        if known := provider.named(kid):
            return known
        if self._unknown.is_new(kid, asked_at, provider.fetched_at):
            # Not counted as a wrong key: after a rotation, valid callers of one address would lock each other
            # out.
            raise self._again_later("The issuer of this token may have added its key just now.")
        raise jwt.InvalidTokenError(f"its issuer has no key {ascii(kid)[:80]}")

    def _age_seconds(self) -> float:
        return self._monotonic() - self._provider.fetched_at

    def _may_fetch(self) -> bool:
        return self._monotonic() - self._tried_at > _MIN_INTERVAL_SECONDS

    def _fetch(self) -> None:
        began = self._tried_at = self._monotonic()
        try:
            self._provider = _ProviderKeys(*self._fetch_keys(), began)
        except PROVIDER_ERRORS as error:
            log.warning("issuer.unavailable", issuer=self._issuer, error=str(error)[:300])
        finally:
            self._tried_at = self._monotonic()

    def _provider_unavailable(self) -> Unavailable:
        return self._again_later("The keys of the token issuer cannot be fetched now.")

    def _again_later(self, reason: str) -> Unavailable:
        left = self._tried_at + _MIN_INTERVAL_SECONDS - self._monotonic()
        return Unavailable(
            f"{reason} Try again in a moment.",
            retry_after_seconds=1 if self._fetching.locked() else max(1, math.ceil(left)),
        )

    def _fetch_keys(self) -> tuple[_Keys, Mapping[str, Any]]:
        with provider_client() as http:
            # The address has no second slash (Discovery, section 4.1). The name itself is compared as it is.
            metadata = fetch_json(http, f"{self._issuer.removesuffix('/')}/.well-known/openid-configuration")
            if metadata.get("issuer") != self._issuer:
                raise ValueError(f"it calls itself {ascii(metadata.get('issuer'))[:200]}")
            jwks = fetch_json(http, require_https(str(metadata.get("jwks_uri")), self._issuer))
        keys = _parse_keys(jwks)
        log.info("issuer.keys", issuer=self._issuer, keys=len(keys))
        return keys, metadata


@contextmanager
def _invalid_if_refused() -> Iterator[None]:
    """Raise `InvalidApiKey` instead of the errors of PyJWT about a token."""
    try:
        yield
    except jwt.PyJWTError as error:
        if isinstance(error, jwt.DecodeError) and not isinstance(error, jwt.InvalidSignatureError):
            raise InvalidApiKey(_UNREADABLE) from None
        raise InvalidApiKey(f"This token is not accepted: {str(error).rstrip('.')}.") from None
    except (TypeError, ValueError, OverflowError, RecursionError):
        # PyJWT checks neither the types of times nor the depth of lists.
        raise InvalidApiKey("This token is not accepted: its claims cannot be read.") from None


def _in_words(error: jwt.PyJWTError, claims: dict[str, Any], issuer: str) -> str:
    """Return what a refused token claims and what is accepted, which PyJWT does not say of times and
    issuers.
    """
    if isinstance(error, jwt.InvalidIssuerError):
        return f"its issuer (iss) is {ascii(claims['iss'])[:200]}; accepted: {issuer!r}"
    if isinstance(error, jwt.ExpiredSignatureError):
        seconds = math.floor(time.time() - int(claims["exp"]))
        return (
            f"it has expired. Its exp was {seconds} s ago by this registry's clock; accepted: less than "
            f"{_LEEWAY_SECONDS} s ago"
        )
    claim = "iat" if "(iat)" in str(error) else "nbf"
    seconds = math.ceil(int(claims[claim]) - time.time())
    return (
        f"it is not yet valid. Its {claim} is {seconds} s from now by this registry's clock; accepted: up to "
        f"{_LEEWAY_SECONDS} s from now"
    )


def _authorized_party(claims: dict[str, Any], audience: str) -> Any:
    """Return the client that an ID token was issued to. Only a token with a single audience may lack the
    claim `azp` (OpenID Connect Core, section 3.1.3.7).
    """
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    return claims.get("azp", None if several else audience)


def _parse_keys(jwks: dict[str, Any]) -> _Keys:
    """Parse a JWK set. Raises ValueError if it has no key that is accepted."""
    listed = jwks.get("keys")
    keys: list[tuple[str | None, _KeyByAlgorithm]] = []
    for jwk in listed if isinstance(listed, list) else ():
        if isinstance(jwk, dict) and (by_algorithm := _by_algorithm(jwk)):
            name = jwk.get("kid")
            keys.append((name if name is None else str(name), by_algorithm))
    if not keys:
        raise ValueError("it has no public key for signatures of an accepted kind")
    return keys


def _by_algorithm(jwk: dict[str, Any]) -> dict[str, jwt.PyJWK]:
    """Return a JWK as separate keys, one for each algorithm that it may be used with.

    These are the algorithm that the JWK names, or else all algorithms of its kind. The result is empty for
    secrets and for keys for encryption. One key for each algorithm is needed because PyJWT assumes a single
    algorithm for a JWK that names none, although an RSA key has six.
    """
    if jwk.get("use") not in (None, "sig"):
        return {}
    of_its_kind = _ALGORITHMS.get(str(jwk.get("crv") or jwk.get("kty")), ())
    try:
        return {
            algorithm: jwt.PyJWK(jwk, algorithm)
            for algorithm in of_its_kind
            if jwk.get("alg") in {None, algorithm}
        }
    except (jwt.PyJWTError, TypeError, ValueError):
        return {}  # damaged
