"""Tests of which events end the lists that the express lane keeps, without a server and without Redis."""

from collections.abc import Callable
from typing import Any

import pytest

from services.registry_api.access.rate_limits import RateLimits
from services.registry_api.express.lane import ExpressLane, Offer
from services.registry_api.express.prepared import PreparedAnswers, lists_of
from services.registry_api.protocol.callers import ANONYMOUS

TARGET = b"/v1/profiles/ecapa/manifest"


class Events:
    """An event stream on which the process has a lease, and whose events the test gives."""

    lease_ends = float("inf")
    time = 0.0

    def now(self) -> float:
        return self.time

    def subscribe(self, hear: Callable[[Any], object], miss: Callable[[], object]) -> None:
        self.hear, self.miss = hear, miss

    def tell(self, kind: str, speaker: str) -> None:
        self.hear({"what": kind, "speaker": speaker})


class Asked:
    """A lane that is asked for a manifest of `acme`, on which is only the voice `alice`."""

    def __init__(self) -> None:
        self.events = Events()
        events: Any = self.events
        self.lane = ExpressLane(events, RateLimits.unlimited(), PreparedAnswers(1 << 20, 10), local=False)

    def ask(self, target: bytes = TARGET, tag: bytes | None = None) -> Offer | None:
        """Ask for the manifest. Returns None if it came from memory."""
        headers = [] if tag is None else [(b"if-none-match", tag)]
        question = self.lane.question(b"GET", target, headers)
        assert question is not None
        answer = self.lane.answer(question, [])
        assert answer is not None
        return answer if isinstance(answer, Offer) else None

    def respond(self, offer: Offer) -> None:
        """Send the ordinary answer."""
        offer.accept(
            ANONYMOUS,
            "acme",
            speakers=(lists_of("acme"), "acme/alice"),
            profiles=("ecapa",),
            route="/v1/profiles/{profile}/manifest",
            is_file=False,
        )
        offer.observe_message(
            {"type": "http.response.start", "status": 200, "headers": [(b"etag", b'"one"')]}
        )
        offer.observe_message({"type": "http.response.body", "body": memoryview(b"{"), "more_body": True})
        offer.observe_message({"type": "http.response.body", "body": b"}"})

    @property
    def is_kept(self) -> bool:
        return self.ask() is None


@pytest.fixture
def asked() -> Asked:
    kept = Asked()
    offer = kept.ask()
    assert offer is not None
    kept.respond(offer)
    assert kept.is_kept
    return kept


def test_an_answer_in_pieces_is_kept_whole_and_only_once():
    """Its connection holds the offer until the next request, which may be never."""
    asked = Asked()
    offer = asked.ask()
    assert offer is not None
    asked.respond(offer)
    assert offer._pieces == []
    question = asked.lane.question(b"GET", TARGET, [])
    assert question is not None
    answer = asked.lane.answer(question, [])
    assert isinstance(answer, tuple)
    assert answer[1] == b"{}"


@pytest.mark.parametrize("kind", ["voice.created", "voice.admitted", "voice.pinned"])
def test_a_list_ends_with_a_voice_that_it_does_not_have_yet(asked: Asked, kind: str):
    """None of the voices on the list has an event then. A new voice would be missing until one has."""
    asked.events.tell(kind, "acme/bob")
    assert not asked.is_kept


@pytest.mark.parametrize("kind", ["voice.created", "voice.admitted", "voice.pinned"])
def test_a_list_that_a_new_voice_overtook_is_not_kept(kind: str):
    """It was read before the voice came, and its answer is ready only when the event was heard already."""
    asked = Asked()
    offer = asked.ask()
    assert offer is not None
    asked.events.tell(kind, "acme/bob")
    asked.respond(offer)
    assert not asked.is_kept


@pytest.mark.parametrize(
    ("kind", "speaker"),
    [
        ("voice.created", "acme-too/bob"),
        ("voice.updated", "acme/bob"),
        ("version.created", "acme/bob"),
        ("voice.admitted", "other/alice"),
        ("artifact.ready", "acme/bob"),
        ("voice.deleted", "acme/bob"),
    ],
)
def test_a_list_outlives_what_does_not_concern_it(asked: Asked, kind: str, speaker: str):
    """Engines ask every few seconds. A busy tenant must not have the lists of all others made anew."""
    asked.events.tell(kind, speaker)
    assert asked.is_kept


@pytest.mark.parametrize("kind", ["voice.deleted", "artifact.ready", "alias.updated", "version.created"])
def test_a_list_ends_with_any_event_of_its_voices(asked: Asked, kind: str):
    asked.events.tell(kind, "acme/alice")
    assert not asked.is_kept


def test_a_list_does_not_outlive_the_index_that_it_came_from(asked: Asked):
    """What the lost view did not tell is told by nobody, so nothing from before the loss is certain."""
    overtaken = Asked()
    offer = overtaken.ask()
    assert offer is not None
    for one in (asked, overtaken):
        one.events.miss()
    overtaken.respond(offer)
    for one in (asked, overtaken):
        renewal = one.ask(b"/v1/voices/alice")  # the key has to be checked again as well
        assert renewal is not None
        one.respond(renewal)
    assert not asked.is_kept
    assert not overtaken.is_kept


def checked_again(asked: Asked, tag: bytes | None = b'"one"') -> Offer:
    """Return the offer to a request whose key has to be checked again."""
    asked.events.time += 60
    offer = asked.ask(tag=tag)
    assert offer is not None
    return offer


def test_a_key_is_checked_again_without_making_the_answer_again(asked: Asked):
    """A page of a manifest takes a fifth of a second to make, and each key is checked every second."""
    kept = checked_again(asked).kept(ANONYMOUS, "acme")
    assert kept is not None
    assert (kept.status_code, kept.headers["etag"], kept.body) == (304, '"one"', b"")
    assert asked.is_kept, "the key has the lane again"


@pytest.mark.parametrize("tag", [None, b'"two"'])
def test_who_has_another_answer_is_given_the_one_in_memory(asked: Asked, tag: bytes | None):
    """When a page changes, fifty engines name the ETag of the former page."""
    kept = checked_again(asked, tag).kept(ANONYMOUS, "acme")
    assert kept is not None
    assert (kept.status_code, kept.headers["etag"], kept.body) == (200, '"one"', b"{}")


def test_what_may_have_changed_is_made_again(asked: Asked):
    """The answer belongs to one namespace, ends with an event, and is certain only while the lease lasts."""
    assert checked_again(asked).kept(ANONYMOUS, "other") is None
    asked.events.lease_ends = asked.events.time
    assert checked_again(asked).kept(ANONYMOUS, "acme") is None
    asked.events.lease_ends = float("inf")
    asked.events.tell("voice.deleted", "acme/alice")
    assert checked_again(asked).kept(ANONYMOUS, "acme") is None
