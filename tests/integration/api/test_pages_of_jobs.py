"""Tests of the page of jobs and of what it offers, over HTTP as a browser without scripts uses it."""

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from services.registry_api.pages.failures import Failures
from services.shared.view.job_records import JobRecord
from speaker_registry.errors import WorkerError
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, key
from tests.integration.api.conftest import Start, empty
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import PROFILE, Registry


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any) -> Iterator[Registry]:
    """A registry that requires keys."""
    with Registry(tmp_path_factory.mktemp("jobs"), empty(valkey, 12), decoder, access=CLOSED) as registry:
        yield registry


@pytest.fixture
def operator(closed: Registry) -> Iterator[Visitor]:
    with Visitor(closed, str(BOOTSTRAP)) as visitor:
        yield visitor


def failed(registry: Registry, name: str) -> str:
    """Register a voice whose extraction fails, and return the id of the job."""
    job: str = registry.upload(name, headers=bearer(BOOTSTRAP))["job_id"]
    registry.worker.fail_all(name, WorkerError("the device ran out of memory"))
    return job


def forget_failures(registry: Registry, now: Callable[[], float]) -> None:
    """Have the overview count failures anew, as if it were this time."""
    records, profiles = registry.opened.jobs.records, registry.opened.profiles.names
    failures = Failures(records, profiles, now)
    registry.app.state.parts = replace(registry.app.state.parts, failures=failures)


def test_the_overview_says_why_jobs_failed(closed: Registry, name: str):
    """A number of failures alone would not tell whether one machine or many clips are to blame."""
    with Visitor(closed, key(closed, namespace=name)) as operator:
        assert "Why jobs failed" not in operator.get().text, "there is no empty card"
    for number in range(2):
        failed(closed, f"{name}-{number}")
    now = closed.opened.jobs.records.now
    forget_failures(closed, now)
    with Visitor(closed, str(BOOTSTRAP)) as operator:
        page = operator.get().text
    assert "the device ran out of memory" in page
    assert 'href="/dashboard/jobs?state=failed&amp;profile=' in page
    assert "Counted among" not in page, "all failures were"
    with Visitor(closed, key(closed, namespace=name)) as stranger:
        assert "ran out of memory" not in stranger.get().text
    with Visitor(closed, key(closed, "voices:read")) as reader:
        assert "ran out of memory" not in reader.get().text
    forget_failures(closed, lambda: now() + 3601)
    with Visitor(closed, str(BOOTSTRAP)) as operator:
        assert "ran out of memory" not in operator.get("?").text, "an hour is over"


def states(registry: Registry, name: str) -> list[str]:
    """Return the states of a voice's jobs, newest first."""
    found = registry.client.get("/v1/jobs", params={"voice": name}, headers=bearer(BOOTSTRAP)).json()["data"]
    return [job["state"] for job in found]


def test_a_failed_job_is_tried_again_where_it_is_listed(closed: Registry, operator: Visitor, name: str):
    """The button makes a new job, with which the page that follows begins."""
    job = failed(closed, name)
    assert f'action="/dashboard/jobs/{job}/retry"' in operator.get("/jobs?state=failed").text
    page = operator.post(f"/jobs/{job}/retry")
    assert page.url.path == "/dashboard/jobs"
    assert states(closed, name) == ["queued", "failed"]
    operator.post(f"/jobs/{job}/retry")
    assert states(closed, name) == ["queued", "failed"], "a second press joins the job"
    closed.worker.finish_all(name)
    refused = operator.post(f"/jobs/{job}/retry")
    assert refused.status_code == 409
    assert "has been made since" in refused.text
    assert states(closed, name) == ["succeeded", "failed"]


def test_an_old_page_of_a_voice_makes_no_artifact_anew(closed: Registry, operator: Visitor, name: str):
    """The page may be from before the artifact was made, by somebody else's press of the button."""
    failed(closed, name)
    path = f"/voices/{name}/versions/1/extractions"
    operator.post(path, {"profile": PROFILE})
    assert states(closed, name) == ["queued", "failed"]
    closed.worker.finish_all(name)
    refused = operator.post(path, {"profile": PROFILE})
    assert refused.status_code == 409
    assert "has been made since" in refused.text
    assert states(closed, name) == ["succeeded", "failed"]


def test_a_canceled_job_is_tried_again(closed: Registry, operator: Visitor, name: str):
    """Whoever canceled by mistake needs no command line."""
    job = closed.upload(name, headers=bearer(BOOTSTRAP))["job_id"]
    assert operator.post(f"/jobs/{job}/retry").status_code == 409, "it waits already"
    operator.post(f"/jobs/{job}/cancel")
    operator.post(f"/jobs/{job}/retry")
    assert states(closed, name) == ["queued", "canceled"]


