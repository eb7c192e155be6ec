"""Rules of the registry that are broken on purpose, each of which the simulation must find as what it is.

A simulation that finds nothing proves nothing. Each is a mistake that a developer could make in good faith.
"""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from services.shared.bucket import documents
from services.shared.model import records
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
