"""Tests of the changes of a speaker's document: each by itself, and any of them in any order."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.shared.model import aliases, artifacts, changes, swept
from services.shared.model.document import RECORD_BYTES, SpeakerDocument
from services.shared.model.profiles import BUILT_IN
from services.shared.model.promotion import held_back, promoted
from services.shared.model.records import (
    About,
    ArtifactRecord,
    ClipRecord,
    FailureRecord,
    Version,
    seal,
    unseal,
)
from services.shared.model.speaker import OpenJob, Speaker
from services.shared.model.status import last_good, profile_status
from services.shared.model.stored_document import KEPT_CHANGES, DocumentDamaged, DocumentNewer
from speaker_registry.artifact import canonical_json, sha256_digest
from speaker_registry.engine import Profile
from speaker_registry.errors import (
    AliasNotFound,
    ArtifactFailed,
    Conflict,
    IdempotencyKeyReused,
    QuotaExceeded,
    SpeakerRegistryError,
    VersionNotFound,
    VoiceDeleted,
    VoiceExists,
    VoiceNotFound,
)
from speaker_registry.schemas import PromotionPolicy

QWEN, COSY = BUILT_IN["qwen3-tts-0.6b"], BUILT_IN["cosyvoice3-0.5b"]
"""CosyVoice3 needs a transcript."""
REQUIRED = (QWEN, COSY)
CLIP = ClipRecord(
    sha256="a" * 64,
    size=1000,
    mime_type="audio/wav",
    seconds=5.0,
    sample_rate=24_000,
    channels=1,
    rendition_sha256="b" * 64,
)
NOTHING = SpeakerDocument()


def version(vuid: str, **members: Any) -> Version:
    known: dict[str, Any] = {"name": "Wren", "source": "audio", "consent": "c", "ref_text": "t", "clip": CLIP}
    return Version(vuid=vuid, **{**known, **members})


def artifact(object_id: str, *, fingerprint: str = "f1", build: int = 1, **members: Any) -> ArtifactRecord:
    return ArtifactRecord(
        object=object_id,
        fingerprint=fingerprint,
        build=build,
        digest="sha256:d",
        content_digest="sha256:c",
        size=10,
        tensors={},
        **members,
    )


def failure(
    *, fingerprint: str = "f1", build: int = 1, code: str = "extractor_error", ahead: bool = False
) -> FailureRecord:
    return FailureRecord(fingerprint=fingerprint, build=build, job="j", code=code, message="m", ahead=ahead)


def registered(
    document: SpeakerDocument, vuid: str, *, life: int | None = None, now: int = 100, **members: Any
) -> SpeakerDocument:
    after = changes.with_version(
        document,
        version(vuid, **members),
        REQUIRED,
        key="wren",
        life=document.marks.life if life is None else life,
        now=now,
    )
    return next_revision(document, after)


def published(document: SpeakerDocument, vuid: str, profile: Profile, **members: Any) -> SpeakerDocument:
    record = artifact(f"{vuid}-{profile.name}", **members)
    extractor = {"of": record.fingerprint}
    after = artifacts.with_artifact(document, vuid, profile.name, record, REQUIRED, extractor=extractor)
    return next_revision(document, after)


def failed(document: SpeakerDocument, vuid: str, profile: Profile, **members: Any) -> SpeakerDocument:
    after = artifacts.with_failure(document, vuid, profile.name, failure(**members), REQUIRED)
    return next_revision(document, after)


def next_revision(before: SpeakerDocument, after: SpeakerDocument) -> SpeakerDocument:
    return before if after is before else after.following(before, None, at=100, by="k", did="test")


def only(document: SpeakerDocument) -> Version:
    [found] = document.versions
    return found


# Versions


def test_versions_are_numbered_in_the_order_of_their_changes():
    """Numbers have no gaps, and dates rise although two versions come in one second."""
    document = registered(registered(NOTHING, "v1"), "v2")
    assert [(v.vuid, v.number, v.created_at) for v in document.versions] == [("v1", 1, 100), ("v2", 2, 101)]
    assert document.default.vuid == "v1"
    assert document.revision == 2


def test_a_version_that_is_there_already_changes_nothing():
    """A repeat after a lost reply must not make a second version."""
    document = registered(NOTHING, "v1")
    assert registered(document, "v1") is document


def test_an_upload_that_a_delete_overtook_is_refused():
    """What a delete covers stays deleted: the upload began in an earlier life."""
    document = changes.deleted(registered(NOTHING, "v1"), now=200)
    with pytest.raises(VoiceDeleted, match="Voice 'Wren' was deleted"):
        registered(document, "v2", life=1)
    assert only(registered(document, "v2")).number == 2


def test_a_deleted_version_is_not_registered_again():
    """A repeat of the upload may come after the version alone was deleted. The delete covers it."""
    document = registered(registered(NOTHING, "v1"), "v2")
    with pytest.raises(VoiceDeleted):
        registered(changes.without_version(document, "v2", now=1), "v2")


def test_a_full_document_takes_no_more_but_can_be_emptied():
    """What adds is refused with the limit, and what takes away always fits."""
    before = registered(NOTHING, "v1")
    after = registered(before, "v2", consent="c" * 5000)
    with pytest.raises(changes.DocumentFull, match="Accepted: 3000 bytes"):
        changes.fitting(before, after.to_bytes(), max_bytes=3000)
    assert changes.fitting(before, after.to_bytes(), max_bytes=9000) == after.to_bytes()
    emptied = changes.without_version(after, "v2", now=1)
    assert changes.fitting(emptied, changes.erased(emptied).to_bytes(), max_bytes=10)


def test_an_equal_request_is_answered_with_its_version():
    """An upload whose answer was lost is found by its content or its key. Another request cannot have it."""
    document = registered(NOTHING, "v1", request="r1", idempotency="k1")
    document = registered(document, "v2", request="r2", idempotency="k2")
    answers = [("r2", None), ("r2", "k9"), ("r1", "k1"), ("r1", None), ("r3", None)]
    found = [document.answer_to(*request) for request in answers]
    assert [v.vuid if v else None for v in found] == ["v2", "v2", "v1", None, None]
    with pytest.raises(IdempotencyKeyReused):
        document.answer_to("r2", "k1")


# Artifacts and failures


def test_two_workers_that_make_one_artifact_meet_in_the_document():
    """The second one comes too late, so what was served never changes its bytes."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    with pytest.raises(artifacts.AlreadyMade):
        artifacts.with_artifact(document, "v1", QWEN.name, artifact("other"), REQUIRED, extractor={})
    assert published(document, "v1", QWEN) is document


