"""Tests that jobs, voices and artifacts which wait for a worker that does not exist say
so on every surface.
"""

from pathlib import Path
from typing import Any

import pytest

from speaker_registry import RegistryClient, cli
from speaker_registry.errors import ArtifactNotReady, Unavailable
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, PROFILE, Registry
from tests.integration.api.worker import FINGERPRINT

REASON = f"no worker serves profile '{PROFILE}'"
WORKER = ("worker-1", {PROFILE: FINGERPRINT})


def reasons(registry: Registry, name: str, job_id: str) -> dict[str, str | None]:
    """Return the reason that each surface shows, by surface."""

    def get(path: str) -> Any:
        response = registry.client.get(path)
        assert response.is_success, response.text
        return response.json()

    again = registry.post_voice(name)  # the same clip: answered with the version that is there
    assert again.is_success, again.text
    artifact = f"/v1/voices/{name}/versions/1/artifacts"
    return {
        "job": get(f"/v1/jobs/{job_id}")["reason"],
        "jobs": get(f"/v1/jobs?voice={name}")["data"][0]["reason"],
        "voice": get(f"/v1/voices/{name}")["artifacts"][0]["reason"],
        "voices": get("/v1/voices")["data"][0]["artifacts"][0]["reason"],
        "version": get(f"/v1/voices/{name}/versions/1")["artifacts"][0]["reason"],
        "artifacts": get(artifact)["data"][0]["reason"],
        "descriptor": get(f"{artifact}/{PROFILE}")["reason"],
        "upload": again.json()["voice"].get("reason"),
        "uploaded_voices": get("/v1/audio/voices")["uploaded_voices"][0].get("reason"),
        "cache": get(f"/v1/audio/voices/{name}/cache").get("reason"),
    }


@pytest.fixture
def registry(start: Start) -> Registry:
    """A registry that remembers nothing from one look to the next."""
    registry = start()
    registry.forget_workers_at_once()
    return registry


def test_a_job_that_nobody_serves_says_so_everywhere(registry: Registry):
    """A job that no worker serves says so on every surface. It would otherwise wait for ever without a
    visible cause.
    """
    job_id = registry.upload("alice")["job_id"]
    assert set(reasons(registry, "alice", job_id).values()) == {REASON}
    registry.opened.workers.beat(*WORKER)
    assert set(reasons(registry, "alice", job_id).values()) == {None}
    registry.opened.workers.leave(*WORKER)
    assert set(reasons(registry, "alice", job_id).values()) == {REASON}
    registry.worker.finish_all("alice")
    assert set(reasons(registry, "alice", job_id).values()) == {None}, "it is done, whoever serves it now"


def test_what_is_being_made_has_its_worker(registry: Registry):
    """A job that is being processed has its worker, whose first sign of life may come a moment later."""
    job_id = registry.upload("alice")["job_id"]
    registry.worker.take_all("alice")
    assert set(reasons(registry, "alice", job_id).values()) == {None}


def test_whoever_waits_is_told_what_for(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    """Callers that wait by SDK or command line get the reason. The time-out alone would not say that waiting
    longer is no use.
    """
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", registry.url)
    clip = tmp_path / "alice.wav"
    clip.write_bytes(CLIP)
    with RegistryClient(registry.url, retries=0) as client:
        assert client.register("alice", clip, consent="cons_1").reason == REASON
        assert [job.reason for job in client.jobs()] == [REASON]
        with pytest.raises(ArtifactNotReady, match=rf"pending \({REASON}\)"):
            client.wait_ready("alice", timeout=0)
        with pytest.raises(ArtifactNotReady, match=rf"pending \({REASON}\)"):
            client.fetch("alice@1", PROFILE)
    uploads = (["register", name, str(clip), "--consent", "cons_1"] for name in ("alice", "bob"))
    for words in (*uploads, ["show", "alice"], ["jobs"], ["list"]):
        assert cli.main(words) == 0
        assert REASON in capsys.readouterr().out
    assert cli.main(["wait", "alice", "--timeout", "0"]) != 0
    assert REASON in capsys.readouterr().err


def test_without_redis_nothing_is_said_of_workers(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    """No reason about workers is shown without Redis. Their state is unknown, and a wrong
    reason is worse than none.
    """
    registry.upload("alice")

    def away(_: object) -> dict[str, int]:
        raise Unavailable("not now")

    monkeypatch.setattr(registry.opened.workers, "of", away)
    (status,) = registry.client.get("/v1/voices/alice").json()["artifacts"]
    assert (status["state"], status["reason"]) == ("pending", None)
    assert "reason" not in registry.upload("bob"), "and no upload fails of it"


def test_a_list_asks_for_workers_once(start: Start, monkeypatch: pytest.MonkeyPatch):
    """A list looks the workers up once, not once for each of a thousand voices."""
    registry = start()
    for number in range(5):
        registry.upload(f"voice-{number}")
    workers, asked = registry.opened.workers, []
    of = workers.of
    monkeypatch.setattr(workers, "of", lambda names: (asked.append(names), of(names))[1])
    assert len(registry.client.get("/v1/voices").json()["data"]) == 5
    assert len(asked) <= 1
