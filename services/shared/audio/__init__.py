"""Reference audio: from uploaded bytes that nobody vouches for to mono float32 samples that are fit to
extract from.

`AudioDecoder.decode` looks at the content itself (`sniff`), lets a guarded process decode it (`sandbox`), and
applies the rules (`judge`). Knows nothing of HTTP, the bucket or models.
"""

from services.shared.audio.clip import DecodedClip, ReferenceAudio
from services.shared.audio.decoder import AudioDecoder

__all__ = ["AudioDecoder", "DecodedClip", "ReferenceAudio"]