def test_a_further_build_is_served_and_the_former_ones_stay():
    """A forced extraction adds a build, and an engine may still read the one that it was told of."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    document = artifacts.with_artifact(
        document, "v1", QWEN.name, artifact("second", build=2), REQUIRED, extractor={"of": "other"}
    )
    served = only(document).artifact(QWEN.name, "f1")
    assert served is not None
    assert served.object == "second"
    assert document.names_of_bytes == {"v1", f"v1-{QWEN.name}", "second"}
    assert document.extractors == {"f1": {"of": "f1"}}


def test_a_lost_artifact_leaves_in_the_change_that_replaces_it():
    """No request falls into a gap between the two."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    replaced = artifacts.with_artifact(
        document,
        "v1",
        QWEN.name,
        artifact("second", build=2),
        REQUIRED,
        extractor={},
        instead_of=f"v1-{QWEN.name}",
    )
    assert replaced.names_of_bytes == {"v1", "second"}


def test_a_brought_artifact_is_never_dropped():
    """No encoder of ours can make it again, so neither lost bytes nor a new fingerprint take it away."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN, brought=True)
    assert artifacts.without_old_artifacts(document, {QWEN.name: ["f9"]}) is document
    after = artifacts.with_artifact(
        document,
        "v1",
        QWEN.name,
        artifact("second", build=2),
        REQUIRED,
        extractor={},
        instead_of=f"v1-{QWEN.name}",
    )
    assert f"v1-{QWEN.name}" in after.names_of_bytes


def test_artifacts_of_old_fingerprints_leave_by_a_change():
    """The current fingerprint and the one before stay. Nothing is said of profiles without a worker."""
    document = registered(NOTHING, "v1")
    for build, fingerprint in enumerate(("f1", "f2", "f3"), start=1):
        for profile in REQUIRED:
            document = artifacts.with_artifact(
                document,
                "v1",
                profile.name,
                artifact(f"{profile.name}-{build}", fingerprint=fingerprint),
                REQUIRED,
                extractor={},
            )
    after = artifacts.without_old_artifacts(document, {QWEN.name: ["f2", "f3"]})
    kept = {name: [one.fingerprint for one in made] for name, made in only(after).artifacts.items()}
    assert kept == {QWEN.name: ["f2", "f3"], COSY.name: ["f1", "f2", "f3"]}
    assert artifacts.without_old_artifacts(after, {QWEN.name: ["f2", "f3"]}) is after


def test_the_last_good_artifact_stays_until_there_is_a_newer_one():
    """Engines would lose the voice if its only artifact went before the current encoder has made another."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    assert artifacts.without_old_artifacts(document, {QWEN.name: ["f9"]}) is document
    ahead = artifact("ahead", fingerprint="f9", ahead=True)
    document = artifacts.with_artifact(document, "v1", QWEN.name, ahead, REQUIRED, extractor={})
    assert artifacts.without_old_artifacts(document, {QWEN.name: ["f9"]}) is document
    document = artifacts.without_ahead(document, {QWEN.name: "f9"})
    after = artifacts.without_old_artifacts(document, {QWEN.name: ["f9"]})
    assert [one.object for one in only(after).artifacts[QWEN.name]] == ["ahead"]


def test_what_was_made_ahead_of_a_promotion_is_served_after_it():
    """What was made ahead of a promotion that never came is not served."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    ahead = artifact("ahead", fingerprint="f9", ahead=True)
    document = artifacts.with_artifact(document, "v1", QWEN.name, ahead, REQUIRED, extractor={})
    assert artifacts.without_ahead(document, {QWEN.name: "f1", COSY.name: "f9"}) is document
    after = artifacts.without_ahead(document, {QWEN.name: "f9"})
    assert [one.ahead for one in only(after).artifacts[QWEN.name]] == [False, False]
    assert artifacts.without_ahead(after, {QWEN.name: "f9"}) is after


def test_a_canceled_build_never_comes_later():
    """A cancel uses up its build. The next extraction is another build, and may be published."""
    document = failed(registered(NOTHING, "v1"), "v1", QWEN, code=artifacts.CANCELED)
    with pytest.raises(artifacts.AlreadyMade):
        published(document, "v1", QWEN)
    again = published(document, "v1", QWEN, build=2)
    assert only(again).failures == {}


def test_a_failure_is_recorded_until_an_artifact_comes():
    """A later attempt may still succeed with the build that had failed."""
    document = failed(registered(NOTHING, "v1"), "v1", QWEN)
    assert failed(document, "v1", QWEN) is document
    assert only(published(document, "v1", QWEN)).failures == {}


def test_a_failure_does_not_hide_an_artifact_that_is_served():
    """A forced build that failed changes nothing. One with a new encoder is shown beside the old artifact."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    assert failed(document, "v1", QWEN, build=2) is document
    assert only(failed(document, "v1", QWEN, fingerprint="f2")).failures
    with pytest.raises(artifacts.AlreadyMade):
        failed(document, "v1", QWEN)


