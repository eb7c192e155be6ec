"""Tests of requested extractions and canceled jobs, by HTTP, SDK and command line."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from speaker_registry import RegistryClient, cli
from speaker_registry.errors import (
    ArtifactNotReady,
    CacheUnsupported,
    InvalidAudio,
    JobFinished,
    JobNotFound,
)
from tests.integration.api.conftest import Start
from tests.integration.api.registry import EMBEDDING, OTHER_CLIP, PROFILE, WIDER, Registry
from tests.queue_workers import wait_until


@pytest.fixture(autouse=True)
def address(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", registry.url)


PROFILES = "a list of 1 to 64 entries, each of them text"


def extractions(name: str, ref: int | str = "default") -> str:
    return f"/v1/voices/{name}/versions/{ref}/extractions"


def ask(registry: Registry, name: str, ref: int | str = "default", **said: Any) -> Any:
    return registry.client.post(extractions(name, ref), json=said)


# -- asking for one


@pytest.mark.parametrize("stale", [False, True])
def test_what_the_error_of_a_missing_artifact_advises_makes_that_artifact(start: Start, *, stale: bool):
    """The advice names the version that was asked for. What the name stands for is another one by now."""
    registry = start()
    registry.ready("Al ice")
    registry.ready("Al ice", clip=OTHER_CLIP)
    profile = PROFILE if stale else WIDER
    if stale:
        registry.worker.announce("sha256:" + "6" * 64)
    path = f"/v1/voices/Al%20ice/versions/1/artifacts/{profile}"
    error = registry.client.get(path, params={"current": True}).json()["error"]
    assert error["code"] == ("artifact_stale" if stale else "artifact_not_found")
    advised = re.search(r"with POST (\S+) (.*)\.$", error["message"])
    assert advised is not None
    answer = registry.client.post(advised[1], json=json.loads(advised[2]))
    assert (answer.status_code, answer.json()["data"][0]["version"]) == (202, 1)
    registry.worker.finish_all()
    assert registry.client.get(path).json()["current"] is True


def test_a_profile_that_no_voice_must_have_is_extracted_where_somebody_asks(registry: Registry, name: str):
    """A profile that is not required is extracted on request, from the version that is named, whatever
    version the name stands for. A second request joins the job of the first.
    """
    registry.ready(name)
    registry.ready(name, clip=OTHER_CLIP)
    asked = ask(registry, name, 1, profiles=[WIDER])
    (made,) = asked.json()["data"]
    assert (asked.status_code, asked.headers["Location"]) == (202, f"/v1/jobs/{made['job_id']}")
    assert (made["version"], made["profile"], made["state"]) == (1, WIDER, "pending")
    again = ask(registry, name, 1, profiles=[WIDER, WIDER, PROFILE])
    assert [one["job_id"] for one in again.json()["data"]] == [made["job_id"], None], "it is joined"
    registry.worker.finish_all(name)
    done = ask(registry, name, 1, profiles=[WIDER])
    assert (done.status_code, done.json()["data"][0]["state"]) == (200, "ready")
    assert "Location" not in done.headers


def test_without_profiles_all_that_are_required_are_meant(registry: Registry, name: str):
    """A request without profiles extracts all required profiles, as an upload does."""
    registry.ready(name)
    assert [one["profile"] for one in ask(registry, name).json()["data"]] == [PROFILE]


def test_by_force_it_is_made_again(registry: Registry, name: str):
    """A forced extraction makes the artifact again, and the existing artifact is served meanwhile."""
    registry.ready(name)
    before = registry.file(name)
    (made,) = ask(registry, name, profiles=[PROFILE], force=True).json()["data"]
    assert made["state"] == "ready"
    assert made["job_id"]
    assert registry.file(name).content == before.content
    registry.worker.finish_all(name)
    assert registry.file(name).content != before.content


@pytest.mark.parametrize(
    ("said", "param", "says"),
    [
        ({"profiles": []}, "profiles", f"'profiles' is []; accepted: {PROFILES}."),
        ({"profiles": "all"}, "profiles", f"'profiles' is 'all'; accepted: {PROFILES}."),
        ({"profiles": ["a", 5]}, "profiles", "'profiles[1]' is 5; accepted: text."),
        (
            {"profile": PROFILE},
            "profile",
            "Field 'profile' is not known here; did you mean 'profiles'? Accepted",
        ),
        ({"force": "perhaps"}, "force", "'force' is 'perhaps'; accepted: true or false."),
        ({"force": 0}, "force", "'force' is 0; accepted: true or false."),
        ("all", "body", "The body is 'all'; accepted: a JSON object with force, profiles."),
    ],
)
def test_what_cannot_be_asked_for_is_refused(registry: Registry, name: str, said: Any, param: str, says: str):
    """An invalid extraction request is refused before anything begins, and the message
    lists the accepted values.
    """
    registry.ready(name)
    refused = registry.client.post(extractions(name), json=said)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "invalid_request", param)
    assert error["message"].startswith(says)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "The body is missing; accepted: a JSON object with force, profiles."),
        (
            b'{"force": tru}',
            "The body is not JSON: expecting value at character 10; accepted: a JSON object with",
        ),
        (b'{"a": "\xff"}', "The body cannot be read; accepted: JSON in UTF-8."),
        (
            b"[" * 50_000 + b"]" * 10_000,
            "The body is nested too deeply to be read; accepted: JSON with a few",
        ),
        (
            b'{"a": %s}' % (b"1" * 4301),
            "The body has a number that is too long to be read; accepted: integers of up to 4300 digits.",
        ),
    ],
)
def test_a_body_that_is_no_json_is_refused(registry: Registry, name: str, body: bytes, says: str):
    """A body that is not valid JSON is refused, and the message says up to which position it is valid."""
    registry.ready(name)
    headers = {"Content-Type": "application/json"}
    refused = registry.client.post(extractions(name), content=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert refused.json()["error"]["message"].startswith(says)


@pytest.mark.parametrize("sent", ["application/x-www-form-urlencoded", "text/plain", None])
def test_json_that_is_not_said_to_be_json_is_refused_as_that(registry: Registry, name: str, sent: str | None):
    """A JSON body without the content type of JSON is refused with the accepted one. `curl -d` sends such
    requests unless a header is given.
    """
    registry.ready(name)
    headers = {} if sent is None else {"Content-Type": sent}
    error = registry.client.post(extractions(name), content=b"{}", headers=headers).json()["error"]
    assert error["message"] == f"Content-Type is '{sent or ''}'; accepted: application/json."
    assert (error["code"], error["param"]) == ("invalid_request", "Content-Type")


def test_json_that_turns_out_too_large_is_called_that(registry: Registry, name: str):
    """A JSON body that is too large is called too large, not damaged. It only looks damaged because the
    server stopped reading it.
    """
    registry.ready(name)
    pieces = (b" " * 1000 for _ in range(70))
    headers = {"Content-Type": "application/json"}
    response = registry.client.post(extractions(name), content=pieces, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "payload_too_large")
    assert response.json()["error"]["message"] == "The body has more than 65536 bytes; accepted here: 65536."


def test_what_there_is_not_cannot_be_extracted_from(registry: Registry, name: str):
    """An unknown profile, voice or version is not found, and nothing is begun."""
    registry.ready(name)
    refused = ask(registry, name, profiles=["nonsense"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "profile_unknown")
    assert ask(registry, "nobody").status_code == 404
    assert ask(registry, name, 9).status_code == 404


def test_an_embedding_has_nothing_to_extract(registry: Registry, name: str):
    """A voice of a given embedding has nothing to extract, and SDK and command line say so."""
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    with RegistryClient(registry.url, retries=0) as client, pytest.raises(CacheUnsupported):
        client.extract(name, WIDER)
    assert cli.main(["extract", name, "--profile", WIDER]) == 1


# -- canceling one


def test_a_job_is_canceled(registry: Registry, name: str):
    """A queued job can be canceled. Canceling it again gives the same answer."""
    job_id = registry.upload(name)["job_id"]
    canceled = registry.client.post(f"/v1/jobs/{job_id}/cancel")
    assert canceled.status_code == 200
    assert (canceled.json()["id"], canceled.json()["state"]) == (job_id, "canceled")
    assert canceled.json()["finished_at"]
    assert registry.client.post(f"/v1/jobs/{job_id}/cancel").json() == canceled.json()
    assert registry.client.get(f"/v1/jobs/{job_id}").json() == canceled.json()
    (status,) = registry.client.get(f"/v1/voices/{name}").json()["artifacts"]
    assert (status["state"], status["error"].partition(":")[0]) == ("failed", "canceled")
    assert registry.worker.take_all(name) == []


def test_whoever_waits_for_it_hears_of_it_at_once(registry: Registry, name: str):
    """Long polls for the job, the artifact and the voice end as soon as the job is canceled."""
    job_id = registry.upload(name)["job_id"]
    registry.worker.take_all(name)
    get, post = registry.client.get, registry.client.post
    with ThreadPoolExecutor() as pool:
        waiting = [
            pool.submit(get, f"/v1/jobs/{job_id}", params={"wait": 30}),
            pool.submit(get, f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}", params={"wait": 30}),
            pool.submit(post, f"/v1/audio/voices/{name}/cache", params={"wait": 30}),
        ]
        wait_until(lambda: registry.long_polls.waiting == len(waiting))
        assert registry.client.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
        job, artifact, cached = (one.result(15) for one in waiting)
    assert job.json()["state"] == "canceled"
    assert (artifact.status_code, cached.status_code) == (409, 409)
    assert "canceled" in cached.json()["error"]["message"]


def test_what_has_ended_cannot_be_canceled(registry: Registry, name: str):
    """A job that has ended cannot be canceled, nor one that does not exist. The errors have codes that the
    SDK knows.
    """
    job_id = registry.ready(name)["job_id"]
    late = registry.client.post(f"/v1/jobs/{job_id}/cancel")
    assert (late.status_code, late.json()["error"]["code"]) == (409, "job_finished")
    assert late.headers["x-should-retry"] == "false"
    with RegistryClient(registry.url, retries=0) as client:
        with pytest.raises(JobFinished, match="succeeded"):
            client.cancel(job_id)
        with pytest.raises(JobNotFound):
            client.cancel("job_none")


# -- by SDK and command line


def test_the_sdk_extracts_waits_and_cancels(registry: Registry, name: str):
    """The SDK extracts, waits and cancels with the states and exceptions that its users know."""
    registry.ready(name)
    with RegistryClient(registry.url, retries=0) as client:
        made = client.extract(f"{name}@1", WIDER)
        assert (made.state, made.version) == ("pending", 1)
        assert made.job_id
        with pytest.raises(ArtifactNotReady, match="queued"):
            client.wait_job(made.job_id, timeout=0)
        assert client.cancel(made.job_id).state == "canceled"
        assert client.wait_job(made.job_id).state == "canceled"
        forced = client.extract(name, WIDER, force=True)
        assert forced.job_id
        with registry.worker.working():
            assert client.wait_job(forced.job_id).state == "succeeded"
        assert client.extract(name, WIDER).state == "ready"


def test_the_command_line_extracts_and_cancels(
    registry: Registry, name: str, capsys: pytest.CaptureFixture[str]
):
    """The command line extracts and cancels. Scripts get the job's id with `--json`."""
    registry.ready(name)
    words = ["extract", f"{name}@1", "--profile", WIDER]
    assert cli.main([*words, "--json"]) == 0
    out = capsys.readouterr().out
    made = json.loads(out[out.index("{\n") : out.rindex("\n}") + 2])
    assert cli.main(["cancel", made["job_id"]]) == 0
    assert f"canceled {made['job_id']}: {name}@1 for {WIDER}" in capsys.readouterr().out
    assert cli.main(words) == 6, "it stays canceled"
    assert "canceled" in capsys.readouterr().err
    with registry.worker.working():
        assert cli.main([*words, "--force", "--wait"]) == 0
    assert f"{name}@1 is ready" in capsys.readouterr().out
    assert cli.main(words) == 0
    assert f"{name}@1 is ready for {WIDER}" in capsys.readouterr().out


