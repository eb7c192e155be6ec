"""Tests of promotion: when `default` moves to a newer version."""

from dataclasses import replace
from typing import Any

import pytest
from services.shared.model.domain import AliasFact

from speaker_registry.errors import (
    InvalidArtifact,
)
from tests.integration.conftest import Open
from tests.integration.storage import (
    NEXT_FINGERPRINT,
    PROFILE,
    WIDER,
    Storage,
    refuse,
    speaker_id,
)


def test_default_moves_when_the_last_wanted_profile_is_ready(redis_client: object, opened: Open):
    """`default` moves when the last wanted profile is ready. Before that, an engine that needs the other
    profile would find nothing.
    """
    storage = opened(profiles=(PROFILE, WIDER))
    storage.ready("alice")
    storage.register("alice", number=2)
    one, other = storage.take("alice")
    storage.publish(one)
    assert storage.served("alice")[0] == 1
    storage.publish(other)
    assert storage.served("alice")[0] == 2


def test_the_newest_complete_version_is_promoted_in_whatever_order_they_end(storage: Storage):
    """The newest complete version is promoted in whatever order extractions end. A slow extraction of an
    older version must not turn the voice back.
    """
    storage.ready("alice")
    storage.register("alice", number=2)
    storage.register("alice", number=3)
    second, third = storage.take("alice")
    storage.publish(third)
    storage.publish(second)
    assert storage.served("alice")[0] == 3


