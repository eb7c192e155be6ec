"""Tests of the exported tar file. It may come from a stranger: whatever is wrong with it is found before
anything is used.
"""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speaker_registry.artifact import Artifact, Manifest, encode, sha256_digest
from speaker_registry.errors import InvalidArchive
from speaker_registry.moving.archive import Archive, ArchivedVoice, ArchiveWriter, embedding_file
from speaker_registry.moving.archive_records import (
    ArtifactRecord,
    ContentDigest,
    VersionRecord,
    VoiceRecord,
)

CLIP = b"RIFF clip"
FINGERPRINT = "sha256:" + "1" * 64
PROFILE = "qwen3-tts-0.6b"
OLD_CONTENT = "sha256:6d1debb21d595d270155a454872013894154452c2b9f295d0af9f88e671cfaf5"
"""The digest of what `write` wrote before archives said anything of voices as a whole."""
CONTENT = "sha256:0ad338c27eddd3b595874f1856ebd66359053bef1dc7f09b1c77f5389843df84"
"""The digest of what `write` writes since then."""
Members = list[tuple[tarfile.TarInfo, bytes]]


def artifact(clip: bytes = CLIP, profile: str = PROFILE, version_id: str = "v1") -> bytes:
    manifest = Manifest(
        profile=profile,
        model_type="qwen3_tts",
        fingerprint=FINGERPRINT,
        voice="Alice",
        version=1,
        version_id=version_id,
        created_at=1,
        source="audio",
        audio_sha256=sha256_digest(clip).removeprefix("sha256:"),
    )
    return encode({"speaker_embedding": np.ones(4, np.float32)}, manifest)


def record(data: bytes = CLIP, *files: bytes, **changes: Any) -> VersionRecord:
    parsed = [Artifact.parse(file) for file in files]
    return VersionRecord(
        **{
            "name": "Alice",
            "version": 1,
            "created_at": 1,
            "source": "audio",
            "digest": sha256_digest(data),
            "size": len(data),
            "consent": "c",
            "ref_text": "Hi.",
            "description": None,
            "artifacts": [
                ArtifactRecord(
                    profile=one.manifest.profile,
                    digest=one.digest,
                    size=one.size,
                    content_digest=one.content_digest,
                    fingerprint=one.manifest.fingerprint,
                )
                for one in parsed
            ],
            **changes,
        }
    )


EMBEDDING = embedding_file(np.arange(4, dtype=np.float32))


SAID = VoiceRecord(description="Calm.", labels={"team": "blue"}, pinned=True, aliases={"prod": 3})
"""What is said of Alice, with the numbers of her versions."""
PLACED = SAID.model_copy(update={"aliases": {"prod": 2}})


def write(path: Path, said: VoiceRecord = SAID) -> Path:
    """Write an archive with two voices: one with two versions and an artifact, one from an embedding."""
    with path.open("wb") as file:
        writer = ArchiveWriter(file, "default")
        first, second = record(CLIP, artifact()), record(b"other", version=3)
        writer.add_voice([(first, CLIP, [artifact()]), (second, b"other", [])], said)
        writer.add_voice([(record(EMBEDDING, name="Eve", source="embedding"), EMBEDDING, [])])
        writer.finish()
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good.tar")


def refusal(path: Path) -> str:
    with pytest.raises(InvalidArchive) as caught:
        Archive(path)
    return str(caught.value)


def changed(path: Path, change: Callable[[Members], object]) -> Path:
    """Write the archive again with changed members. Digests are not adapted."""
    with tarfile.open(path) as tar:
        members = [(one, tar.extractfile(one).read()) for one in tar if one.isreg()]  # type: ignore[union-attr]
    change(members)
    with path.open("wb") as file:
        for member, data in members:
            file.write(member.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512))
        file.write(bytes(1024))
    return path


def index(members: Members, name: str) -> int:
    return next(number for number, (one, _) in enumerate(members) if one.name.endswith(name))


def edit(members: Members, name: str, changes: dict[str, Any]) -> None:
    at = index(members, name)
    member, data = members[at]
    data = json.dumps({**json.loads(data), **changes}).encode()
    member.size = len(data)
    members[at] = (member, data)


