"""Our own record of every extraction job. RQ is only the transport: its states are never shown.

The scripts in `lua/` write the records, and this module reads them.
"""

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from services.shared.index.job_summary import summarize
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.speaker_index import SpeakerIndex
from speaker_registry.errors import JobNotFound
from speaker_registry.schemas import FINISHED_STATES, JobState, JobSummary

KEPT_SECONDS = 30 * 24 * 3600
_PAGE = 200
_SCANNED = 5_000
"""One filtered page looks at no more records than this. `more` then says that there are more to look at."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Everything that is known of one job. Times are in Unix seconds."""

    id: str
    namespace: str
    slug: str
    name: str
    vuid: str
    number: int
    profile: str
    fingerprint: str
    build: int
    forced: bool
    """True if the artifact is to be made even if there is one already or its extraction was given up."""
    state: JobState
    attempt: int
    max_attempts: int
    queue: str
    stage: str
    done: int
    total: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    worker: str | None
    error: Mapping[str, Any] | None
    traceparent: str | None
    """The trace context of the request that asked for the job, if that request had a trace."""
    lost: bool = False
    """True if Redis lost the record, and nothing makes the artifact any more."""

    @property
    def finished(self) -> bool:
        return self.state in FINISHED_STATES

    @classmethod
    def claimed(cls, job: Mapping[str, Any], *, build: int, at: float) -> "JobRecord":
        """Return the record that a claim at the time `at` makes from the fields `job`."""
        fields = {name: str(value) for name, value in job.items()}
        forced = "true" if job["forced"] else "false"
        return cls.read(
            fields | {"forced": forced, "state": "queued", "build": str(build), "created_at": str(at)}
        )

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> "JobRecord":
        """Parse the hash that the scripts wrote."""
        return cls(
            id=fields["id"],
            namespace=fields["ns"],
            slug=fields["slug"],
            name=fields["name"],
            vuid=fields["vuid"],
            number=int(fields["number"]),
            profile=fields["profile"],
            fingerprint=fields.get("fingerprint", ""),
            build=int(fields.get("build", 1)),
            forced=fields.get("forced") == "true",
            state=cast(JobState, fields["state"]),
            attempt=int(fields.get("attempt", 0)),
            max_attempts=int(fields["max_attempts"]),
            queue=fields["queue"],
            stage=fields.get("stage", "queued"),
            done=int(fields.get("done", 0)),
            total=int(fields.get("total", 0)),
            created_at=float(fields["created_at"]),
            started_at=_seconds(fields.get("started_at")),
            finished_at=_seconds(fields.get("finished_at")),
            worker=fields.get("worker"),
            error=json.loads(fields["error"]) if "error" in fields else None,
            traceparent=fields.get("traceparent"),
        )


