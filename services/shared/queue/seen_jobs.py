"""Remembers the jobs that a process has opened, joined or read, or that events have announced.

Clients can ask for such a job even after Redis has lost its record.
"""

import json
import threading
from collections.abc import Mapping
from typing import Any

from cachetools import LRUCache

from services.shared.view.job_records import JobRecord

_MOST = 5_000


class SeenJobs:
    """The latest jobs that this process has seen. Safe to use from several threads."""

    def __init__(self, most: int = _MOST) -> None:
        self._lock = threading.Lock()
        self._records: LRUCache[str, JobRecord] = LRUCache(most)

    def put(self, record: JobRecord) -> None:
        """Remember the current state of a job."""
        with self._lock:
            self._records[record.id] = record

    def put_claimed(self, fields: Mapping[str, str], *, at: float) -> None:
        """Remember a job that any process has just claimed, unless a newer state of the job is known.

        Args:
            fields: the fields of its record besides its state and its times.
            at: the time at which it was created, in Unix seconds.
        """
        record = JobRecord.read({**fields, "state": "queued", "created_at": str(at)})
        with self._lock:
            self._records.setdefault(record.id, record)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Remember the job that was claimed according to an event."""
        if claimed := event.get("claimed"):
            self.put_claimed(json.loads(claimed), at=float(event["at"]))

    def get(self, job_id: str) -> JobRecord | None:
        with self._lock:
            return self._records.get(job_id)
