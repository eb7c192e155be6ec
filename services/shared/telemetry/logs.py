"""Log lines as JSON (or coloured text on a terminal), one event each, with the request's and job's ids.
Never audio, texts or keys.
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
    """For a whole process, once, from its `__main__`. The libraries' own lines take the same form, and so do
    warnings and what nobody caught.
    """
    importance: int = logging.getLevelName(level)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    terminal = sys.stderr.isatty()
    # Tracebacks without local variables: those hold audio, texts and keys.
    tracebacks = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )
    renderers: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if terminal
        else [tracebacks, structlog.processors.JSONRenderer()]
    )
    # Not by way of `logging`: every request has a line, and that would double its price.
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
    # What libraries say for debugging may quote headers and bodies.
    root.setLevel(max(importance, logging.INFO))
    for noisy in ("httpx", "botocore", "urllib3"):
        logging.getLogger(noisy).setLevel(max(importance, logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = _tell_crash
    threading.excepthook = _tell_crash_of_thread


class LogThrottle:
    """Thins out lines that would be repeated while some trouble lasts. For all threads.

    Args:
        seconds: the same line is due again after this long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._logged_at: dict[object, float] = {}

    def due(self, line: object) -> bool:
        """Whether this line, which was not due lately, is to be logged now."""
        now = time.monotonic()
        with self._lock:
            if now - self._logged_at.get(line, float("-inf")) < self._seconds:
                return False
            if len(self._logged_at) >= _REMEMBERED_LINES:
                self._logged_at.clear()
            self._logged_at[line] = now
            return True


class BestEffortLogger(structlog.WriteLogger):
    """Writes log lines. Where nobody reads them any more, or the disk is full, only they are lost."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = exception = msg


def _take_over_from_libraries() -> None:
    """Some bring a handler of their own, which writes plain lines."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True


def _tell_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        structlog.get_logger().critical("process.crashed", exc_info=(kind, error, trace))


def _tell_crash_of_thread(crash: threading.ExceptHookArgs) -> None:
    name = crash.thread.name if crash.thread else None
    error = (crash.exc_type, crash.exc_value, crash.exc_traceback)
    structlog.get_logger().critical("thread.crashed", thread=name, exc_info=error)
