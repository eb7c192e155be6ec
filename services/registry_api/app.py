"""The ASGI application: routes and middleware over services that its caller has built."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from services.registry_api.access.key_first import KeyFirst
from services.registry_api.access.local import LocalOnly
from services.registry_api.access.rules import access_of, check_rules, tenant_of, without_security
from services.registry_api.dependencies import Parts, Services
from services.registry_api.express.lane import ExpressLane
from services.registry_api.express.prepared import PreparedAnswers
from services.registry_api.keys.seal import Seal
from services.registry_api.pages.activity import Activity
from services.registry_api.pages.failures import Failures
from services.registry_api.pages.live import KeptRegionsFirst
from services.registry_api.pages.parts import PageParts
from services.registry_api.pages.routes import page_routes
from services.registry_api.pages.sessions import PageSessions
from services.registry_api.pages.situation import Situation
from services.registry_api.protocol import error_answers
from services.registry_api.protocol.headers import AnswerHeaders
from services.registry_api.protocol.routing import TrailingSlashes
from services.registry_api.protocol.signals import RequestSignals
from services.registry_api.routes import (
    aliases,
    artifacts,
    audio_voices,
    blobs,
    campaigns,
    clips,
    events,
    health,
    jobs,
    keys,
    manifests,
    pictures,
    profiles,
    registration,
    resolve,
    voices,
)
from services.registry_api.serving.admission import LoadShedding
from services.registry_api.serving.compression import JsonCompression
from services.registry_api.serving.concurrency_limits import ByteBudget
from services.registry_api.serving.event_feed import EventFeed, Frames
from services.registry_api.serving.fair_queue import FairQueue
from services.registry_api.serving.limits import BodyTimeouts, RequestIds, RequestLimits
from services.registry_api.serving.readiness import Readiness
from services.registry_api.serving.recheck import check_before_commit
from services.registry_api.serving.server_errors import ServerErrors
from services.registry_api.serving.slots import Slots
from services.registry_api.serving.unfinished import UnfinishedRequests
from services.registry_api.wire.answers import SENDING_BYTES
from services.registry_api.wire.documented import responses, with_headers
from services.registry_api.wire.events import render
from services.registry_api.wire.forms import FORM_BYTES
from services.shared.audio import decoder
from services.shared.configuration.uploads import UploadLimits
from services.shared.view.generation import WATCHING
from speaker_registry import __version__
from speaker_registry.errors import SpeakerRegistryError, VoiceNotFound

_BODY_TIMEOUTS = BodyTimeouts()
_STORE_WAIT_SECONDS = 5
_SEARCH_WAIT_SECONDS = 5
_TOO_MANY_SEARCHES = "Too many searches at once on this server. Search again in a moment."
_HEARTBEAT_SECONDS = 15.0
_CHECK_SECONDS = 0.5
"""Listeners to events are woken this long after a key has changed or the process began to stop."""
_LAST_SECONDS = 3.0
"""Threads that were told to stop may finish their work for this long."""
_OTHER_THREADS = 16
"""Threads for reading keys, health checks and metrics."""


def create_app(
    services: Services,
    *,
    max_active: int,
    max_at_store: int,
    kept_bytes: int,
    kept_answers: int,
    redirect_seconds: int = 0,
    heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    body_timeouts: BodyTimeouts = _BODY_TIMEOUTS,
    cors_origins: Sequence[str] = (),
) -> FastAPI:
    """Build the application. While it runs, it follows the event stream and does the housekeeping.

    Args:
        services: the services that the routes use.
        max_active: how many requests may be active at once.
        max_at_store: how many requests may use the bucket at once.
        kept_bytes: how many bytes the answers in memory may take.
        kept_answers: how many answers may be kept in memory.
        redirect_seconds: how long the addresses in the bucket are valid to which clients are redirected on
            request. 0 turns redirects off.
        heartbeat_seconds: a listener is sent a comment after this time without an event.
        body_timeouts: how slowly the body of a request may arrive.
        cors_origins: origins of the web pages that may call the API from a browser.
    """
    uploads, store = _upload_slots(services.limits), _store_slots(max_at_store)
    threads = max_active + uploads.count + store.count + _OTHER_THREADS
    server_errors, records = ServerErrors(services.generation, services.clock), services.jobs.records
    share = SENDING_BYTES // 2 if services.access.required else None
    parts = PageParts(
        services=services,
        server_errors=server_errors,
        lane=_express_lane(services, PreparedAnswers(kept_bytes, kept_answers)),
        event_feed=EventFeed(services.events),
        event_frames=Frames(render),
        heartbeat_seconds=heartbeat_seconds,
        sending=ByteBudget("files that are being sent", SENDING_BYTES, of_namespace=share),
        redirect_seconds=redirect_seconds,
        readiness=Readiness(services.store, services.generation, services.profiles),
        seal=Seal(services.generation),
        upload_slots=uploads,
        store_slots=store,
        search_slots=Slots(1, wait_seconds=_SEARCH_WAIT_SECONDS, refusal=_TOO_MANY_SEARCHES),
        whole_lists=FairQueue(1),
        # Several threads that compute for long would slow all other requests, and get no more done together.
        large_resolves=FairQueue(1),
        situation=Situation(services),
        activity=Activity(records, server_errors, records.now),
        failures=Failures(records, services.profiles.names, records.now),
    )
    app = _bare_app(lambda _: _lifespan(parts, threads))
    app.state.parts = parts
    services.speakers.reading_bucket = store.hold_in_thread
    services.keys.reading_bucket = store.hold_in_thread
    services.speakers.before_commit = services.shared.before_commit = check_before_commit
    services.jobs.before_open = check_before_commit
    error_answers.add_handlers(app, _note_unknown_name)
    _add_routes(app, services)
    _add_middleware(app, parts, max_active, body_timeouts, cors_origins)
    return app


def _note_unknown_name(request: Request, error: SpeakerRegistryError) -> None:
    """Count a name without a voice against the key that asked for it."""
    if isinstance(error, VoiceNotFound) and "caller" in request.scope:
        name = request.path_params.get("name") or ""
        access_of(request).unknown_names.note(request.scope["caller"], name)


def api_document() -> dict[str, Any]:
    """Return the OpenAPI document of a registry with API keys, without a registry: nothing is opened."""
    app = _bare_app()
    app.router.routes.extend(_api())
    return app.openapi()


def _bare_app(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None) -> FastAPI:
    """Return an application without the registry's routes."""
    app = FastAPIOffline(  # the page of documentation loads nothing from other servers
        title="Speaker registry",
        version=__version__,
        description="Register a voice once; fetch its artifact for every TTS engine.",
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,  # FastAPI would redirect to the Host header: see `TrailingSlashes`
        # FastAPI's own traces hold paths and queries, and so voice names. `signals` makes ours.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    for route in app.routes:
        if isinstance(route, APIRoute):  # the documentation page, since our own routers add HEAD
            route.methods = {"GET", "HEAD"}
    described = app.openapi
    app.openapi = lambda: with_headers(described())  # type: ignore[method-assign]
    return app


def _add_middleware(
    app: FastAPI,
    parts: Parts,
    max_active: int,
    body_timeouts: BodyTimeouts,
    cors_origins: Sequence[str],
) -> None:
    """Add the middleware. Middleware that is added later sees a request earlier."""
    services = parts.services
    app.add_middleware(JsonCompression)
    app.add_middleware(
        RequestLimits,
        uploads=services.limits,
        form_bytes=FORM_BYTES,
        body_timeouts=body_timeouts,
        arriving=services.access.arriving_uploads,
        shared=services.access.required,
    )
    app.add_middleware(KeyFirst, access=services.access)
    # This is outside the limits, which would refuse an upload to the path with a slash as too large.
    app.add_middleware(TrailingSlashes, routes=lambda: app.routes)
    app.add_middleware(LoadShedding, max_active=max_active, tenant_of=partial(tenant_of, services.access))
    app.add_middleware(KeptRegionsFirst)
    if not services.access.required:
        app.add_middleware(LocalOnly, origins=cors_origins)
    # This is outside everything that looks for a key, because it moves the key to where programs send it.
    app.add_middleware(PageSessions, seal=parts.seal)
    app.add_middleware(UnfinishedRequests)
    _allow_web_pages(app, cors_origins)
    # This is outside all middleware that may refuse a request, so that refusals carry the same headers.
    app.add_middleware(AnswerHeaders)
    app.add_middleware(RequestSignals, note_error=parts.server_errors.note)
    app.add_middleware(RequestIds)


@asynccontextmanager
async def _lifespan(parts: Parts, threads: int) -> AsyncIterator[None]:
    services = parts.services
    to_thread.current_default_thread_limiter().total_tokens = threads
    following = asyncio.create_task(services.events.follow())
    waking = asyncio.create_task(_wake_listeners(parts))
    stop = threading.Event()
    threads_of_ours = _start_threads(services, parts.server_errors, stop)
    yield
    stop.set()
    following.cancel()
    waking.cancel()
    ends = [asyncio.to_thread(thread.join, _LAST_SECONDS) for thread in threads_of_ours]
    await asyncio.gather(following, waking, *ends, return_exceptions=True)
    services.keys.listings.close()


async def _wake_listeners(parts: Parts) -> None:
    """Wake the listeners to events when keys have changed, with or without an event. Also wake them when the
    process stops, because the server waits for them before it ends.
    """
    access, feed = parts.services.access, parts.event_feed
    changes = access.key_changes
    while not parts.services.long_polls.closing():
        await asyncio.sleep(_CHECK_SECONDS)
        access.list_keys_if_due()
        if access.key_changes != changes:
            changes = access.key_changes
            feed.wake()
    feed.wake()


def _express_lane(services: Services, answers: PreparedAnswers) -> ExpressLane:
    """Subscribe everything that caches data to events, and return the express lane."""
    events, keys, records = services.events, services.keys, services.profile_records
    events.subscribe(services.jobs.seen.on_event)
    events.subscribe(services.long_polls.on_event, services.long_polls.events_missed)
    events.subscribe(keys.on_event, keys.events_missed)
    events.subscribe(records.on_event, records.clear_cache)
    # The lane comes last, so that it cannot cache an answer from data that the others have yet to drop.
    return ExpressLane(events, services.access.rate_limits, answers, local=not services.access.required)


def _upload_slots(limits: UploadLimits) -> Slots:
    """Return the slots for uploads: two for each decoder, which keeps it busy. Waiting uploads hold their
    clips in memory.
    """
    return Slots(
        2 * limits.decoders,
        wait_seconds=decoder.WAIT_SECONDS,
        refusal="Too many uploads at once on this server. Send the upload again in a moment.",
    )


def _store_slots(many: int) -> Slots:
    return Slots(
        many,
        wait_seconds=_STORE_WAIT_SECONDS,
        refusal=f"{many} requests wait for the bucket already, and it is slow. Try again in a moment.",
    )


@cache
def _api() -> Sequence[BaseRoute]:
    """Return the routes of the API. All applications of a process have the same ones, because FastAPI takes a
    quarter of a second to build them.
    """
    api = APIRouter(
        generate_unique_id_function=lambda route: route.name  # names methods of generated clients
    )
    api.include_router(audio_voices.router, responses=responses("refused_compatible"))
    for module in (
        voices,
        aliases,
        registration,
        clips,
        pictures,
        artifacts,
        blobs,
        resolve,
        manifests,
        events,
        jobs,
        profiles,
        campaigns,
        keys,
    ):
        api.include_router(module.router, responses=responses("refused"))
    api.include_router(health.router)
    return api.routes


def _add_routes(app: FastAPI, services: Services) -> None:
    app.router.routes.extend(_api())
    app.router.routes.extend(page_routes())
    check_rules(app)
    if not services.access.required:
        documented = app.openapi
        # FastAPI's manual replaces the method as well. The document is created on the first request for it,
        # because that takes longer than the rest of the start.
        app.openapi = lambda: without_security(documented())  # type: ignore[method-assign]


def _allow_web_pages(app: FastAPI, origins: Sequence[str]) -> None:
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"],
            allow_headers=["*"],
            expose_headers=["*"],
        )


def _start_threads(
    services: Services, server_errors: ServerErrors, stop: threading.Event
) -> list[threading.Thread]:
    """Start the threads of the view, of counted errors, of the use of keys, of housekeeping and of campaigns.
    They end soon after `stop` is set.
    """
    work = {
        WATCHING: services.generation.run,
        "server-errors": server_errors.run,
        "key-uses": services.key_uses.run,
    }
    if services.housekeeping is not None:
        work |= {"housekeeping": services.housekeeping.run, "campaigns": services.campaigns.runner.run}
    threads = [
        threading.Thread(target=run, args=(stop,), name=name, daemon=True) for name, run in work.items()
    ]
    for thread in threads:
        thread.start()
    return threads
