"""Registers the voices of an archive: their versions in order, descriptions, labels, pins and aliases, and
the artifacts that they had.

Versions keep their numbers, creation times and ids if the registry allows it. Otherwise it assigns new ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from speaker_registry.calls import Registration
from speaker_registry.client import RegistryClient
from speaker_registry.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    VoiceDeleted,
    VoiceNotFound,
)
from speaker_registry.moving.about import Difference, apply_record, compare
from speaker_registry.moving.archive import Archive, ArchivedVersion, ArchivedVoice
from speaker_registry.moving.archive_records import ArtifactRecord, VersionRecord
from speaker_registry.moving.candidates import Source
from speaker_registry.moving.transfer import (
    Result,
    State,
    is_equal,
    is_equal_embedding,
    register,
    restore,
    versions_there,
)
from speaker_registry.schemas import VoiceVersion


@dataclass(slots=True)
class Permission:
    """Remembers that the API key may not set numbers and times, so that no further clip is sent for nothing.

    One import has one, which its threads share.
    """

    refusal: str | None = None
    """The reason that the registry gave, or None if it gave none so far."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """The values that tell a version of the registry from the other versions of its voice."""

    number: int
    created_at: int
    id: str

    @classmethod
    def of(cls, version: VoiceVersion) -> Self:
        return cls(version.version, version.created_at, version.id)


@dataclass(slots=True)
class _Target:
    """The voice of the registry that gets the archive's versions."""

    voice_id: str | None = None
    """Id of the voice, or None until it exists. From then on, no other voice gets a version. Before that, a
    version is registered only if no voice has the name.
    """
    versions: list[_Identity] = field(default_factory=list)
    """The archive's versions as the registry has them, and further ones, oldest first."""
    is_new: bool = False
    """True if this import has registered a version."""
    refusal: str | None = None
    """The reason why the registry refused a number, a creation time or an id of the archive, or None."""
    keeps_numbers: bool = True
    """False once the registry has refused a number or a creation time. The versions that follow one with new
    values cannot keep theirs.
    """

    @property
    def numbers(self) -> list[int]:
        return [version.number for version in self.versions]

    def begin(self, there: Sequence[VoiceVersion]) -> None:
        """Begin with the versions that the registry has of this name now, oldest first.

        After a pause that the registry asks for, the import of a voice begins again.

        Raises:
            VoiceDeleted: They are those of another voice than before.
        """
        self.check(there)
        if self.voice_id is None:
            self.refusal = None  # it may only have been that the name was taken meanwhile
        self.voice_id = there[0].voice_id if there else None
        self.versions = [_Identity.of(version) for version in there]
        self.keeps_numbers = True

    def renumber(self, reason: str) -> None:
        """Let the registry assign numbers, creation times and ids from now on, because it refused others."""
        self.refusal, self.keeps_numbers = reason, False

    def add(self, made: Registration) -> None:
        """Record a version that the registry has now.

        Raises:
            VoiceDeleted: It is that of another voice, which was restored after this one was deleted.
            PreconditionFailed: The first version existed already: another import registered it, or the answer
                to this one was lost.
        """
        if self.voice_id not in {None, made.id}:
            raise _deleted()
        if self.voice_id is None and not made.created:
            raise PreconditionFailed(f"voice '{made.name}' was registered while it was imported")
        self.voice_id = made.id
        self.is_new = self.is_new or made.created
        self.versions.append(_Identity(made.version, made.created_at, made.version_id))

    def check(self, there: Sequence[VoiceVersion]) -> None:
        """Raise `VoiceDeleted` if versions that the registry has of this name are not those of the voice."""
        if self.voice_id is not None and (not there or there[0].voice_id != self.voice_id):
            raise _deleted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """Restores one voice of an archive.

    A voice that the registry has already is continued if its versions begin like those of the archive, which
    is so after an import that was interrupted. Any other voice of the same name is left alone and refused.
    The first version, or the voice that was found, fixes the voice by its id: if it is deleted meanwhile, no
    further version is registered. If somebody else registers the name before the first version is sent, the
    registry is looked at again.
    """

    archive: Archive
    voice: ArchivedVoice
    artifacts: bool = True
    """Also upload the artifacts, so that they need not be extracted again."""
    permission: Permission = field(default_factory=Permission)
    _target: _Target = field(default_factory=_Target, init=False)

    @property
    def where(self) -> str:
        return self.voice.where

    @property
    def title(self) -> str:
        return self.voice.name

    def run(self, client: RegistryClient, *, dry_run: bool) -> Result:
        self._begin(client)
        if dry_run:
            return self._planned(client)
        try:
            self._register_missing(client)
            return self._complete(client)
        except (VoiceDeleted, VoiceNotFound):
            raise _deleted() from None

    def _complete(self, client: RegistryClient) -> Result:
        """Restore what the voice has besides its versions.

        Raises:
            VoiceDeleted, VoiceNotFound: The voice was deleted meanwhile.
        """
        numbers, known_as = self._target.numbers, self._known_as(client)
        notes = self._identity_notes()
        # This comes before the artifacts, so that the bare name never leads engines to another version.
        difference = self._difference(client, known_as)
        notes += difference.notes
        refused = apply_record(client, known_as, difference.restorable)
        if self.artifacts:
            # The newest version comes first, so that `default` moves to it and not to an older one before.
            for number, archived in reversed(list(zip(numbers, self.voice.versions, strict=False))):
                record = self.archive.record(archived)
                found = self._put_artifacts(client, f"{known_as}@{number}", archived, record)
                notes += [f"{self.title}@{number}: {note}" for note in found]
        is_changed = self._target.is_new or difference.restorable.has_content
        state: State = "registered" if is_changed else "unchanged"
        return Result(
            where=self.where,
            name=self.title,
            state="refused" if refused else state,
            versions=tuple(numbers),
            error=refused,
            notes=tuple(notes),
        )

    def _known_as(self, client: RegistryClient) -> str:
        """Return the id of the voice, which leads to no other voice that takes its name meanwhile. If another
        voice has this id for its name, or gets it from the archive meanwhile, return the name.

        Raises:
            VoiceDeleted, VoiceNotFound: The voice was deleted meanwhile.
        """
        voice_id = self._target.voice_id
        assert voice_id is not None, "the voice has versions"
        if voice_id not in self.archive.ids_as_names and client.get(voice_id).id == voice_id:
            return voice_id
        self._target.check(versions_there(client, self.title, limit=1))
        return self.title

    def _begin(self, client: RegistryClient) -> None:
        """Begin with the versions that the registry has now.

        Raises:
            Conflict: They are not those of the archive.
            VoiceDeleted: They are those of another voice than before.
        """
        there = versions_there(client, self.title)[::-1]
        self._target.begin(there)
        for version, archived in zip(there, self.voice.versions, strict=False):
            self._check_same(client, version, archived)

    def _planned(self, client: RegistryClient) -> Result:
        if len(self._target.versions) < len(self.voice.versions):
            return Result(where=self.where, name=self.title, state="planned")
        difference = self._difference(client, self._known_as(client))
        return Result(
            where=self.where,
            name=self.title,
            state="planned" if difference.restorable.has_content else "unchanged",
            versions=tuple(self._target.numbers),
            notes=(*self._identity_notes(), *difference.notes),
        )

    def _difference(self, client: RegistryClient, known_as: str) -> Difference:
        archived, count = self.archive.about(self.voice), len(self.voice.versions)
        numbers = self._target.numbers
        return compare(client, known_as, archived, numbers[:count], grown=len(numbers) > count)

    def _register_missing(self, client: RegistryClient) -> None:
        """Register the versions that the registry lacks.

        Raises:
            VoiceDeleted: The voice was deleted meanwhile.
            Conflict: Somebody else registered the name meanwhile, with other versions.
        """
        try:
            self._register_after(client)
        except PreconditionFailed:  # the name was registered since the registry was looked at
            self._begin(client)
            self._register_after(client)

    def _register_after(self, client: RegistryClient) -> None:
        """Register the versions that follow those of the target."""
        target = self._target
        if self.permission.refusal is not None:
            target.renumber(self.permission.refusal)
        for archived in self.voice.versions[len(target.versions) :]:
            record = self.archive.record(archived)
            source = self.archive.source(archived, record)
            made = self._restore(client, record, source) if target.keeps_numbers else None
            target.add(made or _register(client, record, source, target))

    def _restore(self, client: RegistryClient, record: VersionRecord, source: Source) -> Registration | None:
        """Register a version under its number, time and id. Returns None if the registry refuses that.

        A refusal of the clip or the texts, or because the name is taken, counts too, and the registration
        that follows raises it. `PUT` takes a name in the form of an id for that id, so only the registration
        can tell whether the name itself is taken.

        Raises:
            PayloadTooLarge, Unavailable: Something other than the registry refused the request.
        """
        try:
            return _restore_with_id(client, record, source, self._target)
        except VoiceDeleted:
            raise
        except (Conflict, InvalidRequest, NotFound, PermissionDenied) as error:
            if error.is_foreign:
                raise  # the registry itself might keep the number
            if isinstance(error, PermissionDenied):
                self.permission.refusal = error.message
            self._target.renumber(error.message)
            return None

    def _identity_notes(self) -> list[str]:
        """Return notes for the report: which numbers, creation times and ids differ from the archive, and
        why.
        """
        records = map(self.archive.record, self.voice.versions)
        pairs = list(zip(records, self._target.versions, strict=False))
        notes = [
            f"version {old.version} of the archive is version {new.number} here"
            for old, new in pairs
            if old.version != new.number
        ]
        has_other = {
            "creation times": any(old.created_at != new.created_at for old, new in pairs),
            "ids": any(old.id not in {None, new.id} for old, new in pairs),  # former releases wrote none
        }
        if others := " and ".join(kind for kind, is_other in has_other.items() if is_other):
            notes.append(f"{others} are not those of the archive")
        if notes and self._target.refusal is not None:
            notes.append(
                f"the registry refused numbers, creation times or ids of the archive: {self._target.refusal}"
            )
        return notes

    def _check_same(self, client: RegistryClient, version: VoiceVersion, archived: ArchivedVersion) -> None:
        record = self.archive.record(archived)
        source, texts = self.archive.source(archived, record), record.texts
        if not (is_equal(version, source, texts) or is_equal_embedding(client, version, source, texts)):
            raise Conflict(
                f"the registry has a voice of this name whose version {version.version} differs from version "
                f"{record.version} of the archive. The voice was left alone; delete it first, or import into "
                "another namespace"
            )

    def _put_artifacts(
        self, client: RegistryClient, reference: str, archived: ArchivedVersion, record: VersionRecord
    ) -> Iterator[str]:
        """Upload the artifacts that the registry does not have. Yields a note for each refused one.

        Raises:
            VoiceDeleted, VoiceNotFound: The voice was deleted meanwhile.
        """
        for index, wanted in enumerate(record.artifacts):
            if _serves(client, reference, wanted, record.id):
                continue
            try:
                _put(client, reference, wanted.profile, self.archive.artifact(archived, record, index))
            except (VoiceDeleted, VoiceNotFound):
                raise
            except (InvalidRequest, Conflict, NotFound) as error:
                if not _serves(client, reference, wanted, None):
                    yield f"the artifact for {wanted.profile} was not restored. {error}"


