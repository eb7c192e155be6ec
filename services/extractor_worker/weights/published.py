"""Reads an architecture from a published config.json. This module knows JSON and dataclasses, no model and no
files.

Such configurations have many generic fields, so only the fields of our dataclass are read. Configurations
omit fields that equal the default, so a field that is absent or null gets the default of our dataclass.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from speaker_registry.errors import WeightsInvalid

Config = TypeVar("Config")


def read_config(kind: type[Config], published: Any, where: str) -> Config:
    """Parse a configuration into a `kind`, which is a frozen dataclass of numbers, strings and tuples of
    integers.

    Raises:
        WeightsInvalid: a field is missing, of another type or refused by `kind`. The message names the field,
            and `where`.
    """
    if not isinstance(published, Mapping):
        raise WeightsInvalid(
            f"{where} is missing or not a JSON object: these are the weights of another model"
        )
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # a dataclass, which a TypeVar cannot say
        value = published.get(field.name)
        if value is not None:
            values[field.name] = _checked(value, field.default, f"{where}: {field.name}")
        elif field.default is MISSING:
            raise WeightsInvalid(f"{where}: {field.name} is missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise WeightsInvalid(f"{where}: {error}") from error


def _checked(value: Any, example: Any, where: str) -> Any:
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        value = tuple(value)
    if isinstance(example, float) and type(value) is int:
        value = float(value)
    wanted = int if example is MISSING else type(example)  # a field without a default is a width
    if type(value) is not wanted:
        raise WeightsInvalid(f"{where} is {value!r:.80}, {wanted.__name__} is expected")
    return value


def expect(where: str, published: Mapping[str, Any], key: str, value: object, why: str = "") -> None:
    """Raise WeightsInvalid, with the reason `why`, if the field `key` does not have this value."""
    if published.get(key) != value:
        raise WeightsInvalid(f"{where}: {key} is {published.get(key)!r:.80}, {value!r} is expected{why}")
