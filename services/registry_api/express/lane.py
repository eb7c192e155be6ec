"""Answers requests for artifacts from memory, in the protocol itself, before any task or middleware exists.

An answer that the ordinary way has given is kept, and is sent again for an equal request (same target and
namespace) from a caller whose key was checked a moment ago. All other requests take the ordinary way. A kept
answer is only sent while this process has a lease on the event stream, and any event of its voice drops it.
So it is never outdated: see `shared/view/leases.py`.
"""

import itertools
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter

from starlette.responses import Response
from starlette.types import Message, Scope

from services.registry_api.access.rate_limits import REQUESTS, RateLimits, Taking
from services.registry_api.express.answer_bytes import fitting, lines_of, prepare, response
from services.registry_api.express.prepared import PreparedAnswer, PreparedAnswers, lists_of
from services.registry_api.express.questions import (
    HEAD,
    Credentials,
    Headers,
    Question,
    question_of,
    wants_body,
)
from services.registry_api.keys.key_document import KeyDocument
from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.headers import rate_lines
from services.registry_api.protocol.signals import metrics_of
from services.registry_api.serving.connections import OFFER
from services.registry_api.serving.event_stream import Event, EventStream
from services.registry_api.serving.limits import is_request_id
from services.shared.model.events import ADMITTED, CREATED, PINNED
from services.shared.model.profile_document import ProfileDocument
from services.shared.model.speaker import namespace_of
from services.shared.telemetry import tracing
from services.shared.telemetry.metrics import ARTIFACT_REQUESTS, Batch

_LISTED = frozenset({CREATED, ADMITTED, PINNED})
"""The events that add a voice to pages of a list. They drop kept answers with lists of the namespace."""
_GRANT_SECONDS = 1.0
"""Lifetime of a grant. After that the ordinary way checks the key again, and records that it was used."""
_MAX_GRANT_BYTES = 16 * 1024**2
"""The memory that all grants may take, including their credentials."""
_GRANT_BYTES = 512
"""A grant takes about this much memory besides the credentials."""
_MAX_HEADS = 4096
"""Largest number of parsed heads that are cached. Clients repeat their heads byte for byte, and parsing one
takes longer than answering it.
"""
_MAX_CHANGED = 10_000
"""Largest number of speakers whose last event is remembered."""


@dataclass(slots=True)
class _Grant:
    """A caller whose right to read artifacts the ordinary way checked a moment ago."""

    namespace: str
    until: float
    """The end of the grant, by `EventStream.now`."""
    renewal: float
    """From this time on, one request takes the ordinary way, so that the grant is renewed before it ends."""
    taking: Taking

    def holds(self, now: float) -> bool:
        """Return whether the next request may be answered from memory."""
        if now < self.renewal:
            return True
        self.renewal = self.until
        return False


def offer_of(scope: Scope) -> "Offer | None":
    """Return the offer to keep the answer to a request, or None if it cannot be kept."""
    offer = scope.get(OFFER)
    assert offer is None or isinstance(offer, Offer)
    return offer


