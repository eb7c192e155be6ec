"""Rules of the registry that are broken on purpose, each of which the simulation must find as what it is.

A simulation that finds nothing proves nothing. Each is a mistake that a developer could make in good faith.
"""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from services.registry_api.maintenance import garbage_sweep
from services.registry_api.operations import delete
from services.shared.bucket import documents
from services.shared.model import records
from services.shared.registry import speakers
from services.shared.view import generation
from tests import memory_redis, memory_registry, memory_store


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake, as other code in place of ours."""

    found_as: str
    """A regular expression for the violations by which the mistake is known."""
    soonest: int
    """The seed of a history that finds it. It is tried first."""
    owner: Any
    """The module or class whose function is replaced."""
    function: str
    changes: Mapping[str, str] = field(default_factory=dict)
    """Maps lines of the function's source to what stands there instead."""
    within: int = 100
    """Histories until it is found, at most, where changes of the rooms have changed the histories."""

    def made(self) -> Any:
        """Return a context in which the mistake is made."""
        if self.owner is memory_redis:
            scripts = {self.function.strip("_"): self._replacement()}
            return patch.dict(memory_redis.SCRIPTS, scripts)
        return patch.object(self.owner, self.function, self._replacement())

    def _replacement(self) -> Callable[..., Any]:
        """Compile the function again, with other lines in it."""
        ours = inspect.getattr_static(self.owner, self.function)
        source = textwrap.dedent(inspect.getsource(ours))
        for right, wrong in self.changes.items():
            assert source.count(right) == 1, f"{self.function} has no longer one {right!r}"
            source = source.replace(right, wrong)
        made: dict[str, Any] = {}
        code = compile(source, f"<a mistake in {self.function}>", "exec")
        exec(code, vars(inspect.getmodule(ours)), made)
        return made[self.function]  # type: ignore[no-any-return]


MISTAKES: dict[str, Mistake] = {
    "a swap does not look at its condition": Mistake(
        "^8: revision",
        0,
        memory_store.MemoryStore,
        "swap",
        {"if there != etag:": "if False:"},
    ),
    "no change has an id": Mistake(
        "^8: one .* was made twice",
        13,
        documents.Documents,
        "change",
        {"and done(found.body)": "and False"},
    ),
    "nobody looks at `_view.json` after a commit": Mistake(
        "^(6|1):",
        12,
        generation.Generation,
        "confirm",
        {"if self._look_at_bucket().generation != generation:": "if False:"},
    ),
    "garbage goes before its ids are fenced": Mistake(
        "^4:",
        63,
        memory_registry,
        "sweep",
        {
            'document = speakers.change(speaker_id, fence, by=BY, did="sweep", until=until)\n': (
                "document = fence(document)\n"
            ),
        },
    ),
    "`apply` trusts its caller's base": Mistake(
        "^5: the events",
        2,
        memory_redis,
        "_apply",
        {"if revision != int(args[8]):": "if False:"},
    ),
    "a number of a build is used again": Mistake(
        "^(3|1):",
        15,
        records.Version,
        "highest_build",
        {
            "return self.builds.get(profile, {}).get(fingerprint, 0)": (
                "return max((one.build for one in self.artifacts.get(profile, ())"
                " if one.fingerprint == fingerprint), default=0)"
            )
        },
    ),
    "the view counts by differences alone": Mistake(
        "^5: at rest the view counts",
        7,
        memory_redis,
        "_apply",
        {
            "if revision != int(args[8]):": "if False:",
            "int(args[5 + place]) - int(stored.get(counted, 0))": (
                "int(args[5 + place]) - (int(stored.get(counted, 0)) if revision == int(args[8]) else 0)"
            ),
        },
    ),
}

UNPROVEN: dict[str, Mistake] = {
    "`_view.json` is written after Redis": Mistake(
        "^(6|1|5):",
        0,
        generation.Generation,
        "_begin_generation",
        {
            'if not self._swap(named, generation=generation, question=""):': "if False:",
            'log.info("view.begun", generation=generation)': (
                'self._swap(named, generation=generation, question="")'
            ),
        },
    ),
    "an id leaves `swept` at once": Mistake(
        "^4:",
        0,
        garbage_sweep,
        "with_swept",
        {"if one not in gone or now - since <= KEPT_SWEPT_SECONDS": "if one not in gone"},
    ),
    "what the view lacks is taken for missing": Mistake(
        "^6:",
        0,
        speakers.Speakers,
        "_document_of",
        {"return self._from_bucket(speaker_id)": "return _NOTHING"},
    ),
    "a delete does not raise `life`": Mistake(
        "^1: version .* is back after its delete",
        0,
        delete,
        "deleted",
        {"document.marks.life + 1": "document.marks.life"},
    ),
    "a delete that finds nothing fences nothing": Mistake(
        "^1: version .* is back after its delete",
        0,
        memory_registry,
        "delete",
        {"is_needed = document.live or may_come": "is_needed = document.live"},
    ),
    "a rollback under one run of Redis is not noticed": Mistake(
        "^(6|5):",
        0,
        generation.Generation,
        "_finds_its_word",
        {"return self._gone_back != stamp.generation": "return True"},
    ),
    "who stored bytes removes them when its change is refused": Mistake(
        "^4:",
        0,
        memory_registry,
        "publish",
        {
            "except (AlreadyMade, VersionGone) as error:\n": (
                "except Exception as error:\n"
                "            from services.shared.bucket.layout import artifact_key\n"
                "            blobs.remove([artifact_key(speaker_id, vuid, record.object)])\n"
                "            if not isinstance(error, AlreadyMade | VersionGone):\n"
                "                raise\n"
            )
        },
    ),
    "a change has time without end": Mistake(
        "^1: a delete .* took a later version",
        0,
        documents.Documents,
        "deadline",
        {"+ CHANGE_SECONDS": "+ 1e9"},
    ),
    "a commit is acknowledged before the view has it": Mistake(
        "^6:",
        0,
        speakers.Change,
        "_show",
        {"if committed.etag is not None:": "if committed.etag is not None and takes_away:"},
    ),
    "bytes that are lost are replaced unread": Mistake(
        "^1: .* lost a good artifact",
        0,
        memory_registry,
        "publish",
        {"if lost is not None and blobs.has_artifact": "if False and blobs.has_artifact"},
    ),
}
"""Mistakes for which no history is known yet that finds them. The tests do not run them."""
