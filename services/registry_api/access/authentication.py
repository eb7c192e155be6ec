"""Who asks: an API key, a token of an OpenID provider, or, on loopback, anybody. Knows no routes; which
caller may do what is said in `rules`.
"""

import asyncio
import hashlib
import hmac
from dataclasses import dataclass

import structlog
from cachetools import TTLCache
from starlette.concurrency import run_in_threadpool

from services.registry_api.access.rate_limits import MINUTE, Rates
from services.registry_api.access.tokens import Tokens
from services.registry_api.protocol.callers import ANONYMOUS, Caller
from services.registry_api.serving.concurrency_limits import ConcurrencyLimits
from services.registry_api.serving.slots import Slots
from services.shared.configuration.settings import AccessSettings, ApiSettings, RateSettings
from services.shared.keys.api_keys import ALL_SCOPES, ANY_NAMESPACE, ApiKey, Token, is_secret_of, parse_token
from services.shared.keys.keyring import FRESH_SECONDS, Keyring
from services.shared.registry.registrar import Registrar
from speaker_registry.errors import InvalidApiKey, RateLimited

log = structlog.get_logger()

_LOOK_AHEAD_SECONDS = FRESH_SECONDS / 2
"""With less left than that keys are looked at anew, beside the request."""
_UNKNOWN_SECONDS = 0.05
"""A key nobody has heard of may have been made just now, by another process."""
_LOOKS = 4
"""Threads that look, or wait for the one that does."""
_LOOK_WAIT_SECONDS = 10.0
_ADDRESSES = 50_000
"""Of callers whose keys were none, remembered for a minute."""
_TOKENS = 10_000
_GOOD_SECONDS = 30.0
"""A JWT that was good is not checked again for so long: about what clocks may differ by."""
_KNOWN_SECONDS = 3600.0
"""And checked at once for so long."""


@dataclass(frozen=True, slots=True)
class _GoodToken:
    """Whose JWT it was when it was checked last."""

    caller: Caller
    checked_at: float


class Access:
    """Tells callers by their keys. One per process.

    Args:
        keyring: all keys. None: keys are not needed, and everybody may do everything, as often as he likes.
        rates: counts what is done with them.
        bootstrap: a key with all rights that is in no bucket. tokens: reads JWTs; None: none are taken.
        failures_per_minute: of one address, until it is told to wait. waiting_requests, arriving_uploads:
        of one key at the same time; None: any number. connections: to this process. All keys of a namespace
        together may keep a quarter of these busy with requests that wait, and a quarter with uploads.
    """

    def __init__(
        self,
        keyring: Keyring | None = None,
        *,
        rates: Rates | None = None,
        bootstrap: Token | None = None,
        tokens: Tokens | None = None,
        failures_per_minute: int = 60,
        waiting_requests: int | None = None,
        arriving_uploads: int | None = None,
        connections: int | None = None,
    ) -> None:
        self.required = keyring is not None
        quarter = max(1, connections // 4) if connections is not None else None
        self.waiting_requests = ConcurrencyLimits(
            "requests that wait", of_key=waiting_requests, of_namespace=quarter
        )
        self.arriving_uploads = ConcurrencyLimits(
            "uploads on their way", of_key=arriving_uploads, of_namespace=quarter
        )
        self.rates = rates or Rates.unlimited()
        self._keyring = keyring
        self._bootstrap = bootstrap
        self._tokens = tokens
        self._failures_per_minute = failures_per_minute
        self._failures: TTLCache[tuple[str, int], int] = TTLCache(_ADDRESSES, ttl=2 * MINUTE)
        """By address and minute."""
        self._good_tokens: TTLCache[bytes, _GoodToken] = TTLCache(_TOKENS, ttl=_KNOWN_SECONDS)
        """By the SHA-256 of the JWT."""
        self._looking: asyncio.Task[None] | None = None
        self._looks = Slots(
            _LOOKS,
            wait_seconds=_LOOK_WAIT_SECONDS,
            refusal="API keys cannot be looked up just now. Ask again in a moment.",
        )

    async def caller(self, sent: str | None, address: str) -> Caller:
        """Whose key or token was sent, from that address.

        Raises:
            InvalidApiKey; RateLimited: after too many of these. Unavailable: nobody can tell.
        """
        if self._keyring is None:
            return ANONYMOUS
        try:
            return await self._known_caller(self._keyring, sent, address)
        except InvalidApiKey:
            self._count_failure(address)
            raise

    def known_caller(self, sent: str | None) -> Caller | None:
        """Whose key or token was sent, as far as that is known already; None where it is not.

        This tells requests apart before they are admitted. It admits nobody: see `caller`.
        """
        if self._keyring is None:
            return ANONYMOUS
        token = parse_token(sent) if sent is not None else None
        if token is None:
            return self._known_token_caller(sent or "")
        if self._is_bootstrap(token):
            return _bootstrap_caller(token)
        key = self._keyring.find(token.id)
        if key is None or not is_secret_of(key, token) or self._keyring.state(key) != "active":
            return None
        return _key_caller(key)

    async def _known_caller(self, keyring: Keyring, sent: str | None, address: str) -> Caller:
        if sent is None:
            raise InvalidApiKey("No API key was sent. Accepted: 'Authorization: Bearer sreg_…'.")
        if self._tokens is not None and not sent.startswith("sreg_"):
            return await self._token_caller(self._tokens, sent, address)
        token = parse_token(sent)
        if token is None:
            raise InvalidApiKey("This is no API key: mistyped, or cut short. Accepted: 'sreg_…', whole.")
        if self._is_bootstrap(token):
            return _bootstrap_caller(token)
        return await self._key_caller(keyring, token, address)

    def _is_bootstrap(self, token: Token) -> bool:
        return self._bootstrap is not None and hmac.compare_digest(str(token), str(self._bootstrap))

    async def _token_caller(self, tokens: Tokens, sent: str, address: str) -> Caller:
        """Who sends a good one again is not kept waiting by others of his address that send bad ones."""
        digest, now = _digest(sent), self.rates.now()
        known = self._good_tokens.get(digest)
        if known is not None and now - known.checked_at < _GOOD_SECONDS:
            return known.caller
        if known is None:
            self._check_patience(address)  # a signature takes longer to check than a key
        caller = await run_in_threadpool(tokens.caller, sent)
        self._good_tokens[digest] = _GoodToken(caller, now)
        return caller

    def _known_token_caller(self, sent: str) -> Caller | None:
        known = self._good_tokens.get(_digest(sent))
        return known.caller if known is not None else None

    async def _key_caller(self, keyring: Keyring, token: Token, address: str) -> Caller:
        await self._refresh(keyring)
        if keyring.find(token.id) is None:
            self._check_patience(address)
            await self._look_now(keyring)
        key = keyring.find(token.id)
        if not is_secret_of(key, token):
            raise InvalidApiKey("This API key is not known here.")
        assert key is not None
        keyring.check_active(key)
        keyring.used(token.id)
        return _key_caller(key)

    async def _refresh(self, keyring: Keyring) -> None:
        """Waits only where what is known may be wrong; else it is looked at beside the request."""
        left = keyring.seconds_left
        if left <= 0:
            await self._look_now(keyring)
        elif left < _LOOK_AHEAD_SECONDS and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(keyring))

    async def _look_now(self, keyring: Keyring) -> None:
        async with self._looks.hold():
            await run_in_threadpool(keyring.look, longest_ago_seconds=_UNKNOWN_SECONDS)

    async def _look(self, keyring: Keyring) -> None:
        try:
            await run_in_threadpool(keyring.look, longest_ago_seconds=_UNKNOWN_SECONDS)
        except Exception as error:  # noqa: BLE001 - whoever needs to know looks again, and is told
            log.warning("keys.not_looked_at", error=type(error).__name__)

    def _count_failure(self, address: str) -> None:
        self._check_patience(address)
        place = (address, self.rates.minute())
        self._failures[place] = failures = self._failures.get(place, 0) + 1
        if failures == self._failures_per_minute:
            log.warning("keys.guessed", address=address, failures=failures)

    def _check_patience(self, address: str) -> None:
        if self._failures.get((address, self.rates.minute()), 0) >= self._failures_per_minute:
            raise RateLimited(
                f"{self._failures_per_minute} keys from this address were none in this minute. Wait for the "
                "next one.",
                retry_after_seconds=self.rates.reset_seconds(),
            ) from None


