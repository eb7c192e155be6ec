"""The records of jobs that clients follow. RQ is only the transport: its states are never shown.

`open_jobs` writes the records. Nothing that is true about a speaker depends on them.
"""

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast, get_args

from pydantic import TypeAdapter
from redis.client import Pipeline

from services.shared.view.generation import Generation, redis_milliseconds
from services.shared.view.job_summary import summarize
from services.shared.view.keys import jobs_key, record_key
from speaker_registry.errors import JobNotFound
from speaker_registry.schemas import FINISHED_STATES, JobState, JobSummary

KEPT_SECONDS = 30 * 24 * 3600
Stage = Literal["loading", "encoding", "publishing"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""The stages of an attempt, in their order."""
_ENDED: tuple[JobState, ...] = ("succeeded", "failed", "canceled", "superseded")
_PAGE = 200
_SCANNED = 5_000
"""Largest number of records that are examined for one filtered page. If there are more, `more` is set."""
_RARE = 1_000
"""With up to this many jobs of a profile, its page is read from their index. Jobs of a more frequent profile
are soon found among all jobs, and ordering all of them by their creation would take longer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Everything that is known about one job. Times are in Unix seconds."""

    id: str
    namespace: str
    slug: str
    name: str
    vuid: str
    number: int
    profile: str
    fingerprint: str = ""
    build: int = 1
    forced: bool = False
    """True if the artifact is to be made even if there is one already or its extraction was given up."""
    state: JobState
    attempt: int = 0
    max_attempts: int
    queue: str
    stage: str = "queued"
    """One of `STAGES`, `queued` between attempts, or `done` when the job has succeeded."""
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    worker: str | None = None
    error: Mapping[str, Any] | None = None
    traceparent: str | None = None
    """The trace context of the request that asked for the job, if that request had a trace."""
    given_id: str | None = None
    """See `Version.given_id`."""
    replaced: bool = False
    """True if the job is superseded because no worker would have run it, and another job makes its artifact.
    """
    lost: bool = False
    """True if Redis lost the record and no job makes the artifact any more."""

    @property
    def finished(self) -> bool:
        return self.state in FINISHED_STATES

    @property
    def stages_done(self) -> int:
        """The number of stages that the latest attempt has completed."""
        if self.state == "succeeded":
            return len(STAGES)
        return STAGES.index(self.stage) if self.stage in STAGES else 0

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> "JobRecord":
        """Parse the hash that the scripts wrote."""
        error = json.loads(fields["error"]) if "error" in fields else None
        return _RECORD.validate_python({**fields, "namespace": fields["ns"], "error": error})


_RECORD = TypeAdapter(JobRecord)


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of jobs. The next page starts after the job `last`, which the filter may have left out."""

    found: list[JobRecord]
    last: str | None
    more: bool


class JobRecords:
    """Reads the records of a namespace, newest first. Every method raises `ViewAway` or `Unavailable`."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def get(self, namespace: str, job_id: str) -> JobRecord:
        """Return the record of a job. Raises `JobNotFound` if there is none in this namespace."""
        [fields] = self._generation.read(
            lambda pipeline, generation: pipeline.hgetall(record_key(generation, job_id))
        )
        if fields.get("ns") != namespace:
            raise JobNotFound(f"No job {job_id[:80]!a}. Jobs are kept for 30 days.", param="job_id")
        return JobRecord.read(fields)

    def page(
        self,
        namespace: str,
        *,
        state: JobState | None = None,
        slug: str | None = None,
        profile: str | None = None,
        created_after: float = -math.inf,
        after: str | None = None,
        limit: int,
    ) -> JobPage:
        """Return a page of jobs, newest first, that starts after the job `after`.

        Args:
            created_after: leave out jobs that were created at this time (Unix seconds) or before.

        Raises:
            JobNotFound: `after` is not a job of this namespace.
        """
        found: list[JobRecord] = []
        last = after
        for examined, record in enumerate(self._newest_first(namespace, state, profile, after, limit + 1)):
            if record.created_at <= created_after:  # no job that follows is newer
                return JobPage(found, last, False)
            # The job may have changed its state since its id was read.
            in_state = state in {None, record.state}
            wanted = in_state and slug in {None, record.slug} and profile in {None, record.profile}
            if examined == _SCANNED or (wanted and len(found) == limit):
                return JobPage(found, last, True)
            if wanted:
                found.append(record)
            last = record.id
        return JobPage(found, last, False)

    def counts(self, namespace: str, states: Sequence[JobState], edges: Sequence[float]) -> list[list[int]]:
        """Count jobs by the time at which they were created.

        Args:
            edges: moments in Unix seconds, in ascending order.

        Returns:
            For each of `states`, how many of the jobs that are in it now were created from each of `edges`
            (inclusive) until the next one (exclusive). This is one number less than there are edges.
        """
        bars = len(edges) - 1
        found = self._generation.read(
            lambda pipeline, generation: [
                pipeline.zcount(jobs_key(generation, namespace, state), start, f"({end}")
                for state in states
                for start, end in pairwise(edges)
            ]
        )
        return [found[first * bars : (first + 1) * bars] for first in range(len(states))]

    def failed_since(
        self, namespace: str, profiles: Iterable[str], moment: float, *, limit: int
    ) -> list[JobRecord]:
        """Return up to `limit` jobs that failed since `moment` (Unix seconds), the last failure first."""
        found = self._generation.read(
            lambda pipeline, generation: [
                pipeline.zrange(
                    jobs_key(generation, namespace, "failed", profile),
                    "+inf",
                    moment,
                    byscore=True,
                    desc=True,
                    offset=0,
                    num=limit,
                    withscores=True,
                )
                for profile in profiles
            ]
        )
        ended = ((score, job_id) for entries in found for job_id, score in entries)
        return self._read([job_id for _, job_id in heapq.nlargest(limit, ended)])

    def now(self) -> float:
        """Return the time in Unix seconds by Redis' clock, which dates all records."""
        return redis_milliseconds(self._generation) / 1000

    def summary(self, namespace: str, profiles: Iterable[str]) -> JobSummary:
        """Count the jobs of a namespace by state and profile."""
        return summarize(self._generation, namespace, profiles, self.now())

    def forget_before(self, namespace: str, moment: float) -> int:
        """Drop one page of each state's records of finished jobs that were created before `moment`.

        Returns how many it dropped: call it again until that is 0.
        """
        return sum(self._forget(namespace, state, moment) for state in _ENDED)

    def _forget(self, namespace: str, state: JobState, moment: float) -> int:
        [ids] = self._generation.read(
            lambda pipeline, generation: pipeline.zrange(
                jobs_key(generation, namespace, state), "-inf", moment, byscore=True, offset=0, num=_PAGE
            )
        )
        profiles = self._generation.read(
            lambda pipeline, generation: [
                pipeline.hget(record_key(generation, job_id), "profile") for job_id in ids
            ]
        )
        self._generation.read(
            lambda pipeline, generation: [
                (
                    pipeline.delete(record_key(generation, job_id)),
                    pipeline.zrem(jobs_key(generation, namespace, state, profile or ""), job_id),
                    pipeline.zrem(jobs_key(generation, namespace, state), job_id),
                    pipeline.zrem(jobs_key(generation, namespace), job_id),
                )
                for job_id, profile in zip(ids, profiles, strict=True)
            ]
        )
        return len(ids)

    def _newest_first(
        self, namespace: str, state: JobState | None, profile: str | None, after: str | None, likely: int
    ) -> Iterator[JobRecord]:
        """Yield all jobs in a state, or in any, that come after a job. Those of other profiles are left out
        if the profile is rare. The first request to Redis asks for `likely` jobs only.
        """
        place = (self.get(namespace, after).created_at, after) if after is not None else (math.inf, "")
        offset, count = 0, min(likely, _PAGE)
        rare = self._of_rare(namespace, state, profile) if profile is not None else None
        if rare is not None:
            ids = [job_id for _, job_id in sorted((one for one in rare if one < place), reverse=True)]
            for first in range(0, len(ids), count):
                yield from self._read(ids[first : first + count])
            return
        while True:
            entries = self._entries(namespace, state, place[0], offset, count)
            older = [entry for entry in entries if entry < place]
            yield from self._read([job_id for _, job_id in older])
            if len(entries) < count:
                return
            # The next page starts after a job, not at an offset, because new jobs would shift offsets.
            place, offset = (older[-1], 0) if older else (place, offset + count)
            count = _PAGE

    def _entries(
        self, namespace: str, state: JobState | None, latest: float, offset: int, count: int
    ) -> list[tuple[float, str]]:
        """Return the next jobs that were created at this time or before, each with its time."""
        [found] = self._generation.read(
            lambda pipeline, generation: pipeline.zrange(
                jobs_key(generation, namespace, state or ""),
                latest,
                "-inf",
                byscore=True,
                desc=True,
                offset=offset,
                num=count,
                withscores=True,
            )
        )
        return [(score, job_id) for job_id, score in cast(list[tuple[str, float]], found)]

    def _of_rare(
        self, namespace: str, state: JobState | None, profile: str
    ) -> list[tuple[float, str]] | None:
        """Return all jobs of a profile in a state, or in any, each with the time at which it was created.
        Return None if there are more than `_RARE`.
        """
        states = get_args(JobState) if state is None else (state,)
        numbers = self._generation.read(
            lambda pipeline, generation: [
                pipeline.zcard(jobs_key(generation, namespace, one, profile)) for one in states
            ]
        )
        if sum(numbers) > _RARE:
            return None

        def ask(pipeline: Pipeline, generation: str) -> None:
            for one in states:
                # The time of creation is in the index of the state, and that of the end in the other one.
                by_creation = jobs_key(generation, namespace, one)
                of_profile = jobs_key(generation, namespace, one, profile)
                pipeline.zinter({by_creation: 1, of_profile: 0}, withscores=True)

        found = self._generation.read(ask)
        return [(score, job_id) for entries in found for job_id, score in entries]

    def _read(self, job_ids: Sequence[str]) -> list[JobRecord]:
        found = self._generation.read(
            lambda pipeline, generation: [
                pipeline.hgetall(record_key(generation, job_id)) for job_id in job_ids
            ]
        )
        return [JobRecord.read(fields) for fields in found if fields]
