"""Speaker registry: the SDK and the wire contract.

    client = RegistryClient("https://registry.example")
    client.register("alice", "alice.wav", consent="…", ref_text="…")
    client.wait_ready("alice")
    artifact = client.fetch("alice", "qwen3-tts-0.6b")
    artifact.tensors["speaker_embedding"]

The names below are loaded on first use, so a process that only needs the wire contract never loads the HTTP
client.
"""

TYPE_CHECKING = False  # not from `typing`: Ctrl-C prints a traceback until the command line is loaded
if TYPE_CHECKING:
    __version__: str
    from speaker_registry.artifact import Artifact, Manifest
    from speaker_registry.async_client import AsyncRegistryClient
    from speaker_registry.cache import ArtifactCache, CacheStats
    from speaker_registry.calls import Alias, Registration
    from speaker_registry.client import RegistryClient
    from speaker_registry.errors import (
        ArtifactFailed,
        ArtifactNotReady,
        Conflict,
        DigestMismatch,
        InvalidApiKey,
        InvalidRequest,
        NotFound,
        PermissionDenied,
        PicturesFailed,
        SpeakerRegistryError,
        Unavailable,
    )
    from speaker_registry.fetching import Clip, ClipPicture, File
    from speaker_registry.reference_audio import ReferenceAudio
    from speaker_registry.schemas import (
        ApiKey,
        ArtifactDescriptor,
        ArtifactStatus,
        Campaign,
        Job,
        JobSummary,
        NewApiKey,
        Profile,
        ProfileChange,
        Quota,
        Rate,
        ResolvedArtifact,
        Usage,
        Voice,
        VoiceAlias,
        VoiceChange,
        VoiceVersion,
    )
    from speaker_registry.waiting import Readiness

__all__ = [
    "Alias",
    "ApiKey",
    "Artifact",
    "ArtifactCache",
    "ArtifactDescriptor",
    "ArtifactFailed",
    "ArtifactNotReady",
    "ArtifactStatus",
    "AsyncRegistryClient",
    "CacheStats",
    "Campaign",
    "Clip",
    "ClipPicture",
    "Conflict",
    "DigestMismatch",
    "File",
    "InvalidApiKey",
    "InvalidRequest",
    "Job",
    "JobSummary",
    "Manifest",
    "NewApiKey",
    "NotFound",
    "PermissionDenied",
    "PicturesFailed",
    "Profile",
    "ProfileChange",
    "Quota",
    "Rate",
    "Readiness",
    "ReferenceAudio",
    "Registration",
    "RegistryClient",
    "ResolvedArtifact",
    "SpeakerRegistryError",
    "Unavailable",
    "Usage",
    "Voice",
    "VoiceAlias",
    "VoiceChange",
    "VoiceVersion",
]

_HOMES = {
    "artifact": ("Artifact", "Manifest"),
    "cache": ("ArtifactCache", "CacheStats"),
    "calls": ("Alias", "Registration"),
    "async_client": ("AsyncRegistryClient",),
    "client": ("RegistryClient",),
    "errors": (
        "ArtifactFailed",
        "ArtifactNotReady",
        "Conflict",
        "DigestMismatch",
        "InvalidApiKey",
        "InvalidRequest",
        "NotFound",
        "PermissionDenied",
        "PicturesFailed",
        "SpeakerRegistryError",
        "Unavailable",
    ),
    "fetching": ("Clip", "ClipPicture", "File"),
    "reference_audio": ("ReferenceAudio",),
    "schemas": (
        "ApiKey",
        "ArtifactDescriptor",
        "ArtifactStatus",
        "Campaign",
        "Job",
        "JobSummary",
        "NewApiKey",
        "Profile",
        "ProfileChange",
        "Quota",
        "Rate",
        "ResolvedArtifact",
        "Usage",
        "Voice",
        "VoiceAlias",
        "VoiceChange",
        "VoiceVersion",
    ),
    "waiting": ("Readiness",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  see `TYPE_CHECKING`

    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def _version() -> str:
    """Return the installed version, or `unknown` in a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  takes longer than the rest

    try:
        return version("speaker-registry")
    except PackageNotFoundError:
        return "unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
