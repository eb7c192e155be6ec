"""Keeps copies and ETags of the documents of profiles and API keys in Redis, for all processes.

Redis keeps the revision and the ETag of each document, the JSON of some, and the order in which the documents
changed. A process therefore needs one round trip to find out which of its copies are outdated. These data may
be lost at any time, and belong to one generation of the view.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from redis.client import Pipeline

from services.shared.bucket.documents import Base
from services.shared.view.generation import Generation
from services.shared.view.keys import events_key, shared_key, taken_key, told_key


@dataclass(frozen=True, slots=True)
class SeenChanges:
    """The recorded changes that a process has read in one generation."""

    generation: str
    position: int = 0
    """The number of the last change that was read."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The number of the last change by path, for the documents that have changed since the process began to
    read changes.
    """


class SharedCopies:
    """Copies and the order of changes. Every method raises `ViewAway` or `Unavailable`."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def get(self, path: str) -> Base | None:
        """Return the copy of a document, or None if there is none. The bucket may have the document
        nevertheless.
        """
        return self.get_many([path])[0]

    def get_many(self, paths: Sequence[str]) -> list[Base | None]:
        """Return the copies of several documents, as `get` does, in one round trip."""
        [stored] = self._generation.read(
            lambda pipeline, generation: pipeline.hmget(shared_key(generation), paths)
        )
        return [_parse(one) for one in stored]

    def revision(self, path: str) -> int:
        """Return the last recorded revision of a document, or 0 if none is recorded. Redis has it also for
        documents whose JSON it does not keep.
        """
        [stored] = self._generation.read(
            lambda pipeline, generation: pipeline.hget(shared_key(generation), path)
        )
        return int((stored or "0").partition(" ")[0])

    def apply(
        self,
        path: str,
        revision: int,
        etag: str,
        body: bytes,
        *,
        generation: str,
        event: str,
        news: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Update a copy to a document that the bucket holds, and record that it changed.

        If the copy is at least as new, nothing happens. An empty `body` is not stored.

        Args:
            event: the type of the event for the change.
            news: the fields of further events. Events of changes that the copy already contained are left
                out. If there was no copy, only the events of the last change are sent.
        """
        keys = [
            shared_key(generation),
            told_key(generation),
            events_key(generation),
            taken_key(generation),
        ]
        events = [{**one, "speaker": "", "document": path} for one in news]
        arguments: list[str | int] = [path, revision, f"{etag} {body.decode()}", event, json.dumps(events)]
        self._generation.call("share", generation, keys, arguments)

    def changes_since(self, after: SeenChanges | None) -> SeenChanges:
        """Return all recorded changes. `after` is the result of the last call."""
        asked: list[tuple[str, SeenChanges]] = []

        def ask(pipeline: Pipeline, generation: str) -> None:
            known = after if after and after.generation == generation else SeenChanges(generation)
            asked.append((generation, known))
            pipeline.zrangebyscore(told_key(generation), f"({known.position}", "+inf", withscores=True)

        [found] = self._generation.read(ask)
        generation, known = asked[-1]
        new = {path: int(number) for path, number in found}
        return SeenChanges(generation, max([known.position, *new.values()]), {**known.numbers, **new})

    def forget(self, paths: Iterable[str]) -> None:
        """Remove documents that the bucket no longer has."""
        names = list(paths)
        if names:
            self._generation.read(
                lambda pipeline, generation: (
                    pipeline.hdel(shared_key(generation), *names),
                    pipeline.zrem(told_key(generation), *names),
                )
            )


def _parse(stored: str | None) -> Base | None:
    revision, etag, body = (*str(stored or "").split(" ", 2), "", "", "")[:3]
    return Base(body.encode(), etag, int(revision)) if body else None
