"""Rules of the registry that are broken on purpose, each of which the simulation must find as what it is.

A simulation that finds nothing proves nothing. Each is a mistake that a developer could make in good faith.
One more does no harm while another rule covers it, see `test_order_of_generations`.
"""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from services.registry_api.maintenance import garbage_sweep
from services.registry_api.operations import delete
from services.shared.bucket import documents
from services.shared.model import promotion, records
from services.shared.registry import change, speakers
from services.shared.view import generation, words
from tests import memory_redis, memory_registry, memory_store


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake, as other code in place of ours."""

    owner: Any
    """The module or class whose function is replaced."""
    function: str
    changes: Mapping[str, str]
    """Maps lines of the function's source to what stands there instead."""

    def made(self) -> Any:
        """Return a context in which the mistake is made."""
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


@dataclass(frozen=True, slots=True)
class Caught(Mistake):
    """A mistake that histories find."""

    found_as: str
    """A regular expression for the violations by which the mistake is known."""
    theme: str
    """The theme of the histories that find it."""
    soonest: int
    """The seed of a history that finds it. It is tried first."""
    steps: int = 300
    within: int = 100
    """Histories until it is found, at most, where changes of the rooms have changed the histories."""


MISTAKES: dict[str, Caught] = {
    "a swap does not look at its condition": Caught(
        owner=memory_store.MemoryStore,
        function="swap",
        changes={"if there != etag:": "if False:"},
        found_as="^8: revision",
        theme="many changes at once",
        soonest=0,
    ),
    "no change has an id": Caught(
        owner=documents,
        function="_has_change",
        changes={"return bool(made)": "return False"},
        found_as="^8: one .* was made twice",
        theme="lost replies",
        soonest=2,
    ),
    "nobody looks at `_view.json` after a commit": Caught(
        owner=generation.Generation,
        function="confirm",
        changes={"if self._document.read().generation != generation:": "if False:"},
        found_as="^(6|1):",
        theme="Redis that is doubled",
        soonest=126,
        steps=600,
    ),
    "garbage goes before its ids are fenced": Caught(
        owner=memory_registry,
        function="sweep",
        changes={
            'document = speakers.change(speaker_id, fence, by=BY, did="sweep", until=until)\n': (
                "document = fence(document)\n"
            ),
        },
        found_as="^4:",
        theme="sweeps, and machines that stand still",
        soonest=3,
    ),
    "`apply` trusts its caller's base": Caught(
        owner=memory_redis,
        function="_apply_one",
        changes={'if revision != new["base"]:': "if False:"},
        found_as="^5: the events",
        theme="many changes at once",
        soonest=1,
    ),
    "a number of a build is used again": Caught(
        owner=records.Version,
        function="highest_build",
        changes={
            "return self.builds.get(profile, {}).get(fingerprint, 0)": (
                "return max((one.build for one in self.artifacts.get(profile, ())"
                " if one.fingerprint == fingerprint), default=0)"
            )
        },
        found_as="^(3|1):",
        theme="artifacts that are lost",
        soonest=3,
    ),
    "the view counts by differences alone": Caught(
        owner=memory_redis,
        function="_apply_one",
        changes={
            'if revision != new["base"]:': "if False:",
            "count - int(stored.get(counted, 0))": (
                'count - (int(stored.get(counted, 0)) if revision == new["base"] else 0)'
            ),
        },
        found_as="^5: at rest the view counts",
        theme="many changes at once",
        soonest=1,
    ),
    "an id leaves `swept` at once": Caught(
        owner=garbage_sweep,
        function="with_swept",
        changes={"if one not in gone or now - since <= KEPT_SWEPT_SECONDS": "if one not in gone"},
        found_as="^4:",
        theme="sweeps, and machines that stand still",
        soonest=40,
    ),
    "what the view lacks is taken for missing": Caught(
        owner=speakers.Speakers,
        function="_found",
        changes={"document = self._from_bucket(": "document = NO_DOCUMENT if copy else self._from_bucket("},
        found_as="^6:",
        theme="Redis that is emptied",
        soonest=2,
    ),
    "a delete does not raise `life`": Caught(
        owner=delete,
        function="deleted",
        changes={"document.marks.life + 1": "document.marks.life"},
        found_as="^1: version .* is back after its delete",
        theme="uploads and deletes whose machines stand still",
        soonest=5,
    ),
    "a delete that finds nothing fences nothing": Caught(
        owner=memory_registry,
        function="delete",
        changes={"is_needed = document.live or may_come": "is_needed = document.live"},
        found_as="^1: version .* is back after its delete",
        theme="uploads that come after their delete",
        soonest=191,
    ),
    "a rollback under one run of Redis is not noticed": Caught(
        owner=words.Words,
        function="is_there",
        changes={"return self._gone_back != generation": "return True"},
        found_as="^(6|5):",
        theme="Redis that is rolled back",
        soonest=3,
        steps=600,
    ),
    "who stored bytes removes them when its change is refused": Caught(
        owner=memory_registry,
        function="publish",
        changes={
            "except (AlreadyMade, VersionGone) as error:\n": (
                "except Exception as error:\n"
                "            from services.shared.bucket.layout import artifact_key\n"
                "            blobs.remove([artifact_key(speaker_id, vuid, record.object)])\n"
                "            if not isinstance(error, AlreadyMade | VersionGone):\n"
                "                raise\n"
            )
        },
        found_as="^4:",
        theme="Redis whose replies are lost",
        soonest=8,
    ),
    "a change has time without end": Caught(
        owner=documents.Documents,
        function="deadline",
        changes={"+ CHANGE_SECONDS": "+ 1e9"},
        found_as="^1: a delete .* took a later version",
        theme="uploads and deletes that stop",
        soonest=2,
    ),
    "a commit is acknowledged before the view has it": Caught(
        owner=change.Change,
        function="_show",
        changes={"if committed.etag is not None:": "if committed.etag is not None and takes_away:"},
        found_as="^6:",
        theme="Redis whose replies are lost",
        soonest=0,
    ),
    "a promotion policy is not looked at": Caught(
        owner=promotion,
        function="_why_default_stays",
        changes={'if document.about.promotion == "manual":': "if False:"},
        found_as="^7: .* under `manual`",
        theme="promotion policies",
        soonest=1,
    ),
    "bytes that are lost are replaced unread": Caught(
        owner=memory_registry,
        function="publish",
        changes={"if lost is not None and blobs.has_artifact": "if False and blobs.has_artifact"},
        found_as="^1: .* lost a good artifact",
        theme="artifacts that seem to be lost",
        soonest=2,
        steps=600,
    ),
}
