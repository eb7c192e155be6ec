"""Text for a terminal: aligned, and without anything that a terminal would obey."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speaker_registry.terminal import columns, field_lines, printable, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jalice", "\\x1b[2Jalice"),
        ("a\nb", "a\\nb"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x9bb", "a\\x9bb"),
        ("a\u2028b", "a\\u2028b"),
        ("a\ud800b", "a\\ud800b"),
        ("声 é", "声 é"),
        ("声優\u3000太郎", "声優\u3000太郎"),
        (3, "3"),
    ],
)
def test_a_name_cannot_drive_the_terminal(text: object, shown: str):
    """Names come from strangers; an escape sequence in one could rewrite the whole screen."""
    assert printable(text) == shown


@given(st.text())
def test_nothing_printable_holds_a_control_character(text: str):
    """Every name is printed without control characters."""
    assert {unicodedata.category(character)[0] for character in printable(text)} <= set("LMNPSZ")
    assert "\n" not in printable(text)


def test_columns_are_aligned_by_what_is_seen():
    """CJK takes two columns, a combining mark none."""
    assert table(("NAME", "STATE"), [("声", "ready"), ("e\u0301", "failed")]) == (
        "NAME  STATE\n声    ready\ne\u0301     failed"
    )


def test_a_table_without_rows_is_its_head():
    """An empty answer so says what it would show."""
    assert table(("NAME", "STATE"), []) == "NAME  STATE"


def test_fields_are_one_a_line():
    """A missing value is shown as a dash."""
    assert field_lines([("id", "x\ny"), ("ref_text", None)]) == "id        x\\ny\nref_text  -"
    assert columns("声x") == 3