def test_a_forced_extraction_that_fails_is_not_taken_for_done(
    registry: Registry, name: str, capsys: pytest.CaptureFixture[str]
):
    """A forced extraction that fails is reported as failed, although the previous artifact stays ready all
    the while.
    """
    registry.ready(name)
    with ThreadPoolExecutor() as pool:
        words = ["extract", name, "--profile", PROFILE, "--force", "--wait", "--timeout", "20"]
        waiting = pool.submit(cli.main, words)
        queued = {"voice": name, "state": "queued"}
        wait_until(lambda: bool(registry.client.get("/v1/jobs", params=queued).json()["data"]))
        registry.worker.fail_all(name, InvalidAudio("No speech was found."))
        assert waiting.result(30) == 6
    assert "No speech was found." in capsys.readouterr().err
    with RegistryClient(registry.url, retries=0) as client:
        assert client.wait_ready(name).state == "ready"


def test_jobs_can_be_listed_from_a_time_on(registry: Registry, name: str):
    """A dashboard shows the last minutes, and must not page through a month of jobs for them."""
    created = []
    for profile in (PROFILE, WIDER):
        registry.upload(name) if profile == PROFILE else ask(registry, name, profiles=[profile])
        created.append(
            registry.client.get("/v1/jobs", params={"voice": name}).json()["data"][0]["created_at"]
        )
    for since, profiles in ((0, [WIDER, PROFILE]), (created[0], [WIDER]), (created[1], [])):
        found = registry.client.get("/v1/jobs", params={"voice": name, "created_after": repr(since)}).json()
        assert ([job["profile"] for job in found["data"]], found["has_more"]) == (profiles, False)
    for wrong in ("-1", "yesterday", "NaN", "inf"):
        answer = registry.client.get("/v1/jobs", params={"created_after": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "created_after")
        assert f"'{wrong}'" in answer.json()["error"]["message"]
