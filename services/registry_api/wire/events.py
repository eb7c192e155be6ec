"""Renders events of the view for callers: their types, their fields, and their form on the wire."""

from collections.abc import Callable, Set
from typing import Any

from services.registry_api.serving.event_stream import Event
from services.shared.model.speaker import SpeakerId
from speaker_registry.artifact import canonical_json
from speaker_registry.names import VoiceId
from speaker_registry.schemas import RegistryEvent

_SHOWN = {
    "version.created": "version.created",
    "versions.removed": "versions.removed",
    "voice.deleted": "voice.deleted",
    "alias.updated": "alias.updated",
    "artifact.ready": "artifact.ready",
    "artifact.failed": "artifact.failed",
    "artifact.void": "artifact.lost",
    "job": "job.updated",
    "profile.updated": "profile.updated",
    "profile.promoted": "profile.promoted",
}
"""Maps events of the view to the names that callers see. Other events concern no caller."""
TYPES = tuple(sorted(_SHOWN.values()))
JOB_UPDATED = "job.updated"
RESET = "reset"


def shown_type(event: Event) -> str | None:
    """Return the type of an event as callers see it, or None if the event does not concern callers."""
    return _SHOWN.get(event["what"])


def filter_of(
    namespace: str, types: Set[str], speaker: str | None, profile: str | None
) -> Callable[[Event], bool]:
    """Return a function that tells whether a caller wants an event and may see it.

    Args:
        types: the types that are wanted.
        speaker: only events about this speaker, and events that concern all speakers.
        profile: only events about this profile, and events that concern all profiles.
    """
    own = f"{namespace}/"

    def wants(event: Event) -> bool:
        about: str = event["speaker"]
        return (
            shown_type(event) in types
            and (not about or about.startswith(own))
            and (not about or speaker in {None, about})
            and profile in {None, event.get("profile", profile)}
        )

    return wants


def render(event: Event, position: object) -> bytes:
    """Render an event for the wire. A client that sends `position` later gets the events after this one."""
    kind = shown_type(event)
    assert kind is not None
    version_id, about = event.get("version_id"), event["speaker"]
    slug = SpeakerId.parse(about).slug if about else None
    voice_id = event.get("first_id", version_id)  # the id of any version also finds its voice
    shown = RegistryEvent(
        id=str(position),
        type=kind,
        at=float(event["at"]),
        voice_slug=slug,
        voice_id=str(VoiceId(voice_id, slug)) if voice_id and slug else None,
        version_id=version_id,
        version=int(event["version"]) if "version" in event else None,
        alias=event.get("alias"),
        profile=event.get("profile"),
        fingerprint=event.get("fingerprint"),
        former_fingerprint=event.get("former_fingerprint"),
        job_id=event.get("job"),
        state=event.get("state"),
    )
    return _frame(kind, str(position), shown.model_dump(mode="json", exclude_none=True))


def render_reset(position: object) -> bytes:
    """Render the event that tells a client to read its data again, because it may have missed events."""
    return _frame(RESET, str(position), {"object": "event", "id": str(position), "type": RESET})


def render_begin(position: object, retry_milliseconds: int) -> bytes:
    """Render the beginning of a stream, which is no event and tells the client its position in the stream."""
    return f"retry: {retry_milliseconds}\nid: {position}\n\n".encode()


HEARTBEAT = b":\n\n"
"""A comment that is sent so that proxies and clients see that the connection lives."""


def _frame(kind: str, position: str, data: dict[str, Any]) -> bytes:
    return f"id: {position}\nevent: {kind}\ndata: {canonical_json(data)}\n\n".encode()
