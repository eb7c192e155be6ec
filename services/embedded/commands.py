"""What `make run` and `make demo` do and print, and what ends them. Knows of their parts how to call them."""

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
from services.shared.configuration.mistyped import warn_of_unknown_variables
from services.shared.configuration.settings import explain
from services.shared.telemetry.logs import BestEffortLogger


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    commands = {"run": run, "demo": demo}
    if len(arguments) != 1 or arguments[0] not in commands:
        print("usage: python -m services.embedded run|demo", file=sys.stderr)
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
    """Keep a registry running until Ctrl-C or SIGTERM."""
    _print(f"starting (profiles: {settings.profiles}; weights: {settings.weights}) …")
    with EmbeddedRegistry(settings, show=logging.INFO) as registry:
        _print(_welcome(registry, settings))
        try:
            registry.watch()
        except KeyboardInterrupt:
            _print(_farewell())
    _print("stopped; the data stays")
    return 0


def _print(text: str) -> None:
    """To standard output, if somebody takes it: a full disk under it must not end the registry."""
    with suppress(OSError, ValueError):
        print(text, flush=True)


def _welcome(registry: EmbeddedRegistry, settings: EmbeddedSettings) -> str:
    url, data, clip = registry.url, settings.data.absolute(), "examples/clips/wren.flac"
    with_key = '-H "Authorization: Bearer $KEY" ' if registry.api_key else ""
    file = f"{url}/v1/voices/alice/versions/default/artifacts/{settings.profile_names[0]}/file?wait=60"
    # For curl a 202 is a success, and its JSON would be kept as an artifact.
    fetch = (
        f"-s -o alice.part -w '%{{http_code}}' '{file}' | grep -qx 200 && mv alice.part alice.safetensors "
        "|| cat alice.part"
    )
    warning = (
        "\nThe weights are UNTRAINED (random): all works, the voices are useless. For real ones set WEIGHTS."
        if settings.weights == "untrained"
        else ""
    )
    remarks = warning + _about_key(registry)
    return f"""
The speaker registry is up: {url}     (API documentation: {url}/docs)
Data: {data}  (bucket/ is the truth, redis/ can be rebuilt from it){remarks}

Try it:
  curl {with_key}-F name=alice -F consent=cons_1 -F audio_sample=@{clip} {url}/v1/audio/voices
  curl {with_key}-X POST '{url}/v1/audio/voices/alice/cache?wait=300'
  curl {with_key}{fetch}

Ctrl-C stops it.
"""


def _about_key(registry: EmbeddedRegistry) -> str:
    if registry.key_file is None:
        return "\nAPI keys are needed: KEY=the one of SPEAKER_AUTH_BOOTSTRAP_KEY" if registry.api_key else ""
    return f"\nAPI keys are needed; here is one with all rights: KEY=$(cat {registry.key_file})"


def _farewell() -> str:
    return (
        f"\nstopping: jobs in hand have {STOP_SECONDS:g} s to finish, "
        "the others come back at the next start; Ctrl-C again ends all at once …"
    )


def _configure_logs() -> None:
    """What we log ourselves, in the form in which our children's lines are shown."""
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
    """A closed terminal and `kill` do what Ctrl-C does, unless whoever started us wants one ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
