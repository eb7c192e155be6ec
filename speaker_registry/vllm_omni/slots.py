"""What vLLM-Omni 0.30 keeps of a voice in its speaker cache: the keys and values of each model.

Every model reads the cache under its own model type and names the tensors in its own way. The functions here
are pure. A test reads what they make with vLLM-Omni's own cache.
"""

from collections.abc import Callable, Mapping
from typing import Any

Tensors = Mapping[str, Any]
"""Tensors of an artifact by name, as `torch.Tensor`s."""
Slot = dict[str, Any]
"""A value of vLLM-Omni's speaker cache."""


def slots_of(model_type: str, tensors: Tensors, ref_text: str | None) -> dict[str, Slot]:
    """Return what a server of this model type caches of a voice: model types of cache keys and their values.

    It is empty for models that have no speaker cache, such as Higgs-Audio.
    """
    make = _SLOTS.get(model_type)
    return make(tensors, ref_text) if make is not None else {}


def _qwen3_tts(tensors: Tensors, ref_text: str | None) -> dict[str, Slot]:
    """Return a slot per mode, because a request may ask for the speaker embedding alone."""
    embedding = {"ref_spk_embedding": tensors["speaker_embedding"].reshape(-1), "ref_text": ref_text}
    slots: dict[str, Slot] = {"qwen3_tts_xvec": {**embedding, "ref_code": None, "icl_mode": False}}
    if ref_text and "ref_code" in tensors:
        slots["qwen3_tts_icl"] = {**embedding, "ref_code": tensors["ref_code"], "icl_mode": True}
    return slots


def _voxcpm2(tensors: Tensors, _: str | None) -> dict[str, Slot]:
    """Return the slot of an uploaded voice. The API process counts the prompt of these as a reference, so
    a continuation would not have its length.
    """
    return {"voxcpm2": {"ref_audio_feat": tensors["ref_audio_feat"]}}


def _all_tensors(cached_as: str) -> Callable[[Tensors, str | None], dict[str, Slot]]:
    return lambda tensors, _: {cached_as: dict(tensors)}


_SLOTS: Mapping[str, Callable[[Tensors, str | None], dict[str, Slot]]] = {
    "qwen3_tts": _qwen3_tts,
    "voxcpm2": _voxcpm2,
    **{
        name: _all_tensors(name)
        for name in ("audio8_tts", "cosyvoice3", "fish_speech", "ming_tts", "omnivoice")
    },
}
CACHING_MODEL_TYPES = frozenset(_SLOTS)
"""The model types of profiles whose artifacts vLLM-Omni 0.30 keeps in its speaker cache."""
