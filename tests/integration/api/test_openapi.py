"""Tests of the OpenAPI document: valid, complete, and with examples that match their schemas. Real answers
are checked against it wherever a test receives one; see `contract`.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from services.registry_api.access.rules import NAMESPACE_HEADER
from services.registry_api.wire.answers import SAFETENSORS
from tests.integration.api.contract import Contract
from tests.integration.api.registry import Registry

Operation = dict[str, Any]
PUBLIC = {"GET /healthz", "GET /readyz"}
"""Operations that need no key and are about no namespace."""


@pytest.fixture(scope="module")
def document(registry: Registry) -> dict[str, Any]:
    """Return the document as a client gets it."""
    response = registry.client.get("/openapi.json")
    assert response.headers["Content-Type"] == "application/json"
    found: dict[str, Any] = response.json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, Operation]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def contents(operation: Operation) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the status, media type and description of each content."""
    for status, answer in operation["responses"].items():
        for media_type, content in answer.get("content", {}).items():
            yield status, media_type, content


def test_the_document_is_valid(document: dict[str, Any]):
    """The document is valid. Client generators would otherwise refuse it."""
    validate(document)


def test_every_route_is_in_it(document: dict[str, Any]):
    """Every route is in the document. A route that callers cannot find might as well not exist."""
    assert {what for what, _ in operations(document)} == {
        "GET /v1/audio/voices",
        "POST /v1/audio/voices",
        "DELETE /v1/audio/voices/{name}",
        "GET /v1/audio/voices/{name}/cache",
        "POST /v1/audio/voices/{name}/cache",
        "GET /v1/voices",
        "POST /v1/voices",
        "GET /v1/voices/{name}",
        "DELETE /v1/voices/{name}",
        "POST /v1/voices/{name}/undelete",
        "GET /v1/voices/{name}/history",
        "PATCH /v1/voices/{name}",
        "DELETE /v1/voices/{name}/versions/{ref}",
        "GET /v1/voices/{name}/aliases",
        "GET /v1/voices/{name}/aliases/{alias}",
        "PUT /v1/voices/{name}/aliases/{alias}",
        "DELETE /v1/voices/{name}/aliases/{alias}",
        "GET /v1/voices/{name}/versions",
        "POST /v1/voices/{name}/versions",
        "PUT /v1/voices/{name}/versions/{ref}",
        "GET /v1/voices/{name}/versions/{ref}",
        "GET /v1/voices/{name}/versions/{ref}/audio",
        "GET /v1/voices/{name}/versions/{ref}/audio/samples",
        "GET /v1/voices/{name}/versions/{ref}/waveform.svg",
        "GET /v1/voices/{name}/versions/{ref}/mel.png",
        "GET /v1/voices/{name}/versions/{ref}/artifacts",
        "GET /v1/voices/{name}/versions/{ref}/artifacts/{profile}",
        "GET /v1/voices/{name}/versions/{ref}/artifacts/{profile}/file",
        "GET /v1/blobs/{digest}",
        "POST /v1/resolve",
        "GET /v1/profiles/{profile}/manifest",
        "GET /v1/events",
        "GET /v1/jobs",
        "GET /v1/jobs/summary",
        "GET /v1/jobs/{job_id}",
        "POST /v1/jobs/{job_id}/cancel",
        "POST /v1/voices/{name}/versions/{ref}/extractions",
        "GET /v1/profiles",
        "GET /v1/profiles/{profile}/history",
        "POST /v1/profiles/{profile}/promote",
        "GET /v1/profiles/{profile}/campaigns",
        "POST /v1/profiles/{profile}/campaigns",
        "GET /v1/profiles/{profile}/campaigns/{campaign_id}",
        "POST /v1/profiles/{profile}/campaigns/{campaign_id}/pause",
        "POST /v1/profiles/{profile}/campaigns/{campaign_id}/resume",
        "POST /v1/profiles/{profile}/campaigns/{campaign_id}/cancel",
        "GET /v1/keys",
        "POST /v1/keys",
        "GET /v1/keys/{key_id}",
        "DELETE /v1/keys/{key_id}",
        "POST /v1/keys/{key_id}/rotate",
        "GET /v1/quota",
        "PUT /v1/voices/{name}/versions/{ref}/artifacts/{profile}",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
    }


