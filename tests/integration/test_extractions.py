"""Tests of claiming extractions and publishing their artifacts on a real Valkey, without HTTP."""

import os
from pathlib import Path

import pytest

from speaker_registry.errors import (
    CacheUnsupported,
    Unavailable,
)
from tests.integration.storage import (
    NEXT_FINGERPRINT,
    PROFILE,
    WIDER,
    Storage,
    at_once,
    refuse,
    speaker_id,
)


def test_many_who_ask_for_one_artifact_share_one_job(storage: Storage):
    """Many callers that ask for one artifact share one job, because an engine's replicas all start at the
    same time.
    """
    registered = storage.register("alice")
    ask = storage.operations.extractions.ensure
    claims = at_once(50, lambda _: ask(speaker_id("alice"), registered.version, [WIDER])[WIDER])
    assert sorted(claim.outcome for claim in claims) == ["claimed"] + ["pending"] * 49
    assert len({claim.job_id for claim in claims}) == 1
    assert [job.profile for job in storage.jobs("alice")].count(WIDER) == 1
    assert storage.raw.llen(f"rq:queue:extract.{WIDER}") == 1


def test_a_forced_rebuild_is_a_new_build_and_the_old_one_serves_until_it_is_ready(storage: Storage):
    version = storage.ready("alice").version
    before = storage.served("alice")
    claim = storage.operations.extractions.ensure(speaker_id("alice"), version, [PROFILE], force=True)[
        PROFILE
    ]
    assert (claim.outcome, claim.build) == ("claimed", 2)
    assert storage.extract("alice", version).outcome == "ready"
    work = storage.take("alice")
    assert storage.served("alice") == before
    storage.publish(work[0])
    assert storage.served("alice") not in (before, None)
    storage.check_settled("alice")


def test_a_failure_is_final_until_somebody_insists(storage: Storage):
    """A failure is final until a caller forces another attempt. A clip that no encoder takes must not keep
    workers busy for ever.
    """
    version = storage.register("alice").version
    storage.publisher.fail(storage.take("alice")[0], CacheUnsupported("cannot"))
    assert storage.extract("alice", version).outcome == "failed"
    claim = storage.operations.extractions.ensure(speaker_id("alice"), version, [PROFILE], force=True)[
        PROFILE
    ]
    assert claim.outcome == "claimed"
    storage.finish_all()
    storage.check_settled("alice")


def test_a_new_fingerprint_makes_every_voice_anew(storage: Storage):
    """A new fingerprint makes every voice anew without a request. Meanwhile what was made with the old one is
    not served as if it were new.
    """
    storage.ready("alice")
    storage.announce(NEXT_FINGERPRINT)
    assert storage.served("alice") is None
    storage.settle()
    assert storage.served("alice")
    storage.check_settled("alice")


def test_two_attempts_of_one_job_leave_one_artifact(storage: Storage):
    """Two attempts of one job leave one artifact. When a worker that was taken for dead comes back, what is
    served stays and nothing is left over.
    """
    storage.register("alice")
    slow = storage.take("alice")[0]
    quick = storage.take("alice")[0]
    assert (slow.number, quick.number) == (1, 2)
    assert storage.publish(quick)
    before = storage.served("alice")
    assert storage.publish(slow), "it is there, whoever made it"
    assert storage.served("alice") == before
    assert len([key for key in storage.objects("alice") if "/art/" in key]) == 2, "bytes and fact"
    storage.check_settled("alice")


def test_of_two_attempts_that_both_landed_the_first_one_counts(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first of two attempts that both landed counts. The first worker died just before it told the index,
    and the second one's copy is removed.
    """
    storage.register("alice")
    (work,) = storage.take("alice")
    with monkeypatch.context() as dying:
        dying.setattr(storage.index, "apply_artifact", refuse)
        with pytest.raises(Unavailable):
            storage.publish(work)
    (landed,) = (key for key in storage.objects("alice") if key.endswith(".json"))
    os.utime(tmp_path / "bucket" / landed, (1_700_000_000, 1_700_000_000))
    assert storage.served("alice") is None
    storage.finish_all("alice")
    assert storage.served("alice")[1].removeprefix("sha256:") in landed
    assert len([key for key in storage.objects("alice") if "/art/" in key]) == 2, "bytes and fact"
    storage.check_settled("alice")
