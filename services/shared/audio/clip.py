"""A clip after decoding, with what was found out about its file."""

from dataclasses import dataclass

from speaker_registry.reference_audio import ReferenceAudio


@dataclass(frozen=True, slots=True)
class DecodedClip:
    """A decoded clip and the properties of the file it came from."""

    audio: ReferenceAudio
    container: str
    """One of wav, flac, mp3, ogg, aac, m4a, mp4 and webm."""
    codec: str
    """Name of the codec in libav, such as pcm_s16le or opus."""
    mime_type: str
    """MIME type of the content, whatever type the upload declared."""
    channels: int
    """Number of channels before they were mixed down."""
