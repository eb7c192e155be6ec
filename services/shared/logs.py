"""Log lines as JSON (or coloured text on a terminal), one event each, with the request's and job's ids.
Never audio, texts or keys.
"""

import logging
import sys
import threading
from types import TracebackType

import structlog

OURS = "services"
"""Name of the logger above all of ours."""


def configure_logs(level: str = "INFO") -> None:
    """For a whole process, once, from its `__main__`. The libraries' own lines take the same form, and so do
    warnings and what nobody caught.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
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
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,  # before anything is done for a line that nobody will see
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
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
    importance: int = logging.getLevelName(level)
    root.setLevel(max(importance, logging.INFO))
    logging.getLogger(OURS).setLevel(importance)
    for noisy in ("httpx", "botocore", "urllib3"):
        logging.getLogger(noisy).setLevel(max(importance, logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = _tell_crash
    threading.excepthook = _tell_crash_of_thread


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
        structlog.get_logger(OURS).critical("process.crashed", exc_info=(kind, error, trace))


def _tell_crash_of_thread(crash: threading.ExceptHookArgs) -> None:
    name = crash.thread.name if crash.thread else None
    error = (crash.exc_type, crash.exc_value, crash.exc_traceback)
    structlog.get_logger(OURS).critical("thread.crashed", thread=name, exc_info=error)
