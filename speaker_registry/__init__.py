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
    from speaker_registry.artifact import Artifact as Artifact
    from speaker_registry.artifact import Manifest as Manifest
    from speaker_registry.async_client import AsyncRegistryClient as AsyncRegistryClient
    from speaker_registry.cache import ArtifactCache as ArtifactCache
    from speaker_registry.cache import CacheStats as CacheStats
    from speaker_registry.calls import Alias as Alias
    from speaker_registry.calls import Registration as Registration
    from speaker_registry.client import RegistryClient as RegistryClient
    from speaker_registry.errors import ArtifactFailed as ArtifactFailed
    from speaker_registry.errors import ArtifactNotReady as ArtifactNotReady
    from speaker_registry.errors import Conflict as Conflict
    from speaker_registry.errors import DigestMismatch as DigestMismatch
    from speaker_registry.errors import InvalidApiKey as InvalidApiKey
    from speaker_registry.errors import InvalidRequest as InvalidRequest
    from speaker_registry.errors import NotFound as NotFound
    from speaker_registry.errors import PermissionDenied as PermissionDenied
    from speaker_registry.errors import PicturesFailed as PicturesFailed
    from speaker_registry.errors import SpeakerRegistryError as SpeakerRegistryError
    from speaker_registry.errors import Unavailable as Unavailable
    from speaker_registry.fetching import Clip as Clip
    from speaker_registry.fetching import ClipPicture as ClipPicture
    from speaker_registry.fetching import File as File
    from speaker_registry.reference_audio import ReferenceAudio as ReferenceAudio
    from speaker_registry.schemas import ApiKey as ApiKey
    from speaker_registry.schemas import ArtifactDescriptor as ArtifactDescriptor
    from speaker_registry.schemas import ArtifactStatus as ArtifactStatus
    from speaker_registry.schemas import Campaign as Campaign
    from speaker_registry.schemas import Job as Job
    from speaker_registry.schemas import JobSummary as JobSummary
    from speaker_registry.schemas import NewApiKey as NewApiKey
    from speaker_registry.schemas import Profile as Profile
    from speaker_registry.schemas import ProfileChange as ProfileChange
    from speaker_registry.schemas import Quota as Quota
    from speaker_registry.schemas import Rate as Rate
    from speaker_registry.schemas import ResolvedArtifact as ResolvedArtifact
    from speaker_registry.schemas import Usage as Usage
    from speaker_registry.schemas import Voice as Voice
    from speaker_registry.schemas import VoiceAlias as VoiceAlias
    from speaker_registry.schemas import VoiceChange as VoiceChange
    from speaker_registry.schemas import VoiceVersion as VoiceVersion
    from speaker_registry.waiting import Readiness as Readiness

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
__all__ = list(_HOME_OF)


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
