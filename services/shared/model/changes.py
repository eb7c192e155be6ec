"""Every change of a speaker: functions from a document to the next one. Pure: no clock, no bucket, no Redis.

A change that is there already returns its argument. A change that is impossible raises an error of the
registry, and so is decided again when the document has changed meanwhile. Times are the store's.
"""

from collections.abc import Collection, Mapping, Sequence

from services.shared.model.document import Life, Marks, SpeakerDocument
from services.shared.model.promotion import promoted
from services.shared.model.records import (
    GIVEN_FINGERPRINT,
    About,
    Alias,
    ArtifactRecord,
    FailureRecord,
    Version,
)
from speaker_registry.engine import Profile
from speaker_registry.errors import (
    AliasNotFound,
    ArtifactFailed,
    Conflict,
    QuotaExceeded,
    VersionNotFound,
    VoiceDeleted,
    VoiceExists,
    VoiceNotFound,
)
from speaker_registry.names import DEFAULT

KEPT_SWEPT_SECONDS = 30 * 24 * 3600
"""The time for which the id of collected bytes stays in the document. An upload that stood still for days
must not name bytes that are gone.
"""
MAX_ALIASES = 32
"""The number of aliases that a voice may have, `default` included."""
KEPT_FAILURES = 2
"""The number of encoders whose failures a version keeps for a profile, and of candidates whose it keeps."""
CANCELED = "canceled"
"""The code of the failure by which a caller ends an extraction."""


class VersionGone(Conflict):
    """The version was deleted while something was made from it."""


class AlreadyMade(Conflict):
    """The build's number is used: another attempt made the artifact, or a caller canceled it."""


class Swept(Conflict):
    """The stored bytes were collected as garbage, because they were old and no document named them."""


class DocumentFull(QuotaExceeded):
    """The document of the voice has no room for what the change adds."""


def fitting(before: SpeakerDocument, after: SpeakerDocument, *, max_bytes: int) -> SpeakerDocument:
    """Return `after`. Raises `DocumentFull` if it is larger than `max_bytes` and adds to `before`."""
    size = len(after.to_bytes())
    if size > max_bytes and size > len(before.to_bytes()):
        raise DocumentFull(
            f"The document of this voice would take {size} bytes. Accepted: {max_bytes} bytes for all "
            "versions of a voice with their texts. Delete the voice, or take another name."
        )
    return after


def with_version(
    document: SpeakerDocument,
    version: Version,
    required: Sequence[Profile],
    *,
    key: str,
    life: int,
    now: int,
    max_versions: int,
    immutable: bool = False,
) -> SpeakerDocument:
    """Add a version under the next number.

    Args:
        life: the life of the name when the upload began. What a delete covers stays deleted.
        immutable: refuse a further version of a voice.

    Raises:
        VoiceExists, VoiceDeleted, Swept, QuotaExceeded: the version cannot be added.
    """
    if document.version(version.vuid) is not None:
        return document
    if life != document.marks.life or version.vuid in document.names_of_bytes:
        raise VoiceDeleted(f"Voice '{version.name}' was deleted while this version was being registered.")
    if immutable and document.live:
        raise VoiceExists(f"Voice '{document.newest.name}' already exists.")
    _refuse_swept(document, version.names_of_bytes)
    if len(document.versions) >= max_versions:
        raise QuotaExceeded(
            f"The voice has {len(document.versions)} versions. Accepted: {max_versions} versions of a voice."
        )
    marks = next_marks(document, now)
    numbered = version.having(number=marks.number, created_at=marks.created_at)
    added = document.having(
        key=key,
        marks=marks,
        versions=(*document.versions, numbered),
        aliases=document.aliases or {DEFAULT: _moved(document, version.vuid)},
    )
    return promoted(added, required)


def next_marks(document: SpeakerDocument, now: int) -> Marks:
    """Return the marks that the next version leaves. They tell its number and its date."""
    marks = document.marks
    return marks.having(number=marks.number + 1, created_at=max(now, marks.created_at + 1))


