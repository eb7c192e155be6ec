"""Writes the page about the HTTP API from the OpenAPI document: each route with its parameters, answers and
an example, and each schema with its fields.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from services.registry_api.app import api_document

Part = Mapping[str, Any]
_INTRODUCTION = """# HTTP API

A running registry shows the same at `/docs`, and gives the document for generators of clients at
`/openapi.json`. A route needs a key with one of the scopes that it names, unless the registry runs
[without keys](../docs/access.md).
"""
_SUCCESS = "2"


def api_reference() -> str:
    """Return the page as Markdown."""
    document = api_document()
    lines = [_INTRODUCTION]
    for tag, routes in _by_tag(document).items():
        lines.append(f"## {_heading(tag)}\n")
        for title, operation in routes:
            lines += [f"### {title}\n", *_operation(operation)]
    lines.append("## Schemas\n")
    for name, schema in document["components"]["schemas"].items():
        lines += [f"### {name}\n", *_schema(schema)]
    return "\n".join(lines)


def _by_tag(document: Part) -> dict[str, list[tuple[str, Part]]]:
    found = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            found[operation["tags"][0]].append((f"`{method.upper()} {path}`", operation))
    return found


def _heading(tag: str) -> str:
    """Return a tag with a capital at its beginning, unless it begins with a name such as vLLM."""
    return tag if tag[1].isupper() else tag[0].upper() + tag[1:]


def _operation(operation: Part) -> Iterator[str]:
    yield f"{operation.get('description', '')}\n"
    if scopes := [scope for rule in operation.get("security", []) for scope in rule.get("ApiKey", [])]:
        yield f"Scopes: {' or '.join(f'`{scope}`' for scope in scopes)}.\n"
    if parameters := operation.get("parameters"):
        yield from _table(
            ("parameter", "in", "type", "meaning"),
            [
                (_name(one["name"], one.get("required")), one["in"], _type(one["schema"]), _text(one))
                for one in parameters
            ],
        )
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from _body(media_type, content.get("schema", {}))
    yield from _answers(operation["responses"])


def _body(media_type: str, schema: Part) -> Iterator[str]:
    if "properties" not in schema:
        yield f"The body is `{media_type}`: {_type(schema)}.\n"
        return
    yield f"The body is `{media_type}` with these fields:\n"
    yield from _fields(schema)
    if text := schema.get("description"):
        yield f"{text}\n"


def _answers(responses: Part) -> Iterator[str]:
    rows = [
        (f"`{status}`", ", ".join(_types(answer)) or "–", _text(answer))
        for status, answer in sorted(responses.items())
    ]
    yield from _table(("status", "body", "meaning"), rows)
    for status, answer in responses.items():
        example = answer.get("content", {}).get("application/json", {}).get("example")
        if status.startswith(_SUCCESS) and example is not None:
            yield f"Example of an answer with status {status}:\n"
            yield f"```json\n{json.dumps(example, indent=2, ensure_ascii=False)}\n```\n"


def _types(answer: Part) -> Iterator[str]:
    for media_type, content in answer.get("content", {}).items():
        schema = content.get("schema", {})
        yield _type(schema) if "$ref" in schema else f"`{media_type}`"


def _schema(schema: Part) -> Iterator[str]:
    yield f"{schema.get('description', '')}\n"
    if schema.get("properties"):
        yield from _fields(schema)


def _fields(schema: Part) -> Iterator[str]:
    required = schema.get("required", ())
    rows = [
        (_name(name, name in required), _type(field), _text(field))
        for name, field in schema["properties"].items()
    ]
    yield from _table(("field", "type", "meaning"), rows)


def _name(name: str, required: object) -> str:
    return f"`{name}`, required" if required else f"`{name}`"


def _type(schema: Part) -> str:
    """Return the type of a value in words, with a link to a schema that has a name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(_type(one) for one in schema[choice])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{json.dumps(value)}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any value"))


def _text(part: Part) -> str:
    """Return a description for a cell of a table, with the default value."""
    text = " ".join(str(part.get("description", "")).split()).replace("|", "\\|")
    default = part.get("schema", part).get("default")
    return f"{text} Default: `{json.dumps(default)}`.".strip() if default is not None else text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    for cells in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""
