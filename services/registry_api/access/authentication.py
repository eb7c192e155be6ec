"""Authenticates callers by an API key or by a token of an OpenID provider.

On loopback, where no keys are required, every caller is accepted. This module knows no routes; `rules` says
which caller may do what.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from cachetools import TTLCache
from redis import Redis
from starlette.concurrency import run_in_threadpool

from services.registry_api.access.first_keys import FirstKeys
from services.registry_api.access.key_reads import KeyReads
from services.registry_api.access.provider_sign_in import ProviderSignIn, SignIn
from services.registry_api.access.rate_limits import MINUTE, RateLimits
from services.registry_api.access.tokens import JwtVerifier
from services.registry_api.access.unknown_names import UnknownNames
from services.registry_api.keys.api_keys import (
    ALL_SCOPES,
    ANY_NAMESPACE,
    ApiKey,
    Token,
    is_secret_of,
    parse_token,
)
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_changes import FRESH_SECONDS
from services.registry_api.keys.key_uses import KeyUses
from services.registry_api.protocol.callers import ANONYMOUS, Caller
from services.registry_api.serving.admission import pause_request
from services.registry_api.serving.concurrency_limits import ConcurrencyLimits
from services.registry_api.serving.slots import Slots
from services.shared.configuration.access import AccessSettings, RateSettings
from services.shared.configuration.api import ApiSettings
from services.shared.telemetry.metrics import KEYS_REFUSED
from speaker_registry.errors import InvalidApiKey, RateLimited, Unavailable

log = structlog.get_logger()

_REFRESH_AHEAD_SECONDS = FRESH_SECONDS / 2
"""Refresh the held keys in the background when they are valid for less than this."""
_RETRIED_SECONDS = 10.0
"""The key of a request that has begun is looked up again for this long if it cannot be looked up at first."""
_RETRY_PAUSE_SECONDS = 0.5
_MAX_SIGN_INS = 4
"""Maximum number of threads that wait for the OpenID provider, however many people sign in."""
_SIGN_IN_WAIT_SECONDS = 10.0
_MAX_ADDRESSES = 50_000
"""Maximum number of addresses whose failures are counted, minute by minute."""
_MAX_JWTS = 10_000
_JWT_REVERIFY_SECONDS = 30.0
"""A verified JWT is accepted for this long without another check, which is about as long as clocks may
differ.
"""
_JWT_REMEMBERED_SECONDS = 3600.0
"""A JWT that was verified less than this long ago is verified again even if its address has sent too many
invalid ones.
"""


@dataclass(frozen=True, slots=True)
class _VerifiedJwt:
    """The caller that a JWT belonged to at its last verification."""

    caller: Caller
    verified_at: float

    def holds_at(self, now: float) -> bool:
        """Return whether the JWT is accepted without another check, which is never so after its end."""
        return not self.caller.has_ended(now) and now - self.verified_at < _JWT_REVERIFY_SECONDS


class Access:
    """Authenticates callers, and holds the limits that apply to them. There is one instance per process.

    Args:
        keys: the API keys. None: no keys are required, and every caller may do everything without limit.
        uses: remembers when each key was last used.
        rates: counts requests and uploads.
        bootstrap: an API key with all rights that is not in the bucket.
        jwts: verifies JWTs. None: no JWTs are accepted.
        provider: signs people in at the OpenID provider. None: people need an API key.
        failures_per_minute: how many requests without a valid key one address may send before it is refused.
        unknown_names_per_minute: how many names without a voice one key may ask for; None: any number.
        waiting_requests: how many requests of one key may wait at once; None: any number.
        arriving_uploads: how many uploads of one key may have begun to arrive and not be answered yet; None:
            any number.
        connections: how many connections this process serves. All keys of a namespace together may occupy a
            quarter of them with waiting requests, a quarter with uploads that are not answered yet, and a
            quarter with requests whose bodies are arriving. Forms that sign people in are counted for their
            address instead: those of one address may occupy an eighth, and all together a quarter.
    """

    def __init__(
        self,
        keys: HeldKeys | None = None,
        uses: KeyUses | None = None,
        *,
        rates: RateLimits | None = None,
        bootstrap: Token | None = None,
        jwts: JwtVerifier | None = None,
        provider: ProviderSignIn | None = None,
        failures_per_minute: int = 60,
        unknown_names_per_minute: int | None = None,
        waiting_requests: int | None = None,
        arriving_uploads: int | None = None,
        connections: int | None = None,
    ) -> None:
        self.required = keys is not None
        quarter = max(1, connections // 4) if connections is not None else None
        eighth = max(1, connections // 8) if connections is not None else None
        self.waiting_requests = ConcurrencyLimits(
            "waiting requests", of_key=waiting_requests, of_namespace=quarter
        )
        self.arriving_uploads = ConcurrencyLimits(
            "arriving uploads", of_key=arriving_uploads, of_namespace=quarter
        )
        self.arriving_requests = ConcurrencyLimits(
            "arriving requests", of_namespace=quarter, of_address=eighth, of_addresses=quarter
        )
        self.rate_limits = rates or RateLimits.unlimited()
        self.unknown_names = UnknownNames(self.rate_limits, unknown_names_per_minute)
        self._keys = keys
        self._uses = uses
        self._bootstrap = bootstrap
        self._jwts = jwts
        self.provider = provider
        self._failures_per_minute = failures_per_minute
        self._failures: TTLCache[tuple[str, int], int] = TTLCache(_MAX_ADDRESSES, ttl=2 * MINUTE)
        """The number of failures by address and minute."""
        self._verified_jwts: TTLCache[bytes, _VerifiedJwt] = TTLCache(_MAX_JWTS, ttl=_JWT_REMEMBERED_SECONDS)
        """Verified JWTs by the SHA-256 of their text."""
        self._listening: asyncio.Task[None] | None = None
        self._key_reads = KeyReads()
        self._first_keys = FirstKeys()
        self._sign_ins = Slots(
            _MAX_SIGN_INS,
            wait_seconds=_SIGN_IN_WAIT_SECONDS,
            refusal="Too many people sign in at once. Try again in a moment.",
        )

    async def authenticate(self, sent: str | None, address: str) -> Caller:
        """Authenticate the key or token `sent` from `address`, and return its caller.

        Raises:
            InvalidApiKey: the key or token is missing or not valid.
            RateLimited: the address has sent too many invalid ones.
            Unavailable: the keys cannot be read.
        """
        if self._keys is None:
            return ANONYMOUS
        try:
            return await self._known_caller(self._keys, sent, address)
        except InvalidApiKey:
            self._count_failure(address)
            raise

    async def authenticate_again(
        self, sent: str | None, check_session: Callable[[], Awaitable[None]] | None = None
    ) -> Caller:
        """Authenticate the key or token of a request that has begun with it, and return its caller of now.

        If the key cannot be looked up at first, it is looked up again for `_RETRIED_SECONDS`. A key that has
        ended meanwhile is no failure of its address, because any number of requests may have waited with it.

        Args:
            check_session: raises `InvalidApiKey` if the session that the key was sent in has ended. None: it
                was sent in no session.

        Raises:
            InvalidApiKey: the key or token is not valid any more, or the session has ended.
            RateLimited, Unavailable: the key or the session cannot be looked up.
        """
        if self._keys is None:
            return ANONYMOUS
        loop = asyncio.get_running_loop()
        until = loop.time() + _RETRIED_SECONDS
        while True:
            try:
                if check_session is not None:
                    await check_session()
                return await self._known_caller(self._keys, sent, None)
            except (RateLimited, Unavailable):
                if loop.time() >= until:
                    raise
            with pause_request():
                await asyncio.sleep(_RETRY_PAUSE_SECONDS)

    @property
    def key_changes(self) -> int:
        """A number that rises whenever a key may have ended. It does not tell of keys that expire."""
        return self._keys.changes if self._keys is not None else 0

    def list_keys_if_due(self) -> None:
        """Start a listing of the keys in the background if one is due. Call this regularly, so that
        `key_changes` rises within half a minute even if Redis was not told of a change and no request comes.
        """
        if self._keys is not None:
            self._keys.listings.start_if_due()

    async def begin_sign_in(self, sign_in: SignIn, redirect_uri: str) -> str:
        """Return the address of the provider's page where a person signs in. Raises `Unavailable`."""
        assert self.provider is not None
        assert self._jwts is not None
        await self._first_keys.wait(self._jwts)
        return await run_in_threadpool(self.provider.address, sign_in, redirect_uri)

    async def finish_sign_in(self, sign_in: SignIn, code: str, redirect_uri: str, address: str) -> str:
        """Return the token of a person who signed in at the provider.

        Raises:
            InvalidApiKey: the provider does not accept the code.
            RateLimited: the address has sent too many codes or keys that are not valid.
            Unavailable: the provider cannot be asked.
        """
        assert self.provider is not None
        assert self._jwts is not None
        self._check_failure_limit(address)
        await self._first_keys.wait(self._jwts)
        try:
            async with self._sign_ins.hold():
                return await run_in_threadpool(self.provider.finish, sign_in, code, redirect_uri)
        except InvalidApiKey:
            self._count_failure(address)
            raise

    def is_bootstrap_id(self, key_id: str) -> bool:
        """Return whether this is the id of the bootstrap key, which has no document that names it."""
        return self._bootstrap is not None and key_id == self._bootstrap.id

    def cached_caller(self, sent: str | None) -> Caller | None:
        """Return the caller of a key or token without any I/O, or None if a read or a verification is needed.

        This assigns requests to tenants before they are admitted. Only `authenticate` authenticates them.
        """
        if self._keys is None:
            return ANONYMOUS
        token = parse_token(sent) if sent is not None else None
        if token is None:
            return self._cached_jwt_caller(sent or "")
        if self._is_bootstrap(token):
            return _bootstrap_caller(token)
        key = self._keys.recall(token.id)
        if key is None or not is_secret_of(key, token) or self._keys.state(key) != "active":
            return None
        return _key_caller(key)

    async def _known_caller(self, keys: HeldKeys, sent: str | None, address: str | None) -> Caller:
        """Return the caller of a key or token. No limit applies if `address` is None."""
        if sent is None:
            raise InvalidApiKey("No API key was sent. Accepted: 'Authorization: Bearer sreg_…'.")
        if self._jwts is not None and not sent.startswith("sreg_"):
            return await self._jwt_caller(self._jwts, sent, address)
        token = parse_token(sent)
        if token is None:
            raise InvalidApiKey(
                "This is not an API key: it is mistyped or cut short. Accepted: a complete 'sreg_…' key."
            )
        if self._is_bootstrap(token):
            return _bootstrap_caller(token)
        return await self._key_caller(keys, token, address)

    def _is_bootstrap(self, token: Token) -> bool:
        return self._bootstrap is not None and hmac.compare_digest(str(token), str(self._bootstrap))

    async def _jwt_caller(self, jwts: JwtVerifier, sent: str, address: str | None) -> Caller:
        """Return the caller of a JWT.

        A caller that sends a valid JWT again is not refused when other callers at its address send bad ones.
        """
        digest, now = _digest(sent), self.rate_limits.now()
        known = self._verified_jwts.get(digest)
        if known is not None and known.holds_at(now):
            return known.caller
        if known is None:
            self._check_failure_limit(address)  # a signature takes longer to check than a key
        if not jwts.has_keys:
            jwts.check_claims(sent)  # a token that no key can make valid must not wait, nor cause a fetch
            await self._first_keys.wait(jwts)
        caller = await run_in_threadpool(jwts.verify, sent)
        self._verified_jwts[digest] = _VerifiedJwt(caller, now)
        return caller

    def _cached_jwt_caller(self, sent: str) -> Caller | None:
        known = self._verified_jwts.get(_digest(sent))
        return known.caller if known is not None else None

    async def _key_caller(self, keys: HeldKeys, token: Token, address: str | None) -> Caller:
        key = await self._find(keys, token.id, address)
        if not is_secret_of(key, token):
            raise InvalidApiKey("This API key is not known here.")
        assert key is not None
        keys.check_active(key)
        if self._uses is not None:
            self._uses.note(token.id)
        return _key_caller(key)

    async def _find(self, keys: HeldKeys, key_id: str, address: str | None) -> ApiKey | None:
        """Return a key in any state, or None if there is none. Only a key that is not held is read from the
        bucket.
        """
        if keys.seconds_left < _REFRESH_AHEAD_SECONDS:
            self._listen_in_background(keys)
        key = keys.find(key_id)
        if key is None and self._listening is not None:
            await asyncio.shield(self._listening)
            key = keys.find(key_id)
        if key is not None:
            return key
        if not keys.knows_of(key_id):
            self._check_failure_limit(address)  # guesses must not cause reads of the bucket
        return await self._key_reads.read(keys, key_id)

    def _listen_in_background(self, keys: HeldKeys) -> None:
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(keys))

    async def _listen(self, keys: HeldKeys) -> None:
        try:
            await run_in_threadpool(keys.listen, ahead_seconds=_REFRESH_AHEAD_SECONDS)
        except Exception as error:  # noqa: BLE001 - the next request that needs a key raises it
            log.warning("keys.not_refreshed", error=type(error).__name__)

    def _count_failure(self, address: str) -> None:
        self._check_failure_limit(address)
        KEYS_REFUSED.inc()
        counted = (address, self.rate_limits.minute())
        self._failures[counted] = failures = self._failures.get(counted, 0) + 1
        if failures == self._failures_per_minute:
            log.warning("keys.guessed", address=address, failures=failures)

    def _check_failure_limit(self, address: str | None) -> None:
        if address is None:
            return
        if self._failures.get((address, self.rate_limits.minute()), 0) >= self._failures_per_minute:
            KEYS_REFUSED.inc()
            raise RateLimited(
                f"This address has sent {self._failures_per_minute} requests without a valid API key in "
                "this minute. Wait for the next minute.",
                retry_after_seconds=self.rate_limits.reset_seconds(),
            ) from None


