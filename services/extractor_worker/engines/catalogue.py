"""Finds and loads the extractor of each profile.

A new engine needs a module in this folder and a line in `BUILT_IN` here, its profile in `BUILT_IN` of
`services/shared/model/profiles.py`, and its weights in the `weights.yaml` beside that.

Other packages bring extractors through the entry point group `speaker_registry.extractors`, each under the
name of its profile, as subclasses of `speaker_registry.engine.Engine`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from services.extractor_worker.engines.third_party import ThirdPartyExtractor
from services.extractor_worker.pipeline.extractor import Extractor
from services.extractor_worker.pipeline.torch_extractor import FingerprintKnown, Loading
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.profiles import ProfileAmbiguous
from speaker_registry import engine
from speaker_registry.errors import CacheUnsupported, ProfileUnknown

GROUP = "speaker_registry.extractors"
_OURS = "services.extractor_worker.engines"
BUILT_IN: Mapping[str, str] = {
    "qwen3-tts-0.6b": f"{_OURS}.qwen3_tts:Qwen3TTSExtractor",
    "qwen3-tts-1.7b": f"{_OURS}.qwen3_tts:Qwen3TTSExtractor",
    "fish-speech-s2-pro": f"{_OURS}.fish_speech:FishSpeechExtractor",
    "audio8": f"{_OURS}.fish_speech:Audio8Extractor",
    "cosyvoice3-0.5b": f"{_OURS}.cosyvoice3:CosyVoice3Extractor",
    "voxcpm2": f"{_OURS}.voxcpm2:VoxCPM2Extractor",
    "ming-tts": f"{_OURS}.ming_tts:MingTTSExtractor",
    "omnivoice": f"{_OURS}.higgs_audio:OmniVoiceExtractor",
    "higgs-audio-v2": f"{_OURS}.higgs_audio:HiggsAudioExtractor",
    "higgs-audio-v3": f"{_OURS}.higgs_audio:HiggsAudioV3Extractor",
    "ecapa-voxceleb": f"{_OURS}.ecapa_voxceleb:EcapaVoxCelebExtractor",
    "dac-16khz": f"{_OURS}.dac:DacExtractor",
    "dac-24khz": f"{_OURS}.dac:DacExtractor",
    "dac-44khz": f"{_OURS}.dac:DacExtractor",
    "speechtokenizer": f"{_OURS}.speech_tokenizer:SpeechTokenizerExtractor",
}
"""Maps a profile's name to its extractor. An extractor is imported only when its profile is loaded, so that a
worker does not load the libraries of other profiles.
"""


def load_extractor(loading: Loading) -> Extractor:
    """Load a profile's encoders onto a device.

    Raises:
        ProfileUnknown: no extractor has this name. The message lists the profiles that have one.
        ProfileAmbiguous: several packages bring an extractor for the profile.
        CacheUnsupported: no worker can make the profile's artifact from a clip.
        WeightsMissing: a file is missing. The message names it and says how to get it.
        WeightsInvalid: a file is not the expected one. The message names the file and what is wrong.
    """
    profile = loading.profile
    if profile.not_extractable:
        raise CacheUnsupported(f"no worker can serve profile '{profile.name}': {profile.not_extractable}")
    load: Callable[[engine.Loading], Extractor | engine.Engine[Any, Any]] = _entry_point(profile.name).load()
    loaded = load(loading)
    return ThirdPartyExtractor(loaded, loading) if isinstance(loaded, engine.Engine) else loaded


def fingerprint_of(loading: Loading) -> Fingerprint | None:
    """Return the fingerprint that the extractor of a profile will have, without loading it.

    It follows from the settings, the configuration and digests of the checkpoint's files, the dtype and the
    version of the code. No weights are read or drawn: in torch's `meta` device, tensors have shapes alone.
    Returns None for an extractor of another package, which computes its fingerprint while it is loaded.

    Raises the same errors as `load_extractor`.
    """
    if loading.profile.name not in BUILT_IN and not loading.profile.not_extractable:
        _entry_point(loading.profile.name)  # an unknown extractor is refused already here
        return None
    try:
        with torch.device("meta"):
            return load_extractor(replace(loading, only_fingerprint=True)).fingerprint
    except FingerprintKnown as known:
        return known.fingerprint


def _entry_point(profile_name: str) -> EntryPoint:
    if profile_name in BUILT_IN:
        return EntryPoint(profile_name, BUILT_IN[profile_name], GROUP)
    third_party = entry_points(group=GROUP)
    found = [entry for entry in third_party if entry.name == profile_name]
    if not found:
        known = ", ".join(sorted({*BUILT_IN, *third_party.names}))
        raise ProfileUnknown(f"no extractor for profile {profile_name[:80]!a}; there are {known}")
    if len(found) > 1:
        values = " and ".join(entry.value for entry in found)
        raise ProfileAmbiguous(f"profile {profile_name[:80]!a} has several extractors: {values}")
    return found[0]
