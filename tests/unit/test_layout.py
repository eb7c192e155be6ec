"""Tests of the paths of a bucket of documents."""

import pytest

from services.shared.bucket import layout
from services.shared.model.speaker import SpeakerId

WREN = SpeakerId("default", "wren")
VUID, OBJECT = "0" * 32, "a" * 32


def test_a_document_is_found_by_its_speaker_and_its_speaker_by_its_path():
    """A listing of documents has to tell whose they are."""
    assert layout.document_key(WREN) == "default/s/wren.json"
    assert layout.speaker_of("default/s/wren.json") == WREN
    assert layout.document_key(WREN).startswith(layout.documents_prefix("default"))


@pytest.mark.parametrize(
    "key",
    [
        "default/s/wren.txt",
        "default/s/Wren.json",
        "default/s/.json",
        "default/s/a/b.json",
        "De fault/s/wren.json",
        "_registry.json",
        "default/d/wren/x/clip",
    ],
)
def test_what_other_programs_put_beside_documents_is_no_document(key: str):
    """Anybody may put objects into the bucket, and none of them is taken for a voice."""
    assert layout.speaker_of(key) is None


@pytest.mark.parametrize(
    ("key", "named_by"),
    [
        (layout.clip_key(WREN, VUID), VUID),
        (layout.rendition_key(WREN, VUID), VUID),
        (layout.artifact_key(WREN, VUID, OBJECT), OBJECT),
    ],
)
def test_bytes_tell_by_which_id_a_document_names_them(key: str, named_by: str):
    """The sweep removes only bytes whose id no document names, so the id has to be the right one."""
    assert layout.bytes_of(key) == layout.StoredBytes(WREN, VUID, named_by)
    assert key.startswith(layout.bytes_prefix(WREN))


@pytest.mark.parametrize(
    "key",
    [
        f"default/d/wren/{VUID}/notes.txt",
        f"default/d/wren/{VUID}/{OBJECT}.json",
        f"default/d/Wren/{VUID}/clip",
        "default/d/wren/short/clip",
        "default/s/wren.json",
    ],
)
def test_what_no_document_can_name_is_not_taken_for_bytes(key: str):
    """What the registry did not store is not the registry's to remove."""
    assert layout.bytes_of(key) is None


def test_a_profile_with_an_odd_name_gets_no_path():
    """A name that would lead elsewhere in the bucket is refused."""
    assert layout.profile_key("qwen3-tts-0.6b") == "_profiles/qwen3-tts-0.6b.json"
    assert layout.api_key_key("ab12cd34") == "_keys/ab12cd34.json"
    with pytest.raises(ValueError, match="not a key"):
        layout.profile_key("../s/wren")
