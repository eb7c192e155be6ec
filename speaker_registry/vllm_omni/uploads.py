"""Keeps the uploaded voices of an API process of vLLM-Omni equal to the registry.

vLLM-Omni replaces a voice in place: a request that resolved the former clip may meet the cache entry of the
new version. So each version is registered as a voice of its own, `wren@3`, that never changes, and `pin` has
a request for `wren` mean one of them from its beginning to its end.
"""

import errno
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open

from speaker_registry.atomic_files import remove_abandoned_in, write_atomically
from speaker_registry.errors import SpeakerRegistryError, Unavailable
from speaker_registry.following import FindVersion, is_deleted
from speaker_registry.manifests import ManifestEntry
from speaker_registry.moving.faults import concerns_one_voice
from speaker_registry.names import key_of_name
from speaker_registry.vllm_omni.names import bare_name, versioned_name
from speaker_registry.vllm_omni.reasons import Reasons

log = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""A replaced version stays for this long, in seconds, for requests that have begun with it."""
_FILES = "registry-*.safetensors"
"""The names of the files of the registry's voices in the server's folder. The star stands for a digest."""
_DIGEST = "[0-9a-f]" * 32
"""The pattern of the digest. The names of uploads to the server itself may begin as those files do."""
_MARK = "registry_voice_id"
"""The entry in a file's header, and in vLLM-Omni's record of a voice, that marks a voice of the registry."""
_REGISTRY = "registry_identity"
"""The entry beside the mark that tells which registry the voice comes from."""
Info = dict[str, Any]
"""vLLM-Omni's record of an uploaded voice."""


class Server(Protocol):
    """The part of vLLM-Omni's `OmniOpenAIServingSpeech` that is needed here."""

    uploaded_speakers: MutableMapping[str, Info]
    uploaded_speakers_dir: Path
    _ref_audio_data_url_cache: MutableMapping[str, str]

    @classmethod
    def _speaker_metadata_from_header(cls, header: dict[str, str], file_path: str) -> Info: ...


class SpeechRequest(Protocol):
    voice: str | None
    ref_audio: Any


