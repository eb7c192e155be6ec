"""A small honest registry in memory, reached through httpx's mock transport, and a clock that costs no time.

It keeps voices, versions and artifacts and answers as the API does. `faults` are answered first, one per
request: a response, an exception to raise, or a function of the request. Knows no client.
"""

import base64
import email
import hashlib
import itertools
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import unquote

import httpx
import numpy as np

from speaker_registry.artifact import Manifest, encode, sha256_digest
from speaker_registry.schemas import JobState

URL = "http://registry.test"
ECAPA = "ecapa-voxceleb"
QWEN = "qwen3-tts-0.6b"
FINGERPRINT = "sha256:" + "f" * 64
Fault = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


def artifact_file(
    voice: str = "alice", version: int = 1, profile: str = ECAPA, *, width: int = 192, **facts: Any
) -> bytes:
    """A small valid artifact; another width gives another size. `facts`: more of its manifest."""
    manifest = Manifest(
        profile=profile,
        model_type="ecapa",
        fingerprint=FINGERPRINT,
        voice=voice,
        version=version,
        version_id=f"v{version}",
        created_at=1_775_133_893,
        source="audio",
        **facts,
    )
    return encode({"speaker_embedding": np.full(width, version, np.float32)}, manifest)


def file_headers(data: bytes, version: int = 1) -> dict[str, str]:
    """Return the headers with which the registry describes a file's bytes."""
    digest = hashlib.sha256(data).digest()
    return {
        "content-type": "application/vnd.safetensors",
        "etag": f'"sha256:{digest.hex()}"',
        "content-digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        "x-voice-version": str(version),
        "x-artifact-fingerprint": FINGERPRINT,
    }


def file_answer(data: bytes, version: int = 1, **headers: str) -> httpx.Response:
    return httpx.Response(200, content=data, headers={**file_headers(data, version), **headers})


def error_answer(
    status: int, code: str, message: str = "no", headers: Mapping[str, str] | None = None, **more: Any
) -> httpx.Response:
    body = {"message": message, "type": "some_error", "code": code, **more}
    return httpx.Response(status, json={"error": body}, headers=headers)


@dataclass
class FakeVersion:
    """A version, and the state of each profile."""

    number: int
    source: str
    consent: str
    ref_text: str | None
    states: dict[str, str]
    files: dict[str, bytes] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    untrained: dict[str, bool] = field(default_factory=dict)
    """`{"untrained": True}` if it is made with untrained weights. Other documents leave the field out."""


