"""Plans that wait until a version is ready or a job has finished. They do no I/O themselves.

Jobs are read with long polls, so that a change is seen at once. The state is then read from the version or
the artifact itself.
"""

from collections.abc import Callable

from speaker_registry.calls import Calls
from speaker_registry.errors import ArtifactFailed, ArtifactNotReady, JobNotFound, Unavailable
from speaker_registry.exchange import Plan, RetryPolicy, Sleep
from speaker_registry.paths import Target
from speaker_registry.schemas import (
    FINISHED_STATES,
    ArtifactDescriptor,
    ArtifactState,
    ArtifactStatus,
    Job,
    Schema,
)

_POLL_SECONDS = 10.0
"""Duration of one long poll. With several profiles, the failure of a profile whose job is not watched may be
noticed this much later.
"""
_SHORT_PAUSE_SECONDS = 0.25
"""Pause between two polls if the first showed no change, or if a job has ended and its artifact is not there
yet.
"""
_LONG_PAUSE_SECONDS = 1.0
"""Pause between two polls while there is no job to watch, or while the registry cannot be reached."""


class Readiness(Schema):
    """The state of one version, as seen while waiting for it."""

    voice: str
    version: int
    state: ArtifactState
    """State of the requested profile, or the worst state among those that the version must have to be
    complete.
    """
    artifacts: tuple[ArtifactStatus, ...]
    job: Job | None = None
    """The job that was watched last, with its progress."""

    @property
    def reference(self) -> str:
        """The voice and version number, such as `alice@3`."""
        return f"{self.voice}@{self.version}"

    @property
    def untrained(self) -> bool:
        """True if one of the artifacts was made with random weights, or will be."""
        return any(status.untrained for status in self.artifacts)

    @property
    def job_to_watch(self) -> str | None:
        """Id of an unfinished job. Jobs that a worker is processing are preferred to jobs that wait for a
        worker.
        """
        open_ones = [status for status in self.artifacts if status.state != "ready" and status.job_id]
        open_ones.sort(key=lambda status: status.state != "processing")
        return open_ones[0].job_id if open_ones else None


OnProgress = Callable[[Readiness], object]


def wait_ready(
    policy: RetryPolicy,
    target: Target,
    profile: str | None,
    timeout: float,
    on_progress: OnProgress | None,
) -> Plan[Readiness]:
    """Wait until a version is ready for `profile`, or for all required profiles if it is None.

    Raises:
        ArtifactFailed: An extraction failed. The message has the reason of each profile that failed.
        ArtifactNotReady: The version was not ready within `timeout` seconds.
    """
    calls = Calls(policy)
    deadline = policy.clock() + timeout
    target = yield from _with_version_number(calls, target)
    seen = yield from _read_state(calls, target, profile, None)
    while True:
        if on_progress:
            on_progress(seen)
        left = deadline - policy.clock()
        if is_ready(seen, left):
            return seen
        try:
            job = yield from _wait_for_change(calls, seen, left)
            seen = yield from _read_state(calls, target, profile, job)
        except Unavailable as error:  # a wrong address has already failed above
            yield Sleep(pause_of_outage(error, deadline - policy.clock()))


def wait_job(policy: RetryPolicy, job_id: str, timeout: float) -> Plan[Job]:
    """Wait until a job has finished.

    Raises:
        JobNotFound: There is no such job.
        ArtifactNotReady: The job did not finish within `timeout` seconds.
    """
    calls = Calls(policy)
    deadline = policy.clock() + timeout
    while True:
        left = deadline - policy.clock()
        try:
            job = yield from calls.job(job_id, wait=max(0.0, min(_POLL_SECONDS, left)))
        except Unavailable as error:
            yield Sleep(pause_of_outage(error, deadline - policy.clock()))
            continue
        if job.state in FINISHED_STATES:
            return job
        if policy.clock() >= deadline:
            reason = f" ({job.reason})" if job.reason else ""
            raise ArtifactNotReady(
                f"job {job.id} is {job.state}{reason}", retry_after_seconds=_LONG_PAUSE_SECONDS
            )
        yield Sleep(min(_SHORT_PAUSE_SECONDS, deadline - policy.clock()))


def pause_of_outage(error: Unavailable, seconds_left: float) -> float:
    """Return the pause in seconds after which a wait asks a registry again that cannot be reached. A wait
    continues over a restart of the registry. Raises `error` if the wait ends before that.
    """
    if seconds_left <= _LONG_PAUSE_SECONDS:
        raise error
    return _LONG_PAUSE_SECONDS


def is_ready(seen: Readiness, seconds_left: float) -> bool:
    """Return True if the version is ready, and False if waiting makes sense. Raises as `wait_ready` does."""
    if seen.state == "ready":
        return True
    if seen.state == "failed":
        failed = [
            f"{s.profile}: {s.error or 'no reason given'}" for s in seen.artifacts if s.state == "failed"
        ]
        raise ArtifactFailed(f"{seen.reference} could not be extracted: {'; '.join(failed)}")
    if seconds_left <= 0:
        states = ", ".join(map(_state_of, seen.artifacts))
        raise ArtifactNotReady(
            f"{seen.reference} is not ready yet: {states}", retry_after_seconds=_LONG_PAUSE_SECONDS
        )
    return False


def _state_of(status: ArtifactStatus) -> str:
    reason = f" ({status.reason})" if status.reason else ""
    return f"{status.profile} {status.state}{reason}"


def _with_version_number(calls: Calls, target: Target) -> Plan[Target]:
    """Replace an alias, or a bare name, which means `default`, by its version number. The alias may move
    during the wait.
    """
    if isinstance(target.reference, int):
        return target
    version = yield from calls.version(target)
    return target.at(version.version)


def _read_state(calls: Calls, target: Target, profile: str | None, job: Job | None) -> Plan[Readiness]:
    if profile is None:
        version = yield from calls.version(target)
        return Readiness(
            voice=version.voice,
            version=version.version,
            state=version.state,
            artifacts=tuple(version.artifacts),
            job=job,
        )
    found = yield from calls.descriptor(target, profile)
    status = (_status_of(found),)
    return Readiness(voice=found.voice, version=found.version, state=found.state, artifacts=status, job=job)


def _status_of(descriptor: ArtifactDescriptor) -> ArtifactStatus:
    return ArtifactStatus(
        profile=descriptor.profile,
        state=descriptor.state,
        current=descriptor.current,
        digest=descriptor.digest,
        untrained=descriptor.untrained,
        job_id=descriptor.job_id,
        error=descriptor.error,
        reason=descriptor.reason,
    )


def _wait_for_change(calls: Calls, seen: Readiness, seconds_left: float) -> Plan[Job | None]:
    """Wait until the state of a version has probably changed. Returns the job that was watched, if any."""
    if seen.job_to_watch is None:
        yield Sleep(min(_LONG_PAUSE_SECONDS, seconds_left))
        return None
    try:
        job = yield from calls.job(seen.job_to_watch, wait=min(_POLL_SECONDS, seconds_left))
    except JobNotFound:
        yield Sleep(min(_LONG_PAUSE_SECONDS, seconds_left))
        return None
    if job == seen.job:
        yield Sleep(min(_SHORT_PAUSE_SECONDS, seconds_left))
    return job
