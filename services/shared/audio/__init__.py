"""Decoding of reference audio: from untrusted uploaded bytes to mono float32 samples that are fit for
extraction.

`AudioDecoder.decode` has a guarded process parse and decode the bytes (`sandbox`), and applies the rules
(`judge`).
"""

from services.shared.audio.decoder import AudioDecoder, DecodedClip
from speaker_registry.reference_audio import ReferenceAudio

__all__ = ["AudioDecoder", "DecodedClip", "ReferenceAudio"]
