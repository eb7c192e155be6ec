"""What the processes log, as a person wants to read it in a terminal: one line an event, what only machines
need left out. Pure. What is no event (a traceback, a library's last words) stays as it is.
"""

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Any

_OUR_EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")
"""Libraries log sentences. Below a warning they tell about themselves."""
_DIGEST = re.compile(r"\b(sha256:)?([0-9a-f]{8})[0-9a-f]{24,}\b")
_KNOWN = {"event", "level", "timestamp", "exception", "traceback", "stack"}


def parse(line: str) -> Mapping[str, Any] | None:
    """The event in a line; None if it is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def level(event: Mapping[str, Any]) -> int:
    return logging.getLevelNamesMapping().get(str(event.get("level", "info")).upper(), logging.INFO)


def worth_showing(event: Mapping[str, Any]) -> bool:
    return level(event) >= logging.WARNING or bool(_OUR_EVENT.fullmatch(str(event["event"])))


def is_access_log(event: Mapping[str, Any]) -> bool:
    """Whether it is a line of the access log, which says what others ask and not what the process is at."""
    return str(event["event"]) == "request.done"


def readable(who: str, event: Mapping[str, Any]) -> str:
    """`12:01:59 worker  artifact.published  job_id=job_0123… seconds=1.2`, and tracebacks under it."""
    fields = " ".join(f"{name}={_short(value)}" for name, value in event.items() if name not in _KNOWN)
    text = f"{time.strftime('%H:%M:%S')} {who:8} {event['event']}  {fields}".rstrip()
    if trace := event.get("traceback") or _last_of(event.get("exception")):
        text += f"\n{trace}"
    return text


def coloured(text: str, importance: int) -> str:
    """For a terminal: yellow is a warning, red an error."""
    if importance < logging.WARNING:
        return text
    return f"\033[{31 if importance >= logging.ERROR else 33}m{text}\033[0m"


def reason(event: Mapping[str, Any]) -> str:
    """What an event says was wrong, without the rest."""
    said = event.get("reason") or event.get("error") or _last_of(event.get("exception")) or event["event"]
    return str(said)


def _short(value: object) -> str:
    return _DIGEST.sub(r"\1\2…", str(value))


def _last_of(exception: object) -> str | None:
    """Of a traceback in structlog's form, what was raised in the end."""
    if not isinstance(exception, list) or not exception or not isinstance(exception[0], dict):
        return str(exception) if exception else None
    return f"{exception[0].get('exc_type')}: {exception[0].get('exc_value')}"
