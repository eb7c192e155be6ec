"""Keeps at most one open job for each (version, profile, fingerprint), and writes the record of every job.

A claim only saves work: if two workers make the same artifact, the document keeps one. A claim expires, by
Redis' own clock, unless it is renewed: by the worker while it computes, and by housekeeping while the job
waits in its queue. Clients that follow a job read its record. No write depends on claims or records.
"""

from collections.abc import Mapping
from dataclasses import replace

from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.view.agenda import Agenda
from services.shared.view.generation import Generation
from services.shared.view.job_records import KEPT_SECONDS
from services.shared.view.keys import events_key, jobs_key, open_jobs_key, record_key
from speaker_registry.schemas import FINISHED_STATES, JobState

CLAIMED_SECONDS = 300.0
"""A claim expires this long after it was last renewed, and another job may then take its place."""
_CHECK_SECONDS = 60.0
"""Housekeeping checks a speaker within this time after a claim. It renews the claim while the job waits."""


class OpenJobs:
    """Claims and records of jobs. Every method raises `ViewAway` or `Unavailable`."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._agenda = Agenda(generation)

    def claim(self, speaker_id: SpeakerId, job: OpenJob, fields: Mapping[str, str]) -> OpenJob:
        """Claim an extraction. Returns the job that has the claim: this one, or an earlier one to join. If
        this job replaces lost bytes (`OpenJob.mends`), so does the earlier one from then on.

        Claiming again for the same job changes nothing.

        Args:
            fields: the fields of the job's record besides its state and its times.
        """
        # This comes first, so that housekeeping finds the claim if the process dies before it enqueues the
        # job.
        self._agenda.check_within({speaker_id: _CHECK_SECONDS})
        generation = self._generation.for_reading()
        keys = [
            open_jobs_key(generation, speaker_id),
            record_key(generation, ""),
            jobs_key(generation, speaker_id.namespace),
            events_key(generation),
        ]
        arguments: list[str | int | float] = [
            _field(job),
            job.job_id,
            _HELD,
            _RECORD_KEPT,
            str(speaker_id),
            _MENDS if job.mends else "",
            *_flat(fields),
        ]
        found = str(self._generation.call("claim", generation, keys, arguments))
        return job if found == job.job_id else replace(job, job_id=found, processing=False)

    def begin(self, speaker_id: SpeakerId, job: OpenJob, fields: Mapping[str, str]) -> int | None:
        """Begin an attempt at a job. Returns its number, or None if the job has ended or is not known."""
        return self._change(speaker_id, job, "processing", fields, begins=True)

    def renew(self, speaker_id: SpeakerId, job: OpenJob) -> int | None:
        """Renew the claim of a job, in whichever state it is. Returns the number of its attempts, or None if
        the job has ended.
        """
        return self._change(speaker_id, job, None, {})

    def report(
        self, speaker_id: SpeakerId, job: OpenJob, fields: Mapping[str, str], *, attempt: int
    ) -> int | None:
        """Record the progress of a job's latest attempt, and renew its claim. An earlier attempt changes
        nothing. Returns the number of the job's attempts if it was recorded.

        The job may have been put back because its worker hung, so it is `processing` again.
        """
        return self._change(speaker_id, job, "processing", fields, latest=attempt)

    def put_back(
        self, speaker_id: SpeakerId, job: OpenJob, fields: Mapping[str, str], *, attempt: int
    ) -> None:
        """Change a job to one that waits, if `attempt` is its latest one."""
        self._change(speaker_id, job, "queued", fields, latest=attempt)

    def find(self, speaker_id: SpeakerId, job_id: str) -> OpenJob | None:
        """Return the job if it has a claim, even one that has expired."""
        [fields] = self._generation.read(
            lambda pipeline, generation: pipeline.hgetall(open_jobs_key(generation, speaker_id))
        )
        return next((job for job in parse_open_jobs(fields, 0) if job.job_id == job_id), None)

    def end(
        self,
        speaker_id: SpeakerId,
        job: OpenJob,
        state: JobState,
        fields: Mapping[str, str] | None = None,
    ) -> bool:
        """End a job and its claim. Returns False and changes nothing if the job had ended already."""
        assert state in FINISHED_STATES
        return self._change(speaker_id, job, state, fields or {}) is not None

    def _change(
        self,
        speaker_id: SpeakerId,
        job: OpenJob,
        state: JobState | None,
        fields: Mapping[str, str],
        *,
        begins: bool = False,
        latest: int | None = None,
    ) -> int | None:
        generation = self._generation.for_reading()
        keys = [
            open_jobs_key(generation, speaker_id),
            record_key(generation, job.job_id),
            jobs_key(generation, speaker_id.namespace),
            events_key(generation),
        ]
        held = "" if state in FINISHED_STATES else _HELD
        arguments = [
            _field(job),
            job.job_id,
            state or "",
            held,
            int(begins),
            str(speaker_id),
            "" if latest is None else latest,
            *_flat(fields),
        ]
        found = self._generation.call("job", generation, keys, arguments)
        return None if found is None else int(found)


_MENDS = ":mends"
_HELD = round(CLAIMED_SECONDS * 1000)
_RECORD_KEPT = (KEPT_SECONDS + 24 * 3600) * 1000
"""Redis keeps a record for a day longer than it is listed, so that housekeeping can still look up its
profile.
"""


def _flat(fields: Mapping[str, str]) -> list[str]:
    return [part for field in fields.items() for part in field]


def _field(job: OpenJob) -> str:
    return f"{job.vuid}|{job.profile}|{job.fingerprint}"


def parse_open_jobs(fields: Mapping[str, str], now: int) -> tuple[OpenJob, ...]:
    """Return the jobs of a speaker whose claims have not expired. `now` is the time of Redis in ms."""
    found = []
    for field, value in fields.items():
        vuid, profile, fingerprint = field.split("|")
        job_id, state, deadline, *mends = value.split(":")
        if int(deadline) > now:
            processing = state == "processing"
            found.append(OpenJob(vuid, profile, fingerprint, job_id, processing, mends=bool(mends)))
    return tuple(found)
