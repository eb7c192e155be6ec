"""The commands behind `make run` and `make demo`: their output, their exit status and their signals."""

import logging
import signal
import sys
from contextlib import suppress
from typing import Any

import structlog
from pydantic import ValidationError

from services.embedded.demo import demo
from services.embedded.log_lines import coloured, level, readable
from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import STOP_SECONDS, EmbeddedRegistry, StartFailed
from services.shared.configuration.explanation import explain
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.telemetry.logs import BestEffortLogger

_USAGE = "usage: python -m services.embedded run|demo"
_HELP = f"""{_USAGE}

The registry on this machine: the API, a worker and a Valkey server, with a folder as the bucket.

  run     keeps it running until Ctrl-C, as `make run` does
  demo    registers a voice, fetches its artifact and stops, as `make demo` does

The environment variables HOST, PORT, DATA, PROFILES, WEIGHTS and REDIS_URL configure it, and those of the API
and the worker. docs/settings.md lists all of them."""


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status."""
    commands = {"run": run, "demo": demo}
    if arguments in (["--help"], ["-h"]):
        print(_HELP)
        return 0
    if len(arguments) != 1 or arguments[0] not in commands:
        print(_USAGE, file=sys.stderr)
        return 2
    _configure_logs()
    try:
        _end_on_signals()
        warn_of_unknown_variables()
        return commands[arguments[0]](EmbeddedSettings())
    except ValidationError as error:
        print(explain(error), file=sys.stderr)
        return 2
    except StartFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def run(settings: EmbeddedSettings) -> int:
    """Run a registry until Ctrl-C or SIGTERM."""
    _print(f"starting (profiles: {settings.profiles}; weights: {settings.weights}) …")
    with EmbeddedRegistry(settings, show=logging.INFO) as registry:
        _print(_welcome(registry, settings))
        try:
            registry.watch()
        except KeyboardInterrupt:
            _print(_farewell())
    _print("stopped; the data is kept")
    return 0


def _print(text: str) -> None:
    """Print to standard output. Errors are ignored, because a full disk must not end the registry."""
    with suppress(OSError, ValueError):
        print(text, flush=True)


def _welcome(registry: EmbeddedRegistry, settings: EmbeddedSettings) -> str:
    url, data, clip = registry.url, settings.data.absolute(), "examples/clips/wren.flac"
    with_key = '-H "Authorization: Bearer $KEY" ' if registry.api_key else ""
    file = f"{url}/v1/voices/alice/versions/default/artifacts/{settings.profile_names[0]}/file?wait=60"
    # curl counts a 202 as success and would keep its JSON as an artifact.
    fetch = (
        f"-s -o alice.part -w '%{{http_code}}' '{file}' | grep -qx 200 && mv alice.part alice.safetensors "
        "|| cat alice.part"
    )
    warning = (
        "\nThe weights are UNTRAINED (random): everything works, but the voices are useless. "
        "Set WEIGHTS for real ones."
        if settings.weights == "untrained"
        else ""
    )
    remarks = warning + _about_key(registry)
    return f"""
The speaker registry is up: {url}     (API documentation: {url}/docs)
Dashboard: {url}/dashboard
Data: {data}  (bucket/ holds everything, redis/ can be rebuilt from it){remarks}

Try it:
  curl {with_key}-F name=alice -F consent=cons_1 -F audio=@{clip} {url}/v1/voices
  curl {with_key}{fetch}

Ctrl-C stops it.
"""


def _about_key(registry: EmbeddedRegistry) -> str:
    if registry.key_file is None:
        return (
            "\nAPI keys are required: set KEY to the value of SPEAKER_AUTH_BOOTSTRAP_KEY"
            if registry.api_key
            else ""
        )
    return f"\nAPI keys are required. To use one with all permissions: KEY=$(cat {registry.key_file})"


def _farewell() -> str:
    return (
        f"\nstopping: running jobs have {STOP_SECONDS:g} s to finish, "
        "the others continue after the next start; press Ctrl-C again to stop at once …"
    )


def _configure_logs() -> None:
    """Log the events of this process in the same form as the lines of its child processes."""
    terminal = sys.stderr.isatty()

    def render(_logger: object, _method: str, event: structlog.typing.EventDict) -> Any:
        line = readable("registry", event)
        return coloured(line, level(event)) if terminal else line

    structlog.configure(
        processors=[structlog.stdlib.add_log_level, render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: BestEffortLogger(sys.stderr),
    )


def _end_on_signals() -> None:
    """Make SIGTERM and SIGHUP act like Ctrl-C, except for signals that the parent process set to be
    ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
