"""The entries of a voice in the speaker cache of vLLM-Omni 0.30: the keys and values of each model.

Every model reads the cache under its own model type and names the tensors in its own way. The functions here
are pure. A test reads what they make with vLLM-Omni's own cache.
"""

from collections.abc import Callable, Mapping
from typing import Any

from speaker_registry.errors import InvalidArtifact

Tensors = Mapping[str, Any]
"""Tensors of an artifact by name, as `torch.Tensor`s."""
Slot = dict[str, Any]
"""A value of vLLM-Omni's speaker cache."""


def slots_of(model_type: str, tensors: Tensors, ref_text: str | None) -> dict[str, Slot]:
    """Return the cache entries of a voice in a server of this model type: the model type of each key, and its
    value.

    It is empty for models that have no speaker cache, such as Higgs-Audio. Tensors that the model does not
    read are left out.

    Raises:
        InvalidArtifact: A tensor is missing that the model reads.
    """
    make = _SLOTS.get(model_type)
    try:
        return make(tensors, ref_text) if make is not None else {}
    except KeyError as error:
        raise InvalidArtifact(
            f"the artifact for model type {model_type!a} has no tensor {error}; it has {sorted(tensors)}"
        ) from None


def _qwen3_tts(tensors: Tensors, ref_text: str | None) -> dict[str, Slot]:
    """Return a slot per mode, because a request may ask for the speaker embedding alone."""
    embedding = {"ref_spk_embedding": tensors["speaker_embedding"].reshape(-1), "ref_text": ref_text}
    slots: dict[str, Slot] = {"qwen3_tts_xvec": {**embedding, "ref_code": None, "icl_mode": False}}
    if ref_text and "ref_code" in tensors:
        slots["qwen3_tts_icl"] = {**embedding, "ref_code": tensors["ref_code"], "icl_mode": True}
    return slots


def _voxcpm2(tensors: Tensors, _: str | None) -> dict[str, Slot]:
    """Return the slot of an uploaded voice. It has only the reference features: the API process computes the
    length of the prompt for a reference, which differs from that of a continuation.
    """
    return {"voxcpm2": {"ref_audio_feat": tensors["ref_audio_feat"]}}


def _chosen(cached_as: str, names: tuple[str, ...]) -> Callable[[Tensors, str | None], dict[str, Slot]]:
    return lambda tensors, _: {cached_as: {name: tensors[name] for name in names}}


_READ_AS_THEY_ARE = {
    "audio8_tts": ("ref_codes_fq",),
    "cosyvoice3": ("speech_feat", "speech_token", "speech_token_len", "embedding"),
    "fish_speech": ("ref_codes_fq",),
    "ming_tts": ("speaker_embedding",),
    "omnivoice": ("ref_audio_tokens",),
}
"""Maps a model type to the names of the tensors that the model reads from its slot."""
_SLOTS: Mapping[str, Callable[[Tensors, str | None], dict[str, Slot]]] = {
    "qwen3_tts": _qwen3_tts,
    "voxcpm2": _voxcpm2,
    **{model_type: _chosen(model_type, names) for model_type, names in _READ_AS_THEY_ARE.items()},
}
CACHING_MODEL_TYPES = frozenset(_SLOTS)
"""The model types of profiles whose artifacts vLLM-Omni 0.30 keeps in its speaker cache."""
