"""The profiles we know: what each engine needs, as facts. Encoders live in the worker; this file knows no
torch.

A profile of your own comes through the entry point group `speaker_registry.profiles`: a `Profile` per entry
point.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Self

from speaker_registry.artifact import TensorSpec
from speaker_registry.errors import ProfileUnknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Facts about one engine's artifact. The encoder that makes it is found under the same name in the
    worker.
    """

    name: str
    model_type: str
    """The engine's own word, e.g. vLLM-Omni's `qwen3_tts`."""
    description: str
    tensors: Mapping[str, TensorSpec]
    sample_rate: int
    """What the encoder takes, Hz."""
    frame_rate: float | None = None
    """Frames of codes a second, Hz: the `T` of the tensors' shapes."""
    ref_text_required: bool = False
    model: str
    """Repository of the weights."""
    licence: str
    """Of the weights."""

    @property
    def embedding_width(self) -> int | None:
        """Width of a given `speaker_embedding` this profile can take as it is, if any."""
        spec = self.tensors.get("speaker_embedding")
        others = [
            other for name, other in self.tensors.items() if name != "speaker_embedding" and other.required
        ]
        width = spec.shape[0] if spec is not None and len(spec.shape) == 1 and not others else None
        return width if isinstance(width, int) else None


def _qwen3_tts(size: str, width: int) -> Profile:
    return Profile(
        name=f"qwen3-tts-{size.lower()}",
        model_type="qwen3_tts",
        description=f"Qwen3-TTS 12Hz {size} Base: speaker embedding (ECAPA-TDNN) and codes (SpeechTokenizer)",
        tensors={
            "speaker_embedding": TensorSpec(dtype="F32", shape=(width,)),
            # Not required: a voice registered with a ready embedding has none, and serves x-vector cloning
            # only.
            "ref_code": TensorSpec(dtype="I32", shape=("T", 16), minimum=0, maximum=2047, required=False),
        },
        sample_rate=24_000,
        frame_rate=12.5,
        model=f"Qwen/Qwen3-TTS-12Hz-{size}-Base",
        licence="Apache-2.0",
    )


BUILT_IN: Mapping[str, Profile] = {
    profile.name: profile for profile in (_qwen3_tts("0.6B", 1024), _qwen3_tts("1.7B", 2048))
}


class ProfileCatalogue:
    """The profiles of this installation, and which of them every upload must have."""

    def __init__(self, profiles: Iterable[Profile], required: Iterable[str]) -> None:
        self._by_name = {profile.name: profile for profile in profiles}
        self.required = tuple(dict.fromkeys(required))
        for name in self.required:
            self.get(name)

    @classmethod
    def load(cls, required: Iterable[str]) -> Self:
        """Built-in profiles and those that installed packages bring."""
        third_party = [entry.load() for entry in entry_points(group="speaker_registry.profiles")]
        return cls([*BUILT_IN.values(), *third_party], required)

    def get(self, name: str) -> Profile:
        """Raises `ProfileUnknown` naming the known ones."""
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
        """Required profiles that can use a ready speaker embedding of this width."""
        return [profile for profile in self.required_profiles if profile.embedding_width == width]