@dataclass(slots=True, kw_only=True)
class Offer:
    """A request that takes the ordinary way, whose answer may be kept. The route calls `accept`."""

    lane: "ExpressLane"
    question: Question
    began: int
    """The number of events that this process had received when the request came."""
    _caller: Caller | None = None
    _namespace: str = ""
    _known: PreparedAnswer | None = None
    _status: int = 0
    _headers: Headers = ()
    _pieces: list[bytes | memoryview] = field(default_factory=list)

    def accept(
        self,
        caller: Caller,
        namespace: str,
        *,
        speakers: tuple[str, ...],
        profiles: tuple[str, ...],
        route: str,
        is_file: bool,
    ) -> None:
        """Mark the answer to this request to be kept.

        Args:
            caller: the authenticated caller, which may read artifacts of the namespace.
            speakers: the speakers whose events may make the answer wrong.
            profiles: the profiles whose announcements may make the answer wrong.
            route: the template of the route, for metrics.
            is_file: whether the answer is an artifact's file.
        """
        self._caller, self._namespace = caller, namespace
        self._known = PreparedAnswer(
            speakers=speakers, profiles=profiles, route=route, is_file=is_file, etag=b"", unchanged=b""
        )

    def kept(self, caller: Caller, namespace: str) -> Response | None:
        """Return the answer to the request if it is in memory, else None.

        The key of the request was checked just now, so it is granted the express lane again. Routes whose
        answers are expensive call this first. It must be called from the event loop.

        Args:
            caller: the authenticated caller, which may read artifacts of the namespace.
        """
        return self.lane.kept(self, caller, namespace)

    def observe_message(self, message: Message) -> None:
        """Record a part of the answer as it is sent."""
        if self._known is None or self._caller is None:
            return
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
            return
        if self._status == 200:  # no other answer is kept with its body
            self._pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            pieces, self._pieces = self._pieces, []  # the connection holds this offer until its next request
            is_head = self.question.method == HEAD
            body = None if is_head else b"".join(pieces)
            answer = prepare(self._known, self._status, self._headers, body)
            self._known = None
            if answer is not None:
                self.lane.keep(self, self._caller, self._namespace, answer)


