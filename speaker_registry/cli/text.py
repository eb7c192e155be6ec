"""The answers of the registry as text for people."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from speaker_registry.cli.command import MaybeUntrained, Output, when
from speaker_registry.terminal import field_lines, printable, table

if TYPE_CHECKING:
    from speaker_registry import (
        ArtifactDescriptor,
        ArtifactStatus,
        File,
        Profile,
        Readiness,
        Registration,
        Voice,
        VoiceVersion,
    )


def voice_text(voice: "Voice") -> str:
    aliases = ", ".join(f"{alias}={number}" for alias, number in sorted(voice.aliases.items()))
    head = field_lines(
        [
            ("voice", voice.name),
            ("id", voice.id),
            ("version", f"{voice.version} (newest {voice.latest}, {voice.versions} in all)"),
            ("aliases", aliases or None),
            ("state", marked(voice.state, voice)),
            ("created", when(voice.created_at)),
            ("description", voice.description),
            ("labels", ", ".join(f"{key}={value}" for key, value in voice.labels.items()) or None),
            ("pinned", "yes" if voice.pinned else None),
            ("promotion", voice.promotion),
            ("held back", voice.held_back),
        ]
    )
    return f"{head}\n\n{_artifact_table(voice.artifacts)}"


def extraction_text(made: "ArtifactDescriptor") -> str:
    what = f"{printable(made.voice)}@{made.version} is {made.state} for {printable(made.profile)}"
    reason = f" ({printable(made.reason)})" if made.reason else ""
    return what + reason + (f": {printable(made.job_id)}" if made.job_id else "")


def version_text(version: "VoiceVersion") -> str:
    audio = version.audio
    head = field_lines(
        [
            ("voice", version.voice),
            ("version", version.version),
            ("id", version.id),
            ("state", marked(version.state, version)),
            ("created", when(version.created_at)),
            ("source", version.source),
            ("clip", f"{audio.seconds:.2f} s, {audio.sample_rate} Hz, {audio.mime_type}" if audio else None),
            ("consent", version.consent),
            ("ref_text", version.ref_text),
            ("description", version.description),
            ("held back", version.held_back),
        ]
    )
    return f"{head}\n\n{_artifact_table(version.artifacts)}"


def _artifact_table(artifacts: Iterable["ArtifactStatus"]) -> str:
    rows = [
        (
            a.profile,
            marked(f"{a.state}, other encoder" if a.current is False else a.state, a),
            a.digest or "-",
            a.error or a.reason or "-",
        )
        for a in artifacts
    ]
    return table(("PROFILE", "STATE", "DIGEST", "REASON"), rows)


def marked(state: str, made: MaybeUntrained) -> str:
    """Return a state, followed by a remark if the weights are untrained."""
    return f"{state}, untrained" if made.untrained else state


def readiness_text(ready: "Readiness") -> str:
    return f"{printable(ready.reference)} is {marked(ready.state, ready)}\n{_artifact_table(ready.artifacts)}"


def weights_of(profile: "Profile") -> str:
    if profile.untrained:
        return "untrained"
    return "custom weights" if profile.custom_weights else profile.model


def remarks_on(found: Iterable["Profile"]) -> Iterator[str]:
    """Return the remarks about profiles that fit into no column of the table."""
    for profile in found:
        for remark in filter(None, (profile.licence_notes, profile.not_extractable, profile.problem)):
            yield printable(f"{profile.id}: {remark}")
        for failed in profile.failed_proofs:
            yield printable(f"{profile.id}: not served by {failed.worker} ({failed.device}). {failed.reason}")


def registered_text(registered: "Registration") -> str:
    reference = printable(registered.reference)
    reason = f" ({printable(registered.reason)})" if registered.reason else ""
    if not registered.created:
        return f"{reference} already exists with the same content{reason}"
    jobs = printable(", ".join(sorted(registered.jobs))) or "nothing"
    held_back = f"\n{printable(registered.held_back)}" if registered.held_back else ""
    return f"registered {reference}; to extract: {jobs}{reason}{held_back}"


def fetched(path: str, file: "File") -> Output:
    manifest = file.artifact.manifest
    document = {
        "path": path,
        "digest": file.artifact.digest,
        "size": len(file.data),
        "voice": manifest.voice,
        "version": manifest.version,
        "profile": manifest.profile,
        "fingerprint": manifest.fingerprint,
        "untrained": manifest.untrained,
        "custom_weights": manifest.custom_weights,
        "computed_on": manifest.computed_on.model_dump(exclude_none=True) if manifest.computed_on else None,
    }
    what = f"{manifest.voice}@{manifest.version} for {manifest.profile}"
    where = f", computed on {manifest.computed_on}" if manifest.computed_on else ""
    return Output(document, printable(f"{what}: {len(file.data)} bytes in {path}{where}"))


def ready_profiles(voice: "Voice") -> str:
    return ", ".join(status.profile for status in voice.artifacts if status.state == "ready") or "-"


def reason_of(voice: "Voice") -> str:
    """Return the reason for the state of a voice, or a dash if there is none."""
    reasons = (status.error or status.reason for status in voice.artifacts if status.state == voice.state)
    return next(filter(None, reasons), "-")
