"""Tests of which keys and prefixes a store accepts: those that a file system and every S3 server
treat alike.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.shared.bucket.store import MAX_KEY_BYTES, check_key, check_prefix

PART = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True).filter(lambda part: part not in (".", ".."))


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "A.b-c_9",
        "...",
        ".probe/x",
        "a../..b/c.",
        "default/v/alice/r/000000000001.ver.0197b2c1-7a3e-7c4d-8e5f-0123456789ab.1.1790000000." + "f" * 64,
        "a" * 255,
    ],
)
def test_a_plain_key_is_taken(key: str) -> None:
    """Facts and blobs are stored under such keys."""
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "../a",
        "a/..",
        "a/../b",
        "a/./b",
        "a b",
        "a\\b",
        "a\nb",
        "a\n",
        "a\0",
        "a#1",
        "a%2fb",
        "a?b",
        "a:b",
        "~",
        "ü",
        "u\u0308",
        "a" * 256,
        "x/" + "a" * 256 + "/y",
    ],
)
def test_any_other_key_is_refused(key: str) -> None:
    """They leave the folder; some server encodes, normalises or cuts them; obstore hides `#1`."""
    with pytest.raises(ValueError, match="not a key"):
        check_key(key)


def test_a_key_has_to_leave_room_for_the_prefix_of_the_bucket() -> None:
    """S3 takes 1,024 bytes in all."""
    key = "/".join(["a" * 99] * 10)
    assert len(check_key(key)) == MAX_KEY_BYTES - 1
    with pytest.raises(ValueError, match="not a key"):
        check_key(key + "a")


def test_a_refusal_does_not_repeat_a_long_key() -> None:
    """It ends up in a log."""
    with pytest.raises(ValueError, match="not a key") as caught:
        check_key("ü" * 100_000)
    assert len(str(caught.value)) < 400


@given(st.lists(PART, min_size=1, max_size=10))
def test_parts_joined_make_a_key_and_its_folder_a_prefix(parts: list[str]) -> None:
    """Code that builds keys from valid parts need not check them."""
    key = "/".join(parts)
    assert check_key(key) == key
    check_prefix(f"{key}/")


@pytest.mark.parametrize("prefix", ["", "a/", "a/b/", "default/v/alice/"])
def test_a_prefix_is_empty_or_ends_with_a_slash(prefix: str) -> None:
    """The empty one is the whole store."""
    check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["a", "/", "//", "a//", "/a/", "../", "a/../", "ü/", "a/ "])
def test_any_other_prefix_is_refused(prefix: str) -> None:
    """A prefix `al` would list `alice` too."""
    with pytest.raises(ValueError, match=r"not a key|ends with"):
        check_prefix(prefix)
