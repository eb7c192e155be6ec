"""Tests that a request whose headers contradict each other about the caller is refused."""

import asyncio

import pytest

from services.registry_api.access.authentication import Access
from services.registry_api.access.rules import authenticate
from speaker_registry.errors import InvalidRequest


def authenticate_with(*headers: tuple[str, str]) -> object:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    return asyncio.run(authenticate(Access(), {"type": "http", "headers": raw, "client": None}))


@pytest.mark.parametrize("name", ["Authorization", "X-Speaker-Namespace"])
@pytest.mark.parametrize("second", ["default", "other"])
def test_two_headers_that_say_who_asks_are_refused(name: str, second: str):
    """A proxy in front could check one of them, and the registry could take the other."""
    with pytest.raises(InvalidRequest, match=f"The request has 2 headers {name}; accepted: at most one"):
        authenticate_with((name, "default"), (name, second))


def test_one_of_each_is_accepted():
    assert authenticate_with(("Authorization", "Bearer x"), ("X-Speaker-Namespace", "default"))