def test_operations_are_called_what_they_do(document: dict[str, Any]):
    """Operations are named after what they do. Generated clients use these names for their methods, and break
    when one changes.
    """
    assert {operation["operationId"]: what for what, operation in operations(document)} == {
        "list_audio_voices": "GET /v1/audio/voices",
        "create_audio_voice": "POST /v1/audio/voices",
        "delete_audio_voice": "DELETE /v1/audio/voices/{name}",
        "get_cache_status": "GET /v1/audio/voices/{name}/cache",
        "fill_cache": "POST /v1/audio/voices/{name}/cache",
        "list_voices": "GET /v1/voices",
        "create_voice": "POST /v1/voices",
        "get_voice": "GET /v1/voices/{name}",
        "delete_voice": "DELETE /v1/voices/{name}",
        "edit_voice": "PATCH /v1/voices/{name}",
        "list_changes": "GET /v1/voices/{name}/history",
        "undelete_voice": "POST /v1/voices/{name}/undelete",
        "delete_version": "DELETE /v1/voices/{name}/versions/{ref}",
        "list_aliases": "GET /v1/voices/{name}/aliases",
        "get_alias": "GET /v1/voices/{name}/aliases/{alias}",
        "move_alias": "PUT /v1/voices/{name}/aliases/{alias}",
        "remove_alias": "DELETE /v1/voices/{name}/aliases/{alias}",
        "list_versions": "GET /v1/voices/{name}/versions",
        "create_version": "POST /v1/voices/{name}/versions",
        "restore_version": "PUT /v1/voices/{name}/versions/{ref}",
        "get_version": "GET /v1/voices/{name}/versions/{ref}",
        "get_clip": "GET /v1/voices/{name}/versions/{ref}/audio",
        "get_samples": "GET /v1/voices/{name}/versions/{ref}/audio/samples",
        "get_waveform": "GET /v1/voices/{name}/versions/{ref}/waveform.svg",
        "get_mel": "GET /v1/voices/{name}/versions/{ref}/mel.png",
        "list_artifacts": "GET /v1/voices/{name}/versions/{ref}/artifacts",
        "get_artifact": "GET /v1/voices/{name}/versions/{ref}/artifacts/{profile}",
        "get_artifact_file": "GET /v1/voices/{name}/versions/{ref}/artifacts/{profile}/file",
        "get_blob": "GET /v1/blobs/{digest}",
        "resolve_voices": "POST /v1/resolve",
        "get_manifest": "GET /v1/profiles/{profile}/manifest",
        "put_artifact": "PUT /v1/voices/{name}/versions/{ref}/artifacts/{profile}",
        "create_extractions": "POST /v1/voices/{name}/versions/{ref}/extractions",
        "listen_to_events": "GET /v1/events",
        "list_jobs": "GET /v1/jobs",
        "summarize_jobs": "GET /v1/jobs/summary",
        "get_job": "GET /v1/jobs/{job_id}",
        "cancel_job": "POST /v1/jobs/{job_id}/cancel",
        "list_profiles": "GET /v1/profiles",
        "list_profile_changes": "GET /v1/profiles/{profile}/history",
        "promote_encoder": "POST /v1/profiles/{profile}/promote",
        "start_campaign": "POST /v1/profiles/{profile}/campaigns",
        "list_campaigns": "GET /v1/profiles/{profile}/campaigns",
        "get_campaign": "GET /v1/profiles/{profile}/campaigns/{campaign_id}",
        "pause_campaign": "POST /v1/profiles/{profile}/campaigns/{campaign_id}/pause",
        "resume_campaign": "POST /v1/profiles/{profile}/campaigns/{campaign_id}/resume",
        "cancel_campaign": "POST /v1/profiles/{profile}/campaigns/{campaign_id}/cancel",
        "create_key": "POST /v1/keys",
        "list_keys": "GET /v1/keys",
        "get_key": "GET /v1/keys/{key_id}",
        "revoke_key": "DELETE /v1/keys/{key_id}",
        "rotate_key": "POST /v1/keys/{key_id}/rotate",
        "get_quota": "GET /v1/quota",
        "get_health": "GET /healthz",
        "get_readiness": "GET /readyz",
        "get_metrics": "GET /metrics",
    }


def test_every_operation_and_parameter_is_described(document: dict[str, Any]):
    """Every operation and every parameter is described in a sentence."""
    for what, operation in operations(document):
        assert operation["description"], what
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (what, parameter["name"])


def test_every_parameter_is_declared_once(registry: Registry, document: dict[str, Any]):
    """Headers are added to the document when it is fetched, also where no keys are required."""
    assert registry.client.get("/openapi.json").json() == document
    for what, operation in operations(document):
        declared = [(one["in"], one["name"]) for one in operation.get("parameters", [])]
        assert len(declared) == len(set(declared)), what
        assert (("header", NAMESPACE_HEADER) in declared) == (what not in PUBLIC), what


