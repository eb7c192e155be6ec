"""The built-in profiles, which list what each engine needs. Encoders are part of the worker; this module does
not import torch.

Other packages can add profiles through the entry point group `speaker_registry.profiles`, with one `Profile`
per entry point.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Self

from services.shared.model.published_weights import published_weights
from speaker_registry.artifact import TensorSpec
from speaker_registry.engine import Profile
from speaker_registry.errors import ProfileUnknown, SpeakerRegistryError

_GROUP = "speaker_registry.profiles"


class ProfileAmbiguous(SpeakerRegistryError):
    """Two profiles have the same name. The message is for operators, not for callers."""


def _built_in(name: str, model_type: str, description: str, **properties: Any) -> Profile:
    weights = published_weights()[name]
    return Profile(name=name, model_type=model_type, description=description, weights=weights, **properties)


def _qwen3_tts(size: str, width: int) -> Profile:
    return _built_in(
        f"qwen3-tts-{size.lower()}",
        "qwen3_tts",
        f"Qwen3-TTS 12Hz {size} Base: speaker embedding (ECAPA-TDNN) and codes (SpeechTokenizer)",
        tensors={
            "speaker_embedding": _embedding(width),
            # This tensor is not required: a voice registered with a ready embedding lacks it, and serves
            # x-vector cloning only.
            "ref_code": TensorSpec(dtype="I32", shape=("T", 16), minimum=0, maximum=2047, required=False),
        },
        sample_rate=24_000,
        frame_rate=12.5,
    )


def _fish_speech(name: str, model_type: str, engine: str) -> Profile:
    return _built_in(
        name,
        model_type,
        f"{engine}: codes of its DAC, one semantic and nine residual codebooks",
        tensors={"ref_codes_fq": _codes(("T", 10), 4096, *9 * [1024])},
        sample_rate=44_100,
        frame_rate=44_100 / 2048,
        ref_text_required=True,
    )


def _dac(kilohertz: int, sample_rate: int, hop: int, books: int) -> Profile:
    return _built_in(
        f"dac-{kilohertz}khz",
        "dac",
        f"Descript Audio Codec at {sample_rate / 1000:g} kHz: codes",
        tensors={"codes": TensorSpec(dtype="I64", shape=(books, "T"), minimum=0, maximum=1023)},
        sample_rate=sample_rate,
        frame_rate=sample_rate / hop,
    )


def _higgs(
    name: str, model_type: str, engine: str, *, frames_first: bool = False, ref_text_required: bool = False
) -> Profile:
    shape: tuple[int | str, ...] = ("T", 8) if frames_first else (8, "T")
    return _built_in(
        name,
        model_type,
        f"{engine}: codes of the Higgs Audio v2 tokenizer, {'frames' if frames_first else 'books'} first",
        tensors={"ref_audio_tokens": TensorSpec(dtype="I64", shape=shape, minimum=0, maximum=1023)},
        sample_rate=24_000,
        frame_rate=25.0,
        ref_text_required=ref_text_required,
    )


def _embedding(width: int) -> TensorSpec:
    return TensorSpec(dtype="F32", shape=(width,))


def _codes(shape: tuple[int | str, ...], *sizes: int) -> TensorSpec:
    """Return the spec of a codes tensor. Its first dimension is the frames, and each codebook can have
    another size.
    """
    return TensorSpec(dtype="I64", shape=shape, minimum=0, maximum=max(sizes) - 1, codebook_sizes=sizes)


_COSYVOICE3 = _built_in(
    "cosyvoice3-0.5b",
    "cosyvoice3",
    "CosyVoice3 0.5B: speech tokens (S3 v3), their mel spectrogram, speaker embedding (CAM++)",
    tensors={
        "speech_token": TensorSpec(dtype="I32", shape=(1, "T"), minimum=0, maximum=6560),
        "speech_token_len": TensorSpec(dtype="I32", shape=(1,), counts_frames=True),
        "speech_feat": TensorSpec(dtype="F32", shape=(1, "2T", 80)),
        "embedding": TensorSpec(dtype="F32", shape=(1, 192)),
    },
    sample_rate=24_000,
    frame_rate=25.0,
    ref_text_required=True,
)
_VOXCPM2 = _built_in(
    "voxcpm2",
    "voxcpm2",
    "VoxCPM2: latents of its audio VAE in patches of four, for reference and continuation",
    tensors={
        "ref_audio_feat": TensorSpec(dtype="F32", shape=("T", 4, 64)),
        # Engines that are given no mode derive it from the tensors. With this tensor they would continue the
        # transcript, so the transcript is required as well.
        "audio_feat": TensorSpec(dtype="F32", shape=("T", 4, 64), required=False, needs_ref_text=True),
    },
    sample_rate=16_000,
    frame_rate=6.25,
)
_MING_TTS = _built_in(
    "ming-tts",
    "ming_tts",
    "Ming-TTS: speaker embedding (CAM++)",
    tensors={"speaker_embedding": _embedding(192)},
    sample_rate=16_000,
)
_VOXTRAL = _built_in(
    "voxtral",
    "voxtral_tts",
    "Voxtral TTS: a voice in the language model's own embedding space, to be uploaded ready-made",
    # The width is that of the language model. The length differs from voice to voice.
    tensors={"voice_embedding": TensorSpec(dtype="F32", shape=("L", 3072))},
    sample_rate=24_000,
    not_extractable="Mistral has not published Voxtral's encoder; upload a ready voice embedding",
)
_ECAPA = _built_in(
    "ecapa-voxceleb",
    "ecapa",
    "ECAPA-TDNN trained on VoxCeleb (SpeechBrain): speaker embedding, not normalised",
    tensors={"speaker_embedding": _embedding(192)},
    sample_rate=16_000,
)
_SPEECHTOKENIZER = _built_in(
    "speechtokenizer",
    "speechtokenizer",
    "SpeechTokenizer (hubert_avg): codes, of which the first codebook is semantic",
    tensors={"codes": TensorSpec(dtype="I64", shape=(8, "T"), minimum=0, maximum=1023)},
    sample_rate=16_000,
    frame_rate=50.0,
)
BUILT_IN: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        _qwen3_tts("0.6B", 1024),
        _qwen3_tts("1.7B", 2048),
        _fish_speech("fish-speech-s2-pro", "fish_speech", "Fish Speech S2 Pro"),
        _fish_speech("audio8", "audio8_tts", "Audio8"),
        _COSYVOICE3,
        _VOXCPM2,
        _MING_TTS,
        _higgs("omnivoice", "omnivoice", "OmniVoice"),
        _higgs("higgs-audio-v2", "higgs_audio_v2", "Higgs-Audio v2", ref_text_required=True),
        _higgs("higgs-audio-v3", "higgs_audio_v3", "Higgs-Audio v3", frames_first=True),
        _VOXTRAL,
        _ECAPA,
        _dac(16, 16_000, hop=320, books=12),
        _dac(24, 24_000, hop=320, books=32),
        _dac(44, 44_100, hop=512, books=9),
        _SPEECHTOKENIZER,
    )
}


class ProfileCatalogue:
    """The profiles of this installation, and those among them that are required for every upload."""

    def __init__(self, profiles: Iterable[Profile], required: Iterable[str]) -> None:
        self._by_name = {profile.name: profile for profile in profiles}
        self.required = tuple(dict.fromkeys(required))
        for name in self.required:
            self.get(name)

    @classmethod
    def load(cls, required: Iterable[str]) -> Self:
        """Return the built-in profiles and those of installed packages.

        Raises:
            ProfileAmbiguous: two packages have a profile of the same name. ProfileUnknown: one of `required`
                is unknown.
        """
        return cls(_installed(), required)

    def get(self, name: str) -> Profile:
        """Return a profile. Raises `ProfileUnknown`, which lists the known profiles."""
        try:
            return self._by_name[name]
        except KeyError:
            raise ProfileUnknown(
                f"Unknown profile {name[:80]!a}. Known: {', '.join(sorted(self._by_name))}.", param="profile"
            ) from None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._by_name)

    def __iter__(self) -> Iterator[Profile]:
        return iter(sorted(self._by_name.values(), key=lambda profile: profile.name))

    @property
    def required_profiles(self) -> list[Profile]:
        return [self.get(name) for name in self.required]

    def taking_embeddings_of(self, width: int) -> list[Profile]:
        """Return the required profiles that can use a precomputed speaker embedding of this width."""
        return [profile for profile in self.required_profiles if profile.embedding_width == width]


def _installed() -> list[Profile]:
    """Return the built-in profiles and those of installed packages. Raises `ProfileAmbiguous` if two have the
    same name.
    """
    profiles, brought_by = dict(BUILT_IN), dict.fromkeys(BUILT_IN, "the registry itself")
    for entry in entry_points(group=_GROUP):
        profile, package = entry.load(), f"the package {entry.dist.name if entry.dist else entry.value}"
        if profile.name in profiles:
            raise ProfileAmbiguous(
                f"Profile '{profile.name}' is defined by {brought_by[profile.name]} and by {package}. "
                "Accepted: a name of its own for each; rename one, or uninstall a package."
            )
        profiles[profile.name], brought_by[profile.name] = profile, package
    return list(profiles.values())
