"""Tests of two tenants with voices of the same names and the same clips: neither reads, changes or counts
anything of the other's, with the view and without it. `test_access.py` tests each route by its scopes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.registry_api.keys.api_keys import ALL_SCOPES
from services.shared.configuration.access import RateSettings
from speaker_registry.errors import InvalidAudio
from tests.integration.api.access import CLOSED, bearer, id_of, key
from tests.integration.api.conftest import empty
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import CLIP, PROFILE, Registry

PATIENT = RateSettings(
    requests_per_minute=100_000, uploads_per_minute=100_000, unknown_names_per_minute=100_000
)
IDEMPOTENT = {"Idempotency-Key": "the-same-for-both"}


@dataclass(frozen=True)
class Tenant:
    """A namespace with a key of all scopes, and what its answers say that others must not."""

    namespace: str
    token: str
    voice_id: str
    digest: str
    jobs: list[str]
    key_id: str
    """The id of a key that this one made."""
    secrets: frozenset[str]
    """Ids, digests and texts that nobody else may read."""

    @property
    def headers(self) -> dict[str, str]:
        return bearer(self.token)


def tenant(registry: Registry, namespace: str) -> Tenant:
    """Make a tenant with a voice that is ready, one that failed and one that waits."""
    token = key(registry, namespace=namespace)
    headers, client = bearer(token), registry.client
    about = {
        "consent": f"consent-of-{namespace}",
        "ref_text": f"a text of {namespace}",
        "speaker_description": f"a description of {namespace}",
    }
    jobs = [registry.upload("alice", headers={**headers, **IDEMPOTENT}, **about)["job_id"]]
    registry.worker.finish_all("alice", namespace=namespace)
    jobs.append(registry.upload("failed", headers=headers, **about)["job_id"])
    refusal = InvalidAudio(f"no speech in the clip of {namespace}")
    registry.worker.fail_all("failed", refusal, namespace=namespace)
    jobs.append(registry.upload("waiting", headers=headers, **about)["job_id"])
    made = client.post(
        "/v1/keys", json={"name": f"key-of-{namespace}", "scopes": ["engine"]}, headers=headers
    )
    voices = client.get("/v1/voices", headers=headers).json()["data"]
    descriptor = client.get(f"/v1/voices/alice/versions/1/artifacts/{PROFILE}", headers=headers).json()
    ids = {voice["id"] for voice in voices} | {voice["id"].split("_")[1] for voice in voices}
    secrets = {*ids, *jobs, *about.values(), descriptor["digest"], made.json()["id"], id_of(token), namespace}
    return Tenant(
        namespace=namespace,
        token=token,
        voice_id=next(voice["id"] for voice in voices if voice["name"] == "alice"),
        digest=descriptor["digest"],
        jobs=jobs,
        key_id=made.json()["id"],
        secrets=frozenset(secrets | {f"key-of-{namespace}", f"clip of {namespace}"}),
    )


Tenants = tuple[Registry, Tenant, Tenant]


@pytest.fixture
def tenants(tmp_path: Path, valkey: Any, decoder: Any) -> Iterator[Tenants]:
    with Registry(tmp_path, empty(valkey, 13), decoder, access=CLOSED, rates=PATIENT) as registry:
        yield registry, tenant(registry, "ours-tenant"), tenant(registry, "theirs-tenant")


def reads(theirs: Tenant) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the requests by which something of another tenant's could be read, by path and options."""
    for name in ("alice", "failed", "waiting", theirs.voice_id):
        voice, version = f"/v1/voices/{name}", f"/v1/voices/{name}/versions/1"
        artifact = f"{version}/artifacts/{PROFILE}"
        for path in (voice, f"{voice}/versions", version, f"{version}/artifacts", artifact):
            yield path, {}
        for path in (f"{version}/audio", f"{version}/waveform.svg", f"{artifact}/file"):
            yield path, {}
        yield f"/v1/audio/voices/{name}/cache", {}
        yield "/v1/jobs", {"params": {"voice": name}}
        yield "/v1/voices", {"params": {"after": name}}
        yield "/v1/audio/voices", {"params": {"after": name}}
        yield f"/v1/profiles/{PROFILE}/manifest", {"params": {"after": name}}
    for path in ("/v1/voices", "/v1/audio/voices", "/v1/jobs", "/v1/keys", "/v1/quota", "/v1/jobs/summary"):
        yield path, {}
    for after in ("/", "/x-/", f"../{theirs.namespace}", f"../../{theirs.namespace}/s/", "\x00", "~"):
        yield "/v1/voices", {"params": {"after": after}}
        yield f"/v1/profiles/{PROFILE}/manifest", {"params": {"after": after}}
    yield "/v1/voices", {"params": {"q": "a"}}
    yield "/v1/voices", {"params": {"state": "failed"}}
    yield "/v1/profiles", {}
    for job_id in theirs.jobs:
        yield f"/v1/jobs/{job_id}", {"params": {"wait": 0}}
        yield "/v1/jobs", {"params": {"after": job_id}}
    yield f"/v1/blobs/{theirs.digest}", {}
    yield f"/v1/keys/{theirs.key_id}", {}
    yield "/v1/keys", {"params": {"after": theirs.key_id}}


