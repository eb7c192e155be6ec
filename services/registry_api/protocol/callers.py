"""Who asks: what is known of a caller once its key is. Knows no keys and no requests."""

from dataclasses import dataclass

from services.shared.keys.api_keys import ALL_SCOPES, ANY_NAMESPACE

OWN_NAMESPACE = "default"
"""Of who names none."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One key, or one token's subject."""

    id: str
    """For logs."""
    namespace: str
    """May be `ANY_NAMESPACE`."""
    scopes: frozenset[str]
    requests_per_minute: int | None = None
    uploads_per_minute: int | None = None
    """None: as many as every key may."""
    limits_id: str | None = None
    """What its limits count for: keys that followed one another are one. None: its id."""

    @property
    def counted_id(self) -> str:
        """Whose limits and shares its requests count for."""
        return self.limits_id or self.id

    @property
    def for_any_namespace(self) -> bool:
        """Whoever runs the registry is for any namespace; tenants have their own."""
        return self.namespace == ANY_NAMESPACE


ANONYMOUS = Caller("anonymous", ANY_NAMESPACE, ALL_SCOPES)
"""Where no key is needed."""
