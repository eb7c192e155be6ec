"""Callers: the address of a client, and the identity and rights of an authenticated one. This module knows no
keys and no requests.
"""

import ipaddress
from dataclasses import dataclass, replace

from services.registry_api.keys.api_keys import ALL_SCOPES, ANY_NAMESPACE

OWN_NAMESPACE = "default"
"""The namespace of requests that do not name one."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client: one API key, or the subject of a token."""

    id: str
    """Identifies the caller in logs."""
    namespace: str
    """The caller's namespace, or `ANY_NAMESPACE`."""
    scopes: frozenset[str]
    requests_per_minute: int | None = None
    uploads_per_minute: int | None = None
    """Limit of uploads per minute. None means the default for all keys, here and in `requests_per_minute`."""
    ends_at: float | None = None
    """The time at which the key or token ends, in Unix seconds. None means that it has no end, or that an
    event will announce it.
    """
    limits_id: str | None = None
    """The id under which limits are counted: a rotated key shares the limits of its first key. None means
    `id`.
    """

    @property
    def counted_id(self) -> str:
        """The id under which the caller's requests are counted against limits."""
        return self.limits_id or self.id

    def has_ended(self, now: float) -> bool:
        return self.ends_at is not None and now >= self.ends_at

    def has_rights_of(self, other: "Caller") -> bool:
        """Return whether this is the same caller with the same rights and limits, whenever they end."""
        return replace(self, ends_at=None) == replace(other, ends_at=None)

    @property
    def for_any_namespace(self) -> bool:
        """True for operators' keys, which are for any namespace. Tenants' keys are for one namespace."""
        return self.namespace == ANY_NAMESPACE


ANONYMOUS = Caller("anonymous", ANY_NAMESPACE, ALL_SCOPES)
"""The caller of every request to a registry that requires no keys."""


def address_of(host: str) -> str:
    """Return the address under which a client is counted.

    The owner of an IPv6 network has any number of addresses, so all addresses of one /64 count as one. Text
    that is not an address, such as a socket's path, is returned as it is.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