def test_a_failure_of_a_candidate_leaves_the_one_of_the_current_encoder():
    """A campaign that fails must not restart an extraction that was given up, nor explain it wrongly. Each
    encoder has its own failure, until it makes an artifact.
    """
    document = failed(registered(NOTHING, "v1"), "v1", QWEN, code="of_current")
    document = failed(document, "v1", QWEN, fingerprint="f9", code="of_candidate", ahead=True)
    codes = [only(document).failure(QWEN.name, one).code for one in ("f1", "f9", None)]
    assert codes == ["of_current", "of_candidate", "of_current"]
    made_ahead = published(document, "v1", QWEN, fingerprint="f9", ahead=True)
    assert [one.code for one in only(made_ahead).failures[QWEN.name]] == ["of_current"]
    made = published(document, "v1", QWEN)
    assert [one.code for one in only(made).failures[QWEN.name]] == ["of_candidate"]


def test_a_candidate_that_failed_does_not_count_before_its_promotion():
    """`default` must wait for the current encoder, whose extraction goes on, and not for the candidate."""
    document = registered(published(registered(NOTHING, "v1"), "v1", QWEN), "v2")
    document = published(document, "v2", COSY)
    waits = failed(document, "v2", QWEN, fingerprint="f9", ahead=True)
    assert held_back(waits, waits.newest, REQUIRED) is None
    promoted = artifacts.without_ahead(waits, {QWEN.name: "f9"})
    assert held_back(promoted, promoted.newest, REQUIRED) is not None
    assert not promoted.newest.failures[QWEN.name][0].ahead


def test_the_failures_of_many_encoders_do_not_fill_a_document():
    """An operator may try one candidate after the other."""
    document = failed(registered(NOTHING, "v1"), "v1", QWEN, code="of_current")
    for number in range(9):
        document = failed(document, "v1", QWEN, fingerprint=f"c{number}", ahead=True)
    kept = [one.fingerprint for one in only(document).failures[QWEN.name]]
    assert kept == ["f1", "c7", "c8"]


@pytest.mark.parametrize("late", [published, failed])
def test_a_worker_revives_nothing(late: Any):
    """A result for a version that was deleted is refused, also if the name was registered again."""
    document = registered(changes.deleted(registered(NOTHING, "v1"), now=1), "v2")
    with pytest.raises(artifacts.VersionGone):
        late(document, "v1", QWEN)


# Promotion


def test_the_default_moves_when_the_newer_version_serves_all_that_the_older_one_does():
    """An engine that resolves `default` must never lose its profile by an upload."""
    document = registered(registered(NOTHING, "v1"), "v2")
    document = published(published(document, "v1", QWEN), "v1", COSY)
    half = published(document, "v2", QWEN)
    assert half.default.vuid == "v1"
    whole = published(half, "v2", COSY)
    assert whole.default.vuid == "v2"
    assert whole.aliases["default"].moved == whole.revision


def test_the_default_waits_for_all_that_is_still_being_made():
    """A newer version that serves as much already may serve more in a moment. It is promoted once, whole."""
    document = published(failed(registered(NOTHING, "v1"), "v1", COSY), "v1", QWEN)
    half = published(registered(document, "v2"), "v2", QWEN)
    assert half.default.vuid == "v1"
    assert published(half, "v2", COSY).default.vuid == "v2"


def test_the_default_stays_at_what_an_engine_would_lose():
    """The newer version failed for a profile that the older one serves or may still serve."""
    waiting = registered(registered(NOTHING, "v1"), "v2")
    served = published(waiting, "v1", COSY)
    for document in (waiting, served):
        after = failed(published(document, "v2", QWEN), "v2", COSY)
        assert after.default.vuid == "v1"
        reason = held_back(after, after.newest, REQUIRED)
        assert reason is not None
        assert "version 2 will have no artifact for cosyvoice3-0.5b" in reason
    given_up = failed(published(failed(waiting, "v1", COSY), "v2", QWEN), "v2", COSY)
    assert given_up.default.vuid == "v2"


def test_the_default_stays_at_what_is_served_without_being_required():
    """A caller had a profile extracted that is not required, and resolves `default` for it since. The voice
    must not lose it by an upload. Once the newer version has it too, the alias moves.
    """
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    document = artifacts.with_artifact(document, "v1", COSY.name, artifact("extra"), [QWEN], extractor={})
    newer = changes.with_version(document, version("v2"), [QWEN], key="wren", life=1, now=100)
    after = artifacts.with_artifact(newer, "v2", QWEN.name, artifact("second"), [QWEN], extractor={})
    assert after.default.vuid == "v1"
    assert COSY.name in str(held_back(after, after.newest, [QWEN]))
    whole = artifacts.with_artifact(after, "v2", COSY.name, artifact("third"), [QWEN], extractor={})
    assert whole.default.vuid == "v2"


def test_the_default_moves_although_a_profile_can_never_be_made():
    """A version without a transcript is done without a profile that needs one."""
    document = registered(registered(NOTHING, "v1", ref_text=None), "v2", ref_text=None)
    assert held_back(document, document.newest, REQUIRED) is None
    assert published(document, "v2", QWEN).default.vuid == "v2"


def test_a_move_by_hand_stays_until_it_is_taken_back():
    """A caller who rolled a voice back must not be overruled by the next upload."""
    document = published(published(registered(NOTHING, "v1"), "v1", QWEN), "v1", COSY)
    document = registered(aliases.with_alias(document, "default", "v1", REQUIRED), "v2")
    document = published(published(document, "v2", QWEN), "v2", COSY)
    assert document.default.vuid == "v1"
    assert "by hand" in str(held_back(document, document.newest, REQUIRED))
    assert aliases.without_alias(document, "default", REQUIRED).default.vuid == "v2"


