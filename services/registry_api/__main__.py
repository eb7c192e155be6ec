"""`python -m services.registry_api`: the API process. Builds what `wiring.Services` names and serves it.

`python -m services.registry_api new-key --out FILE` makes an API key, for SPEAKER_AUTH_BOOTSTRAP_KEY_FILE.
"""

import argparse
import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog
import uvicorn
from pydantic import ValidationError

from services.registry_api.access.authentication import NoWayIn, open_access
from services.registry_api.app import create_app
from services.registry_api.dependencies import Services
from services.registry_api.maintenance.housekeeping import Housekeeper
from services.registry_api.maintenance.queue_signals import RedisSignals
from services.registry_api.operations.followed_jobs import FollowedJobs
from services.registry_api.serving.long_polls import Changes
from services.registry_api.serving.open_files import room_for
from services.registry_api.serving.server import server_config
from services.shared.audio import AudioDecoder
from services.shared.bucket.store import StoreUnfit
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.settings import (
    AccessSettings,
    ApiSettings,
    HousekeepingSettings,
    LogSettings,
    MetricsSettings,
    RateSettings,
    RegistrySettings,
    StoreSettings,
    TracesSettings,
    UploadLimits,
    explain,
)
from services.shared.keys.api_keys import new_token
from services.shared.keys.key_file import write_new_key
from services.shared.registry.opening import open_queue_connection, open_registrar
from services.shared.telemetry import metrics, trace_export
from services.shared.telemetry.logs import configure_logs
from services.shared.telemetry.trace_export import TracesUnavailable
from speaker_registry.errors import SpeakerRegistryError

log = structlog.get_logger()

_SWITCH_SECONDS = 0.0005
"""How long a thread that computes may keep the interpreter while others want it. A request goes from the
event loop to a thread and back several times, and each time waits for all threads that compute. Beside two of
them, four round trips took 50 ms with Python's default of 5 ms and take 10 ms with this; the two get as much
done.
"""


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, or carry out the command that the arguments name.

    Returns the exit status: 0 when it was told to stop, 1 if it could not start, 2 for wrong arguments.
    """
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as end:  # after --help, and for wrong arguments
        return int(end.code or 0)
    if given.command == "new-key":
        return _new_key(given.out)
    configure_logs()
    try:
        configure_logs(LogSettings().level)
        warn_of_unknown_variables()
        return _serve()
    except ValidationError as error:
        log.error("api.cannot_start", reason=explain(error))
        return 1
    except (SpeakerRegistryError, StoreUnfit, NoWayIn, metrics.CannotListen, TracesUnavailable) as error:
        log.error("api.cannot_start", reason=str(error))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m services.registry_api",
        description="Serve the registry's API. docs/settings.md lists the environment variables.",
        allow_abbrev=False,
    )
    explanation = "Make an API key with all rights, to make others with."
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    new_key = commands.add_parser("new-key", help=explanation, description=explanation, allow_abbrev=False)
    new_key.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write it to a new file that only its owner can read; without it, the key is printed",
    )
    return parser


def _new_key(path: Path | None) -> int:
    """Returns the exit status: 1 if the file cannot be written, or is there already."""
    if path is None:
        print(new_token())
        return 0
    try:
        write_new_key(path)
    except FileExistsError:
        print(f"new-key: {path} is there already; it is left as it is", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"new-key: {path}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"new-key: wrote {path}", file=sys.stderr)
    return 0


def _serve() -> int:
    settings, registry, limits = _within_open_files(ApiSettings()), RegistrySettings(), UploadLimits()
    registrar = open_registrar(StoreSettings(), registry)
    metrics.REGISTRY.register(RedisSignals(registrar, open_queue_connection(registry)))
    metrics.listen(MetricsSettings())
    trace_export.start(TracesSettings(), "api")
    with AudioDecoder(limits) as decoder:
        services = Services(
            registrar=registrar,
            jobs=FollowedJobs(registrar),
            decoder=decoder,
            changes=Changes(registry.redis_address, registrar.seen_jobs.hear),
            housekeeper=Housekeeper(registrar, HousekeepingSettings()),
            limits=limits,
            access=open_access(settings, AccessSettings(), RateSettings(), registrar),
        )
        app = create_app(
            services,
            max_active=settings.max_active,
            max_at_store=settings.max_at_store,
            cors_origins=settings.cors_origins,
        )
        server = uvicorn.Server(server_config(app, settings))
        services.changes.closing = lambda: server.should_exit
        for number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn raises a signal again when it has served it; the system's handler would then kill us.
            signal.signal(number, server.handle_exit)
        # What is here by now stays: looking through it for garbage again and again would stop all requests.
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(_SWITCH_SECONDS)
        server.run()
    trace_export.stop()
    return 0 if server.started else 1


def _within_open_files(settings: ApiSettings) -> ApiSettings:
    """What is promised beyond them would be refused by the system, and without a word."""
    room = room_for(settings.max_connections)
    if room < settings.max_connections:
        log.warning(
            "api.fewer_connections", wanted=settings.max_connections, possible=room, limit="open files"
        )
    return settings.model_copy(update={"max_connections": room})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
