"""Handles faulty parameters and JSON bodies: refuses unknown and repeated names, and explains which names and
values are accepted.

This module knows no route by its name.
"""

import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Annotated, Any, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from starlette.responses import Response

from services.shared.configuration.mistyped import nearest
from speaker_registry.errors import InvalidRequest
from speaker_registry.json_objects import DuplicateKey, without_duplicates
from speaker_registry.validation import accepted, invalid_value_message, quoted_json


class OnlyKnownParameters:
    """A dependency of one route: refuses query parameters that the route does not take, and those that it
    takes once but are sent more than once.

    A mistyped `profil=` would otherwise be ignored, and so would all but one of several `profile=`. The
    answer would not be about what the caller asked for.
    """

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._lists: frozenset[str] = frozenset()
        """The parameters that may be repeated."""

    def learn(self, route: APIRoute) -> None:
        """Record which parameters the route takes. This is called after the route is made, because the route
        is made with this dependency.
        """
        kinds = _query_kinds(route.dependant)
        self._known = frozenset(kinds)
        self._lists = frozenset(name for name, kind in kinds.items() if get_origin(kind) is list)

    async def __call__(self, request: Request) -> None:
        """Raises `InvalidRequest`."""
        if not request.scope["query_string"]:
            return
        for name in request.query_params:
            if name not in self._known:
                raise unknown("Query parameter", name, self._known)
            if name not in self._lists and (count := len(request.query_params.getlist(name))) > 1:
                raise repeated("Query parameter", name, count)


class JsonRoute(APIRoute):
    """A route that refuses a JSON body in which an object has a field more than once.

    A proxy that checks requests and the registry could disagree on which of them counts.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        try:
            return json.loads(await self.body(), object_pairs_hook=without_duplicates)
        except DuplicateKey as error:
            raise repeated("Field", error.key, error.count) from None


def _query_kinds(dependant: Dependant) -> dict[str, Any]:
    """Return the type of each query parameter by its name."""
    return {
        field.alias: field.field_info.annotation
        for one in _with_dependencies(dependant)
        for field in one.query_params
    }


def _with_dependencies(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for dependency in dependant.dependencies:
        yield from _with_dependencies(dependency)


def explain(request: Request, error: RequestValidationError) -> InvalidRequest:
    """Return an error for the first fault of a request: the value as sent, and what the route accepts."""
    fault = error.errors()[0]
    kind, *path = fault["loc"]
    schema = _schema(request.scope["route"], kind, path)
    if fault["type"] == "extra_forbidden":
        return unknown("Field", str(path[-1]), schema.get("properties", ()))
    if fault["type"] == "string_unicode" and not path:  # a name with half of a surrogate pair
        return unknown("Field", fault["input"], schema.get("properties", ()))
    if fault["type"] == "json_invalid":
        reason = f"{fault['ctx']['error'][:1].lower()}{fault['ctx']['error'][1:]} at character {path[0]}"
        return InvalidRequest(f"The body is not JSON: {reason}; accepted: {accepted(schema)}.", param="body")
    if isinstance(fault["input"], bytes):  # the body is not declared as JSON, as is curl's default
        sent = ascii(request.headers.get("content-type", ""))[:80]
        return InvalidRequest(f"Content-Type is {sent}; accepted: application/json.", param="Content-Type")
    if not path:  # the fault concerns the whole body
        found = "missing" if fault["type"] == "missing" else quoted_json(fault["input"])
        return InvalidRequest(f"The body is {found}; accepted: {accepted(schema)}.", param="body")
    return InvalidRequest(f"{invalid_value_message(fault, path, schema)}.", param=str(path[0]))


def _schema(route: APIRoute, kind: str, path: Sequence[str | int]) -> dict[str, Any]:
    """Return the JSON schema of a route's body, or of an object with the parameter of one kind at `path`.

    Other parameters are left out, because making their schemas takes longer than the rest of the answer.
    """
    if kind == "body":
        model = route.body_field.field_info.annotation if route.body_field else None
        if isinstance(model, type) and issubclass(model, BaseModel):
            return model.model_json_schema()
        return {}
    fields = {
        field.alias: _schema_of(field.field_info)
        for one in _with_dependencies(route.dependant)
        for field in getattr(one, f"{kind}_params", ())
        if field.alias in path[:1]
    }
    return {"properties": fields}


def _schema_of(field: FieldInfo) -> dict[str, Any]:
    kind: Any = field.annotation
    if field.metadata:
        kind = Annotated[(kind, *field.metadata)]
    return TypeAdapter(kind).json_schema()


def unknown(what: str, name: str, accepted: Iterable[str]) -> InvalidRequest:
    """Return the error for a name that is not accepted. It suggests the name that was probably meant."""
    meant = nearest(name, accepted)
    return InvalidRequest(
        f"{what} {ascii(name)[:80]} is not known here{f'; did you mean {meant!r}?' if meant else '.'} "
        f"Accepted: {', '.join(sorted(accepted)) or 'none'}.",
        param=name[:80].encode(errors="replace").decode(),  # JSON can escape what UTF-8 cannot encode
    )


def repeated(what: str, name: str, count: int) -> InvalidRequest:
    """Return the error for a name that is given more often than once."""
    return InvalidRequest(
        f"{what} {ascii(name)[:80]} is given {count} times; accepted: once, because it would not be clear "
        "which of them counts.",
        param=name[:80],
    )
