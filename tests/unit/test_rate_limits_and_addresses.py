"""Tests of how limits are shared out within a process, and of what an address counts as."""

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from services.registry_api.access.rate_limits import REQUESTS, UPLOADS, Limit, RateLimits
from services.registry_api.protocol.callers import ANONYMOUS, Caller, address_of
from services.registry_api.serving.server import behind_proxies
from services.shared.configuration.access import RateSettings
from speaker_registry.errors import RateLimited


class Counted(RateLimits):
    """Counts here what Redis would, and takes its time to answer."""

    def __init__(self) -> None:
        super().__init__(None, RateSettings(), now=lambda: 0.0)
        self.taken = 0
        self.asked = 0

    async def _taken(self, limit: Limit, count: object, share: int) -> int:
        self.asked += 1
        await asyncio.sleep(0.01)
        self.taken += share
        return self.taken


def limit(rates: RateLimits, per_minute: int) -> Limit:
    caller = Caller("key", "default", frozenset(), requests_per_minute=per_minute)
    return rates.limits_for(caller, "default", "requests")[0]


def test_who_asks_at_the_same_time_takes_one_share_together():
    """Each would else take one of his own: a minute's limit would be gone with its first requests."""

    async def test() -> None:
        rates = Counted()
        found = await asyncio.gather(*(rates.take(limit(rates, 1000)) for _ in range(64)))
        assert rates.taken - len(found) < 10
        assert rates.asked == 7  # shares of ten

    asyncio.run(test())


def test_of_many_at_the_same_time_as_many_are_served_as_may_be():
    """No fewer, no more."""

    async def test() -> None:
        rates = Counted()
        asked = [rates.take(limit(rates, 30)) for _ in range(64)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(one, RateLimited) for one in answers) == 34

    asyncio.run(test())


def test_requests_that_need_no_answer_of_redis_are_counted_at_once():
    """Both ways of counting give out the same requests, and neither gives out one more."""

    async def test() -> None:
        rates = Counted()
        taking = rates.taking([limit(rates, 30), Limit("requests", "namespace:default", None)])
        assert taking.take() is None  # nothing was taken from Redis yet
        remaining = []
        for _ in range(30):
            at_once = taking.take()
            remaining.append((at_once or await rates.take(limit(rates, 30))).remaining)
        assert remaining == list(range(29, -1, -1))
        assert taking.take() is None
        with pytest.raises(RateLimited):
            await rates.take(limit(rates, 30))

    asyncio.run(test())


def test_requests_without_a_limit_are_not_counted():
    """A registry without limits does not ask Redis about them."""
    rates = Counted()
    taking = rates.taking([Limit("requests", "namespace:default", None)])
    found = [taking.take() for _ in range(3)]
    assert all(rate is not None and rate.limit is None for rate in found)
    assert rates.asked == 0


def test_a_registry_without_keys_has_no_limits_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
):
    """The limits of the environment are for keys. Every request was answered with 500 if there was one for
    namespaces.
    """
    for field in RateSettings.model_fields:
        monkeypatch.setenv(f"SPEAKER_LIMIT_{field}".upper(), "1")
    rates = RateLimits.unlimited()
    for what in (REQUESTS, UPLOADS):
        limits = rates.limits_for(ANONYMOUS, "default", what)
        assert [limit.per_minute for limit in limits] == [None, None]
        assert asyncio.run(rates.take(limits[1])).limit is None


@pytest.mark.parametrize(
    ("host", "counts_as"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("2001:db8::9:2:3:4", "2001:db8::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_ipv6_network_counts_as_one(host: str, counts_as: str):
    """However its addresses are written: whoever has it has all of them."""
    assert address_of(host) == counts_as


@pytest.mark.parametrize(
    ("client", "sent", "expected"),
    [
        ("10.0.0.1", [b"https"], "https"),
        ("10.0.0.1", [b"HTTPS"], "https"),
        ("10.0.0.1", [b"https, http"], "https"),
        ("10.0.0.1", [b"https", b"http"], "https"),
        ("10.0.0.1", [b"http,https"], "http"),
        ("10.0.0.1", [b"gopher"], "http"),
        ("10.0.0.1", [], "http"),
        ("10.0.0.2", [b"https"], "http"),
    ],
)
def test_a_trusted_proxy_says_which_scheme_the_caller_used(client: str, sent: list[bytes], expected: str):
    """The first scheme in a list is that of the browser, and its case does not matter."""
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    headers = [(b"host", b"registry.example"), *((b"x-forwarded-proto", value) for value in sent)]
    scope: dict[str, Any] = {"type": "http", "scheme": "http", "client": (client, 1), "headers": headers}
    asyncio.run(behind_proxies(app, ["10.0.0.1"])(scope, None, None))
    assert [one["scheme"] for one in seen] == [expected]
