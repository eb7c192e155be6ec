"""Makes a folder equal to a registry for one profile, and reports the outcome for each voice."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from speaker_registry.client import RegistryClient
from speaker_registry.errors import InvalidRequest, ProfileUnknown, SpeakerRegistryError
from speaker_registry.exchange import OnPause
from speaker_registry.manifests import ManifestPage
from speaker_registry.moving.faults import Pauses, as_unavailable, concerns_one_voice
from speaker_registry.schemas import Profile, Voice
from speaker_registry.syncing.custom_voices import CustomVoices
from speaker_registry.syncing.folder import FileName, Purpose, SyncedFolder, check_creation_time, hash_of
from speaker_registry.syncing.samples import SpeakerSamples
from speaker_registry.syncing.wanted import GONE, Wanted

State = Literal["written", "unchanged", "kept", "missing"]


class Format(Protocol):
    """The content of the files of a folder."""

    @property
    def index_name(self) -> str | None: ...
    def wanted(self, voices: Sequence[Voice]) -> Iterable[Wanted]: ...
    def fetch(self, wanted: Wanted) -> bytes: ...
    def index(self, files: Sequence[FileName], read: Callable[[FileName], bytes]) -> bytes | None: ...
    def without_removed(self, index: bytes, is_there: Callable[[str], bool]) -> bytes | None: ...


_FORMATS: dict[str, type[CustomVoices] | type[SpeakerSamples]] = {
    "custom-voice-dir": CustomVoices,
    "speaker-samples": SpeakerSamples,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome for one voice."""

    name: str
    version: int
    """Number of the version that belongs in the folder or server."""
    state: State
    """`written` and `unchanged`: the folder or server has this version. `kept`: it still has a former
    version. `missing`: it has no version of this voice.
    """
    reason: str | None = None
    """Tells why the folder or server does not have this version."""
    untrained: bool = False
    """True if what belongs in the folder was made with random weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcomes for all voices."""

    outcomes: tuple[Outcome, ...]
    removed: int
    """Number of files, or of voices of a server, that were removed."""
    fault: SpeakerRegistryError | None = None
    """The last error because of which something was left to the next run, such as an upload without an
    answer. None if there was none.
    """

    def count(self, state: State) -> int:
        return sum(outcome.state == state for outcome in self.outcomes)

    @property
    def is_changed(self) -> bool:
        """True if something was written or removed."""
        return self.removed > 0 or self.count("written") > 0


