"""Tests of what a worker knows about its encoders before it loads them. Store and Redis are in memory."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisAway
from structlog.testing import capture_logs

from services.extractor_worker.jobs.standing import Standings
from services.shared.model.encoders import Encoder
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.profile_document import ProfileDocument, announced, standing
from speaker_registry.engine import Profile
from speaker_registry.errors import Unavailable
from tests.memory_records import A, B, Process
from tests.memory_registry import PROFILES, World

FIRST, SECOND = PROFILES


def fingerprint(made_with: str, *, untrained: bool = False) -> Fingerprint:
    return Fingerprint.of(made_with=made_with, weights={"untrained": untrained})


def announce(process: Process, profile: Profile, made_with: str, *, untrained: bool = False) -> None:
    process.announce(fingerprint(made_with, untrained=untrained).digest, profile.name, untrained=untrained)


def standings(process: Process, identified: Mapping[str, Fingerprint | None]) -> Standings:
    return Standings(process.profiles, lambda profile: identified[profile.name])


def told(lines: list[Any]) -> dict[str, str]:
    return {line["profile"]: line["standing"] for line in lines if line["event"] == "profile.standing"}


def test_a_worker_says_before_it_loads_what_its_encoders_will_be(world: World):
    """An operator who started a worker with other weights sees at once that it will change nothing."""
    process = Process.settled(world)
    announce(process, FIRST, "the current weights")
    found = standings(process, {FIRST.name: fingerprint("other weights"), SECOND.name: fingerprint("any")})
    with capture_logs() as lines:
        for profile in PROFILES:
            found.find_out_early(profile)
    assert told(lines) == {FIRST.name: "candidate", SECOND.name: "first"}
    with capture_logs() as lines:
        standings(process, {FIRST.name: fingerprint("the current weights")}).find_out_early(FIRST)
    assert told(lines) == {FIRST.name: "current"}


def test_candidates_are_loaded_last_and_before_them_what_is_known_only_after_loading(world: World):
    """What live jobs need comes first. An encoder of another package may be the current one."""
    process = Process.settled(world)
    announce(process, FIRST, "the current weights")
    candidate = standings(process, {FIRST.name: fingerprint("other weights"), SECOND.name: None})
    current = standings(process, {FIRST.name: fingerprint("the current weights"), SECOND.name: None})
    for found in (candidate, current):
        for profile in PROFILES:
            found.find_out_early(profile)
    assert candidate.in_order([FIRST, SECOND]) == [SECOND, FIRST]
    assert current.in_order([SECOND, FIRST]) == [FIRST, SECOND]


def test_what_was_unknown_is_told_once_it_is_loaded_and_nothing_is_told_twice(world: World):
    """One line for each profile, however its fingerprint became known."""
    process = Process.settled(world)
    found = standings(process, {FIRST.name: None})
    with capture_logs() as lines:
        found.find_out_early(FIRST)
        assert told(lines) == {}
        found.find_out(FIRST, fingerprint("any"))
        found.find_out(FIRST, fingerprint("any"))
    assert [line["standing"] for line in lines if line["event"] == "profile.standing"] == ["first"]


def test_while_redis_is_away_the_bucket_is_asked(world: World):
    """A worker may start before Redis does."""
    announce(Process.settled(world), FIRST, "the current weights")

    def away(_what: str, _call: Callable[[], Any]) -> Any:
        raise RedisAway

    found = standings(Process(world, weather=away), {FIRST.name: fingerprint("other weights")})
    with capture_logs() as lines:
        found.find_out_early(FIRST)
    assert told(lines) == {FIRST.name: "candidate"}


def test_a_registry_that_cannot_be_asked_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch):
    """A guess would load in a wrong order, so the start ends and says why."""
    found = standings(Process(world), {FIRST.name: fingerprint("any")})

    def away(_key: str) -> Any:
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(world.store, "read", away)
    monkeypatch.setattr(world.store, "get", away)
    with pytest.raises(Unavailable):
        found.find_out_early(FIRST)


@pytest.mark.parametrize("untrained", [True, False])
@pytest.mark.parametrize("current", [None, (A, True), (A, False), (B, False)])
def test_what_is_told_ahead_is_what_happens(current: tuple[str, bool] | None, untrained: bool):
    """The rules ahead of an announcement are those of the announcement."""
    document = ProfileDocument()
    if current is not None:
        document = ProfileDocument(
            revision=1,
            current=Encoder(profile=FIRST.name, fingerprint=current[0], untrained=current[1]),
        )
    arriving = Encoder(profile=FIRST.name, fingerprint=B, untrained=untrained)
    is_current = announced(document, arriving).fingerprint == B
    assert (standing(document, B, untrained=untrained) != "candidate") == is_current
