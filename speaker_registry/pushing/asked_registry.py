"""The registry, as a push asks it: which voices there are, what each is cloned from, and when it changed."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from speaker_registry.client import RegistryClient
from speaker_registry.errors import PayloadTooLarge, SpeakerRegistryError
from speaker_registry.exchange import OnPause
from speaker_registry.following import Following, is_deleted
from speaker_registry.manifests import ManifestEntry
from speaker_registry.moving.faults import Pauses, as_unavailable
from speaker_registry.pushing.names import Mark, digest
from speaker_registry.pushing.speech_server import MAX_CLIP_BYTES, Part
from speaker_registry.syncing.samples import SpeakerSamples

_MAX_PAUSES = 3
"""Maximum number of pauses that the registry may ask for, with a 503, before one answer about a voice."""
_Result = TypeVar("_Result")


class AskedRegistry:
    """Asks the registry about the voices of a profile.

    All methods raise `SpeakerRegistryError`. In an answer about one voice, an internal error (500) counts as
    no answer (`Unavailable`).
    """

    def __init__(self, client: RegistryClient, profile: str, on_pause: OnPause) -> None:
        self.url = client.url
        self._client, self._profile, self._pauses = client, profile, Pauses(on_pause=on_pause)
        self._following = Following(client, profile)

    @property
    def id(self) -> str:
        """Id of the registry that answered the last look."""
        return self._following.manifest.registry

    @property
    def mark(self) -> Mark:
        """The mark of the voices that are pushed from here."""
        return Mark.of(self.url, self._following.manifest.namespace, self._profile, self.id)

    @property
    def voices(self) -> Mapping[str, ManifestEntry]:
        """The voices by their ids, as they were at the last look."""
        return self._following.voices

    def look(self) -> None:
        """Ask which voices there are."""
        self._pauses.retry(self._following.look)

    def check_answers(self) -> None:
        """Raise unless the registry still answers questions that concern all voices."""
        self._ask(partial(self._client.manifest_page, self._profile, limit=1))

    def last_change(self, voice_id: str) -> float | None:
        """Return the Unix time of a voice's last change, by the clock of the registry's bucket."""
        changes = self._ask(lambda: list(self._client.history(voice_id, limit=1)))
        return float(changes[0].at) if changes else None

    def is_deleted(self, reference: str, version: str) -> bool:
        """Return whether a version was deleted, also if its number was given to another version since.

        Args:
            version: Digest of the id of the version.
        """
        return is_deleted(
            lambda: self._ask(partial(self._client.version, reference)),
            lambda found: digest(found) == version,
        )

    def source(self, entry: ManifestEntry) -> dict[str, Part]:
        """Return the form fields that a server clones a voice from: clip and transcript, or a speaker
        embedding.
        """
        if entry.source != "audio":
            samples = SpeakerSamples(self._client, self._profile, self._following.manifest.model_type)
            embedding = self._ask(partial(samples.embedding, entry.reference))
            return {"speaker_embedding": (None, json.dumps(embedding.tolist()))}
        clip = self._ask(partial(self._client.samples, entry.reference)).to_wav()
        if len(clip) > MAX_CLIP_BYTES:
            raise PayloadTooLarge(f"the clip has {len(clip)} bytes as WAV; accepted: up to {MAX_CLIP_BYTES}")
        text: dict[str, Part] = {"ref_text": (None, entry.ref_text)} if entry.ref_text else {}
        return {"audio_sample": ("clip.wav", clip, "audio/wav"), **text}

    def _ask(self, call: Callable[[], _Result]) -> _Result:
        try:
            return self._pauses.retry(call, max_unavailable=_MAX_PAUSES)
        except SpeakerRegistryError as error:
            if missing := as_unavailable(error):
                raise missing from error
            raise