def test_the_newest_complete_version_is_promoted_in_whatever_order_they_end():
    """A slow extraction of an older version must not turn the voice back."""
    document = published(published(registered(NOTHING, "v1"), "v1", QWEN), "v1", COSY)
    document = registered(registered(document, "v2"), "v3")
    for vuid in ("v3", "v2"):
        document = published(published(document, vuid, QWEN), vuid, COSY)
        assert document.default.vuid == "v3"


def test_a_version_that_serves_nothing_is_left_for_one_that_serves_something():
    """The extraction of the first clip failed for good in every profile."""
    document = failed(failed(registered(NOTHING, "v1"), "v1", QWEN), "v1", COSY)
    newer = published(registered(document, "v2"), "v2", QWEN)
    assert failed(newer, "v2", COSY).default.vuid == "v2"


def test_the_default_never_moves_back():
    """An older version that becomes ready late is no newer one."""
    document = registered(registered(NOTHING, "v1"), "v2")
    document = aliases.with_alias(document, "default", "v2", REQUIRED)
    document = aliases.without_alias(document, "default", REQUIRED)
    assert published(published(document, "v1", QWEN), "v1", COSY).default.vuid == "v2"


# Aliases and deletes


def test_aliases_point_only_to_what_is_there():
    """A move to a deleted or foreign version is refused, and an unknown alias is told from the known ones."""
    document = registered(registered(NOTHING, "v1"), "v2")
    moved = aliases.with_alias(document, "prod", "v2", REQUIRED)
    assert moved.resolve("prod", lambda _: True).number == 2
    assert aliases.with_alias(moved, "prod", "v2", REQUIRED) is moved
    with pytest.raises(VersionNotFound):
        aliases.with_alias(document, "prod", "v9", REQUIRED)
    for look in (
        lambda: document.resolve("prod", lambda _: True),
        lambda: aliases.without_alias(document, "prod", REQUIRED),
    ):
        with pytest.raises(AliasNotFound):
            look()
    assert aliases.without_alias(moved, "prod", REQUIRED).aliases == document.aliases


def test_every_state_of_an_alias_has_a_revision_of_its_own():
    """Its ETag is made of it, so a caller that saw another state must not take this one for it."""
    document = next_revision(NOTHING, registered(registered(NOTHING, "v1"), "v2"))
    seen = [document.aliases["default"]]
    for vuid in ("v2", "v1", None, "v1"):
        after = (
            aliases.with_alias(document, "default", vuid, REQUIRED)
            if vuid
            else aliases.without_alias(document, "default", REQUIRED)
        )
        document = next_revision(document, after)
        seen.append(document.aliases["default"])
    assert [one.by_hand for one in seen] == [False, True, True, False, True]
    assert [one.moved for one in seen] == [1, 2, 3, 4, 5]


def test_no_alias_moves_to_a_version_that_failed():
    """Engines would lose the voice. The message says which extraction has to be repeated."""
    document = failed(registered(registered(NOTHING, "v1"), "v2"), "v2", COSY)
    with pytest.raises(ArtifactFailed, match=f"extraction of version 2 .* for {COSY.name} failed"):
        aliases.with_alias(document, "prod", "v2", REQUIRED)
    assert aliases.with_alias(document, "prod", "v2", [QWEN]).aliases["prod"].vuid == "v2"
    mended = published(document, "v2", COSY, build=2)
    assert aliases.with_alias(mended, "prod", "v2", REQUIRED).aliases["prod"].vuid == "v2"


def test_a_voice_has_a_limited_number_of_aliases():
    """Each reader of the voice gets all of them. Those that there are can still be moved."""
    document = registered(registered(NOTHING, "v1"), "v2")
    for number in range(aliases.MAX_ALIASES - 1):
        document = aliases.with_alias(document, f"a{number}", "v1", REQUIRED)
    with pytest.raises(QuotaExceeded, match="32 aliases"):
        aliases.with_alias(document, "more", "v1", REQUIRED)
    assert aliases.with_alias(document, "a0", "v2", REQUIRED).aliases["a0"].vuid == "v2"


def test_references_stand_for_one_version_each():
    """`latest` is the newest complete version, and a number never stands for another one."""
    document = registered(registered(NOTHING, "v1"), "v2")
    assert document.resolve("latest", lambda v: v.number == 1).number == 1
    assert document.resolve("latest", lambda _: False).number == 2
    assert document.resolve(2, lambda _: True).vuid == "v2"
    with pytest.raises(VersionNotFound, match=r"no version 3\. The newest is 2"):
        document.resolve(3, lambda _: True)


def test_one_version_is_deleted_unless_an_alias_points_to_it():
    """The refusal names the aliases. The last version takes the voice along."""
    document = registered(registered(NOTHING, "v1"), "v2")
    with pytest.raises(Conflict, match="Version 1 is in use: default points to it"):
        changes.without_version(document, "v1", now=1)
    both = aliases.with_alias(document, "prod", "v1", REQUIRED)
    with pytest.raises(Conflict, match=r"default, prod point to it\..* Move the aliases first"):
        changes.without_version(both, "v1", now=1)
    one = changes.without_version(document, "v2", now=1)
    assert [v.vuid for v in one.versions] == ["v1"]
    assert one.marks.life == document.marks.life
    assert "v2" in one.names_of_bytes
    none = changes.without_version(one, "v1", now=2)
    assert (none.live, none.marks.life) == (False, document.marks.life + 1)
    with pytest.raises(VersionNotFound):
        changes.without_version(none, "v1", now=3)


