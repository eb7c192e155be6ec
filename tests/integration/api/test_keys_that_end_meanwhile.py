"""Tests of requests whose key is revoked while they wait or arrive. A revocation is acknowledged when the key
opens nothing any more, and that includes requests that began before it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import pytest

from tests.integration.api import raw
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, PROFILE, Registry
from tests.queue_workers import wait_until

ARTIFACT = f"/v1/voices/alice/versions/1/artifacts/{PROFILE}"


@pytest.fixture
def closed(start: Start) -> Registry:
    """A registry that requires keys."""
    return start(access=CLOSED)


def revoke(closed: Registry, token: str) -> None:
    response = closed.client.delete(f"/v1/keys/{id_of(token)}", headers=bearer(BOOTSTRAP))
    assert response.status_code == 204, response.text


def assert_refused(response: httpx.Response) -> None:
    assert response.status_code == 401, response.text[:200]
    assert response.json()["error"]["message"] == "This API key is revoked."


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{ARTIFACT}?wait=30"),
        ("GET", f"{ARTIFACT}/file?wait=30"),
        ("GET", "/v1/jobs/{job_id}?wait=30"),
        ("POST", "/v1/audio/voices/alice/cache?wait=30&version=1"),
    ],
)
def test_a_request_that_waits_gets_nothing_after_its_key_was_revoked(
    closed: Registry, method: str, path: str
):
    job = closed.upload("alice", headers=bearer(key(closed)))["job_id"]
    token = key(closed)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(closed.client.request, method, path.format(job_id=job), headers=bearer(token))
        wait_until(lambda: closed.long_polls.waiting == 1)
        revoke(closed, token)
        closed.worker.finish_all("alice")
        assert_refused(asked.result())


def test_a_request_that_waits_is_answered_after_its_key_was_rotated(closed: Registry):
    """A rotated key is valid for another day."""
    closed.upload("alice", headers=bearer(key(closed)))
    token = key(closed)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(closed.client.get, f"{ARTIFACT}?wait=30", headers=bearer(token))
        wait_until(lambda: closed.long_polls.waiting == 1)
        rotated = closed.client.post(f"/v1/keys/{id_of(token)}/rotate", headers=bearer(BOOTSTRAP))
        assert rotated.status_code == 201, rotated.text
        closed.worker.finish_all("alice")
        assert asked.result().status_code == 200


@pytest.mark.parametrize(("path", "clip"), [("/v1/voices", "audio"), ("/v1/audio/voices", "audio_sample")])
def test_an_upload_that_arrives_after_its_key_was_revoked_registers_nothing(
    closed: Registry, path: str, clip: str
):
    token, began, revoked = key(closed), Event(), Event()
    form = raw.form(raw.field("name", "alice"), raw.field("consent", "cons_1"), raw.file(clip, CLIP))

    def slowly() -> Iterator[bytes]:
        yield form[: len(form) // 2]
        began.set()
        assert revoked.wait(30)
        yield form[len(form) // 2 :]

    def send() -> httpx.Response:
        return closed.client.post(path, content=slowly(), headers=bearer(token) | raw.CONTENT_TYPE)

    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(send)
        assert began.wait(30)
        wait_until(lambda: closed.app.state.access.arriving_uploads._held)
        revoke(closed, token)
        revoked.set()
        assert_refused(sent.result())
    assert closed.client.get("/v1/voices/alice", headers=bearer(BOOTSTRAP)).status_code == 404
