"""Explains to operators which environment variables are wrong."""

import re
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings

from services.shared.configuration.values import without_credentials
from speaker_registry.validation import accepted, subschema, validator_message

_SECRET = re.compile("secret|password|token|key", re.IGNORECASE)
"""The values of settings whose names contain one of these words are never shown."""


def variable_of(settings: type[BaseSettings], field: str) -> str:
    """Return the environment variable that sets a field of a settings class."""
    alias = settings.model_fields[field].validation_alias
    return (
        alias if isinstance(alias, str) else f"{settings.model_config.get('env_prefix', '')}{field}".upper()
    )


def explain(error: ValidationError) -> str:
    """Return one line for each variable that is wrong: what is accepted, and the value unless it may be a
    secret.
    """
    classes = {cls.__name__: cls for cls in BaseSettings.__subclasses__()}
    return "\n".join(_explain_fault(fault, classes.get(error.title)) for fault in error.errors())


def _explain_fault(fault: ErrorDetails, settings: type[BaseSettings] | None) -> str:
    if not fault["loc"]:
        # The error concerns several fields together, whose values may be secrets.
        return validator_message(fault) or fault["msg"]
    field = str(fault["loc"][0])
    prefix = settings.model_config.get("env_prefix") if settings else None
    variable = field if field.isupper() else f"{prefix or ''}{field}".upper()
    if fault["type"] == "missing":
        known = settings.model_fields.get(field) if settings else None
        words = f"; accepted: {known.description}" if known and known.description else ""
        return f"{variable}: it must be set{words}"
    requirement, given = _requirement(fault, field, settings), str(fault["input"])
    value = repr(without_credentials(given))
    if value in requirement:
        return f"{variable}: {requirement}"
    if not _may_be_shown(field, given, settings):
        return f"{variable}: {requirement}; its value may be a secret, and is not shown"
    return f"{variable}: {requirement}; it is {value:.200}"


def _requirement(fault: ErrorDetails, field: str, settings: type[BaseSettings] | None) -> str:
    """Return the message of our own validator, or else a description of what the field accepts."""
    if own := validator_message(fault):
        return own
    schemas = (
        [settings.model_json_schema(by_alias=by_alias) for by_alias in (True, False)] if settings else []
    )
    words = next(filter(None, (accepted(subschema(schema, [field])) for schema in schemas)), None)
    return f"accepted: {words}" if words else fault["msg"]


def _may_be_shown(field: str, given: str, settings: type[BaseSettings] | None) -> bool:
    """Return whether an error message may show the value that a field was given.

    A field is secret by its name or by its type. The path of a file is no secret, but some people put the
    secret itself where a path belongs, so the value must look like a path.
    """
    known = settings.model_fields.get(field) if settings else None
    kind = str(known.annotation) if known else ""
    if not _SECRET.search(field) and "SecretStr" not in kind:
        return True
    return "Path" in kind and _lies_in_a_folder(Path(given))


def _lies_in_a_folder(path: Path) -> bool:
    """Return whether a path begins with a folder that exists. A secret does not."""
    parents = path.parts[:-1]
    with suppress(OSError):
        return len(parents) > path.is_absolute() and Path(*parents[:2]).is_dir()
    return False  # a part of it is too long for a name
