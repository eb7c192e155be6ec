"""JSON objects whose keys must differ. The `json` module itself takes the last value of a duplicate key."""

from collections import Counter
from typing import Any


class DuplicateKey(ValueError):
    """A JSON object has the key `key` `count` times."""

    def __init__(self, key: str, count: int) -> None:
        super().__init__(f"duplicate key {key!r}")
        self.key = key
        self.count = count


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of the members of a JSON object, as an `object_pairs_hook` of `json.loads`. Raises
    `DuplicateKey` for a duplicate key, because readers do not agree which of its values counts.
    """
    result = dict(pairs)
    if len(result) < len(pairs):
        raise DuplicateKey(*Counter(key for key, _ in pairs).most_common(1)[0])
    return result
