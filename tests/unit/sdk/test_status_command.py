"""The command `status`: what an operator sees at one glance, and what scripts learn from its exit code."""

import time
from typing import Any

import httpx
import pytest

from speaker_registry.cli import status
from tests.unit.sdk.conftest import Run
from tests.unit.sdk.fake_registry import ECAPA, FakeRegistry, error_answer


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker serves any profile."""
    served = FakeRegistry._profile
    monkeypatch.setattr(FakeRegistry, "_profile", lambda self, name: served(self, name) | {"workers": 0})


def test_a_registry_that_is_well_needs_nobody(run: Run, registry: FakeRegistry):
    """Exit code 0 lets a script go on."""
    registry.add_version("alice")
    outcome = run("status")
    assert outcome.status == 0
    assert "nothing needs attention" in outcome.out
    assert "version 0.1.0" in outcome.out
    assert "voices:read" in outcome.out
    row = next(line for line in outcome.out.splitlines() if line.startswith(ECAPA))
    assert row.split() == [ECAPA, "yes", "1", "1", "0", "0", "0", "published"]


def test_a_profile_whose_document_cannot_be_used_says_so(
    run: Run, unserved: None, monkeypatch: pytest.MonkeyPatch
):
    """Its workers may be alive, so the text does not advise to start one."""
    problem = "The object '_profiles/p.json' in the bucket is damaged."
    plain = FakeRegistry._profile
    monkeypatch.setattr(
        FakeRegistry,
        "_profile",
        lambda self, name: plain(self, name) | ({"problem": problem} if name == ECAPA else {}),
    )
    needs = run("status", "--json").document["needs"]
    assert {"text": f"the current encoder of {ECAPA} is unknown", "action": problem} in needs
    assert not any(f"no worker serves {ECAPA}" in need["text"] for need in needs)
    assert f"{ECAPA}: {problem}" in run("profiles", "list").out


def test_voices_that_wait_for_a_worker_need_a_person(run: Run, registry: FakeRegistry, unserved: None):
    """The text says which worker to start, and for how many voices."""
    registry.add_version("alice", "pending")
    outcome = run("status", "--json")
    assert outcome.status == 7
    assert outcome.document["needs"] == [
        {
            "text": f"no worker serves {ECAPA}, and voices wait for it: 1",
            "action": f"start a worker with SPEAKER_EXTRACTOR_PROFILES={ECAPA}",
        }
    ]


def test_untrained_weights_need_a_person(run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch):
    """Everything works with them, and yet every voice is useless. The dashboard says so as well."""
    registry.add_version("alice")
    plain = FakeRegistry._profile
    weights = {"required": True, "untrained": True}
    monkeypatch.setattr(FakeRegistry, "_profile", lambda self, name: plain(self, name) | weights)
    outcome = run("status", "--json")
    assert outcome.status == 7
    assert outcome.document["needs"][0] == {
        "text": f"{ECAPA} is made with untrained weights, so its voices are useless for speech",
        "action": "start its worker with published weights",
    }
    weights["required"] = False
    assert run("status").status == 0


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"extractor": {"weights": {"untrained": False}}}, "none"),
        ({"extractor": {"weights": {"untrained": False, "files": {"a": "0" * 64}}}}, "published"),
        ({"fingerprint": None}, "-"),
    ],
)
def test_only_weights_that_there_are_count_as_published(
    run: Run, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], shown: str
):
    """An engine may have no weights, and none is known before a worker has announced its encoder."""
    plain = FakeRegistry._profile
    monkeypatch.setattr(FakeRegistry, "_profile", lambda self, name: plain(self, name) | facts)
    row = next(line for line in run("status").out.splitlines() if line.startswith(ECAPA))
    assert row.split()[-1] == shown


def test_failed_voices_are_shown_with_the_command_that_lists_them(run: Run, registry: FakeRegistry):
    """The advised command is one that there is."""
    registry.add_version("alice", "failed")
    outcome = run("status")
    assert outcome.status == 7
    assert f"`speaker-registry list --state failed --profile {ECAPA}`" in outcome.out
    assert run("list", "--state", "failed", "--profile", ECAPA).status == 0


def test_jobs_that_failed_long_ago_need_nobody(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """A failure that was dealt with last week must not alarm for ever."""
    registry.add_version("alice")
    jobs: list[dict[str, Any]] = registry._jobs()
    old = [job | {"state": "failed", "finished_at": time.time() - 2 * 86_400} for job in jobs]
    monkeypatch.setattr(FakeRegistry, "_jobs", lambda self: old)
    assert run("status").status == 0
    lately = [job | {"state": "failed", "finished_at": time.time() - 60} for job in jobs]
    monkeypatch.setattr(FakeRegistry, "_jobs", lambda self: lately)
    assert run("status").status == 7


def test_a_registry_that_cannot_serve_says_which_part_is_wrong(run: Run, registry: FakeRegistry):
    """It is the first thing that somebody looks at in an outage, so one answer of 503 is an answer."""
    parts = {"store": "ok", "view": "Redis is busy."}
    registry.faults.append(httpx.Response(503, json={"status": "unavailable", "parts": parts}))
    outcome = run("status")
    assert outcome.status == 3
    assert "view: Redis is busy." in outcome.out


def test_what_is_no_registry_is_told_so(run: Run, registry: FakeRegistry):
    """A proxy answers 503 as well."""
    registry.faults.append(httpx.Response(503, text="<html>"))
    outcome = run("status")
    assert outcome.status == 3
    assert "is there a speaker registry at this address?" in outcome.err


def test_a_key_sees_what_it_may_see(run: Run, registry: FakeRegistry):
    """An engine's key lists no jobs; the rest is shown even so."""
    registry.add_version("alice")
    refused = error_answer(403, "insufficient_scope")
    answers = iter([None, None, None, refused, refused])
    registry.faults.extend([lambda request: next(answers) or _honest(registry, request)] * 5)
    outcome = run("status")
    assert outcome.status == 0
    assert "the key may not list voices" in outcome.out
    assert "the key may not list jobs" in outcome.out


def _honest(registry: FakeRegistry, request: httpx.Request) -> httpx.Response:
    later = list(registry.faults)
    registry.faults.clear()
    try:
        return registry(request)
    finally:
        registry.faults.extend(later)


def test_counting_ends_after_some_hundred_voices(
    run: Run, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """Neither the command nor the registry is to work through 100,000 voices for a glance."""
    monkeypatch.setattr(status, "MAX_VOICES", 2)
    for name in "abc":
        registry.add_version(name)
    outcome = run("status", "--json")
    assert (outcome.document["voices"]["total"], outcome.document["voices"]["counted"]) == (3, 2)
    assert "first 2 voices" in run("status").out
