"""The listener of an API process, its limits, and the housekeeping that it performs."""

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.shared.configuration.values import (
    Bytes,
    Count,
    DurationSeconds,
    Host,
    Names,
    PeriodSeconds,
    WholeDurationSeconds,
    is_loopback,
    without_credentials,
)

_ORIGIN = re.compile(
    r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[(?P<ip>[0-9a-f:]+)\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)
"""Matches what browsers send as `Origin`. They leave out the default port of a scheme."""


def _networks(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the proxies unchanged, or raise ValueError if one is neither an address nor a network.

    A value that cannot be parsed must be refused, because it could be trusted by accident, or never match.
    """
    for name in names:
        try:
            ipaddress.ip_network(name)
        except ValueError as error:
            raise ValueError(
                f"{error}; accepted: addresses and networks, such as 10.1.2.3 and 10.1.0.0/16"
            ) from None
    return names


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Return the origins unchanged, or raise ValueError if one of them equals no origin of a browser."""
    for origin in origins:
        if origin != "*" and not _is_origin(origin):
            raise ValueError(
                f"{without_credentials(origin)!r} is not an origin; accepted: `*`, or scheme, host "
                "and a port that is not the default one, in lower case and without a path, such as "
                "https://page.example or http://localhost:3000"
            )
    return origins


def _is_origin(text: str) -> bool:
    match = _ORIGIN.fullmatch(text)
    if match is None:
        return False
    try:  # browsers shorten IPv6 addresses as Python does
        is_short = match["ip"] is None or str(ipaddress.IPv6Address(match["ip"])) == match["ip"]
    except ValueError:
        return False
    return is_short and int(match["port"] or 0) <= 65535


class ApiSettings(BaseSettings):
    """Settings of the API's listener and of its limits. Environment: SPEAKER_API_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_API_", env_ignore_empty=True, frozen=True)

    host: Host = "127.0.0.1"
    """Address to listen on. Addresses other than loopback require API keys, see SPEAKER_AUTH_*."""
    port: int = Field(8300, ge=0, le=65535)
    """Port to listen on. 0 takes any free port."""
    max_connections: Count = Field(2000, gt=0)
    """Largest number of open connections. For a further one, the oldest idle connection of the address with
    the most connections is closed. While none is idle, further ones are answered with 503, except health
    checks. Requests of one namespace whose bodies are still arriving occupy at most a quarter of them, and so
    do all sign-in forms together. The sign-in forms of one address occupy at most an eighth.
    """
    max_active: Count = Field(8, gt=0)
    """Largest number of active requests. Further requests wait, in one queue for each namespace. If requests
    keep waiting for longer than a burst lasts, some are refused with 429 or 503. While several namespaces
    send requests, each has an equal share. The number is lowered while the process is late. A request that
    waits for its body, a change, a decoder or the bucket is not active.
    """
    max_at_store: Count = Field(16, gt=0)
    """Largest number of requests that fetch from the bucket, or delete there, at the same time. Further ones
    wait. A limit of 16 allows 800 files a second to be fetched from a bucket that is 20 ms away.
    """
    kept_bytes: Bytes = Field(256 * 1024**2, ge=0)
    """Memory for cached answers to requests for artifacts, which need neither Redis nor the bucket. 0 turns
    the cache off.
    """
    kept_answers: Count = Field(100_000, ge=0)
    """Largest number of cached answers to requests for artifacts."""
    redirect_seconds: int = Field(0, ge=0, le=3600)
    """A request for an artifact's file with `redirect=1` is redirected to the bucket, at an address that is
    valid for this long, also after the voice is deleted or the key revoked. 0 redirects nobody, and a local
    folder has no addresses. Clients must be able to reach the bucket at the address that the registry uses.
    """
    keep_alive_seconds: WholeDurationSeconds = Field(65, gt=0)
    """Time for which an idle connection is kept open."""
    shutdown_seconds: WholeDurationSeconds = Field(20, gt=0)
    """Time that requests under way may take to finish when the process is stopped."""

    trusted_proxies: Annotated[Names, AfterValidator(_networks)] = ()
    """Addresses or networks, comma-separated, whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    cors_origins: Annotated[Names, AfterValidator(_origins)] = ()
    """Comma-separated origins whose web pages may call the API from a browser, such as
    `https://page.example`, or `*` for all. None may by default.
    """

    @property
    def own_host(self) -> str:
        """Return the host at which this machine reaches the API, even if the API listens on all addresses."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - nobody listens here

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach the API."""
        return is_loopback(self.host)


class HousekeepingSettings(BaseSettings):
    """Repairs and sweeps, which each API process performs. Environment: SPEAKER_HOUSEKEEPING_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_HOUSEKEEPING_", env_ignore_empty=True, frozen=True)

    turn_seconds: DurationSeconds = Field(1.0, gt=0)
    """Pause between two checks for voices that are due."""
    sweep_seconds: PeriodSeconds = Field(86_400, gt=0)
    """Time between two sweeps of all voices."""
    grace_seconds: PeriodSeconds = Field(86_400, ge=3600)
    """Time for which bytes that no document names are kept, because their upload or their worker may still be
    running.
    """
    deleted_grace_seconds: PeriodSeconds = Field(86_400, ge=0)
    """Time for which the data of a deleted voice is kept. The shortest of all API processes counts."""
    rebuild_threads: Count = Field(16, gt=0)
    """Number of documents that are read at the same time while the view is rebuilt from a bucket. A local
    folder is read by one thread.
    """
    sweep_threads: Count = Field(4, gt=0)
    """Number of voices that a sweep reads at the same time. A sweep need not be fast."""
