"""Tests of the readers of folders and tables: what becomes a candidate, and what is refused and why."""

import io
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import soundfile

from speaker_registry.errors import InvalidRequest
from speaker_registry.moving import sources
from speaker_registry.moving.candidates import Candidate, Found, Unusable, check_distinct
from speaker_registry.moving.sources import read, recognize, wav_file


def candidates(found: Iterable[Found]) -> dict[str, Candidate]:
    return {one.name.name: one for one in found if isinstance(one, Candidate)}


def reasons(found: Iterable[Found]) -> dict[str, str]:
    return {one.where: str(one.error) for one in found if isinstance(one, Unusable)}


def write(folder: Path, **files: str | bytes) -> Path:
    """Write files into a folder. `__` in a name stands for a dot."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def load_fault(found: Candidate) -> str:
    with pytest.raises(InvalidRequest) as caught:
        found.load()
    return str(caught.value)


# -- folders of clips


def test_a_clip_is_read_with_the_transcript_beside_it(tmp_path: Path):
    """A clip is read with its transcript. A wrong pair would give an engine a voice that babbles."""
    write(tmp_path, Alice__wav=b"clip", Alice__txt="\ufeff Hello there. \n", bob__FLAC=b"other")
    found = candidates(read(tmp_path, "folder", "cons_1"))
    assert set(found) == {"Alice", "bob"}
    assert found["Alice"].load() == b"clip"
    assert (found["Alice"].texts.consent, found["Alice"].texts.ref_text) == ("cons_1", "Hello there.")
    assert found["bob"].texts.ref_text is None


@pytest.mark.parametrize(
    ("clip", "transcript"), [("Zoe.wav", "zoe.txt"), ("\u00e9.wav", "e\u0301.txt"), ("ann.wav", " ann .TXT")]
)
def test_a_transcript_is_matched_as_names_are(tmp_path: Path, clip: str, transcript: str):
    """A clip and its transcript may spell the name in two ways, for example after a copy from a Mac."""
    write(tmp_path, **{clip: b"clip", transcript: "Hello."})
    [found] = read(tmp_path, "folder", "c")
    assert isinstance(found, Candidate)
    assert found.texts.ref_text == "Hello."


@pytest.mark.parametrize("other", ["two.TXT", "Two.txt"])
def test_a_clip_with_two_transcripts_is_refused(tmp_path: Path, other: str):
    """Only the person who imports knows which transcript is right, and none may be dropped silently."""
    write(tmp_path, **{"two.wav": b"clip", "two.txt": "one", other: "another", "bob.wav": b"1"})
    found = candidates(read(tmp_path, "folder", "c"))
    assert f"2 transcripts of this clip ({other}, two.txt)" in load_fault(found["two"])
    assert found["bob"].load() == b"1"


def test_two_clips_of_one_name_with_a_transcript_each_refuse_the_whole_import(tmp_path: Path):
    """The clips are reported, not their transcripts, and nothing is uploaded."""
    write(tmp_path, Two__wav=b"1", Two__txt="one", two__wav=b"2", two__txt="another")
    with pytest.raises(InvalidRequest, match=r"'two': Two\.wav, two\.wav"):
        check_distinct(read(tmp_path, "folder", "c"))


def test_what_is_no_clip_in_a_folder_is_named(tmp_path: Path):
    """Every file that becomes no voice is named with a reason, because nothing may be lost silently."""
    write(tmp_path, alice__wav=b"clip", carol__txt="hi", notes__md="x", dave__wma=b"y", __DS_Store=b"z")
    (tmp_path / "more").mkdir()
    said = reasons(read(tmp_path, "folder", "c"))
    assert set(said) == {"carol.txt", "notes.md", "dave.wma", "more"}
    assert "no clip of this name" in said["carol.txt"]
    assert ".flac" in said["dave.wma"]


def test_a_name_that_is_not_accepted_is_refused_alone(tmp_path: Path):
    """A bad name is refused, and the other voices of the folder are not."""
    write(tmp_path, **{"a@b__wav": b"1", "good__wav": b"2"})
    (tmp_path / os.fsdecode(b"\xff.wav")).write_bytes(b"3")
    found = list(read(tmp_path, "folder", "c"))
    assert set(candidates(found)) == {"good"}
    assert all("Invalid voice name" in reason for reason in reasons(found).values())
    assert len(reasons(found)) == 2


def test_two_files_of_one_name_refuse_the_whole_import(tmp_path: Path):
    """Names are equal after normalization. Which clip became the newest would be left to chance."""
    write(tmp_path, **{"Café__wav": b"1", "cafe\u0301__flac": b"2", "bob__wav": b"3"})
    with pytest.raises(
        InvalidRequest, match=r"more than one voice of a name.* nothing was uploaded.*Caf.*wav"
    ) as caught:
        check_distinct(read(tmp_path, "folder", "c"))
    assert "bob" not in str(caught.value)


@pytest.mark.parametrize("target", ["clip", "transcript"])
def test_links_are_not_followed(tmp_path: Path, target: str):
    """A link in a folder from a stranger could name any file of the caller's machine."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = write(tmp_path / "in", alice__wav=b"1") if (tmp_path / "in").mkdir() is None else tmp_path
    if target == "clip":
        (folder / "bob.wav").symlink_to(secret)
        assert "symbolic link" in load_fault(candidates(read(folder, "folder", "c"))["bob"])
    else:
        (folder / "alice.txt").symlink_to(secret)
        assert "symbolic link" in reasons(read(folder, "folder", "c"))["alice.wav"]


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path):
    """A named pipe without a writer would block the import forever."""
    os.mkfifo(tmp_path / "alice.wav")
    found = candidates(read(tmp_path, "folder", "c"))
    assert "not a regular file" in load_fault(found["alice"])


