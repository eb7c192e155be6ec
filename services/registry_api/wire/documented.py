"""Reads from `examples/` how the OpenAPI document describes the responses and request bodies of the routes.

No route's behaviour depends on them. Each file there has one or more of these sections:

- `responses`: the id of an operation -> its responses by status.
- `compatible_responses`: the same, with errors as vLLM-Omni's routes answer them.
- `bodies`: the id of an operation -> its `requestBody`, as OpenAPI has it.
- `values`: name -> a value that is used several times, in this file or in others.

In a text, `{name}` stands for the value of that name. In an object, `"...": "name"` stands for the members of
that value, or of several values if a list of names is given; later members replace them. A response has a
`description` and may have

- `code` and `message`: those of an error; its `type` follows from the status,
- `example` and `model`: a JSON body, and the name of its schema,
- `page_of`, `item` and `id`: the name of a schema, and the only item of a page,
- `bytes`: the media type of a file,
- `content`: any other content, as OpenAPI has it,
- `headers`: the name of each header -> its description,
- `links`: the id of each operation -> its parameters, as runtime expressions on the answer.

The id of an operation is the name of its function, unless the route names another one. A mistake in these
files fails the import of the route that it concerns. Tests check every example, and every answer that they
receive, against the schemas.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from services.registry_api.access.rules import NAMESPACE_HEADER
from services.registry_api.protocol.error_answers import type_of
from services.registry_api.protocol.routing import Router
from speaker_registry import schemas
from speaker_registry.json_objects import without_duplicates
from speaker_registry.manifests import ManifestPage

Responses = dict[int | str, dict[str, Any]]

_FOLDER = Path(__file__).parent / "examples"
_NAME = re.compile(r"\{(\w+)\}")
_SECTIONS = ("values", "bodies", "responses", "compatible_responses")
_CONDITIONS = {
    ("304", "If-None-Match"): "The ETags of the answers that the client has. If the current one is among "
    "them, the answer is 304.",
    ("412", "If-Match"): "The ETags that the client accepts. If the current one is not among them, the "
    "request is refused (412).",
    ("412", "If-None-Match"): "With `*`, the request is refused (412) if it would replace or continue "
    "something that exists. Other values have no effect.",
}
"""Maps the status of an answer, and the header that can lead to it, to the header's description."""
_OF_CHANGES = " A request that would change nothing is answered as it would be without this header."
"""Follows the description of a condition if the operation changes something."""
_NAMESPACE = (
    "The namespace that the request is about, if the API key is for all namespaces. Without this header, "
    "such a request is about `default`, or about the keys of all namespaces. Any other key is refused (403) "
    "if the header names another namespace than its own."
)


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    status: str
    version: str
    parts: dict[str, str]
    """Maps the name of each part to `ok`, or to a description of its problem."""
    details: dict[str, str] = {}
    """Maps the name of each required profile that no worker serves to an explanation. Absent if there is
    none.
    """


_OTHER_MODELS: dict[str, type[BaseModel]] = {
    "Health": Health,
    "ManifestPage": ManifestPage,
    "Readiness": Readiness,
}
"""The models that `schemas` does not have, or has in another form for the SDK."""


def responses(operation: str) -> Responses:
    """Return the responses of an operation as FastAPI takes them."""
    compatible = operation in _sections()["compatible_responses"]
    described = _find("compatible_responses" if compatible else "responses", operation)
    return {status: _response(status, one, compatible=compatible) for status, one in described.items()}


def request_body(operation: str) -> dict[str, Any]:
    """Return the request body of an operation as FastAPI takes it in `openapi_extra`."""
    return {"requestBody": _find("bodies", operation)}


