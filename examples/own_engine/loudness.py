"""The profile `loudness` says what its artifact holds. API processes read this module, so it imports no
torch.
"""

from speaker_registry.engine import Profile, PublishedWeights, TensorSpec

FRAMES_PER_SECOND = 50

PROFILE = Profile(
    name="loudness",
    model_type="loudness",
    description="Level of each 20 ms, in dB below full scale",
    tensors={"level": TensorSpec(dtype="F32", shape=("T",), minimum=-100)},
    sample_rate=16_000,
    frame_rate=FRAMES_PER_SECOND,
    # A model would name its repository on the Hugging Face hub here, a commit, and the files to read from it.
    weights=PublishedWeights(repo="none", licence="Apache-2.0", files={}),
)