def test_a_folder_with_the_name_of_a_clip_is_refused_alone(tmp_path: Path):
    """The others are imported, and the report says which one was no clip."""
    (tmp_path / "alice.wav").mkdir()
    write(tmp_path, bob__wav=b"1")
    found = candidates(read(tmp_path, "folder", "c"))
    assert "'alice.wav' is not a regular file" in load_fault(found["alice"])
    assert "bob" in found


def test_bounds_hold_before_a_file_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Clips, transcripts and folders are bounded."""
    monkeypatch.setattr(sources, "MAX_CLIP_BYTES", 10)
    write(tmp_path, alice__wav=b"1" * 11, bob__wav=b"1", bob__txt="x" * (64 * 1024 + 1))
    found = list(read(tmp_path, "folder", "c"))
    assert "more than 10 bytes" in load_fault(candidates(found)["alice"])
    assert "more than 65536 bytes" in reasons(found)["bob.wav"]
    monkeypatch.setattr(sources, "MAX_ENTRIES", 2)
    with pytest.raises(InvalidRequest, match="has 3 entries; at most 2"):
        list(read(tmp_path, "folder", "c"))


def test_a_transcript_that_is_no_text_is_refused(tmp_path: Path):
    """A transcript in another encoding would reach the engine garbled."""
    write(tmp_path, alice__wav=b"1", alice__txt=b"\xff\xfe")
    assert "not UTF-8" in reasons(read(tmp_path, "folder", "c"))["alice.wav"]


def test_without_a_consent_nothing_becomes_a_voice(tmp_path: Path):
    """A folder has no consents, so the caller gives one for all voices in it."""
    write(tmp_path, alice__wav=b"1")
    assert "--consent" in reasons(read(tmp_path, "folder", None))["alice.wav"]
    assert "--consent" in reasons(read(tmp_path, "folder", "  "))["alice.wav"]


# -- tables


def test_a_table_names_files_and_texts(tmp_path: Path):
    """The columns are used as documented, and a consent in the table goes before the one for all."""
    write(
        tmp_path,
        a__wav=b"1",
        e__json="[0.5, 1]",
        voices__csv="\ufeffName,file,text,consent,description\n"
        'Alice,a.wav,"Hi, you",own,warm\nEve,e.json,,,\n',
    )
    found = candidates(read(tmp_path / "voices.csv", "csv", "all"))
    assert found["Alice"].load() == b"1"
    texts = found["Alice"].texts
    assert (texts.consent, texts.ref_text, texts.description) == ("own", "Hi, you", "warm")
    embedding = found["Eve"].load()
    assert isinstance(embedding, np.ndarray)
    assert (embedding.dtype, embedding.tolist()) == (np.float32, [0.5, 1.0])
    assert (found["Eve"].texts.consent, found["Eve"].texts.ref_text) == ("all", None)


def test_json_lines_are_read_like_a_csv(tmp_path: Path):
    """JSON lines have the same columns. A line that is no object is refused alone."""
    lines = [json.dumps({"name": "Alice", "file": "a.wav", "consent": "c"}), "", "[]", "{", '{"name": 3}']
    lines.append('{"name": "Bob", "file": "a.wav", "consent": "c", "file": "b.wav"}')
    write(tmp_path, a__wav=b"1", voices__jsonl="\n".join(lines))
    found = list(read(tmp_path / "voices.jsonl", "jsonl", None))
    assert set(candidates(found)) == {"Alice"}
    said = reasons(found)
    refusal = "not a JSON object, or one with duplicate keys"
    assert said["line 3"] == said["line 4"] == said["line 6"] == refusal
    assert "lacks ['file']" in said["line 5"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/etc/passwd", "leads out of"),
        ("../secret", "leads out of"),
        ("in/../../secret", "leads out of"),
        ("", "the path of the file is empty"),
        ("a\0.wav", "cannot be the name of a file"),
        ("missing.wav", "cannot be read"),
        ("a" * 300, "cannot be read"),
        ("linked/secret", "symbolic link"),
    ],
)
def test_a_table_reaches_only_files_beside_it(tmp_path: Path, path: str, says: str):
    """A table from a stranger must not upload other files of the caller's machine."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "table"
    folder.mkdir()
    (folder / "linked").symlink_to(tmp_path)
    write(folder, t__csv=f"name,file\nalice,{path}\n")
    assert says in load_fault(candidates(read(folder / "t.csv", "csv", "c"))["alice"])