class DocumentedRouter(Router):
    """A router whose routes are described in `examples/` under the ids of their operations."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        name = options.get("name") or endpoint.__name__
        if options.get("include_in_schema", True):
            options["responses"] = responses(name)
        if name in _sections()["bodies"]:
            options["openapi_extra"] = request_body(name)
        super().add_api_route(path, endpoint, **options)


def with_headers(document: dict[str, Any]) -> dict[str, Any]:
    """Add to the OpenAPI document the headers that operations honour, and return the document. Generated
    clients can only send declared headers.

    They are not declared in the routes, because FastAPI would then parse them in every request. An operation
    honours a condition if the description of its answer 304 or 412 names the header.
    """
    methods = (one for path in document["paths"].values() for one in path.items())
    for method, operation in methods:
        known = {one["name"] for one in operation.get("parameters", ())}
        if missing := [one for one in _headers_of(method, operation) if one["name"] not in known]:
            operation["parameters"] = [*operation.get("parameters", ()), *missing]
    return document


def _headers_of(method: str, operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for (status, name), text in _CONDITIONS.items():
        if f"`{name}`" in operation["responses"].get(status, {}).get("description", ""):
            is_change = status == "412" and method not in {"get", "head"}
            yield _header(name, text + _OF_CHANGES if is_change else text)
    if "security" in operation:
        yield _header(NAMESPACE_HEADER, _NAMESPACE)


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def example_value(name: str) -> Any:
    """Return a copy of the value of this name."""
    return _find("values", name)


@cache
def _sections() -> dict[str, dict[str, Any]]:
    """Return each section, merged from all files."""
    read: dict[str, list[tuple[str, Any]]] = {section: [] for section in _SECTIONS}
    for path in sorted(_FOLDER.glob("*.json")):
        file = json.loads(path.read_text("utf-8"), object_pairs_hook=without_duplicates)
        for section, members in file.items():
            if section not in read:
                raise ValueError(f"{path.name} has the section {section!r}; accepted: {', '.join(read)}.")
            read[section].extend(members.items())
    return {section: without_duplicates(members) for section, members in read.items()}


def _find(section: str, name: str) -> Any:
    if name not in _sections()[section]:
        raise ValueError(f"The examples have no {name!r} among their {section}.")
    return _filled(_sections()[section][name])


def _filled(written: Any) -> Any:
    """Return a copy of an example in which names are replaced by the values that they stand for."""
    if isinstance(written, str):
        if whole := re.fullmatch(_NAME, written):
            return example_value(whole[1])
        return re.sub(_NAME, lambda name: str(example_value(name[1])), written)
    if isinstance(written, list):
        return [_filled(one) for one in written]
    if not isinstance(written, dict):
        return written
    filled: dict[str, Any] = {}
    for name, one in written.items():
        if name == "...":
            for taken in [one] if isinstance(one, str) else one:
                filled |= example_value(taken)
        else:
            filled[name] = _filled(one)
    return filled


def _response(status: int | str, described: dict[str, Any], *, compatible: bool) -> dict[str, Any]:
    given = dict(described)
    response = {"description": given.pop("description")}
    if "code" in given:
        error = _error(status, given.pop("code"), given.pop("message"), compatible=compatible)
        schema = {"$ref": "#/components/schemas/ErrorEnvelope"}
        response["content"] = {"application/json": {"example": error, "schema": schema}}
        if status == "default":  # FastAPI builds a validator for each `model`, and one per route is enough
            response["model"] = schemas.ErrorEnvelope
    elif "page_of" in given:
        item, item_id = given.pop("item"), given.pop("id")
        page = {"object": "list", "has_more": False, "data": [item], "first_id": item_id, "last_id": item_id}
        page_of: Any = _model(given.pop("page_of"))
        response |= _json(page, schemas.Page[page_of])
    elif "example" in given:
        response |= _json(given.pop("example"), _model(given.pop("model")))
    elif "bytes" in given:
        response["content"] = {given.pop("bytes"): example_value("binary")}
    elif "content" in given:
        response["content"] = given.pop("content")
    if links := given.pop("links", {}):
        response["links"] = {id_: {"operationId": id_, "parameters": where} for id_, where in links.items()}
    if headers := given.pop("headers", {}):
        texts = {"schema": {"type": "string"}}
        response["headers"] = {name: {"description": says, **texts} for name, says in headers.items()}
    if given:
        raise ValueError(f"A response {status} has {', '.join(given)}, which examples do not use this way.")
    return response


def _json(example: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    return {"content": {"application/json": {"example": example}}, "model": model}


def _model(name: str) -> type[BaseModel]:
    model = _OTHER_MODELS.get(name) or getattr(schemas, name)
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model


def _error(status: int | str, code: str, message: str, *, compatible: bool) -> dict[str, Any]:
    """Return an error as the registry sends it. The error `default`, which stands for all others, has
    OpenAI's form.
    """
    compatible = compatible and status != "default"
    number = 500 if status == "default" else int(status)
    return {
        "error": {
            "message": message,
            "type": type_of(number, compatible=compatible),
            "param": None,
            "code": number if compatible else code,
            **({"reason": code} if compatible else {}),
            "request_id": "req_5f1e",
        }
    }
