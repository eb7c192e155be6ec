"""Tests of promoting an encoder, over HTTP."""

from collections.abc import Callable
from functools import partial

import pytest

from services.shared.bucket.layout import profile_key
from services.shared.bucket.store import Object, ObjectUnavailable
from services.shared.view.keys import shared_key
from speaker_registry import RegistryClient
from speaker_registry.errors import EncoderCurrent, EncoderUnknown, EncoderUnserved
from tests.encoders import come_with
from tests.integration.api.conftest import Start
from tests.integration.api.registry import PROFILE, Registry
from tests.integration.api.worker import FINGERPRINT

NEWER, UNKNOWN, OF_ANOTHER = ("sha256:" + digit * 64 for digit in "234")
OTHER_PROFILE = "qwen3-tts-1.7b"


@pytest.fixture
def registry(start: Start) -> Registry:
    """A registry with a candidate for `PROFILE` that has one live worker."""
    registry = start(profiles=(PROFILE,))
    profiles, workers = registry.opened.profile_records, registry.opened.workers
    assert not come_with(profiles, PROFILE, NEWER, {"model": "made up", "dtype": "x"})
    come_with(profiles, OTHER_PROFILE, OF_ANOTHER)
    workers.beat("w1", {PROFILE: FINGERPRINT})
    workers.beat("w2", {PROFILE: NEWER})
    return registry


def shown(registry: Registry) -> dict:
    return next(one for one in registry.client.get("/v1/profiles").json()["data"] if one["id"] == PROFILE)


def promote(registry: Registry, fingerprint: object, profile: str = PROFILE, **said: object) -> tuple:
    answer = registry.client.post(
        f"/v1/profiles/{profile}/promote", json={"fingerprint": fingerprint, **said}
    )
    error = answer.json().get("error", {})
    return answer.status_code, error.get("code"), error.get("message", "")


def test_a_candidate_is_shown_with_what_differs_and_its_workers(registry: Registry):
    """An operator sees which workers wait for a promotion, and what it would change."""
    one = shown(registry)
    assert (one["fingerprint"], one["workers"], one["former"]) == (FINGERPRINT, 1, [])
    assert one["candidates"] == [
        {
            "fingerprint": NEWER,
            "untrained": False,
            "custom_weights": False,
            "workers": 1,
            "differs": {"dtype": [None, "x"]},
            "coverage": None,
        }
    ]


