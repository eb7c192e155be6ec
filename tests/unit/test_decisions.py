"""Tests of the decisions that a profile's document remembers, and of their place in a voice's past."""

from services.shared.model.changes import deleted
from services.shared.model.decisions import KEPT_DECISIONS, Decision
from services.shared.model.document import SpeakerDocument
from services.shared.model.encoders import Encoder
from services.shared.model.past import HistoryPosition, past_of
from services.shared.model.profile_document import (
    CampaignRecord,
    ProfileDocument,
    announced,
    promoted,
    promoted_by_campaign,
    with_campaign,
    with_promotion_at_the_end,
)
from tests.unit.test_changes import NOTHING, QWEN, published, registered


def after(before: ProfileDocument, changed: ProfileDocument, did: str, by: str = "key") -> ProfileDocument:
    return changed.following(before, None, at=100 + before.revision, by=by, did=did)


def come(document: ProfileDocument, fingerprint: str, *, untrained: bool = False) -> ProfileDocument:
    encoder = Encoder(profile="p", fingerprint=fingerprint, untrained=untrained)
    return after(document, announced(document, encoder), "announce", by="worker")


def promote(document: ProfileDocument, fingerprint: str) -> ProfileDocument:
    return after(document, promoted(document, fingerprint), "promote")


def told(document: ProfileDocument) -> list[tuple[str, str, str, str | None]]:
    return [(one.did, one.former_fingerprint, one.fingerprint, one.campaign) for one in document.decisions]


def test_each_way_in_which_an_encoder_becomes_current_is_told_by_its_name():
    """An operator must see whether a person or a worker changed what is served, and to what."""
    document = come(ProfileDocument(), "a", untrained=True)
    for fingerprint in "bc":
        document = come(document, fingerprint)
    document = promote(promote(document, "c"), "b")
    assert told(document) == [
        ("announce", "", "a", None),
        ("replace_untrained", "a", "b", None),
        ("promote", "b", "c", None),
        ("roll_back", "c", "b", None),
    ]
    first, last = document.decisions[0], document.decisions[-1]
    assert (first.by, last.by, last.revision, last.at) == ("worker", "key", 5, 104)
    assert ProfileDocument.parse(document.to_bytes()).decisions == document.decisions


def test_a_promotion_at_the_end_of_a_campaign_is_told_of_the_caller_that_asked_for_it():
    """The campaign's own id is told too, once: a way back to its encoder is another decision."""
    document = come(come(ProfileDocument(), "a"), "b")
    campaign = CampaignRecord(id="c1", profile="p", fingerprint="b", sample=1, promotes_by="operator")
    document = after(document, with_campaign(document, campaign.having(promotes_by="")), "start campaign")
    document = after(document, with_promotion_at_the_end(document, campaign), "promote when complete")
    document = after(document, promoted_by_campaign(document, "c1", now=9, result={}), "promote", "campaign")
    assert (document.decisions[-1].by, document.decisions[-1].campaign) == ("operator", "c1")
    document = promote(promote(document, "a"), "b")
    assert told(document)[-2:] == [("roll_back", "b", "a", None), ("roll_back", "a", "b", None)]


def test_the_last_decisions_are_kept():
    """Every process reads the document all the time, so it has to stay small."""
    document = come(come(ProfileDocument(), "a"), "b")
    for _ in range(KEPT_DECISIONS):
        document = promote(document, "b" if document.fingerprint == "a" else "a")
    assert len(document.decisions) == KEPT_DECISIONS
    assert document.decisions[-1].revision == document.revision
    assert document.decisions[0].did == "promote"


def test_a_document_of_a_former_release_has_no_decisions_yet():
    """The next decision begins the list."""
    document = come(come(ProfileDocument(), "a"), "b").having(decisions=())
    old = document.model_dump(mode="json")
    del old["decisions"]
    assert ProfileDocument.model_validate(old).decisions == ()
    assert told(promote(document, "b")) == [("promote", "a", "b", None)]


def test_a_promotion_stands_between_the_changes_before_and_after_it():
    """Only promotions from the voice's registration on concern it, of its own profiles."""
    voice: SpeakerDocument = registered(NOTHING, "v1").following(
        NOTHING, None, at=200, by="k", did="register"
    )
    voice = published(voice, "v1", QWEN)
    voice = registered(voice, "v2").following(voice, None, at=300, by="k", did="register")
    decisions = [
        Decision(revision=n, at=at, by="k", did="promote", fingerprint="b", former_fingerprint=former)
        for n, at, former in ((2, 199, "a"), (3, 250, "a"), (4, 260, ""), (5, 300, "a"))
    ]
    profiles = {QWEN.name: ProfileDocument(decisions=tuple(decisions))}
    first, second = (one.revision for one in voice.history)
    past = [one.position for one in past_of(voice, profiles)]
    assert past == [
        HistoryPosition(first),
        HistoryPosition(first, 250, 3, QWEN.name),
        HistoryPosition(second),
        HistoryPosition(second, 300, 5, QWEN.name),
    ]
    assert [HistoryPosition.parse(str(one)) for one in past] == past
    assert [HistoryPosition.parse(text) for text in ("", "x", "1-2", "-1", "1-2-3-", "9" * 19)] == [None] * 6


def test_promotions_after_its_deletion_do_not_concern_a_voice():
    """A deleted voice serves nothing, although it can be undeleted for a while."""
    voice: SpeakerDocument = registered(NOTHING, "v1").following(
        NOTHING, None, at=200, by="k", did="register"
    )
    voice = published(voice, "v1", QWEN)
    voice = deleted(voice, now=300).following(voice, None, at=300, by="k", did="delete")
    decisions = [
        Decision(revision=n, at=at, by="k", did="promote", fingerprint="b", former_fingerprint="a")
        for n, at in ((2, 299), (3, 301))
    ]
    past = past_of(voice, {QWEN.name: ProfileDocument(decisions=tuple(decisions))})
    first, second = (one.revision for one in voice.history)
    assert [one.position for one in past] == [
        HistoryPosition(first),
        HistoryPosition(first, 299, 2, QWEN.name),
        HistoryPosition(second),
    ]
