"""Refuses query parameters and fields of a JSON body that a route does not take, and says which it takes.
Knows no route by its name.
"""

from collections.abc import Iterable, Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from services.shared.mistyped import nearest
from speaker_registry.errors import InvalidRequest


class OnlyKnownParameters:
    """A dependency of one route: refuses query parameters that the route does not take.

    A mistyped `profil=` would otherwise be ignored, and the answer be about something else than was asked.
    """

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()

    def learn(self, route: APIRoute) -> None:
        """To be called once the route is made, which needs its dependencies first."""
        self._known = frozenset(_query_names(route.dependant))

    async def __call__(self, request: Request) -> None:
        """Raises `InvalidRequest`."""
        if not request.scope["query_string"]:
            return
        for name in request.query_params:
            if name not in self._known:
                raise unknown("Query parameter", name, self._known)


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _query_names(dependency)


def body_fields(route: APIRoute) -> frozenset[str]:
    """The fields of the JSON object that a route takes; none where it takes no such body."""
    model = route.body_field.field_info.annotation if route.body_field else None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return frozenset(model.model_fields)
    return frozenset()


def unknown(what: str, name: str, accepted: Iterable[str]) -> InvalidRequest:
    """The error for a name that is none of those that are accepted: with the one that was probably meant."""
    meant = nearest(name, accepted)
    return InvalidRequest(
        f"{what} {ascii(name)[:80]} is not known here{f'; did you mean {meant!r}?' if meant else '.'} "
        f"Accepted: {', '.join(sorted(accepted)) or 'none'}.",
        param=name[:80],
    )
