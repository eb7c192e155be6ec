"""The tar file of an exported namespace: what is in it, how it is written, and how an untrusted one is read.

Members come in a fixed order: `manifest.json`; for each voice, the `version.json`, `source` and artifacts of
each version, and then `voice.json` if the voice has a description, labels, a pin or moved aliases; and
`end.json`. The tar header of `end.json` holds the digest of all JSON members before it (`RecordsDigest`) in
its field `linkname`, which tar programs and former releases ignore in a plain file. Archives of former
releases have none. An archive is used only after it was read to its end and every digest was verified, so a
damaged one changes nothing. The headers are parsed one by one, and everything but a plain member of the
expected name is refused before its content is read. This module sends nothing.
"""

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, Self, TypeVar

import numpy as np
import safetensors.numpy
from pydantic import BaseModel, ValidationError

from speaker_registry.artifact import Artifact, Manifest, canonical_json, read_tensors, sha256_digest
from speaker_registry.errors import InvalidArchive, SpeakerRegistryError
from speaker_registry.fetching import MAX_FILE_BYTES
from speaker_registry.moving.archive_records import (
    ArchiveRecord,
    ArtifactRecord,
    ContentDigest,
    EndRecord,
    ManifestRecord,
    RecordsDigest,
    VersionRecord,
    VoiceRecord,
)
from speaker_registry.moving.candidates import Source
from speaker_registry.names import parse_speaker_name, parse_voice_id
from speaker_registry.session import MAX_CLIP_BYTES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_BLOCK = 512
_END = bytes(2 * _BLOCK)
_CHUNK_BYTES = 1024**2
_MAX_JSON_BYTES = 256 * 1024
_MAX_VOICES = 1_000_000
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.DIRTYPE: "a folder",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
Model = TypeVar("Model", bound=BaseModel)


def embedding_file(embedding: np.ndarray) -> bytes:
    """Encode a speaker embedding (float32 [D]) as a safetensors file with always the same bytes."""
    return safetensors.numpy.save({"speaker_embedding": np.ascontiguousarray(embedding)})


class ArchiveWriter:
    """Writes an archive member by member, so that only one version is in memory."""

    def __init__(self, file: BinaryIO, namespace: str) -> None:
        self._file = file
        self._content = ContentDigest()
        self._records = RecordsDigest()
        self.voices = self.versions = 0
        self._add_json("manifest.json", ManifestRecord(namespace=namespace))

    def add_voice(
        self,
        versions: Iterable[tuple[VersionRecord, bytes, list[bytes]]],
        about: VoiceRecord = VoiceRecord(),  # noqa: B008  it is never changed
    ) -> VoiceRecord:
        """Add the versions of a voice, oldest first: each with its source and artifacts, as in its record.

        Args:
            about: The description, labels, pin and aliases of the voice, with version numbers in `aliases`
                instead of places.

        Returns:
            The part of `about` that was written. It lacks aliases of versions that were not added, and is
            empty if no version was added.
        """
        numbers = list[int]()
        for record, source, artifacts in versions:
            numbers.append(record.version)
            folder = _folder(self.voices + 1, len(numbers))
            self._add_json(f"{folder}/version.json", record)
            self._add(f"{folder}/source", source)
            for one, data in zip(record.artifacts, artifacts, strict=True):
                self._add(_artifact_name(folder, one), data)
            self._content.add(record)
        if not numbers:
            return VoiceRecord()
        written = about.placed(numbers)
        if written.has_content:
            self._add_json(_about_name(self.voices + 1), written)
            self._content.add_voice(written)
        self.voices += 1
        self.versions += len(numbers)
        return written

    def finish(self) -> EndRecord:
        end = EndRecord(voices=self.voices, versions=self.versions, content=str(self._content))
        self._add("end.json", _json_of(end), linkname=str(self._records))
        self._file.write(_END)
        return end

    def _add_json(self, name: str, record: ArchiveRecord) -> None:
        data = _json_of(record)
        self._records.add(name, data)
        self._add(name, data)

    def _add(self, name: str, data: bytes, *, linkname: str = "") -> None:
        header = tarfile.TarInfo(name)
        header.size, header.mode, header.linkname = len(data), 0o600, linkname
        self._file.write(header.tobuf(tarfile.USTAR_FORMAT))
        self._file.write(data)
        self._file.write(bytes(-len(data) % _BLOCK))