def add(members: Members, at: int, name: str, data: bytes = b"x", **header: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in header.items():
        setattr(member, field, value)
    members.insert(at, (member, data))


def test_what_was_written_is_read(good: Path):
    """Everything that was written is read again, and tar programs can list it."""
    with Archive(good) as found:
        assert [(voice.name, len(voice.versions)) for voice in found.voices] == [("Alice", 2), ("Eve", 1)]
        alice, eve = found.voices[0].versions[0], found.voices[1].versions[0]
        read = found.record(alice)
        assert read == record(CLIP, artifact())
        assert found.source(alice, read) == CLIP
        assert found.artifact(alice, read, 0) == artifact()
        given = found.source(eve, found.record(eve))
        assert isinstance(given, np.ndarray)
        assert given.tolist() == [0, 1, 2, 3]
        assert [found.about(voice) for voice in found.voices] == [PLACED, VoiceRecord()]
    with tarfile.open(good) as tar:
        assert tar.getnames()[0] == "manifest.json"


@pytest.mark.parametrize(("said", "content"), [(VoiceRecord(), OLD_CONTENT), (SAID, CONTENT)])
def test_the_digest_of_a_former_export_holds(tmp_path: Path, said: VoiceRecord, content: str):
    """Archives that were written before are imported, and a digest that somebody noted can be compared."""
    with Archive(write(tmp_path / "x.tar", said)) as found:
        assert found.end.content == content


def test_what_is_said_of_a_voice_is_part_of_the_content(tmp_path: Path):
    """Two registries that say different things of a voice do not print the same digest."""
    others: list[dict[str, Any]] = [
        {"description": None},
        {"labels": {"team": "red"}},
        {"pinned": False},
        {"aliases": {"prod": 1}},
        {"aliases": {}},
    ]
    said = [SAID, VoiceRecord(), *(SAID.model_copy(update=other) for other in others)]
    digests = set()
    for one in said:
        with Archive(write(tmp_path / "x.tar", one)) as found:
            digests.add(found.end.content)
    assert len(digests) == len(said)


def test_an_alias_of_a_version_that_could_not_be_read_is_left_out(tmp_path: Path):
    """The archive stays one that can be imported, and the other aliases still mean their versions."""
    path, said = tmp_path / "x.tar", SAID.model_copy(update={"aliases": {"a": 1, "b": 1000, "c": 10}})
    with path.open("wb") as file:
        writer = ArchiveWriter(file, "default")
        assert not writer.add_voice([], said).has_content
        written = writer.add_voice([(record(version=number), CLIP, []) for number in (10, 1000)], said)
        writer.add_voice([(record(name="Eve"), CLIP, [])], VoiceRecord(aliases={"gone": 2}))
        writer.finish()
    assert written.aliases == {"b": 2, "c": 1}
    with Archive(path) as found:
        assert [(voice.name, found.about(voice)) for voice in found.voices] == [
            ("Alice", written),
            ("Eve", VoiceRecord()),
        ]


def test_the_same_content_gives_the_same_bytes(tmp_path: Path):
    """Two exports of an unchanged namespace can be compared byte by byte."""
    assert write(tmp_path / "a.tar").read_bytes() == write(tmp_path / "b.tar").read_bytes()


def test_the_content_digest_leaves_out_what_a_registry_gives_itself():
    """Numbers, times and ids differ between registries. The texts, clips and tensors must not."""

    def content(*records: VersionRecord) -> str:
        digest = ContentDigest()
        for one in records:
            digest.add(one)
        return str(digest)

    moved = record(CLIP, artifact(version_id="v9"), version=7, created_at=99)
    assert content(record(CLIP, artifact())) == content(moved)
    for other in (
        record(b"other clip", artifact()),
        record(CLIP),
        record(CLIP, artifact(), ref_text="Ho."),
        record(CLIP, artifact(), consent="d"),
        record(CLIP, artifact(), description="d"),
        record(CLIP, artifact(), name="alice"),
    ):
        assert content(other) != content(moved)


@pytest.mark.parametrize(
    ("name", "header", "says"),
    [
        ("../../etc/passwd", {}, "found '../../etc/passwd'"),
        ("/etc/passwd", {}, "found '/etc/passwd'"),
        (
            "voices/0000001/0000001/source",
            {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
            "symbolic link",
        ),
        ("voices/0000001/0000001/source", {"type": tarfile.LNKTYPE, "linkname": "x"}, "hard link"),
        ("voices/0000001/0000001/source", {"type": tarfile.CHRTYPE, "devmajor": 1}, "a device"),
        ("voices/0000001/0000001/source", {"type": tarfile.FIFOTYPE}, "a named pipe"),
        ("voices/0000001", {"type": tarfile.DIRTYPE}, "a folder"),
        ("x", {"type": tarfile.GNUTYPE_LONGNAME}, "a member of type b'L'"),
        ("x", {"type": tarfile.XHDTYPE}, "a member of type b'x'"),
        ("x", {"type": tarfile.AREGTYPE}, "a member of type"),
        ("voices/0000001/0000001/other", {}, "found 'voices/0000001/0000001/other'"),
        ("manifest.json", {}, "found 'manifest.json'"),
    ],
)
def test_a_member_that_an_export_never_has_is_refused(
    good: Path, name: str, header: dict[str, Any], says: str
):
    """Only plain files with the expected names in the expected order are read. Nothing is ever unpacked."""
    for at in (0, 2):
        write(good)
        said = refusal(changed(good, lambda members, at=at: add(members, at, name, **header)))  # type: ignore[misc]
        assert says in said or (name == "manifest.json" and at == 0)


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("manifest.json", 10**9, "accepted: 1 to 262144"),
        ("version.json", 8**11 - 1, "accepted: 1 to 262144"),
        ("source", 8**11 - 1, "accepted: 9"),
        (PROFILE, 10**9, "accepted:"),
        ("end.json", 0, "has 0 bytes"),
    ],
)
def test_a_size_is_bounded_before_anything_is_read(good: Path, name: str, size: int, says: str):
    """A header that promises gigabytes is refused before memory is taken for them."""

    def lie(members: Members) -> None:
        members[index(members, name)][0].size = size

    assert says in refusal(changed(good, lie))