def with_artifact(
    document: SpeakerDocument,
    vuid: str,
    profile: str,
    record: ArtifactRecord,
    required: Sequence[Profile],
    *,
    extractor: Mapping[str, object],
    instead_of: str | None = None,
) -> SpeakerDocument:
    """Add an artifact, and move `default` if it may.

    Args:
        extractor: what made the artifact. The artifacts with the fingerprint of an encoder have it in common.
        instead_of: the object of an artifact whose bytes are lost. It leaves in the same change, unless
            somebody brought it and this one was made here.

    Raises:
        VersionGone, AlreadyMade, Swept: the artifact came too late.
    """
    version = _existing(document, vuid)
    made = version.artifacts.get(profile, ())
    if any(one.object == record.object for one in made):
        return document
    if record.build <= version.highest_build(profile, record.fingerprint):
        raise AlreadyMade(f"Build {record.build} for profile '{profile}' was made or canceled already.")
    _refuse_swept(document, {record.object})
    kept = tuple(one for one in made if one.object != instead_of or (one.brought and not record.brought))
    extractors = document.extractors
    if record.fingerprint == GIVEN_FINGERPRINT:  # it says nothing, so it is not what they have in common
        record = record.having(extractor=dict(extractor))
    else:
        extractors = {record.fingerprint: dict(extractor), **extractors}
    version = version.having(
        artifacts={**version.artifacts, profile: (*kept, record)},
        failures=_still_failed(version, profile, record),
    ).with_used_build(profile, record.fingerprint, record.build)
    return promoted(_with(document, version).having(extractors=extractors), required)


Failures = dict[str, tuple[FailureRecord, ...]]


def _still_failed(version: Version, profile: str, made: ArtifactRecord) -> Failures:
    """Return the failures of a version that an artifact does not make up for.

    One that was made ahead of a promotion is not served yet, so the current encoder's failure stays. A
    candidate's failure stays as well, until the candidate has made an artifact.
    """
    kept = tuple(
        one
        for one in version.failures.get(profile, ())
        if one.fingerprint != made.fingerprint and (made.ahead or one.ahead)
    )
    return _having_failed(version, profile, kept)


def _having_failed(version: Version, profile: str, failures: tuple[FailureRecord, ...]) -> Failures:
    others = {name: failed for name, failed in version.failures.items() if name != profile}
    return {**others, profile: failures} if failures else others


def _also_failed(version: Version, profile: str, failure: FailureRecord) -> Failures:
    """Add a failure in place of the one of the same encoder. Those of encoders of long ago go."""
    others = [one for one in version.failures.get(profile, ()) if one.fingerprint != failure.fingerprint]
    alike = [one for one in others if one.ahead == failure.ahead]
    kept = [one for one in others if one.ahead != failure.ahead or one in alike[1 - KEPT_FAILURES :]]
    return _having_failed(version, profile, (*kept, failure))


def without_artifact(document: SpeakerDocument, vuid: str, profile: str, lost: str) -> SpeakerDocument:
    """Record that the bytes of an artifact are lost. Its build stays used.

    Raises `Conflict` for an artifact that somebody brought: no encoder of ours can make it again.
    """
    version = _existing(document, vuid)
    made = version.artifacts.get(profile, ())
    if any(one.object == lost and one.brought for one in made):
        raise Conflict(f"The artifact of version {version.number} for profile '{profile}' was brought.")
    kept = tuple(one for one in made if one.object != lost)
    return document if kept == made else _with(document, _holding(version, profile, kept))


def without_old_artifacts(
    document: SpeakerDocument, kept_fingerprints: Mapping[str, Collection[str]]
) -> SpeakerDocument:
    """Drop the artifacts that no fingerprint in use made. Brought ones stay, and the last good ones until
    there is one of a fingerprint in use.

    Args:
        kept_fingerprints: for each profile the current fingerprint and the one before. A profile that is not
            among them keeps everything.
    """
    after = document
    for version in document.versions:
        for profile, made in version.artifacts.items():
            kept_for = kept_fingerprints.get(profile, {one.fingerprint for one in made})
            kept = tuple(one for one in made if one.brought or one.fingerprint in kept_for)
            if kept != made and any(one.fingerprint in kept_for and not one.ahead for one in kept):
                after = _with(after, _holding(_existing(after, version.vuid), profile, kept))
    return after


def without_ahead(document: SpeakerDocument, current_fingerprints: Mapping[str, str]) -> SpeakerDocument:
    """Serve what was made ahead of promotions that have come since, and tell of what failed ahead of them.

    What a worker made with a former encoder, after another one was promoted, stays out of service: `default`
    would move to it, away from a version that the current encoder has made already.

    Args:
        current_fingerprints: the current fingerprint of each profile.
    """
    versions = tuple(_without_ahead(version, current_fingerprints) for version in document.versions)
    return document if versions == document.versions else document.having(versions=versions)


