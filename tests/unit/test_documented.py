"""Tests of the files that describe responses and request bodies for the OpenAPI document."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.registry_api.access.rules import NAMESPACE_HEADER
from services.registry_api.app import api_document
from services.registry_api.protocol.error_answers import status_of
from services.registry_api.wire import documented, forms
from services.registry_api.wire.documented import request_body, responses
from services.shared.model.past import HistoryPosition
from speaker_registry.embeddings import MAX_EMBEDDING
from speaker_registry.errors import BY_CODE


@pytest.fixture(scope="module")
def operations() -> dict[str, dict[str, Any]]:
    paths = api_document()["paths"].values()
    return {operation["operationId"]: operation for methods in paths for operation in methods.values()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty folder that the examples are read from."""
    monkeypatch.setattr(documented, "_FOLDER", tmp_path)
    documented._sections.cache_clear()
    yield tmp_path
    documented._sections.cache_clear()


def write(folder: Path, **sections: Any) -> None:
    (folder / "some.json").write_text(json.dumps(sections))


def test_everything_described_is_in_the_document(operations: dict[str, dict[str, Any]]):
    """What no route uses any more would otherwise stay in the files for ever."""
    sections = documented._sections()
    described = {*sections["responses"], *sections["compatible_responses"]}
    described -= {"refused", "refused_compatible"}
    assert described == operations.keys()
    for name, body in sections["bodies"].items():
        assert body["content"].keys() == operations[name]["requestBody"]["content"].keys(), name


def test_every_operation_with_a_body_says_what_it_answers_to_one_that_is_too_large(
    operations: dict[str, dict[str, Any]],
):
    """Clients choose by it how much they send at once."""
    with_body = {name for name, one in operations.items() if "requestBody" in one}
    assert {name for name in with_body if "413" not in operations[name]["responses"]} == set()


def test_every_value_is_used():
    """A value that nothing takes in is a leftover."""
    text = "".join(path.read_text("utf-8") for path in documented._FOLDER.glob("*.json"))
    taken = {
        name for names in re.findall(r'"\.\.\.": (\[.*?\]|".*?")', text) for name in re.findall(r"\w+", names)
    }
    assert documented._sections()["values"].keys() == taken | {*re.findall(documented._NAME, text)}


def test_an_error_has_the_status_of_its_code(operations: dict[str, dict[str, Any]]):
    """Clients choose what to do by status and code, so the document must not pair two that never meet."""
    checked = 0
    for name, operation in operations.items():
        for status, response in operation["responses"].items():
            example = response.get("content", {}).get("application/json", {}).get("example", {})
            if "error" not in example or status == "default":
                continue
            error = example["error"]
            code = error.get("reason", error["code"])
            assert status_of(BY_CODE[code]("."), compatible="reason" in error) == int(status), (name, code)
            checked += 1
    assert checked > 300


def test_one_error_of_an_operation_names_its_model():
    """FastAPI builds a validator for each model that it is given, and hundreds slow down the start."""
    given = responses("get_voice")
    assert {status for status, response in given.items() if "model" in response} == {"200", "default"}


@pytest.mark.parametrize(
    ("operation", "names"),
    [
        ("create_audio_voice", forms.COMPATIBLE),
        ("create_voice", forms.NATIVE),
        ("create_version", forms.NATIVE_VERSION),
        ("restore_version", forms.NATIVE_RESTORED),
    ],
)
def test_a_form_is_described_as_it_is_parsed(operation: str, names: forms.FieldNames):
    """The schema is written by hand, and generated clients send what it says."""
    schema = request_body(operation)["requestBody"]["content"]["multipart/form-data"]["schema"]
    fields = schema["properties"]
    assert [*fields] == [*names]
    assert schema["description"] == f"Exactly one of `{names.clip}` and `{names.embedding}` is required."
    assert "oneOf" not in schema, "generators of clients would make a method that sends no form"
    assert fields["consent"]["maxLength"] == forms.MAX_CONSENT
    assert fields["ref_text"]["maxLength"] == fields[names.description]["maxLength"] == forms.MAX_TEXT
    assert f"1 to {MAX_EMBEDDING} " in fields[names.embedding]["description"]