def test_a_voice_is_known_by_its_first_version_also_when_that_is_deleted():
    """The id belongs to one life of the name, comes back with it, and is given to no other version."""
    document = registered(registered(registered(NOTHING, "v1"), "v2"), "v3")
    document = aliases.with_alias(document, "default", "v3", REQUIRED)
    one = changes.without_version(changes.without_version(document, "v1", now=1), "v2", now=2)
    assert (one.first_id, document.first_id) == ("v1", "v1")
    assert [one.is_known_by(known) for known in ("v1", "v2", "v3")] == [True, False, True]
    later = changes.without_lives(one, deleted_before=5)
    assert (later.first_id, "v1" in later.version_ids, later.dead) == ("v1", True, ())
    gone = changes.deleted(later, now=6)
    assert (gone.first_id, gone.is_known_by("v1"), "v1" in gone.version_ids) == (None, False, True)
    assert changes.undeleted(gone).first_id == "v1"
    assert registered(gone, "v4").first_id == "v4"
    by_former_release = later.having(
        marks=gone.marks, versions=(), aliases={}
    )  # it keeps what it does not know
    assert registered(by_former_release, "v4").first_id == "v4"
    assert changes.erased(later).version_ids == frozenset()


def test_an_undelete_brings_back_what_was_there():
    """Everything but `life` is as it was before the delete, and uploads of that time stay refused."""
    document = published(registered(registered(NOTHING, "v1"), "v2"), "v1", QWEN)
    back = changes.undeleted(changes.deleted(document, now=5))
    assert (back.versions, back.default, back.dead) == (document.versions, document.default, ())
    assert back.marks.life == document.marks.life + 1
    with pytest.raises(VoiceDeleted):
        registered(back, "v3", life=document.marks.life)


def test_what_people_say_of_a_voice_lives_as_long_as_the_voice():
    """It comes back with the voice, is not passed on to the next voice of the name, and leaves no trace."""
    about = About(description="calm", labels={"team": "blue"}, pinned=True, promotion="manual")
    document = changes.edited(registered(NOTHING, "v1"), about, REQUIRED)
    assert changes.edited(document, about, REQUIRED) is document
    assert document.counts.text_bytes == registered(NOTHING, "v1").counts.text_bytes + len("calmteamblue")
    gone = changes.deleted(document, now=5)
    assert gone.about == registered(gone, "v2").about == About()
    assert changes.undeleted(gone).about == about
    for erased in (changes.erased(document), changes.without_lives(gone, deleted_before=6)):
        assert b"calm" not in erased.to_bytes()


def test_an_undelete_is_refused_where_it_would_harm():
    """It is refused beside a live voice, and after the bytes were erased."""
    gone = changes.deleted(registered(NOTHING, "v1"), now=5)
    with pytest.raises(VoiceExists, match="it was restored already, or registered again"):
        changes.undeleted(registered(gone, "v2"))
    with pytest.raises(VoiceExists, match="is not deleted"):
        changes.undeleted(changes.undeleted(gone))
    with pytest.raises(VoiceNotFound):
        changes.undeleted(changes.without_lives(gone, deleted_before=6))


def test_an_undelete_brings_no_single_version_back_as_a_voice():
    """The store's date may have been set back, so that the voice's bytes went before those of one version."""
    document = changes.without_version(registered(registered(NOTHING, "v1"), "v2"), "v2", now=10)
    left = changes.without_lives(changes.deleted(document, now=5), deleted_before=7)
    assert left.names_of_bytes == {"v2"}
    with pytest.raises(VoiceNotFound):
        changes.undeleted(left)


def test_a_delete_that_finds_nothing_still_refuses_uploads_on_their_way():
    """The answer was 404, so an upload that began before it must not appear afterwards."""
    fenced = changes.deleted(NOTHING, now=1)
    assert (fenced.marks.life, fenced.dead) == (2, ())
    with pytest.raises(VoiceDeleted):
        registered(changes.deleted(NOTHING, now=1), "v1", life=1)


def test_an_erasure_leaves_nothing_of_a_person():
    """Names, texts and members of newer releases go. Marks stay, so that no number comes twice."""
    document = registered(NOTHING, "v1", consent="secret").having(newer={"said": "secret"})
    document = swept.with_swept(document, ["x"], gone=[], now=1)
    left = changes.without_lives(changes.deleted(document, now=5), deleted_before=6)
    assert b"secret" not in left.to_bytes()
    assert b"wren" not in left.to_bytes().lower()
    assert (left.marks.number, left.swept) == (1, {"x": 1})
    assert left.marks.life == document.marks.life + 1
    with pytest.raises(VoiceDeleted):
        registered(left, "v2", life=document.marks.life)
    assert changes.without_lives(left, deleted_before=100) is left


def test_lives_within_the_grace_period_stay():
    """Only what was deleted long enough ago is forgotten, and a live voice is not erased with it."""
    document = registered(changes.deleted(registered(NOTHING, "v1"), now=5), "v2")
    assert changes.without_lives(document, deleted_before=5) is document
    after = changes.without_lives(document, deleted_before=6)
    assert (after.names_of_bytes, after.key) == ({"v2"}, "wren")


def test_forgotten_versions_are_named_until_their_bytes_are_removed():
    """An erasure that was interrupted goes on with them, also after the voice was erased as a whole."""
    document = changes.deleted(registered(changes.deleted(registered(NOTHING, "v1"), now=5), "v2"), now=7)
    one = changes.without_lives(document, deleted_before=6)
    both = changes.without_lives(one, deleted_before=8)
    assert (one.erasing, both.erasing) == (("v1",), ("v1", "v2"))
    left = changes.with_bytes_removed(both, ["v1"])
    assert left.erasing == ("v2",)
    assert changes.with_bytes_removed(left, ["v1"]) is left
    assert b"erasing" not in changes.with_bytes_removed(left, ["v2"]).to_bytes()


