"""Extraction jobs, and counts of them."""

from typing import Literal

from speaker_registry.schemas.common import Schema

JobState = Literal["queued", "processing", "succeeded", "failed", "canceled", "superseded"]
FINISHED_STATES: frozenset[str] = frozenset({"succeeded", "failed", "canceled", "superseded"})


class JobError(Schema):
    code: str
    message: str
    retryable: bool
    attempt: int


class JobProgress(Schema):
    """The stages that the latest attempt at a job has completed."""

    stage: str
    """`queued`, then `loading`, `encoding` and `publishing` in each attempt, then `done` if it succeeded."""
    done: int
    """Number of completed stages: `total` if the job succeeded."""
    total: int
    """Number of stages of an attempt."""


class Job(Schema):
    object: Literal["job"] = "job"
    id: str
    kind: Literal["extract"] = "extract"
    state: JobState
    voice: str
    version: int
    version_id: str
    profile: str
    fingerprint: str | None = None
    untrained: bool | None = None
    """True if the weights are random. None if the profile's encoder has changed since, or was never
    announced.
    """
    custom_weights: bool | None = None
    """True if the weights differ from the published ones on purpose. None if the profile's encoder has
    changed since, or was never announced.
    """
    attempt: int
    max_attempts: int
    progress: JobProgress
    queue: str
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    worker: str | None = None
    error: JobError | None = None
    reason: str | None = None
    """Tells why a queued job does not start (no worker serves the profile at the moment, or has the encoder
    of the job's campaign), or that the job was lost with Redis.
    """
    retry_after: float | None = None
    """Seconds to wait before asking again. None once the job has finished."""


class JobCounts(Schema):
    """The number of jobs in each state. Jobs are kept for 30 days."""

    queued: int
    processing: int
    succeeded: int
    failed: int
    canceled: int
    superseded: int


class JobRate(Schema):
    """The number of jobs that ended within a recent period."""

    seconds: int
    """Length of the period in seconds. It ends now."""
    succeeded: int
    failed: int
    per_second: float
    """The number of jobs that succeeded per second."""


class ProfileJobs(Schema):
    """The jobs of one profile."""

    profile: str
    counts: JobCounts
    oldest_queued_at: float | None = None
    """Creation time of the queued job that has waited longest, in Unix seconds."""
    oldest_processing_at: float | None = None
    """Creation time of the oldest job that a worker is processing, in Unix seconds."""
    rates: list[JobRate]
    """The jobs that ended within the last minute, hour and day."""


class JobSummary(Schema):
    """The jobs of a namespace, counted."""

    object: Literal["job_summary"] = "job_summary"
    counts: JobCounts
    oldest_queued_at: float | None = None
    """Creation time of the queued job that has waited longest, in Unix seconds."""
    oldest_processing_at: float | None = None
    """Creation time of the oldest job that a worker is processing, in Unix seconds."""
    rates: list[JobRate]
    """The jobs that ended within the last minute, hour and day."""
    profiles: list[ProfileJobs]
    """Counts and rates of each profile that has jobs, in the order of their names."""
