"""Tests of the messages about values that are not accepted."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from speaker_registry.names import DIGEST_PATTERN
from speaker_registry.schemas import AliasMove, ApiKeyRequest, ResolveRequest
from speaker_registry.schemas.common import RequestBody
from speaker_registry.validation import accepted, invalid_value_message, subschema


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annotated[int, Field(ge=1, le=100)], "a whole number from 1 to 100"),
        (Annotated[int | None, Field(gt=0, le=10**9)], "a whole number from 1 to 1000000000"),
        (Annotated[int, Field(gt=0)], "a whole number of at least 1"),
        (Annotated[int, Field(le=7)], "a whole number of up to 7"),
        (Annotated[float, Field(ge=0, le=60)], "a number from 0 to 60"),
        (Annotated[float, Field(gt=0, le=30)], "a number above 0, up to 30"),
        (Annotated[float, Field(gt=0)], "a number above 0"),
        (Annotated[float, Field(ge=0.5)], "a number of at least 0.5"),
        (bool, "true or false"),
        (str | None, "text"),
        (Annotated[str, Field(max_length=512)], "text of up to 512 characters"),
        (Annotated[str, Field(min_length=1)], "text of 1 or more characters"),
        (Annotated[str | None, Field(pattern="^a+$")], "text like ^a+$"),
        (
            Annotated[str, Field(pattern=DIGEST_PATTERN)],
            "text like sha256:… with 64 characters of 0-9 and a-f",
        ),
        (Literal["ready", "failed"], "'ready', 'failed'"),
        (list[str] | None, "a list, each of them text"),
        (
            Annotated[list[Literal["a", "b"]], Field(min_length=1, max_length=64)],
            "a list of 1 to 64 entries, each of them 'a', 'b'",
        ),
        (dict[str, int], "a JSON object"),
        (int | str, ""),
        (Any, ""),
    ],
)
def test_what_is_accepted_is_said_in_words(kind: Any, words: str):
    """The message names the type and all bounds, because a caller who mends one mistake must not run into the
    next.
    """
    assert accepted(TypeAdapter(kind).json_schema()) == words


def _even(number: int) -> int:
    if number % 2:
        raise ValueError("an even one is needed")
    return number


class Order(BaseModel):
    """A model with every fault that a value can have."""

    model_config = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=0, le=9), AfterValidator(_even)] = 0
    names: list[str] = []
    name: Annotated[str, Field(max_length=3)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "a", "count": "x"}, "'count' is 'x'; accepted: a whole number from 0 to 9"),
        ({"name": "a", "count": 10}, "'count' is 10; accepted: a whole number from 0 to 9"),
        ({"name": "a", "count": 3}, "'count' is 3: an even one is needed"),
        ({"name": "a", "names": ["b", 5]}, "'names[1]' is 5; accepted: text"),
        ({"name": "a", "names": "b"}, "'names' is 'b'; accepted: a list, each of them text"),
        ({}, "'name' is missing; accepted: text of up to 3 characters"),
        ({"name": "é" * 100}, "'name' is '" + r"\xe9" * 19 + r"\xe; accepted: text of up to 3 characters"),
    ],
)
def test_a_refusal_says_what_was_given_and_what_is_accepted(given: dict[str, Any], says: str):
    """The message has our words, not the library's."""
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(given)
    [fault] = caught.value.errors()
    assert invalid_value_message(fault, fault["loc"], Order.model_json_schema()) == says


def test_many_unknown_fields_are_one_fault():
    """Describing each of them would take seconds, in which no other request is answered."""
    unknown = {f"field {number}": 0 for number in range(50)}
    with pytest.raises(ValidationError) as raised:
        ResolveRequest.model_validate({**unknown, "voices": ["a"], "profiles": ["x"]})
    (fault,) = raised.value.errors()
    assert (fault["type"], fault["loc"]) == ("extra_forbidden", ("field 0",))


def test_bodies_of_requests_take_no_other_type_for_a_number_or_a_truth_value():
    """A limit of `true` requests would otherwise become a limit of 1."""
    wrong = {"integer": (True, "5"), "number": (True, "5"), "boolean": (1, "true")}
    given = [
        (body, name, value)
        for body in RequestBody.__subclasses__()
        for name in body.model_fields
        for value in wrong.get(subschema(body.model_json_schema(), [name]).get("type", ""), ())
    ]
    assert (ApiKeyRequest, "requests_per_minute", True) in given
    assert (AliasMove, "version", "5") in given
    for body, name, value in given:
        with pytest.raises(ValidationError) as caught:
            body.model_validate({name: value})
        assert (name,) in {fault["loc"] for fault in caught.value.errors()}, (body, name, value)
