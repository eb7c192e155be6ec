"""Writes log lines as JSON, or as coloured text on a terminal. Each line is one event with the ids of its
request and job. Log lines never hold audio, texts or keys.
"""

import logging
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType

import structlog

_REMEMBERED_LINES = 100


def configure_logs(level: str = "INFO") -> None:
    """Configure the logs of the whole process. Call this once, from `__main__`. The lines of libraries, the
    warnings and the uncaught exceptions take the same form.
    """
    importance: int = logging.getLevelName(level)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers = _renderers()
    # The lines do not pass through `logging`: every request has one, and that would double its cost.
    structlog.configure(
        processors=[*shared, *renderers],
        logger_factory=lambda *_: BestEffortLogger(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(importance),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    _take_over_from_libraries()
    # Debug lines of libraries may quote headers and bodies.
    root.setLevel(max(importance, logging.INFO))
    for noisy in ("httpx", "botocore", "urllib3"):
        logging.getLogger(noisy).setLevel(max(importance, logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = _log_crash
    threading.excepthook = _log_crash_of_thread


def _renderers() -> list[structlog.typing.Processor]:
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    # Tracebacks come without local variables, because those hold audio, texts and keys.
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]


class LogThrottle:
    """Limits how often the same line is logged while a problem lasts. Safe to use from several threads.

    Args:
        seconds: the shortest time between two equal lines.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._logged_at: dict[object, float] = {}

    def due(self, line: object) -> bool:
        """Return whether to log this line now. Returns False if it was logged recently."""
        now = time.monotonic()
        with self._lock:
            if now - self._logged_at.get(line, float("-inf")) < self._seconds:
                return False
            if len(self._logged_at) >= _REMEMBERED_LINES:
                self._logged_at.clear()
            self._logged_at[line] = now
            return True


class BestEffortLogger(structlog.WriteLogger):
    """Writes log lines. If their reader is gone or the disk is full, only the lines are lost, and the process
    continues.
    """

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = exception = msg


def _take_over_from_libraries() -> None:
    """Remove the log handlers that some libraries install, because they write plain lines."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        structlog.get_logger().critical("process.crashed", exc_info=(kind, error, trace))


def _log_crash_of_thread(crash: threading.ExceptHookArgs) -> None:
    name = crash.thread.name if crash.thread else None
    error = (crash.exc_type, crash.exc_value, crash.exc_traceback)
    structlog.get_logger().critical("thread.crashed", thread=name, exc_info=error)