def _without_ahead(version: Version, current_fingerprints: Mapping[str, str]) -> Version:
    def came(profile: str, one: ArtifactRecord | FailureRecord) -> bool:
        return one.ahead and one.fingerprint == current_fingerprints.get(profile)

    artifacts = {
        profile: tuple(one.having(ahead=False) if came(profile, one) else one for one in made)
        for profile, made in version.artifacts.items()
    }
    failures = {
        profile: tuple(one.having(ahead=False) if came(profile, one) else one for one in failed)
        for profile, failed in version.failures.items()
    }
    if (artifacts, failures) == (version.artifacts, version.failures):
        return version
    return version.having(artifacts=artifacts, failures=failures)


def with_failure(
    document: SpeakerDocument,
    vuid: str,
    profile: str,
    failure: FailureRecord,
    required: Sequence[Profile],
) -> SpeakerDocument:
    """Record why an extraction was given up. A cancel uses up its build, which can then not come later.

    Raises `VersionGone` or `AlreadyMade`.
    """
    version = _existing(document, vuid)
    if failure in version.failures.get(profile, ()):
        return document
    if failure.build <= version.highest_build(profile, failure.fingerprint):
        raise AlreadyMade(f"Build {failure.build} for profile '{profile}' was made or canceled already.")
    if failure.code == CANCELED:
        version = version.with_used_build(profile, failure.fingerprint, failure.build)
    if version.artifact(profile, failure.fingerprint) is None:
        version = version.having(failures=_also_failed(version, profile, failure))
    after = _with(document, version)
    return document if after == document else promoted(after, required)


def with_alias(
    document: SpeakerDocument, alias: str, vuid: str, required: Sequence[Profile]
) -> SpeakerDocument:
    """Point an alias to a version by hand.

    Raises:
        VersionNotFound: the version was deleted.
        ArtifactFailed: the version serves no artifact for a required profile, because its extraction failed.
        QuotaExceeded: the voice has as many aliases as are accepted.
    """
    version = document.version(vuid)
    if version is None:
        raise VersionNotFound("The version that the alias shall point to was deleted.", param="version")
    present = document.aliases.get(alias)
    if present is not None and present.by_hand and present.vuid == vuid:
        return document
    _refuse_failed(version, alias, required)
    if present is None and len(document.aliases) >= MAX_ALIASES:
        raise QuotaExceeded(
            f"The voice has {len(document.aliases)} aliases. Accepted: {MAX_ALIASES} aliases of a voice. "
            "Remove one that is not needed any more.",
            param="alias",
        )
    moved = _moved(document, vuid).having(by_hand=True)
    return document.having(aliases={**document.aliases, alias: moved})


def _refuse_failed(version: Version, alias: str, required: Sequence[Profile]) -> None:
    """Raise `ArtifactFailed` if engines that ask for an alias would find that an extraction has failed."""
    unserved = [one.name for one in required if one.name not in version.served]
    names = [name for name in unserved if version.failure(name) is not None]
    if names:
        raise ArtifactFailed(
            f"Alias '{alias}' was not moved: the extraction of version {version.number} of voice "
            f"'{version.name}' for {', '.join(names)} failed or was canceled. Accepted: a version that has "
            "not failed for any required profile. Extract it again with force first.",
            param="version",
        )


def without_alias(document: SpeakerDocument, alias: str, required: Sequence[Profile]) -> SpeakerDocument:
    """Take a move by hand back. `default` then moves by itself again; any other alias is gone.

    Raises `AliasNotFound`.
    """
    present = document.aliases.get(alias)
    if present is None:
        raise AliasNotFound(f"The voice has no alias '{alias}'.", param="ref")
    if alias == DEFAULT:
        moved = present.having(by_hand=False, moved=document.revision + 1)
        taken_back = {**document.aliases, DEFAULT: moved}
        return promoted(document.having(aliases=taken_back), required) if present.by_hand else document
    return document.having(aliases={name: one for name, one in document.aliases.items() if name != alias})


def edited(document: SpeakerDocument, about: About) -> SpeakerDocument:
    """Replace what people say about the voice."""
    return document if about == document.about else document.having(about=about)


def deleted(document: SpeakerDocument, *, now: int) -> SpeakerDocument:
    """End the present life. `life` rises also if nothing is live, so that an upload on its way is refused."""
    ended = Life(
        life=document.marks.life,
        deleted_at=now,
        versions=document.versions,
        aliases=document.aliases,
        about=document.about,
    )
    return document.having(
        marks=document.marks.having(life=document.marks.life + 1),
        versions=(),
        aliases={},
        about=About(),
        dead=(*document.dead, ended) if document.live else document.dead,
    )