def _digest(sent: str) -> bytes:
    """What a JWT is remembered by."""
    return hashlib.sha256(sent.encode()).digest()


def _bootstrap_caller(token: Token) -> Caller:
    return Caller(token.id, ANY_NAMESPACE, ALL_SCOPES)


def _key_caller(key: ApiKey) -> Caller:
    record = key.record
    return Caller(
        id=record.id,
        counted_as=record.first,
        namespace=record.namespace,
        scopes=ALL_SCOPES & set(record.scopes),
        requests_per_minute=record.requests_per_minute,
        uploads_per_minute=record.uploads_per_minute,
    )


class NoWayIn(Exception):
    """Keys are needed, and there is none that could make others; for whoever runs us."""


def open_access(
    api: ApiSettings, access: AccessSettings, rates: RateSettings, registrar: Registrar
) -> Access:
    """As the settings say.

    Raises:
        NoWayIn, also where strangers would have one; Unavailable.
    """
    try:
        reason = access.why_required_at(api)
    except ValueError as error:
        raise NoWayIn(str(error)) from None
    if reason is None:
        return Access()
    bootstrap = _bootstrap_token(access)
    keyring = registrar.keyring
    keyring.look()
    if bootstrap is None and access.oidc_issuer is None and not _an_admin_in(keyring):
        raise NoWayIn(
            f"{reason}, so requests need an API key, and there is none that could make others. Write one by "
            "`python -m services.registry_api new-key --out FILE`, and give that file by "
            "SPEAKER_AUTH_BOOTSTRAP_KEY_FILE."
        )
    return Access(
        keyring,
        rates=Rates(registrar.index.ungated, rates),
        bootstrap=bootstrap,
        tokens=Tokens(access) if access.oidc_issuer else None,
        failures_per_minute=rates.failures_per_minute,
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
        raise NoWayIn(
            f"{where} no API key: empty, mistyped, or not made by `python -m services.registry_api new-key`."
        )
    return token


def _an_admin_in(keyring: Keyring) -> bool:
    return any(
        "admin" in key.record.scopes and keyring.state(key) == "active" for key in keyring.all(ANY_NAMESPACE)
    )