def _put(client: RegistryClient, reference: str, profile: str, data: bytes) -> None:
    """Upload an artifact. If a worker stored another one at the same moment, replace that one."""
    try:
        client.put(reference, profile, data)
    except Conflict as error:
        if error.code != Conflict.code:  # the subclasses would be raised again
            raise
        client.put(reference, profile, data)


def _restore_with_id(
    client: RegistryClient, record: VersionRecord, source: Source, target: _Target
) -> Registration:
    """Register a version with its id, or without it if the registry refuses just the id."""
    voice_id = target.voice_id
    put = partial(restore, client, record, source, voice_id=voice_id, only_new=voice_id is None)
    try:
        return put(record.id)
    except (Conflict, InvalidRequest) as error:
        if record.id is None or error.param != "id":
            raise
        target.refusal = error.message
        return put(None)


def _register(client: RegistryClient, record: VersionRecord, source: Source, target: _Target) -> Registration:
    """Register a version under the next number of the target."""
    return register(
        client,
        record.name,
        source,
        record.texts,
        after=target.versions[-1].number if target.versions else 0,
        dedupe=False,  # so that two equal versions of the archive stay two versions
        voice_id=target.voice_id,
        only_new=target.voice_id is None,
    )


def _deleted() -> VoiceDeleted:
    return VoiceDeleted(
        "the voice was deleted while it was imported. Nothing was added after that, neither to it nor to "
        "another voice of its name. If you want it back, run the import again"
    )


def _serves(client: RegistryClient, reference: str, wanted: ArtifactRecord, version_id: str | None) -> bool:
    """Return whether the registry serves an artifact of the archive.

    Args:
        version_id: If the version has this id in the registry, the file of the artifact must be the same.
            Otherwise only its tensors can be.
    """
    try:
        made = client.descriptor(reference, wanted.profile)
    except (NotFound, Conflict):
        return False
    same_tensors = made.content_digest == wanted.content_digest
    same = made.digest == wanted.digest if made.version_id == version_id else same_tensors
    return made.state == "ready" and made.current is not False and same