def said(answer: httpx.Response) -> str:
    return answer.text + json.dumps(dict(answer.headers))


def leaks(registry: Registry, ours: Tenant, theirs: Tenant) -> list[str]:
    """Return what answers to one tenant hold of the other's, beyond what the request named itself."""
    found = []
    voices = ["alice", "failed", theirs.voice_id, f"{theirs.voice_id}@1"]
    resolve = {"voices": voices, "profiles": [PROFILE]}
    asked = [*((path, "GET", options) for path, options in reads(theirs))]
    asked.append(("/v1/resolve", "POST", {"json": resolve}))
    for path, method, options in asked:
        for _ in range(2):  # the second answer may come from memory
            answer = registry.client.request(method, path, headers=ours.headers, **options)
            text, named = said(answer), path + json.dumps(options)
            found += [
                f"{path} {options}: {one}" for one in theirs.secrets if one in text and one not in named
            ]
    return found


def test_no_answer_to_one_tenant_holds_anything_of_anothers(tenants: Tenants):
    """Not by names that both have, by ids, or by cursors of the other; and the same after a loss of Redis,
    when answers are made from the bucket, and after the view was rebuilt.
    """
    registry, ours, theirs = tenants
    assert ours.secrets.isdisjoint(theirs.secrets)
    assert leaks(registry, ours, theirs) == []
    registry.redis.flushdb()
    assert leaks(registry, ours, ours), "its own secrets are in the answers to these requests"
    assert leaks(registry, ours, theirs) == []
    registry.rebuild()
    assert leaks(registry, ours, theirs) == []


def test_no_page_of_one_tenants_operator_shows_anything_of_anothers(tenants: Tenants):
    """An admin of one namespace sees its keys, voices and jobs alone."""
    registry, ours, theirs = tenants
    paths = ["", "/voices", "/voices?q=a", "/jobs", "/jobs?state=failed", "/profiles", "/keys"]
    paths += ["/voices/alice", "/voices/alice/versions/1/pictures", f"/voices/{theirs.voice_id}"]
    with Visitor(registry, ours.token) as visitor:
        assert "a text of ours-tenant" in visitor.get("/voices/alice").text
        for path in paths:
            page = visitor.get(path)
            assert not [one for one in theirs.secrets if one in page.text and one not in path], path


def kept_of(registry: Registry, tenant: Tenant) -> Mapping[str, object]:
    """Return everything that bucket and Redis hold of a tenant, except what reads of its keys may change."""
    keys = {tenant.key_id, id_of(tenant.token)}
    files = [
        *(path for path in (registry.folder / tenant.namespace).rglob("*") if path.is_file()),
        *(registry.folder / f"_keys/{key_id}.json" for key_id in keys),
    ]
    found: dict[str, object] = {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}
    marks = [tenant.namespace.encode(), *(job_id.encode() for job_id in tenant.jobs)]
    for name in registry.redis.scan_iter():
        if any(mark in name for mark in marks) and b":rate" not in name:
            found[name.decode()] = registry.redis.dump(name)
    return found