@pytest.fixture(params=["damaged", "unreadable"])
def broken(request: pytest.FixtureRequest, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document of the profile is damaged, or the store does not return it."""
    path = profile_key(PROFILE)
    if request.param == "damaged":
        registry.opened.store.put(path, b"{")
        return
    read = registry.opened.store.read

    def archived(key: str) -> Object:
        if key == path:
            raise ObjectUnavailable("archived")
        return read(key)

    monkeypatch.setattr(registry.opened.store, "read", archived)


@pytest.mark.usefixtures("broken")
def test_a_broken_document_changes_no_answer_while_redis_has_a_copy(registry: Registry):
    """One bad disk block must not make everything stale that the profile has."""
    registry.ready("alice")
    assert registry.file("alice").headers["X-Artifact-Current"] == "true"
    assert shown(registry)["fingerprint"] == FINGERPRINT


@pytest.mark.usefixtures("broken")
def test_a_broken_document_without_a_copy_is_what_readiness_and_profiles_name(registry: Registry):
    """The workers of the profile are alive, and nobody must look for the fault there."""
    registry.redis.delete(shared_key(registry.opened.generation.for_reading()))
    registry.opened.profile_records.clear_cache()
    registry.forget_workers_at_once()
    problem = shown(registry)["problem"]
    assert profile_key(PROFILE) in problem
    details = registry.client.get("/readyz").json()["details"]
    assert details == {PROFILE: f"the current encoder of profile '{PROFILE}' is unknown. {problem}"}


@pytest.fixture(params=["damaged", "lost"])
def spoil(request: pytest.FixtureRequest, registry: Registry) -> Callable[[], None]:
    """Damages the document of the profile, or deletes it."""
    store, path = registry.opened.store, profile_key(PROFILE)
    return partial(store.put, path, b"{") if request.param == "damaged" else partial(store.delete, [path])


def test_a_candidate_does_not_become_current_when_the_document_is_spoiled(
    registry: Registry, spoil: Callable[[], None]
):
    """A worker of a candidate that starts writes what Redis still knows, also for the time after Redis."""
    assert promote(registry, NEWER)[0] == 200
    spoil()
    assert not come_with(registry.opened.profile_records, PROFILE, FINGERPRINT)
    registry.redis.delete(shared_key(registry.opened.generation.for_reading()))
    registry.opened.profile_records.clear_cache()
    assert (shown(registry)["fingerprint"], shown(registry)["former"]) == (NEWER, [FINGERPRINT])


def test_the_way_back_is_found_in_the_copy_of_a_spoiled_document(
    registry: Registry, spoil: Callable[[], None]
):
    """An operator must not be locked out of a rollback by the loss of one object."""
    assert promote(registry, NEWER)[0] == 200
    spoil()
    assert promote(registry, FINGERPRINT)[0] == 200
    registry.redis.delete(shared_key(registry.opened.generation.for_reading()))
    assert (shown(registry)["fingerprint"], shown(registry)["former"]) == (FINGERPRINT, [NEWER])


def test_a_worker_whose_encoder_is_in_no_document_costs_the_bucket_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    """Everyone may read `/v1/profiles`, and a dashboard does so every few seconds. Reads from the bucket cost
    money.
    """
    registry.opened.workers.beat("w3", {PROFILE: UNKNOWN})
    assert [one["fingerprint"] for one in shown(registry)["candidates"]] == [NEWER]
    asked, read = [], registry.opened.store.read

    def counting(key: str) -> Object:
        asked.append(key)
        return read(key)

    monkeypatch.setattr(registry.opened.store, "read", counting)
    for _ in range(3):
        shown(registry)
    assert [key for key in asked if key.startswith("_profiles/")] == []
    come_with(registry.opened.profile_records, PROFILE, UNKNOWN)
    assert {one["fingerprint"] for one in shown(registry)["candidates"]} == {NEWER, UNKNOWN}


@pytest.mark.parametrize(
    ("fingerprint", "status", "code", "message"),
    [
        (FINGERPRINT, 409, "encoder_current", "already the current fingerprint"),
        (UNKNOWN, 404, "encoder_unknown", f"No worker has ever announced {UNKNOWN}"),
        (OF_ANOTHER, 404, "encoder_unknown", f"it is a fingerprint of profile '{OTHER_PROFILE}'"),
        ("sha256:2", 400, "invalid_request", "sha256:2"),
        (2, 400, "invalid_request", "fingerprint"),
    ],
)
def test_a_promotion_that_makes_no_sense_is_refused_and_changes_nothing(
    registry: Registry, fingerprint: object, status: int, code: str, message: str
):
    """Each refusal says what was wrong, with the value."""
    before = shown(registry)
    refused = promote(registry, fingerprint, force=True)
    assert refused[:2] == (status, code)
    assert message in refused[2]
    assert shown(registry) == before


def test_a_candidate_whose_worker_is_alone_stays_a_candidate_and_readiness_says_so(registry: Registry):
    """The profile has no worker then, which an operator has to hear of, though all artifacts are served."""
    registry.forget_workers_at_once()
    assert "details" not in registry.client.get("/readyz").json()
    registry.opened.workers.leave("w1", {PROFILE: FINGERPRINT})
    registry.app.state.parts.readiness._checked_at = float("-inf")
    answer = registry.client.get("/readyz")
    assert (answer.status_code, answer.json()["details"]) == (
        200,
        {PROFILE: f"no worker serves profile '{PROFILE}'"},
    )
    assert (shown(registry)["fingerprint"], shown(registry)["workers"]) == (FINGERPRINT, 0)


def test_the_sdk_promotes_an_encoder_and_raises_an_error_of_its_own_for_each_refusal(registry: Registry):
    """An operator's script can promote and go back, and learns from the error what was wrong."""
    with RegistryClient(registry.url, retries=0) as operator:
        promoted = operator.promote_encoder(PROFILE, NEWER)
        assert (promoted.fingerprint, promoted.former) == (NEWER, [FINGERPRINT])
        with pytest.raises(EncoderCurrent, match="already the current"):
            operator.promote_encoder(PROFILE, NEWER)
        with pytest.raises(EncoderUnknown, match="No worker has ever announced"):
            operator.promote_encoder(PROFILE, UNKNOWN)
        registry.opened.workers.leave("w1", {PROFILE: FINGERPRINT})
        with pytest.raises(EncoderUnserved, match="force=true"):
            operator.promote_encoder(PROFILE, FINGERPRINT)
        assert operator.promote_encoder(PROFILE, FINGERPRINT, force=True).fingerprint == FINGERPRINT
