"""Limits of the clips that are uploaded."""

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.shared.configuration.values import Bytes, Count, DurationSeconds

LONGEST_CLIP_SECONDS = 30.0
"""The longest clip that a registry accepts by default."""


class UploadLimits(BaseSettings):
    """Limits of the reference audio that is accepted and of what decoding it may cost. Environment:
    SPEAKER_UPLOAD_*.
    """

    model_config = SettingsConfigDict(env_prefix="SPEAKER_UPLOAD_", env_ignore_empty=True, frozen=True)

    max_bytes: Bytes = Field(10 * 1024**2, gt=0)
    """Largest size of an uploaded clip, 10 MiB by default. The other fields of the form may take 256
    KiB more.
    """
    min_seconds: DurationSeconds = Field(1.0, gt=0)
    """Shortest clip that is accepted, inclusive. Speaker encoders have little to work with below it."""
    max_seconds: DurationSeconds = Field(LONGEST_CLIP_SECONDS, gt=0)
    """Longest clip that is accepted, inclusive. It bounds the memory that one clip takes in every later
    step.
    """
    decode_seconds: DurationSeconds = Field(10.0, gt=0)
    """Limit of decoding one clip, in seconds of wall time and of processor time. Clips beyond it are
    refused.
    """
    decode_memory_bytes: Bytes = Field(256 * 1024**2, ge=64 * 1024**2)
    """Memory that decoding one clip may take in addition to the decoding libraries' own."""
    decoders: Count = Field(4, gt=0)
    """Number of clips that one API process decodes at the same time, each in a process of its own."""
    require_seccomp: bool = False
    """Refuse to decode where the kernel or the container does not allow the seccomp filter. Without the
    filter, a clip that takes over its decoder can still open neither files nor sockets, but can make
    other system calls.
    """
    held_bytes: Bytes = Field(192 * 1024**2, gt=0)
    """Total size of the uploads that one API process has begun to read and not answered, in memory and
    in /tmp. Uploads beyond it are refused with `Retry-After`.
    """

    @model_validator(mode="after")
    def _some_length_is_accepted(self) -> Self:
        if self.min_seconds > self.max_seconds:
            raise ValueError(
                f"SPEAKER_UPLOAD_MIN_SECONDS is {self.min_seconds:g}, which is more than "
                f"SPEAKER_UPLOAD_MAX_SECONDS, {self.max_seconds:g}"
            )
        if self.held_bytes < 2 * self.max_bytes:
            raise ValueError(
                f"SPEAKER_UPLOAD_HELD_BYTES is {self.held_bytes}, which is less than twice "
                f"SPEAKER_UPLOAD_MAX_BYTES, {self.max_bytes}: there would be no room for an upload"
            )
        return self
