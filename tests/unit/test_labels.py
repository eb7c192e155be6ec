"""Tests of labels: their form, how they are changed, and how filters name them."""

import re

import pytest

from speaker_registry.errors import InvalidRequest
from speaker_registry.labels import MAX_LABELS, changed_labels, parse_filters
from speaker_registry.schemas import VoiceEdit


def test_labels_are_set_and_removed_and_the_others_stay():
    before = {"team": "blue", "old": "x"}
    assert changed_labels(before, {"old": None, "example.com/tier": "", "never": None}) == {
        "example.com/tier": "",
        "team": "blue",
    }
    assert before == {"team": "blue", "old": "x"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("", "x", "The key '' of a label"),
        ("-a", "x", "The key '-a' of a label"),
        ("a b", "x", "The key 'a b' of a label"),
        ("a/b/c", "x", "The key 'a/b/c' of a label"),
        ("k" * 64, "x", "The key 'kkk"),
        ("é", "x", r"The key '\\xe9' of a label"),
        ("team", "b c", "The value 'b c' of label 'team'"),
        ("team", "b\n", r"The value 'b\\n' of label 'team'"),
        ("team", "v" * 64, "The value 'vvv"),
    ],
)
def test_what_is_no_label_is_refused_by_name(key: str, value: str, said: str):
    with pytest.raises(InvalidRequest, match=said):
        changed_labels({}, {key: value})


def is_in_schema(key: str, value: str | None) -> bool:
    """Return whether the JSON schema of an edit allows a label, by the keywords that it has for texts."""
    schema = VoiceEdit.model_json_schema()["properties"]["labels"]
    text, null = schema["additionalProperties"]["anyOf"]
    assert null == {"type": "null"}
    pairs = [(key, schema["propertyNames"])] + ([(value, text)] if value is not None else [])
    return all(
        len(one) <= form["maxLength"] and re.fullmatch(form["pattern"].removesuffix("$"), one) is not None
        for one, form in pairs
    )


@pytest.mark.parametrize(
    "key", ["", "-a", "a b", "a/b/c", "k" * 64, "é", "A/b", "a\n", "k" * 63, "x.y/z_1", "A"]
)
@pytest.mark.parametrize("value", [None, "", "b c", "b\n", "v" * 64, "v" * 63, "a_b.c-d", "-"])
def test_the_documented_form_of_labels_is_the_accepted_one(key: str, value: str | None):
    """Clients that are generated from the OpenAPI document refuse what the registry refuses, and no more."""
    try:
        changed_labels({}, {key: value})
    except InvalidRequest:
        accepted = False
    else:
        accepted = True
    assert is_in_schema(key, value) == accepted


def test_a_voice_has_a_limited_number_of_labels():
    """What is removed in the same edit makes room."""
    full = {f"k{number}": "v" for number in range(MAX_LABELS)}
    with pytest.raises(InvalidRequest, match="33 labels"):
        changed_labels(full, {"more": "v"})
    assert len(changed_labels(full, {"more": "v", "k0": None})) == MAX_LABELS


def test_filters_name_key_and_value():
    """All of them have to match, so that one that contradicts another is a mistake."""
    assert parse_filters(["team=blue", "tier=gold,team=blue"]) == {"team": "blue", "tier": "gold"}
    for texts in (["team"], ["team=blue", "team=red"], ["=x"], ["team=a=b"], [""]):
        with pytest.raises(InvalidRequest):
            parse_filters(texts)