def test_what_was_collected_is_never_named_again():
    """Bytes are deleted only after their ids are fenced, and what the document names is never fenced."""
    document = registered(NOTHING, "v1")
    fenced = swept.with_swept(document, ["v1", "v2"], gone=[], now=10)
    assert fenced.swept == {"v2": 10}
    assert swept.with_swept(fenced, ["v2"], gone=[], now=20) is fenced
    with pytest.raises(swept.Swept):
        registered(fenced, "v2")
    other = swept.with_swept(document, [f"v1-{QWEN.name}"], gone=[], now=10)
    with pytest.raises(swept.Swept):
        published(other, "v1", QWEN)


def test_a_collected_id_leaves_after_thirty_days_if_its_bytes_are_gone():
    """An upload that stood still for days must still be refused."""
    fenced = swept.with_swept(NOTHING, ["v1", "v2"], gone=[], now=0)
    late = swept.KEPT_SWEPT_SECONDS + 1
    assert swept.with_swept(fenced, [], gone=["v1"], now=late - 1) is fenced
    assert swept.with_swept(fenced, [], gone=["v1"], now=late).swept == {"v2": 0}


# Any changes in any order

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("register", "publish", "fail", "cancel", "move", "back", "delete", "remove"),
                *("undelete", "forget", "erase", "sweep", "drop", "policy"),
            ]
        ),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    max_size=40,
)

HELD_BY_POLICY = [
    ("register", 0, 0),
    ("policy", 0, 1),
    ("register", 1, 0),
    ("publish", 1, 0),
    ("publish", 1, 1),
]
"""The second version is ready under the policy `manual`. Random steps hardly ever do this."""


