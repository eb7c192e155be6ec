"""Labels of voices: their form, which is that of Kubernetes' labels, and how filters name them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from speaker_registry.errors import InvalidRequest

MAX_LABELS = 32
MAX_LENGTH = 63
"""Maximum number of characters of a key or a value."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
VALUE_PATTERN = rf"^(?:{_NAME})?$"
_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")
LABEL_CHANGES_SCHEMA: dict[str, Any] = {
    "propertyNames": {"pattern": f"^{_KEY.pattern}$", "maxLength": MAX_LENGTH},
    "additionalProperties": {
        "anyOf": [
            {"type": "string", "pattern": VALUE_PATTERN, "maxLength": MAX_LENGTH},
            {"type": "null"},
        ]
    },
}
"""The form of labels and their removal, for the JSON schema alone: `check_label` has clearer messages."""
_FORM = f"up to {MAX_LENGTH} of the characters A-Z a-z 0-9 - _ . that begin and end with a letter or digit"


def check_label(key: str, value: str | None) -> None:
    """Check the key and the value of a label. If `value` is None, only the key is checked. Raises
    `InvalidRequest`, which names the part that is not accepted.
    """
    if len(key) > MAX_LENGTH or not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"The key {key[:80]!a} of a label is invalid. Accepted: {_FORM}, also after a prefix as in "
            "example.com/team.",
            param="labels",
        )
    if value is not None and (len(value) > MAX_LENGTH or not _VALUE.fullmatch(value)):
        raise InvalidRequest(
            f"The value {value[:80]!a} of label '{key}' is invalid. Accepted: {_FORM}, or an empty text.",
            param="labels",
        )


def changed_labels(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the labels after changes, in which None removes a label. Raises `InvalidRequest` for a label
    that is not accepted, or too many labels.
    """
    for key, value in changes.items():
        check_label(key, value)
    merged = {**labels, **changes}
    changed = {key: value for key, value in sorted(merged.items()) if value is not None}
    if len(changed) > MAX_LABELS:
        raise InvalidRequest(
            f"The voice would have {len(changed)} labels. Accepted: {MAX_LABELS} labels of a voice.",
            param="labels",
        )
    return changed


def parse_filters(texts: Iterable[str]) -> dict[str, str]:
    """Parse filters such as `team=blue` or `team=blue,tier=gold`. Raises `InvalidRequest`."""
    wanted = dict[str, str]()
    for text in (one for several in texts for one in several.split(",")):
        key, separator, value = text.partition("=")
        if not separator or wanted.get(key, value) != value:
            said = "is given twice with different values" if separator else "is not a filter"
            raise InvalidRequest(f"Label {text[:140]!a} {said}. Accepted: KEY=VALUE.", param="label")
        check_label(key, value)
        wanted[key] = value
    return wanted
