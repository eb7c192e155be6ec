"""Formatting of JSON log events for people at a terminal: one line per event, without fields that only
programs need.

Lines that are no events, such as tracebacks, are left unchanged.
"""

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Any

from speaker_registry.terminal import printable

_OUR_EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")
"""Matches event names of the registry. Libraries log sentences instead, of which only warnings and
errors matter.
"""
_DIGEST = re.compile(r"\b(sha256:)?([0-9a-f]{8})[0-9a-f]{24,}\b")
_KNOWN = {"event", "level", "timestamp", "exception", "traceback", "stack"}


def parse(line: str) -> Mapping[str, Any] | None:
    """Parse the event in a line. Returns None if the line is no event."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def level(event: Mapping[str, Any]) -> int:
    """Return the numeric log level of an event."""
    return logging.getLevelNamesMapping().get(str(event.get("level", "info")).upper(), logging.INFO)


def worth_showing(event: Mapping[str, Any]) -> bool:
    """Return True for events of the registry, and for warnings and errors of libraries."""
    return level(event) >= logging.WARNING or bool(_OUR_EVENT.fullmatch(str(event["event"])))


def is_access_log(event: Mapping[str, Any]) -> bool:
    """Return True for a line of the access log, which is about clients and not about the process itself."""
    return str(event["event"]) == "request.done"


def readable(who: str, event: Mapping[str, Any]) -> str:
    """Format an event, such as `12:01:59 worker  artifact.published  job_id=job_0123… seconds=1.2`.

    A traceback follows on further lines. Characters that would control the terminal are escaped, because
    fields may hold what clients sent.

    Args:
        who: Name of the process.
    """
    fields = " ".join(f"{name}={_short(value)}" for name, value in event.items() if name not in _KNOWN)
    text = printable(f"{time.strftime('%H:%M:%S')} {who:8} {event['event']}  {fields}").rstrip()
    if trace := event.get("traceback") or _last_of(event.get("exception")):
        text += f"\n{_printable_lines(trace)}"
    return text


def coloured(text: str, importance: int) -> str:
    """Colour a line for a terminal: warnings are yellow, errors are red."""
    if importance < logging.WARNING:
        return text
    return f"\033[{31 if importance >= logging.ERROR else 33}m{text}\033[0m"


def reason(event: Mapping[str, Any]) -> str:
    """Return the part of an event that says what was wrong."""
    said = event.get("reason") or event.get("error") or _last_of(event.get("exception")) or event["event"]
    return _printable_lines(said)


def _printable_lines(text: object) -> str:
    return "\n".join(map(printable, str(text).split("\n")))


def _short(value: object) -> str:
    return _DIGEST.sub(r"\1\2…", str(value))


def _last_of(exception: object) -> str | None:
    """Return the exception that a traceback in structlog's form ends with."""
    if not isinstance(exception, list) or not exception or not isinstance(exception[0], dict):
        return str(exception) if exception else None
    return f"{exception[0].get('exc_type')}: {exception[0].get('exc_value')}"
