"""The history of a voice: the changes that callers have made, oldest first. Pure.

Changes by workers and housekeeping are left out, because their number is not bounded.
"""

from collections.abc import Mapping
from typing import Protocol

from services.shared.model.records import Alias, Record, Revised, Version

KEPT_ENTRIES = 100
"""Largest number of changes that a document remembers."""
BY_PEOPLE = frozenset(
    {"register", "bring", "delete", "delete_version", "undelete", "alias", "edit", "cancel"}
)
"""The changes that are remembered, by their values of `StoredDocument.did`."""


class Entry(Record):
    """One change that a caller made."""

    revision: int
    at: int
    by: str
    did: str
    version: int | None = None
    """The version that was changed, if the change concerned a single version."""
    alias: str | None = None


class Remembering(Revised, Protocol):
    """The parts of a speaker's document that its history is made from."""

    @property
    def versions(self) -> tuple[Version, ...]: ...
    @property
    def aliases(self) -> Mapping[str, Alias]: ...
    @property
    def history(self) -> tuple[Entry, ...]: ...


def remembered(before: Remembering, after: Remembering) -> tuple[Entry, ...]:
    """Return the history of a document, including the change that made it from `before`."""
    nothing_was_there = after.did == "delete" and not before.versions
    if after.did not in BY_PEOPLE or nothing_was_there:
        return after.history
    alias = _changed_alias(before, after)
    entry = Entry(
        revision=after.revision,
        at=after.at,
        by=after.by,
        did=after.did,
        version=_number(after, alias) if alias else _changed_version(before, after),
        alias=alias if after.did == "alias" else None,
    )
    return (*after.history, entry)[-KEPT_ENTRIES:]


def _changed_alias(before: Remembering, after: Remembering) -> str | None:
    """Return the alias that a caller has moved, reset or removed, or None if there is none."""
    if after.did != "alias":
        return None
    names = sorted({*before.aliases, *after.aliases})
    return next((one for one in names if before.aliases.get(one) != after.aliases.get(one)), None)


def _number(document: Remembering, alias: str) -> int | None:
    present = document.aliases.get(alias)
    version = _by_vuid(document).get(present.vuid) if present else None
    return version.number if version else None


def _changed_version(before: Remembering, after: Remembering) -> int | None:
    """Return the number of the one version that was added, removed or changed."""
    old, new = _by_vuid(before), _by_vuid(after)
    changed = [vuid for vuid in old.keys() | new.keys() if old.get(vuid) != new.get(vuid)]
    if len(changed) != 1:
        return None
    version = new.get(changed[0]) or old[changed[0]]
    return version.number


def _by_vuid(document: Remembering) -> Mapping[str, Version]:
    return {version.vuid: version for version in document.versions}
