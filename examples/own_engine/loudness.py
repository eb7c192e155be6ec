"""The profile `loudness`: what its artifact holds. API processes read this, so it imports no torch."""

from services.shared.model.profiles import Profile
from services.shared.model.published_weights import PublishedWeights
from speaker_registry.artifact import TensorSpec

FRAMES_PER_SECOND = 50

PROFILE = Profile(
    name="loudness",
    model_type="loudness",
    description="Level of each 20 ms, in dB below full scale",
    tensors={"level": TensorSpec(dtype="F32", shape=("T",), minimum=-100)},
    sample_rate=16_000,
    frame_rate=FRAMES_PER_SECOND,
    # A model would have a repository on the Hugging Face hub here, a commit, and the files it is read from.
    weights=PublishedWeights(repo="none", licence="Apache-2.0", files={}),
)
