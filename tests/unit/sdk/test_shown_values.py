"""Tests of how clips and artifacts look in logs, tracebacks and notebooks: they show what they are, never
what is in them.
"""

import html
import re

import numpy as np
import pytest

from speaker_registry import (
    Artifact,
    ArtifactStatus,
    Clip,
    ClipPicture,
    File,
    Manifest,
    ReferenceAudio,
    Voice,
    VoiceVersion,
)
from speaker_registry.artifact import encode
from speaker_registry.exchange import Reply

SECRET = "spoken words"


def artifact(voice: str = "Wren", *, profile: str = "qwen3-tts-0.6b", untrained: bool = False) -> Artifact:
    tensors = {
        "speaker_embedding": np.full(1024, 0.123456, np.float32),
        "ref_code": np.full((42, 16), 1234, np.int32),
    }
    manifest = Manifest(
        profile=profile,
        model_type="qwen3_tts",
        fingerprint="sha256:" + "f" * 64,
        untrained=untrained,
        voice=voice,
        version=3,
        version_id="1",
        created_at=1,
        source="audio",
        seconds=3.4,
        ref_text=SECRET,
        consent="cons_1",
    )
    return Artifact.parse(encode(tensors, manifest))


def test_a_clip_shows_its_size_alone():
    """Its bytes are a person's voice, and logs are kept for long."""
    clip = Clip(b"RIFF" + SECRET.encode() * 10_000, "audio/wav")
    assert repr(clip) == str(clip) == "<Clip audio/wav, 120004 bytes>"
    samples = ReferenceAudio(np.full(24_000, 0.5, np.float32), 16_000)
    assert repr(samples) == str(samples) == "<ReferenceAudio 1.50 s, 16000 Hz>"
    assert f"{clip}" == repr(clip)
    assert tuple(clip) == (clip.data, clip.mime_type), "it is unpacked as before"


def test_a_file_shows_its_size_and_its_artifact():
    """It holds the bytes of that once more."""
    shown = repr(File(SECRET.encode(), artifact()))
    assert shown == f"<File {len(SECRET)} bytes, {artifact()!r}>"
    assert SECRET not in shown


def test_an_artifact_is_shown_in_one_line():
    """The line says which voice it is, for which profile, and which tensors it has; it shows neither numbers
    nor texts.
    """
    made = artifact()
    assert repr(made) == (
        "<Artifact Wren@3 for qwen3-tts-0.6b: ref_code int32 [42, 16], speaker_embedding float32 [1024]; "
        f"{made.size} bytes, {made.digest[:19]}…>"
    )


def test_an_untrained_artifact_says_so():
    """Its voice is useless, and nobody sees that by its shapes."""
    made = artifact(untrained=True)
    assert "; untrained; " in repr(made)
    assert "untrained" in made._repr_html_()


def test_no_name_reaches_a_terminal_as_a_command():
    """A format character in a name would turn the rest of the line around."""
    assert "\u202e" not in repr(artifact("a\u202eb"))
    assert "a\\u202eb@3" in repr(artifact("a\u202eb"))


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a&b"])
def test_a_notebook_shows_a_table_and_runs_nothing(text: str):
    """Names and profiles come from whoever made the file."""
    shown = artifact(text, profile=text)._repr_html_()
    assert html.escape(text) in shown
    assert text not in shown
    assert set(re.findall(r"<(\w+)", shown)) == {"table", "caption", "tr", "th", "td"}
    for cell in ("ref_code", "int32", "[42, 16]", "speaker_embedding", "float32", "[1024]"):
        assert f"<td>{cell}</td>" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\u202eb"])
def test_a_voice_in_a_notebook_is_a_table_that_runs_nothing(text: str):
    """Names, and reasons of failures, come from whoever uploaded."""
    status = ArtifactStatus(profile="qwen3-tts-0.6b", state="failed", error=text)
    about = {"id": "1", "version": 3, "created_at": 1, "artifacts": [status], "state": "failed"}
    voice = Voice(name=text, key=text, latest=3, versions=3, aliases={}, **about)
    texts = {"consent": SECRET, "ref_text": SECRET}
    version = VoiceVersion(voice=text, voice_id="voice_1", source="audio", **texts, **about)
    for shown in (voice._repr_html_(), version._repr_html_()):
        assert text not in shown
        assert "<td>qwen3-tts-0.6b</td><td>failed</td>" in shown
        assert set(re.findall(r"<(\w+)", shown)) == {"table", "caption", "tr", "th", "td"}
        assert SECRET not in shown


def test_a_picture_in_a_notebook_is_an_image():
    """A browser runs no script of an SVG file that it shows as an image. The type comes from a server."""
    picture = ClipPicture(b"<svg/>", 'image/svg+xml"><script>')
    assert repr(picture) == '<ClipPicture image/svg+xml"><script>, 6 bytes>'
    shown = picture._repr_html_()
    assert set(re.findall(r"<(\w+)", shown)) == {"img"}
    assert "base64,PHN2Zy8+" in shown


def test_an_answer_on_its_way_does_not_show_its_body():
    """Tools that report errors write down the values of local variables."""
    assert SECRET not in repr(Reply(200, {}, SECRET.encode()))
