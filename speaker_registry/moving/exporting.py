"""Writes the voices of a namespace to an archive: versions with clips or embeddings, texts and artifacts, and
each voice's description, labels, pin and moved aliases.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from speaker_registry.artifact import sha256_digest
from speaker_registry.atomic_files import remove_abandoned, replacing
from speaker_registry.client import RegistryClient
from speaker_registry.errors import InvalidArtifact, SpeakerRegistryError, VersionNotFound, VoiceNotFound
from speaker_registry.exchange import OnPause
from speaker_registry.fetching import File
from speaker_registry.moving.about import read_record
from speaker_registry.moving.archive import ArchiveWriter, embedding_file
from speaker_registry.moving.archive_records import ArtifactRecord, EndRecord, VersionRecord, VoiceRecord
from speaker_registry.moving.faults import Pauses, concerns_one_voice
from speaker_registry.schemas import VoiceVersion

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A voice, version, alias or artifact that could not be exported."""

    name: str
    """Such as `alice`, `alice@3`, `alice@prod` or `alice@3 for qwen3-tts-0.6b`."""
    error: SpeakerRegistryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An archive that was written."""

    end: EndRecord
    artifacts: int
    size: int
    """Size of the file in bytes."""
    missing: tuple[Missing, ...]


class Export:
    """Exports the namespace of a client's API key.

    Args:
        artifacts: Also export artifacts that are ready and made by the current encoder.
        on_voice: Called after each voice.
        on_pause: Called before each pause that the registry asks for.
    """

    def __init__(
        self,
        client: RegistryClient,
        *,
        artifacts: bool = True,
        on_voice: Callable[[object], object] = lambda _: None,
        on_pause: OnPause = lambda *_: None,
    ) -> None:
        self._client, self._with_artifacts, self._on_voice = client, artifacts, on_voice
        self._pauses = Pauses(on_pause=on_pause)
        self._missing: list[Missing] = []
        self._artifacts = 0

    def write(self, path: Path, namespace: str, *, only_new: bool = False) -> Exported:
        """Write the archive under a temporary name, and rename it when it is complete. Temporary files that
        killed exports to the same path left are removed.

        Args:
            only_new: Refuse to replace a file, also one that appears while the archive is written.

        Raises:
            SpeakerRegistryError: The registry cannot be reached or refuses the API key. No file is left.
            FileExistsError: There is such a file, although `only_new` is set.
            OSError: The file cannot be written. No file is left.
        """
        remove_abandoned(path)
        with replacing(path, only_new=only_new) as file:
            writer = ArchiveWriter(file, namespace)
            # A registry without its view lists voices in another order, so they are sorted here.
            for _, name, voice_id in self._pauses.retry(self._voices):
                self._add(writer, name, voice_id)
                self._on_voice(name)
            end, size = writer.finish(), file.tell()
        return Exported(end=end, artifacts=self._artifacts, size=size, missing=tuple(self._missing))

    def _voices(self) -> list[tuple[str, str, str]]:
        """Return key, name and id of each voice, sorted by key."""
        return sorted((voice.key, voice.name, voice.id) for voice in self._client.list())

    def _add(self, writer: ArchiveWriter, name: str, voice_id: str) -> None:
        read = self._read(name, lambda: self._about_and_versions(name, voice_id))
        if read is None:
            return
        about, versions = read
        written = writer.add_voice(self._versions(versions[::-1]), about)  # they are listed newest first
        left_out = about.aliases.keys() - written.aliases.keys()
        if not left_out or self._is_deleted(name, voice_id):
            return
        for alias in sorted(left_out):
            number = about.aliases[alias]
            error = VersionNotFound(f"alias '{alias}' points to version {number}, which was not exported")
            self._missing.append(Missing(name=f"{name}@{alias}", error=error))

    def _is_deleted(self, name: str, voice_id: str) -> bool:
        """Return whether a listed voice was deleted since, although another one may have its name now."""
        there = self._read(name, lambda: self._client.get(name))
        return there is None or there.id != voice_id

    def _about_and_versions(self, name: str, voice_id: str) -> tuple[VoiceRecord, list[VoiceVersion]]:
        """Read the record of a voice and its versions.

        Raises:
            VoiceNotFound: The voice was deleted, although another one may have its name now. What was read by
                the name may be of either.
        """
        # The aliases are read before the versions, so the listing has every version that an alias points to.
        about, versions = read_record(self._client, name), list(self._client.versions(name))
        if any(version.voice_id != voice_id for version in versions):
            raise VoiceNotFound(f"the voice {voice_id} was deleted")
        return about, versions

    def _versions(
        self, versions: Sequence[VoiceVersion]
    ) -> Iterator[tuple[VersionRecord, bytes, list[bytes]]]:
        for version in versions:
            reference = f"{version.voice}@{version.version}"
            source = self._read(reference, partial(self._source, reference, version))
            if source is not None:
                files = self._files(reference, version) if self._with_artifacts else []
                self._artifacts += len(files)
                yield _record(version, source, files), source, [file.data for file in files]

    def _read(self, name: str, call: Callable[[], Read]) -> Read | None:
        """Read a part of one voice. If it cannot be read, record it as missing and return None.

        What was deleted after it was listed is not missing. A clip that the bucket has lost is another error.
        """
        try:
            return self._pauses.retry(call)
        except (VoiceNotFound, VersionNotFound):
            return None
        except SpeakerRegistryError as error:
            if not concerns_one_voice(error):
                raise
            self._missing.append(Missing(name=name, error=error))
            return None

    def _source(self, reference: str, version: VoiceVersion) -> bytes:
        if version.source == "audio":
            return self._client.clip(reference).data
        return embedding_file(embedding_of(self._client, version))

    def _files(self, reference: str, version: VoiceVersion) -> list[File]:
        ready = [
            one.profile for one in version.artifacts if one.state == "ready" and one.current is not False
        ]
        files = [
            self._read(f"{reference} for {profile}", partial(self._client.download, reference, profile))
            for profile in ready
        ]
        return [file for file in files if file is not None]


def embedding_of(client: RegistryClient, version: VoiceVersion) -> np.ndarray:
    """Return the speaker embedding (float32 [D]) from which a version was made.

    It is read from an artifact, because the registry keeps it as the artifact of each profile that takes it.
    The registry lists these profiles first, before others whose artifacts may have the same width.

    Raises:
        InvalidArtifact: The version has no such artifact.
    """
    reference = f"{version.voice}@{version.version}"
    for status in version.artifacts:
        if status.state == "ready":
            tensors = client.download(reference, status.profile).artifact.tensors
            embedding = tensors.get("speaker_embedding")
            if embedding is not None and embedding.shape == (version.embedding_dim,):
                return embedding
    raise InvalidArtifact(f"{reference} has no artifact with the speaker embedding from which it was made")


def _record(version: VoiceVersion, source: bytes, files: list[File]) -> VersionRecord:
    return VersionRecord(
        name=version.voice,
        version=version.version,
        created_at=version.created_at,
        id=version.id,
        source=version.source,
        digest=sha256_digest(source),
        size=len(source),
        consent=version.consent,
        ref_text=version.ref_text,
        description=version.description,
        artifacts=[
            ArtifactRecord(
                profile=file.artifact.manifest.profile,
                digest=file.artifact.digest,
                size=file.artifact.size,
                content_digest=file.artifact.content_digest,
                fingerprint=file.artifact.manifest.fingerprint,
            )
            for file in files
        ],
    )