def test_every_success_has_an_example_or_is_binary(document: dict[str, Any]):
    """Every success has an example or is binary, because an example says more than a schema."""
    for what, operation in operations(document):
        good = {status for status in operation["responses"] if status.startswith("2")}
        assert good, what
        for status, media_type, content in contents(operation):
            if status in good and media_type == "application/json":
                assert content["example"], what
                assert content["schema"], what
            elif status in good and what in {"GET /metrics", "GET /v1/events"}:
                assert content["example"]
            elif status in good:
                assert content["schema"] == {"type": "string", "format": "binary"}, what


def test_every_link_leads_to_an_operation(document: dict[str, Any]):
    """Every link leads to an operation by its id, with parameters that the operation has."""
    known = {
        operation["operationId"]: {parameter["name"] for parameter in operation.get("parameters", [])}
        for _, operation in operations(document)
    }
    links = [
        link
        for _, operation in operations(document)
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert len(links) > 8
    for link in links:
        assert set(link["parameters"]) <= known[link["operationId"]], link


def test_every_refusal_is_the_envelope_with_an_example(document: dict[str, Any]):
    """Every refusal is the error envelope with an example. All errors have one form, and the framework's own
    errors are not among them.
    """
    for what, operation in operations(document):
        bad = {status for status in operation["responses"] if status[0] in "45d"}
        if "/v1/" in what:
            assert {"503", "default"} <= bad, what
            # One operation creates what its path names.
            found = {"400"} if what == "PUT /v1/voices/{name}/versions/{ref}" else {"400", "404"}
            assert "{" not in what or found <= bad, what
        for status, _, content in contents(operation):
            if status in bad and what != "GET /readyz":
                assert content["schema"] == {"$ref": "#/components/schemas/ErrorEnvelope"}, (what, status)
                assert content["example"]["error"]["message"], (what, status)
                integer = isinstance(content["example"]["error"]["code"], int)
                assert integer == ("/v1/audio/" in what and status != "default"), (what, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_every_example_is_what_its_schema_says(document: dict[str, Any]):
    """Every example matches its schema. Examples are copied, so a wrong one is copied too."""
    contract = Contract(document)
    checked = 0
    for what, operation in operations(document):
        for _, media_type, content in contents(operation):
            if "example" in content and media_type == "application/json":
                contract.validate(content["example"], content["schema"])
                checked += 1
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            if media_type != SAFETENSORS:  # a file, which no example shows
                contract.validate(content["example"], content["schema"])
                assert what in {
                    "POST /v1/audio/voices",
                    "POST /v1/keys",
                    "POST /v1/profiles/{profile}/campaigns",
                    "POST /v1/profiles/{profile}/promote",
                    "POST /v1/resolve",
                    "POST /v1/voices",
                    "POST /v1/voices/{name}/versions",
                    "POST /v1/voices/{name}/versions/{ref}/extractions",
                    "PATCH /v1/voices/{name}",
                    "PUT /v1/voices/{name}/aliases/{alias}",
                    "PUT /v1/voices/{name}/versions/{ref}",
                }
    assert checked > 80


def test_a_wrong_answer_would_be_noticed(document: dict[str, Any]):
    """A wrong answer is noticed. The checks above, and those in every other test, depend on it."""
    contract = Contract(document)
    voice = document["paths"]["/v1/voices/{name}"]["get"]["responses"]["200"]["content"]["application/json"]
    with pytest.raises(Exception, match="'version' is a required property"):
        contract.validate(
            {key: voice["example"][key] for key in voice["example"] if key != "version"}, voice["schema"]
        )
    with pytest.raises(Exception, match="is not of type 'integer'"):
        contract.validate({**voice["example"], "version": "2"}, voice["schema"])


def test_the_document_names_no_machine(document: dict[str, Any], registry: Registry):
    """The document names no machine, because it is published."""
    text = json.dumps(document)
    assert str(registry.folder) not in text
    assert "127.0.0.1" not in text


def test_its_page_loads_nothing_from_other_servers(registry: Registry):
    """The documentation page loads nothing from other servers. Most registries have no way out, and none
    should tell other servers who reads its documentation.
    """
    with httpx.Client(base_url=registry.url, timeout=60) as browser:
        page = browser.get("/docs").text
        assets = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert len(assets) >= 3
        for asset in assets:
            assert browser.get(asset).status_code == 200, asset
    assert "//" not in "".join(assets)
