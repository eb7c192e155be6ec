"""Reference audio: from uploaded bytes that nobody vouches for to mono float32 samples that are fit to
extract from.

`AudioDecoder.decode` lets a guarded process look at the content and decode it (`sandbox`), and applies the
rules (`judge`). Knows nothing of HTTP, the bucket or models.
"""

from services.shared.audio.clip import DecodedClip, ReferenceAudio
from services.shared.audio.decoder import AudioDecoder

__all__ = ["AudioDecoder", "DecodedClip", "ReferenceAudio"]
