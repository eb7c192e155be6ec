"""Tests of how pages say times and show text of strangers."""

import time

import pytest

from services.registry_api.pages.rendering import ago, day, duration, measured, message, registered, visible


@pytest.mark.parametrize(
    ("seconds", "age", "length"),
    [(0.4, "0 s", "0.4 s"), (9.3, "9 s", "9.3 s"), (61, "1 min", "1 min"), (90_000, "1 d", "1 d")],
)
def test_ages_have_no_fractions_and_short_measurements_have(seconds: float, age: str, length: str):
    """A tenth of a second says nothing about an age, and much about a job."""
    assert (duration(seconds), measured(seconds)) == (age, length)
    assert f">{age} ago<" in ago(time.time() - seconds - 0.01)


def test_a_version_that_is_dated_ahead_was_registered_now():
    """Of ten versions that are registered within a second, the last one is dated ten seconds later."""
    ahead = time.time() + 9.5
    assert ">0 s ago<" in registered(ahead)
    assert ">in 9 s<" in ago(ahead)


def test_plain_text_is_escaped_like_any_other():
    """Plain text takes a shorter way, which must lead to the same."""
    assert visible("<b>'&\"") == "&lt;b&gt;&#39;&amp;&#34;"
    assert visible("é<b>") == "é&lt;b&gt;"
    assert "U+0007" in visible("a\x07b")
    assert day(0) == "Jan 1"


def test_what_a_message_has_between_backticks_is_code():
    """What a stranger sent stays text there, too."""
    assert message("The alias `default` was moved.") == "The alias <code>default</code> was moved."
    assert message("`<b>` and a single ` remain") == "<code>&lt;b&gt;</code> and a single ` remain"
