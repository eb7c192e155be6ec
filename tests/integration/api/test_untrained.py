"""Tests that noise is never taken for a voice: every answer about untrained weights says so."""

from typing import Any

import httpx
import pytest

from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, PROFILE, Registry

NOISE = "sha256:" + "9" * 64
VERSION = "/v1/voices/alice/versions/1"
ARTIFACT = f"{VERSION}/artifacts/{PROFILE}"
FILE = f"{ARTIFACT}/file"


def documents(registry: Registry) -> dict[str, dict[str, Any]]:
    """Return every document about the voice that has the field when it is untrained, by its name."""
    get = registry.client.get
    voice, version = get("/v1/voices/alice").json(), get(VERSION).json()
    wanted = {"voices": ["alice"], "profiles": [PROFILE]}
    return {
        "voices": get("/v1/voices").json()["data"][0],
        "voice": voice,
        "artifact of a voice": voice["artifacts"][0],
        "versions": get("/v1/voices/alice/versions").json()["data"][0],
        "version": version,
        "artifact of a version": version["artifacts"][0],
        "descriptor": get(ARTIFACT).json(),
        "descriptors": get(f"{VERSION}/artifacts").json()["data"][0],
        "extraction": registry.client.post(f"{VERSION}/extractions", json={}).json()["data"][0],
        "manifest": get(f"/v1/profiles/{PROFILE}/manifest").json()["data"][0],
        "audio voices": get("/v1/audio/voices").json()["uploaded_voices"][0],
        "cache": get("/v1/audio/voices/alice/cache").json(),
        "filled cache": registry.client.post("/v1/audio/voices/alice/cache", params={"wait": 0}).json(),
        "resolved": registry.client.post("/v1/resolve", json=wanted).json()["data"][0],
        "upload": registry.upload("alice"),
    }


@pytest.fixture
def registry(start: Start) -> Registry:
    return start(profiles=(PROFILE,))


def test_every_document_of_an_untrained_voice_says_so(registry: Registry):
    """A caller that reads any one of them must not take noise for a voice."""
    registry.worker.announce(NOISE, untrained=True)
    registry.ready("alice")
    assert {name for name, one in documents(registry).items() if one.get("untrained") is not True} == set()


def test_no_document_of_a_trained_voice_mentions_it(registry: Registry):
    """The field stands out only if it is absent everywhere else."""
    registry.ready("alice")
    assert {name for name, one in documents(registry).items() if "untrained" in one} == set()


def test_the_file_says_it_in_its_headers(registry: Registry):
    """Engines read the headers, also those of 304 and HEAD, and those of answers from memory."""
    registry.worker.announce(NOISE, untrained=True)
    registry.ready("alice")
    digest = registry.file("alice").headers["ETag"]
    answers = [registry.client.get(FILE), registry.client.get(FILE), registry.client.head(FILE)]
    answers += [registry.client.get(FILE, headers={"If-None-Match": digest}) for _ in range(2)]
    answers.append(registry.client.get(f"/v1/blobs/{digest.strip(chr(34))}"))
    assert [one.headers.get("X-Artifact-Untrained") for one in answers] == ["true"] * 6


def test_the_file_of_a_trained_voice_has_no_such_header(registry: Registry):
    """The header is absent, so that a proxy can refuse every answer that has it."""
    registry.ready("alice")
    assert "X-Artifact-Untrained" not in registry.file("alice").headers


def test_a_voice_that_will_be_untrained_says_so_while_it_is_pending(registry: Registry):
    """Whoever registers a voice learns it at once, and not after the extraction."""
    registry.worker.announce(NOISE, untrained=True)
    response: httpx.Response = registry.client.post(
        "/v1/audio/voices", data={"name": "alice", "consent": "yes"}, files={"audio_sample": CLIP}
    )
    assert response.json()["voice"]["untrained"] is True
    voice = registry.client.get("/v1/voices/alice").json()
    assert (voice["state"], voice["untrained"]) == ("pending", True)
    pending = {name: one for name, one in documents(registry).items() if name not in {"resolved", "manifest"}}
    assert {name for name, one in pending.items() if one.get("untrained") is not True} == set()
    answers = [registry.client.get(path) for path in (ARTIFACT, FILE)]
    assert [(one.status_code, one.json()["untrained"]) for one in answers] == [(202, True)] * 2


def test_a_voice_that_will_be_trained_says_nothing_while_it_is_pending(registry: Registry):
    """The field is absent, as it is when the artifact is there."""
    registry.upload("alice")
    assert {name for name, one in documents(registry).items() if "untrained" in one} == set()
    assert "untrained" not in registry.client.get(FILE).json()


def test_the_current_encoder_counts_if_only_its_artifact_is_wanted(registry: Registry):
    """A trained artifact of a former encoder says nothing of the noise that is about to replace it."""
    registry.ready("alice")
    registry.worker.announce(NOISE, untrained=True)
    assert "untrained" not in registry.client.get(ARTIFACT).json()
    registry.client.post(f"{VERSION}/extractions", json={})
    answer = registry.client.get(ARTIFACT, params={"current": "true"})
    assert (answer.status_code, answer.json()["untrained"]) == (202, True)