def test_text_that_is_no_unicode_is_refused_alone(tmp_path: Path):
    """JSON can escape half of a character. Such a line must not end the import of the others."""
    lines = [
        {"name": "good", "file": "a.wav"},
        {"name": "text", "file": "a.wav", "text": "\ud800"},
        {"name": "consent", "file": "a.wav", "consent": "\udfff"},
        {"name": "file", "file": "\ud800.wav"},
    ]
    write(tmp_path, a__wav=b"1", voices__jsonl="\n".join(map(json.dumps, lines)))
    found = list(read(tmp_path / "voices.jsonl", "jsonl", "c"))
    assert set(candidates(found)) == {"good", "file"}
    assert all("cannot be written as UTF-8" in reason for reason in reasons(found).values())
    assert "cannot be the name of a file" in load_fault(candidates(found)["file"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "lacks ['file', 'name']"),
        ("name;file;text\nAlice;a.wav;Hi.\n", "separated by commas, not by semicolons"),
        ("name,name,file\n", "has ['name'] twice"),
        ("name,file,language\n", "does not keep the columns ['language']"),
        ('name,file\n"a', "line 2 is not valid CSV"),
        (b"name,file\n\xff,a.wav", "not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_understood_is_refused_whole(tmp_path: Path, content: str | bytes, says: str):
    """A table without clear columns is refused before anything is sent."""
    write(tmp_path, t__csv=content)
    with pytest.raises(InvalidRequest) as caught:
        list(read(tmp_path / "t.csv", "csv", "c"))
    assert says in str(caught.value)


def test_a_column_can_be_left_out(tmp_path: Path):
    """The registry keeps no language. Who knows that can import the table nevertheless."""
    write(tmp_path, t__csv="name,file,language\nalice,a.wav,de\n", a__wav=b"1")
    assert set(candidates(read(tmp_path / "t.csv", "csv", "c", ["language"]))) == {"alice"}


def test_a_row_of_another_length_is_refused_alone(tmp_path: Path):
    """A missing comma must not move a transcript into the consent."""
    write(tmp_path, t__csv="name,file,text\nalice,a.wav\nbob,b.wav,hi\n", b__wav=b"1")
    found = list(read(tmp_path / "t.csv", "csv", "c"))
    assert set(candidates(found)) == {"bob"}
    assert reasons(found) == {"line 2": "2 cells, but the head has 3"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *((content, "is not a JSON list of numbers") for content in ("{", "[1e400000", "[" * 100_000)),
        *((content, "is not a list of numbers") for content in ('["0.1"]', "[true]", "[[1], [2, 3]]")),
        *(
            (content, "has shape [1], or values that are not finite")
            for content in ("[1e39]", f"[{10**400}]")
        ),
    ],
)
def test_an_embedding_that_is_none_is_refused(tmp_path: Path, content: str, says: str):
    """A file that is no list of numbers is refused with its name."""
    write(tmp_path, t__csv="name,file\nalice,e.json\n", e__json=content)
    found = candidates(read(tmp_path / "t.csv", "csv", "c"))["alice"]
    assert f"'e.json' {says}" in load_fault(found)


# -- sample folders of vLLM-Omni and SGLang-Omni


def sample(tensors: dict[str, np.ndarray], **header: str) -> bytes:
    return safetensors.numpy.save(tensors, metadata={"name": "Alice", "consent": "c1", **header})


AUDIO = np.linspace(-1, 1, 1000, dtype=np.float32)


def test_a_sample_file_is_read_with_its_header(tmp_path: Path):
    """The samples arrive bit for bit, with the texts of the header. An int16 clip would round them."""
    data = sample({"audio": AUDIO}, sample_rate="24000", ref_text="Hi.", speaker_description="warm")
    write(tmp_path, Alice_c1_1700000000__safetensors=data)
    alice = candidates(read(tmp_path, recognize(tmp_path), None))["Alice"]
    clip = alice.load()
    assert isinstance(clip, bytes)
    samples, rate = soundfile.read(io.BytesIO(clip), dtype="float32")
    assert (rate, samples.tobytes()) == (24000, AUDIO.tobytes())
    texts = alice.texts
    assert (texts.consent, texts.ref_text, texts.description) == ("c1", "Hi.", "warm")


def test_a_sample_file_may_hold_an_embedding(tmp_path: Path):
    """A voice that was uploaded as an embedding is registered as one."""
    data = sample({"speaker_embedding": AUDIO.reshape(1, -1)}, embedding_source="direct")
    write(tmp_path, Alice__safetensors=data)
    embedding = candidates(read(tmp_path, "samples", None))["Alice"].load()
    assert isinstance(embedding, np.ndarray)
    assert embedding.tobytes() == AUDIO.tobytes()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes"),
        (b"\xff" * 100, "declares"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "declares 1099511627776 bytes"),
        ((4).to_bytes(8, "little") + b"[[[[", "not valid JSON"),
        (safetensors.numpy.save({"audio": AUDIO}), "Invalid voice name"),
        (safetensors.numpy.save({"audio": AUDIO}, metadata={"name": "a/b"}), "Invalid voice name"),
        (safetensors.numpy.save({"audio": AUDIO}, metadata={"name": "a"}), "--consent"),
    ],
)
def test_a_damaged_sample_file_is_refused_alone(tmp_path: Path, data: bytes, says: str):
    """Nothing is allocated as a damaged header says, and the other files are read."""
    write(tmp_path, bad__safetensors=data, good__safetensors=sample({"audio": AUDIO}, sample_rate="8000"))
    found = list(read(tmp_path, "samples", None))
    assert set(candidates(found)) == {"Alice"}
    assert says in reasons(found)["bad.safetensors"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (sample({"audio": AUDIO}), "sample_rate is ''"),
        (sample({"audio": AUDIO}, sample_rate="0"), "sample_rate is '0'"),
        (sample({"audio": AUDIO}, sample_rate="-8000"), "sample_rate is '-8000'"),
        (sample({"audio": AUDIO.astype(np.float64)}, sample_rate="8000"), "float64"),
        (sample({"audio": AUDIO.reshape(10, 10, 10)}, sample_rate="8000"), "[10, 10, 10]"),
        (sample({"audio": AUDIO.reshape(10, 100)}, sample_rate="8000"), "8 channels"),
        (sample({"audio": AUDIO * np.nan}, sample_rate="8000"), "not finite"),
        (sample({"other": AUDIO}), "['other']"),
        (sample({"audio": AUDIO, "speaker_embedding": AUDIO}), "accepted: 'audio' or"),
        (sample({"audio": AUDIO}, sample_rate="8000")[:-1], "the file is cut short"),
    ],
)
def test_tensors_that_are_no_voice_are_refused(tmp_path: Path, data: bytes, says: str):
    """A tensor of another kind must not become noise under a person's name."""
    write(tmp_path, a__safetensors=data)
    assert says in load_fault(candidates(read(tmp_path, "samples", None))["Alice"])


