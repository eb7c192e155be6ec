"""Which extractor makes which profile's artifact, and the commit of the weights it is pinned to.

Facts about profiles that do not need torch are in `services.shared.profiles`.
"""

from collections.abc import Callable, Mapping
from functools import partial

from services.extractor_worker.extractor import Dtype, Extractor
from services.extractor_worker.qwen3_tts import Qwen3TTSExtractor
from services.extractor_worker.weights import WeightsSource
from speaker_registry.errors import ProfileUnknown

# `revision`: the commit on the hub that WEIGHTS=hub takes.
EXTRACTORS: Mapping[str, Callable[..., Extractor]] = {
    "qwen3-tts-0.6b": partial(
        Qwen3TTSExtractor,
        width=1024,
        repo="Qwen/Qwen3-TTS-12Hz-0.6B-Base",
        revision="5d83992436eae1d760afd27aff78a71d676296fc",
    ),
    "qwen3-tts-1.7b": partial(
        Qwen3TTSExtractor,
        width=2048,
        repo="Qwen/Qwen3-TTS-12Hz-1.7B-Base",
        revision="fd4b254389122332181a7c3db7f27e918eec64e3",
    ),
}
"""Profile name -> what loads its extractor, called as (profile_name, source, device, dtype)."""


def load_extractor(
    profile_name: str, source: WeightsSource, device: str = "cpu", dtype: Dtype = "float32"
) -> Extractor:
    """Load a profile's encoders onto a device.

    Raises:
        ProfileUnknown: naming the profiles there are.
        WeightsMissing: naming the file and how to get it.
        WeightsInvalid: naming what is wrong with which file.
    """
    try:
        load = EXTRACTORS[profile_name]
    except KeyError:
        known = ", ".join(EXTRACTORS)
        raise ProfileUnknown(f"no extractor for profile {profile_name[:80]!a}; there are {known}") from None
    return load(profile_name, source, device, dtype)
