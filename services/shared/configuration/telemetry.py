"""Settings for logs, metrics and traces."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.shared.configuration.values import WITH_HOST, Host


class LogSettings(BaseSettings):
    """Verbosity of the log. Environment: SPEAKER_LOG_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_LOG_", env_ignore_empty=True, frozen=True)

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of the lines that are written."""


class MetricsSettings(BaseSettings):
    """Addresses at which the API and the workers serve their metrics, without API keys. Environment:
    SPEAKER_METRICS_*.
    """

    model_config = SettingsConfigDict(env_prefix="SPEAKER_METRICS_", env_ignore_empty=True, frozen=True)

    host: Host = "127.0.0.1"
    """Address to listen on. If Prometheus runs on another machine, use an address of the network
    between them.
    """
    port: int | None = Field(None, ge=1, le=65535)
    """Port to listen on; no metrics port is opened by default. Each process of a machine needs a port
    of its own. With `make run`, the worker's is one higher.
    """


class TracesSettings(BaseSettings):
    """Destination of traces; it needs the extra `traces`. Environment: SPEAKER_TRACES_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_TRACES_", env_ignore_empty=True, frozen=True)

    endpoint: Annotated[str, Field(pattern=r"^https?://[^/@]+(/.*)?$"), WITH_HOST] | None = None
    """URL of an OpenTelemetry collector, for example `http://collector:4318/v1/traces`. Headers and
    certificates are set by OTEL_EXPORTER_OTLP_*. By default no traces are sent.
    """
    ratio: float = Field(1.0, ge=0, le=1)
    """Share of the traces that are recorded if they begin in this registry. A caller's `traceparent` decides
    for the caller's own trace.
    """