def _digest(sent: str) -> bytes:
    """Return the digest that stands for a JWT in the cache."""
    return hashlib.sha256(sent.encode()).digest()


def _bootstrap_caller(token: Token) -> Caller:
    return Caller(token.id, ANY_NAMESPACE, ALL_SCOPES)


def _key_caller(key: ApiKey) -> Caller:
    record = key.record
    return Caller(
        id=record.id,
        limits_id=record.first,
        ends_at=key.ends_at,
        namespace=record.namespace,
        scopes=ALL_SCOPES & set(record.scopes),
        requests_per_minute=record.requests_per_minute,
        uploads_per_minute=record.uploads_per_minute,
    )


class AccessMisconfigured(Exception):
    """The settings of access contradict each other. The message explains this to the operator."""


def open_access(
    api: ApiSettings,
    access: AccessSettings,
    rates: RateSettings,
    keys: HeldKeys,
    uses: KeyUses,
    redis: Redis,
) -> Access:
    """Build `Access` from the settings. `redis` works whatever state the view is in.

    Raises:
        AccessMisconfigured: keys are required but no key could make others, or the settings would let
            strangers in.
        Unavailable: the keys cannot be read.
    """
    try:
        reason = access.why_required_at(api)
    except ValueError as error:
        raise AccessMisconfigured(str(error)) from None
    if reason is None:
        return Access()
    bootstrap = _bootstrap_token(access)
    keys.check_listing()
    if bootstrap is None and access.oidc_issuer is None and not _has_admin_key(keys):
        raise AccessMisconfigured(
            f"{reason}, so requests need an API key, and there is none that could make others. Write one "
            "with `python -m services.registry_api new-key --out FILE`, and set "
            "SPEAKER_AUTH_BOOTSTRAP_KEY_FILE to that file."
        )
    jwts = JwtVerifier(access) if access.oidc_issuer else None
    return Access(
        keys,
        uses,
        rates=RateLimits(redis, rates),
        bootstrap=bootstrap,
        jwts=jwts,
        provider=ProviderSignIn(access, jwts) if jwts and access.oidc_client_id else None,
        failures_per_minute=rates.failures_per_minute,
        unknown_names_per_minute=rates.unknown_names_per_minute,
        waiting_requests=rates.waiting_requests,
        arriving_uploads=rates.arriving_uploads,
        connections=api.max_connections,
    )


def _bootstrap_token(access: AccessSettings) -> Token | None:
    if access.bootstrap is None:
        return None
    token = parse_token(access.bootstrap)
    if token is None:
        file = access.bootstrap_key_file
        where = f"SPEAKER_AUTH_BOOTSTRAP_KEY_FILE ({file}) holds" if file else "SPEAKER_AUTH_BOOTSTRAP_KEY is"
        raise AccessMisconfigured(
            f"{where} no API key: it is empty, mistyped, or not made by "
            "`python -m services.registry_api new-key`."
        )
    return token


def _has_admin_key(keys: HeldKeys) -> bool:
    return any(
        "admin" in key.record.scopes and keys.state(key) == "active" for key in keys.all(ANY_NAMESPACE)
    )
