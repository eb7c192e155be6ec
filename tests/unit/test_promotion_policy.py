"""Tests of the promotion policy of a voice: whether `default` moves to a newer version by itself."""

import pytest

from services.shared.model import aliases, artifacts, changes, promotion
from services.shared.model.document import SpeakerDocument
from services.shared.model.records import seal, unseal
from services.shared.model.stored_document import DocumentDamaged
from speaker_registry.errors import Conflict
from speaker_registry.schemas import PromotionPolicy
from tests.unit.test_changes import (
    COSY,
    NOTHING,
    QWEN,
    REQUIRED,
    artifact,
    failed,
    next_revision,
    published,
    registered,
)


def ready(document: SpeakerDocument, vuid: str) -> SpeakerDocument:
    return published(published(document, vuid, QWEN), vuid, COSY)


def under(document: SpeakerDocument, policy: PromotionPolicy) -> SpeakerDocument:
    about = document.about.having(promotion=policy)
    return next_revision(document, changes.edited(document, about, REQUIRED))


def held() -> SpeakerDocument:
    """Return a voice under `manual` whose second version is ready, as its first one is."""
    document = under(ready(registered(NOTHING, "v1"), "v1"), "manual")
    return ready(registered(document, "v2"), "v2")


def test_under_manual_the_default_moves_only_by_hand():
    """Somebody listens to each version before engines get it. What becomes ready must not overrule them."""
    document = held()
    assert document.default.vuid == "v1"
    assert "policy is `manual`" in str(promotion.held_back(document, document.newest, REQUIRED))
    moved = aliases.with_alias(document, "default", "v2", REQUIRED)
    assert moved.default.vuid == "v2"
    assert ready(registered(moved, "v3"), "v3").default.vuid == "v2"


def test_under_manual_a_default_that_failed_stays():
    """A version that somebody has listened to is mended, and is not replaced by one that nobody knows."""
    document = under(registered(registered(NOTHING, "v1"), "v2"), "manual")
    document = ready(failed(failed(document, "v1", QWEN), "v1", COSY), "v2")
    assert document.default.vuid == "v1"
    assert under(document, "on_ready").default.vuid == "v2"


def test_under_manual_the_default_stays_whatever_else_changes():
    """Every change that may move `default` asks the same rule: housekeeping, brought artifacts, cancels."""
    document = held()
    assert promotion.promoted(document, REQUIRED) is document
    assert promotion.promoted(document, [QWEN]) is document
    again = artifacts.with_artifact(
        document, "v2", QWEN.name, artifact("again", build=2), REQUIRED, extractor={}
    )
    assert again.default.vuid == "v1"
    assert failed(registered(document, "v3"), "v3", QWEN, code=artifacts.CANCELED).default.vuid == "v1"


def test_setting_manual_moves_nothing_and_on_ready_catches_up():
    """What was held back is taken at once. Otherwise housekeeping would take it, some time later."""
    document = held()
    assert under(document, "manual") is document
    assert under(document, "manual").aliases == document.aliases
    after = under(document, "on_ready")
    assert after.default.vuid == "v2"
    assert after.aliases["default"].moved == after.revision
    assert under(after, "manual").aliases == after.aliases
    half = published(registered(after, "v3"), "v3", QWEN)
    assert under(under(half, "manual"), "on_ready").aliases == after.aliases


def test_another_edit_moves_no_default():
    """Who writes a description must not be told that engines serve something else now."""
    document = registered(registered(NOTHING, "v1"), "v2")
    document = published(published(document, "v1", QWEN), "v2", QWEN)
    due = promotion.promoted(document, [QWEN])
    said = changes.edited(document, document.about.having(description="calm"), [QWEN])
    assert (due.default.vuid, said.default.vuid) == ("v2", "v1")


def test_a_move_by_hand_outlives_the_policy():
    """It stays until it is taken back, and taking it back lets nothing move that the policy keeps."""
    document = aliases.with_alias(held(), "default", "v1", REQUIRED)
    assert under(document, "on_ready").default.vuid == "v1"
    back = aliases.without_alias(document, "default", REQUIRED)
    assert (back.default.vuid, back.aliases["default"].by_hand) == ("v1", False)
    assert under(back, "on_ready").default.vuid == "v2"


def test_the_first_version_gets_the_default_under_either_policy():
    """Engines would find nothing otherwise. The policy ends with the voice and comes back with it."""
    document = held()
    with pytest.raises(Conflict, match="default points to it"):
        changes.without_version(document, "v1", now=5)
    gone = changes.deleted(document, now=5)
    assert changes.undeleted(gone).about.promotion == "manual"
    assert changes.undeleted(gone).default.vuid == "v1"
    anew = registered(gone, "v3")
    assert (anew.default.vuid, anew.about.promotion) == ("v3", "on_ready")
    alone = changes.without_version(aliases.with_alias(document, "default", "v2", REQUIRED), "v1", now=5)
    assert alone.default.vuid == "v2"


def test_a_document_with_an_unknown_policy_is_damaged():
    """Nobody guesses what it means."""
    members = unseal(held().to_bytes())
    members["about"]["promotion"] = "never"
    with pytest.raises(DocumentDamaged):
        SpeakerDocument.parse(seal(members))