def changes(ours: Tenant, theirs: Tenant) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield requests that change something: the other tenant's where a path can name it, and all of what both
    tenants have by the same name.
    """
    clip = {"data": {"consent": "c", "ref_text": "other"}, "files": {"audio": CLIP}}
    for name in ("alice", "failed", "waiting", theirs.voice_id, ours.voice_id):
        version = f"/v1/voices/{name}/versions/1"
        yield "POST", f"/v1/voices/{name}/versions", clip
        yield "POST", f"{version}/extractions", {"json": {"profiles": [PROFILE], "force": True}}
        yield "POST", f"/v1/audio/voices/{name}/cache", {"params": {"wait": 0, "force": True}}
        yield "PUT", f"{version}/artifacts/{PROFILE}", {"content": b"no safetensors"}
    for job_id in (*theirs.jobs, *ours.jobs):
        yield "POST", f"/v1/jobs/{job_id}/cancel", {}
    upload = {"data": {"name": "alice", "consent": "c", "ref_text": "new"}, "files": {"audio": CLIP}}
    yield "POST", "/v1/voices", {**upload, "headers": IDEMPOTENT}
    yield "POST", f"/v1/keys/{theirs.key_id}/rotate", {}
    yield "DELETE", f"/v1/keys/{theirs.key_id}", {"params": {"children": True}}
    yield "DELETE", f"/v1/keys/{id_of(theirs.token)}", {"params": {"children": True}}
    for name in ("alice", "failed", "waiting", theirs.voice_id):
        yield "DELETE", f"/v1/voices/{name}", {}
        yield "DELETE", f"/v1/audio/voices/{name}", {}
    yield "POST", f"/v1/keys/{ours.key_id}/rotate", {"params": {"grace_seconds": 0}}
    yield "DELETE", f"/v1/keys/{id_of(ours.token)}", {"params": {"children": True}}


def test_no_request_of_one_tenant_changes_anything_of_anothers(tenants: Tenants):
    """Documents, bytes, copies, jobs and keys stay as they are, byte for byte, whatever the other tenant
    adds, cancels, deletes and revokes.
    """
    registry, ours, theirs = tenants
    before = kept_of(registry, theirs)
    assert len(before) > 10
    statuses = set()
    for method, path, options in changes(ours, theirs):
        headers = {**ours.headers, **options.get("headers", {})}
        answer = registry.client.request(method, path, **{**options, "headers": headers})
        assert answer.status_code < 500, (method, path, answer.text)
        statuses.add(answer.status_code)
        assert kept_of(registry, theirs) == before, (method, path)
    assert {200, 201, 202, 204, 404} <= statuses
    assert registry.client.get("/v1/voices", headers=ours.headers).status_code == 401
    assert registry.client.get("/v1/voices/alice", headers=theirs.headers).json()["versions"] == 1


def test_the_same_upload_of_two_tenants_makes_two_voices(tenants: Tenants):
    """Neither an equal clip nor an equal Idempotency-Key is answered with another tenant's voice, and the
    quota of each counts its own alone.
    """
    registry, ours, theirs = tenants
    fields = {"consent": "consent-of-ours-tenant", "ref_text": "a text of ours-tenant"}
    fields["speaker_description"] = "a description of ours-tenant"
    again = registry.upload("alice", headers={**ours.headers, **IDEMPOTENT}, **fields)
    assert again["id"] == ours.voice_id != theirs.voice_id
    for one in (ours, theirs):
        quota = registry.client.get("/v1/quota", headers=one.headers).json()
        assert (quota["namespace"], quota["voices"]["used"]) == (one.namespace, 3)
        summary = registry.client.get("/v1/jobs/summary", headers=one.headers).json()
        assert sum(summary["counts"].values()) == 3


def test_a_tenant_cannot_make_a_key_for_another(tenants: Tenants):
    """Not by the body, by the header, or by rotating a key."""
    registry, ours, theirs = tenants
    wanted = {"name": "x", "scopes": sorted(ALL_SCOPES)}
    for namespace in (theirs.namespace, "*"):
        body, headers = {**wanted, "namespace": namespace}, bearer(ours.token, namespace)
        for options in ({"json": body, "headers": ours.headers}, {"json": wanted, "headers": headers}):
            assert registry.client.post("/v1/keys", **options).status_code == 403  # type: ignore[arg-type]
    rotated = registry.client.post(f"/v1/keys/{ours.key_id}/rotate", headers=ours.headers).json()
    assert rotated["namespace"] == ours.namespace


def test_events_of_the_past_are_those_of_ones_own_namespace(tenants: Tenants):
    """A listener that resumes reads the stream of all namespaces from Redis."""
    registry, ours, theirs = tenants
    begin = _place(registry, ours, {})
    registry.upload("carol", headers=theirs.headers)
    registry.client.delete("/v1/voices/alice", headers=theirs.headers)
    registry.upload("dave", headers=ours.headers)
    told = _told(registry, ours, {"after": begin}, "dave")
    assert "version.created" in told
    assert not [one for one in (*theirs.secrets, "carol", "voice.deleted") if one in told]
    of_theirs = _told(registry, ours, {"after": begin, "voice": theirs.voice_id}, None)
    assert not [one for one in (*theirs.secrets, "carol") if one in of_theirs]


def _place(registry: Registry, tenant: Tenant, params: dict[str, str]) -> str:
    return _told(registry, tenant, params, None).partition("id: ")[2].partition("\n")[0]


def _told(registry: Registry, tenant: Tenant, params: dict[str, str], until: str | None) -> str:
    """Return what a listener is told up to a word, or at once if there is none."""
    text = ""
    with (
        httpx.Client(base_url=registry.url, headers=tenant.headers, timeout=30) as client,
        client.stream("GET", "/v1/events", params=params) as response,
    ):
        assert response.status_code == 200
        for chunk in response.iter_text():
            text += chunk
            if until is None or until in text:
                return text
    raise AssertionError(f"the stream ended after {text}")