class UploadedVoices:
    """The registry's voices in one server.

    Args:
        sample: Returns the file of a version in the format of the server's folder, given a reference and
            further entries of its header.
        find_version: As `RegistryClient.version`.
        in_loop: Runs a function between two steps of the server's event loop, and returns when it has run.
    """

    def __init__(
        self,
        server: Server,
        sample: Callable[[str, Mapping[str, str]], bytes],
        find_version: FindVersion,
        in_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        self._server, self._sample, self._find_version = server, sample, find_version
        self._in_loop = in_loop
        self._current: dict[str, str] = {}
        """Maps the bare name of each voice to the versioned name of its default version."""
        self._leaving: dict[str, float] = {}
        """Versioned names that were replaced, and until when they stay."""
        self._reasons, self._unerased = Reasons(), Reasons()
        self._files: dict[str, Info] = {}
        """Paths of the files of the registry's voices that this process has met or written, and what they
        tell of themselves. Each is erased when nobody uses it, and stays here until that has succeeded.
        """
        self._adopt()

    def pin(self, request: SpeechRequest) -> None:
        """Make a request that names a voice of the registry use the version that is its default now.

        The name, or that of a version, may be in any spelling that the registry accepts. vLLM-Omni itself
        accepts only one of the two forms in which Unicode has accented letters.
        """
        if request.voice is None or request.ref_audio is not None:
            return
        typed = request.voice.strip()
        name = key_of_name(typed)
        if self._is_own(typed.lower()) or not self._has_of_registry(name):
            return
        versioned = self._current.get(name, name)
        # An upload to the server itself may have the name of the version. The bare name still means it.
        request.voice = versioned if self._has_of_registry(versioned) else name

    def own_names(self) -> set[str]:
        """Return the names of the voices that were uploaded to the server itself."""
        return {name for name, info in list(self._server.uploaded_speakers.items()) if _MARK not in info}

    def check_registry(self, registry: str) -> None:
        """Check that neither the server nor its folder has voices of another registry.

        A restarted server may meet another registry at the same address, which knows none of the voices in
        the folder. They would be taken for deleted ones.

        Args:
            registry: The identity of the registry that answers now.

        Raises:
            Unavailable: The server has voices of another registry. They stay as they are.
        """
        for info in list(self._files.values()):
            if _MARK in info and info.get(_REGISTRY) != registry:
                raise Unavailable(
                    f"this server has voices, such as {_name_in(info)[:80]!a}, of another registry than "
                    f"{registry[:80]!a}, which answers now; they stay, and no voice of it is taken. "
                    "Check where the address of the registry leads. If the registry was replaced on purpose, "
                    f"erase {_FILES} in {str(self._server.uploaded_speakers_dir)!a} and "
                    "restart this server"
                )

    def withdraw_others(self, voices: Mapping[str, ManifestEntry]) -> None:
        """Withdraw removed voices at once, even if another voice has the name now, and replaced versions when
        their grace period is over.
        """
        now = time.monotonic()
        versions = {versioned_name(one) for one in voices.values()} | set(self._current.values())
        for name, info in list(self._server.uploaded_speakers.items()):
            bare = name.rpartition("@")[0] or name
            is_over = name != bare and name not in versions and self._leaving.get(name, now) <= now
            if _MARK in info and (info[_MARK] not in voices or is_over):
                self._in_loop(partial(self._withdraw, bare, name))
        self._leaving = {name: until for name, until in self._leaving.items() if until > now}
        self._reasons.keep(voices)
        self._erase(self._files.keys() - {str(self._path_of(one)) for one in voices.values()})
        remove_abandoned_in(self._server.uploaded_speakers_dir, partial(fnmatch, pat=_FILES))

    def offer(self, entry: ManifestEntry, registry: str) -> None:
        """Make the server offer a voice. A clip that cannot be fetched is tried again the next time.

        Args:
            registry: The identity of the registry that the voice comes from, which has passed
                `check_registry`.

        Raises:
            SpeakerRegistryError: The registry cannot be reached. The server still offers what it had.
            OSError: The server's folder of samples cannot be written to.
        """
        if not self._is_offered(entry):
            self._register(entry, registry)

    def _is_offered(self, entry: ManifestEntry) -> bool:
        bare, versioned = bare_name(entry), versioned_name(entry)
        if self._current.get(bare) != versioned:
            return False
        offered = self._server.uploaded_speakers
        if bare not in offered or versioned not in offered:
            return False
        ours = filter(self._has_of_registry, (bare, versioned))
        # After the registry was restored from a backup, another version may have the number. Its file has
        # another path. And another process of the server, which is behind, may have erased the file.
        path = self._path_of(entry)
        return all(offered[name]["file_path"] == str(path) and path.exists() for name in ours)

    def _has_of_registry(self, name: str) -> bool:
        """Return whether the server has a voice of the registry under this name."""
        return _MARK in self._server.uploaded_speakers.get(name, ())

    def _is_own(self, name: str) -> bool:
        """Return whether a voice with this name was uploaded to the server itself."""
        return name in self._server.uploaded_speakers and not self._has_of_registry(name)

    def _adopt(self) -> None:
        """Take over the voices that a former process registered. vLLM-Omni has read them from the folder, and
        has kept only the last file of each name.
        """
        offered, folder = self._server.uploaded_speakers, self._server.uploaded_speakers_dir
        self._files |= {str(path): {} for path in folder.glob(_FILES.replace("*", _DIGEST))}
        hidden = self._hidden()
        ours = [(name, info) for name, info in [*offered.items(), *hidden] if _MARK in info]
        own = [(name, info) for name, info in hidden if _MARK not in info]
        offered.update([(name, info) for name, info in own if self._has_of_registry(name)])
        self._files |= {info["file_path"]: info for _, info in ours}
        for name, info in sorted(ours, key=lambda one: int(one[1].get("created_at", 0))):
            if self._is_own(name) or offered.get(name) is info:
                self._offer(name.rpartition("@")[0], name, info)

    def _hidden(self) -> list[tuple[str, Info]]:
        """Return the voices in the folder that vLLM-Omni has not kept, with their names: those of the
        registry, and uploads to the server itself.
        """
        hidden: list[tuple[str, Info]] = []
        files = self._server.uploaded_speakers_dir.glob("*.safetensors")
        for path in sorted({str(path) for path in files} - self._used()):
            info = self._server._speaker_metadata_from_header(_header_of(path), path)
            if path in self._files or _MARK not in info:
                hidden.append((_name_in(info), info))
        return hidden

    def _offer(self, bare: str, versioned: str, info: Info) -> None:
        """Offer a version, and erase the file of another version that had the same number."""
        former = set()
        for name in (versioned, bare):
            if self._is_own(name):
                log.warning("Voice %s was uploaded to this server and hides that of the registry", name)
                continue
            former.add(self._server.uploaded_speakers.get(name, info)["file_path"])
            self._server.uploaded_speakers[name] = info
            self._server._ref_audio_data_url_cache.pop(name, None)
        self._current[bare] = versioned
        self._files[info["file_path"]] = info
        self._erase(former)

    def _register(self, entry: ManifestEntry, registry: str) -> None:
        bare, versioned = bare_name(entry), versioned_name(entry)
        try:
            info = self._info(versioned, entry, registry)
        except (SpeakerRegistryError, OSError) as error:
            self._withdraw_deleted(bare)
            if isinstance(error, OSError) or not concerns_one_voice(error):
                raise
            if self._reasons.is_news(entry.voice_id, error.message):
                log.warning("Voice %s cannot be offered now: %s", entry.voice, error.message)
            return
        self._reasons.drop(entry.voice_id)
        self._leaving[self._current.get(bare, versioned)] = time.monotonic() + GRACE_SECONDS
        self._in_loop(partial(self._offer, bare, versioned, info))

    def _withdraw_deleted(self, bare: str) -> None:
        """Withdraw the version that a bare name means if the registry has deleted or lost it. While the
        version that replaces it cannot be offered, its grace period does not begin.
        """
        versioned = self._current.get(bare)
        if versioned is None:
            return
        names = [name for name in (versioned, bare) if self._has_of_registry(name)]
        if not names:
            return
        info = self._server.uploaded_speakers[names[0]]
        if self._is_deleted(versioned, info):
            for name in names:
                self._in_loop(partial(self._withdraw, bare, name))
            self._erase({info["file_path"]})

    def _is_deleted(self, versioned: str, info: Info) -> bool:
        number = versioned.rpartition("@")[2]
        return is_deleted(
            partial(self._find_version, f"{info[_MARK]}@{number}"),
            lambda version_id: str(self._path(version_id, versioned)) == info["file_path"],
        )

    def _info(self, versioned: str, entry: ManifestEntry, registry: str) -> Info:
        """Return the record of a version, and write its file unless the server has it."""
        path = self._path_of(entry)
        # Checked before the fetch: a file that another process of the server writes meanwhile is readable.
        was_there = path.exists()
        header = _header_of(path)
        if _MARK not in header:
            facts = {"voice_name_lower": versioned, _MARK: entry.voice_id, _REGISTRY: registry}
            data = self._sample(entry.reference, facts)
            self._files.setdefault(str(path), {})
            if was_there:
                log.warning("The file %s cannot be read, and is replaced", path)
            path.parent.mkdir(parents=True, exist_ok=True)  # it may have been removed while the server runs
            write_atomically(path, data)
            header = _header_of(path)
            if _MARK not in header:
                raise OSError(errno.EIO, "the file cannot be read back", str(path))
        return self._server._speaker_metadata_from_header(header, str(path))

    def _path_of(self, entry: ManifestEntry) -> Path:
        """Return the path of a version's file, which no other version has."""
        return self._path(entry.version_id, versioned_name(entry))

    def _path(self, version_id: str, versioned: str) -> Path:
        # Two voices may have versions with the same id, if somebody registered them so by hand.
        about = hashlib.sha256(f"{version_id}@{versioned}".encode()).hexdigest()[:32]
        return self._server.uploaded_speakers_dir / _FILES.replace("*", about)

    def _used(self) -> set[str]:
        """Return the paths of the files of the voices that the server has."""
        return {info["file_path"] for info in list(self._server.uploaded_speakers.values())}

    def _erase(self, files: set[str]) -> None:
        """Erase those of the files that no voice of the server uses. One that cannot be erased now keeps
        nothing else from being done, and is tried again at each look.
        """
        for path in sorted(files - self._used()):
            try:
                Path(path).unlink(missing_ok=True)
            except OSError as error:
                if self._unerased.is_news(path, str(error)):
                    log.warning("The file of a voice that was withdrawn cannot be erased now: %s", error)
            else:
                self._unerased.drop(path)
                self._files.pop(path, None)

    def _withdraw(self, bare: str, name: str) -> None:
        """Stop offering a name. A voice that was uploaded under it meanwhile stays."""
        if not self._has_of_registry(name):
            return
        if self._current.get(bare) == name or bare == name:
            self._current.pop(bare, None)
        self._server.uploaded_speakers.pop(name)
        self._server._ref_audio_data_url_cache.pop(name, None)


def _header_of(path: str | Path) -> dict[str, str]:
    """Return the header of a file in the server's folder. It is empty if the file cannot be read."""
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError):
        return {}


def _name_in(header: Mapping[str, Any]) -> str:
    """Return the name of a voice as vLLM-Omni finds it in the header of a file."""
    return str(header.get("voice_name_lower") or header.get("name", "")).lower()
