"""Finds jobs that still wait, but whose place in the queue Redis has lost: no worker will ever take them."""

from redis import Redis
from rq.job import JobStatus
from rq.utils import as_text

from services.shared.queue.rq_jobs import JobQueue, QueuedJob, is_queue_name

LONGEST_SEARCHED = 1_000
"""The length of the longest queue that is searched for a job. Redis does nothing else meanwhile."""


def is_lost(connection: Redis, job_id: str) -> bool:
    """Return whether no worker will find this job, because Redis lost its place in the queue and not the job
    itself.

    A queue of more than `LONGEST_SEARCHED` jobs is not searched, so a job is found to be lost when its queue
    has become shorter.
    """
    key = QueuedJob.key_for(job_id)
    name = as_text(connection.hget(key, "origin") or b"")
    if not is_queue_name(name):
        return False
    queue = JobQueue(name, connection)
    with connection.pipeline() as pipeline:  # at one moment, because jobs move from list to list
        pipeline.hget(key, "status")
        for waiting in (queue.key, queue.intermediate_queue_key):
            pipeline.llen(waiting)
            pipeline.lpos(waiting, job_id, maxlen=LONGEST_SEARCHED)
        status, *found = pipeline.execute()
    lengths, places = found[::2], found[1::2]
    return (
        status == JobStatus.QUEUED.value.encode()
        and max(lengths) <= LONGEST_SEARCHED
        and places == [None, None]
    )
