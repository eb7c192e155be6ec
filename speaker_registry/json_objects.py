"""JSON objects whose keys must differ. The `json` module itself takes the last value of a duplicate key."""

from typing import Any


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of the members of a JSON object, as an `object_pairs_hook` of `json.loads`. Raises
    `ValueError` for a duplicate key, because readers do not agree which of its values counts.
    """
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key {key!r}")
        result[key] = value
    return result