class Synchronization:
    """Keeps a folder equal to the namespace of a client's API key.

    Args:
        form: One of `syncing.FORMATS`.
        on_pause: Called before each pause that the registry asks for.
    """

    def __init__(
        self,
        client: RegistryClient,
        path: Path,
        *,
        profile: str,
        form: str,
        on_pause: OnPause = lambda *_: None,
    ) -> None:
        self._client, self._path, self._profile, self._form = client, path, profile, form
        self._pauses = Pauses(on_pause=on_pause)
        self._opened: tuple[SyncedFolder, Format] | None = None
        self._fault: SpeakerRegistryError | None = None
        """The `fault` of the report on this run."""
        self._registry: str | None = None
        """Identity of the registry that the folder is kept equal to, or None as long as no page tells it."""

    def run(self) -> Report:
        """Make the folder equal to the registry as it is now.

        The files of a deleted voice are removed. A voice whose artifact is not ready, or cannot be read,
        keeps the file that the folder has of it. So does a voice for which the registry answers with an
        internal error (500).

        Raises:
            InvalidRequest: The folder has files of others, or was made for something else. Nothing was
                touched. Or no reader of this format reads the voices of this profile.
            ProfileUnknown: There is no such profile.
            SpeakerRegistryError: The registry cannot be reached or refuses the API key, or another one
                answers. The files of the folder are still there.
            OSError: The folder cannot be written to. Its files are still there.
        """
        self._fault = None
        folder, form = self._opened = self._opened or self._open()
        with folder.claimed():
            voices = self._pauses.retry(lambda: list(self._client.list(profile=self._profile)))
            wanted = list(self._pauses.retry(lambda: list(form.wanted(voices))))
            self._look_at_registry()  # raises if a different registry answers now
            # Deleted voices are removed first, so that no later failure can keep them in the folder.
            removed = folder.remove_others({hash_of(one.voice.id) for one in wanted}, form.without_removed)
            settled = [self._sync_voice(folder, form, one) for one in wanted]
            files = [name for name, _ in settled if name is not None]
            removed += folder.publish(files, form.index(files, folder.read))
        outcomes = tuple(outcome for _, outcome in settled if outcome is not None)
        return Report(outcomes=outcomes, removed=removed, fault=self._fault)

    def _open(self) -> tuple[SyncedFolder, Format]:
        profile = self._find_profile()
        kind = _FORMATS[self._form]
        if profile.model_type not in kind.model_types:
            raise InvalidRequest(
                f"vLLM-Omni reads no voices of profile {profile.id!a} (model type {profile.model_type!a}) "
                f"from a folder of the format {self._form}; accepted: profiles of the model types "
                f"{', '.join(sorted(kind.model_types))}"
            )
        page = self._look_at_registry()
        purpose = Purpose(
            registry=self._client.url,
            registry_id=page.registry,
            namespace=page.namespace,
            profile=profile.id,
            format=self._form,
        )
        form: Format = kind(self._client, profile.id, profile.model_type)
        return SyncedFolder(self._path, purpose, form.index_name), form

    def _look_at_registry(self) -> ManifestPage:
        """Read as little of the manifest as tells which registry answers, and for which namespace.

        Raises:
            Unavailable: A different registry answers than the last time.
        """
        page = self._pauses.retry(
            lambda: self._client.manifest_page(self._profile, limit=1, registry=self._registry)
        )
        self._registry = page.registry
        return page

    def _find_profile(self) -> Profile:
        profiles = self._pauses.retry(lambda: {one.id: one for one in self._client.profiles()})
        if self._profile not in profiles:
            raise ProfileUnknown(
                f"there is no profile {self._profile[:80]!a}; accepted: {', '.join(sorted(profiles))}"
            )
        return profiles[self._profile]

    def _sync_voice(
        self, folder: SyncedFolder, form: Format, wanted: Wanted
    ) -> tuple[FileName | None, Outcome | None]:
        """Return the file of a voice and the outcome. Both are None if the voice was deleted meanwhile."""
        voice = hash_of(wanted.voice.id)
        name = None if wanted.missing else folder.intact(voice, wanted.created_at, wanted.sha256)
        if name is not None:
            return name, _outcome(wanted, "unchanged")
        try:
            data = self._fetch(form, wanted)
        except SpeakerRegistryError as error:
            if not concerns_one_voice(error):
                raise
            if error.code in GONE:
                return None, None
            self._fault = as_unavailable(error) or self._fault
            name = self._kept(folder, wanted)
            return name, _outcome(wanted, "kept" if name else "missing", error.message)
        return folder.add(voice, wanted.created_at, data), _outcome(wanted, "written")

    def _kept(self, folder: SyncedFolder, wanted: Wanted) -> FileName | None:
        """Return the file to keep of a voice that cannot be fetched: that of its version, or else of another
        one. The newest may have been rolled back, and one that was deleted must not stay.
        """
        voice = hash_of(wanted.voice.id)
        own = folder.intact(voice, wanted.created_at, None)
        others = [] if own is not None else list(folder.newest_first(voice))
        if not others:
            return own
        there = self._creation_times(wanted.voice.id)
        return next((one for one in others if there is None or one.created_at in there), None)

    def _creation_times(self, voice_id: str) -> set[int] | None:
        """Return when the versions of a voice were created, or None if the registry cannot read the voice."""
        try:
            return self._pauses.retry(lambda: {one.created_at for one in self._client.versions(voice_id)})
        except SpeakerRegistryError as error:
            if not concerns_one_voice(error):
                raise
            return set() if error.code in GONE else None

    def _fetch(self, form: Format, wanted: Wanted) -> bytes:
        if wanted.missing:
            raise InvalidRequest(wanted.missing)
        # `SyncedFolder.add` checks it as well, but after the transfer, and its error would end the sync.
        check_creation_time(wanted.created_at)
        return self._pauses.retry(partial(form.fetch, wanted))


def _outcome(wanted: Wanted, state: State, reason: str | None = None) -> Outcome:
    return Outcome(
        name=wanted.voice.name,
        version=wanted.version,
        state=state,
        reason=reason,
        untrained=wanted.untrained,
    )
