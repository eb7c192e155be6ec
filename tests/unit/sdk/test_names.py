"""Names and references, parsed: what is one voice, and what cannot be a name."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speaker_registry.errors import InvalidReference, InvalidVoiceName
from speaker_registry.names import (
    VoiceId,
    key_of_name,
    parse_reference,
    parse_speaker_name,
    parse_voice_id,
    slug_of,
    slug_of_voice,
    stands_for,
)

ALL = [chr(number) for number in range(sys.maxunicode + 1) if not 0xD800 <= number < 0xE000]
COMPOSING = sorted(
    {decomposed[-1] for character in ALL if len(decomposed := unicodedata.normalize("NFD", character)) > 1}
)
"""Characters that become one with the character before them."""
NAMES = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(COMPOSING)), max_size=8)


def test_the_key_of_every_character_is_its_own_key():
    """Lists show keys: one that is copied from there must lead to the voice."""
    assert [ascii(one) for one in ALL if key_of_name(key_of_name(one)) != key_of_name(one)] == []


def test_the_key_of_every_capital_with_a_mark_is_its_own_key():
    """There are forms that only small letters have in one character."""
    capitals = [one for one in ALL if one.lower() != one]
    pairs = [capital + mark for capital in capitals for mark in COMPOSING]
    assert [ascii(one) for one in pairs if key_of_name(key_of_name(one)) != key_of_name(one)] == []


@given(NAMES)
def test_the_key_of_a_name_is_a_name_with_that_key(text: str):
    """Every name that can be typed has such a key."""
    try:
        key = parse_speaker_name(text).key
    except InvalidVoiceName:
        return
    assert unicodedata.is_normalized("NFC", key)
    assert parse_speaker_name(key).key == key


@pytest.mark.parametrize(
    "name", ["alice", "Alice", "STRASSE", "Zoë", "Ἀθηνᾶ", "ΟΔΟΣ", "李雷", "İstanbul", "Ångström", "a b"]
)
def test_the_keys_of_names_stay_what_they_were(name: str):
    """Voices are stored under them."""
    assert parse_speaker_name(name).key == unicodedata.normalize("NFC", name).lower()


@pytest.mark.parametrize(
    "name",
    [
        "\ufeff",
        "\u200b\u200d",
        "\u2060 \u2060",
        "\u202e",
        "\u00ad",
        "\U000e0041",
        "\ufe0f",
        "\u034f",
        "\u2800",
        "\u3164",
        "\U000e0100",
    ],
    ids=ascii,
)
def test_a_name_that_nobody_can_see_is_refused(name: str):
    """Two of them look like one, and neither can be typed again."""
    with pytest.raises(InvalidVoiceName) as caught:
        parse_speaker_name(name)
    assert f"Invalid voice name {name!a}: must be" in caught.value.message
    assert "; it has no visible character. Accepted: 1 to 128 characters, without" in caught.value.message


@pytest.mark.parametrize(
    "name",
    ["a\u200b", "\ufeffa", "نام\u200cها", "👩\u200d🚀", "❤\ufe0f", "\u06dd", "\u0301", "\ue000", "\u3164가"],
    ids=ascii,
)
def test_a_name_of_which_something_can_be_seen_is_taken_as_it_is(name: str):
    """Some scripts and symbols need invisible characters."""
    assert parse_speaker_name(name).key == name


@pytest.mark.parametrize("text", ["1", "2147483647"])
def test_a_version_number_is_a_reference(text: str):
    """Every number from the first to the last possible one is a reference."""
    assert parse_reference(text) == int(text)


@pytest.mark.parametrize("text", ["0", "01", "-1", "2147483648", "9999999999999999999999", "9" * 5000])
def test_a_number_that_no_version_has_is_refused_with_those_that_one_can_have(text: str):
    """Told only "from 1", whoever sent one above the last would not know what was wrong."""
    with pytest.raises(InvalidReference, match="Accepted: a version number from 1 to 2147483647, 'default'"):
        parse_reference(text)


@given(NAMES)
def test_an_id_leads_back_to_its_voice(text: str):
    """Every name has such an id. The id is a name itself, so that it is accepted wherever a name is."""
    try:
        key = parse_speaker_name(text).key
    except InvalidVoiceName:
        return
    voice_id = VoiceId("0" * 31 + "a", slug_of(key))
    assert parse_voice_id(str(voice_id)) == voice_id
    assert parse_speaker_name(str(voice_id)).key == str(voice_id)
    assert stands_for(str(voice_id), key)
    assert slug_of_voice(str(voice_id)) == slug_of_voice(key)
    assert not stands_for(str(voice_id), key + "x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "alice",
        "voice_alice",
        f"voice_{'0' * 31}_alice",
        f"voice_{'0' * 33}_alice",
        f"voice_{'A' * 32}_alice",
        f"voice_{'0' * 32}",
        f"voice_{'0' * 32}_",
        f"voice_{'0' * 32}_a/b",
        f"voice_{'0' * 32}_{'a' * 65}",
        f"voice_{'0' * 32}_alice\n",
    ],
)
def test_what_is_no_id_is_not_read_as_one(text: str):
    """It is looked up as a name, and only as that."""
    assert parse_voice_id(text) is None
    assert stands_for(text, text)
    assert not stands_for(text, "another")