def carried_out(document: SpeakerDocument, step: Step, now: int) -> SpeakerDocument:
    """Carry out one step as processes do, or return the document if it is refused."""
    what, one, two = step
    vuid, profile = f"v{one}", REQUIRED[two % 2]
    object_id, alias = f"o{now}", ("default", "prod", "test")[two]
    record = artifact(object_id, build=two + 1, fingerprint=f"f{one % 2}")
    policy: PromotionPolicy = "manual" if two else "on_ready"
    ended = failure(build=two + 1, fingerprint=f"f{one % 2}")
    steps: dict[str, Any] = {
        "register": lambda: changes.with_version(
            document,
            version(vuid),
            REQUIRED,
            key="wren",
            life=max(1, document.marks.life - two // 2),
            now=now,
        ),
        "publish": lambda: artifacts.with_artifact(
            document, vuid, profile.name, record, REQUIRED, extractor={}
        ),
        "fail": lambda: artifacts.with_failure(document, vuid, profile.name, ended, REQUIRED),
        "cancel": lambda: artifacts.with_failure(
            document, vuid, profile.name, ended.having(code=artifacts.CANCELED), REQUIRED
        ),
        "move": lambda: aliases.with_alias(document, alias, vuid, REQUIRED),
        "back": lambda: aliases.without_alias(document, alias, REQUIRED),
        "delete": lambda: changes.deleted(document, now=now),
        "remove": lambda: changes.without_version(document, vuid, now=now),
        "undelete": lambda: changes.undeleted(document),
        "forget": lambda: changes.without_lives(document, deleted_before=now - one),
        "erase": lambda: changes.without_lives(document, deleted_before=now + 1),
        "sweep": lambda: swept.with_swept(document, [vuid, object_id], gone=[vuid], now=now),
        "drop": lambda: artifacts.without_old_artifacts(document, {profile.name: ["f1"]}),
        "policy": lambda: changes.edited(document, document.about.having(promotion=policy), REQUIRED),
    }
    try:
        return next_revision(document, steps[what]())
    except SpeakerRegistryError:
        return document


def history(steps: Sequence[Step]) -> list[SpeakerDocument]:
    documents = [NOTHING]
    for now, step in enumerate(steps, start=1000):
        documents.append(carried_out(documents[-1], step, now))
    return documents


@given(STEPS)
def test_whatever_happens_the_document_stays_whole(steps: list[Step]):
    """Aliases have a target, nothing that was collected is named, numbers are unique and marks never fall."""
    documents = history(steps)
    for before, after in pairwise(documents):
        targets = {version.vuid for version in after.versions}
        assert {alias.vuid for alias in after.aliases.values()} <= targets
        assert ("default" in after.aliases) == after.live
        assert after.names_of_bytes.isdisjoint(after.swept)
        numbers = [version.number for version in after.versions]
        assert numbers == sorted(set(numbers))
        assert max(numbers, default=0) <= after.marks.number
        for mark in ("number", "created_at", "life"):
            assert getattr(after.marks, mark) >= getattr(before.marks, mark)


@given(STEPS)
def test_whatever_happens_a_build_has_one_content_and_a_number_one_version(steps: list[Step]):
    """An engine that keeps what it fetched by version and build must never see other bytes under them."""
    builds: dict[tuple[str, str, str, int], str] = {}
    numbers: dict[int, str] = {}
    for document in history(steps):
        for one in document.versions:
            assert numbers.setdefault(one.number, one.vuid) == one.vuid
            for profile, made in one.artifacts.items():
                for record in made:
                    key = (one.vuid, profile, record.fingerprint, record.build)
                    assert builds.setdefault(key, record.object) == record.object
                    assert record.build <= one.highest_build(profile, record.fingerprint)


@given(STEPS)
@example(HELD_BY_POLICY)
def test_whatever_happens_the_default_keeps_what_it_serves(steps: list[Step]):
    """By itself `default` moves only to a newer version, never away from a required profile, and never under
    the promotion policy `manual`.
    """
    documents = history(steps)
    for step, before, after in zip(steps, documents, documents[1:], strict=False):
        if step[0] not in {"register", "publish", "fail", "cancel", "back", "policy"} or not before.live:
            continue
        if after.default.vuid != before.default.vuid:
            assert after.default.number > before.default.number
            assert after.default.served >= before.default.served
            assert not before.aliases["default"].by_hand or step[0] == "back"
            assert after.about.promotion == "on_ready"


@given(STEPS)
def test_whatever_happens_a_document_comes_back_as_it_was_stored(steps: list[Step]):
    """A process decides on the document that it reads, so nothing may change on the way."""
    document = history(steps)[-1]
    assert SpeakerDocument.parse(document.to_bytes()) == document
    assert SpeakerDocument.parse(document.to_bytes()).to_bytes() == document.to_bytes()


@pytest.mark.parametrize(
    "members",
    [{}, {"at": 1, "by": "wren"}, {"revision": 2, "é": [None]}, {"at": 1, "digests": {}, "z": "\u2028"}],
)
def test_a_sealed_document_is_canonical_json(members: dict[str, Any]):
    """The digest stands where the order of the members puts it, and covers all the others."""
    digest = sha256_digest(canonical_json(members).encode())
    assert seal(members) == canonical_json({**members, "digest": digest}).encode()
    assert unseal(seal({**members, "digest": "sha256:of another revision"})) == members


@given(STEPS, st.sampled_from(["register", "publish", "fail", "cancel", "move", "drop", "sweep"]))
def test_whatever_happens_a_change_that_is_repeated_is_made_once(steps: list[Step], what: str):
    """After a lost reply a change is decided again, on the document in which it may be already."""
    document = history(steps)[-1]
    step = (what, 1, 0)
    once = carried_out(document, step, 5000)
    assert carried_out(once, step, 5000) is once


@given(STEPS)
def test_whatever_happens_an_undelete_undoes_a_delete(steps: list[Step]):
    """A delete by mistake can be undone without any loss."""
    document = history(steps)[-1]
    if document.live:
        back = changes.undeleted(changes.deleted(document, now=9000))
        assert (back.versions, back.default, back.dead) == (
            document.versions,
            document.default,
            document.dead,
        )
        assert back.counts == document.counts


# Stored documents


def test_members_of_a_newer_release_are_kept():
    """An older release that rewrites a document must not lose what a newer one wrote, nested or not."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    members = unseal(document.to_bytes())
    members["labels"] = {"a": 1}
    members["versions"][0]["mood"] = "calm"
    members["versions"][0]["clip"]["loudness"] = -20.5
    members["versions"][0]["artifacts"][QWEN.name][0]["computed_on"] = "gpu"
    members["marks"]["highest"] = 7
    after = published(SpeakerDocument.parse(seal(members)), "v1", COSY)
    stored = json.loads(after.to_bytes())
    assert (stored["labels"], stored["marks"]["highest"]) == ({"a": 1}, 7)
    [one] = stored["versions"]
    assert (one["mood"], one["clip"]["loudness"]) == ("calm", -20.5)
    assert one["artifacts"][QWEN.name][0]["computed_on"] == "gpu"


@pytest.mark.parametrize(
    "members", [{"format": 2}, {"needs": ["consent-ended"]}, {"format": 2, "versions": "elsewhere"}]
)
def test_a_document_that_needs_a_newer_release_is_not_guessed_at(members: dict[str, Any]):
    """A rule that an older release does not know, such as a consent that ended, must not be ignored by it."""
    with pytest.raises(DocumentNewer):
        SpeakerDocument.parse(seal({**unseal(NOTHING.to_bytes()), **members}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        NOTHING.to_bytes()[:-2],
        NOTHING.to_bytes().replace(b"0", b"1"),
        seal({"marks": 3}),
        seal({"versions": [{"vuid": "v1"}]}),
        seal({"format": "one"}),
        seal({"needs": 3, "format": None}),
    ],
)
def test_a_damaged_document_is_told_from_none(body: bytes):
    """A document that was cut or edited by hand is damaged. Only a missing one is an empty speaker."""
    with pytest.raises(DocumentDamaged):
        SpeakerDocument.parse(body)
    assert SpeakerDocument.parse(None) == NOTHING


def test_after_damage_numbers_go_on_far_above():
    """Nobody knows what the damaged document said, so nothing it may have given out is used again."""
    known = registered(NOTHING, "v1")
    by_copy, by_date = (
        SpeakerDocument.after_damage(known, 50),
        SpeakerDocument.after_damage(None, 1_795_000_000),
    )
    assert (by_copy.marks.number, by_copy.marks.life, by_copy.revision) == (1001, 1001, 1001)
    assert (by_date.marks.number, by_date.marks.life) == (1_795_000_000, 1_795_000_000)
    assert only(registered(by_copy, "v2")).number == 1002


def test_the_last_change_ids_are_kept():
    """A lost reply is settled by the id of its change, and the document must not grow with each change."""
    document = NOTHING
    for number in range(KEPT_CHANGES + 5):
        document = document.following(document, f"id{number}", at=number, by="k", did="move")
    assert len(document.changes) == KEPT_CHANGES
    assert document.changes[f"id{KEPT_CHANGES + 4}"] == document.revision
    assert "id4" not in document.changes
    told = [document.has_change(change_id, 6) for change_id in ("id5", "of a swap that was refused")]
    assert told == [True, False], "another change made revision 6"
    assert document.has_change("id4", 5) is None
    assert NOTHING.following(NOTHING, "id", at=0, by="k", did="move").has_change("other", 0) is False


def test_a_speaker_counts_what_is_live_and_apart_from_it_what_was_deleted():
    """What was deleted leaves room for other voices, and is in the bucket and in Redis all the same."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    assert (document.counts.voices, document.counts.bytes, document.counts.text_bytes) == (1, 1006, 6)
    counts = changes.deleted(document, now=1).counts
    assert (counts.voices, counts.bytes, counts.text_bytes) == (0, 0, 0)
    assert (counts.deleted_bytes, counts.deleted_text_bytes) == (1006, 6 + RECORD_BYTES)
    again = registered(changes.deleted(document, now=1), "v2")
    both = changes.deleted(again, now=2)
    assert both.counts.deleted_bytes == 1006 + again.counts.bytes
    assert changes.without_lives(both, deleted_before=2).counts.deleted_bytes == again.counts.bytes
    assert changes.without_lives(both, deleted_before=9).counts == NOTHING.counts


# Status


def state_of(document: SpeakerDocument, profile: Profile, fingerprint: str | None, *jobs: OpenJob) -> str:
    speaker = Speaker(document, jobs)
    return profile_status(speaker, document.newest, profile, fingerprint).state


def test_ready_wins_over_a_job_that_over_failed_and_that_over_pending():
    """A caller is told the best that is true of the current fingerprint."""
    document = registered(NOTHING, "v1")
    job = OpenJob("v1", QWEN.name, "f1", "j1", processing=False)
    assert state_of(document, QWEN, "f1") == "pending"
    broken = failed(document, "v1", QWEN)
    assert state_of(broken, QWEN, "f1") == "failed"
    assert state_of(broken, QWEN, "f2") == "pending"
    assert state_of(broken, QWEN, "f1", job) == "pending"
    assert state_of(broken, QWEN, "f1", replace(job, processing=True)) == "processing"
    assert state_of(broken, QWEN, "f1", replace(job, processing=True, fingerprint="f2")) == "failed"
    assert state_of(published(broken, "v1", QWEN), QWEN, "f1", replace(job, processing=True)) == "ready"


def test_an_artifact_of_a_former_encoder_is_served_until_there_is_a_current_one():
    """A voice must not fall silent when a profile gets another encoder. What was brought with the version is
    current under every encoder.
    """
    document = published(registered(NOTHING, "v1"), "v1", QWEN)
    status = profile_status(Speaker(document), document.newest, QWEN, "f2", ["f1"])
    assert (status.state, status.state_of_current, status.of_former) == ("ready", "pending", True)
    only_current = profile_status(Speaker(document), document.newest, QWEN, "f2")
    assert (only_current.state, only_current.artifact) == ("pending", None)
    assert state_of(document, QWEN, None) == "ready"
    given_with_it = published(registered(NOTHING, "v1"), "v1", QWEN, fingerprint="given")
    assert state_of(given_with_it, QWEN, "f2") == "ready"


def test_a_given_embedding_is_served_whatever_was_added_to_it():
    """Former releases let an artifact be uploaded for a version that was made from an embedding."""
    document = registered(NOTHING, "v1", clip=None, source="embedding", embedding_width=1024)
    document = published(document, "v1", QWEN, fingerprint="given")
    added = artifact("o2", fingerprint="f1", build=2, brought=True)
    version = artifacts.with_artifact(document, "v1", QWEN.name, added, REQUIRED, extractor={}).newest
    served = [version.artifact(QWEN.name, fingerprint) for fingerprint in (None, "f1", "f2")]
    assert [one and one.fingerprint for one in served] == ["given"] * 3


def test_an_artifact_that_was_made_ahead_is_served_for_its_own_encoder_alone():
    """The last good artifact is one of an encoder that was current, never one that nobody has promoted."""
    document = registered(NOTHING, "v1")
    ahead = published(document, "v1", QWEN, fingerprint="f2", ahead=True).newest
    assert ahead.artifact(QWEN.name) is ahead.artifact(QWEN.name, "f1") is None
    assert ahead.artifact(QWEN.name, "f2") is not None
    assert ahead.served == set()
    assert last_good(ahead, QWEN.name, ()) is last_good(ahead, QWEN.name, ("f1",)) is None
    assert last_good(ahead, QWEN.name, ("f3", "f2")) == ahead.artifact(QWEN.name, "f2")


def test_the_last_good_artifact_is_that_of_the_encoder_that_was_current_last():
    """A voice keeps its sound until the new encoder has made it anew."""
    document = published(registered(NOTHING, "v1"), "v1", QWEN, fingerprint="f1")
    second = artifact("o2", fingerprint="f2")
    version = artifacts.with_artifact(document, "v1", QWEN.name, second, REQUIRED, extractor={}).newest
    for former, expected in ((("f1", "f2"), "f1"), (("f2", "f1"), "f2"), (("f0", "f1"), "f1")):
        assert last_good(version, QWEN.name, former) == version.artifact(QWEN.name, expected)
    assert last_good(version, QWEN.name, ()) is not None, "one of any encoder is better than none"


def test_what_can_never_be_extracted_says_why():
    """A version without clip or transcript is failed for good, in words that name what is missing."""
    document = registered(NOTHING, "v1", ref_text=None)
    status = profile_status(Speaker(document), document.newest, COSY, "f1")
    assert (status.state, status.unsupported) == ("failed", True)
    assert "needs a transcript; version 1 has no ref_text" in str(status.error)
    embedding = registered(NOTHING, "v1", clip=None, source="embedding", embedding_width=1024)
    assert "needs reference audio" in str(
        profile_status(Speaker(embedding), embedding.newest, QWEN, "f1").error
    )


def test_a_promotion_of_nothing_is_nothing():
    """A speaker without versions has no alias to move."""
    assert promoted(NOTHING, REQUIRED) is NOTHING
