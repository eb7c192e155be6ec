"""Starts and stops the sending of traces. OpenTelemetry is imported only when an endpoint is configured."""

from services.shared.configuration.telemetry import TracesSettings
from services.shared.telemetry import tracing

STOP_SECONDS = 3.0
"""A process that is stopping tries to send its remaining spans for this long."""


class TracesUnavailable(Exception):
    """Traces are configured but cannot be made. The message says what is missing."""


def start(settings: TracesSettings, process: str) -> None:
    """Send traces to the configured endpoint from now on. Without an endpoint this does nothing.

    Args:
        process: the kind of this process, for example `api` or `worker`.

    Raises:
        TracesUnavailable: OpenTelemetry is not installed.
    """
    if settings.endpoint is None:
        return
    try:
        from services.shared.telemetry.open_telemetry import sending  # noqa: PLC0415 - costs time and memory
    except ImportError as error:
        raise TracesUnavailable(
            f"SPEAKER_TRACES_ENDPOINT is set, and OpenTelemetry is not installed ({error}). "
            "Install the extra `traces`."
        ) from None
    tracing.use(sending(settings, process))


def stop() -> None:
    """Send the remaining spans for at most `STOP_SECONDS`, then turn traces off."""
    if tracer := tracing.current():
        tracer.stop(STOP_SECONDS)
        tracing.use(None)
