"""Tests of how an API key is written, and of when it is valid."""

import hmac

import pytest

from services.registry_api.keys import api_keys
from services.registry_api.keys.api_keys import (
    AT_ONCE,
    ApiKey,
    ApiKeyRecord,
    End,
    Token,
    is_secret_of,
    new_token,
    parse_token,
)

NOW = 1_775_133_885


def key(token: Token, *ends: End, expires_at: int | None = None) -> ApiKey:
    record = ApiKeyRecord(
        id=token.id,
        secret_sha256=token.sha256,
        name="engines",
        namespace="default",
        scopes=("engine",),
        created_at=NOW - 100,
        created_by="test",
        expires_at=expires_at,
    )
    return ApiKey(record, ends)


def test_a_key_is_read_back():
    """The holder of a key sends what was shown."""
    token = new_token()
    assert parse_token(str(token)) == token
    assert str(token).startswith("sreg_")


def test_keys_differ_in_id_and_secret():
    """One key would otherwise open what another one is for."""
    tokens = [new_token() for _ in range(500)]
    assert len({token.id for token in tokens}) == len({token.secret for token in tokens}) == 500


@pytest.mark.parametrize("place", [5, 14, 30, 57, 63])
def test_a_mistyped_key_is_known_for_one(place: int):
    """A mistyped key is recognised whichever letter is wrong, so nothing is looked up for it."""
    text = str(new_token())
    other = "b" if text[place] == "a" else "a"
    assert parse_token(text[:place] + other + text[place + 1 :]) is None


@pytest.mark.parametrize(
    "text", ["", "sreg_", "Bearer x", "sreg_" + "é" * 59, "sreg_" + "a" * 10_000, "a.b.c"]
)
def test_other_things_are_no_keys(text: str):
    assert parse_token(text) is None


def test_a_key_does_not_show_its_secret():
    """Values end up in logs and tracebacks."""
    token = new_token()
    assert token.secret not in repr(token)
    assert token.sha256 not in repr(key(token))


def test_only_its_own_secret_opens_it():
    token, other = new_token(), new_token()
    assert is_secret_of(key(token), token)
    assert not is_secret_of(key(token), Token(token.id, other.secret))


def test_a_key_that_there_is_not_takes_as_long_as_a_wrong_secret(monkeypatch: pytest.MonkeyPatch):
    """The time that an answer takes would otherwise reveal which ids exist. Both compare once, in constant
    time.
    """
    compared = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    token = new_token()
    assert not is_secret_of(None, token)
    assert not is_secret_of(key(new_token()), token)
    assert len(compared) == 2
    assert {len(value) for pair in compared for value in pair} == {64}


def test_the_stand_in_for_no_key_opens_nothing():
    """Even for who knows what it is the hash of."""
    assert not is_secret_of(None, Token("00000000", "nobody's"))


def test_a_key_is_good_until_it_expires():
    made = key(new_token(), expires_at=NOW)
    assert [made.state(NOW - 1), made.state(NOW)] == ["active", "expired"]


def test_a_revoked_key_is_none_on_any_clock():
    """Also where that is an hour behind the one of who revoked it."""
    made = key(new_token(), End(AT_ONCE, NOW))
    assert made.state(NOW - 3600) == "revoked"
    assert made.ends_at == NOW


def test_the_earliest_end_counts():
    """A rotation gives a key an hour, and a later revocation must count at once."""
    rotated = key(new_token(), End(NOW + 3600, NOW), expires_at=NOW + 7200)
    assert [rotated.state(NOW), rotated.state(NOW + 3600)] == ["active", "revoked"]
    assert rotated.ends_at == NOW + 3600
    assert key(new_token(), *rotated.ends, End(AT_ONCE, NOW + 5)).state(NOW) == "revoked"


def test_every_scope_is_known():
    """The wire and the rules use one list of scopes."""
    assert "voices:read" in api_keys.ALL_SCOPES
    assert len(api_keys.ALL_SCOPES) == 9
