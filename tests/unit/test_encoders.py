"""Tests of the rules that decide which encoder makes the artifacts of a profile."""

import pytest

from services.shared.model.encoders import (
    MAX_DIFFERENCES,
    MAX_FORMER,
    Encoder,
    differences,
    former_after,
    takes_over,
)


def encoder(fingerprint: str, *, untrained: bool = False) -> Encoder:
    return Encoder(profile="p", fingerprint=fingerprint, untrained=untrained)


@pytest.mark.parametrize(
    ("current", "arriving", "expected"),
    [
        (None, encoder("a", untrained=True), True),
        (None, encoder("a"), True),
        (encoder("a"), encoder("b"), False),
        (encoder("a"), encoder("b", untrained=True), False),
        (encoder("a", untrained=True), encoder("b", untrained=True), False),
        (encoder("a", untrained=True), encoder("b"), True),
    ],
)
def test_only_the_first_encoder_and_trained_weights_after_untrained_ones_become_current_by_themselves(
    current: Encoder | None, arriving: Encoder, expected: bool
):
    """One more worker must never take a profile down, and noise must never replace a voice."""
    assert takes_over(current, arriving, first=current is None) is expected


@pytest.mark.parametrize("untrained", [True, False])
def test_of_a_damaged_record_only_trained_weights_take_the_place(untrained: bool):
    """It is not known what is served. Noise must not replace it, and without an encoder nobody is served."""
    assert takes_over(None, encoder("b", untrained=untrained), first=False) is not untrained


def test_the_former_fingerprints_are_listed_from_the_newest_each_once():
    """The way back is a promotion like any other, so a fingerprint can be current more than once."""
    assert former_after(None, (), "a") == ()
    assert former_after(encoder("a"), (), "b") == ("a",)
    assert former_after(encoder("b"), ("a",), "a") == ("b",)
    assert former_after(encoder("a"), ("b",), "c") == ("a", "b")
    many = tuple(str(number) for number in range(MAX_FORMER))
    assert former_after(encoder("a"), many, "b") == ("a", *many[:-1])


def test_a_candidate_is_shown_with_the_inputs_in_which_it_differs():
    """An operator has to see what a promotion would change."""
    before = {"dtype": "float32", "weights": {"files": ["a"], "untrained": False}, "code": 1}
    after = {"dtype": "bfloat16", "weights": {"files": ["a"], "untrained": True}, "new": 2}
    assert differences(before, after) == {
        "code": (1, None),
        "dtype": ("float32", "bfloat16"),
        "new": (None, 2),
        "weights.untrained": (False, True),
    }
    assert differences(before, before) == {}
    assert len(differences({}, {str(number): number for number in range(1000)})) == MAX_DIFFERENCES
