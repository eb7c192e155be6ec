"""Tests of the history of a voice: what is remembered, for how long, and of whom."""

from services.shared.model import aliases, artifacts, changes
from services.shared.model.document import KEPT_ENTRIES, SpeakerDocument
from services.shared.model.records import About
from tests.unit.test_changes import COSY, NOTHING, QWEN, REQUIRED, failure, published, registered


def done(before: SpeakerDocument, after: SpeakerDocument, did: str, by: str = "key") -> SpeakerDocument:
    return after.following(before, None, at=100 + before.revision, by=by, did=did)


def told(document: SpeakerDocument) -> list[tuple[str, int | None, str | None]]:
    return [(one.did, one.version, one.alias) for one in document.history]


def lived() -> SpeakerDocument:
    """Return the document of a voice to which people have done several things."""
    document = done(NOTHING, registered(NOTHING, "v1"), "register")
    document = done(document, registered(document, "v2"), "register")
    document = done(document, published(document, "v2", QWEN), "publish", by="job")
    canceled = failure().having(code=artifacts.CANCELED)
    document = done(document, artifacts.with_failure(document, "v1", COSY.name, canceled, REQUIRED), "cancel")
    document = done(document, aliases.with_alias(document, "prod", "v2", REQUIRED), "alias", by="other")
    document = done(document, aliases.without_alias(document, "prod", REQUIRED), "alias")
    return done(document, changes.edited(document, About(pinned=True), REQUIRED), "edit")


def test_what_people_did_is_remembered_and_what_workers_did_is_not():
    """A worker publishes as often as it has to, and would push out what an operator looks for."""
    assert told(lived()) == [
        ("register", 1, None),
        ("register", 2, None),
        ("cancel", 1, None),
        ("alias", 2, "prod"),
        ("alias", None, "prod"),
        ("edit", None, None),
    ]
    entry = lived().history[3]
    assert (entry.revision, entry.at, entry.by) == (5, 104, "other")


def test_a_delete_is_remembered_until_the_erasure():
    """Whoever looks for a voice learns who deleted it. Of what was erased, nothing is told."""
    document = lived()
    document = done(document, changes.without_version(document, "v2", now=200), "delete_version")
    document = done(document, changes.deleted(document, now=200), "delete")
    assert told(document)[-2:] == [("delete_version", 2, None), ("delete", 1, None)]
    back = done(document, changes.undeleted(document), "undelete")
    assert told(back)[:-1] == told(document)
    for erased in (changes.without_lives(document, deleted_before=201), changes.erased(document)):
        assert done(document, erased, "erase", by="housekeeping").history == ()


def test_the_last_changes_are_kept():
    """A document has to stay small, however often somebody moves an alias."""
    document = lived()
    for number in range(KEPT_ENTRIES + 5):
        moved = aliases.with_alias(document, "prod", f"v{1 + number % 2}", ())
        document = done(document, moved, "alias")
    assert len(document.history) == KEPT_ENTRIES
    assert [one.revision for one in document.history] == list(
        range(document.revision - KEPT_ENTRIES + 1, document.revision + 1)
    )
    assert SpeakerDocument.parse(document.to_bytes()) == document


def test_a_delete_of_nothing_is_no_history():
    """It fences the name of a voice that never was. Whoever asks for such a voice must learn nothing."""
    fenced = done(NOTHING, changes.deleted(NOTHING, now=200), "delete")
    assert fenced.history == ()
