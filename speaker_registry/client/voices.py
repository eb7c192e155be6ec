"""Voices and their versions: registering, reading, editing and deleting them."""

from collections.abc import Iterator, Mapping
from typing import Literal

from numpy.typing import ArrayLike

from speaker_registry.calls import Registration, target_of
from speaker_registry.client.executor import PlanExecutor
from speaker_registry.paths import parse_target
from speaker_registry.schemas import PromotionPolicy, Voice, VoiceChange, VoiceVersion
from speaker_registry.session import Audio, Default, edited_members, read_upload
from speaker_registry.waiting import OnProgress, Readiness, wait_ready


class Voices(PlanExecutor):
    def register(
        self,
        name: str,
        audio: Audio | None = None,
        *,
        embedding: ArrayLike | None = None,
        consent: str,
        ref_text: str | None = None,
        description: str | None = None,
        idempotency_key: str | None = None,
        dedupe: bool = True,
        voice_id: str | None = None,
        only_new: bool = False,
    ) -> Registration:
        """Upload a clip, or a precomputed speaker embedding, as a new version of a voice.

        The registry then extracts the artifacts. Use `wait_ready` to wait for them.

        Args:
            name: Name of the voice. A voice is created if there is none with this name.
            audio: The clip, as a path, as bytes or as a file opened in binary mode.
            embedding: A speaker embedding (one row of finite numbers), instead of `audio`.
            consent: Tells who agreed to what, or is the id of a recorded consent.
            ref_text: Transcript of the clip, word for word.
            description: Free text about the voice.
            idempotency_key: 1 to 255 characters. Calls with the same key and arguments make one version, also
                when they come from several processes. By default each call has a key of its own.
            dedupe: If true, an upload that equals the newest version returns that version.
            voice_id: Id of the voice that gets the version. If that voice was deleted, no other voice of this
                name gets the version.
            only_new: If true, the upload is refused if a voice has this name already. An upload with the same
                `idempotency_key`, or with `dedupe` one that equals the newest version, returns that version
                instead.

        Raises:
            InvalidRequest: The name, the clip or another argument is not accepted. Subclasses such as
                `InvalidAudio` say more.
            VoiceDeleted: The voice with the id `voice_id` was deleted.
            PreconditionFailed: `only_new` is true, and a voice has this name.
        """
        upload = read_upload(audio, embedding, consent, ref_text, description)
        return self._run(
            self._calls.register(
                name,
                upload,
                idempotency_key=idempotency_key,
                dedupe=dedupe,
                voice_id=voice_id,
                only_new=only_new,
            )
        )

    def restore_version(
        self,
        name: str,
        number: int,
        audio: Audio | None = None,
        *,
        created_at: int,
        version_id: str | None = None,
        voice_id: str | None = None,
        only_new: bool = False,
        embedding: ArrayLike | None = None,
        consent: str,
        ref_text: str | None = None,
        description: str | None = None,
    ) -> Registration:
        """Register a version under a given number, creation time and id, as it was in another registry.

        This is for operators: the API key needs the scope `admin`. The versions of a voice are restored in
        their order. The same call again changes nothing.

        Args:
            name: Name of the voice. A voice is created if there is none with this name.
            number: Number of the version, greater than every number that the voice has ever had.
            audio: The clip, as a path, as bytes or as a file opened in binary mode.
            created_at: Creation time in Unix seconds, later than that of every version before, and not in the
                future.
            version_id: Id of the version. Without it, the registry gives the version one.
            voice_id: Id of the voice that gets the version. If that voice was deleted, no other voice of this
                name gets the version.
            only_new: If true, the version is refused if a voice has this name already, unless that voice has
                this very version.
            embedding: A speaker embedding (one row of finite numbers), instead of `audio`.
            consent: Tells who agreed to what, or is the id of a recorded consent.
            ref_text: Transcript of the clip, word for word.
            description: Free text about the voice.

        Raises:
            Conflict: The voice has had this number or time, or a later one, or another version with this
                number or id.
            VoiceDeleted: The voice with the id `voice_id` was deleted.
            PreconditionFailed: `only_new` is true, a voice has this name, and the voice lacks this version.
            InvalidRequest: The time is in the future, or an argument is not accepted.
            PermissionDenied: The API key lacks the scope `admin`.
        """
        upload = read_upload(audio, embedding, consent, ref_text, description)
        return self._run(
            self._calls.restore_version(
                name,
                number,
                upload,
                created_at=created_at,
                version_id=version_id,
                voice_id=voice_id,
                only_new=only_new,
            )
        )

    def wait_ready(
        self,
        speaker: str | Registration,
        profile: str | None = None,
        timeout: float = 600.0,
        on_progress: OnProgress | None = None,
    ) -> Readiness:
        """Wait until a version is ready for a profile, or for all required profiles.

        Args:
            speaker: What `register` returned, or a voice, such as `alice@3` or `alice@prod`. A bare `alice`
                means its default version, as in every other method.
            profile: The profile to wait for. Defaults to all required profiles.
            timeout: Maximum time to wait, in seconds.
            on_progress: Called with each `Readiness` received, including the last one.

        Raises:
            ArtifactFailed: An extraction failed. The message contains the reason.
            ArtifactNotReady: The version was not ready within `timeout` seconds.
        """
        return self._run(wait_ready(self._policy, target_of(speaker), profile, timeout, on_progress))

    def list(
        self,
        *,
        profile: str | None = None,
        state: str | None = None,
        q: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Voice]:
        """Iterate over the voices. Pages are requested as they are needed.

        Args:
            profile: Only voices that this profile can use, whether their artifacts are ready or not.
            state: Only voices in this state: `pending`, `processing`, `ready` or `failed`.
            q: Only voices whose name contains this text.
            labels: Only voices with all these labels.
            limit: Maximum number of voices.
        """
        return self._pages(self._calls.voices(profile, state, q, labels, limit))

    def get(self, name: str) -> Voice:
        """Get a voice by its name or id. Raises `NotFound` if there is none."""
        return self._run(self._calls.voice(name))

    def edit_voice(
        self,
        name: str,
        *,
        description: str | Literal[Default.KEEP] | None = Default.KEEP,
        labels: Mapping[str, str | None] | None = None,
        pinned: bool | None = None,
        promotion: PromotionPolicy | None = None,
        if_match: str | None = None,
    ) -> Voice:
        """Change the description, the labels, the pin or the promotion policy of a voice. Arguments that
        are not given change nothing.

        Args:
            name: Name or id of the voice.
            description: Free text about the voice. None removes it.
            labels: Labels to set. None as the value removes a label.
            pinned: True marks a voice that matters more than others, and False removes the mark.
            promotion: With `manual`, the alias `default` moves only by hand. With `on_ready`, it moves by
                itself to a newer version once that is ready, and at once if that is ready already.
            if_match: ETag of the voice. If it has changed, the edit is refused.

        Raises:
            InvalidRequest: The description or a label is not accepted. The message names the label.
            NotFound: There is no such voice.
            PreconditionFailed: The voice has changed.
        """
        members = edited_members(description, labels, pinned, promotion)
        return self._run(self._noticed(name, self._calls.edit_voice(name, members, if_match)))

    def versions(self, name: str, *, limit: int | None = None) -> Iterator[VoiceVersion]:
        """Iterate over the versions of a voice. Pages are requested as they are needed."""
        return self._pages(self._calls.versions(name, limit))

    def version(self, speaker: str, version: int | str | None = None) -> VoiceVersion:
        """Get one version, such as `alice@3` or `alice@prod`. A bare `alice` means its default version."""
        return self._run(self._calls.version(parse_target(speaker, version)))

    def history(self, name: str, *, limit: int | None = None) -> Iterator[VoiceChange]:
        """Iterate over the changes that people and API keys have made to a voice, newest first. Between them
        are the promotions of encoders that changed what the voice serves; these alone have a `profile`.

        The registry remembers the last 100 changes, also of a deleted voice that can still be undeleted.
        """
        return self._pages(self._calls.history(name, limit))

    def delete(self, name: str) -> None:
        """Delete a voice with all its versions. Raises `NotFound` if there is no such voice."""
        self._run(self._noticed(name, self._calls.delete(name)))

    def delete_version(self, voice: str, version: int, *, if_match: str | None = None) -> None:
        """Delete one version of a voice. Deleting the last version deletes the voice.

        Args:
            voice: Name or id of the voice.
            version: Number of the version.
            if_match: ETag of the version. If it has changed, nothing is deleted.

        Raises:
            NotFound: There is no such voice or version.
            Conflict: An alias points to the version. Move or remove the alias first.
        """
        self._run(self._noticed(voice, self._calls.delete_version(voice, version, if_match)))

    def undelete(self, name: str) -> Voice:
        """Undelete the voice that was deleted last under a name, by this name or by the voice's id, while its
        grace period lasts.

        The call is not retried if its answer is lost; `get` tells whether the voice is back.

        Raises:
            NotFound: Nothing is left to undelete.
            VoiceExists: The voice was restored already, or the name registered again.
            QuotaExceeded: The namespace has no room for the voice any more.
        """
        return self._run(self._noticed(name, self._calls.undelete(name)))
