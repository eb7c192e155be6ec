"""Messages about invalid values, which say what was given and what is accepted.

They are built from pydantic's error details and from the JSON schema that the value was checked against.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from speaker_registry.labels import VALUE_PATTERN
from speaker_registry.names import DIGEST_PATTERN

Schema = Mapping[str, Any]

_MAX_SHOWN_CHARACTERS = 80
_PATTERNS = {DIGEST_PATTERN: "sha256:… with 64 characters of 0-9 and a-f", VALUE_PATTERN: "blue_1.0"}
"""Patterns that are told in other words: people see digests in a shortened form, and values of labels have a
message of their own once they are text.
"""
_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a JSON object",
    "string": "text",
}


def invalid_value_message(fault: ErrorDetails, path: Sequence[str | int], schema: Schema) -> str:
    """Describe an invalid value, such as `'limit' is '0'; accepted: a whole number from 1 to 100`.

    The message has no full stop at its end.

    Args:
        path: Path from the root of the schema to the value, made of field names and, in lists, positions.
    """
    first, *rest = path
    place = f"'{first}{''.join(f'[{step}]' for step in rest)}'"
    value, words = quoted_json(fault["input"]), accepted(subschema(schema, path))
    if fault["type"] == "missing":
        return f"{place} is missing" + (f"; accepted: {words}" if words else "")
    if own := validator_message(fault):
        return f"{place} is {value}: {own}"
    return f"{place} is {value}; accepted: {words}" if words else f"{place} is {value}: {fault['msg']}"


def is_from_zero(value: Any) -> bool:
    """Return whether a value is a number from 0 on. NaN and text are not."""
    try:
        return bool(value >= 0)
    except TypeError:
        return False


def shortened(value: object) -> str:
    """Format a value as ASCII text, cut to a length that fits into a message."""
    return ascii(value)[:_MAX_SHOWN_CHARACTERS]


def quoted_json(value: object) -> str:
    """Format a value of a JSON document as `shortened` does, but with the JSON words true, false and null."""
    if isinstance(value, bool | list | dict | None):
        return json.dumps(value, default=ascii)[:_MAX_SHOWN_CHARACTERS]
    return shortened(value)


def validator_message(fault: ErrorDetails) -> str | None:
    """Return the message of a validator of this project. Returns None if pydantic itself refused the
    value.
    """
    return fault["msg"].removeprefix("Value error, ") if fault["type"] == "value_error" else None


def subschema(schema: Schema, path: Sequence[str | int]) -> Schema:
    """Return the part of a schema that describes one field or list entry. It is empty if there is none."""
    found: Schema = _without_null(schema)
    for step in path:
        if isinstance(step, int):
            below = found.get("items", {})
        else:
            others = found.get("additionalProperties") or {}  # false if there are none
            below = found.get("properties", {}).get(step, others)
        found = _without_null(below)
    return found


def accepted(schema: Schema) -> str:
    """Describe in words what a schema accepts. The text is empty if the schema does not say."""
    schema = _without_null(schema)
    if "enum" in schema:
        return ", ".join(map(repr, schema["enum"]))
    kind = schema.get("type", "")
    words = _KINDS.get(kind, "")
    if kind in {"integer", "number"}:
        return words + _range(schema, whole=kind == "integer")
    if kind == "string":
        pattern = schema.get("pattern", "")
        pattern = f" like {_PATTERNS.get(pattern, pattern)}" if pattern else ""
        return words + _size(schema, "minLength", "maxLength", "characters") + pattern
    if kind == "array":
        entries = accepted(schema.get("items", {}))
        size = _size(schema, "minItems", "maxItems", "entries")
        return words + size + (f", each of them {entries}" if entries else "")
    if kind == "object" and schema.get("properties"):
        return f"{words} with {', '.join(sorted(schema['properties']))}"
    return words + _size(schema, "minProperties", "maxProperties", "entries")


def _without_null(schema: Schema) -> Schema:
    """Return the schema of the value itself if the schema also allows null."""
    kinds = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return kinds[0] if len(kinds) == 1 else schema


def _range(schema: Schema, *, whole: bool) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if whole and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + 1
    elif "exclusiveMinimum" in schema:
        return f" above {schema['exclusiveMinimum']:g}" + (f", up to {high:g}" if high is not None else "")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of up to {high}" if high is not None else ""


def _size(schema: Schema, least: str, most: str, what: str) -> str:
    if most in schema:
        return f" of {f'{schema[least]} to' if least in schema else 'up to'} {schema[most]} {what}"
    return f" of {schema[least]} or more {what}" if least in schema else ""