def test_a_negative_size_is_refused(good: Path):
    """The binary form of sizes can be negative, which would lead the reader backwards forever."""
    data = bytearray(good.read_bytes())
    data[124:136] = b"\xff" * 12
    header = bytes(data[:148]) + b" " * 8 + bytes(data[156:512])
    data[148:156] = f"{sum(header):06o}\0 ".encode()
    good.write_bytes(data)
    assert "has -1 bytes" in refusal(good)


def test_every_cut_is_noticed(good: Path):
    """A download that stopped is noticed, wherever it stopped, also between two members."""
    data = good.read_bytes()
    for length in range(0, len(data), 256):
        good.write_bytes(data[:length])
        refusal(good)
    good.write_bytes(data)
    with tarfile.open(good) as tar:
        inside = next(one.offset_data for one in tar if one.name.endswith("source")) + 4
    good.write_bytes(data[:inside])
    assert "ends in the middle of 'voices/0000001/0000001/source'" in refusal(good)
    good.write_bytes(data[:-1])
    assert "does not end" in refusal(good)


def test_every_damaged_block_is_noticed(good: Path):
    """A flipped bit in anything that is used is noticed."""
    data = good.read_bytes()
    with tarfile.open(good) as tar:
        used = [
            position
            for one in tar
            for position in (one.offset, one.offset_data, one.offset_data + one.size - 1)
        ]
    for position in used:
        good.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        refusal(good)


def test_bytes_after_the_end_are_refused(good: Path):
    """An archive that goes on may be two, of which one would be forgotten."""
    good.write_bytes(good.read_bytes() * 2)
    assert "does not end after 'end.json'" in refusal(good)