def without_version(document: SpeakerDocument, vuid: str, *, now: int) -> SpeakerDocument:
    """Delete one version. The last one takes the voice along.

    Raises `VersionNotFound`, or `Conflict` if an alias points to the version and it is not the last.
    """
    version = document.version(vuid)
    if version is None:
        raise VersionNotFound("The version was deleted already.", param="ref")
    if len(document.versions) == 1:
        return deleted(document, now=now)
    pointing = sorted(name for name, alias in document.aliases.items() if alias.vuid == vuid)
    if pointing:
        raise Conflict(
            f"Version {version.number} is in use: {', '.join(pointing)} points to it. "
            "Accepted: a version that no alias points to. Move the alias first."
        )
    ended = Life(life=document.marks.life, deleted_at=now, whole=False, versions=(version,))
    kept = tuple(one for one in document.versions if one.vuid != vuid)
    return document.having(versions=kept, dead=(*document.dead, ended))


def undeleted(document: SpeakerDocument) -> SpeakerDocument:
    """Bring the last deleted voice back. `life` does not fall, so uploads of that time stay refused.

    Raises `VoiceExists` if the name was registered again, `VoiceNotFound` if nothing is left to bring back.
    """
    if document.live:
        raise VoiceExists(f"Voice '{document.newest.name}' was registered again since it was deleted.")
    last = document.last_deleted
    if last is None:
        raise VoiceNotFound("No deleted voice of this name is left to bring back.")
    aliases = {name: alias.having(moved=document.revision + 1) for name, alias in last.aliases.items()}
    return document.having(
        versions=last.versions,
        aliases=aliases,
        about=last.about,
        dead=tuple(one for one in document.dead if one is not last),
    )


def without_lives(document: SpeakerDocument, *, deleted_before: int) -> SpeakerDocument:
    """Forget what was deleted before this moment. With the last of it, the voice is erased."""
    kept = tuple(life for life in document.dead if life.deleted_at >= deleted_before)
    if kept == document.dead:
        return document
    return document.having(dead=kept) if kept or document.live else erased(document)


def erased(document: SpeakerDocument) -> SpeakerDocument:
    """Forget everything but marks, collected ids and change ids. `life` rises, so late uploads are refused.

    Members of newer releases are forgotten too, because they may hold what a person said.
    """
    marks = document.marks
    return SpeakerDocument(
        revision=document.revision,
        changes=document.changes,
        marks=Marks(number=marks.number, created_at=marks.created_at, life=marks.life + 1),
        swept=document.swept,
    )


def with_swept(
    document: SpeakerDocument, ids: Collection[str], *, gone: Collection[str], now: int
) -> SpeakerDocument:
    """Fence ids whose bytes are about to be deleted: no later change may name them.

    Ids that the document names are not fenced, whatever the caller saw.

    Args:
        gone: fenced ids whose bytes were seen to be gone. They leave once they are older than 30 days.
    """
    fenced = dict.fromkeys(sorted(set(ids) - document.names_of_bytes), now)
    kept = {
        one: since
        for one, since in document.swept.items()
        if one not in gone or now - since <= KEPT_SWEPT_SECONDS
    }
    swept = {**fenced, **kept}
    return document if swept == document.swept else document.having(swept=swept)


def _existing(document: SpeakerDocument, vuid: str) -> Version:
    version = document.version(vuid)
    if version is None:
        raise VersionGone("The version was deleted while something was made from it.")
    return version


def _refuse_swept(document: SpeakerDocument, ids: Collection[str]) -> None:
    if not document.swept.keys().isdisjoint(ids):
        raise Swept("The upload took so long that its bytes were collected as garbage. Send it again.")


def _moved(document: SpeakerDocument, vuid: str) -> Alias:
    return Alias(vuid=vuid, moved=document.revision + 1)


def _with(document: SpeakerDocument, version: Version) -> SpeakerDocument:
    """Return the document with another state of one of its versions."""
    versions = tuple(version if one.vuid == version.vuid else one for one in document.versions)
    return document.having(versions=versions)


def _holding(version: Version, profile: str, made: tuple[ArtifactRecord, ...]) -> Version:
    """Return the version with these artifacts for a profile."""
    others = {name: of_profile for name, of_profile in version.artifacts.items() if name != profile}
    return version.having(artifacts={**others, profile: made} if made else others)
