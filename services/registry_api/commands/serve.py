"""`serve`: build the objects in `dependencies.Services`, and run the server until it is stopped."""

import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from services.registry_api.access.authentication import AccessMisconfigured, open_access
from services.registry_api.app import create_app
from services.registry_api.campaigns.control import Campaigns
from services.registry_api.commands.wiring import campaigns_of, events_of, keys_of
from services.registry_api.dependencies import Services
from services.registry_api.keys.forget import sweep
from services.registry_api.keys.key_uses import KeyUses
from services.registry_api.maintenance.housekeeping import Housekeeping
from services.registry_api.maintenance.queue_signals import RedisSignals
from services.registry_api.serving.garbage import keep_collections_short
from services.registry_api.serving.open_files import TooFewFiles, raise_limit_for
from services.registry_api.serving.server import server_config
from services.shared.audio import AudioDecoder
from services.shared.bucket.connection import StoreUnfit
from services.shared.configuration.access import AccessSettings, RateSettings
from services.shared.configuration.api import ApiSettings, HousekeepingSettings
from services.shared.configuration.explanation import explain
from services.shared.configuration.listening import CannotListen, why_not_listening
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.configuration.telemetry import LogSettings, MetricsSettings, TracesSettings
from services.shared.configuration.uploads import UploadLimits
from services.shared.model.ending import end_process
from services.shared.model.threads import is_thread_refused
from services.shared.registry.opened import Opened
from services.shared.registry.opening import open_queue_connection, open_registry
from services.shared.telemetry import metrics, trace_export
from services.shared.telemetry.logs import configure_logs
from services.shared.telemetry.trace_export import TracesUnavailable
from speaker_registry.errors import SpeakerRegistryError

log = structlog.get_logger()

_SWITCH_SECONDS = 0.0005
"""The time for which a computing thread may keep the interpreter while other threads wait for it. A request
passes from the event loop to a thread and back several times, and each time waits for all computing threads.
Next to two of them, four round trips took 50 ms with Python's default of 5 ms and take 10 ms with this value;
the two threads get as much done.
"""


def run() -> int:
    """Serve until SIGTERM or SIGINT, and end the process then. Return the exit status, 1, if it could not
    start.
    """
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        _serve()
    except ValidationError as error:
        log.error("api.cannot_start", reason=explain(error))
        return 1
    except (
        SpeakerRegistryError,
        StoreUnfit,
        AccessMisconfigured,
        CannotListen,
        TracesUnavailable,
        TooFewFiles,
    ) as error:
        log.error("api.cannot_start", reason=str(error))
        return 1
    except RuntimeError as error:
        if not is_thread_refused(error):
            raise
        log.error("api.cannot_start", reason="The system refuses to start a thread that this process needs.")
        return 1


def _serve() -> NoReturn:
    settings, registry, limits = _within_open_files(ApiSettings()), RegistrySettings(), UploadLimits()
    housekeeping = HousekeepingSettings()
    opened = open_registry(StoreSettings(), registry)
    keys, key_uses = keys_of(opened), KeyUses(opened.generation, opened.clock)
    campaigns = campaigns_of(opened)
    metrics.REGISTRY.register(_signals(opened, campaigns))
    metrics.show_jobs(opened.catalogue.names, metrics.REAPED)
    metrics.listen(MetricsSettings())
    trace_export.start(TracesSettings(), "api")
    with AudioDecoder(limits) as decoder:
        redis = opened.generation.plain
        services = Services(
            **opened.by_name(),
            keys=keys,
            key_uses=key_uses,
            decoder=decoder,
            events=events_of(opened),
            housekeeping=_housekeeping(opened, housekeeping, campaigns, partial(sweep, keys, key_uses)),
            campaigns=campaigns,
            limits=limits,
            access=open_access(settings, AccessSettings(), RateSettings(), keys, key_uses, redis),
            deleted_grace_seconds=housekeeping.deleted_grace_seconds,
        )
        app = _app(services, settings)
        server = uvicorn.Server(server_config(app, settings, lane=app.state.parts.lane))
        services.long_polls.closing = lambda: server.should_exit
        _run(server)
    trace_export.stop()
    # Python would wait for the threads of canceled requests, and of housekeeping, until a bucket that does
    # not answer has used up all of its retries. A supervisor would kill the process before.
    end_process(0 if server.started else 1)


def _signals(opened: Opened, campaigns: Campaigns) -> RedisSignals:
    """Return the collector of the metrics of queues, workers and campaigns."""
    return RedisSignals(
        opened.speakers.view,
        opened.profile_records,
        opened.workers,
        opened.catalogue,
        open_queue_connection(opened.settings),
        campaigns.signals,
    )


def _housekeeping(
    opened: Opened, settings: HousekeepingSettings, campaigns: Campaigns, sweep_keys: Callable[[], object]
) -> Housekeeping:
    return Housekeeping(
        store=opened.store,
        speakers=opened.speakers,
        blobs=opened.blobs,
        jobs=opened.jobs,
        profiles=opened.profiles,
        records=opened.profile_records,
        settings=settings,
        sweep_keys=sweep_keys,
        forget_voice=campaigns.forget_voice,
    )


def _app(services: Services, settings: ApiSettings) -> FastAPI:
    return create_app(
        services,
        max_active=settings.max_active,
        max_at_store=settings.max_at_store,
        kept_bytes=settings.kept_bytes,
        kept_answers=settings.kept_answers,
        redirect_seconds=settings.redirect_seconds,
        cors_origins=settings.cors_origins,
    )


def _run(server: uvicorn.Server) -> None:
    """Serve until the server is told to stop, or return at once if the application cannot start, which
    uvicorn logs.

    Raises:
        CannotListen: the host or the port cannot be used.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises a signal again after handling it; the default handler would kill us.
        signal.signal(number, server.handle_exit)
    keep_collections_short()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        server.run()
    except SystemExit as end:
        # If the port cannot be opened, uvicorn raises this while it handles the error.
        if isinstance(error := end.__context__, OSError):
            reason = why_not_listening(error, server.config.host, server.config.port, "SPEAKER_API_")
            raise CannotListen(reason) from None


def _within_open_files(settings: ApiSettings) -> ApiSettings:
    """Lower `max_connections` to what the limit on open files allows, with a warning.

    Beyond that limit, the operating system refuses connections without any log line.
    """
    room = raise_limit_for(settings.max_connections)
    if room < settings.max_connections:
        log.warning(
            "api.fewer_connections", wanted=settings.max_connections, possible=room, limit="open files"
        )
    return settings.model_copy(update={"max_connections": room})