def test_several_channels_are_kept(tmp_path: Path):
    """vLLM-Omni stores stereo uploads as [N, 2]."""
    stereo = np.stack([AUDIO, AUDIO / 2], axis=1)
    samples, rate = soundfile.read(io.BytesIO(wav_file(stereo, 48000)), dtype="float32")
    assert (rate, samples.tobytes()) == (48000, stereo.tobytes())


# -- fish-speech


def reference(folder: Path, voice: str, **files: str | bytes) -> None:
    (folder / voice).mkdir()
    write(folder / voice, **files)


def test_a_reference_folder_of_fish_speech_is_a_voice(tmp_path: Path):
    """The folder's name is the voice, and the `.lab` file beside the clip is the transcript."""
    reference(tmp_path, "Alice", sample__wav=b"clip", sample__lab="Hi.")
    alice = candidates(read(tmp_path, recognize(tmp_path), "c"))["Alice"]
    assert (alice.load(), alice.texts.ref_text) == (b"clip", "Hi.")


def test_references_that_are_not_one_clip_with_a_transcript_are_refused(tmp_path: Path):
    """fish-speech uses all clips of a folder at once. To pick one silently would change the voice."""
    reference(tmp_path, "two", a__wav=b"1", a__lab="x", b__wav=b"2", b__lab="y")
    reference(tmp_path, "none")
    reference(tmp_path, "mute", a__wav=b"1")
    write(tmp_path, stray__wav=b"1")
    (tmp_path / "linked").symlink_to(tmp_path / "two")
    said = reasons(read(tmp_path, "fish-speech", "c"))
    assert "2 clips (a.wav, b.wav)" in said["two"]
    assert "0 clips" in said["none"]
    assert "'mute/a.lab' cannot be read" in said["mute/a.wav"]
    assert "not a folder" in said["stray.wav"]
    assert "not a folder" in said["linked"]


# -- formats


def test_a_folder_that_is_two_things_is_not_guessed(tmp_path: Path):
    """The caller says what a mixed folder is. A wrong guess would leave out half of it."""
    write(tmp_path, a__wav=b"1", b__safetensors=b"2")
    with pytest.raises(InvalidRequest, match="folder and samples; give the format by --format"):
        recognize(tmp_path)


@pytest.mark.parametrize("name", ["voices.txt", "voices"])
def test_a_file_of_no_known_kind_is_refused(tmp_path: Path, name: str):
    """The message says which kinds there are."""
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidRequest, match=r"\.csv, \.jsonl or \.tar"):
        recognize(tmp_path / name)