class ExpressLane:
    """The express lane of a process. Must only be used from its event loop.

    Args:
        events: the event stream, which also tells whether this process may answer from memory.
        rates: counts the requests.
        local: whether no keys are required, so that only requests from this machine are answered.
        answers: the prepared answers.
    """

    def __init__(
        self, events: EventStream, rates: RateLimits, answers: PreparedAnswers, *, local: bool
    ) -> None:
        self._events = events
        self._rates = rates
        self._answers = answers
        self._local = local
        self._grants: dict[Credentials, _Grant] = {}
        self._grant_bytes = 0
        self._heads: dict[bytes, Question] = {}
        self._heard = 0
        self._changed: OrderedDict[str, int] = OrderedDict()
        """Speaker -> number of its last event."""
        self._changed_before = self._keys_changed = 0
        """Numbers of the last event that may concern any speaker, and of the last one about keys."""
        self._date: tuple[object, bytes] = (None, b"")
        self._ids = itertools.count(1)
        self._id_prefix = f"req_{secrets.token_hex(8)}".encode()
        events.subscribe(self._on_event, self._on_events_missed)

    # -- events

    def _on_event(self, event: Event) -> None:
        self._heard += 1
        match event["what"]:
            case KeyDocument.UPDATED:
                self._keys_changed = self._heard
                self._drop_grants()
            case ProfileDocument.UPDATED:
                self._changed_before = self._heard
                self._answers.drop_profile(event["profile"])
            case kind:
                self._drop_speaker(event["speaker"])
                if kind in _LISTED:
                    self._drop_speaker(lists_of(namespace_of(event["speaker"])))

    def _drop_speaker(self, speaker: str) -> None:
        self._answers.drop_speaker(speaker)
        self._changed[speaker] = self._heard
        self._changed.move_to_end(speaker)
        if len(self._changed) > _MAX_CHANGED:
            self._changed_before = max(self._changed_before, self._changed.popitem(last=False)[1])

    def _on_events_missed(self) -> None:
        self._heard += 1
        self._changed_before = self._keys_changed = self._heard
        self._answers.clear()
        self._drop_grants()

    # -- requests on the ordinary way

    def keep(self, offer: Offer, caller: Caller, namespace: str, answer: PreparedAnswer) -> None:
        """Keep the answer to a request, unless it may already be outdated."""
        if offer.began >= self._keys_changed:
            self._grant(offer.question.credentials, caller, namespace)
        if offer.began < self._changed_before:
            return
        if any(self._changed.get(speaker, 0) > offer.began for speaker in answer.speakers):
            return
        if answer.whole is None:
            kept = self._answers.get(namespace, offer.question.key)
            if kept is not None and kept.etag == answer.etag:
                return
        self._answers.put(namespace, offer.question.key, answer)

    def kept(self, offer: Offer, caller: Caller, namespace: str) -> Response | None:
        """Return the answer to a request if it is in memory, and grant its key the use of the lane."""
        if self._events.now() >= self._events.lease_ends or offer.question.method == HEAD:
            return None
        answer = self._answers.get(namespace, offer.question.key)
        found = None if answer is None else fitting(answer, offer.question)
        if found is None:
            return None
        if offer.began >= self._keys_changed:
            self._grant(offer.question.credentials, caller, namespace)
        return response(*found)

    def _grant(self, credentials: Credentials, caller: Caller, namespace: str) -> None:
        seconds = _GRANT_SECONDS
        if caller.ends_at is not None:
            seconds = min(seconds, caller.ends_at - time.time())
        if credentials not in self._grants:
            self._grant_bytes += _GRANT_BYTES + sum(len(one) for one in credentials if one is not None)
            if self._grant_bytes > _MAX_GRANT_BYTES:
                self._drop_grants()
                return
        taking = self._rates.taking(self._rates.limits_for(caller, namespace, REQUESTS))
        now = self._events.now()
        self._grants[credentials] = _Grant(namespace, now + seconds, now + seconds / 2, taking)

    def _drop_grants(self) -> None:
        self._grants.clear()
        self._grant_bytes = 0

    # -- requests

    def wants_body(self, method: bytes, target: bytes) -> bool:
        """Return whether a request like this one may be answered from memory once its body has arrived."""
        return wants_body(method, target)

    def question(
        self, method: bytes, target: bytes, headers: Headers, body: bytes | None = None
    ) -> Question | None:
        """Return the parsed question of a request, or None if it takes the ordinary way. See
        `question_of`.
        """
        return question_of(method, target, headers, body, local=self._local)

    def remember(self, head: bytes, question: Question) -> None:
        """Cache the parsed form of a head under its exact bytes."""
        if question.request_id is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[head] = question

    def recall(self, head: bytes) -> Question | None:
        """Return the cached parsed form of a head with exactly these bytes, or None."""
        return self._heads.get(head)

    def answer(
        self, question: Question, default_headers: Headers
    ) -> tuple[bytes, bytes | memoryview] | Offer | None:
        """Return the answer to a request as its head and body.

        Returns an `Offer` if the request takes the ordinary way and its answer may be kept, and None if it
        takes the ordinary way.

        Args:
            default_headers: headers of every answer, including the date.
        """
        began = perf_counter()
        grant = self._grants.get(question.credentials)
        now = self._events.now()
        if grant is not None and now < self._events.lease_ends and grant.holds(now):
            prepared = self._answers.get(grant.namespace, question.key)
            if prepared is not None:
                found = fitting(prepared, question)
                if found is not None and (taken := grant.taking.take()) is not None:
                    status, head, body = found
                    date, rate = self._date_lines(default_headers), rate_lines(*taken)
                    batch = _batch(
                        prepared.route, prepared.profiles[0], prepared.is_file, question.method, status
                    )
                    batch.count += 1
                    batch.seconds += perf_counter() - began
                    return b"".join((head, date, rate, self._id_line(question.request_id))), body
        return None if tracing.is_on() else Offer(lane=self, question=question, began=self._heard)

    def _date_lines(self, default_headers: Headers) -> bytes:
        if self._date[0] is not default_headers:
            self._date = (default_headers, lines_of(default_headers))
        return self._date[1]

    def _id_line(self, given: bytes | None) -> bytes:
        if given is None or not is_request_id(given):
            return b"x-request-id: %s%08x\r\n\r\n" % (self._id_prefix, next(self._ids))
        return b"x-request-id: %s\r\n\r\n" % given


@cache  # bounded by routes, profiles and statuses; evicting a batch would lose its counts
def _batch(route: str, profile: str, is_file: bool, method: bytes, status: int) -> Batch:
    """Return the batch that counts the answers with these labels."""
    counter, histogram = metrics_of(route, method.decode(), status)
    if not is_file:
        return Batch([counter], histogram)
    result = "not_modified" if status == 304 else "hit"
    return Batch([counter, ARTIFACT_REQUESTS.labels(profile, result)], histogram)
