"""Callers: the identity and rights of an authenticated client. Knows no keys and no requests."""

from dataclasses import dataclass

from services.registry_api.keys.api_keys import ALL_SCOPES, ANY_NAMESPACE

OWN_NAMESPACE = "default"
"""The namespace of requests that name none."""


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
    """None: the default for all keys applies, for uploads as for requests."""
    limits_id: str | None = None
    """The id under which limits are counted: a rotated key shares the limits of its first key. None: `id`."""

    @property
    def counted_id(self) -> str:
        """The id under which the caller's requests are counted against limits."""
        return self.limits_id or self.id

    @property
    def for_any_namespace(self) -> bool:
        """True for operators' keys, which are for any namespace. Tenants' keys are for one namespace."""
        return self.namespace == ANY_NAMESPACE


ANONYMOUS = Caller("anonymous", ANY_NAMESPACE, ALL_SCOPES)
"""The caller of every request to a registry that requires no keys."""
