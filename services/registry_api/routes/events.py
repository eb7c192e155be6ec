"""The route of events, which streams changes to listeners as server-sent events."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import ExitStack
from typing import Annotated, Any

from fastapi import Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.registry_api.access.rules import VOICES_READ, caller_of_now
from services.registry_api.dependencies import CallerDep, NamespaceDep, ServicesDep, parts_of, speaker_named
from services.registry_api.protocol.callers import Caller
from services.registry_api.serving.event_feed import Listener, StreamPosition, parse_position
from services.registry_api.serving.event_stream import Event
from services.registry_api.serving.hanging_up import noticing
from services.registry_api.wire import events as wire
from services.registry_api.wire.documented import DocumentedRouter
from services.shared.telemetry.metrics import EVENT_RESETS, EVENTS_SENT
from services.shared.view.redis_access import unavailable_without_redis
from speaker_registry.errors import InvalidRequest, PermissionDenied

router = DocumentedRouter(prefix="/v1/events", tags=["events"])

_RETRY_MILLISECONDS = 2000
_CLOSING_SECONDS = 0.5
"""A stream that is looking up its key notices within this time that the process is stopping."""
_AFTER_END_SECONDS = 0.01
"""A stream looks this long after its key ends whether it has ended. A timer may fire a little early, and the
stream would then send comments one after another until the end.
"""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_OF_JOBS = frozenset({"jobs:read", "engine"})
"""A key needs one of these scopes to receive events of jobs."""


@router.get("", response_class=Response, dependencies=[VOICES_READ])
async def listen_to_events(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    caller: CallerDep,
    types: Annotated[
        str | None, Query(max_length=512, description="Only events of these types, separated by commas.")
    ] = None,
    voice: Annotated[str | None, Query(max_length=512, description="Only events of this voice.")] = None,
    profile: Annotated[
        str | None, Query(max_length=128, description="Only events of this profile, and of all profiles.")
    ] = None,
    after: Annotated[
        str | None, Query(max_length=128, description="Like `Last-Event-ID`, for clients without headers.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(max_length=128, description="The `id` of the last event that the client has.")
    ] = None,
) -> Response:
    """Listen to what changes, as server-sent events.

    Events come in order, each at least once. A client that names the `id` of the last event that it received
    gets the events after that one. If some of these are missing, because they are too old or the view was
    rebuilt, `reset` comes first, and the client then requests again whatever it holds. A comment comes every
    15 seconds.
    """
    speaker = None
    if voice is not None:
        speaker = str(await run_in_threadpool(speaker_named, services, caller, namespace, voice))
    if profile is not None:
        services.profiles.get(profile)
    wants = wire.filter_of(namespace, _wanted_types(types, caller), speaker, profile)
    position = _position_of(last_event_id or after)
    if request.method == "HEAD":
        return Response(headers=_HEADERS, media_type="text/event-stream")
    stream = _Stream(request, caller)
    try:
        await stream.begin(namespace, wants, position)
    except BaseException:
        stream.end()
        raise
    return stream


def _wanted_types(types: str | None, caller: Caller) -> frozenset[str]:
    hears_of_jobs = not caller.scopes.isdisjoint(_OF_JOBS)
    if types is None:
        return frozenset(wire.TYPES) if hears_of_jobs else frozenset(wire.TYPES) - {wire.JOB_UPDATED}
    wanted = frozenset(one.strip() for one in types.split(","))
    if unknown := sorted(wanted - set(wire.TYPES)):
        raise InvalidRequest(
            f"There are no events of type {unknown[0]!a}; accepted: {', '.join(wire.TYPES)}.",
            param="types",
        )
    if wire.JOB_UPDATED in wanted and not hears_of_jobs:
        raise PermissionDenied(
            f"This API key may not receive events of jobs; needed: {' or '.join(sorted(_OF_JOBS))}.",
            param="types",
        )
    return wanted


def _position_of(text: str | None) -> StreamPosition | None:
    if not text:
        return None
    position = parse_position(text)
    if position is None:
        raise InvalidRequest(
            f"The event id {text!a} does not belong to this registry; accepted: the id of an event it sent, "
            "three parts joined by '-'.",
            param="Last-Event-ID",
        )
    return position


class _Stream(Response):
    """The answer to a listener. It ends when the listener hangs up, its key ends, or the process stops."""

    def __init__(self, request: Request, caller: Caller) -> None:
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._request = request
        parts = parts_of(request)
        self._services = parts.services
        self._caller = caller
        self._key_changes: int = request.scope["key_changes"]
        """The number of the last change of keys that the check of the listener's key took into account."""
        self._feed, self._frames = parts.event_feed, parts.event_frames
        self._heartbeat_seconds = parts.heartbeat_seconds
        self._held = ExitStack()
        self._listener: Listener
        self._pending: list[bytes] = []
        """This is sent to the listener first."""

    async def begin(
        self, namespace: str, wants: Callable[[Event], bool], position: StreamPosition | None
    ) -> None:
        """Register a listener, and read the events that it missed. `end` removes the listener.

        Raises:
            RateLimited, Unavailable.
        """
        self._held.enter_context(self._services.access.waiting_requests.hold(self._caller, namespace))
        self._listener = self._held.enter_context(self._feed.listen(wants))
        self._pending = [wire.render_begin(position or self._feed.position, _RETRY_MILLISECONDS)]
        if position is None:
            return
        with unavailable_without_redis():
            missed = await self._feed.catch_up(self._listener, position)
        self._pending.append(self._rendered((event for event in missed if wants(event)), wire.render))

    def end(self) -> None:
        self._held.close()

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            async with noticing(receive) as hanging_up:
                # The listener's place is then free for the next connection.
                hanging_up.add_done_callback(lambda _: self._listener.wake())
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for chunk in self._chunks(hanging_up):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self.end()

    async def _chunks(self, hanging_up: "asyncio.Task[None]") -> AsyncIterator[bytes]:
        while not (await self._is_over() or hanging_up.done()):
            if self._listener.has_missed_events:
                self._listener.has_missed_events = False
                self._pending.append(self._reset())
            if events := self._listener.take():
                self._pending.append(self._rendered(events, self._frames.render))
            if self._pending:
                chunk, self._pending = b"".join(self._pending), []
                yield chunk
            try:
                await self._listener.wait(self._seconds_to_wait())
            except TimeoutError:
                self._pending.append(wire.HEARTBEAT)

    def _seconds_to_wait(self) -> float:
        heartbeat, ends_at = self._heartbeat_seconds, self._caller.ends_at
        if ends_at is None:
            return heartbeat
        return min(heartbeat, max(0.0, ends_at - time.time()) + _AFTER_END_SECONDS)

    def _rendered(self, events: Iterable[Event], render: Callable[[Event, StreamPosition], bytes]) -> bytes:
        generation = self._feed.position.generation
        frames = [render(event, StreamPosition(generation, event["id"])) for event in events]
        EVENTS_SENT.inc(len(frames))
        return b"".join(frames)

    def _reset(self) -> bytes:
        EVENT_RESETS.inc()
        return wire.render_reset(self._feed.position)

    async def _is_over(self) -> bool:
        """Return whether the key has ended or the process stops. Nothing is sent while the key is checked,
        and it is checked again if keys change meanwhile.
        """
        access, closing = self._services.access, self._services.long_polls.closing
        is_known = not self._caller.has_ended(time.time())
        while not (closing() or (is_known and access.key_changes == self._key_changes)):
            self._key_changes = access.key_changes
            found = await self._until_closing(caller_of_now(access, self._request.scope))
            if found is None:
                return True
            self._caller, is_known = found, True
        return closing()

    async def _until_closing(self, lookup: Coroutine[Any, Any, Caller | None]) -> Caller | None:
        """Return the result of a look-up of the key, or None if the process stops first. While the bucket
        does not answer, a look-up may take longer than the process may take to stop.
        """
        looking_up, closing = asyncio.create_task(lookup), self._services.long_polls.closing
        try:
            while not (looking_up.done() or closing()):
                await asyncio.wait({looking_up}, timeout=_CLOSING_SECONDS)
            return looking_up.result() if looking_up.done() else None
        finally:
            looking_up.cancel()
