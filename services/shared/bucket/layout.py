"""The layout of a bucket of documents: every path is built and parsed here. This module knows no store.

    {namespace}/s/{slug}.json                          everything that is true about one speaker
    {namespace}/d/{slug}/{vuid}/clip                   the clip as it was uploaded
    {namespace}/d/{slug}/{vuid}/rendition              the clip as it was decoded
    {namespace}/d/{slug}/{vuid}/{object}.safetensors   an artifact
    {namespace}/d/{slug}/{vuid}/{drawing}.{sha256}.{picture}    a picture of the clip
    _keys/{id}.json                                    an API key
    _profiles/{profile}.json                           what the workers of a profile announced
    _registry.json                                     which bucket this is, and where
    _view.json                                         the generation of the view in Redis

Documents are replaced by compare-and-swap. Everything else is written once and named by a document; pictures
are named by the id of their version. Other programs may put objects into the bucket too: what the functions
here do not parse is ignored.
"""

import re
from dataclasses import dataclass

from services.shared.bucket.store import check_key
from services.shared.model.pictures import Picture
from services.shared.model.speaker import SpeakerId, is_slug
from speaker_registry.names import KEY_ID_PATTERN, is_namespace

API_KEYS = "_keys/"
PROFILES = "_profiles/"
REGISTRY = "_registry.json"
VIEW = "_view.json"

_API_KEY = re.compile(rf"_keys/({KEY_ID_PATTERN})\.json")
_PROFILE = re.compile(r"_profiles/([^/]+)\.json")
_DOCUMENT = re.compile(r"([^/]+)/s/([^/]+)\.json")
_ID = r"[0-9a-f]{32}"
_PICTURE = re.compile(rf"([0-9]{{1,3}})\.([0-9a-f]{{64}})\.({'|'.join(map(re.escape, Picture))})")
_BYTES = re.compile(
    rf"([^/]+)/d/([^/]+)/({_ID})/(?:clip|rendition|({_ID})\.safetensors|[0-9]{{1,3}}\.[0-9a-f]{{64}}\.[a-z.]+)"
)


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """An object that holds bytes, as parsed from its path."""

    speaker_id: SpeakerId
    vuid: str
    named_by: str
    """The id by which a document names the object: the vuid, or the object id of an artifact."""


@dataclass(frozen=True, slots=True)
class PicturePath:
    """The file of a picture within the folder of its version."""

    drawing: int
    """The version of the drawing code."""
    sha256: str
    picture: Picture


def documents_prefix(namespace: str) -> str:
    """Return the prefix of the documents of all speakers of a namespace."""
    return f"{namespace}/s/"


def document_key(speaker_id: SpeakerId) -> str:
    return f"{documents_prefix(speaker_id.namespace)}{speaker_id.slug}.json"


def speaker_of(key: str) -> SpeakerId | None:
    """Return the speaker whose document has this key, or None if it is not the key of a document."""
    match = _DOCUMENT.fullmatch(key)
    return _speaker(match[1], match[2]) if match else None


def bytes_folder(namespace: str) -> str:
    """Return the prefix of the bytes of all speakers of a namespace."""
    return f"{namespace}/d/"


def bytes_prefix(speaker_id: SpeakerId) -> str:
    """Return the prefix of everything that the documents of a speaker have ever named."""
    return f"{bytes_folder(speaker_id.namespace)}{speaker_id.slug}/"


def version_prefix(speaker_id: SpeakerId, vuid: str) -> str:
    """Return the prefix of the bytes of one version."""
    return f"{bytes_prefix(speaker_id)}{vuid}/"


def clip_key(speaker_id: SpeakerId, vuid: str) -> str:
    return f"{version_prefix(speaker_id, vuid)}clip"


def rendition_key(speaker_id: SpeakerId, vuid: str) -> str:
    return f"{version_prefix(speaker_id, vuid)}rendition"


def artifact_key(speaker_id: SpeakerId, vuid: str, object_id: str) -> str:
    return f"{version_prefix(speaker_id, vuid)}{object_id}.safetensors"


def picture_key(speaker_id: SpeakerId, vuid: str, path: PicturePath) -> str:
    return f"{version_prefix(speaker_id, vuid)}{path.drawing}.{path.sha256}.{path.picture}"


def picture_of(key: str) -> PicturePath | None:
    """Return the picture that has this key, or None if it is not the key of a picture."""
    match = _PICTURE.fullmatch(key.rpartition("/")[2])
    return PicturePath(int(match[1]), match[2], Picture(match[3])) if match else None


def bytes_of(key: str) -> StoredBytes | None:
    """Parse the key of stored bytes. Returns None if no document could name the key."""
    match = _BYTES.fullmatch(key)
    speaker_id = _speaker(match[1], match[2]) if match else None
    if match is None or speaker_id is None:
        return None
    return StoredBytes(speaker_id, match[3], match[4] or match[3])


def api_key_key(key_id: str) -> str:
    return check_key(f"{API_KEYS}{key_id}.json")


def api_key_of(key: str) -> str | None:
    """Return the id of the API key whose document has this key, or None if it is not the key of such a
    document.
    """
    match = _API_KEY.fullmatch(key)
    return match[1] if match else None


def profile_key(profile: str) -> str:
    return check_key(f"{PROFILES}{profile}.json")


def profile_of(key: str) -> str | None:
    """Return the profile whose document has this key, or None if it is not the key of such a document."""
    match = _PROFILE.fullmatch(key)
    return match[1] if match else None


def name_of(key: str) -> str:
    """Return the name of a profile, or the id of an API key, from the key of its document."""
    return key.rpartition("/")[2].removesuffix(".json")


def _speaker(namespace: str, slug: str) -> SpeakerId | None:
    return SpeakerId(namespace, slug) if is_namespace(namespace) and is_slug(slug) else None
