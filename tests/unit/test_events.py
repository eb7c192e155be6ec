"""Tests of what happened between two revisions of a document, in the words of the event stream."""

import pytest

from services.shared.model.aliases import with_alias
from services.shared.model.artifacts import with_artifact
from services.shared.model.changes import deleted
from services.shared.model.document import SpeakerDocument
from services.shared.model.events import ADMITTED, events_between
from tests.memory_registry import ECAPA, Registry, World


@pytest.fixture
def registry() -> Registry:
    return World().process()


def told(before: SpeakerDocument, after: SpeakerDocument) -> list[tuple[str, bool]]:
    return [(event.what, event.takes_away) for event in events_between(before, after)]


def test_a_voice_that_is_registered_takes_nothing_away(registry: Registry) -> None:
    registry.register("wren", 1)
    assert told(SpeakerDocument(), registry.document("wren")) == [
        ("voice.created", False),
        ("version.created", False),
    ]


def test_only_a_voice_that_was_not_there_is_a_new_voice(registry: Registry) -> None:
    """Lists of voices end when one is added, and not with each version of those that they have."""
    registry.register("wren", 1)
    one = registry.document("wren")
    registry.register("wren", 2)
    two = registry.document("wren")
    assert "version.created" in dict(told(one, two))
    assert "voice.created" not in dict(told(one, two))
    registry.delete("wren")
    gone = registry.document("wren")
    registry.register("wren", 3)
    assert ("voice.created", False) in told(gone, registry.document("wren"))
    assert ("voice.created", False) in told(two, registry.document("wren")), "the delete was not heard of"


def test_a_voice_that_was_there_before_is_no_news(registry: Registry) -> None:
    """A rebuild reads every document. Listeners must not take each of them for a new voice."""
    registry.register("wren", 1)
    registry.work()
    assert told(SpeakerDocument(), registry.document("wren")) == [(ADMITTED, False)]


def test_an_artifact_takes_something_away_if_there_was_one(registry: Registry) -> None:
    """An engine that holds the earlier one must ask again."""
    registry.register("wren", 1)
    none = registry.document("wren")
    registry.work()
    one = registry.document("wren")
    [made] = one.newest.artifacts["ecapa"]
    assert ("artifact.ready", False) in told(none, one)
    again = made.having(object="other", build=made.build + 1)
    more = with_artifact(one, one.newest.vuid, "ecapa", again, [ECAPA], extractor={})
    assert told(one, more) == [("artifact.ready", True)]
    [event] = events_between(one, more)
    assert event.fields == {"version_id": one.newest.vuid, "profile": "ecapa", "fingerprint": "f1"}


def test_a_lost_artifact_a_moved_alias_and_a_delete_take_something_away(registry: Registry) -> None:
    registry.register("wren", 1)
    registry.register("wren", 2)
    registry.work()
    document = registry.document("wren")
    others = {name: made for name, made in document.newest.artifacts.items() if name != "ecapa"}
    lost = document.having(versions=(document.versions[0], document.newest.having(artifacts=others)))
    assert told(document, lost) == [("artifact.void", True)]
    moved = with_alias(document, "default", document.versions[0].vuid, ())
    assert told(document, moved) == [("alias.updated", True)]
    assert told(document, with_alias(document, "studio", document.newest.vuid, ())) == [
        ("alias.updated", False)
    ]
    assert told(document, deleted(document, now=2_000_000_000)) == [("voice.deleted", True)]
    [event] = events_between(document, deleted(document, now=2_000_000_000))
    assert event.fields == {"first_id": document.versions[0].id}


def test_a_voice_that_is_pinned_moves_in_lists(registry: Registry) -> None:
    """Lists that lack the voice have to be made again, whatever else happened to it meanwhile."""
    registry.register("wren", 1)
    plain = registry.document("wren")
    registry.work()
    worked = registry.document("wren")
    pinned = worked.having(about=worked.about.having(pinned=True), revision=worked.revision + 1)
    assert told(worked, pinned) == [("voice.pinned", False)]
    assert told(plain, pinned)[0] == ("voice.pinned", False)
    assert told(pinned, worked.having(revision=pinned.revision + 1)) == [("voice.updated", False)]


def test_a_change_that_nobody_sees_is_told_all_the_same(registry: Registry) -> None:
    """Whoever compares revisions has to hear of each."""
    registry.register("wren", 1)
    document = registry.document("wren")
    assert told(document, document.having(revision=2)) == [("voice.updated", False)]
