"""The use of the express lane by one connection: which requests the lane is asked to answer, and when it may
do so. This module knows neither what the lane answers nor how requests are parsed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from starlette.types import Message
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from services.registry_api.serving.client_limits import Pace
from services.registry_api.serving.lingering import LingeringTransport

_MAX_HELD_BYTES = 65_536
"""The lane waits for bodies of up to this size, and only if they come in one read with their heads."""
_MAX_REMEMBERED_BYTES = 1024
"""A longer request is parsed each time."""
ANSWERED = object()

Headers = Sequence[tuple[bytes, bytes]]


class Offer(Protocol):
    """A request whose answer may be kept. It observes the application's answer."""

    def observe_message(self, message: Message) -> None: ...


class Lane(Protocol):
    """Answers some requests without the application."""

    def wants_body(self, method: bytes, target: bytes) -> bool: ...

    def question(self, method: bytes, target: bytes, headers: Headers, body: bytes | None = None) -> Any: ...

    def remember(self, head: bytes, question: Any) -> None: ...

    def recall(self, head: bytes) -> Any: ...

    def answer(
        self, question: Any, default_headers: Headers
    ) -> tuple[bytes, bytes | memoryview] | Offer | None: ...


class LaneAccess:
    """Lets the lane answer requests of one connection.

    Args:
        is_answered: returns whether every earlier request has been answered. The lane must not overtake an
            earlier answer.
    """

    def __init__(
        self,
        lane: Lane,
        transport: LingeringTransport,
        server_state: ServerState,
        pace: Pace,
        is_answered: Callable[[], bool],
    ) -> None:
        self._lane = lane
        self._transport = transport
        self._server_state = server_state
        self._pace = pace
        self._is_answered = is_answered
        self._question: Any = None
        """The question that the lane was asked last."""
        self._offer: Offer | None = None
        """The lane's offer for the request that is about to be parsed. The lane is not asked twice."""

    def answer_again(self, data: bytes) -> bool:
        """Answer a request whose bytes equal those of an earlier one, without parsing it. Returns whether it
        was answered.
        """
        question = self._lane.recall(data)
        if question is None or not self._is_open():
            return False
        answer = self._answer(question)
        if answer is ANSWERED:
            return True
        self._offer = answer
        return False

    def remember(self, data: bytes) -> None:
        """Remember the bytes of a request without a body that the lane has just answered."""
        if len(data) <= _MAX_REMEMBERED_BYTES:
            self._lane.remember(data, self._question)

    def waits_for_body(self, request: HttpToolsProtocol, length: int) -> bool:
        """Return whether `ask` must wait for the body of a request, which has `length` bytes."""
        if not self._lane.wants_body(request.parser.get_method(), request.url):
            return False
        return 0 < length <= _MAX_HELD_BYTES and not request.expect_100_continue

    def ask(self, request: HttpToolsProtocol, body: bytes | None, *, stays_open: bool) -> Any:
        """Answer the request that was parsed. Returns `ANSWERED`, an offer for another answer to it, or None.

        Args:
            stays_open: whether the connection stays open after the answer. Otherwise the lane is not asked.
        """
        if self._offer is not None:
            offer, self._offer = self._offer, None
            return offer
        if not stays_open or not self._is_open():
            return None
        self._question = self._lane.question(request.parser.get_method(), request.url, request.headers, body)
        return None if self._question is None else self._answer(self._question)

    def _is_open(self) -> bool:
        """Return whether an answer of the lane would be the next one, and would not wait behind others."""
        return self._is_answered() and self._transport.get_write_buffer_size() <= HIGH_WATER_LIMIT

    def _answer(self, question: Any) -> Any:
        """Return `ANSWERED` if the lane answers, else its offer or None."""
        answer = self._lane.answer(question, self._server_state.default_headers)
        if not isinstance(answer, tuple):
            return answer
        self._transport.write_both(*answer)
        self._pace.answers += 1
        self._server_state.total_requests += 1
        return ANSWERED