def test_the_list_that_a_person_chose_comes_back(closed: Registry, operator: Visitor, name: str):
    """A new job is queued, so a list of failed ones would not show it."""
    job = failed(closed, name)
    shown = {"state": "failed", "profile": PROFILE}
    page = operator.get("/jobs", params=shown).text
    form = page.partition(f"/jobs/{job}/retry")[2].partition("</form>")[0]
    assert dict(re.findall(r'name="(state|profile)" value="([^"]*)"', form)) == shown
    assert operator.post(f"/jobs/{job}/retry", shown).url.query == f"profile={PROFILE}".encode()
    [new, _] = closed.client.get("/v1/jobs", params={"voice": name}, headers=bearer(BOOTSTRAP)).json()["data"]
    shown["state"] = "queued"
    after = operator.post(f"/jobs/{new['id']}/cancel", shown)
    assert dict(after.url.params) == shown
    strange = operator.post(f"/jobs/{new['id']}/retry", {"state": "x", "profile": "x"})
    assert (strange.url.path, strange.url.query) == ("/dashboard/jobs", b"")


def test_a_job_of_a_deleted_voice_is_not_tried_again(closed: Registry, operator: Visitor, name: str):
    """A new voice under the name is another voice, for which nobody asked."""
    job = failed(closed, name)
    closed.client.delete(f"/v1/voices/{name}", headers=bearer(BOOTSTRAP))
    assert operator.post(f"/jobs/{job}/retry").status_code == 404
    closed.ready(name, headers=bearer(BOOTSTRAP))
    assert operator.post(f"/jobs/{job}/retry").status_code == 404
    assert states(closed, name)[0] == "succeeded"


def test_a_job_leads_to_its_version(closed: Registry, operator: Visitor, name: str):
    """Whoever asks why a job failed looks at the voice next: at the version, or at what is left of it."""

    def shown() -> str:
        page = operator.get("/jobs").text
        return operator.get(re.findall(rf'href="/dashboard(/voices/{name}[^"]*)"', page)[0]).text

    closed.ready(name, headers=bearer(BOOTSTRAP))
    closed.upload(name, ref_text="Another take.", headers=bearer(BOOTSTRAP))
    closed.worker.fail_all(name, WorkerError("the device ran out of memory"))
    assert "<span>Version 2; version 1 is served</span>" in shown()
    closed.client.delete(f"/v1/voices/{name}/versions/2", headers=bearer(BOOTSTRAP))
    assert "Version 2 is deleted." in shown()
    assert "<span>Version 1, which is served</span>" in shown()
    closed.client.delete(f"/v1/voices/{name}", headers=bearer(BOOTSTRAP))
    assert f'action="/dashboard/voices/{name}/undelete"' in shown()
    with Visitor(closed, key(closed, "jobs:read")) as reader:
        page = reader.get("/jobs").text
    assert name in page
    assert 'href="/dashboard/voices/' not in page, "the key may not see voices"


def test_a_job_leads_to_its_voice_whatever_its_name_is(closed: Registry, operator: Visitor, name: str):
    """A voice may have the name of another page or the id of another voice."""
    known_as = closed.ready(name, headers=bearer(BOOTSTRAP))["id"]
    for each in ("new", "sample", known_as):
        closed.upload(each, headers=bearer(BOOTSTRAP))
        page = operator.get("/jobs").text
        [address] = re.findall(rf'href="/dashboard(/voices/[^"]*)" title="{each}"', page)
        shown = operator.get(address)
        assert shown.status_code == 200
        assert f"<bdi>{each}</bdi></h1>" in shown.text


def test_a_key_that_may_only_look_cannot_try_again(closed: Registry, name: str):
    """Without the scope there is no button, and a form that is sent all the same is refused."""
    job = failed(closed, name)
    with Visitor(closed, key(closed, "jobs:read")) as reader:
        page = reader.get("/jobs?state=failed").text
        assert job not in page
        assert name in page
        assert reader.post(f"/jobs/{job}/retry").status_code == 403
    with Visitor(closed, key(closed, namespace="others")) as stranger:
        assert stranger.post(f"/jobs/{job}/retry").status_code == 404
    assert states(closed, name) == ["failed"]


def test_a_page_of_jobs_reads_no_more_than_it_shows(
    closed: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Open dashboards ask for the first page all the time, and most of its cost is reading records."""
    for number in range(5):
        closed.upload(f"{name}-{number}", headers=bearer(BOOTSTRAP))
    looked_at: list[str] = []
    read, ours = JobRecord.read, threading.get_ident()

    def reading(fields: dict[str, str]) -> JobRecord:
        if threading.get_ident() == ours:  # housekeeping reads records as well
            looked_at.append(fields["id"])
        return read(fields)

    monkeypatch.setattr(JobRecord, "read", reading)
    page = closed.opened.jobs.records.page("default", limit=2)
    assert ([one.id for one in page.found], page.more) == (looked_at[:2], True)
    assert len(looked_at) == 3, "one more tells that there is a next page"


def test_a_list_is_asked_for_more_often_while_a_job_goes_on(start: Start):
    """Fifty people who leave the page open must not cost the registry a twentieth of a core."""
    registry = start()
    with Visitor(registry) as visitor:
        assert 'hx-trigger="every 4s"' in visitor.get("/jobs").text
        registry.upload("alice")
        assert 'hx-trigger="every 3s"' in visitor.get("/jobs").text
        assert 'hx-trigger="every 4s"' in visitor.get("/jobs?state=failed").text
        registry.worker.finish_all("alice")
        assert 'hx-trigger="every 4s"' in visitor.get("/jobs").text
