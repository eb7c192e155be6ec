"""Tests of how often one address may send invalid keys, and of whom the limit concerns."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest
from structlog.testing import capture_logs

from services.registry_api.access.authentication import Access
from services.registry_api.access.rate_limits import RateLimits
from services.registry_api.access.tokens import JwtVerifier
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.protocol.callers import Caller
from speaker_registry.errors import InvalidApiKey, RateLimited, SpeakerRegistryError
from tests.scraping import counted

GOOD = Caller("jwt:1", "default", frozenset({"engine"}))


class OneToken:
    """Stands for tokens of a provider: `good` is one."""

    def __init__(self) -> None:
        self.checked = 0
        self.has_keys = True
        self.good = GOOD

    def check_claims(self, text: str) -> None:
        """Accept the claims of every token. Only the signatures of bad ones are wrong."""

    def verify(self, text: str) -> Caller:
        self.checked += 1
        if text != "good":
            raise InvalidApiKey("This token is not accepted.")
        return self.good


class Asked:
    def __init__(self) -> None:
        self.now = 600.0
        self.tokens = OneToken()
        rates = RateLimits.unlimited()
        rates.now = lambda: self.now
        self.access = Access(
            cast(HeldKeys, object()),
            rates=rates,
            jwts=cast(JwtVerifier, self.tokens),
            failures_per_minute=3,
        )

    def send(self, sent: str, address: str = "203.0.113.7") -> Caller | type[SpeakerRegistryError]:
        try:
            return asyncio.run(self.access.authenticate(sent, address))
        except SpeakerRegistryError as error:
            return type(error)


def test_failures_are_counted_minute_by_minute():
    """One in a minute is no guessing, however long it goes on."""
    asked = Asked()
    for _ in range(10):
        assert asked.send("sreg_x") is InvalidApiKey
        asked.now += 50
    codes = [asked.send("sreg_x") for _ in range(4)]
    assert codes[-1] is RateLimited
    asked.now += 60
    assert asked.send("sreg_x") is InvalidApiKey


def test_it_is_told_when_the_minute_is_over():
    asked = Asked()
    asked.now += 20
    for _ in range(3):
        asked.send("sreg_x")
    with pytest.raises(RateLimited) as refused:
        asyncio.run(asked.access.authenticate("sreg_x", "203.0.113.7"))
    assert refused.value.retry_after_seconds == 40


def test_a_good_token_does_not_wait_for_what_its_neighbours_do():
    """They share an address behind a proxy that nobody trusts. It was good a moment ago, so it is checked."""
    asked = Asked()
    assert asked.send("good") is GOOD
    for _ in range(5):
        asked.send("bad")
    assert asked.send("bad") is RateLimited
    checked = asked.tokens.checked
    assert asked.send("good") is GOOD
    assert asked.tokens.checked == checked, "it need not be checked twice in a moment"
    asked.now += 35
    for _ in range(4):
        asked.send("bad")
    assert asked.send("good") is GOOD
    assert asked.tokens.checked > checked


def test_other_addresses_are_not_concerned():
    asked = Asked()
    for _ in range(5):
        asked.send("bad")
    assert asked.send("bad", "203.0.113.8") is InvalidApiKey


def test_who_guesses_is_named_in_the_log():
    """Once: whoever runs us can block the address."""
    asked = Asked()
    with capture_logs() as logs:
        for _ in range(9):
            asked.send("sreg_x")
    assert [(line["event"], line["address"]) for line in logs] == [("keys.guessed", "203.0.113.7")]


def test_every_refused_key_is_counted_whether_or_not_it_was_looked_at():
    """One address that guesses keys gets 429 after a few of them. An operator must still see how many it
    sends.
    """
    asked = Asked()
    with counted("registry_keys_refused_total") as refused:
        assert asked.send("good") is GOOD
        answers = [asked.send(sent) for sent in ("bad", "sreg_x", "bad", "sreg_x", "bad")]
    assert answers == [InvalidApiKey] * 3 + [RateLimited] * 2
    assert refused == [5]


def test_a_token_is_not_accepted_from_memory_after_its_end():
    """A token that was checked shortly before its end is checked again as soon as it has ended."""
    asked = Asked()
    asked.tokens.good = replace(GOOD, ends_at=asked.now + 2)
    for seconds, checks in ((0, 1), (1.5, 1), (2, 2)):
        asked.now = 600.0 + seconds
        asked.send("good")
        assert asked.tokens.checked == checks