@pytest.mark.parametrize(
    ("member", "changes", "says"),
    [
        ("manifest.json", {"format": "another-tool"}, "format"),
        ("manifest.json", {"schema_version": 2}, "schema_version"),
        ("manifest.json", {"namespace": "../x"}, "namespace"),
        ("manifest.json", {"more": 1}, "more"),
        ("version.json", {"name": "a/b"}, "Invalid voice name"),
        ("version.json", {"name": "Bob"}, "holds the voices 'Bob' and 'Alice'"),
        ("version.json", {"version": 0}, "version"),
        ("version.json", {"consent": ""}, "consent"),
        ("version.json", {"ref_text": "x" * 8001}, "ref_text"),
        ("version.json", {"digest": "sha256:" + "0" * 64}, "is damaged"),
        ("version.json", {"size": 8}, "accepted: 8"),
        ("version.json", {"source": "embedding"}, "embedding cannot be read"),
        ("version.json", {"artifacts": []}, f"artifacts/{PROFILE}' where"),
        ("voice.json", {"aliases": {"prod": 3}}, "points the alias 'prod' to no version"),
        ("voice.json", {"aliases": {"prod": 0}}, "aliases"),
        ("voice.json", {"aliases": {"latest": 1}}, "Invalid alias 'latest'"),
        ("voice.json", {"labels": {"team": "x" * 10_000}}, "of label 'team' is invalid"),
        ("voice.json", {"labels": {f"k{n}": "" for n in range(33)}}, "would have 33 labels"),
        ("voice.json", {"description": "x" * 8001}, "description"),
        ("voice.json", {"pinned": "yes"}, "pinned"),
        ("voice.json", {"description": "Loud."}, "its end says"),
        (
            "voice.json",
            {"description": None, "labels": {}, "pinned": False, "aliases": {}},
            "is empty",
        ),
        ("end.json", {"voices": 3}, "its end says"),
        ("end.json", {"content": "sha256:" + "0" * 64}, "its end says"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(good: Path, member: str, changes: dict[str, Any], says: str):
    """Each record is checked against the data beside it, and a manifest of another program is refused."""
    said = refusal(changed(good, lambda members: edit(members, member, changes)))
    assert says in said


def test_a_record_that_is_no_json_is_refused_in_plain_words(good: Path):
    def damage(members: Members) -> None:
        at = index(members, "0000001/version.json")
        members[at] = (members[at][0], b"\0" + members[at][1][1:])

    said = refusal(changed(good, damage))
    assert "version.json' is not as this version of the registry writes it: Invalid JSON: expected" in said


@pytest.mark.parametrize("changes", [{"version": 9}, {"created_at": 7}, {"id": "a" * 32}])
def test_damage_to_what_a_registry_gives_itself_is_noticed(good: Path, changes: dict[str, Any]):
    """The digest of the content covers neither number, time nor id. Archives of former releases have no
    digest over the records, so there only the headers of artifacts show the damage, and the second version
    has none.
    """
    with_artifacts, without = "0000001/version.json", "0000002/version.json"
    undamaged = good.read_bytes()
    assert "the records are damaged" in refusal(
        changed(good, lambda members: edit(members, without, changes))
    )

    def leave_out(members: Members) -> None:
        members[-1][0].linkname = ""

    with Archive(changed(good, leave_out)) as found:
        assert [voice.name for voice in found.voices] == ["Alice", "Eve"]
    good.write_bytes(undamaged)
    changed(good, leave_out)
    assert "is not the artifact that 'version.json' beside it describes" in refusal(
        changed(good, lambda members: edit(members, with_artifacts, changes))
    )


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_record_that_is_no_json_is_refused(good: Path, content: bytes):
    """Damaged JSON leads to the same clear error."""

    def replace(members: Members) -> None:
        members[0][0].size = len(content)
        members[0] = (members[0][0], content)

    assert "'manifest.json'" in refusal(changed(good, replace))


@pytest.mark.parametrize("name", ["version.json", "voice.json"])
def test_what_is_said_of_a_voice_comes_once_and_after_its_versions(good: Path, name: str):
    """An archive has one order only, so that nothing in it can be read in two ways."""

    def repeat(members: Members) -> None:
        member, data = members[index(members, "voice.json")]
        add(members, index(members, name), member.name, data)

    assert "where an export has" in refusal(changed(good, repeat))


def test_a_voice_that_is_there_twice_is_refused(tmp_path: Path):
    """The second voice would add versions to the first."""
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        writer = ArchiveWriter(file, "default")
        for name in ("Alice", "alice"):
            writer.add_voice([(record(name=name), CLIP, [])])
        writer.finish()
    assert "the voice 'alice' appears twice" in refusal(path)


@pytest.mark.parametrize(
    "file", [artifact(clip=b"of somebody else"), artifact(profile="another"), b"no artifact"]
)
def test_an_artifact_of_another_clip_is_refused(tmp_path: Path, file: bytes):
    """An artifact must be of the version beside it, or the voice would sound like somebody else."""
    path = tmp_path / "x.tar"
    described = record(CLIP, artifact()).artifacts[0]
    stated = described.model_copy(update={"digest": sha256_digest(file), "size": len(file)})
    with path.open("wb") as target:
        writer = ArchiveWriter(target, "default")
        writer.add_voice([(record(CLIP, artifacts=[stated]), CLIP, [file])])
        writer.finish()
    assert "is not" in refusal(path)


@pytest.mark.parametrize(
    ("before", "after", "read_again"),
    [
        (CLIP, CLIP[::-1], lambda archive, alice: archive.source(alice.versions[0], record())),
        (b"Hi.", b"Ho.", lambda archive, alice: archive.record(alice.versions[0])),
        (b"blue", b"grey", lambda archive, alice: archive.about(alice)),
    ],
    ids=["the clip", "the record of the version", "the record of the voice"],
)
def test_an_archive_that_changes_after_it_was_verified_is_refused(
    good: Path, before: bytes, after: bytes, read_again: Callable[[Archive, ArchivedVoice], object]
):
    """The bytes are verified again when they are used."""
    with Archive(good) as found:
        data = good.read_bytes()
        with good.open("r+b") as file:
            file.write(data.replace(before, after))
        with pytest.raises(InvalidArchive, match="has changed"):
            read_again(found, found.voices[0])


def test_other_files_are_named_as_what_they_are(tmp_path: Path, good: Path):
    """A compressed archive, another tar, a folder and a pipe get an error that says so."""
    packed = tmp_path / "x.tar"
    packed.write_bytes(gzip.compress(good.read_bytes()))
    assert "compressed; decompress it first" in refusal(packed)
    with tarfile.open(packed, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("ä" * 200), io.BytesIO())
    assert "not an export of a speaker registry" in refusal(packed)
    assert "not a regular file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.tar")
    assert "not a regular file" in refusal(tmp_path / "pipe.tar")
