"""The files of vLLM-Omni's `custom_voice_dir`: an artifact per voice, and a manifest that names them.

vLLM-Omni caches these voices under the time 0 and has no versions. Therefore the version is a part of the
name, such as `alice@3`: another version is another voice to the server.
"""

import json
from collections.abc import Callable, Iterator, Sequence

from speaker_registry.artifact import Artifact, canonical_json
from speaker_registry.client import RegistryClient
from speaker_registry.schemas import ResolvedArtifact, Voice
from speaker_registry.syncing.folder import FileName
from speaker_registry.syncing.wanted import GONE, Wanted

Entry = dict[str, str]
"""The properties of one voice in the manifest."""


class CustomVoices:
    """The format `custom-voice-dir` for one profile.

    Args:
        model_type: One of `model_types`. A folder has one model type.
    """

    index_name = "custom_voice_manifest.json"
    model_types = frozenset({"qwen3_tts", "voxcpm2"})
    """The model types whose voices vLLM-Omni 0.30 reads from such a folder."""

    def __init__(self, client: RegistryClient, profile: str, model_type: str) -> None:
        self._client, self._profile, self._model_type = client, profile, model_type
        self._entries: dict[FileName, Entry] = {}

    def wanted(self, voices: Sequence[Voice]) -> Iterator[Wanted]:
        """Yield the files that belong in the folder: the artifact of the default version of each voice."""
        found = self._client.resolve([voice.id for voice in voices], [self._profile])
        for voice, one in zip(voices, found, strict=True):
            if one.error is None or one.error.code not in GONE:
                yield Wanted(
                    voice=voice,
                    version=one.version or voice.version,
                    created_at=one.created_at or voice.created_at,
                    sha256=one.digest.removeprefix("sha256:") if one.digest else None,
                    missing=_missing(one),
                    untrained=one.untrained,
                )

    def fetch(self, wanted: Wanted) -> bytes:
        """Return the bytes of a file. Raises as `RegistryClient.download`."""
        return self._client.download(wanted.reference, self._profile).data

    def index(self, files: Sequence[FileName], read: Callable[[FileName], bytes]) -> bytes:
        """Return the manifest of a folder with these files. Each is read only once.

        Raises:
            InvalidArtifact: A file is not an artifact.
        """
        known = self._entries
        self._entries = {name: known.get(name) or _entry(name, read(name)) for name in files}
        return self._manifest({entry["name"]: entry for entry in self._entries.values()})

    def _manifest(self, voices: dict[str, Entry]) -> bytes:
        manifest = {"schema_version": 1, "model_type": self._model_type, "voices": voices}
        return canonical_json(manifest).encode()

    def without_removed(self, index: bytes, is_there: Callable[[str], bool]) -> bytes:
        """Return a manifest without the voices whose files are gone."""
        try:
            voices = json.loads(index)["voices"].items()
            return self._manifest({name: entry for name, entry in voices if is_there(entry["file"])})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            # It was damaged, so no server can read it. What it says of deleted voices must not stay either.
            return self._manifest({})


def _entry(name: FileName, data: bytes) -> Entry:
    artifact = Artifact.parse(data)
    voice = f"{artifact.manifest.voice}@{artifact.manifest.version}"
    return {"name": voice, "file": str(name), **_mode(artifact)}


def _missing(found: ResolvedArtifact) -> str | None:
    if found.digest is not None:
        return None
    return found.error.message if found.error else f"its artifact is {found.state}"


def _mode(artifact: Artifact) -> Entry:
    """Return the entries for mode and transcript. Without a transcript the server could not continue the
    clip.
    """
    text, tensors = artifact.manifest.ref_text, artifact.tensors
    if artifact.manifest.model_type == "qwen3_tts":
        return {"mode": "icl", "ref_text": text} if text and "ref_code" in tensors else {"mode": "xvec"}
    if text and "audio_feat" in tensors:
        return {"mode": "ref_continuation", "prompt_text": text}
    return {"mode": "reference"}
