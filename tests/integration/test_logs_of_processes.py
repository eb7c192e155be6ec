"""Tests of what real processes write to their log: JSON with the ids that belong to it,
and nothing secret.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.process_load import noise_clip
from tests.processes import OPTIONAL_PROFILE, PROFILE, QUICK, RegistryProcesses
from tests.queue_workers import wait_until

Event = dict[str, Any]
UPLOAD = "/v1/audio/voices"
SECRETS = {
    "SPEAKER_STORE_ACCESS_KEY_ID": "the-id-of-it",
    "SPEAKER_STORE_SECRET_ACCESS_KEY": "what-opens-the-bucket",
    "AWS_SESSION_TOKEN": "what-opens-it-for-an-hour",
    "HF_TOKEN": "hf_whatOpensTheHub",
}
BEARER = "sreg_00000000_what-opens-the-registry"
TRANSCRIPT = "Words that somebody said in confidence."


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcesses]:
    """A registry with the most detailed log level. All clips fail for the optional profile."""
    environment = {**QUICK, **SECRETS, "SPEAKER_LOG_LEVEL": "DEBUG", "LIGHT_WORKER_FAILS": OPTIONAL_PROFILE}
    with RegistryProcesses(tmp_path_factory.mktemp("logs"), environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def events(registry: RegistryProcesses) -> list[Event]:
    """The log of one scenario: an upload that is extracted for one profile and fails for another, a refused
    upload, an artifact whose file is lost and which is extracted again, a request for an unknown path.
    """
    headers = {"Authorization": f"Bearer {BEARER}", "X-Request-Id": "req-of-the-test"}
    with httpx.Client(base_url=registry.urls[0], timeout=30, headers=headers) as client:
        said = {"name": "wren", "consent": "cons_1", "ref_text": TRANSCRIPT}
        for clip in (noise_clip(1)[0], b"no audio at all"):
            client.post(UPLOAD, data=said, files={"audio_sample": ("clip.wav", clip, "audio/wav")})
        client.post(f"{UPLOAD}/wren/cache")
        client.post(f"{UPLOAD}/wren/cache", params={"profile": OPTIONAL_PROFILE})
        [artifact] = registry.bucket.rglob("*.safetensors")
        artifact.unlink()
        registry.pace(0.5)  # so that the answer is there before the artifact
        client.get(f"/v1/voices/wren/versions/1/artifacts/{PROFILE}/file")
        client.post(f"{UPLOAD}/wren/cache")
        client.get("/no/such/place")
        for path in ("/healthz", "/readyz", "/metrics"):
            client.get(path)
    # An answer may be there before the line about it, and a job's end before the worker's last line.
    last = {"job.failed": 1, "artifact.published": 2}
    wait_until(lambda: all(registry.log().count(f'"{name}"') >= count for name, count in last.items()))
    wait_until(lambda: '"route": "/metrics"' in registry.log())
    return [json.loads(line) for line in registry.log().splitlines()]


def named(events: list[Event], name: str, **fields: object) -> list[Event]:
    return [one for one in events if one["event"] == name and fields.items() <= one.items()]


@pytest.mark.slow
def test_every_line_is_json_that_says_what_and_when_and_how_bad(events: list[Event]):
    """Every line is JSON with event, time and level. Log collectors accept one form; a line in another is
    lost, or stops them.
    """
    for event in events:
        assert {"event", "level", "timestamp"} <= event.keys()
    assert {"worker.started", "view.rebuilt", "request.done"} <= {event["event"] for event in events}


def test_each_request_has_one_line_with_what_came_of_it(events: list[Event]):
    """Each request has one line with its result. It shows the path's template, because paths hold names."""
    requests = named(events, "request.done", request_id="req-of-the-test", level="info")
    assert [(one["method"], one["route"], one["status"], one.get("error")) for one in requests] == [
        ("POST", UPLOAD, 200, None),
        ("POST", UPLOAD, 400, "unsupported_audio"),
        ("POST", f"{UPLOAD}/{{name}}/cache", 200, None),
        ("POST", f"{UPLOAD}/{{name}}/cache", 409, "artifact_failed"),
        ("GET", "/v1/voices/{name}/versions/{ref}/artifacts/{profile}/file", 202, None),
        ("POST", f"{UPLOAD}/{{name}}/cache", 200, None),
        ("GET", "none", 404, "not_found"),
    ]
    assert all(0 < one["seconds"] < 30 for one in requests)


def test_machines_that_ask_every_few_seconds_are_mentioned_only_for_debugging(events: list[Event]):
    """Machines that ask every few seconds are logged only for debugging, because they
    would be most of the log.
    """
    asked = named(events, "request.done", request_id="req-of-the-test", level="debug")
    assert [one["route"] for one in asked] == ["/healthz", "/readyz", "/metrics"]


def test_what_happens_in_a_request_carries_its_id(events: list[Event]):
    """Everything that happens in a request carries its id, including what happens on other threads."""
    for name in ("version.registered", "artifact.lost"):
        assert [one["request_id"] for one in named(events, name)] == ["req-of-the-test"], name
    # The worker that replaces a lost file looks for it once more.
    missing = named(events, "integrity.missing")
    assert [one.get("request_id") for one in missing if "job_id" not in one] == ["req-of-the-test"]


def test_what_a_worker_does_for_a_job_carries_the_jobs_id(events: list[Event]):
    """Everything that a worker does for a job carries the job's id, which leads from the job to its lines and
    back.
    """
    [failed] = named(events, "artifact.failed")
    published = named(events, "artifact.published")
    assert len(published) == 2
    assert len({event["job_id"] for event in (failed, *published)}) == 3
    for event in (failed, *published, *named(events, "job.failed"), *named(events, "speaker.promoted")):
        assert event["job_id"].startswith("job_"), event


def test_nothing_secret_is_in_any_line(registry: RegistryProcesses, events: list[Event]):
    """No line holds a secret, not even for debugging. Logs are kept longer than voices,
    and read by more people.
    """
    assert events
    text = registry.log()
    for secret in (*SECRETS.values(), BEARER, TRANSCRIPT, "in confidence"):
        assert secret not in text