def _seconds(text: str | None) -> float | None:
    return float(text) if text else None


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of jobs. The next page starts after the job `last`, which the filter may have left out."""

    found: list[JobRecord]
    last: str | None
    more: bool


class SeenJobs:
    """Remembers the latest jobs that this process has read or received an event of. Thread-safe.

    Clients can ask for such a job even after Redis has lost its record.
    """

    def __init__(self, most: int = 5_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._records: OrderedDict[str, JobRecord] = OrderedDict()

    def put(self, record: JobRecord) -> None:
        with self._lock:
            self._keep(record)

    def put_claimed(self, job: Mapping[str, Any], *, build: int, at: float) -> None:
        """Remember a job as a claim of any process made it, unless it was seen since, which is newer."""
        record = JobRecord.claimed(job, build=build, at=at)
        with self._lock:
            self._keep(self._records.get(record.id, record))

    def hear(self, event: Mapping[str, Any]) -> None:
        """Remember the job that an event of the index says was claimed."""
        if job := event.get("claimed"):
            self.put_claimed(job, build=int(job["build"]), at=float(job["created_at"]))

    def _keep(self, record: JobRecord) -> None:
        self._records[record.id] = record
        self._records.move_to_end(record.id)
        if len(self._records) > self._most:
            self._records.popitem(last=False)

    def get(self, job_id: str) -> JobRecord | None:
        with self._lock:
            return self._records.get(job_id)


class Jobs:
    """Reads job records of a namespace, newest first."""

    def __init__(self, index: SpeakerIndex) -> None:
        self._redis = index.redis

    def get(self, namespace: str, job_id: str) -> JobRecord:
        """Return a job of the namespace. Raises `JobNotFound`, also if another namespace has the job."""
        with unavailable_without_redis():
            fields = cast(dict[str, str], self._redis.hgetall(f"sr:job:{job_id}"))
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
        for looked_at, record in enumerate(self._newest_first(namespace, state, after)):
            if record.created_at <= created_after:  # and so are all that follow
                return JobPage(found, last, False)
            wanted = slug in {None, record.slug} and profile in {None, record.profile}
            if looked_at == _SCANNED or (wanted and len(found) == limit):
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
        with unavailable_without_redis():
            pipeline = self._redis.pipeline(transaction=False)
            for state in states:
                for start, end in pairwise(edges):
                    pipeline.zcount(f"sr:jobs:{namespace}:{state}", start, f"({end}")
            found = pipeline.execute()
        bars = len(edges) - 1
        return [found[first * bars : (first + 1) * bars] for first in range(len(states))]

    def summary(self, namespace: str, profiles: Iterable[str], now: float) -> JobSummary:
        """Count the jobs of a namespace by state and profile. `now` is in Unix seconds."""
        return summarize(self._redis, namespace, profiles, now)

    def _newest_first(self, namespace: str, state: JobState | None, after: str | None) -> Iterator[JobRecord]:
        key = f"sr:jobs:{namespace}" + (f":{state}" if state else "")
        place = (self.get(namespace, after).created_at, after) if after is not None else (math.inf, "")
        offset = 0
        while True:
            with unavailable_without_redis():
                found = self._redis.zrange(
                    key, place[0], "-inf", byscore=True, desc=True, offset=offset, num=_PAGE, withscores=True
                )
            entries = [(score, job_id) for job_id, score in cast(list[tuple[str, float]], found)]
            older = [entry for entry in entries if entry < place]
            yield from self._read([job_id for _, job_id in older])
            if len(entries) < _PAGE:
                return
            # The next page starts at a place, not at a number, which jobs that come meanwhile would shift.
            place, offset = (older[-1], 0) if older else (place, offset + _PAGE)

    def _read(self, job_ids: Iterable[str]) -> list[JobRecord]:
        with unavailable_without_redis():
            pipeline = self._redis.pipeline(transaction=False)
            for job_id in job_ids:
                pipeline.hgetall(f"sr:job:{job_id}")
            return [JobRecord.read(fields) for fields in pipeline.execute() if fields]

    def forget_before(self, namespace: str, moment: float) -> int:
        """Drop one page of each state's records of finished jobs older than `moment`.

        Returns how many it dropped: call it again until that is 0.
        """
        dropped = 0
        for state in sorted(FINISHED_STATES):
            key = f"sr:jobs:{namespace}:{state}"
            with unavailable_without_redis():
                found = self._redis.zrange(key, "-inf", moment, byscore=True, offset=0, num=_PAGE)
                ids = cast(list[str], found)
                profiles = self._profiles_of(ids)
                pipeline = self._redis.pipeline(transaction=True)
                for job_id, profile in zip(ids, profiles, strict=True):
                    pipeline.delete(f"sr:job:{job_id}")
                    pipeline.zrem(f"{key}:{profile}", job_id)
                    pipeline.zrem(key, job_id)
                    pipeline.zrem(f"sr:jobs:{namespace}", job_id)
                pipeline.execute()
            dropped += len(ids)
        return dropped

    def _profiles_of(self, job_ids: Iterable[str]) -> list[str | None]:
        pipeline = self._redis.pipeline(transaction=False)
        for job_id in job_ids:
            pipeline.hget(f"sr:job:{job_id}", "profile")
        found: list[str | None] = pipeline.execute()
        return found