def _json_of(record: ArchiveRecord) -> bytes:
    return canonical_json(record.model_dump(mode="json")).encode()


def _folder(voice: int, version: int) -> str:
    return f"voices/{voice:07d}/{version:07d}"


def _about_name(voice: int) -> str:
    return f"voices/{voice:07d}/voice.json"


def _artifact_name(folder: str, record: ArtifactRecord) -> str:
    return f"{folder}/artifacts/{record.profile}"


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _Record(_Member):
    digest: str
    """The digest of the record when the archive was verified, as `sha256:<hex>`."""


@dataclass(frozen=True, slots=True)
class ArchivedVersion:
    """The place of a version in the archive."""

    record: _Record
    source: _Member
    artifacts: tuple[_Member, ...]


@dataclass(slots=True)
class ArchivedVoice:
    """The places of the versions of a voice in the archive, oldest first."""

    name: str
    where: str
    versions: list[ArchivedVersion] = field(default_factory=list)
    about: _Record | None = None
    """Place of the voice's `voice.json`, or None if it has none."""


class Archive:
    """A verified archive whose members are read on demand. Several threads can use it at once."""

    def __init__(self, path: Path) -> None:
        """Open an archive and verify all of it.

        Raises:
            InvalidArchive: The file is not a complete, undamaged export.
            OSError: The file cannot be read.
        """
        if not path.is_file():
            raise InvalidArchive(f"{str(path)!a} is not a regular file; an archive is read twice")
        self._file = path.open("rb")
        try:
            self.manifest, self.voices, self.end = _Scan(self._file.fileno()).verify()
            keys = (parse_speaker_name(voice.name).key for voice in self.voices)
            self.ids_as_names = frozenset(key for key in keys if parse_voice_id(key))
            """Keys of the archive's voice names that have the form of an id. The registry takes such a text
            for the name first.
            """
        except BaseException:
            self._file.close()
            raise

    def record(self, version: ArchivedVersion) -> VersionRecord:
        """Read the record of a version. Raises `InvalidArchive` if the file has changed since it was
        opened.
        """
        data = self._verified(version.record, version.record.digest)
        return _parsed(VersionRecord, version.record.name, data)

    def about(self, voice: ArchivedVoice) -> VoiceRecord:
        """Read the `voice.json` of a voice. Returns an empty record if it has none. Raises `InvalidArchive`
        as `record` does.
        """
        if voice.about is None:
            return VoiceRecord()
        data = self._verified(voice.about, voice.about.digest)
        return _parsed(VoiceRecord, voice.about.name, data)

    def source(self, version: ArchivedVersion, record: VersionRecord) -> Source:
        """Read a clip or an embedding. Raises `InvalidArchive` as `record` does."""
        data = self._verified(version.source, record.digest)
        return data if record.source == "audio" else _embedding_of(data)

    def artifact(self, version: ArchivedVersion, record: VersionRecord, index: int) -> bytes:
        """Read the file of an artifact. Raises `InvalidArchive` as `record` does."""
        return self._verified(version.artifacts[index], record.artifacts[index].digest)

    def _read(self, member: _Member) -> bytes:
        return os.pread(self._file.fileno(), member.size, member.start)

    def _verified(self, member: _Member, digest: str) -> bytes:
        data = self._read(member)
        if sha256_digest(data) != digest:
            raise InvalidArchive(f"{member.name!a} has changed since the archive was verified")
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _Scan:
    """Reads an archive from its beginning to its end and verifies it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._position = 0
        self._records = RecordsDigest()

    def verify(self) -> tuple[ManifestRecord, list[ArchivedVoice], EndRecord]:
        start = os.pread(self._descriptor, 8, 0)
        if start.startswith(_COMPRESSED):
            raise InvalidArchive("the file is compressed; decompress it first, an export is a plain .tar")
        _, manifest = self._json(ManifestRecord, "manifest.json")
        content, voices = ContentDigest(), list[ArchivedVoice]()
        for voice in self._voices(content):
            voices.append(voice)
            if len(voices) > _MAX_VOICES:
                raise InvalidArchive(f"there are more than {_MAX_VOICES} voices, which is the maximum")
        records = self._header().linkname
        at_end = self._next_member("end.json", most=_MAX_JSON_BYTES)
        end = _parsed(EndRecord, at_end.name, self._read(at_end))
        versions = sum(len(voice.versions) for voice in voices)
        found = EndRecord(voices=len(voices), versions=versions, content=str(content))
        if found != end:
            raise InvalidArchive(f"the archive holds {found}, but its end says {end}")
        if records not in {"", str(self._records)}:  # archives of former releases have none
            raise InvalidArchive(f"the records are damaged: they are {self._records}, not {records!a}")
        if os.pread(self._descriptor, len(_END) + 1, self._position) != _END:
            raise InvalidArchive(f"the archive does not end after 'end.json', at byte {self._position}")
        return manifest, voices, end

    def _voices(self, content: ContentDigest) -> Iterator[ArchivedVoice]:
        keys: set[str] = set()
        voice = 1
        while self._next_name() != "end.json":
            found, last = ArchivedVoice("", f"voices/{voice:07d}"), 0
            # The next member belongs to this voice if it has the name that its next version would have.
            while not found.versions or self._next_name() == f"{_folder(voice, last + 1)}/version.json":
                last += 1
                version, record = self._version(_folder(voice, last))
                self._check_order(found, record)
                found.name = record.name
                found.versions.append(version)
                content.add(record)
            if self._next_name() == _about_name(voice):
                found.about = self._about(voice, found, content)
            if (key := parse_speaker_name(found.name).key) in keys:
                raise InvalidArchive(f"the voice {key!a} appears twice")
            keys.add(key)
            voice += 1
            yield found

    def _about(self, number: int, voice: ArchivedVoice, content: ContentDigest) -> _Record:
        """Verify the `voice.json` of a voice."""
        member, record = self._json(VoiceRecord, _about_name(number))
        missing = [alias for alias, place in record.aliases.items() if place > len(voice.versions)]
        if missing or not record.has_content:
            what = f"points the alias {missing[0]!a} to no version" if missing else "is empty"
            raise InvalidArchive(f"{member.name!a} {what}")
        content.add_voice(record)
        return member

    def _check_order(self, voice: ArchivedVoice, record: VersionRecord) -> None:
        try:
            key = parse_speaker_name(record.name).key
        except SpeakerRegistryError as error:
            raise InvalidArchive(f"{voice.where}: {error}") from None
        if voice.versions and parse_speaker_name(voice.name).key != key:
            raise InvalidArchive(f"{voice.where} holds the voices {voice.name!a} and {record.name!a}")

    def _version(self, folder: str) -> tuple[ArchivedVersion, VersionRecord]:
        at, record = self._json(VersionRecord, f"{folder}/version.json")
        if len({one.profile for one in record.artifacts}) != len(record.artifacts):
            raise InvalidArchive(f"{at.name!a} names a profile twice")
        source = self._next_member(f"{folder}/source", most=MAX_CLIP_BYTES, exactly=record.size)
        self._check_digest(source, record.digest)
        if record.source == "embedding":
            _embedding_of(self._read(source))
        artifacts = [self._artifact(folder, record, one) for one in record.artifacts]
        return ArchivedVersion(at, source, tuple(artifacts)), record

    def _artifact(self, folder: str, record: VersionRecord, one: ArtifactRecord) -> _Member:
        """Verify an artifact: its bytes, its tensors, and that it is of this version, clip, profile and
        encoder.
        """
        member = self._next_member(_artifact_name(folder, one), most=MAX_FILE_BYTES, exactly=one.size)
        self._check_digest(member, one.digest)
        try:
            artifact = Artifact.parse(self._read(member))
        except SpeakerRegistryError as error:
            raise InvalidArchive(f"{member.name!a} is not an artifact: {error}") from None
        manifest = artifact.manifest
        said = (one.profile, one.fingerprint, one.content_digest)
        found = (manifest.profile, manifest.fingerprint, artifact.content_digest)
        clip = f"sha256:{manifest.audio_sha256}" if manifest.audio_sha256 else record.digest
        other_clip = record.source == "audio" and clip != record.digest
        if said != found or other_clip or not _is_of(manifest, record):
            raise InvalidArchive(
                f"{member.name!a} is not the artifact that 'version.json' beside it describes"
            )
        return member

    def _next_name(self) -> str:
        return self._header().name

    def _header(self) -> tarfile.TarInfo:
        block = os.pread(self._descriptor, _BLOCK, self._position)
        if len(block) < _BLOCK or block == bytes(_BLOCK):
            self._refuse("the archive ends without its 'end.json', so it was cut short")
        try:
            return tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, ValueError):
            self._refuse("there is no valid tar header")

    def _next_member(self, name: str, *, most: int, exactly: int | None = None) -> _Member:
        """Check that the next member is a plain file of this name and of an accepted size, and skip it."""
        header, start = self._header(), self._position + _BLOCK
        if header.type != tarfile.REGTYPE:
            kind = _KINDS.get(header.type, f"a member of type {header.type!a}")
            self._refuse(f"{header.name[:200]!a} is {kind}; accepted: plain files")
        if header.name != name:
            self._refuse(f"found {header.name[:200]!a} where an export has {name!a}")
        if not 0 < header.size <= most or (exactly is not None and header.size != exactly):
            expected = f"1 to {most}" if exactly is None else f"{exactly}"
            self._refuse(f"{name!a} has {header.size} bytes; accepted: {expected}")
        after = start + header.size + -header.size % _BLOCK
        if after > self._size:
            self._refuse(f"the archive ends in the middle of {name!a}")
        self._position = after
        return _Member(name, start, header.size)

    def _refuse(self, reason: str) -> NoReturn:
        raise InvalidArchive(f"not an export of a speaker registry, at byte {self._position}: {reason}")

    def _read(self, member: _Member) -> bytes:
        return os.pread(self._descriptor, member.size, member.start)

    def _json(self, model: type[Model], name: str) -> tuple[_Record, Model]:
        """Read the next member, which is a record."""
        member = self._next_member(name, most=_MAX_JSON_BYTES)
        data = self._read(member)
        self._records.add(name, data)
        return _Record(name, member.start, member.size, sha256_digest(data)), _parsed(model, name, data)

    def _check_digest(self, member: _Member, digest: str) -> None:
        found, end = hashlib.sha256(), member.start + member.size
        for start in range(member.start, end, _CHUNK_BYTES):
            found.update(os.pread(self._descriptor, min(_CHUNK_BYTES, end - start), start))
        if digest != f"sha256:{found.hexdigest()}":
            raise InvalidArchive(
                f"{member.name!a} is damaged: it is sha256:{found.hexdigest()}, not {digest}"
            )


def _is_of(manifest: Manifest, record: VersionRecord) -> bool:
    """Return whether the header of an artifact has the number, the time and the id of this version. Records
    of former releases have no id.
    """
    is_same_id = record.id in {None, manifest.version_id}
    return is_same_id and (manifest.version, manifest.created_at) == (record.version, record.created_at)


def _parsed(model: type[Model], name: str, data: bytes) -> Model:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        faults = "; ".join(map(_fault, error.errors()[:5]))
        raise InvalidArchive(f"{name!a} is not as this version of the registry writes it: {faults}") from None


def _fault(error: "ErrorDetails") -> str:
    """Return what is wrong in a document, and where, unless it is all of it."""
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else error["msg"]


def _embedding_of(data: bytes) -> np.ndarray:
    try:
        tensors, _ = read_tensors(data)
    except SpeakerRegistryError as error:
        raise InvalidArchive(f"an embedding cannot be read: {error}") from None
    embedding = tensors.get("speaker_embedding")
    if len(tensors) != 1 or embedding is None or embedding.dtype != np.float32 or embedding.ndim != 1:
        raise InvalidArchive(
            f"an embedding is {sorted(tensors)!a}; accepted: float32 'speaker_embedding' [D]"
        )
    return embedding