def test_default_moves_in_the_moment_that_the_artifact_is_there(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """`default` moves in the moment in which the artifact is published. A caller that has waited until
    version 2 is ready finds it under the bare name.
    """
    storage.ready("alice")
    storage.register("alice", number=2)
    promoted_later = []
    monkeypatch.setattr(storage.operations.promoter, "promote", promoted_later.append)
    storage.finish_all("alice")
    assert storage.served("alice")[0] == 2
    assert promoted_later == [speaker_id("alice")]


def test_a_move_by_hand_is_not_undone_by_a_promotion(storage: Storage):
    """A move by hand is not undone by a promotion. Here version 2 sounded wrong while it was still being
    extracted for the next profile.
    """
    first = storage.ready("alice").version
    storage.register("alice", number=2)
    seq = storage.index.reserve_alias(speaker_id("alice"), "default", expected=0)
    fact = AliasFact(seq, "default", first.vuid, storage.clock.new_id())
    storage.store.put(speaker_id("alice").alias_key(fact), b"{}")
    storage.index.apply_alias(speaker_id("alice"), fact)
    storage.finish_all()
    storage.settle()
    assert storage.served("alice")[0] == 1
    assert len([key for key in storage.objects("alice") if ".als." in key]) == 1, "nobody even tried"
    storage.ready("alice", number=3)
    assert storage.served("alice")[0] == 3, "registered after they chose"


def test_no_engine_loses_a_voice_to_a_version_that_serves_fewer(redis_client: object, opened: Open):
    """No engine loses a voice to a version that serves fewer profiles. An embedding fits one of two models,
    and engines with the other model keep the clip's version.
    """
    storage = opened(profiles=(PROFILE, WIDER))
    storage.ready("alice")
    storage.register_embedding("alice")
    storage.settle()
    assert storage.served("alice")[0] == storage.served("alice", WIDER)[0] == 1
    storage.register_embedding("bob")
    storage.register_embedding("bob", description="better")
    assert storage.served("bob")[0] == 2, "nobody has less than before"


def test_a_version_that_serves_nothing_is_left_for_one_that_serves_something(
    redis_client: object, opened: Open
):
    """A version that serves nothing is replaced as default by one that serves something. Here extraction of
    the clip failed for good in both profiles, and then a ready embedding is uploaded.
    """
    storage = opened(profiles=(PROFILE, WIDER))
    storage.register("alice")
    for work in storage.take("alice"):
        storage.publisher.fail(work, InvalidArtifact("hopeless"))
    storage.register_embedding("alice")
    assert storage.served("alice")[0] == 2


def test_a_worker_with_an_outdated_encoder_promotes_nothing(storage: Storage):
    """A worker with an outdated encoder promotes nothing. Its artifact is stale as it lands: engines would
    lose the version that was already extracted again.
    """
    first = storage.ready("alice")
    storage.register("alice", number=2)
    (outdated,) = storage.take("alice")
    storage.announce(NEXT_FINGERPRINT)
    anew = storage.operations.extractions.claim(
        speaker_id("alice"), first.version, outdated.provenance.profile
    )
    provenance = replace(outdated.provenance, fingerprint=NEXT_FINGERPRINT)
    storage.publish(storage.publisher.take(anew.job_id, speaker_id("alice"), provenance))
    assert storage.served("alice")[0] == 1
    storage.publish(outdated)
    assert storage.served("alice")[0] == 1
    storage.settle()
    assert storage.served("alice")[0] == 2


@pytest.mark.parametrize("profiles", [(PROFILE,), (PROFILE, WIDER)])
def test_a_slow_upload_does_not_push_aside_what_is_served_already(
    redis_client: object, opened: Open, profiles: tuple[str, ...]
):
    """A slow upload does not replace what is served already. It requested its place first, and until
    something is promoted the oldest version is the default. One of several profiles is enough to be served.
    """
    storage = opened(profiles=profiles)
    place = storage.index.reserve_version(speaker_id("alice"), max_speakers=10, immutable=False)
    second = storage.register("alice", number=2).version.record
    storage.publish(next(work for work in storage.take("alice") if work.provenance.profile.name == PROFILE))
    late = second.model_copy(update={"number": place.number, "vuid": storage.clock.new_id()})
    storage.store.put(speaker_id("alice").version_key(place.seq, late), late.to_json().encode())
    storage.index.apply_version(speaker_id("alice"), place.seq, late)
    assert storage.served("alice")[0] == 2


def test_of_two_promotions_the_later_takes_nothing_that_the_earlier_gave(
    redis_client: object, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """The later of two promotions removes nothing that the earlier one gave. Versions 1 and 3 serve only one
    model. Version 3 is about to take over when version 2 is ready for both.
    """
    storage = opened(profiles=(PROFILE, WIDER))
    storage.register("alice")
    storage.register("alice", number=2)
    storage.register("alice", number=3)
    works = {(work.version.number, work.provenance.profile.name): work for work in storage.take("alice")}
    for number in (1, 3):
        storage.publisher.fail(works[number, WIDER], InvalidArtifact("hopeless"))
    storage.publish(works[1, PROFILE])
    put = storage.store.put
    seen: list[Any] = []

    def put_slowly(key: str, data: bytes) -> None:
        if ".als.default." in key and not seen:
            seen.append("version 3 is on its way")
            storage.publish(works[2, PROFILE])
            storage.publish(works[2, WIDER])
            seen.append(storage.served("alice", WIDER))
        put(key, data)

    monkeypatch.setattr(storage.store, "put", put_slowly)
    storage.publish(works[3, PROFILE])
    storage.settle()
    assert seen == ["version 3 is on its way", None]
    assert storage.served("alice")[0] == 3


def test_a_promotion_that_died_on_its_way_holds_up_only_what_it_could_harm(
    redis_client: object, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """A promotion that died on its way delays only promotions that it could harm. Here the store was away
    when version 2 was promoted.
    """
    storage = opened(profiles=(PROFILE, WIDER))
    storage.ready("alice")
    storage.register("alice", number=2)
    put = storage.store.put
    with monkeypatch.context() as patched:
        patched.setattr(
            storage.store, "put", lambda key, data: refuse() if ".als." in key else put(key, data)
        )
        storage.finish_all("alice")
    assert storage.served("alice")[0] == 1
    storage.ready("alice", number=3)
    assert storage.served("alice")[0] == 3, "it serves the same"


def test_of_versions_with_the_same_number_the_younger_is_promoted(storage: Storage):
    """The younger of two versions with the same number is promoted. After a loss of Redis, two uploads may be
    given the same place in turn.
    """
    first = storage.ready("alice").version
    twin = first.record.model_copy(update={"vuid": storage.clock.new_id()})
    storage.store.put(speaker_id("alice").version_key(first.seq + 1, twin), twin.to_json().encode())
    storage.settle()
    storage.finish_all("alice")
    assert storage.speaker("alice").default.vuid == twin.vuid
