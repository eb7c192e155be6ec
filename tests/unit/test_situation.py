"""Tests of what the overview counts."""

from services.registry_api.pages.situation import (
    KEPT_SECONDS,
    LONG_KEPT_SECONDS,
    ShownWorker,
    VoiceCounts,
    concerns,
    kept_seconds,
    workers_of,
)
from speaker_registry.schemas import FailedProof, LiveWorker, Profile


def test_counts_of_many_voices_are_kept_longer():
    """They cost more to make, and fifty people who look at them must not cost the registry a core."""
    assert kept_seconds(VoiceCounts(examined=100)) == KEPT_SECONDS
    assert kept_seconds(VoiceCounts(examined=250, more=True)) == LONG_KEPT_SECONDS


def profile(name: str, fingerprint: str, *live: LiveWorker, **others: object) -> Profile:
    facts = {"model_type": "m", "description": "d", "required": True, "tensors": {}, "sample_rate": 16_000}
    facts |= {"model": "repo", "licence": "MIT", "fingerprint": fingerprint, "live_workers": live}
    return Profile.model_validate({"id": name, **facts, **others})


def test_a_worker_is_one_row_however_many_profiles_it_has():
    """A person looks for machines. Their proofs are as good as the oldest, and their work is the sum."""
    speech = LiveWorker(worker="w1", fingerprint="f", device="cuda:0", proven_at=20, extracted_last_hour=3)
    codec = speech.model_copy(update={"fingerprint": "g", "proven_at": 10, "extracted_last_hour": 4})
    silent = LiveWorker(worker="w0", fingerprint="f")
    failed = FailedProof(worker="w2", device="cpu", reason="codes differ")
    rows = workers_of(
        [
            profile("speech", "f", speech, silent, untrained=True),
            profile("codec", "another", codec, failed_proofs=[failed]),
        ]
    )
    assert rows == [
        ShownWorker("w0", serves=["speech"], untrained=True),
        ShownWorker("w1", "cuda:0", ["speech"], ["codec"], [], True, 10, 7),
        ShownWorker("w2", "cpu", failed=["codec"]),
    ]


def test_a_document_that_cannot_be_used_is_not_blamed_on_workers():
    """Another worker would not help, and the operator has to restore the document."""
    unreadable = profile("speech", "", problem="The object is damaged.")
    [concern] = concerns([unreadable], VoiceCounts(), 0)
    assert (concern.text, concern.action) == (
        "The current encoder of speech is unknown.",
        "The object is damaged.",
    )


def test_nobody_is_told_to_start_a_worker_that_cannot_exist():
    """The encoder of such a profile is not published, so its voices can only be uploaded ready-made."""
    served = profile("speech", "f", workers=1)
    unpublished = profile("codec", "f", not_extractable="The encoder is not published.")
    unserved = profile("voice", "f")
    [concern] = concerns([served, unpublished, unserved], VoiceCounts(), 0)
    assert concern.text == "No worker serves voice: new voices will wait."


def test_a_failed_proof_names_its_profile_once():
    """The reason of a worker begins with the profile, for logs that lack it."""
    failed = FailedProof(worker="w", device="cpu", reason="speech: the encoder computes something else")
    [concern] = concerns([profile("speech", "f", required=False, failed_proofs=[failed])], VoiceCounts(), 0)
    assert concern.text == "Worker w does not serve speech on cpu: the encoder computes something else"
