"""Settings of workers: how they take jobs, and which encoders they load."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.shared.configuration.values import Count, Names, WholeDurationSeconds


def _parse_device(name: str) -> str:
    # torch keeps the number of a GPU in a byte with a sign, so 256 would silently be GPU 0.
    if not re.fullmatch(r"cpu|cuda(:(0|[1-9][0-9]?))?", name):
        raise ValueError("accepted: cpu, cuda, or cuda:N with the number of a GPU from 0 to 99")
    return name


class WorkerSettings(BaseSettings):
    """Settings for taking jobs and for reporting that a worker is alive. Environment: SPEAKER_WORKER_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_WORKER_", env_ignore_empty=True, frozen=True)

    lease_seconds: WholeDurationSeconds = Field(30, ge=2)
    """A job is given to another worker this long after the last heartbeat of the worker that holds it. A
    worker sends six heartbeats in this time. A job that was taken from the queue and not started is put back
    after half of it.
    """
    poll_seconds: float = Field(1, ge=0.05, le=10)
    """Time for which an idle worker waits for a job before it looks again. Stopping an idle worker takes
    about as long.
    """
    batch_size: int = Field(32, ge=1, le=1000)
    """Largest number of jobs that a worker takes from one queue at a time."""
    beat_file: Path | None = None
    """File to which each heartbeat is written, for `python -m services.extractor_worker healthy`."""

    @property
    def beat_seconds(self) -> float:
        """Return the time between two heartbeats. It is short, because a worker whose lease ends during one
        slow answer of Redis would have its jobs computed twice.
        """
        return self.lease_seconds / 6

    @property
    def maintenance_seconds(self) -> float:
        """Return the time between two checks for jobs that dead workers held."""
        return self.lease_seconds / 6

    @property
    def stuck_seconds(self) -> float:
        """Return the time after which a job that was taken from the queue and not started is put back."""
        return self.lease_seconds / 2


class ExtractorSettings(BaseSettings):
    """Encoders and weights that a worker loads. Environment: SPEAKER_EXTRACTOR_*."""

    model_config = SettingsConfigDict(env_prefix="SPEAKER_EXTRACTOR_", env_ignore_empty=True, frozen=True)

    profiles: Names = ()
    """Comma-separated profiles that this worker serves. By default, all that the registry requires."""
    weights: str = Field(description="`hub`, `hub:<commit>`, the path of a folder, or `untrained`")
    """Source of the weights: `hub`, `hub:<commit>`, the path of a folder, or `untrained` (random, for trying
    out). A worker without this setting does not start, so that random voices are never made by mistake.
    """
    custom_weights: Names = ()
    """Comma-separated profiles whose folders hold other weights than the published ones, because they were
    fine-tuned or saved again. Their digests are not compared with those of the published files. They are part
    of the fingerprint, and every surface says `custom weights`.
    """
    device: Annotated[str, AfterValidator(_parse_device)] = "cpu"
    """Device to compute on: `cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that the encoders of Qwen3-TTS compute in: `float32`, or `bfloat16` as in vLLM-Omni. All
    other encoders always use float32, as in their engines.
    """
    threads: Count = Field(4, gt=0)
    """Number of threads that read, prepare and publish clips while the device encodes other clips."""
    cache: Path = Path("~/.cache/speaker-registry")
    """Folder that records which encoders were proved on this machine."""


class OmniVoiceSettings(BaseSettings):
    """Processing of clips as in OmniVoice's own package, which vLLM-Omni leaves out. Environment:
    SPEAKER_OMNIVOICE_*.
    """

    model_config = SettingsConfigDict(env_prefix="SPEAKER_OMNIVOICE_", env_ignore_empty=True, frozen=True)

    loudness: bool = False
    """Make a quiet clip louder. Artifacts do not record by how much, so speech made with them is as loud as
    the louder clip. OmniVoice's own package records the clip's level (`ref_rms`) and makes speech as quiet.
    """
    trim: bool = False
    """Shorten long pauses and the silence at both ends."""
    whole_frames: bool = False
    """Cut off the rest at the end of the clip that does not fill a frame of 40 ms."""
