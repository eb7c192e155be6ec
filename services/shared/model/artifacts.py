"""Changes that put the results of extractions, artifacts and failures, into a speaker's document.

Pure, like all `changes`. `status` says which artifact is served.
"""

from collections.abc import Collection, Mapping, Sequence

from services.shared.model.document import SpeakerDocument
from services.shared.model.promotion import promoted
from services.shared.model.records import GIVEN_FINGERPRINT, ArtifactRecord, FailureRecord, Version
from services.shared.model.swept import refuse_swept
from speaker_registry.engine import Profile
from speaker_registry.errors import Conflict

KEPT_FAILURES = 2
"""A version keeps the failures of this many encoders for a profile, and of as many candidates."""
CANCELED = "canceled"
"""The code of the failure that records that a caller canceled an extraction."""


class VersionGone(Conflict):
    """The version was deleted while something was made from it."""


class AlreadyMade(Conflict):
    """The build's number is used already: another attempt made the artifact, or a caller canceled it."""


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
    """Add an artifact, and move `default` if `promotion` allows it.

    Args:
        extractor: the inputs of the fingerprint. All artifacts with the fingerprint of an encoder share them.
        instead_of: the object of an artifact whose bytes are lost. The same change removes it, unless it was
            uploaded and the new one was made by a worker.

    Raises:
        VersionGone, AlreadyMade, Swept: the artifact came too late.
    """
    version = _existing(document, vuid)
    made = version.artifacts.get(profile, ())
    if any(one.object == record.object for one in made):
        return document
    if record.build <= version.highest_build(profile, record.fingerprint):
        raise AlreadyMade(f"Build {record.build} for profile '{profile}' was made or canceled already.")
    refuse_swept(document, {record.object})
    kept = tuple(one for one in made if one.object != instead_of or (one.brought and not record.brought))
    extractors = document.extractors
    if record.fingerprint == GIVEN_FINGERPRINT:  # such artifacts have nothing in common
        record = record.having(extractor=dict(extractor))
    else:
        extractors = {record.fingerprint: dict(extractor), **extractors}
    version = version.having(
        artifacts={**version.artifacts, profile: (*kept, record)},
        failures=_still_failed(version, profile, record),
    ).with_used_build(profile, record.fingerprint, record.build)
    return promoted(_with(document, version).having(extractors=extractors), required)


def without_old_artifacts(
    document: SpeakerDocument, kept_fingerprints: Mapping[str, Collection[str]]
) -> SpeakerDocument:
    """Drop the artifacts that were made with fingerprints no longer in use. Uploaded artifacts stay. The last
    good artifact stays until there is one with a fingerprint in use.

    Args:
        kept_fingerprints: for each profile the current fingerprint and the one before. A profile that is
            missing here keeps all its artifacts.
    """
    after = document
    for version in document.versions:
        for profile, made in version.artifacts.items():
            kept_for = kept_fingerprints.get(profile, {one.fingerprint for one in made})
            kept = tuple(one for one in made if one.brought or one.fingerprint in kept_for)
            if kept != made and any(one.fingerprint in kept_for and not one.ahead for one in kept):
                after = _with(after, _with_artifacts(_existing(after, version.vuid), profile, kept))
    return after


def without_ahead(document: SpeakerDocument, current_fingerprints: Mapping[str, str]) -> SpeakerDocument:
    """Serve artifacts, and report failures, of encoders that worked ahead of their promotion and are current
    now.

    An artifact that a worker made with a former encoder, after another one was promoted, is not served.
    Otherwise `default` could move to it, away from a version whose artifact the current encoder has already
    made.

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
    """Record why an extraction was given up. A cancellation uses up its build, so that the artifact cannot be
    added later.

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


Failures = dict[str, tuple[FailureRecord, ...]]


def _still_failed(version: Version, profile: str, made: ArtifactRecord) -> Failures:
    """Return the failures of a version that remain after this artifact was made.

    An artifact that was made ahead of a promotion is not served yet, so the current encoder's failure stays.
    A candidate's failure stays as well, until the candidate has made an artifact.
    """
    kept = tuple(
        one
        for one in version.failures.get(profile, ())
        if one.fingerprint != made.fingerprint and (made.ahead or one.ahead)
    )
    return _with_failures(version, profile, kept)


def _also_failed(version: Version, profile: str, failure: FailureRecord) -> Failures:
    """Add a failure, which replaces that of the same encoder. The failures of the oldest encoders are
    dropped.
    """
    others = [one for one in version.failures.get(profile, ()) if one.fingerprint != failure.fingerprint]
    alike = [one for one in others if one.ahead == failure.ahead]
    kept = [one for one in others if one.ahead != failure.ahead or one in alike[1 - KEPT_FAILURES :]]
    return _with_failures(version, profile, (*kept, failure))


def _with_failures(version: Version, profile: str, failures: tuple[FailureRecord, ...]) -> Failures:
    others = {name: failed for name, failed in version.failures.items() if name != profile}
    return {**others, profile: failures} if failures else others


def _existing(document: SpeakerDocument, vuid: str) -> Version:
    version = document.version(vuid)
    if version is None:
        raise VersionGone("The version was deleted while something was made from it.")
    return version


def _with(document: SpeakerDocument, version: Version) -> SpeakerDocument:
    """Return the document with one of its versions replaced."""
    versions = tuple(version if one.vuid == version.vuid else one for one in document.versions)
    return document.having(versions=versions)


def _with_artifacts(version: Version, profile: str, made: tuple[ArtifactRecord, ...]) -> Version:
    """Return the version with these artifacts for a profile."""
    others = {name: of_profile for name, of_profile in version.artifacts.items() if name != profile}
    return version.having(artifacts={**others, profile: made} if made else others)