def declaring(operations: dict[str, dict[str, Any]], header: str) -> set[str]:
    """Return the operations that have a header among their parameters."""
    return {
        name
        for name, operation in operations.items()
        if (header, "header") in {(one["name"], one["in"]) for one in operation.get("parameters", ())}
    }


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
def test_a_condition_that_an_operation_honours_is_its_parameter(
    operations: dict[str, dict[str, Any]], header: str
):
    """Generated clients can send only the headers that an operation declares."""
    told = {name for name, operation in operations.items() if f"`{header}" in operation["description"]}
    assert len(told) >= 5
    assert told <= declaring(operations, header)


def test_only_changes_say_that_a_repeat_is_not_refused(operations: dict[str, dict[str, Any]]):
    """A download whose ETag is another one is refused always, and a change only if there is one to make."""
    told = {
        name
        for name, operation in operations.items()
        for one in operation.get("parameters", ())
        if "would change nothing" in one.get("description", "")
    }
    assert {"edit_voice", "move_alias", "create_voice"} <= told
    assert not told & {"get_artifact_file", "get_blob", "get_clip"}


def test_every_operation_that_needs_a_key_takes_a_namespace(operations: dict[str, dict[str, Any]]):
    """A key for all namespaces is about another one than `default` only by this header."""
    secured = {name for name, operation in operations.items() if "security" in operation}
    assert "get_voice" in secured
    assert declaring(operations, NAMESPACE_HEADER) == secured


def test_limits_of_parameters_have_their_names_in_json_schema(operations: dict[str, dict[str, Any]]):
    """Generated clients know `minimum`. They pass over pydantic's `ge`, and send what is refused."""
    for name, operation in operations.items():
        for parameter in operation.get("parameters", ()):
            unknown = parameter["schema"].keys() & {"ge", "gt", "le", "lt", "min_length", "max_length"}
            assert not unknown, (name, parameter["name"])


@pytest.mark.parametrize("text", ["", "7", "7-1790000000-3-qwen3-tts-0.6b", "-7", "7-1", "0" * 19, "٧"])
def test_a_position_in_a_history_is_described_as_it_is_parsed(
    operations: dict[str, dict[str, Any]], text: str
):
    parameters = operations["list_changes"]["parameters"]
    [pattern] = [one["schema"]["pattern"] for one in parameters if one["name"] == "after"]
    is_position = not text or HistoryPosition.parse(text) is not None
    assert (re.search(pattern, text) is not None) == is_position


def test_values_take_the_place_of_their_names(folder: Path):
    """Later members replace those that were taken in, at the place where these stood."""
    write(
        folder,
        values={
            "id": "a1",
            "voice": {"id": "voice_{id}", "names": ["{id}"]},
            "both": {"...": ["voice", "state"], "names": []},
            "state": {"state": 'ready {version="1"}'},
        },
        bodies={"edit": {"content": "{both}"}},
    )
    content = request_body("edit")["requestBody"]["content"]
    assert json.dumps(content) == json.dumps({"id": "voice_a1", "names": [], "state": 'ready {version="1"}'})


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"values": {}, "examples": {}}, "'examples'; accepted: values, bodies"),
        ({"responses": {"get": {"200": "{voice}"}}}, "no 'voice' among their values"),
        ({"responses": {"get": {"...": "read"}}}, "no 'read' among their values"),
        ({"responses": {"list": {}}}, "no 'get' among their responses"),
        ({"responses": {"get": {"204": {"description": "Done.", "header": {}}}}}, "204 has header"),
        (
            {
                "responses": {
                    "get": {"200": {"description": "It.", "bytes": "a/b", "code": "x", "message": ""}}
                }
            },
            "bytes",
        ),
    ],
)
def test_a_mistake_in_a_file_is_refused(folder: Path, written: dict[str, Any], message: str):
    """A mistyped name would otherwise be published as it stands."""
    write(folder, **written)
    with pytest.raises(ValueError, match=message):
        responses("get")


def test_a_name_that_is_used_twice_is_refused(folder: Path):
    """The later of two would replace the earlier one without a word, in one file or in two."""
    (folder / "one.json").write_text('{"responses": {"get": {"404": {}, "404": {}}}}')
    with pytest.raises(ValueError, match="duplicate key '404'"):
        responses("get")
    (folder / "one.json").write_text('{"values": {"voice": 1}}')
    (folder / "two.json").write_text('{"values": {"voice": 2}}')
    with pytest.raises(ValueError, match="duplicate key 'voice'"):
        responses("get")