def _counted(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    states = Counter(job["state"] for job in jobs)
    oldest = [job["created_at"] for job in jobs if job["state"] == "queued"]
    ended = {"succeeded": states["succeeded"], "failed": states["failed"]}
    return {
        "counts": {state: states[state] for state in get_args(JobState)},
        "oldest_queued_at": min(oldest, default=None),
        "rates": [
            {"seconds": 60, "succeeded": 0, "failed": 0, "per_second": 0.0},
            {"seconds": 3600, **ended, "per_second": states["succeeded"] / 3600},
            {"seconds": 86_400, **ended, "per_second": states["succeeded"] / 86_400},
        ],
    }


class FakeTime:
    """Sleeping moves the clock and takes no time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)


class FakeRegistry:
    """Called with a request, gives a response: a handler for `httpx.MockTransport`."""

    def __init__(self, profiles: tuple[str, ...] = (ECAPA,)) -> None:
        self.profiles = profiles
        self.requests: list[httpx.Request] = []
        self.faults: deque[Fault] = deque()
        self.voices: dict[str, list[FakeVersion]] = {}
        self.names: dict[str, str] = {}
        self.aliases: dict[str, dict[str, int]] = {}
        self.remembered: dict[str, httpx.Response] = {}
        self.keeps_jobs = True
        self.untrained = False
        """Whether uploaded voices are made with untrained weights."""
        self.news: deque[Callable[[], object]] = deque()
        """Happens one by one, each when somebody polls a job."""

    # What a test does to it.

    def add_version(self, name: str, state: str = "ready", **facts: Any) -> FakeVersion:
        versions = self.voices.setdefault(name.lower(), [])
        self.names.setdefault(name.lower(), name)
        version = FakeVersion(
            number=len(versions) + 1,
            source=facts.get("source", "audio"),
            consent=facts.get("consent", "yes"),
            ref_text=facts.get("ref_text"),
            states=dict.fromkeys(self.profiles, state),
            untrained={"untrained": True} if facts.get("untrained") else {},
        )
        versions.append(version)
        self.aliases.setdefault(name.lower(), {"default": version.number})
        if state == "ready":
            self.make_ready(name, version)
        return version

    def make_ready(self, name: str, version: FakeVersion, *profiles: str) -> None:
        for profile in profiles or self.profiles:
            version.states[profile] = "ready"
            version.files[profile] = artifact_file(self.names[name.lower()], version.number, profile)
        if set(version.states.values()) == {"ready"}:
            self.aliases[name.lower()]["default"] = version.number

    def paths(self) -> list[str]:
        """Return the paths that were requested, as they went over the wire."""
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]

    # How it answers.

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.faults:
            fault = self.faults.popleft()
            if isinstance(fault, Exception):
                raise fault
            return fault if isinstance(fault, httpx.Response) else fault(request)
        if request.url.path == "/readyz":
            return httpx.Response(200, json={"status": "ok", "version": "0.1.0", "parts": {"view": "ok"}})
        segments = [unquote(part) for part in request.url.raw_path.decode().partition("?")[0].split("/")[2:]]
        match request.method, segments:
            case "POST", ["voices"]:
                return self._upload(request)
            case "GET", ["voices"]:
                return self._page(request, [self._voice(key) for key in sorted(self.voices)])
            case "GET", ["quota"]:
                return httpx.Response(200, json=self._quota())
            case "GET", ["profiles"]:
                return self._page(request, [self._profile(profile) for profile in self.profiles])
            case "GET", ["jobs"]:
                return self._page(request, self._jobs())
            case "GET", ["jobs", "summary"]:
                return httpx.Response(200, json=self._jobs_summary())
            case "GET", ["jobs", job_id]:
                return self._job(request, job_id)
            case method, ["voices", name, *rest]:
                return self._on_voice(request, method, name.lower(), rest)
        return error_answer(404, "not_found")

    def _on_voice(self, request: httpx.Request, method: str, key: str, rest: list[str]) -> httpx.Response:
        if key not in self.voices:
            return error_answer(404, "voice_not_found", f"there is no voice '{key}'", param="name")
        if method == "DELETE":
            self.voices[key] = [one for one in self.voices[key] if rest[1:] and one.number != int(rest[1])]
            if not self.voices[key]:
                del self.voices[key]
            return httpx.Response(204)
        if not rest:
            return httpx.Response(200, json=self._voice(key))
        if rest == ["versions"]:
            return self._page(request, [self._version(key, v) for v in self.voices[key]])
        number = self.aliases[key].get(rest[1]) or (int(rest[1]) if rest[1].isdigit() else 0)
        found = [version for version in self.voices[key] if version.number == number]
        if not found:
            return error_answer(404, "version_not_found")
        if len(rest) == 2:
            return httpx.Response(200, json=self._version(key, found[0]))
        if len(rest) == 3 and rest[2] in {"waveform.svg", "mel.png"}:
            return file_answer(f"{rest[2]} of {key}".encode(), found[0].number)
        return self._artifact(request, key, found[0], rest[3], whole=rest[4:] == ["file"])

    def _artifact(
        self, request: httpx.Request, key: str, version: FakeVersion, profile: str, *, whole: bool
    ) -> httpx.Response:
        if "wait" in request.url.params and self.news:
            self.news.popleft()()
        state = version.states.get(profile)
        if state is None:
            return error_answer(404, "profile_unknown", param="profile")
        if state == "failed":
            message = version.errors.get(profile, "?")
            return error_answer(409, "artifact_failed", message, {"x-should-retry": "false"})
        if state != "ready":
            return httpx.Response(
                202, json=self._descriptor(key, version, profile), headers={"retry-after": "2"}
            )
        if not whole:
            return httpx.Response(200, json=self._descriptor(key, version, profile))
        data = version.files[profile]
        if request.headers.get("if-none-match") == f'"{sha256_digest(data)}"':
            return httpx.Response(304, headers={"etag": f'"{sha256_digest(data)}"'})
        return file_answer(data, version.number)

    def _upload(self, request: httpx.Request) -> httpx.Response:
        key = request.headers["idempotency-key"]
        if key not in self.remembered:
            form = form_of(request)
            name = form["name"].decode()
            facts = {
                "consent": form["consent"].decode(),
                "ref_text": form["ref_text"].decode() if "ref_text" in form else None,
                "source": "audio" if "audio" in form else "embedding",
                "untrained": self.untrained,
            }
            version = self.add_version(name, "pending", **facts)
            jobs = {profile: job_id(name.lower(), version, profile) for profile in self.profiles}
            body = {**self._version(name.lower(), version), "jobs": jobs, "created": True}
            self.remembered[key] = httpx.Response(201, content=json.dumps(body))
        return httpx.Response(201, content=self.remembered[key].content)

    def _page(self, request: httpx.Request, items: list[dict[str, Any]]) -> httpx.Response:
        after, limit = request.url.params.get("after"), int(request.url.params.get("limit", 20))
        ids = [item["id"] for item in items]
        start = ids.index(after) + 1 if after else 0
        data = items[start : start + limit]
        more = start + limit < len(items)
        last = data[-1]["id"] if data else None
        return httpx.Response(200, json={"object": "list", "data": data, "last_id": last, "has_more": more})

    def _jobs(self) -> list[dict[str, Any]]:
        every = (
            (k, v, p)
            for k, versions in self.voices.items()
            for v, p in itertools.product(versions, self.profiles)
        )
        return [job(key, version, profile) for key, version, profile in every]

    def _jobs_summary(self) -> dict[str, Any]:
        """Counts the jobs as if each was one of the last hour."""
        profiles = {job["profile"] for job in self._jobs()}
        counted = {one: _counted([job for job in self._jobs() if job["profile"] == one]) for one in profiles}
        each = [{"profile": profile, **counted[profile]} for profile in sorted(profiles)]
        return {"object": "job_summary", **_counted(self._jobs()), "profiles": each}

    def _job(self, request: httpx.Request, wanted: str) -> httpx.Response:
        if "wait" in request.url.params and self.news:
            self.news.popleft()()
        found = [job for job in self._jobs() if job["id"] == wanted and self.keeps_jobs]
        return httpx.Response(200, json=found[0]) if found else error_answer(404, "job_not_found")

    def _voice(self, key: str) -> dict[str, Any]:
        versions = self.voices[key]
        [default] = [one for one in versions if one.number == self.aliases[key]["default"]]
        return {
            "id": f"voice_{key}",
            "name": self.names[key],
            "key": key,
            "created_at": 1_775_133_893,
            "version": default.number,
            "latest": versions[-1].number,
            "versions": len(versions),
            "aliases": self.aliases[key],
            "state": state_of(default),
            "artifacts": self._statuses(key, default),
            **default.untrained,
        }

    def _version(self, key: str, version: FakeVersion) -> dict[str, Any]:
        return {
            "id": f"ver_{key}_{version.number}",
            "voice_id": f"voice_{key}",
            "voice": self.names[key],
            "version": version.number,
            "created_at": 1_775_133_893,
            "source": version.source,
            "embedding_dim": 192 if version.source == "embedding" else None,
            "consent": version.consent,
            "ref_text": version.ref_text,
            "artifacts": self._statuses(key, version),
            "state": state_of(version),
            **version.untrained,
        }

    def _statuses(self, key: str, version: FakeVersion) -> list[dict[str, Any]]:
        return [
            {
                "profile": profile,
                "state": state,
                "error": version.errors.get(profile),
                "job_id": None if state in {"ready", "failed"} else job_id(key, version, profile),
                **version.untrained,
            }
            for profile, state in version.states.items()
        ]

    def _descriptor(self, key: str, version: FakeVersion, profile: str) -> dict[str, Any]:
        status = next(s for s in self._statuses(key, version) if s["profile"] == profile)
        return {
            **status,
            "voice": self.names[key],
            "voice_id": f"voice_{key}",
            "version": version.number,
            "version_id": f"ver_{key}_{version.number}",
            "created_at": 1_775_133_893,
            "model_type": "ecapa",
        }

    def _quota(self) -> dict[str, Any]:
        rate = {"limit": None, "remaining": None, "reset_seconds": 0}
        rates = ("requests_per_minute", "uploads_per_minute")
        return {
            "namespace": "default",
            "key_id": "4dtqrws3",
            "scopes": ["voices:read"],
            **{name: {"used": len(self.voices)} for name in ("voices", "bytes", "text_bytes")},
            **dict.fromkeys(("max_versions", "max_builds", "max_clip_bytes"), 1000),
            **{f"{prefix}{name}": rate for name in rates for prefix in ("", "namespace_")},
        }

    def _profile(self, profile: str) -> dict[str, Any]:
        return {
            "id": profile,
            "model_type": "ecapa",
            "description": "an embedding",
            "required": True,
            "tensors": {"speaker_embedding": {"dtype": "F32", "shape": [192]}},
            "sample_rate": 16000,
            "model": "some/model",
            "licence": "apache-2.0",
            "fingerprint": FINGERPRINT,
            "workers": 1,
        }


def job_id(key: str, version: FakeVersion, profile: str) -> str:
    return f"job_{hashlib.sha256(f'{key} {version.number} {profile}'.encode()).hexdigest()[:12]}"


def job(key: str, version: FakeVersion, profile: str) -> dict[str, Any]:
    states = {"pending": "queued", "ready": "succeeded"}
    state = version.states[profile]
    return {
        "id": job_id(key, version, profile),
        "state": states.get(state, state),
        "voice": key,
        "version": version.number,
        "version_id": f"ver_{key}_{version.number}",
        "profile": profile,
        "attempt": 1,
        "max_attempts": 3,
        "progress": {"stage": "encoding", "done": 1, "total": 3},
        "queue": "cpu",
        "created_at": 1.0,
        "error": {"code": "extractor_error", "message": "?", "retryable": True, "attempt": 1}
        if state == "failed"
        else None,
    }


def state_of(version: FakeVersion) -> str:
    """The worst one."""
    return next(s for s in ("failed", "processing", "pending", "ready") if s in version.states.values())


def form_of(request: httpx.Request) -> dict[str, bytes]:
    """The parts of a multipart form by name."""
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    parts = email.message_from_bytes(head + request.content).get_payload()
    return {
        part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in parts
    }
